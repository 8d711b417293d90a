"""The copy path: slot snapshot -> plan -> one job for each partition -> handed to the applier.

The stream is never paused: it spools the table's changes all the while, and the applier merges those with
``commit_lsn >= S`` on top. A retry or a resync is a new generation; nothing half-copied is ever visible.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass

import pyarrow as pa

from airflow_provider_pgetl.replication.config import PipelineConfig
from airflow_provider_pgetl.replication.decode.copy_rows import decode_rows
from airflow_provider_pgetl.replication.destinations.base import (
    CopiedPartition,
    CopyPlan,
    FileDestination,
    Partition,
)
from airflow_provider_pgetl.replication.errors import PgEtlError, Retry, SourceError, unexpected
from airflow_provider_pgetl.replication.failpoints import hit
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.progress import TableRecord
from airflow_provider_pgetl.replication.schema import TableSchema
from airflow_provider_pgetl.replication.source import catalog
from airflow_provider_pgetl.replication.source.copy_out import copy_rows
from airflow_provider_pgetl.replication.source.partitions import plan_partitions
from airflow_provider_pgetl.replication.source.snapshot import SnapshotHolder, open_snapshot
from airflow_provider_pgetl.replication.source.waiting import OnWait
from airflow_provider_pgetl.replication.state import StateKind, TableState
from airflow_provider_pgetl.replication.store.base import Store
from airflow_provider_pgetl.replication.threads import Threads

log = logging.getLogger(__name__)

_PARTITION_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """Where a running copy stands."""

    partitions_done: int
    partitions_total: int
    rows: int
    bytes: int
    seconds: float
    eta_s: float | None


@dataclass(frozen=True, slots=True)
class CopyResult:
    """A finished copy."""

    rows: int
    partitions: int
    lsn: Lsn
    seconds: float
    generation: int


def needs_a_person(error: PgEtlError) -> TableState:
    """The state after a failed copy: whoever retries begins a new generation."""
    return TableState(StateKind.ERRORED, reason=error.message, hint=error.hint, retry=Retry.MANUAL)


def read_partition(source: str, snapshot: str, select: str, schema: TableSchema, lsn: Lsn) -> Iterator[pa.RecordBatch]:
    """The rows of one partition in the lake's shape; runs wherever the job runs."""
    for rows in copy_rows(source, snapshot, select):
        yield decode_rows(rows.buffer, rows.lengths, schema, lsn)


def copy_table(
    config: PipelineConfig,
    source: str,
    store: Store,
    destination: FileDestination,
    record: TableRecord,
    *,
    by: str,
    run_id: str | None = None,
    on_progress: Callable[[CopyProgress], None] = lambda progress: None,
    after_error: Callable[[PgEtlError], TableState | None] = needs_a_person,
    on_wait: OnWait | None = None,
) -> CopyResult:
    """Copy the table of ``record`` (in ``init``) and leave it in ``sync_wait`` for the applier.

    A table that ``table_sync_copy`` leaves out goes the same way without rows. After an error the table is in the
    state that ``after_error`` says; None leaves it as it is. ``on_wait`` is called while the snapshot waits for others
    on the source, and may raise.
    """
    started = time.monotonic()
    try:
        record = store.move(record, TableState(StateKind.DATA_SYNC), by=by, run_id=run_id)
        with open_snapshot(source, [record.table], on_wait=on_wait) as holder:
            plan = _plan(config, store, holder, record)
            hit("copy.planned")
            log.info("copying %s at %s in %d partitions", record.table, plan.lsn, len(plan.partitions))
            store.prepare_for_copy(record)
            destination.begin_copy(plan)
            rows = _Jobs(config, destination, plan, holder, started, on_progress).run()
        destination.finish_copy(plan)
        hit("copy.finished")
        record = store.move(
            record,
            TableState(StateKind.FINISHED_COPY, lsn=plan.lsn),
            by=by,
            run_id=run_id,
            copied_rows=rows,
            schema_version=plan.schema.version,
        )
        store.move(record, TableState(StateKind.SYNC_WAIT, lsn=plan.lsn), by=by, run_id=run_id)
    except PgEtlError as error:
        _remember(store, record, after_error(error), by, run_id)
        raise
    except Exception as error:  # noqa: BLE001 - anybody's code
        unknown = unexpected(error)
        _remember(store, record, after_error(unknown), by, run_id)
        raise unknown from None
    return CopyResult(rows, len(plan.partitions), plan.lsn, time.monotonic() - started, record.generation)


