"""A consistent view of the source at an exact LSN, which holds no WAL.

A temporary slot gives the snapshot and its LSN S: exactly the transactions with ``commit_lsn < S`` are visible.
A plain read-only transaction takes the snapshot over, and the slot is gone at once, so that a long copy keeps no
WAL. The transaction then locks the tables against rewrites and exports the snapshot again. Why a slot and not
``pg_export_snapshot`` alone: making the slot waits for the transactions that were running, so none falls between
snapshot and stream.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Sequence
from contextlib import closing
from types import TracebackType
from typing import Any, Self

import psycopg
from psycopg import sql

from airflow_provider_pgetl.replication.errors import SnapshotLost, SourceError
from airflow_provider_pgetl.replication.failpoints import hit
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.schema import TableName
from airflow_provider_pgetl.replication.source.connection import (
    Connection,
    connect,
    connect_holder,
    connect_replication,
    source_errors,
)
from airflow_provider_pgetl.replication.source.waiting import OnWait, run_waiting

log = logging.getLogger(__name__)

# Preflight leaves slots of this name out of account: they live for moments.
TEMPORARY_PREFIX = "pgetl_tmp_"
# Past this age people should know: vacuum can't clean, and DDL on the tables queues behind the lock.
OLD_AFTER_S = 3600.0

_ATTEMPTS = 5
# How long one try for a lock may take until ``on_wait`` is told.
_LOCK_TRY = "2s"
_GONE = frozenset({"42P01", "3F000"})
_FORBIDDEN = "42501"

# Of each table and its partitions: where the rows lie, and in which columns. Only plain reads of catalog tables:
# functions such as to_regclass, pg_partition_tree and pg_relation_filenode look at the newest catalog, whatever the
# transaction's snapshot. Children by plain inheritance are tables of their own.
_SHAPES = """
with recursive tree (root, oid, parent, detaching) as (
    select c.oid, c.oid, 0::oid, false
    from unnest(%(schemas)s::text[], %(names)s::text[]) t (schema, name)
    join pg_namespace n on n.nspname = t.schema
    join pg_class c on c.relnamespace = n.oid and c.relname = t.name
  union all
    select t.root, i.inhrelid, i.inhparent, i.inhdetachpending
    from tree t
    join pg_inherits i on i.inhparent = t.oid
    join pg_class c on c.oid = i.inhrelid and c.relispartition
)
select t.root::int8, t.oid::int8, t.parent::int8, t.detaching, c.relkind::text, c.relfilenode::int8,
       (select array_agg(concat_ws(' ', a.attnum, a.atttypid, a.atttypmod, a.attisdropped, a.attname) order by a.attnum)
        from pg_attribute a where a.attrelid = t.oid and a.attnum > 0)
