"""Moves of tables in Postgres: the history's rows."""

from __future__ import annotations

from collections.abc import Iterable

from psycopg import Cursor
from psycopg.rows import DictRow

from airflow_provider_pgetl.replication.progress import TableRecord
from airflow_provider_pgetl.replication.state import TableState
from airflow_provider_pgetl.replication.store.postgres_rows import state_values, table_state


def remember(
    cursor: Cursor[DictRow],
    records: Iterable[TableRecord],
    *,
    by: str,
    run_id: str | None = None,
    rolled_back: bool = False,
) -> None:
    """Each table has come to where its record says."""
    cursor.executemany(
        "insert into pgetl.table_state_history"
        " (pipeline, relation_id, generation, state, lsn, reason, hint, retry, retry_at, moved_by, run_id, rolled_back)"
        " values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
        [
            (
                record.pipeline,
                record.relation_id,
                record.generation,
                *state_values(record.state),
                by,
                run_id,
                rolled_back,
            )
            for record in records
        ],
    )


def moves(cursor: Cursor[DictRow], record: TableRecord) -> list[tuple[TableState, bool]]:
    """The moves of the record's generation, oldest first: (state, whether by rollback)."""
    rows = cursor.execute(
        "select state, lsn, reason, hint, retry, retry_at, rolled_back from pgetl.table_state_history"
        " where pipeline = %s and relation_id = %s and generation = %s order by id",
        (record.pipeline, record.relation_id, record.generation),
    ).fetchall()
    return [(table_state(row), row["rolled_back"]) for row in rows]
