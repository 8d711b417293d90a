"""The table and the WAL that the benchmarks of the stream share: many inserts, then many small transactions."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from airflow_provider_pgetl.local.postgres import Database, EmbeddedPostgres
from airflow_provider_pgetl.replication.lsn import Lsn

TABLE = """
create table orders (
    id bigint primary key, customer int not null, status text not null, amount numeric(12,2) not null,
    created timestamptz not null default now(), note text, paid bool not null default false, weight float8
)
"""
INSERT = """
insert into orders select i, i % 10000, 'new', i * 0.01, now(), 'note of order ' || i, i % 2 = 0, i / 3.0
from generate_series(1, {inserts}) i
"""
UPDATE = "update orders set status = 'paid', paid = true, amount = amount + 1 where id = :id;"
SETTINGS = {"max_replication_slots": "20", "max_wal_size": "4GB", "synchronous_commit": "off"}


@contextmanager
def scratch_server(settings: dict[str, str] | None = None) -> Iterator[tuple[EmbeddedPostgres, Path]]:
    """A server of the benchmark's own, and a folder that goes with it."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        folder.chmod(0o755)
        with EmbeddedPostgres(folder / "postgres", settings={**SETTINGS, **(settings or {})}) as server:
            yield server, folder


def make_table(database: Database) -> None:
    """The table and its publication ``pub``."""
    with database.connect() as connection:
        connection.execute(TABLE)
        connection.execute("create publication pub for table orders")


def make_wal(database: Database, server: EmbeddedPostgres, inserts: int, updates: int) -> Lsn:
    """One transaction of inserts, then single-row updates, each a transaction of its own; where they end."""
    with database.connect() as connection:
        connection.execute(INSERT.format(inserts=inserts))
    script = Path(tempfile.mkstemp(suffix=".sql")[1])
    script.write_text(f"\\set id random(1, {inserts})\n{UPDATE}\n")
    script.chmod(0o644)
    subprocess.run(
        [
            server.program("pgbench"),
            "--no-vacuum",
            "--client=4",
            f"--transactions={updates // 4}",
            f"--file={script}",
            "--protocol=prepared",
            database.conninfo,
        ],
        check=True,
        capture_output=True,
    )
    script.unlink()
    with database.connect() as connection:
        # The last change lies past the position that readers wait for, and takes all others with it to the disk.
        row = connection.execute("select pg_current_wal_insert_lsn()::text").fetchone()
        connection.execute("set synchronous_commit = on")
        connection.execute("update orders set paid = true where id = 1")
    assert row is not None
    return Lsn.parse(str(row[0]))