from tree t join pg_class c on c.oid = t.oid
order by 1, 2, 3
"""


class SnapshotHolder:
    """Keeps an exported snapshot importable. Close it when the last reader has begun."""

    def __init__(self, connection: Connection, lsn: Lsn, snapshot: str) -> None:
        self._connection = connection
        self._opened_at = time.monotonic()
        self._lost = False
        self._warned = False
        self.lsn = lsn
        self.snapshot = snapshot

    @property
    def connection(self) -> Connection:
        """A connection inside the snapshot, to read the catalog as of then."""
        return self._connection

    @property
    def age_s(self) -> float:
        """How long the snapshot has been held."""
        return time.monotonic() - self._opened_at

    @property
    def lost(self) -> bool:
        """Whether the snapshot is known to be gone; asks nobody, ``check`` does."""
        return self._lost or self._connection.closed

    def check(self) -> None:
        """Raise ``SnapshotLost`` if the holder's connection is gone, and the snapshot with it."""
        try:
            self._connection.execute("select 1")
        except psycopg.Error as error:
            self._lost = True
            raise SnapshotLost(f"the snapshot {self.snapshot} at {self.lsn} is lost") from error
        if self.age_s >= OLD_AFTER_S and not self._warned:
            self._warned = True
            log.warning(
                "the snapshot at %s is held for %d min: vacuum can't clean meanwhile, and DDL waits",
                self.lsn,
                self.age_s // 60,
            )

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_snapshot(source: str, tables: Sequence[TableName], *, on_wait: OnWait | None = None) -> SnapshotHolder:
    """A snapshot over ``tables``, each locked against rewrites (ACCESS SHARE).

    While old transactions keep the slot from being made, or one the lock from being taken, ``on_wait`` is told how
    many they are; what it raises ends the wait.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        holder = _take_over(source, tables, on_wait)
        try:
            if _unmoved(source, holder, tables):
                return holder
        except BaseException:
            holder.close()
            raise
        holder.close()
        log.info("a table changed while its snapshot was taken, attempt %d of %d", attempt, _ATTEMPTS)
    raise SnapshotLost("the tables changed each time while their snapshot was taken")


def _take_over(source: str, tables: Sequence[TableName], on_wait: OnWait | None) -> SnapshotHolder:
    plain = connect_holder(source, "snapshot")
    try:
        lsn = _enter(source, plain, on_wait)
        hit("snapshot.taken")
        for table in sorted(tables):
            _lock(plain, table, on_wait)
        with source_errors():
            exported = plain.execute("select pg_export_snapshot()").fetchone()
        assert exported is not None
        return SnapshotHolder(plain, lsn, exported[0])
    except BaseException:
        plain.close()
        raise


def _enter(source: str, plain: Connection, on_wait: OnWait | None) -> Lsn:
    """Bring ``plain`` into the snapshot of a new slot; the slot is gone afterwards."""
    slot = f"{TEMPORARY_PREFIX}{os.getpid()}_{secrets.token_hex(4)}"
    command = sql.SQL("CREATE_REPLICATION_SLOT {} TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT")
    with closing(connect_replication(source, "snapshot-slot")) as replication, source_errors():
        row = run_waiting(source, replication, command.format(sql.Identifier(slot)), on_wait)
        # The exported snapshot dies with the next command on the slot's connection, or with the connection.
        plain.execute("begin isolation level repeatable read read only")
        plain.execute(sql.SQL("set transaction snapshot {}").format(sql.Literal(row[2])))
    return Lsn.parse(row[1])


def _lock(plain: Connection, table: TableName, on_wait: OnWait | None) -> None:
    """Lock the table and its partitions; waits for DDL that is under way, and tells so now and then."""
    name = sql.Identifier(table.schema, table.name)
    try:
        while not _locked(plain, name):
            if on_wait is not None:
                on_wait(1)
    except psycopg.Error as error:
        if error.sqlstate in _GONE:
            raise SourceError(
                f"{table} does not exist (any more)", hint="Run discovery again: it sees which tables are published."
            ) from error
        if error.sqlstate == _FORBIDDEN:
            raise SourceError(
                f"the role may not read {table}", hint=f"grant select on {name.as_string(None)} to the role"
            ) from error
        with source_errors():
            raise


def _locked(plain: Connection, name: sql.Identifier) -> bool:
    """Try for a while; a savepoint keeps the snapshot if it fails."""
    try:
        with plain.transaction():
            plain.execute(sql.SQL("set local lock_timeout = {}").format(sql.Literal(_LOCK_TRY)))
            plain.execute(sql.SQL("lock table {} in access share mode").format(name))
            plain.execute("set local lock_timeout = 0")
    except psycopg.errors.LockNotAvailable:
        return False
    return True


def _unmoved(source: str, holder: SnapshotHolder, tables: Sequence[TableName]) -> bool:
    """Whether no table changed its shape or place between snapshot and lock.

    A table rewritten after the snapshot reads as empty under it, and the rewrite streams nothing; one that was
    altered or got a partition is not what the snapshot's catalog says. Now that the lock is held, the snapshot's own
    catalog must say what the newest catalog says.
    """
    with closing(connect(source, "snapshot-check")) as now:
        newest = _shapes(now, tables)
    return _shapes(holder.connection, tables) == newest


def _shapes(connection: Connection, tables: Sequence[TableName]) -> list[tuple[Any, ...]]:
    names = {"schemas": [table.schema for table in tables], "names": [table.name for table in tables]}
    with source_errors():
        return connection.execute(_SHAPES, names).fetchall()
