"""The outbox in Postgres: of each kind and table the newest announcement."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import Cursor
from psycopg.rows import DictRow

from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.progress import CutTable


def announce_cut(cursor: Cursor[DictRow], pipeline: str, lsn: Lsn, tables: Sequence[CutTable]) -> None:
    """New data in these tables; the pipeline is locked."""
    _take_back(cursor, pipeline, "cut", [table.relation_id for table in tables])
    cursor.executemany(
        "insert into pgetl.outbox (pipeline, kind, relation_id, lsn, snapshot_id) values (%s, 'cut', %s, %s, %s)",
        [(pipeline, table.relation_id, lsn, table.snapshot_id) for table in tables],
    )


def announce_copy(cursor: Cursor[DictRow], pipeline: str, relation_ids: Sequence[int]) -> None:
    """These tables wait to be copied; the pipeline is locked."""
    _take_back(cursor, pipeline, "copy", relation_ids)
    cursor.executemany(
        "insert into pgetl.outbox (pipeline, kind, relation_id) values (%s, 'copy', %s)",
        [(pipeline, relation_id) for relation_id in relation_ids],
    )


def _take_back(cursor: Cursor[DictRow], pipeline: str, kind: str, relation_ids: Sequence[int]) -> None:
    """Readers want the latest: a newer announcement replaces the older."""
    cursor.execute(
        "delete from pgetl.outbox where pipeline = %s and kind = %s and relation_id = any(%s)",
        (pipeline, kind, list(relation_ids)),
    )
