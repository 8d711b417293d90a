"""The stream path: slot -> decode -> spool -> ledger -> confirm.

One thread drains and decodes; a second writes the spool and the ledger, so that the walsender is answered also
while a write is slow. Only one write is in flight; a full batch behind it stops the reading, not the answering.

The order of progress is the law: files durable, ledger row committed, only then the slot confirmed, and only to
a position P such that every commit before P is durable. So the slot never stands past the ledger: one that does
was made anew by somebody, and what lies between is lost.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeVar

from airflow_provider_pgetl.replication import origin
from airflow_provider_pgetl.replication.config import PipelineConfig
from airflow_provider_pgetl.replication.decode.decoder import Decoder
from airflow_provider_pgetl.replication.decode.frames import COMMIT, HEADER
from airflow_provider_pgetl.replication.errors import (
    Overtaken,
    PgEtlError,
    Retry,
    SlotError,
    StoreError,
)
from airflow_provider_pgetl.replication.failpoints import hit
from airflow_provider_pgetl.replication.lsn import ZERO, Lsn
from airflow_provider_pgetl.replication.pending import Pending
from airflow_provider_pgetl.replication.progress import Lease, Segment, SpoolFile
from airflow_provider_pgetl.replication.relations import Relations
from airflow_provider_pgetl.replication.source.stream import Read, ReplicationStream
from airflow_provider_pgetl.replication.spool.segments import Spool
from airflow_provider_pgetl.replication.state import StateKind
from airflow_provider_pgetl.replication.store.base import Store
from airflow_provider_pgetl.replication.threads import Threads

log = logging.getLogger(__name__)

T = TypeVar("T")

READ_MESSAGES = 16_384
READ_BYTES = 16 * 1024 * 1024
# Decoding is vectorised: larger batches are cheaper until they outgrow the cache.
DECODE_MESSAGES = 16_384
DECODE_BYTES = 16 * 1024 * 1024
# Under memory pressure a batch is written early, but not for a handful of rows.
_WORTH_A_FLUSH = 1024 * 1024
_WAIT_S = 0.25
_WAIT_WHILE_WRITING_S = 0.02
# How often an idle stream's position reaches the store, and then the slot.
_ADVANCE_S = 0.5
_BACKOFF_S = (0.2, 10.0)


class Memory(Protocol):
    """What the stream asks of the memory monitor."""

    @property
    def pressed(self) -> bool:
        """Whether memory is short: flush what is held before reading on."""

    def budget(self, streams: int) -> int:
        """How many bytes a batch may have."""


@dataclass(slots=True)
class StreamStats:
    """What the stream did, for people; written by one thread, read by others."""

    received_lsn: Lsn = ZERO
    spooled_lsn: Lsn = ZERO
    rows: int = 0
    transactions: int = 0
    bytes: int = 0
    segments: int = 0
    reconnects: int = 0
    last_committed_at: datetime | None = None
    waiting_for: str | None = None


@dataclass(frozen=True, slots=True)
class _Tools:
    """What a stream works with, over all of its connections."""

    config: PipelineConfig
    store: Store
    lease: Lease
    spool: Spool
    stats: StreamStats
    memory: Memory | None
    on_spooled: Callable[[], None]


class StreamPath:
    """Runs the stream of one pipeline under its lease."""

    def __init__(
        self,
        config: PipelineConfig,
        source: str,
        store: Store,
        lease: Lease,
        *,
        memory: Memory | None = None,
        on_spooled: Callable[[], None] = lambda: None,
    ) -> None:
        self._config = config
        self._source = source
        self._store = store
        self._lease = lease
        self._spool = Spool.of(config, lease.epoch)
        self.stats = StreamStats()
        # The source was looked at, and the ledger brought in line with it.
        self.began = threading.Event()
        self._tools = _Tools(config, store, lease, self._spool, self.stats, memory, on_spooled)

    def run(self, stop: threading.Event) -> None:
        """Stream until ``stop``; reconnects by itself, raises what a person must look at."""
        failures = 0
        while not stop.is_set():
            before = self.stats.received_lsn
            try:
                self._connected(stop)
            except PgEtlError as error:
                if error.retry is not Retry.TIMED:
                    raise
                failures = 0 if self.stats.received_lsn > before else failures + 1
                self._back_off(stop, error, failures)

    def _back_off(self, stop: threading.Event, error: PgEtlError, failures: int) -> None:
        low, high = _BACKOFF_S
        delay = min(high, low * 2**failures) * (0.5 + random.random())  # noqa: S311
        self.stats.reconnects += 1
        self.stats.waiting_for = error.message
        log.warning("the stream of %s waits %.1f s: %s", self._config.name, delay, error.message)
        stop.wait(delay)

    def _connected(self, stop: threading.Event) -> None:
        record = self._store.pipeline(self._config.name)
        if record is None:
            raise SlotError("the pipeline is not registered", hint="Run the copy DAG: discovery registers it.")
        self._spool.sweep(self._store.all_paths(self._config.name), durable=self._config.spool_durable)
        start = origin.start_position(self._config, self._source, self._store, self._spool, self._lease, record)
        self.began.set()
        stream = ReplicationStream(self._source, self._config.slot, self._config.publication, start.lsn)
        log.info("streaming %s from %s, epoch %d", self._config.name, start.lsn, self._lease.epoch)
        self.stats.waiting_for = None
        relations = Relations(self._config, self._source, self._store, captured=start.ddl_captured)
        try:
            with Threads(1, thread_name_prefix="pgetl-spool") as writer:
                _Loop(self._tools, stream, start.lsn, writer, relations).run(stop)
        finally:
            stream.close()


class _Loop:
    """One connection's loop: what it holds is thrown away with the connection, the ledger knows the rest."""

    def __init__(
        self, tools: _Tools, stream: ReplicationStream, start: Lsn, writer: Threads, relations: Relations
    ) -> None:
        self._config = tools.config
        self._store = tools.store
        self._lease = tools.lease
        self._spool = tools.spool
        self._memory = tools.memory
        self._stats = tools.stats
        self._on_spooled = tools.on_spooled
        self._stream = stream
        self._writer = writer
        self._decoder = Decoder(
            lambda relation, lsn: self._look_up(lambda: relations.resolve(relation, lsn)),
            lambda message, lsn: self._look_up(lambda: relations.announce(message, lsn)),
        )
        self._stop = threading.Event()
        # Every commit before it is durable or in the write that is in flight.
        self._position = start
        self._advanced = start
        # Where the spool does not survive, what is applied counts.
        self._floor = start
        self._raw: list[bytes] = []
        self._raw_bytes = 0
        self._since: float | None = None
        # The last position that the server told: every commit before it was sent before.
        self._told = start
        self._pending = Pending()
        # Of the transaction whose commit has not come yet.
        self._open = Pending()
        self._pieces: list[Future[tuple[SpoolFile, ...]]] = []
        self._writing: Future[Lsn] | None = None
        self._advanced_at = 0.0
        self._unsure = False

    def run(self, stop: threading.Event) -> None:
        self._stop = stop
        try:
            while not stop.is_set():
                self._settle(until_done=False)
                if self._full():
                    self._stream.keep_alive()
                    self._settle(until_done=True)
                    continue
                self._relieve_memory()
                read = self._stream.read(READ_MESSAGES, READ_BYTES, self._wait_s())
                self._take(read)
                self._flush_if_due()
                self._idle(read.keepalive)
            self._finish()
        finally:
            # A write that is in flight decides what the ledger says; never leave before it has.
            if self._writing is not None:
                self._writing.exception()

    def _wait_s(self) -> float:
        if self._writing is not None:
            return _WAIT_WHILE_WRITING_S
        if self._since is None:
            return _WAIT_S
        return max(0.0, min(_WAIT_S, self._config.batch.max_fill_ms / 1000 - self._age_s()))

    def _limit(self) -> int:
        """How many bytes a batch may have."""
        return self._config.batch.max_bytes if self._memory is None else self._memory.budget(1)

    def _full(self) -> bool:
        return self._writing is not None and self._pending.bytes >= self._limit()

    def _relieve_memory(self) -> None:
        """Memory is short: write what is held before reading on. Nothing held is no reason to stop: WAL would grow."""
        held = self._raw_bytes + self._pending.bytes + self._open.bytes
        if self._memory is None or not self._memory.pressed or held < _WORTH_A_FLUSH:
            return
        self._decode()
        if self._open.bytes:
            self._write_piece()
        self._flush()
        self._settle(until_done=True)

    def _take(self, read: Read) -> None:
        """Gather frames: decoding many at once is far cheaper, and nothing needs them before the next flush."""
        self._stats.received_lsn = max(self._stats.received_lsn, self._stream.received)
        self._stats.bytes += read.bytes
        if read.frames and self._since is None:
            self._since = time.monotonic()
        self._raw.extend(read.frames)
        self._raw_bytes += read.bytes
        if len(self._raw) >= DECODE_MESSAGES or self._raw_bytes >= DECODE_BYTES:
            self._decode()

    def _decode(self) -> None:
        """Decode what was gathered; what belongs to a transaction that is still open waits for its commit."""
        raw, self._raw, self._raw_bytes = self._raw, [], 0
        whole = _after_last_commit(raw)
        if whole:
            self._open.add(self._decoder.decode(raw[:whole]))
            self._pending.merge(self._open)
            self._open = Pending()
        if whole < len(raw):
            self._open.add(self._decoder.decode(raw[whole:]))
        if self._open.bytes >= self._limit():
            self._write_piece()

    def _write_piece(self) -> None:
        """A transaction past the limit: write what there is of it; the ledger learns of it with the commit."""
        if not self._pending.empty:
            self._flush()
        while self._pieces and not self._pieces[-1].done():
            self._stream.keep_alive()
            wait([self._pieces[-1]], 0.1)
        piece, self._open = self._open, Pending()
        self._pieces.append(self._writer.submit(self._persist, lambda: self._spool.write(piece.tables)))
        self._stats.rows += piece.rows

    def _flush_if_due(self) -> None:
        if self._writing is not None:
            return
        if self._age_s() * 1000 >= self._config.batch.max_fill_ms:
            self._decode()
            self._since = None if self._open.empty else time.monotonic()
            self._flush()
        elif self._pending.bytes >= self._limit():
            self._flush()

    def _age_s(self) -> float:
        """Seconds since the first frame came that is not in a write yet."""
        return 0.0 if self._since is None else time.monotonic() - self._since

    def _flush(self) -> None:
        self._settle(until_done=True)
        pending, self._pending = self._pending, Pending()
        if pending.end_lsn is None:
            # Nothing, or only messages outside of transactions: nothing to keep.
            return
        pieces, self._pieces = self._pieces, []
        begin, self._position = self._position, pending.end_lsn
        self._writing = self._writer.submit(self._write, pending, pieces, begin)

    def _write(self, pending: Pending, pieces: list[Future[tuple[SpoolFile, ...]]], begin: Lsn) -> Lsn:
        """In the writer's thread: files, then ledger. Repeats while spool or store are out of order."""
        assert pending.end_lsn is not None
        files = [file for piece in pieces for file in piece.result()]
        files += self._persist(lambda: self._spool.write(pending.tables))
        segment = Segment(
            from_lsn=begin,
            to_lsn=pending.end_lsn,
            files=tuple(files),
            rows=sum(file.rows for file in files),
            bytes=sum(file.bytes for file in files),
            last_committed_at=pending.last_committed_at,
        )
        hit("ledger.before")
        if files:
            self._persist(lambda: self._register(segment))
        else:
            # Only messages: there is nothing to find again.
            self._persist(lambda: self._store.advance(self._config.name, self._lease, segment.to_lsn))
        hit("ledger.after")
        self._stats.rows += pending.rows
        self._stats.transactions += pending.transactions
        self._stats.segments += 1
        self._stats.last_committed_at = pending.last_committed_at
        self._on_spooled()
        self._find_floor(segment.to_lsn)
        return segment.to_lsn

    def _persist(self, step: Callable[[], T]) -> T:
        """Repeat a step that spool or store refuse for now; the walsender is kept alive meanwhile."""
        failures = 0
        while True:
            try:
                return step()
            except PgEtlError as error:
                if error.retry is not Retry.TIMED or self._stop.is_set():
                    raise
                failures += 1
                self._stats.waiting_for = error.message
                log.warning("nothing is confirmed, spooling waits: %s", error.message)
                self._stop.wait(min(_BACKOFF_S[1], _BACKOFF_S[0] * 2**failures))

    def _look_up(self, step: Callable[[], T]) -> T:
        """In the reader's thread: wait for a store that is out of reach, and keep the walsender alive."""
        failures = 0
        while True:
            try:
                return step()
            except StoreError as error:
                if error.retry is not Retry.TIMED or self._stop.is_set():
                    raise
                failures += 1
                self._stats.waiting_for = error.message
                log.warning("decoding waits: %s", error.message)
                until = time.monotonic() + min(_BACKOFF_S[1], _BACKOFF_S[0] * 2**failures)
                while time.monotonic() < until and not self._stop.wait(0.1):
                    self._stream.keep_alive()

    def _register(self, segment: Segment) -> None:
        """The moment of durability. After a broken answer the ledger itself says whether the row is in."""
        try:
            self._store.add_segment(self._config.name, self._lease, segment)
        except Overtaken:
            record = self._store.pipeline(self._config.name)
            if not self._unsure or record is None or record.spooled_lsn != segment.to_lsn:
                raise
        except StoreError:
            self._unsure = True
            raise
        self._unsure = False

    def _settle(self, *, until_done: bool) -> None:
        """Confirm what the writer has made durable."""
        writing = self._writing
        while until_done and writing is not None and not writing.done():
            self._stream.keep_alive()
            wait([writing], 0.1)
        if writing is not None and writing.done():
            self._writing = None
            self._confirm(writing.result())

    def _confirm(self, lsn: Lsn) -> None:
        hit("confirm.before")
        self._stream.confirm(lsn if self._config.spool_durable else self._floor)
        self._advanced = max(self._advanced, lsn)
        self._stats.spooled_lsn = max(self._stats.spooled_lsn, lsn)
        self._stats.waiting_for = None

    def _idle(self, keepalive: Lsn | None) -> None:
        """Nothing is pending: the server's own position is ours, and unrelated WAL can go."""
        if keepalive is not None:
            # Kept also while something is pending: a server to which we said that we have it does not repeat it.
            self._told = max(self._told, keepalive)
        if (
            self._since is not None
            or self._decoder.in_transaction
            or self._pieces
            or self._writing is not None
            or not self._pending.empty
        ):
            return
        self._position = max(self._position, self._told)
        behind = self._position > (self._advanced if self._config.spool_durable else self._floor)
        if behind and time.monotonic() - self._advanced_at >= _ADVANCE_S:
            self._advanced_at = time.monotonic()
            self._writing = self._writer.submit(self._advance, self._position)

    def _advance(self, lsn: Lsn) -> Lsn:
        self._persist(lambda: self._store.advance(self._config.name, self._lease, lsn))
        self._find_floor(lsn)
        return lsn

    def _find_floor(self, lsn: Lsn) -> None:
        """In the writer's thread: up to where every table has applied what concerns it.

        A table in ``init`` needs nothing of it: its copy's snapshot is still to come.
        """
        if self._config.spool_durable:
            return
        tables = self._persist(lambda: self._store.tables(self._config.name))
        waiting = {record.relation_id for record in tables if record.state.kind is not StateKind.INIT}
        backlogs = self._persist(lambda: self._store.table_backlogs(self._config.name))
        self._floor = min([lsn, *(one.first_lsn for one in backlogs if one.relation_id in waiting)])

    def _finish(self) -> None:
        """A clean stop: what is whole and pending becomes durable, and is confirmed."""
        self._decode()
        self._flush()
        self._settle(until_done=True)


def _after_last_commit(frames: list[bytes]) -> int:
    """How many frames there are up to and with the last commit."""
    for index in range(len(frames) - 1, -1, -1):
        if frames[index][HEADER] == COMMIT:
            return index + 1
    return 0
