"""Watches the source beside the stream for what Postgres does not send.

Every few seconds: tables that were added to the publication are registered, those that were removed are forgotten
(the destination keeps its table), a changed row filter, column list or set of partitions makes the table begin
again. The slot's state is looked at too, and an optional heartbeat keeps WAL moving through an idle database.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from airflow_provider_pgetl.replication.config import PipelineConfig
from airflow_provider_pgetl.replication.errors import Overtaken, PgEtlError
from airflow_provider_pgetl.replication.progress import TableRecord
from airflow_provider_pgetl.replication.source import catalog, slots
from airflow_provider_pgetl.replication.source.connection import Connection, connect, source_errors
from airflow_provider_pgetl.replication.source.marks import changed, source_marks
from airflow_provider_pgetl.replication.spool.segments import Spool
from airflow_provider_pgetl.replication.store.base import Store

log = logging.getLogger(__name__)

_BY = "watch"
HEARTBEAT = "pgetl_heartbeat"


@dataclass(slots=True)
class WatchStats:
    """What the last look showed, for people."""

    retained_bytes: int = 0
    wal_status: str | None = None
    safe_wal_size: int | None = None
    waiting_for: str | None = None


class SourceWatch:
    """Watches the source of one pipeline; only the holder of the pipeline's lease does."""

    def __init__(self, config: PipelineConfig, source: str, store: Store, spool: Spool) -> None:
        self._config = config
        self._source = source
        self._store = store
        self._spool = spool
        self._connection: Connection | None = None
        self.stats = WatchStats()

    def run(self, stop: threading.Event) -> None:
        """Look until ``stop``; a source or a store that is out of reach is waited for."""
        every = self._config.watch_interval_ms / 1000
        beat = self._config.heartbeat_interval_ms / 1000
        look_at, beat_at = 0.0, 0.0
        try:
            while not stop.is_set():
                now = time.monotonic()
                if beat and now >= beat_at:
                    beat_at = now + beat
                    self._try(self.heartbeat)
                if now >= look_at:
                    look_at = now + every
                    self._try(self.look)
                stop.wait(max(0.0, min(look_at, beat_at if beat else look_at) - time.monotonic()))
        finally:
            self._close()

    def look(self) -> None:
        """Compare the source with what is registered."""
        connection = self._connected()
        self._look_at_slot(connection)
        catalog.publication(connection, self._config.publication)
        marks = source_marks(connection, self._config.publication)
        known = {record.relation_id: record for record in self._store.tables(self._config.name)}
        for relation_id, record in known.items():
            if relation_id not in marks:
                self._forget(record)
        for relation_id, mark in marks.items():
            self._compare(connection, relation_id, known.get(relation_id), mark)

    def heartbeat(self) -> None:
        """Write a message into the WAL that nobody but the stream sees."""
        with source_errors():
            self._connected().execute("select pg_logical_emit_message(false, %s, '')", (HEARTBEAT,))

    def _compare(self, connection: Connection, relation_id: int, record: TableRecord | None, mark: str) -> None:
        if record is None:
            self._register(connection, relation_id, mark)
        elif record.source_mark is None:
            self._store.mark_source(record.pipeline, relation_id, mark)
        elif record.source_mark != mark:
            reason = changed(record.source_mark, mark)
            if reason is not None:
                log.warning("%s is copied again: %s", record.table, reason)
                self._store.new_generation(record.pipeline, relation_id, by=_BY)
            self._store.mark_source(record.pipeline, relation_id, mark)

    def _register(self, connection: Connection, relation_id: int, mark: str) -> None:
        table = catalog.describe(connection, self._config.publication, relation_id)
        if table is None or not table.schema.columns:
            return
        position = catalog.current_lsn(connection)
        record = self._store.register_table(self._config.name, table.schema, position, by=_BY)
        self._store.mark_source(self._config.name, relation_id, mark)
        log.info("%s was added to the publication", record.table)

    def _forget(self, record: TableRecord) -> None:
        log.warning("%s left the publication: its state is forgotten, the destination keeps its table", record.table)
        files = self._store.delete_table(record.pipeline, record.relation_id)
        self._spool.delete(file.path for file in files)

    def _look_at_slot(self, connection: Connection) -> None:
        slot = slots.inspect(connection, self._config.slot)
        status = slot.wal_status if slot else "missing"
        if status != self.stats.wal_status and status in ("unreserved", "lost", "missing"):
            log.warning("the replication slot %s is %s", self._config.slot, status)
        self.stats.wal_status = status
        self.stats.retained_bytes = slot.retained_bytes if slot else 0
        self.stats.safe_wal_size = slot.safe_wal_size if slot else None

    def _try(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Overtaken:
            raise
        except PgEtlError as error:
            if self.stats.waiting_for != error.message:
                log.warning("watching the source of %s: %s", self._config.name, error)
            self.stats.waiting_for = error.message
            self._close()
        else:
            self.stats.waiting_for = None

    def _connected(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._source, "watch")
        return self._connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
