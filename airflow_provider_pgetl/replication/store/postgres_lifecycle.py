"""What happens to all that is kept of a table at once, in Postgres."""

from __future__ import annotations

from psycopg import Cursor
from psycopg.rows import DictRow
from psycopg.sql import SQL

from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.progress import Lease, SpoolFile, TableRecord
from airflow_provider_pgetl.replication.state import INIT
from airflow_provider_pgetl.replication.store.postgres_history import remember
from airflow_provider_pgetl.replication.store.postgres_lease import hold
from airflow_provider_pgetl.replication.store.postgres_ledger import forget_empty_segments
from airflow_provider_pgetl.replication.store.postgres_locks import lock_generation, lock_pipeline
from airflow_provider_pgetl.replication.store.postgres_outbox import announce_copy
from airflow_provider_pgetl.replication.store.postgres_pool import Pool
from airflow_provider_pgetl.replication.store.postgres_rows import TABLES, spool_file, table_record


class PostgresLifecycle:
    """``TableLifecycleStore``."""

    _pool: Pool

    def prepare_for_copy(self, record: TableRecord) -> None:
        with self._pool.transaction() as cursor:
            lock_generation(cursor, record)
            _forget_destination(cursor, record.pipeline, record.relation_id)

    def reset_all(self, pipeline: str, lease: Lease, lsn: Lsn, *, by: str) -> list[SpoolFile]:
        with self._pool.transaction() as cursor:
            hold(cursor, lease)
            lock_pipeline(cursor, pipeline)
            files = _all_files(cursor, pipeline)
            cursor.execute("delete from pgetl.segment where pipeline = %s", (pipeline,))
            cursor.execute(
                "update pgetl.pipeline set spooled_lsn = %s, updated_at = clock_timestamp() where name = %s",
                (lsn, pipeline),
            )
            cursor.execute(
                "update pgetl.table_schema set lsn = %s where pipeline = %s and lsn > %s", (lsn, pipeline, lsn)
            )
            records = _begin_all_again(cursor, pipeline)
            remember(cursor, records, by=by)
            announce_copy(cursor, pipeline, [record.relation_id for record in records])
        return files

    def delete_table(self, pipeline: str, relation_id: int) -> list[SpoolFile]:
        with self._pool.transaction() as cursor:
            cursor.execute("select from pgetl.pipeline where name = %s for no key update", (pipeline,))
            files = _take_files(cursor, pipeline, relation_id)
            _forget_destination(cursor, pipeline, relation_id)
            of_the_table = (pipeline, relation_id)
            cursor.execute("delete from pgetl.outbox where pipeline = %s and relation_id = %s", of_the_table)
            cursor.execute("delete from pgetl.table_schema where pipeline = %s and relation_id = %s", of_the_table)
            cursor.execute("delete from pgetl.table_state where pipeline = %s and relation_id = %s", of_the_table)
        return files


def _forget_destination(cursor: Cursor[DictRow], pipeline: str, relation_id: int) -> None:
    of_the_table = (pipeline, relation_id)
    cursor.execute("delete from pgetl.destination_table where pipeline = %s and relation_id = %s", of_the_table)
    cursor.execute("delete from pgetl.name_map where pipeline = %s and relation_id = %s", of_the_table)


def _all_files(cursor: Cursor[DictRow], pipeline: str) -> list[SpoolFile]:
    rows = cursor.execute("select * from pgetl.segment_file where pipeline = %s order by id", (pipeline,)).fetchall()
    return [spool_file(row) for row in rows]


def _take_files(cursor: Cursor[DictRow], pipeline: str, relation_id: int) -> list[SpoolFile]:
    rows = cursor.execute(
        "delete from pgetl.segment_file where pipeline = %s and relation_id = %s returning *", (pipeline, relation_id)
    ).fetchall()
    forget_empty_segments(cursor, rows)
    return [spool_file(row) for row in sorted(rows, key=lambda row: int(row["id"]))]


def _begin_all_again(cursor: Cursor[DictRow], pipeline: str) -> list[TableRecord]:
    cursor.execute(TABLES + SQL(" order by relation_id for no key update"), (pipeline,))
    rows = cursor.execute(
        "update pgetl.table_state set generation = generation + 1, state = %s, lsn = null,"
        "  reason = null, hint = null, retry = null, retry_at = null, run_id = null, applied_lsn = null,"
        "  snapshot_id = null, copied_rows = null, schema_version = null, updated_at = clock_timestamp()"
        " where pipeline = %s returning *",
        (INIT.kind, pipeline),
    ).fetchall()
    return sorted((table_record(row) for row in rows), key=lambda record: record.relation_id)
