"""Copy one table into the lake; the stream takes over from there.

What a try does depends on where the table stands, on whose run brought it there, and on whether this try is the
first of its cycle (a fresh task or one that somebody cleared) or a retry by itself:

| table                          | of another run        | of this run, first try  | of this run, retry |
|--------------------------------|-----------------------|-------------------------|--------------------|
| init                           | copy                  | copy                    | copy               |
| ready                          | skip                  | cleared: copy again     | done               |
| sync_wait, catchup, sync_done  | wait for the applier  | cleared: copy again     | wait               |
| data_sync, finished_copy       | copy again            | copy again              | copy again         |
| errored                        | copy again            | copy again              | copy again         |

"Again" is a new generation: whoever still works for the old one can't write any more, and readers see the old
rows until the new ones are complete.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowSkipException

from airflow_provider_pgetl.hooks.pgetl import CATALOG, SPARK_CONN_ID, Addresses
from airflow_provider_pgetl.operators.base import PgEtlOperator, who
from airflow_provider_pgetl.operators.failures import translated
from airflow_provider_pgetl.operators.readiness import wait_until_ready
from airflow_provider_pgetl.replication.errors import ConfigError
from airflow_provider_pgetl.replication.state import StateKind

if TYPE_CHECKING:
    from airflow_provider_pgetl.replication.destinations.base import FileDestination
    from airflow_provider_pgetl.replication.progress import TableRecord
    from airflow_provider_pgetl.replication.store.base import Store
    from airflow_provider_pgetl.replication.table_copy import CopyProgress, CopyResult

# Each update of the XCom is a call to the API server; the log is for what changed, and a sign of life now and then.
PROGRESS_EVERY_S = 5.0
LOG_EVERY_S = 30.0
READY_TIMEOUT_S = 3600.0

_WITH_THE_APPLIER = frozenset({StateKind.SYNC_WAIT, StateKind.CATCHUP, StateKind.SYNC_DONE})


class Step(StrEnum):
    """What a try does."""

    COPY = "copy"
    AGAIN = "again"
    WAIT = "wait"
    DONE = "done"
    SKIP = "skip"


def next_step(record: TableRecord, *, run_id: str, first_try: bool) -> Step:
    """The table above."""
    kind, mine = record.state.kind, record.run_id == run_id
    if kind is StateKind.INIT:
        return Step.COPY
    if kind is StateKind.READY and not mine:
        return Step.SKIP
    if kind is StateKind.READY:
        return Step.AGAIN if first_try else Step.DONE
    if kind in _WITH_THE_APPLIER and not (mine and first_try):
        return Step.WAIT
    return Step.AGAIN


class PgInitialCopyOperator(PgEtlOperator):
    """Copy ``table``: one Spark job for each of its partitions, all under one snapshot.

    Use ``PgInitialCopyOperator.partial(…, map_index_template="{{ task.table }}").expand(table=…)``.
    Clearing a task copies its table again while all others go on.

    :param table: ``schema.table``, as discovery returns it.
    :param spark_conn_id: the Spark Connect server.
    :param catalog: the Iceberg catalog that the server knows.
    :param wait_ready: end when the applier has made the table ``ready``, not already at ``sync_wait``.
    :param ready_timeout: seconds to wait for that; a retry goes on waiting, it does not copy again.
    """

    template_fields: Sequence[str] = (*PgEtlOperator.template_fields, "table", "spark_conn_id", "catalog")

    def __init__(
        self,
        *,
        table: str,
        spark_conn_id: str = SPARK_CONN_ID,
        catalog: str = CATALOG,
        wait_ready: bool = False,
        ready_timeout: float = READY_TIMEOUT_S,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.table = table
        self.spark_conn_id = spark_conn_id
        self.catalog = catalog
        self.wait_ready = wait_ready
        self.ready_timeout = ready_timeout
        self._destination: FileDestination | None = None
        self._next_progress = 0.0
        self._logged = (-1, 0.0)  # partitions, when

    def execute(self, context: Context) -> dict[str, Any]:
        """Copy, unless there is nothing to copy."""
        with translated():
            addresses = self.hook(self.spark_conn_id).addresses()
            store = addresses.store()
            try:
                return self._execute(context, addresses, store)
            finally:
                store.close()

    def on_kill(self) -> None:
        """Interrupt the Spark jobs; the half-copied generation is invisible and is never used."""
        if self._destination is not None:
            self._destination.cancel()

    def _execute(self, context: Context, addresses: Addresses, store: Store) -> dict[str, Any]:
        record = self.find(store)
        step = next_step(record, run_id=context["run_id"], first_try=is_first_try(context))
        self.log.info("%s is %s in generation %d: %s", self.table, record.state.kind, record.generation, step)
        if step is Step.SKIP:
            raise AirflowSkipException(f"{self.table} is ready since another run; clear its task there to copy again")
        figures: dict[str, Any] = {}
        if step is Step.AGAIN:
            record = store.new_generation(
                record.pipeline, record.relation_id, by=who(context), run_id=context["run_id"]
            )
        if step in (Step.COPY, Step.AGAIN):
            figures = self._copy(context, addresses, store, record)
        if self.wait_ready:
            wait_until_ready(store, record, timeout_s=self.ready_timeout)
        return self._summary(store, record, figures)

    def find(self, store: Store) -> TableRecord:
        """The table's record."""
        found = [record for record in store.tables(self.pipeline) if str(record.table) == self.table]
        if len(found) == 1:
            return found[0]
        raise ConfigError(
            f"pipeline {self.pipeline} has {len(found)} tables called {self.table}",
            hint="Run discovery first (PgDiscoverTablesOperator) and use a name that it returned.",
        )

    def _copy(self, context: Context, addresses: Addresses, store: Store, record: TableRecord) -> dict[str, Any]:
        from airflow_provider_pgetl.replication.table_copy import copy_table

        destination = self._destination = addresses.destination(self.catalog)
        try:
            destination.startup()
            result: CopyResult = copy_table(
                self.config,
                addresses.source,
                store,
                destination,
                record,
                by=who(context),
                run_id=context["run_id"],
                on_progress=lambda progress: self._report(context, progress),
            )
        finally:
            self._destination = None
            destination.shutdown()
        self.log.info("copied %s: %d rows at %s in %.1f s", self.table, result.rows, result.lsn, result.seconds)
        return {
            "rows": result.rows,
            "partitions": result.partitions,
            "lsn": str(result.lsn),
            "seconds": round(result.seconds, 3),
        }

    def _report(self, context: Context, progress: CopyProgress) -> None:
        finished = progress.partitions_done == progress.partitions_total
        now = time.monotonic()
        if not finished and now < self._next_progress:
            return
        self._next_progress = now + PROGRESS_EVERY_S
        context["ti"].xcom_push(key="progress", value=_as_primitives(progress))
        partitions, at = self._logged
        if partitions == progress.partitions_done and now - at < LOG_EVERY_S:
            return
        self._logged = (progress.partitions_done, now)
        self.log.info(
            "%s: %d of %d partitions, %d rows, %.1f MB, %.0f rows/s, %s",
            self.table,
            progress.partitions_done,
            progress.partitions_total,
            progress.rows,
            progress.bytes / 1e6,
            _rate(progress),
            "done" if finished else "no estimate yet" if progress.eta_s is None else f"{progress.eta_s:.0f} s to go",
        )

    def _summary(self, store: Store, record: TableRecord, figures: dict[str, Any]) -> dict[str, Any]:
        stored = store.table(record.pipeline, record.relation_id) or record
        return {
            "table": self.table,
            "state": str(stored.state.kind),
            "generation": record.generation,
            "rows": stored.copied_rows,
            **figures,
        }


def _rate(progress: CopyProgress) -> float:
    return progress.rows / progress.seconds if progress.seconds else 0.0


def _as_primitives(progress: CopyProgress) -> dict[str, Any]:
    return {
        "partitions_done": progress.partitions_done,
        "partitions_total": progress.partitions_total,
        "rows": progress.rows,
        "bytes": progress.bytes,
        "rows_per_second": round(_rate(progress), 1),
        "seconds": round(progress.seconds, 1),
        "eta_s": None if progress.eta_s is None else round(progress.eta_s, 1),
    }


def is_first_try(context: Context) -> bool:
    """Whether this try begins a cycle: a fresh task or a cleared one (a clear moves ``max_tries`` on), no retry."""
    ti = context["ti"]
    retries = context["task"].retries or 0
    return bool(ti.try_number <= max(ti.max_tries - retries + 1, 1))
