"""The copy plan of a table: ctid ranges over the table or its leaf partitions, largest first.

Each range is one complete query, so that any worker can run it under the snapshot with no further knowledge.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from psycopg import sql

from airflow_provider_pgetl.replication.destinations.base import Partition
from airflow_provider_pgetl.replication.errors import NotSupported
from airflow_provider_pgetl.replication.pg_types import CopyForm, copy_form
from airflow_provider_pgetl.replication.schema import Column, TableSchema
from airflow_provider_pgetl.replication.source.catalog import PublishedTable
from airflow_provider_pgetl.replication.source.connection import Connection, source_errors

# A job has a fixed cost of some 0.2 s; a partition of this many rows takes a few seconds.
ROWS_PER_PARTITION = 1_000_000
# Few rows may still be much: wide ones, TOAST.
BYTES_PER_PARTITION = 1024**3
MAX_PARTITIONS = 1024
# Each leaf and each of its indexes takes a lock of the server's shared table for as long as the query runs.
LEAVES_PER_PARTITION = 32
GUESSED_ROWS_PER_BLOCK = 60

# Plain reads of the catalog, so that a holder's connection sees the partitions as of its snapshot;
# pg_partition_tree would show the newest. Children by plain inheritance are tables of their own.
_PHYSICAL = """
with recursive tree (oid) as (
    select %(oid)s::oid
  union all
    select i.inhrelid from tree t
    join pg_inherits i on i.inhparent = t.oid
    join pg_class c on c.oid = i.inhrelid and c.relispartition
)
select n.nspname, c.relname, c.relkind::text, current_setting('block_size')::int,
       coalesce(pg_relation_size(c.oid), 0)::int8, coalesce(pg_relation_size(nullif(c.reltoastrelid, 0)), 0)::int8,
       c.relpages::int8, c.reltuples::float8
from tree t join pg_class c on c.oid = t.oid join pg_namespace n on n.oid = c.relnamespace
where c.relkind <> 'p'
order by c.oid
"""


@dataclass(frozen=True, slots=True)
class _Physical:
    """A table with storage: the table itself, or a leaf."""

    name: sql.Identifier
    blocks: int
    rows: float
    bytes: int


@dataclass(frozen=True, slots=True)
class _Range:
    """Blocks ``[low, high)`` of a table."""

    part: _Physical
    low: int
    high: int

    @property
    def share(self) -> float:
        """Of the table's rows and bytes."""
        return (self.high - self.low) / self.part.blocks if self.part.blocks else 1.0


def plan_partitions(connection: Connection, table: PublishedTable, workers: int) -> tuple[Partition, ...]:
    """Cut the table into ranges; an empty table has one, so that it comes to exist in the lake.

    A large leaf is cut into ranges of its own. Leaves that are smaller than a partition should be share one, up to
    ``LEAVES_PER_PARTITION`` of them, so that a table with a thousand small leaves is not a thousand jobs. There are
    never more than ``MAX_PARTITIONS`` in sum, however many leaves there are.
    """
    physical = _physical_tables(connection, table)
    plan = _divide(physical, _wanted(physical, workers))
    found = [_partition(connection, table, ranges) for ranges in plan]
    found.sort(key=lambda p: p.estimated_bytes, reverse=True)
    return tuple(Partition(number, p.select, p.estimated_rows, p.estimated_bytes) for number, p in enumerate(found, 1))


def _wanted(physical: Sequence[_Physical], workers: int) -> int:
    rows, size = sum(part.rows for part in physical), sum(part.bytes for part in physical)
    needed = max(rows / ROWS_PER_PARTITION, size / BYTES_PER_PARTITION)
    # A small table is not worth more than one job.
    least = workers if needed > 1 / 4 else 1
    return min(MAX_PARTITIONS, max(math.ceil(needed), least))


