"""A consistent view of the source at an exact LSN, which holds no WAL.

A temporary slot gives the snapshot and its LSN S: exactly the transactions with ``commit_lsn < S`` are visible.
A plain read-only transaction takes the snapshot over, locks the tables against rewrites and exports it again;
the slot is then gone, so that a long copy keeps no WAL. Why a slot and not ``pg_export_snapshot`` alone: making
the slot waits for the transactions that were running, so none falls between snapshot and stream.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import psycopg
from psycopg import sql

from airflow_provider_pgetl.replication.errors import SnapshotLost
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.schema import TableName
from airflow_provider_pgetl.replication.source.connection import (
    Connection,
    connect,
    connect_replication,
    source_errors,
)

log = logging.getLogger(__name__)

_ATTEMPTS = 5

# Of a table and its partitions: where the rows lie.
_FILENODES = """
select t.relid::oid::int8, c.relfilenode::int8
from unnest(%s::text[]) n (name)
cross join lateral pg_partition_tree(to_regclass(n.name)) t
join pg_class c on c.oid = t.relid
union all
select c.oid::int8, c.relfilenode::int8
from unnest(%s::text[]) n (name) join pg_class c on c.oid = to_regclass(n.name)
order by 1, 2
"""


class SnapshotHolder:
    """Keeps an exported snapshot importable. Close it when the last reader has begun."""

    def __init__(self, connection: Connection, lsn: Lsn, snapshot: str) -> None:
        self._connection = connection
        self.lsn = lsn
        self.snapshot = snapshot

    @property
    def connection(self) -> Connection:
        """A connection inside the snapshot, to read the catalog as of then."""
        return self._connection

    def check(self) -> None:
        """Raise ``SnapshotLost`` if the holder's connection is gone, and the snapshot with it."""
        try:
            self._connection.execute("select 1")
        except psycopg.Error as error:
            raise SnapshotLost(f"the snapshot {self.snapshot} at {self.lsn} is lost") from error

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_snapshot(source: str, tables: Sequence[TableName]) -> SnapshotHolder:
    """A snapshot over ``tables``, each locked against rewrites (ACCESS SHARE)."""
    for attempt in range(1, _ATTEMPTS + 1):
        holder = _take_over(source, tables)
        if _unmoved(source, holder, tables):
            return holder
        holder.close()
        log.info("a table was rewritten while its snapshot was taken, attempt %d of %d", attempt, _ATTEMPTS)
    raise SnapshotLost("the tables were rewritten each time while their snapshot was taken")


def _take_over(source: str, tables: Sequence[TableName]) -> SnapshotHolder:
    slot = f"pgetl_tmp_{os.getpid()}_{secrets.token_hex(4)}"
    plain = connect(source, "snapshot", autocommit=True)
    try:
        with connect_replication(source, "snapshot-slot") as replication, source_errors():
            row = replication.execute(
                sql.SQL("CREATE_REPLICATION_SLOT {} TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT").format(
                    sql.Identifier(slot)
                )
            ).fetchone()
            assert row is not None
            # The exported snapshot dies with the next command on the slot's connection.
            plain.execute("begin isolation level repeatable read read only")
            plain.execute(sql.SQL("set transaction snapshot {}").format(sql.Literal(row[2])))
            for table in sorted(tables):
                name = sql.Identifier(table.schema, table.name)
                plain.execute(sql.SQL("lock table {} in access share mode").format(name))
            exported = plain.execute("select pg_export_snapshot()").fetchone()
            assert exported is not None
        return SnapshotHolder(plain, Lsn.parse(row[1]), exported[0])
    except BaseException:
        plain.close()
        raise


def _unmoved(source: str, holder: SnapshotHolder, tables: Sequence[TableName]) -> bool:
    """Whether no table was rewritten between snapshot and lock.

    A rewritten table reads as empty under the snapshot and streams nothing. Now that the lock is held, the
    snapshot's own catalog must say what the newest catalog says.
    """
    names = [_quote(table) for table in tables]
    with connect(source, "snapshot-check") as now, source_errors():
        after = now.execute(_FILENODES, (names, names)).fetchall()
        before = holder.connection.execute(_FILENODES, (names, names)).fetchall()
    return before == after


def _quote(table: TableName) -> str:
    return ".".join('"' + part.replace('"', '""') + '"' for part in (table.schema, table.name))