def _plan(config: PipelineConfig, store: Store, holder: SnapshotHolder, record: TableRecord) -> CopyPlan:
    table = catalog.describe(holder.connection, config.publication, record.relation_id)
    if table is None:
        raise SourceError(
            f"{record.table} is not published any more",
            hint=f"Add it to the publication {config.publication!r}.",
        )
    # What commits at S itself comes after the snapshot.
    schema = store.add_schema(config.name, table.schema, Lsn(holder.lsn - 1))
    partitions: tuple[Partition, ...] = ()
    if config.table_sync_copy.copies(record.table):
        partitions = plan_partitions(holder.connection, table, config.max_copy_connections_per_table)
    return CopyPlan(schema, record.generation, holder.snapshot, holder.lsn, partitions)


def _remember(store: Store, record: TableRecord, state: TableState | None, by: str, run_id: str | None) -> None:
    """Leave the reason where people look."""
    if state is None:
        return
    try:
        store.move(record, state, by=by, run_id=run_id)
    except PgEtlError as second:
        log.warning("the error of %s could not be recorded: %s", record.table, second.message)


class _Jobs:
    """Runs the partitions, largest first, some at a time; a lost job is tried again alone."""

    def __init__(
        self,
        config: PipelineConfig,
        destination: FileDestination,
        plan: CopyPlan,
        holder: SnapshotHolder,
        started: float,
        on_progress: Callable[[CopyProgress], None],
    ) -> None:
        self._workers = min(config.max_copy_connections_per_table, len(plan.partitions)) or 1
        self._destination = destination
        self._plan = plan
        self._holder = holder
        self._started = started
        self._on_progress = on_progress
        self._failed = threading.Event()
        self._done: list[CopiedPartition] = []

    def run(self) -> int:
        """All rows that came in."""
        self._report()
        with Threads(self._workers, thread_name_prefix="pgetl-copy") as pool:
            running = {pool.submit(self._copy, partition) for partition in self._plan.partitions}
            try:
                while running:
                    done, running = wait(running, timeout=5, return_when=FIRST_COMPLETED)
                    self._collect(done)
                    self._holder.check()
            except BaseException:
                self._failed.set()
                self._destination.cancel()
                pool.shutdown(wait=True, cancel_futures=True)
                raise
        return sum(partition.rows for partition in self._done)

    def _collect(self, done: set[Future[CopiedPartition]]) -> None:
        for future in done:
            self._done.append(future.result())
        self._report()

    def _copy(self, partition: Partition) -> CopiedPartition:
        for attempt in range(1, _PARTITION_ATTEMPTS + 1):
            try:
                return self._destination.copy_partition(self._plan, partition)
            except PgEtlError as error:
                last = attempt == _PARTITION_ATTEMPTS or error.retry is not Retry.TIMED
                if last or self._failed.is_set():
                    raise
                log.warning("partition %d is tried again: %s", partition.number, error.message)
                self._holder.check()
        raise AssertionError("unreachable")

    def _report(self) -> None:
        seconds = time.monotonic() - self._started
        total = sum(p.estimated_bytes for p in self._plan.partitions)
        numbers = {p.number for p in self._done}
        done = sum(p.estimated_bytes for p in self._plan.partitions if p.number in numbers)
        eta = seconds * (total - done) / done if done else None
        self._on_progress(
            CopyProgress(
                len(self._done),
                len(self._plan.partitions),
                sum(p.rows for p in self._done),
                sum(p.bytes for p in self._done),
                seconds,
                eta,
            )
        )
