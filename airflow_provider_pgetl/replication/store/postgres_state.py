"""Pipelines, the states of their tables and the versions of their schemas, in Postgres."""

from __future__ import annotations

from typing import Any

from psycopg import Cursor
from psycopg.rows import DictRow

from airflow_provider_pgetl.replication.errors import Retry, StoreError
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.progress import Lease, PipelineRecord, TableRecord
from airflow_provider_pgetl.replication.schema import TableName, TableSchema
from airflow_provider_pgetl.replication.state import INIT, StateKind, TableState, transition
from airflow_provider_pgetl.replication.store.postgres_lease import hold
from airflow_provider_pgetl.replication.store.postgres_pool import Pool
from airflow_provider_pgetl.replication.store.rules import (
    next_version,
    overtaken_generation,
    same_shape,
    unknown_pipeline,
    unknown_table,
)


class PostgresSchemas:
    """``SchemaStore``."""

    _pool: Pool

    def add_schema(self, pipeline: str, schema: TableSchema, lsn: Lsn) -> TableSchema:
        with self._pool.transaction() as cursor:
            _lock_pipeline(cursor, pipeline)
            return _add_schema(cursor, pipeline, schema, lsn)

    def latest_schema(self, pipeline: str, relation_id: int) -> TableSchema | None:
        with self._pool.transaction() as cursor:
            return _latest_schema(cursor, pipeline, relation_id)

    def schema_version(self, pipeline: str, relation_id: int, version: int) -> TableSchema | None:
        with self._pool.transaction() as cursor:
            row = cursor.execute(
                "select definition from pgetl.table_schema where pipeline = %s and relation_id = %s and version = %s",
                (pipeline, relation_id, version),
            ).fetchone()
        return TableSchema.from_json(row["definition"]) if row else None


