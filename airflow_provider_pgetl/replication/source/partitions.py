"""The copy plan of a table: ctid ranges over the table or its leaf partitions, largest first.

Each range is one complete query, so that any worker can run it under the snapshot with no further knowledge.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from psycopg import sql

from airflow_provider_pgetl.replication.destinations.base import Partition
from airflow_provider_pgetl.replication.errors import NotSupported
from airflow_provider_pgetl.replication.pg_types import (
    BOOL,
    BPCHAR,
    BYTEA,
    CHAR,
    DATE,
    FLOAT4,
    FLOAT8,
    INET,
    INT2,
    INT4,
    INT8,
    JSON,
    OID,
    TEXT,
    TIMESTAMP,
    TIMESTAMPTZ,
    VARCHAR,
)
from airflow_provider_pgetl.replication.schema import Column, TableSchema
from airflow_provider_pgetl.replication.source.catalog import PublishedTable
from airflow_provider_pgetl.replication.source.connection import Connection, source_errors

# A job has a fixed cost of some 0.2 s; a partition of this many rows takes a few seconds.
ROWS_PER_PARTITION = 1_000_000
MAX_PARTITIONS = 1024

# Types whose binary form is read as it is; all others travel as their text form.
NATIVE = frozenset(
    (
        BOOL,
        BYTEA,
        INT2,
        INT4,
        INT8,
        OID,
        FLOAT4,
        FLOAT8,
        DATE,
        TIMESTAMP,
        TIMESTAMPTZ,
        TEXT,
        VARCHAR,
        BPCHAR,
        JSON,
    )
)
# Their cast to text is not what their output function prints; format() is.
_CAST_DIFFERS = frozenset((INET, CHAR))

_PHYSICAL = """
select c.oid::int8, n.nspname, c.relname, c.relkind::text,
       ceil(pg_relation_size(c.oid)::numeric / current_setting('block_size')::int)::int8, c.reltuples::float8
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.oid = %(oid)s or c.oid in (select relid from pg_partition_tree(%(oid)s::oid::regclass) where isleaf)
"""


@dataclass(frozen=True, slots=True)
class _Physical:
    name: sql.Identifier
    blocks: int
    rows: float


def plan_partitions(connection: Connection, table: PublishedTable, workers: int) -> tuple[Partition, ...]:
    """Cut the table into ranges; an empty table has one, so that it comes to exist in the lake."""
    physical = _physical_tables(connection, table)
    blocks = sum(part.blocks for part in physical)
    rows = _estimate_rows(physical)
    wanted = min(
        MAX_PARTITIONS,
        max(math.ceil(rows / ROWS_PER_PARTITION), workers if rows > ROWS_PER_PARTITION // 4 else 1),
    )
    block_size = 8192
    found: list[Partition] = []
    for part in physical:
        share = max(1, min(part.blocks or 1, round(wanted * part.blocks / blocks))) if blocks else 1
        edges = [round(part.blocks * i / share) for i in range(share + 1)]
        for low, high in pairwise(edges):
            found.append(
                Partition(
                    number=0,
                    select=_select(connection, table, part.name, _ctid_range(low, high, part.blocks)),
                    estimated_rows=round(rows * (high - low) / blocks) if blocks else 0,
                    estimated_bytes=(high - low) * block_size,
                )
            )
    found.sort(key=lambda p: p.estimated_bytes, reverse=True)
    return tuple(Partition(number, p.select, p.estimated_rows, p.estimated_bytes) for number, p in enumerate(found, 1))


def _physical_tables(connection: Connection, table: PublishedTable) -> list[_Physical]:
    with source_errors():
        rows = connection.execute(_PHYSICAL, {"oid": table.schema.relation_id}).fetchall()
    found = [
        _Physical(sql.Identifier(schema, name), blocks or 0, tuples)
        for _, schema, name, kind, blocks, tuples in rows
        if kind == "r"
    ]
    if any(kind == "f" for _, _, _, kind, _, _ in rows):
        raise NotSupported(f"{table.schema.table} has a foreign table as partition")
    # A partitioned table without partitions is an empty table.
    return found or [_Physical(sql.Identifier(table.schema.table.schema, table.schema.table.name), 0, 0)]


def _estimate_rows(physical: list[_Physical]) -> float:
    """reltuples where it is known; else a guess from the size."""
    return sum(part.rows if part.rows >= 0 else part.blocks * 60 for part in physical)


def _ctid_range(low: int, high: int, blocks: int) -> sql.Composable | None:
    """``[low, high)`` in blocks; the first and the last range are open, since the table may have grown."""
    conditions = []
    if low > 0:
        conditions.append(sql.SQL("ctid >= {}::tid").format(sql.Literal(f"({low},0)")))
    if high < blocks:
        conditions.append(sql.SQL("ctid < {}::tid").format(sql.Literal(f"({high},0)")))
    return sql.SQL(" and ").join(conditions) if conditions else None


def _select(connection: Connection, table: PublishedTable, source: sql.Identifier, where: sql.Composable | None) -> str:
    conditions = [condition for condition in (where, _row_filter(table)) if condition is not None]
    query = sql.SQL("select {} from only {}").format(select_list(table.schema), source)
    if conditions:
        query += sql.SQL(" where ") + sql.SQL(" and ").join(conditions)
    return query.as_string(connection)


def _row_filter(table: PublishedTable) -> sql.Composable | None:
    if table.row_filter is None:
        return None
    # The server's own rendering of the publication's expression.
    return sql.SQL("({})").format(sql.SQL(table.row_filter))


def select_list(schema: TableSchema) -> sql.Composable:
    """The columns in the form that the copy's decoder expects."""
    return sql.SQL(", ").join(_expression(column) for column in schema.columns)


def _expression(column: Column) -> sql.Composable:
    name = sql.Identifier(column.name)
    if not column.element_oid and column.base_oid in NATIVE:
        return name
    if column.base_oid in _CAST_DIFFERS:
        return sql.SQL("case when {0} is not null then format('%s', {0}) end").format(name)
    return sql.SQL("{}::text").format(name)
