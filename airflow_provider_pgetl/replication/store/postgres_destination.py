"""The destination's tables and their shapes, in Postgres."""

from __future__ import annotations

from psycopg import Cursor
from psycopg.rows import DictRow

from airflow_provider_pgetl.replication.progress import DestinationStatus, DestinationTable, TableRecord
from airflow_provider_pgetl.replication.store.postgres_locks import lock_generation, share_pipeline
from airflow_provider_pgetl.replication.store.postgres_pool import Pool
from airflow_provider_pgetl.replication.store.postgres_rows import destination_table, one
from airflow_provider_pgetl.replication.store.rules import change_begun, change_done, under_way


class PostgresDestinations:
    """``DestinationStore``."""

    _pool: Pool

    def applying(self, record: TableRecord, name: str, version: int) -> DestinationTable:
        with self._pool.transaction() as cursor:
            share_pipeline(cursor, record.pipeline)
            lock_generation(cursor, record)
            known = _read(cursor, record.pipeline, record.relation_id)
            return _write(cursor, record.pipeline, change_begun(known, record.relation_id, name, version))

    def applied_schema(self, record: TableRecord, name: str, version: int) -> DestinationTable:
        with self._pool.transaction() as cursor:
            share_pipeline(cursor, record.pipeline)
            lock_generation(cursor, record)
            cursor.execute(
                "update pgetl.table_state set schema_version = %s, updated_at = clock_timestamp()"
                " where pipeline = %s and relation_id = %s",
                (version, record.pipeline, record.relation_id),
            )
            return _write(cursor, record.pipeline, change_done(record.relation_id, name, version))

    def destination_table(self, pipeline: str, relation_id: int) -> DestinationTable | None:
        known = self.destination_status(pipeline, relation_id)
        if known is not None and known.status is DestinationStatus.APPLYING:
            raise under_way(known)
        return known

    def destination_status(self, pipeline: str, relation_id: int) -> DestinationTable | None:
        with self._pool.transaction() as cursor:
            return _read(cursor, pipeline, relation_id)


def _read(cursor: Cursor[DictRow], pipeline: str, relation_id: int) -> DestinationTable | None:
    row = cursor.execute(
        "select relation_id, name, schema_version, previous_version, status from pgetl.destination_table"
        " where pipeline = %s and relation_id = %s",
        (pipeline, relation_id),
    ).fetchone()
    return destination_table(row) if row else None


def _write(cursor: Cursor[DictRow], pipeline: str, table: DestinationTable) -> DestinationTable:
    row = cursor.execute(
        "insert into pgetl.destination_table (pipeline, relation_id, name, schema_version, previous_version, status)"
        " values (%s, %s, %s, %s, %s, %s)"
        " on conflict (pipeline, relation_id) do update set name = excluded.name,"
        "  schema_version = excluded.schema_version, previous_version = excluded.previous_version,"
        "  status = excluded.status, updated_at = clock_timestamp()"
        " returning *",
        (pipeline, table.relation_id, table.name, table.schema_version, table.previous_version, table.status),
    ).fetchone()
    return destination_table(one(row))
