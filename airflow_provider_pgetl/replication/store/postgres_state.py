"""Pipelines and the states of their tables, in Postgres."""

from __future__ import annotations

from psycopg import Cursor
from psycopg.rows import DictRow
from psycopg.sql import SQL

from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.progress import Lease, PipelineRecord, TableRecord
from airflow_provider_pgetl.replication.schema import TableName, TableSchema
from airflow_provider_pgetl.replication.state import INIT, TableState, transition
from airflow_provider_pgetl.replication.store.postgres_history import moves, remember
from airflow_provider_pgetl.replication.store.postgres_lease import hold
from airflow_provider_pgetl.replication.store.postgres_locks import (
    lock_generation,
    lock_known_table,
    lock_pipeline,
    lock_table,
)
from airflow_provider_pgetl.replication.store.postgres_outbox import announce_copy
from airflow_provider_pgetl.replication.store.postgres_pool import Pool
from airflow_provider_pgetl.replication.store.postgres_rows import (
    TABLE,
    TABLES,
    one,
    pipeline_record,
    state_values,
    table_record,
    table_state,
)
from airflow_provider_pgetl.replication.store.postgres_schema import add_schema
from airflow_provider_pgetl.replication.store.rules import nothing_before, state_before, unknown_table


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
        return pipeline_record(one(row))

    def pipeline(self, name: str) -> PipelineRecord | None:
        with self._pool.transaction() as cursor:
            row = cursor.execute("select * from pgetl.pipeline where name = %s", (name,)).fetchone()
        return pipeline_record(row) if row else None

    def pipelines(self) -> list[PipelineRecord]:
        with self._pool.transaction() as cursor:
            rows = cursor.execute('select * from pgetl.pipeline order by name collate "C"').fetchall()
        return [pipeline_record(row) for row in rows]

    def register_table(self, pipeline: str, schema: TableSchema, lsn: Lsn, *, by: str) -> TableRecord:
        with self._pool.transaction() as cursor:
            lock_pipeline(cursor, pipeline)
            known = lock_table(cursor, pipeline, schema.relation_id)
            if known is not None:
                return _renamed(cursor, known, schema.table)
            row = cursor.execute(
                "insert into pgetl.table_state"
                " (pipeline, relation_id, schema_name, table_name, generation, state)"
                " values (%s, %s, %s, %s, 1, %s) returning *",
                (pipeline, schema.relation_id, schema.table.schema, schema.table.name, INIT.kind),
            ).fetchone()
            record = table_record(one(row))
            add_schema(cursor, pipeline, schema, lsn)
            remember(cursor, [record], by=by)
            announce_copy(cursor, pipeline, [schema.relation_id])
        return record

    def table(self, pipeline: str, relation_id: int) -> TableRecord | None:
        with self._pool.transaction() as cursor:
            row = cursor.execute(TABLE, (pipeline, relation_id)).fetchone()
        return table_record(row) if row else None

    def tables(self, pipeline: str) -> list[TableRecord]:
        with self._pool.transaction() as cursor:
            by_name = SQL(' order by schema_name collate "C", table_name collate "C", relation_id')
            rows = cursor.execute(TABLES + by_name, (pipeline,)).fetchall()
        return [table_record(row) for row in rows]

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
            stored = lock_generation(cursor, record)
            state = transition(stored.state, to)
            row = cursor.execute(
                "update pgetl.table_state set state = %s, lsn = %s, reason = %s, hint = %s, retry = %s,"
                "  retry_at = %s, run_id = coalesce(%s, run_id), copied_rows = coalesce(%s, copied_rows),"
                "  schema_version = coalesce(%s, schema_version),"
                "  updated_at = clock_timestamp()"
                " where pipeline = %s and relation_id = %s returning *",
                (
                    *state_values(state),
                    run_id,
                    copied_rows,
                    schema_version,
                    record.pipeline,
                    record.relation_id,
                ),
            ).fetchone()
            moved = table_record(one(row))
            remember(cursor, [moved], by=by, run_id=run_id)
        return moved

    def new_generation(self, pipeline: str, relation_id: int, *, by: str, run_id: str | None = None) -> TableRecord:
        with self._pool.transaction() as cursor:
            lock_pipeline(cursor, pipeline)
            lock_known_table(cursor, pipeline, relation_id)
            row = cursor.execute(
                "update pgetl.table_state set generation = generation + 1, state = %s, lsn = null,"
                "  reason = null, hint = null, retry = null, retry_at = null, run_id = %s,"
                "  copied_rows = null, schema_version = null, updated_at = clock_timestamp()"
                " where pipeline = %s and relation_id = %s returning *",
                (INIT.kind, run_id, pipeline, relation_id),
            ).fetchone()
            record = table_record(one(row))
            remember(cursor, [record], by=by, run_id=run_id)
            announce_copy(cursor, pipeline, [relation_id])
        return record

    def rollback(self, record: TableRecord, *, by: str) -> TableRecord:
        with self._pool.transaction() as cursor:
            stored = lock_generation(cursor, record)
            before = state_before(moves(cursor, stored))
            if before is None:
                raise nothing_before(stored)
            row = cursor.execute(
                "update pgetl.table_state set state = %s, lsn = %s, reason = %s, hint = %s, retry = %s,"
                "  retry_at = %s, updated_at = clock_timestamp()"
                " where pipeline = %s and relation_id = %s returning *",
                (*state_values(before), record.pipeline, record.relation_id),
            ).fetchone()
            back = table_record(one(row))
            remember(cursor, [back], by=by, rolled_back=True)
        return back

    def mark_source(self, pipeline: str, relation_id: int, mark: str) -> TableRecord:
        with self._pool.transaction() as cursor:
            row = cursor.execute(
                "update pgetl.table_state set source_mark = %s, updated_at = clock_timestamp()"
                " where pipeline = %s and relation_id = %s returning *",
                (mark, pipeline, relation_id),
            ).fetchone()
        if row is None:
            raise unknown_table(pipeline, relation_id)
        return table_record(row)

    def applied(self, lease: Lease, record: TableRecord, lsn: Lsn, snapshot_id: int | None) -> TableRecord:
        with self._pool.transaction() as cursor:
            hold(cursor, lease)
            lock_generation(cursor, record)
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
        return table_record(one(row))

    def history(self, pipeline: str, relation_id: int) -> list[tuple[int, TableState, str]]:
        with self._pool.transaction() as cursor:
            rows = cursor.execute(
                "select * from pgetl.table_state_history where pipeline = %s and relation_id = %s order by id",
                (pipeline, relation_id),
            ).fetchall()
        return [(row["generation"], table_state(row), row["moved_by"]) for row in rows]

    def delete_pipeline(self, name: str) -> None:
        with self._pool.transaction() as cursor:
            # The epochs stay and move on, so that whoever still holds a lease can't write any more.
            cursor.execute(
                "update pgetl.lease set epoch = epoch + 1, owner = null, expires_at = clock_timestamp()"
                " where pipeline = %s",
                (name,),
            )
            cursor.execute("delete from pgetl.pipeline where name = %s", (name,))


def _renamed(cursor: Cursor[DictRow], known: TableRecord, name: TableName) -> TableRecord:
    if known.table == name:
        return known
    row = cursor.execute(
        "update pgetl.table_state set schema_name = %s, table_name = %s, updated_at = clock_timestamp()"
        " where pipeline = %s and relation_id = %s returning *",
        (name.schema, name.name, known.pipeline, known.relation_id),
    ).fetchone()
    return table_record(one(row))
