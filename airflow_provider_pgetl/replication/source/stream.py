"""The replication stream at libpq level: drains pgoutput frames, answers keepalives, confirms positions.

    keepalive (server)   'k', int64 WAL end, int64 clock, byte reply requested
    status (client)      'r', int64 written, int64 flushed, int64 applied, int64 clock, byte reply requested

One thread owns the object. Measured on PG 18: the walsender sends each message on its own and wakes the reader
each time; a reader that is woken rarely (kernel low-water mark, a time-out of some milliseconds) halves the
walsender's work. When little flows the mark is taken away, so that a single change arrives at once.
"""

from __future__ import annotations

import logging
import select
import struct
import time
from dataclasses import dataclass

import psycopg
from psycopg import pq, sql

from airflow_provider_pgetl.replication.errors import SlotError, SourceError, SourceUnreachable
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.source.connection import connect_replication
from airflow_provider_pgetl.replication.source.copy_out import GATHER_MS, LOW_WATER, gather

log = logging.getLogger(__name__)

_XLOG_DATA, _KEEPALIVE = b"wk"
_POSTGRES_EPOCH = 946_684_800
# Fewer messages than this in one read: the stream is quiet, and latency matters more than gathering.
_BUSY_MESSAGES = 200
_DEFAULT_SENDER_TIMEOUT_S = 60.0
# Well before the server gives up on us.
_STATUS_SHARE = 0.3
_OBJECT_IN_USE = "55006"
_UNDEFINED_OBJECT = "42704"


@dataclass(frozen=True, slots=True)
class Read:
    """What one read brought: raw frames, and the last keepalive's position.

    Every commit before a keepalive's position was sent before the keepalive.
    """

    frames: list[bytes]
    keepalive: Lsn | None
    bytes: int


class ReplicationStream:
    """A started logical replication stream."""

    def __init__(self, source: str, slot: str, publication: str, start: Lsn) -> None:
        # psycopg's own connect gives time-outs, several hosts and clear errors; we use its libpq handle.
        self._connection = connect_replication(source, "stream")
        self._pgconn = self._connection.pgconn
        self._pgconn.nonblocking = 1
        self._flushed = start
        self._received = start
        self._quiet = True
        timeout = _sender_timeout(self._pgconn)
        self._status_every = timeout * _STATUS_SHARE
        self._status_at = time.monotonic()
        try:
            _start(self._pgconn, slot, publication, start)
        except BaseException:
            self._connection.close()
            raise
        self._poll = select.poll()
        self._poll.register(self._pgconn.socket, select.POLLIN)

    @property
    def backend_pid(self) -> int:
        """The walsender's pid."""
        return self._pgconn.backend_pid

    @property
    def received(self) -> Lsn:
        """The furthest position that the server has told of."""
        return self._received

    def read(self, max_messages: int, max_bytes: int, wait_s: float) -> Read:
        """What has come, up to the limits; waits at most ``wait_s`` for the first message."""
        self.keep_alive()
        frames: list[bytes] = []
        keepalive, size, state = self._drain(frames, max_messages, max_bytes)
        if not frames and keepalive is None and state == 0:
            self._wait(wait_s)
            keepalive, size, _ = self._drain(frames, max_messages, max_bytes)
        self._tune(len(frames))
        return Read(frames, keepalive, size)

    def confirm(self, lsn: Lsn) -> None:
        """Everything before ``lsn`` is durable: tell the server, which may then forget it."""
        if lsn > self._flushed:
            self._flushed = lsn
            self._send_status()

    def close(self) -> None:
        """End the stream."""
        if self._pgconn.status == pq.ConnStatus.OK:
            try:
                self._send_status()
                self._pgconn.put_copy_end()
                self._pgconn.flush()
            except (psycopg.Error, SourceUnreachable):
                log.debug("the stream was gone before it was closed")
        self._connection.close()

    def _drain(self, frames: list[bytes], max_messages: int, max_bytes: int) -> tuple[Lsn | None, int, int]:
        get, append = self._pgconn.get_copy_data, frames.append
        keepalive: Lsn | None = None
        total = 0
        try:
            while len(frames) < max_messages and total < max_bytes:
                size, data = get(1)
                if size <= 0:
                    if size < 0:
                        self._ended()
                    return keepalive, total, 0
                if data[0] == _XLOG_DATA:
                    # Not the memoryview itself: those are what the garbage collector counts and walks.
                    append(bytes(data))
                    total += size
                else:
                    keepalive = self._on_keepalive(bytes(data))
        except psycopg.OperationalError as error:
            raise SourceUnreachable("the replication connection was lost") from error
        return keepalive, total, 1

    def _wait(self, wait_s: float) -> None:
        self._poll.poll(max(0, wait_s * 1000) if self._quiet else min(GATHER_MS, wait_s * 1000))
        try:
            # Twice, so that libpq's buffer grows and takes all that has come (see ``copy_out``). Measured together
            # with frames as bytes: 0.8 CPU-s for a million messages instead of 2.5.
            self._pgconn.consume_input()
            self._pgconn.consume_input()
        except psycopg.OperationalError as error:
            raise SourceUnreachable("the replication connection was lost") from error

    def _tune(self, messages: int) -> None:
        quiet = messages < _BUSY_MESSAGES
        if quiet != self._quiet:
            gather(self._pgconn.socket, 1 if quiet else LOW_WATER)
            self._quiet = quiet

    def _on_keepalive(self, data: bytes) -> Lsn:
        position, _clock, reply = struct.unpack_from(">QQB", data, 1)
        self._received = max(self._received, Lsn(position))
        if reply:
            self._send_status()
        return Lsn(position)

    def keep_alive(self) -> None:
        """Send our status if it is time; call it also while nothing is read."""
        if time.monotonic() - self._status_at >= self._status_every:
            self._send_status()

    def _send_status(self) -> None:
        clock = int((time.time() - _POSTGRES_EPOCH) * 1_000_000)
        flushed = int(self._flushed)
        written = max(int(self._received), flushed)
        try:
            self._pgconn.put_copy_data(struct.pack(">cQQQQB", b"r", written, flushed, flushed, clock, 0))
            self._pgconn.flush()
        except psycopg.OperationalError as error:
            raise SourceUnreachable("the replication connection was lost") from error
        self._status_at = time.monotonic()

    def _ended(self) -> None:
        """The server ended the stream: it stops, or it could not go on."""
        result = self._pgconn.get_result()
        message = _primary(result) or "the server ended the stream"
        if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
            state = result.error_field(pq.DiagnosticField.SQLSTATE) or b""
            if not state.startswith((b"57", b"08", b"53")):
                raise SourceError(f"the replication stream failed: {message}")
        raise SourceUnreachable(f"the replication stream ended: {message}")


