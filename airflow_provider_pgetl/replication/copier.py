"""Copies the tables that wait for it, some at a time: the library's own hand where Airflow has tasks."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from datetime import UTC, datetime, timedelta

from airflow_provider_pgetl.replication.config import PipelineConfig
from airflow_provider_pgetl.replication.destinations.base import FileDestination
from airflow_provider_pgetl.replication.errors import Overtaken, PgEtlError, Retry, SnapshotLost
from airflow_provider_pgetl.replication.progress import TableRecord
from airflow_provider_pgetl.replication.state import StateKind, TableState
from airflow_provider_pgetl.replication.store.base import Store
from airflow_provider_pgetl.replication.table_copy import copy_table, needs_a_person
from airflow_provider_pgetl.replication.threads import Threads

log = logging.getLogger(__name__)

_BY = "copier"
_POLL_S = 0.2
_GRACE_S = 3.0
_COPYING = frozenset({StateKind.DATA_SYNC, StateKind.FINISHED_COPY})


class Copier:
    """Copies every table in ``init``, ``max_table_sync_workers`` at a time; under the pipeline's lease.

    What failed for a passing reason is copied again after a growing pause, as a new generation. A copy that
    nobody works at (a process died, the store was away when it ended, a person rolled back) begins anew.
    """

    def __init__(
        self, config: PipelineConfig, source: str, store: Store, destination: Callable[[], FileDestination]
    ) -> None:
        self._config = config
        self._source = source
        self._store = store
        self._destination = destination
        # Each table that is copied or waits for a thread, with the destination once it has begun.
        self._running: dict[int, FileDestination | None] = {}
        self._attempts: dict[int, int] = {}

    def run(self, stop: threading.Event, ready: threading.Event) -> None:
        """Copy until ``stop``, from when the destination is ``ready`` on."""
        with Threads(self._config.max_table_sync_workers, thread_name_prefix="pgetl-table") as pool:
            copies: set[Future[None]] = set()
            try:
                while not stop.wait(_POLL_S):
                    if ready.is_set():
                        copies = {copy for copy in copies if not copy.done()} | self._begin(pool, stop)
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
                self._interrupt(copies)

    def _begin(self, pool: Threads, stop: threading.Event) -> set[Future[None]]:
        begun: set[Future[None]] = set()
        try:
            for record in self._due():
                self._running[record.relation_id] = None
                begun.add(pool.submit(self._copy, record, stop))
        except Overtaken:
            raise
        except PgEtlError as error:
            log.warning("looking for tables to copy: %s", error.message)
        return begun

    def _interrupt(self, copies: set[Future[None]]) -> None:
        """A copy that does not end soon is interrupted, again and again: its next partition is a new call."""
        left = wait(copies, _GRACE_S).not_done
        while left:
            for destination in list(self._running.values()):
                if destination is not None:
                    destination.cancel()
            left = wait(left, _POLL_S).not_done

    def _due(self) -> list[TableRecord]:
        """Tables to copy now; each is in ``init``."""
        found = []
        # Before the states are read: a copy that ends meanwhile is not one that nobody works at.
        running = set(self._running)
        for record in self._store.tables(self._config.name):
            if record.paused or record.relation_id in running:
                continue
            if record.state.kind is StateKind.INIT:
                found.append(record)
            elif record.state.kind in _COPYING or self._is_due(record):
                found.append(self._store.new_generation(record.pipeline, record.relation_id, by=_BY))
        return found

    def _is_due(self, record: TableRecord) -> bool:
        """Whether it failed while it was copied, and its time has come; the applier looks after the others."""
        at = record.state.retry_at
        if record.state.retry is not Retry.TIMED or at is None or at > datetime.now(UTC):
            return False
        history = self._store.history(record.pipeline, record.relation_id)
        before = [
            s for generation, s, _ in history if generation == record.generation and s.kind is not StateKind.ERRORED
        ]
        return not (before and before[-1].applying)

    def _copy(self, record: TableRecord, stop: threading.Event) -> None:
        try:
            if not stop.is_set():
                # Its own, so that interrupting a failed copy interrupts nobody else.
                destination = self._running[record.relation_id] = self._destination()
                copy_table(
                    self._config,
                    self._source,
                    self._store,
                    destination,
                    record,
                    by=_BY,
                    on_wait=lambda waiting: _go_on(stop),
                    after_error=lambda error: None if stop.is_set() else self._after(record, error),
                )
                self._attempts.pop(record.relation_id, None)
        except Overtaken:
            log.info("%s has begun again, this copy is left", record.table)
        except PgEtlError as error:
            if stop.is_set():
                log.info("the copy of %s was stopped", record.table)
            else:
                log.error("the copy of %s failed: %s", record.table, error)
        finally:
            self._running.pop(record.relation_id, None)

    def _after(self, record: TableRecord, error: PgEtlError) -> TableState:
        attempts = self._attempts[record.relation_id] = self._attempts.get(record.relation_id, 0) + 1
        if error.retry is not Retry.TIMED or attempts > self._config.table_error_retry_max_attempts:
            return needs_a_person(error)
        delay = timedelta(milliseconds=self._config.table_error_retry_delay_ms * 2 ** (attempts - 1))
        return TableState(
            StateKind.ERRORED,
            reason=error.message,
            hint=error.hint,
            retry=Retry.TIMED,
            retry_at=datetime.now(UTC) + delay,
        )


def _go_on(stop: threading.Event) -> None:
    if stop.is_set():
        raise SnapshotLost("stopped while the snapshot was waited for")
