"""Rows of a query as raw frames, by ``COPY ... TO STDOUT (FORMAT binary)`` at libpq level.

stream   11 bytes signature, int32 flags, int32 extension length, extension, then rows
row      int16 columns, then for each column int32 length (-1 is null) and the bytes; int16 -1 ends it all
"""

from __future__ import annotations

import select
import socket
from array import array
from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

import psycopg
from psycopg import pq, sql

from airflow_provider_pgetl.replication.errors import SnapshotLost, SourceError, SourceUnreachable
from airflow_provider_pgetl.replication.source.connection import Connection, connect_copy, source_errors

_SIGNATURE = b"PGCOPY\n\xff\r\n\0"
_TRAILER = b"\xff\xff"
# A reader that is woken rarely costs the server half the work: let the kernel gather, but not for long.
LOW_WATER = 128 * 1024
GATHER_MS = 5

BATCH_ROWS = 16_384
BATCH_BYTES = 32 * 1024 * 1024

_INVALID_SNAPSHOT = ("22023", "42704")


class RawRows(NamedTuple):
    """Rows one after the other in one buffer, without the stream's header, and how long each is.

    One buffer instead of an object for each row: such objects cost a third of the reading, most of it by waking
    the garbage collector (measured with 17 columns: 1.8 CPU-s for a million rows, now 0.8).
    """

    buffer: bytearray
    lengths: array[int]


def copy_rows(source: str, snapshot: str, query: str) -> Iterator[RawRows]:
    """Batches of the rows of ``query`` under ``snapshot``."""
    # Nothing is left to commit, and a reader that goes away early must leave no backend behind.
    with closing(connect_copy(source)) as connection:
        _enter(connection, snapshot)
        yield from _read(connection, query)


def _enter(connection: Connection, snapshot: str) -> None:
    try:
        connection.execute("begin isolation level repeatable read read only")
        connection.execute(sql.SQL("set transaction snapshot {}").format(sql.Literal(snapshot)))
    except psycopg.Error as error:
        if error.sqlstate in _INVALID_SNAPSHOT:
            raise SnapshotLost(f"the snapshot {snapshot} is gone") from error
        with source_errors():
            raise


def _read(connection: Connection, query: str) -> Iterator[RawRows]:
    pgconn = connection.pgconn
    pgconn.send_query(f"copy ({query}) to stdout (format binary)".encode())
    try:
        _await_result(pgconn)
        result = pgconn.get_result()
        if result is None or result.status != pq.ExecStatus.COPY_OUT:
            raise SourceError(f"the copy was refused: {_message(result)}")
        gather(pgconn.socket, LOW_WATER)
        yield from _batches(pgconn)
    except psycopg.OperationalError as error:
        raise SourceUnreachable("the connection of a copy was lost") from error
    gather(pgconn.socket, 1)
    result = pgconn.get_result()
    if result is None or result.status != pq.ExecStatus.COMMAND_OK:
        raise SourceUnreachable(f"the copy broke off: {_message(result)}")


def _batches(pgconn: pq.abc.PGconn) -> Iterator[RawRows]:
    poll = select.poll()
    poll.register(pgconn.socket, select.POLLIN)
    get = pgconn.get_copy_data
    buffer, lengths = _first(pgconn, poll)
    while True:
        size, data = get(1)
        if size > 0:
            buffer += data
            lengths.append(size)
            if len(lengths) < BATCH_ROWS:
                continue
        elif size == 0:
            _wait(pgconn, poll)
            # Looked at only here, since that is cheap; what a socket holds at most can come on top.
            if len(buffer) < BATCH_BYTES:
                continue
        else:
            break
        yield _without_trailer(buffer, lengths)
        buffer, lengths = bytearray(), array("q")
    rows = _without_trailer(buffer, lengths)
    if rows.lengths:
        yield rows


def _first(pgconn: pq.abc.PGconn, poll: select.poll) -> tuple[bytearray, array[int]]:
    """The first frame, without the stream's header; empty if there is none."""
    size, data = pgconn.get_copy_data(1)
    while size == 0:
        _wait(pgconn, poll)
        size, data = pgconn.get_copy_data(1)
    row = _without_header(bytes(data)) if size > 0 else b""
    return bytearray(row), array("q", [len(row)] if row else [])


def _wait(pgconn: pq.abc.PGconn, poll: select.poll) -> None:
    poll.poll(GATHER_MS)
    # libpq reads as much as its buffer has room for, 16 kB at first; it grows when it is asked to read on while
    # it is full. Asked twice it soon takes all that has come: a tenth of the wake-ups, a third less CPU.
    pgconn.consume_input()
    pgconn.consume_input()


def _without_trailer(buffer: bytearray, lengths: array[int]) -> RawRows:
    """The trailer comes last and is the only frame of two bytes: a table has columns."""
    if lengths and lengths[-1] == len(_TRAILER):
        lengths.pop()
        del buffer[-len(_TRAILER) :]
    return RawRows(buffer, lengths)


def _await_result(pgconn: pq.abc.PGconn) -> None:
    """Wait for the answer without blocking inside libpq, so that an interrupt gets through."""
    poll = select.poll()
    poll.register(pgconn.socket, select.POLLIN)
    while pgconn.is_busy():
        poll.poll(1000)
        pgconn.consume_input()


def gather(fd: int, low_water: int) -> None:
    """Wake the reader only when so many bytes have come; where the platform has no such option, nothing."""
    if hasattr(socket, "SO_RCVLOWAT"):
        with socket.socket(fileno=socket.dup(fd)) as handle:
            handle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, low_water)


def _without_header(data: bytes) -> bytes:
    if not data.startswith(_SIGNATURE):
        raise SourceError("the server did not answer with a binary copy")
    extension = int.from_bytes(data[15:19], "big")
    return data[19 + extension :]


def _message(result: pq.abc.PGresult | None) -> str:
    if result is None:
        return "no answer"
    primary = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY)
    return primary.decode(errors="replace") if primary else "no reason given"