class PostgresStates:
    """``StateStore``."""

    _pool: Pool

    def register_pipeline(self, pipeline: PipelineRecord) -> PipelineRecord:
        with self._pool.transaction() as cursor:
            row = cursor.execute(
                "insert into pgetl.pipeline"
                " (name, publication, slot, system_identifier, timeline, spooled_lsn, paused)"
                " values (%s, %s, %s, %s, %s, %s, %s)"
                " on conflict (name) do update set publication = excluded.publication,"
                "  slot = excluded.slot, updated_at = clock_timestamp()"
                " returning *",
                (
                    pipeline.name,
                    pipeline.publication,
                    pipeline.slot,
                    pipeline.system_identifier,
                    pipeline.timeline,
                    pipeline.spooled_lsn,
                    pipeline.paused,
                ),
            ).fetchone()
        return _pipeline_record(_one(row))

    def pipeline(self, name: str) -> PipelineRecord | None:
        with self._pool.transaction() as cursor:
            row = cursor.execute("select * from pgetl.pipeline where name = %s", (name,)).fetchone()
        return _pipeline_record(row) if row else None

    def pipelines(self) -> list[PipelineRecord]:
        with self._pool.transaction() as cursor:
            rows = cursor.execute('select * from pgetl.pipeline order by name collate "C"').fetchall()
        return [_pipeline_record(row) for row in rows]

    def register_table(self, pipeline: str, schema: TableSchema, lsn: Lsn, *, by: str) -> TableRecord:
        with self._pool.transaction() as cursor:
            _lock_pipeline(cursor, pipeline)
            known = _lock_table(cursor, pipeline, schema.relation_id)
            if known is not None:
                return _renamed(cursor, known, schema.table)
            row = cursor.execute(
                "insert into pgetl.table_state"
                " (pipeline, relation_id, schema_name, table_name, generation, state)"
                " values (%s, %s, %s, %s, 1, %s) returning *",
                (pipeline, schema.relation_id, schema.table.schema, schema.table.name, INIT.kind),
            ).fetchone()
            record = _table_record(_one(row))
            _add_schema(cursor, pipeline, schema, lsn)
            _remember(cursor, record, by=by, run_id=None)
        return record

    def table(self, pipeline: str, relation_id: int) -> TableRecord | None:
        with self._pool.transaction() as cursor:
            row = cursor.execute(
                "select * from pgetl.table_state where pipeline = %s and relation_id = %s",
                (pipeline, relation_id),
            ).fetchone()
        return _table_record(row) if row else None

    def tables(self, pipeline: str) -> list[TableRecord]:
        with self._pool.transaction() as cursor:
            rows = cursor.execute(
                "select * from pgetl.table_state where pipeline = %s"
                ' order by schema_name collate "C", table_name collate "C", relation_id',
                (pipeline,),
            ).fetchall()
        return [_table_record(row) for row in rows]

    def move(
        self,
        record: TableRecord,
        to: TableState,
        *,
        by: str,
        run_id: str | None = None,
        copied_rows: int | None = None,
        schema_version: int | None = None,
    ) -> TableRecord:
        with self._pool.transaction() as cursor:
            stored = _lock_generation(cursor, record)
            state = transition(stored.state, to)
            row = cursor.execute(
                "update pgetl.table_state set state = %s, lsn = %s, reason = %s, hint = %s, retry = %s,"
                "  retry_at = %s, run_id = coalesce(%s, run_id), copied_rows = coalesce(%s, copied_rows),"
                "  schema_version = coalesce(%s, schema_version),"
                "  updated_at = clock_timestamp()"
                " where pipeline = %s and relation_id = %s returning *",
                (
                    *_state_values(state),
                    run_id,
                    copied_rows,
                    schema_version,
                    record.pipeline,
                    record.relation_id,
                ),
            ).fetchone()
            moved = _table_record(_one(row))
            _remember(cursor, moved, by=by, run_id=run_id)
        return moved

    def new_generation(self, pipeline: str, relation_id: int, *, by: str, run_id: str | None = None) -> TableRecord:
        with self._pool.transaction() as cursor:
            row = cursor.execute(
                "update pgetl.table_state set generation = generation + 1, state = %s, lsn = null,"
                "  reason = null, hint = null, retry = null, retry_at = null, run_id = %s,"
                "  copied_rows = null, schema_version = null, updated_at = clock_timestamp()"
                " where pipeline = %s and relation_id = %s returning *",
                (INIT.kind, run_id, pipeline, relation_id),
            ).fetchone()
            if row is None:
                raise unknown_table(pipeline, relation_id)
            record = _table_record(row)
            _remember(cursor, record, by=by, run_id=run_id)
        return record

    def applied(self, lease: Lease, record: TableRecord, lsn: Lsn, snapshot_id: int | None) -> TableRecord:
        with self._pool.transaction() as cursor:
            hold(cursor, lease)
            _lock_generation(cursor, record)
            row = cursor.execute(
                "update pgetl.table_state set applied_lsn = greatest(applied_lsn, %(lsn)s),"
                "  snapshot_id = case when applied_lsn > %(lsn)s then snapshot_id"
                "   else coalesce(%(snapshot_id)s, snapshot_id) end,"
                "  updated_at = clock_timestamp()"
                " where pipeline = %(pipeline)s and relation_id = %(relation_id)s returning *",
                {
                    "lsn": lsn,
                    "snapshot_id": snapshot_id,
                    "pipeline": record.pipeline,
                    "relation_id": record.relation_id,
                },
            ).fetchone()
        return _table_record(_one(row))

    def history(self, pipeline: str, relation_id: int) -> list[tuple[int, TableState, str]]:
        with self._pool.transaction() as cursor:
            rows = cursor.execute(
                "select * from pgetl.table_state_history where pipeline = %s and relation_id = %s order by id",
                (pipeline, relation_id),
            ).fetchall()
        return [(row["generation"], _table_state(row), row["moved_by"]) for row in rows]

    def delete_pipeline(self, name: str) -> None:
        with self._pool.transaction() as cursor:
            # The epochs stay and move on, so that whoever still holds a lease can't write any more.
            cursor.execute(
                "update pgetl.lease set epoch = epoch + 1, owner = null, expires_at = clock_timestamp()"
                " where pipeline = %s",
                (name,),
            )
            cursor.execute("delete from pgetl.pipeline where name = %s", (name,))


