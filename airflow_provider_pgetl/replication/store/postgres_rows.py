"""Rows of the state tables as values.

Columns that came later are named in what is read, never ``*`` alone: on older tables the server then says which
one it misses, and the caller hears what to run.
"""

from __future__ import annotations

from typing import Any

from psycopg.rows import DictRow
from psycopg.sql import SQL

from airflow_provider_pgetl.replication.errors import Retry, StoreError
from airflow_provider_pgetl.replication.progress import (
    DestinationStatus,
    DestinationTable,
    PipelineRecord,
    SpoolFile,
    TableRecord,
)
from airflow_provider_pgetl.replication.schema import SchemaVersion, TableName, TableSchema
from airflow_provider_pgetl.replication.state import StateKind, TableState

TABLES = SQL(
    "select pipeline, relation_id, schema_name, table_name, generation, state, lsn, reason, hint, retry, retry_at,"
    "  paused, run_id, applied_lsn, snapshot_id, copied_rows, schema_version, source_mark, updated_at"
    " from pgetl.table_state where pipeline = %s"
)
TABLE = TABLES + SQL(" and relation_id = %s")


def one(row: DictRow | None) -> DictRow:
    """The row that a write just returned."""
    if row is None:
        raise StoreError("the state database returned no row for a row just written")
    return row


def pipeline_record(row: DictRow) -> PipelineRecord:
    """A row of ``pipeline``."""
    return PipelineRecord(
        name=row["name"],
        publication=row["publication"],
        slot=row["slot"],
        system_identifier=row["system_identifier"],
        timeline=row["timeline"],
        spooled_lsn=row["spooled_lsn"],
        paused=row["paused"],
    )


def table_record(row: DictRow) -> TableRecord:
    """A row of ``table_state``."""
    return TableRecord(
        pipeline=row["pipeline"],
        relation_id=row["relation_id"],
        table=TableName(row["schema_name"], row["table_name"]),
        generation=row["generation"],
        state=table_state(row),
        paused=row["paused"],
        run_id=row["run_id"],
        applied_lsn=row["applied_lsn"],
        snapshot_id=row["snapshot_id"],
        copied_rows=row["copied_rows"],
        schema_version=row["schema_version"],
        source_mark=row["source_mark"],
        updated_at=row["updated_at"],
    )


def table_state(row: DictRow) -> TableState:
    """The state in a row of ``table_state`` or its history."""
    return TableState(
        kind=StateKind(row["state"]),
        lsn=row["lsn"],
        reason=row["reason"],
        hint=row["hint"],
        retry=Retry(row["retry"]) if row["retry"] else None,
        retry_at=row["retry_at"],
    )


def state_values(state: TableState) -> tuple[Any, ...]:
    """The columns of a state: state, lsn, reason, hint, retry, retry_at."""
    return (state.kind, state.lsn, state.reason, state.hint, state.retry, state.retry_at)


def schema_version(row: DictRow) -> SchemaVersion:
    """A row of ``table_schema``."""
    return SchemaVersion(row["lsn"], TableSchema.from_json(row["definition"]))


def destination_table(row: DictRow) -> DestinationTable:
    """A row of ``destination_table``."""
    return DestinationTable(
        relation_id=row["relation_id"],
        name=row["name"],
        schema_version=row["schema_version"],
        previous_version=row["previous_version"],
        status=DestinationStatus(row["status"]),
    )


def spool_file(row: DictRow) -> SpoolFile:
    """A row of ``segment_file``."""
    return SpoolFile(
        relation_id=row["relation_id"],
        schema_version=row["schema_version"],
        path=row["path"],
        rows=row["rows"],
        bytes=row["bytes"],
        checksum=row["checksum"],
        first_lsn=row["first_lsn"],
        last_lsn=row["last_lsn"],
    )
