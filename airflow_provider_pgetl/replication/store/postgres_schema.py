"""The versions of the tables' schemas, in Postgres."""

from __future__ import annotations

from psycopg import Cursor
from psycopg.rows import DictRow

from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.schema import SchemaVersion, TableSchema
from airflow_provider_pgetl.replication.store.postgres_locks import lock_pipeline
from airflow_provider_pgetl.replication.store.postgres_pool import Pool
from airflow_provider_pgetl.replication.store.postgres_rows import schema_version
from airflow_provider_pgetl.replication.store.rules import placed, unneeded


class PostgresSchemas:
    """``SchemaStore``."""

    _pool: Pool

    def add_schema(self, pipeline: str, schema: TableSchema, lsn: Lsn) -> TableSchema:
        with self._pool.transaction() as cursor:
            lock_pipeline(cursor, pipeline)
            return add_schema(cursor, pipeline, schema, lsn)

    def latest_schema(self, pipeline: str, relation_id: int) -> TableSchema | None:
        with self._pool.transaction() as cursor:
            row = cursor.execute(
                "select lsn, definition from pgetl.table_schema where pipeline = %s and relation_id = %s"
                " order by lsn desc, version desc limit 1",
                (pipeline, relation_id),
            ).fetchone()
        return schema_version(row).schema if row else None

    def schema_at(self, pipeline: str, relation_id: int, lsn: Lsn) -> TableSchema | None:
        with self._pool.transaction() as cursor:
            row = cursor.execute(
                "select lsn, definition from pgetl.table_schema where pipeline = %s and relation_id = %s and lsn <= %s"
                " order by lsn desc, version desc limit 1",
                (pipeline, relation_id, lsn),
            ).fetchone()
        return schema_version(row).schema if row else None

    def schemas(self, pipeline: str, relation_id: int) -> list[SchemaVersion]:
        with self._pool.transaction() as cursor:
            return _versions(cursor, pipeline, relation_id)

    def prune_schemas(self, pipeline: str, relation_id: int, before: Lsn) -> int:
        with self._pool.transaction() as cursor:
            # The same lock as for adding a version or a segment: what is in use can't change meanwhile.
            cursor.execute("select from pgetl.pipeline where name = %s for no key update", (pipeline,))
            used = _used(cursor, pipeline, relation_id)
            gone = unneeded(_versions(cursor, pipeline, relation_id), before, used)
            return cursor.execute(
                "delete from pgetl.table_schema where pipeline = %s and relation_id = %s and version = any(%s)",
                (pipeline, relation_id, gone),
            ).rowcount

    def schema_version(self, pipeline: str, relation_id: int, version: int) -> TableSchema | None:
        with self._pool.transaction() as cursor:
            row = cursor.execute(
                "select lsn, definition from pgetl.table_schema"
                " where pipeline = %s and relation_id = %s and version = %s",
                (pipeline, relation_id, version),
            ).fetchone()
        return schema_version(row).schema if row else None


def add_schema(cursor: Cursor[DictRow], pipeline: str, schema: TableSchema, lsn: Lsn) -> TableSchema:
    """Find or make the version; the pipeline is locked."""
    known = {version.schema.version: version for version in _versions(cursor, pipeline, schema.relation_id)}
    version = placed(list(known.values()), schema, lsn)
    number = version.schema.version
    if number not in known:
        cursor.execute(
            "insert into pgetl.table_schema (pipeline, relation_id, version, lsn, definition)"
            " values (%s, %s, %s, %s, %s::jsonb)",
            (pipeline, schema.relation_id, number, version.lsn, version.schema.to_json()),
        )
    elif version.lsn < known[number].lsn:
        cursor.execute(
            "update pgetl.table_schema set lsn = %s where pipeline = %s and relation_id = %s and version = %s",
            (version.lsn, pipeline, schema.relation_id, number),
        )
    return version.schema


def _versions(cursor: Cursor[DictRow], pipeline: str, relation_id: int) -> list[SchemaVersion]:
    rows = cursor.execute(
        "select lsn, definition from pgetl.table_schema where pipeline = %s and relation_id = %s order by lsn, version",
        (pipeline, relation_id),
    ).fetchall()
    return [schema_version(row) for row in rows]


def _used(cursor: Cursor[DictRow], pipeline: str, relation_id: int) -> set[int | None]:
    rows = cursor.execute(
        "select schema_version as version from pgetl.segment_file"
        " where pipeline = %(pipeline)s and relation_id = %(relation_id)s"
        " union select schema_version from pgetl.table_state"
        " where pipeline = %(pipeline)s and relation_id = %(relation_id)s"
        " union select unnest(array[schema_version, previous_version]) from pgetl.destination_table"
        " where pipeline = %(pipeline)s and relation_id = %(relation_id)s",
        {"pipeline": pipeline, "relation_id": relation_id},
    ).fetchall()
    return {row["version"] for row in rows}
