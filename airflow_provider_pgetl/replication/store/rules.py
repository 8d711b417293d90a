"""What every store decides alike: schema versions, refusals, and how much is kept."""

from __future__ import annotations

import dataclasses

from airflow_provider_pgetl.replication.errors import Overtaken, StoreError
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.progress import Lease, Segment, TableRecord
from airflow_provider_pgetl.replication.schema import TableSchema
from airflow_provider_pgetl.replication.state import StateKind, TableState

# At one cut and one sample each second, about three hours; thinned as they are written.
CUTS_KEPT = 10_000
SAMPLES_KEPT = 10_000

# The states in which the applier looks after a table.
APPLYING = tuple(kind for kind in StateKind if TableState(kind).applying)


def same_shape(one: TableSchema, other: TableSchema) -> bool:
    """Whether the rows of both look alike, whatever the table is called."""
    return one.columns == other.columns and one.identity == other.identity


def next_version(latest: TableSchema | None, schema: TableSchema) -> TableSchema:
    """``schema`` as the version after ``latest``."""
    return dataclasses.replace(schema, version=latest.version + 1 if latest else 1)


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
