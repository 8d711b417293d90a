"""Row locks, always in this order: the lease (``postgres_lease.hold``), the pipeline, the table.

The order keeps writers from waiting for each other in a circle. Whoever writes to the outbox locks the pipeline
first: the ids of a pipeline's announcements then become visible in their order, and a reader that goes on from
the last id it saw misses none.
"""

from __future__ import annotations

from psycopg import Cursor
from psycopg.rows import DictRow
from psycopg.sql import SQL

from airflow_provider_pgetl.replication.progress import PipelineRecord, TableRecord
from airflow_provider_pgetl.replication.store.postgres_rows import TABLE, pipeline_record, table_record
from airflow_provider_pgetl.replication.store.rules import overtaken_generation, unknown_pipeline, unknown_table


def lock_pipeline(cursor: Cursor[DictRow], name: str) -> PipelineRecord:
    """The pipeline, until the end of the transaction nobody else's."""
    row = cursor.execute("select * from pgetl.pipeline where name = %s for no key update", (name,)).fetchone()
    if row is None:
        raise unknown_pipeline(name)
    return pipeline_record(row)


def share_pipeline(cursor: Cursor[DictRow], name: str) -> None:
    """Keep the pipeline from being deleted; a row that refers to it would do so later, out of order."""
    cursor.execute("select from pgetl.pipeline where name = %s for key share", (name,))


def lock_table(cursor: Cursor[DictRow], pipeline: str, relation_id: int) -> TableRecord | None:
    """The table, until the end of the transaction nobody else's."""
    row = cursor.execute(TABLE + SQL(" for no key update"), (pipeline, relation_id)).fetchone()
    return table_record(row) if row else None


def lock_known_table(cursor: Cursor[DictRow], pipeline: str, relation_id: int) -> TableRecord:
    """The same for a table that must be there."""
    stored = lock_table(cursor, pipeline, relation_id)
    if stored is None:
        raise unknown_table(pipeline, relation_id)
    return stored


def lock_generation(cursor: Cursor[DictRow], record: TableRecord) -> TableRecord:
    """The table as stored, if it is still of the record's generation."""
    stored = lock_known_table(cursor, record.pipeline, record.relation_id)
    if stored.generation != record.generation:
        raise overtaken_generation(record, stored)
    return stored
