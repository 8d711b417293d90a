"""The spool's ledger in Postgres: a segment's row is the moment of durability."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from psycopg import Cursor
from psycopg.rows import DictRow

from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.progress import Lease, PipelineRecord, Segment, SpoolFile, TableBacklog
from airflow_provider_pgetl.replication.store.postgres_lease import hold
from airflow_provider_pgetl.replication.store.postgres_locks import lock_pipeline
from airflow_provider_pgetl.replication.store.postgres_pool import Pool
from airflow_provider_pgetl.replication.store.postgres_rows import one, pipeline_record, spool_file
from airflow_provider_pgetl.replication.store.rules import APPLYING, replayed, rewound, unknown_pipeline


class PostgresLedger:
    """``LedgerStore``."""

    _pool: Pool

    def add_segment(self, pipeline: str, lease: Lease, segment: Segment) -> int:
        with self._pool.transaction() as cursor:
            hold(cursor, lease)
            spooled = lock_pipeline(cursor, pipeline).spooled_lsn
            if segment.from_lsn < spooled:
                return _repeated(cursor, pipeline, lease, segment, spooled)
            segment_id = _insert_segment(cursor, pipeline, lease, segment)
            _insert_files(cursor, pipeline, segment_id, segment.files)
            _move_spooled(cursor, pipeline, segment.to_lsn)
        return segment_id

    def advance(self, pipeline: str, lease: Lease, lsn: Lsn) -> None:
        with self._pool.transaction() as cursor:
            hold(cursor, lease)
            if not _move_spooled(cursor, pipeline, lsn):
                raise unknown_pipeline(pipeline)

    def files(self, pipeline: str, relation_id: int, from_lsn: Lsn, to_lsn: Lsn) -> list[SpoolFile]:
        with self._pool.transaction() as cursor:
            rows = cursor.execute(
                "select * from pgetl.segment_file"
                " where pipeline = %s and relation_id = %s and last_lsn >= %s and first_lsn < %s"
                " order by id",
                (pipeline, relation_id, from_lsn, to_lsn),
            ).fetchall()
        return [spool_file(row) for row in rows]

    def all_paths(self, pipeline: str) -> set[str]:
        with self._pool.transaction() as cursor:
            rows = cursor.execute("select path from pgetl.segment_file where pipeline = %s", (pipeline,)).fetchall()
        return {row["path"] for row in rows}

    def expired_files(self, pipeline: str, older_than_s: float) -> list[SpoolFile]:
        with self._pool.transaction() as cursor:
            rows = cursor.execute(
                "select f.* from pgetl.segment_file f"
                " join pgetl.segment s on s.id = f.segment_id"
                " join pgetl.table_state t on t.pipeline = f.pipeline and t.relation_id = f.relation_id"
                " where f.pipeline = %s and f.last_lsn < t.applied_lsn and t.state = any(%s)"
                "  and s.created_at <= clock_timestamp() - make_interval(secs => %s)"
                " order by f.id",
                (pipeline, [str(kind) for kind in APPLYING], older_than_s),
            ).fetchall()
        return [spool_file(row) for row in rows]

    def forget_files(self, pipeline: str, paths: Sequence[str]) -> None:
        with self._pool.transaction() as cursor:
            rows = cursor.execute(
                "delete from pgetl.segment_file where pipeline = %s and path = any(%s) returning segment_id",
                (pipeline, list(paths)),
            ).fetchall()
            forget_empty_segments(cursor, rows)

    def backlog(self, pipeline: str) -> tuple[int, int]:
        with self._pool.transaction() as cursor:
            row = cursor.execute(
                "select count(*) as files, coalesce(sum(f.bytes), 0)::bigint as bytes"
                " from pgetl.segment_file f"
                " left join pgetl.table_state t on t.pipeline = f.pipeline and t.relation_id = f.relation_id"
                " where f.pipeline = %s and (t.applied_lsn is null or f.last_lsn >= t.applied_lsn)",
                (pipeline,),
            ).fetchone()
        return (row["files"], row["bytes"]) if row else (0, 0)

    def table_backlogs(self, pipeline: str) -> list[TableBacklog]:
        with self._pool.transaction() as cursor:
            rows = cursor.execute(
                "select f.relation_id, count(*) as files, sum(f.bytes)::bigint as bytes,"
                "  min(greatest(f.first_lsn, t.applied_lsn)) as oldest"
                " from pgetl.segment_file f"
                " left join pgetl.table_state t on t.pipeline = f.pipeline and t.relation_id = f.relation_id"
                " where f.pipeline = %s and (t.applied_lsn is null or f.last_lsn >= t.applied_lsn)"
                " group by f.relation_id order by oldest, f.relation_id",
                (pipeline,),
            ).fetchall()
        return [TableBacklog(row["relation_id"], row["files"], row["bytes"], row["oldest"]) for row in rows]

    def spool_size(self, pipeline: str) -> tuple[int, int]:
        with self._pool.transaction() as cursor:
            row = cursor.execute(
                "select count(*) as files, coalesce(sum(bytes), 0)::bigint as bytes"
                " from pgetl.segment_file where pipeline = %s",
                (pipeline,),
            ).fetchone()
        return (row["files"], row["bytes"]) if row else (0, 0)

    def rewind(self, pipeline: str, lease: Lease, lsn: Lsn) -> list[SpoolFile]:
        with self._pool.transaction() as cursor:
            hold(cursor, lease)
            spooled = lock_pipeline(cursor, pipeline).spooled_lsn
            rows = cursor.execute(
                "select f.* from pgetl.segment_file f join pgetl.segment s on s.id = f.segment_id"
                " where s.pipeline = %s and s.to_lsn > %s order by f.id",
                (pipeline, lsn),
            ).fetchall()
            forgotten = [spool_file(row) for row in rows]
            cursor.execute("delete from pgetl.segment where pipeline = %s and to_lsn > %s", (pipeline, lsn))
            cursor.execute(
                "update pgetl.pipeline set spooled_lsn = %s, updated_at = clock_timestamp() where name = %s",
                (rewound(spooled, lsn, forgotten), pipeline),
            )
        return forgotten

    def follow_timeline(self, pipeline: str, lease: Lease, timeline: int) -> PipelineRecord:
        with self._pool.transaction() as cursor:
            hold(cursor, lease)
            row = cursor.execute(
                "update pgetl.pipeline set timeline = %s, updated_at = clock_timestamp() where name = %s returning *",
                (timeline, pipeline),
            ).fetchone()
        if row is None:
            raise unknown_pipeline(pipeline)
        return pipeline_record(row)


def forget_empty_segments(cursor: Cursor[DictRow], files: Iterable[DictRow]) -> None:
    """Remove the segments of deleted files that have none left."""
    cursor.execute(
        "delete from pgetl.segment s where s.id = any(%s)"
        " and not exists (select from pgetl.segment_file f where f.segment_id = s.id)",
        (sorted({file["segment_id"] for file in files}),),
    )


def _move_spooled(cursor: Cursor[DictRow], pipeline: str, lsn: Lsn) -> bool:
    moved = cursor.execute(
        "update pgetl.pipeline set spooled_lsn = greatest(spooled_lsn, %s), updated_at = clock_timestamp()"
        " where name = %s",
        (lsn, pipeline),
    ).rowcount
    return moved == 1


def _repeated(cursor: Cursor[DictRow], pipeline: str, lease: Lease, segment: Segment, spooled: Lsn) -> int:
    """The id under which this very call succeeded before its answer was lost; else it is a replay."""
    row = cursor.execute(
        "select id from pgetl.segment where pipeline = %s and from_lsn = %s and to_lsn = %s and epoch = %s",
        (pipeline, segment.from_lsn, segment.to_lsn, lease.epoch),
    ).fetchone()
    if row is None:
        raise replayed(segment, spooled)
    return int(row["id"])


def _insert_segment(cursor: Cursor[DictRow], pipeline: str, lease: Lease, segment: Segment) -> int:
    row = cursor.execute(
        "insert into pgetl.segment (pipeline, from_lsn, to_lsn, rows, bytes, epoch, last_committed_at)"
        " values (%s, %s, %s, %s, %s, %s, %s) returning id",
        (
            pipeline,
            segment.from_lsn,
            segment.to_lsn,
            segment.rows,
            segment.bytes,
            lease.epoch,
            segment.last_committed_at,
        ),
    ).fetchone()
    return int(one(row)["id"])


def _insert_files(cursor: Cursor[DictRow], pipeline: str, segment_id: int, files: Sequence[SpoolFile]) -> None:
    cursor.executemany(
        "insert into pgetl.segment_file (segment_id, pipeline, relation_id, schema_version, path, rows,"
        "  bytes, checksum, first_lsn, last_lsn) values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
        [
            (
                segment_id,
                pipeline,
                file.relation_id,
                file.schema_version,
                file.path,
                file.rows,
                file.bytes,
                file.checksum,
                file.first_lsn,
                file.last_lsn,
            )
            for file in files
        ],
    )