def _sender_timeout(pgconn: pq.abc.PGconn) -> float:
    result = pgconn.exec_(b"SHOW wal_sender_timeout")
    value = result.get_value(0, 0) if result.status == pq.ExecStatus.TUPLES_OK else None
    return _seconds(value.decode()) if value else _DEFAULT_SENDER_TIMEOUT_S


def _seconds(text: str) -> float:
    """``1min``, ``500ms``, ``0`` as seconds; 0 (no time-out) reads as the default."""
    units = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz")
    return float(number or 0) * units.get(text[len(number) :], 0.001) or _DEFAULT_SENDER_TIMEOUT_S


def _start(pgconn: pq.abc.PGconn, slot: str, publication: str, start: Lsn) -> None:
    names = sql.Literal(sql.Identifier(publication).as_string(None)).as_string(None)
    command = (
        f'START_REPLICATION SLOT "{slot}" LOGICAL {start} '
        f"(proto_version '1', messages 'true', publication_names {names})"
    )
    pgconn.send_query(command.encode())
    while pgconn.flush():
        select.select([], [pgconn.socket], [])
    while pgconn.is_busy():
        select.select([pgconn.socket], [], [])
        pgconn.consume_input()
    result = pgconn.get_result()
    if result is None or result.status != pq.ExecStatus.COPY_BOTH:
        raise _refused(result, slot)


def _refused(result: pq.abc.PGresult | None, slot: str) -> SourceError:
    message = _primary(result) or "no reason given"
    state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode() if result else ""
    if state == _OBJECT_IN_USE:
        return SourceUnreachable(f"the slot {slot!r} is still in use: {message}")
    if state == _UNDEFINED_OBJECT:
        return SlotError(f"the replication can't start: {message}")
    return SourceError(f"the replication can't start: {message}")


def _primary(result: pq.abc.PGresult | None) -> str | None:
    field = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) if result is not None else None
    return field.decode(errors="replace") if field else None
