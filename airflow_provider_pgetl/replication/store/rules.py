"""What every store decides alike: schema versions, rollbacks, schema changes, refusals, and how much is kept."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence

from airflow_provider_pgetl.replication.errors import IllegalTransition, Overtaken, SchemaChangeUnderWay, StoreError
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.progress import (
    DestinationStatus,
    DestinationTable,
    Lease,
    Segment,
    SpoolFile,
    TableRecord,
)
from airflow_provider_pgetl.replication.schema import Column, SchemaVersion, TableSchema
from airflow_provider_pgetl.replication.state import StateKind, TableState

# At one cut and one sample each second, about three hours; thinned as they are written.
CUTS_KEPT = 10_000
SAMPLES_KEPT = 10_000

# The states in which the applier looks after a table.
APPLYING = tuple(kind for kind in StateKind if TableState(kind).applying)


# --- schema versions, always in order: by LSN, then by version


def same_shape(one: TableSchema, other: TableSchema) -> bool:
    """Whether both are one table under one name with the same columns.

    ``missing`` does not count: Postgres forgets it when the table is rewritten.
    """
    return (one.table, one.identity) == (other.table, other.identity) and _shown(one) == _shown(other)


def _shown(schema: TableSchema) -> tuple[Column, ...]:
    return tuple(dataclasses.replace(column, missing=None) for column in schema.columns)


def rows_alike(one: TableSchema, other: TableSchema) -> bool:
    """Whether rows of both are written alike, whatever else the table is."""
    return one.identity == other.identity and _written(one) == _written(other)


def _written(schema: TableSchema) -> list[tuple[object, ...]]:
    return [(c.name, c.type_oid, c.base_oid, c.typmod, c.element_oid, c.identity) for c in schema.columns]


def placed(versions: Sequence[SchemaVersion], schema: TableSchema, lsn: Lsn) -> SchemaVersion:
    """The version that ``schema`` is from ``lsn`` on: a known one, a known one that begins earlier, or a new one."""
    until = [version for version in versions if version.lsn <= lsn]
    after = versions[len(until) :]
    if until and _goes_on(until[-1], schema, lsn):
        return until[-1]
    if after and _begins_earlier(after[0], schema, lsn, until):
        return SchemaVersion(lsn, after[0].schema)
    number = max((version.schema.version for version in versions), default=0) + 1
    return SchemaVersion(lsn, dataclasses.replace(schema, version=number))


def _goes_on(holding: SchemaVersion, schema: TableSchema, lsn: Lsn) -> bool:
    if schema.rewrite is not None and (holding.lsn, holding.schema.rewrite) != (lsn, schema.rewrite):
        return False
    return same_shape(holding.schema, schema)


def _begins_earlier(following: SchemaVersion, schema: TableSchema, lsn: Lsn, until: Sequence[SchemaVersion]) -> bool:
    if schema.rewrite is not None or following.schema.rewrite is not None:
        return False  # a rewrite stays at its LSN: it says which rows can't be carried over
    if any(version.lsn == lsn and version.schema.version > following.schema.version for version in until):
        return False  # at that LSN it would come before them, and hold for nobody
    return same_shape(following.schema, schema)


def holding(versions: Sequence[SchemaVersion], lsn: Lsn) -> TableSchema | None:
    """The version that holds at ``lsn``."""
    return next((version.schema for version in reversed(versions) if version.lsn <= lsn), None)


def unneeded(versions: Sequence[SchemaVersion], before: Lsn, used: Collection[int | None]) -> list[int]:
    """The versions that end at or before ``before`` and are not used.

    The largest number stays, too: it is what keeps a number from being used twice.
    """
    until = [version.schema.version for version in versions if version.lsn <= before]
    kept = {*used, max((version.schema.version for version in versions), default=None)}
    return [number for number in until[:-1] if number not in kept]


# --- states


def state_before(moves: Iterable[tuple[TableState, bool]]) -> TableState | None:
    """Where a rollback leads after these moves of one generation (state, whether by rollback); None: nowhere.

    A rollback undoes the last move that is not undone yet, so one after the other walks back to the first state.
    What would leave the table where it is, or lead back into an error, is undone along with it.
    """
    way: list[TableState] = []
    for state, rolled_back in moves:
        if rolled_back:
            _undo(way)
        else:
            way.append(state)
    _undo(way)
    return way[-1] if way else None


def _undo(way: list[TableState]) -> None:
    present = way.pop() if way else None
    while way and (way[-1] == present or way[-1].kind is StateKind.ERRORED):
        way.pop()


# --- the destination's table


def change_begun(known: DestinationTable | None, relation_id: int, name: str, version: int) -> DestinationTable:
    """The destination's table while it is changed to ``version``."""
    if known is None:
        return DestinationTable(relation_id, name, version, None, DestinationStatus.APPLYING)
    if known.status is DestinationStatus.APPLIED:
        return DestinationTable(relation_id, name, version, known.schema_version, DestinationStatus.APPLYING)
    # A change that was begun and not finished comes again, perhaps with others after it.
    return dataclasses.replace(known, name=name, schema_version=version)


def change_done(relation_id: int, name: str, version: int) -> DestinationTable:
    """The destination's table in shape ``version``."""
    return DestinationTable(relation_id, name, version, None, DestinationStatus.APPLIED)


# --- the ledger


def rewound(spooled: Lsn, lsn: Lsn, forgotten: Iterable[SpoolFile]) -> Lsn:
    """The ledger's position after a rewind: a forgotten file takes its commits before ``lsn`` along."""
    return min(spooled, lsn, *(file.first_lsn for file in forgotten))


# --- refusals


def unknown_pipeline(name: str) -> StoreError:
    """There is no such pipeline."""
    return StoreError(f"pipeline {name} is not registered", hint="Run the copy DAG: its discovery registers it.")


def unknown_table(pipeline: str, relation_id: int) -> StoreError:
    """There is no such table."""
    return StoreError(
        f"pipeline {pipeline} has no table with relation id {relation_id}",
        hint="Run the copy DAG: its discovery registers the tables of the publication.",
    )


def overtaken_generation(record: TableRecord, stored: TableRecord) -> Overtaken:
    """The table has begun again."""
    return Overtaken(f"{record.table} is at generation {stored.generation}, not {record.generation}")


def overtaken_lease(lease: Lease) -> Overtaken:
    """Somebody else has it."""
    return Overtaken(f"epoch {lease.epoch} of the lease {lease.pipeline}/{lease.name} is over")


def replayed(segment: Segment, spooled: Lsn) -> Overtaken:
    """The segment's commits are in already."""
    return Overtaken(f"a segment from {segment.from_lsn} is a replay: the ledger is at {spooled}")


def nothing_before(record: TableRecord) -> IllegalTransition:
    """The generation has no earlier state."""
    return IllegalTransition(
        f"{record.table} is at the first state of generation {record.generation}",
        hint="There is nothing to go back to; resync the table to begin again.",
    )


def under_way(table: DestinationTable) -> SchemaChangeUnderWay:
    """The destination's table may be in either of two shapes."""
    return SchemaChangeUnderWay(
        f"the schema change of the destination's table {table.name} to version {table.schema_version} is under way"
    )