def _lock_pipeline(cursor: Cursor[DictRow], name: str) -> None:
    if not cursor.execute("select from pgetl.pipeline where name = %s for no key update", (name,)).rowcount:
        raise unknown_pipeline(name)


def _lock_table(cursor: Cursor[DictRow], pipeline: str, relation_id: int) -> TableRecord | None:
    row = cursor.execute(
        "select * from pgetl.table_state where pipeline = %s and relation_id = %s for no key update",
        (pipeline, relation_id),
    ).fetchone()
    return _table_record(row) if row else None


def _lock_generation(cursor: Cursor[DictRow], record: TableRecord) -> TableRecord:
    stored = _lock_table(cursor, record.pipeline, record.relation_id)
    if stored is None:
        raise unknown_table(record.pipeline, record.relation_id)
    if stored.generation != record.generation:
        raise overtaken_generation(record, stored)
    return stored


def _renamed(cursor: Cursor[DictRow], known: TableRecord, name: TableName) -> TableRecord:
    if known.table == name:
        return known
    row = cursor.execute(
        "update pgetl.table_state set schema_name = %s, table_name = %s, updated_at = clock_timestamp()"
        " where pipeline = %s and relation_id = %s returning *",
        (name.schema, name.name, known.pipeline, known.relation_id),
    ).fetchone()
    return _table_record(_one(row))


def _latest_schema(cursor: Cursor[DictRow], pipeline: str, relation_id: int) -> TableSchema | None:
    row = cursor.execute(
        "select definition from pgetl.table_schema where pipeline = %s and relation_id = %s"
        " order by version desc limit 1",
        (pipeline, relation_id),
    ).fetchone()
    return TableSchema.from_json(row["definition"]) if row else None


def _add_schema(cursor: Cursor[DictRow], pipeline: str, schema: TableSchema, lsn: Lsn) -> TableSchema:
    latest = _latest_schema(cursor, pipeline, schema.relation_id)
    if latest is not None and same_shape(latest, schema):
        return latest
    added = next_version(latest, schema)
    cursor.execute(
        "insert into pgetl.table_schema (pipeline, relation_id, version, lsn, definition)"
        " values (%s, %s, %s, %s, %s::jsonb)",
        (pipeline, added.relation_id, added.version, lsn, added.to_json()),
    )
    return added


def _remember(cursor: Cursor[DictRow], record: TableRecord, *, by: str, run_id: str | None) -> None:
    cursor.execute(
        "insert into pgetl.table_state_history"
        " (pipeline, relation_id, generation, state, lsn, reason, hint, retry, retry_at, moved_by, run_id)"
        " values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
        (record.pipeline, record.relation_id, record.generation, *_state_values(record.state), by, run_id),
    )


def _state_values(state: TableState) -> tuple[Any, ...]:
    return (state.kind, state.lsn, state.reason, state.hint, state.retry, state.retry_at)


def _table_state(row: DictRow) -> TableState:
    return TableState(
        kind=StateKind(row["state"]),
        lsn=row["lsn"],
        reason=row["reason"],
        hint=row["hint"],
        retry=Retry(row["retry"]) if row["retry"] else None,
        retry_at=row["retry_at"],
    )


def _table_record(row: DictRow) -> TableRecord:
    return TableRecord(
        pipeline=row["pipeline"],
        relation_id=row["relation_id"],
        table=TableName(row["schema_name"], row["table_name"]),
        generation=row["generation"],
        state=_table_state(row),
        paused=row["paused"],
        run_id=row["run_id"],
        applied_lsn=row["applied_lsn"],
        snapshot_id=row["snapshot_id"],
        copied_rows=row["copied_rows"],
        schema_version=row["schema_version"],
        updated_at=row["updated_at"],
    )


def _pipeline_record(row: DictRow) -> PipelineRecord:
    return PipelineRecord(
        name=row["name"],
        publication=row["publication"],
        slot=row["slot"],
        system_identifier=row["system_identifier"],
        timeline=row["timeline"],
        spooled_lsn=row["spooled_lsn"],
        paused=row["paused"],
    )


def _one(row: DictRow | None) -> DictRow:
    if row is None:
        raise StoreError("the state database returned no row for a row just written")
    return row