def _divide(physical: Sequence[_Physical], wanted: int) -> list[list[_Range]]:
    """The ranges of each partition; fewer and larger ones until they keep the bound."""
    leaves = max(LEAVES_PER_PARTITION, math.ceil(2 * len(physical) / MAX_PARTITIONS))
    while len(plan := _cut(physical, wanted, leaves)) > MAX_PARTITIONS:
        wanted //= 2
    return plan


def _cut(physical: Sequence[_Physical], wanted: int, leaves: int) -> list[list[_Range]]:
    total = sum(part.bytes for part in physical)
    plan: list[list[_Range]] = []
    shared: list[_Range] = []
    filled = 0
    for part in sorted(physical, key=lambda part: part.bytes, reverse=True):
        pieces = min(part.blocks, math.ceil(part.bytes * wanted / total)) if total else 0
        if pieces > 1:
            edges = [round(part.blocks * i / pieces) for i in range(pieces + 1)]
            plan += [[_Range(part, low, high)] for low, high in pairwise(edges)]
            continue
        if shared and ((filled + part.bytes) * wanted > total or len(shared) >= leaves):
            plan.append(shared)
            shared, filled = [], 0
        shared.append(_Range(part, 0, part.blocks))
        filled += part.bytes
    return [*plan, shared] if shared else plan


def _partition(connection: Connection, table: PublishedTable, ranges: Sequence[_Range]) -> Partition:
    selects = [_select(connection, table, one) for one in ranges]
    return Partition(
        number=0,
        select=" union all ".join(selects),
        estimated_rows=round(sum(one.part.rows * one.share for one in ranges)),
        estimated_bytes=round(sum(one.part.bytes * one.share for one in ranges)),
    )


def _physical_tables(connection: Connection, table: PublishedTable) -> list[_Physical]:
    with source_errors():
        rows = connection.execute(_PHYSICAL, {"oid": table.schema.relation_id}).fetchall()
    found = []
    for schema, name, kind, block_size, heap, toast, pages, tuples in rows:
        if kind == "f":
            raise NotSupported(
                f"{table.schema.table} has the foreign table {schema}.{name} as partition",
                hint="Detach it, or publish the other partitions one by one.",
            )
        blocks = math.ceil(heap / block_size)
        rows_ = _estimate_rows(blocks, pages, tuples)
        found.append(_Physical(sql.Identifier(schema, name), blocks, rows_, heap + toast))
    # A partitioned table without partitions is an empty table.
    return found or [_Physical(sql.Identifier(table.schema.table.schema, table.schema.table.name), 0, 0, 0)]


def _estimate_rows(blocks: int, pages: int, tuples: float) -> float:
    """As the planner does: the density of the last analyze, times what the table has grown to since.

    A table that was never analyzed (-1), or only when it was empty, has no density: a guess.
    """
    return tuples * blocks / pages if pages > 0 and tuples > 0 else blocks * GUESSED_ROWS_PER_BLOCK


def _ctid_range(low: int, high: int, blocks: int) -> sql.Composable | None:
    """``[low, high)`` in blocks; the first and the last range are open, since the table may have grown."""
    conditions = []
    if low > 0:
        conditions.append(sql.SQL("ctid >= {}::tid").format(sql.Literal(f"({low},0)")))
    if high < blocks:
        conditions.append(sql.SQL("ctid < {}::tid").format(sql.Literal(f"({high},0)")))
    return sql.SQL(" and ").join(conditions) if conditions else None


def _select(connection: Connection, table: PublishedTable, part: _Range) -> str:
    where = _ctid_range(part.low, part.high, part.part.blocks)
    conditions = [condition for condition in (where, _row_filter(table)) if condition is not None]
    query = sql.SQL("select {} from only {}").format(select_list(table.schema), part.part.name)
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
    match copy_form(column):
        case CopyForm.BINARY:
            return name
        case CopyForm.CAST:
            return sql.SQL("{}::text").format(name)
        case CopyForm.PRINT:
            # Not "is not null": that is false of a row with a field that is null.
            return sql.SQL("case when {0} is distinct from null then format('%s', {0}) end").format(name)
