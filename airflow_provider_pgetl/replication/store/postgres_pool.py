"""Connections to the state database: a few of them, shared by threads, one transaction for each call.

Nothing here depends on a session outliving a transaction (no prepared statements, no LISTEN, no session
settings), so a transaction pooler such as PgBouncer may stand in between. A frozen process that holds a lock
is cut off by the server, so that it can't keep others from taking its lease over.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg import Connection, Cursor
from psycopg.abc import Buffer
from psycopg.adapt import Dumper, Loader
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.errors import InsufficientPrivilege, InvalidSchemaName, UndefinedColumn, UndefinedTable
from psycopg.pq import TransactionStatus
from psycopg.rows import DictRow, dict_row

from airflow_provider_pgetl.replication.errors import StoreError
from airflow_provider_pgetl.replication.lsn import Lsn

log = logging.getLogger(__name__)

PG_LSN_OID = 3220
MAX_CONNECTIONS = 8
MAX_IDLE = 4

# Every statement here takes milliseconds; what takes seconds hangs on a lock or a dead server.
BEGIN = (
    "begin; set local statement_timeout = '30s'; set local lock_timeout = '10s'; "
    "set local idle_in_transaction_session_timeout = '10s'; set local timezone = 'UTC'"
)

_DEFAULTS = {
    "application_name": "pgetl state",
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}


class _LsnLoader(Loader):
    def load(self, data: Buffer) -> Lsn:
        return Lsn.parse(bytes(data).decode())


class _LsnDumper(Dumper):
    oid = PG_LSN_OID

    def dump(self, obj: Any) -> Buffer:
        return str(obj).encode()


class Pool:
    """Up to ``MAX_CONNECTIONS`` connections; a caller beyond that waits for one to come back."""

    def __init__(self, conninfo: str) -> None:
        try:
            given = conninfo_to_dict(conninfo)
        except psycopg.Error as error:
            raise StoreError("the state database's connection string can't be read") from error
        self._conninfo = make_conninfo(**{**_DEFAULTS, **given})  # type: ignore[arg-type]
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._idle: list[Connection[DictRow]] = []
        self._closed = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}(idle={len(self._idle)})"

    @contextmanager
    def transaction(self) -> Iterator[Cursor[DictRow]]:
        """One transaction: committed at the end of the block, rolled back if the block raises."""
        with self._slots:
            connection = self._begin()
            try:
                with connection.cursor() as cursor:
                    yield cursor
                connection.execute("commit")
            except psycopg.Error as error:
                self._put_back(connection, rollback=True)
                raise wrapped(error) from error
            except BaseException:
                self._put_back(connection, rollback=True)
                raise
            self._put_back(connection)

    def close(self) -> None:
        """Close what is idle now, and each other connection when it comes back."""
        with self._lock:
            self._closed = True
        self._drop_idle()

    def _begin(self) -> Connection[DictRow]:
        with self._lock:
            if self._closed:
                raise StoreError("the store is closed")
            idle = self._idle.pop() if self._idle else None
        try:
            if idle is not None:
                try:
                    idle.execute(BEGIN)
                except psycopg.OperationalError:
                    # It went stale while idle, and nothing was executed on it: a fresh one does the same.
                    log.debug("a pooled connection to the state database was lost, connecting again")
                    idle.close()
                    self._drop_idle()
                else:
                    return idle
            return self._begin_fresh()
        except psycopg.Error as error:
            raise wrapped(error) from error

    def _begin_fresh(self) -> Connection[DictRow]:
        connection = Connection.connect(self._conninfo, autocommit=True, prepare_threshold=None, row_factory=dict_row)
        connection.adapters.register_loader(PG_LSN_OID, _LsnLoader)
        connection.adapters.register_dumper(Lsn, _LsnDumper)
        try:
            connection.execute(BEGIN)
        except psycopg.Error:
            connection.close()
            raise
        return connection

    def _put_back(self, connection: Connection[DictRow], *, rollback: bool = False) -> None:
        if rollback:
            with suppress(psycopg.Error):
                connection.execute("rollback")
        with self._lock:
            clean = connection.info.transaction_status is TransactionStatus.IDLE
            keep = clean and not self._closed and len(self._idle) < MAX_IDLE
            if keep:
                self._idle.append(connection)
        if not keep:
            connection.close()

    def _drop_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


def wrapped(error: psycopg.Error) -> StoreError:
    """The driver's error as ours; the server's words are about state tables, never about data."""
    said = error.diag.message_primary or str(error).strip() or type(error).__name__
    if isinstance(error, (UndefinedTable, UndefinedColumn, InvalidSchemaName)):
        return StoreError(
            f"the state tables are missing or old: {said}",
            hint="Run `airflow db migrate` on the database of the state connection (without Airflow: create_tables).",
        )
    if isinstance(error, InsufficientPrivilege):
        return StoreError(
            f"the state connection's role may not do this: {said}",
            hint="Grant usage on schema pgetl and select, insert, update, delete on its tables.",
        )
    return StoreError(f"the state database failed: {said}")
