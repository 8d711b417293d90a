"""Cuts, the outbox's announcements, commands to the running stream, and samples, in Postgres."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psycopg import Cursor
from psycopg.errors import ForeignKeyViolation
from psycopg.rows import DictRow
from psycopg.types.json import Jsonb

from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.progress import Announcement, Command, Cut, CutTable, Lease
from airflow_provider_pgetl.replication.store.postgres_lease import hold
from airflow_provider_pgetl.replication.store.postgres_locks import lock_pipeline
from airflow_provider_pgetl.replication.store.postgres_outbox import announce_cut
from airflow_provider_pgetl.replication.store.postgres_pool import Pool
from airflow_provider_pgetl.replication.store.postgres_rows import one
from airflow_provider_pgetl.replication.store.rules import CUTS_KEPT, SAMPLES_KEPT, unknown_pipeline

# Old rows go with every so many new ones, not with each.
THIN_EVERY = 100


class PostgresCuts:
    """``CutStore``."""

    _pool: Pool

    def record_cut(self, pipeline: str, lease: Lease, lsn: Lsn, tables: Sequence[CutTable]) -> Cut:
        with self._pool.transaction() as cursor:
            hold(cursor, lease)
            lock_pipeline(cursor, pipeline)
            row = _insert(
                cursor,
                pipeline,
                "insert into pgetl.cut (pipeline, lsn) values (%s, %s) returning id, created_at",
                (pipeline, lsn),
            )
            in_order = tuple(sorted(tables, key=lambda table: table.relation_id))
            cut = Cut(row["id"], lsn, in_order, row["created_at"])
            cursor.executemany(
                "insert into pgetl.cut_table (cut_id, relation_id, snapshot_id) values (%s, %s, %s)",
                [(cut.id, table.relation_id, table.snapshot_id) for table in tables],
            )
            announce_cut(cursor, pipeline, lsn, in_order)
            if cut.id % THIN_EVERY == 0:
                cursor.execute(
                    "delete from pgetl.cut where pipeline = %s and id <= (select id from pgetl.cut"
                    " where pipeline = %s order by id desc offset %s limit 1)",
                    (pipeline, pipeline, CUTS_KEPT),
                )
        return cut

    def latest_cut(self, pipeline: str) -> Cut | None:
        with self._pool.transaction() as cursor:
            cursor.execute("select * from pgetl.cut where pipeline = %s order by id desc limit 1", (pipeline,))
            return _cut(cursor)

    def cut_at(self, pipeline: str, lsn: Lsn) -> Cut | None:
        with self._pool.transaction() as cursor:
            cursor.execute(
                "select * from pgetl.cut where pipeline = %s and lsn = %s order by id desc limit 1",
                (pipeline, lsn),
            )
            return _cut(cursor)

    def announcements(self, pipeline: str, after: int = 0) -> list[Announcement]:
        with self._pool.transaction() as cursor:
            rows = cursor.execute(
                "select id, kind, relation_id, lsn, snapshot_id from pgetl.outbox"
                " where pipeline = %s and id > %s order by id",
                (pipeline, after),
            ).fetchall()
        return [Announcement(**row) for row in rows]

    def ask(self, pipeline: str, kind: str, payload: dict[str, Any], *, by: str) -> int:
        with self._pool.transaction() as cursor:
            row = _insert(
                cursor,
                pipeline,
                "insert into pgetl.command (pipeline, kind, payload, created_by) values (%s, %s, %s, %s) returning id",
                (pipeline, kind, Jsonb(payload), by),
            )
        return int(row["id"])

    def open_commands(self, pipeline: str) -> list[Command]:
        with self._pool.transaction() as cursor:
            rows = cursor.execute(
                "select id, kind, payload, created_by from pgetl.command"
                " where pipeline = %s and answered_at is null order by id",
                (pipeline,),
            ).fetchall()
        return [Command(**row) for row in rows]

    def answer(self, pipeline: str, command_id: int, result: dict[str, Any]) -> None:
        with self._pool.transaction() as cursor:
            cursor.execute(
                "update pgetl.command set result = %s, answered_at = clock_timestamp()"
                " where pipeline = %s and id = %s and answered_at is null",
                (Jsonb(result), pipeline, command_id),
            )

    def command_result(self, pipeline: str, command_id: int) -> dict[str, Any] | None:
        with self._pool.transaction() as cursor:
            row = cursor.execute(
                "select result from pgetl.command where pipeline = %s and id = %s", (pipeline, command_id)
            ).fetchone()
        return row["result"] if row else None


class PostgresSamples:
    """``SampleStore``."""

    _pool: Pool

    def add_sample(self, pipeline: str, values: dict[str, Any]) -> None:
        with self._pool.transaction() as cursor:
            row = _insert(
                cursor,
                pipeline,
                "insert into pgetl.sample (pipeline, figures) values (%s, %s) returning id",
                (pipeline, Jsonb(values)),
            )
            if row["id"] % THIN_EVERY == 0:
                cursor.execute(
                    "delete from pgetl.sample where pipeline = %s and id <= (select id from pgetl.sample"
                    " where pipeline = %s order by id desc offset %s limit 1)",
                    (pipeline, pipeline, SAMPLES_KEPT),
                )

    def latest_sample(self, pipeline: str) -> dict[str, Any] | None:
        with self._pool.transaction() as cursor:
            row = cursor.execute(
                "select figures, at from pgetl.sample where pipeline = %s order by id desc limit 1",
                (pipeline,),
            ).fetchone()
        return {**row["figures"], "at": row["at"]} if row else None


def _insert(cursor: Cursor[DictRow], pipeline: str, statement: str, values: tuple[Any, ...]) -> DictRow:
    try:
        row = cursor.execute(statement, values).fetchone()
    except ForeignKeyViolation as error:
        raise unknown_pipeline(pipeline) from error
    return one(row)


def _cut(cursor: Cursor[DictRow]) -> Cut | None:
    row = cursor.fetchone()
    if row is None:
        return None
    tables = cursor.execute(
        "select relation_id, snapshot_id from pgetl.cut_table where cut_id = %s order by relation_id",
        (row["id"],),
    ).fetchall()
    return Cut(row["id"], row["lsn"], tuple(CutTable(**table) for table in tables), row["created_at"])
