"""Rows of a query as raw frames, by ``COPY ... TO STDOUT (FORMAT binary)`` at libpq level.

stream   11 bytes signature, int32 flags, int32 extension length, extension, then rows
row      int16 columns, then for each column int32 length (-1 is null) and the bytes; int16 -1 ends it all
"""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from contextlib import closing

import psycopg
from psycopg import pq, sql

from airflow_provider_pgetl.replication.errors import SnapshotLost, SourceError, SourceUnreachable
from airflow_provider_pgetl.replication.source.connection import Connection, connect_copy, source_errors

_SIGNATURE = b"PGCOPY\n\xff\r\n\0"
# A reader that is woken rarely costs the server half the work: let the kernel gather, but not for long.
LOW_WATER = 128 * 1024
GATHER_MS = 5

BATCH_ROWS = 16_384
BATCH_BYTES = 32 * 1024 * 1024

_INVALID_SNAPSHOT = ("22023", "42704")


def copy_frames(source: str, snapshot: str, query: str) -> Iterator[list[bytes]]:
    """Batches of row frames of ``query`` under ``snapshot``; a frame is one row, without the stream's header."""
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


def _read(connection: Connection, query: str) -> Iterator[list[bytes]]:
    pgconn = connection.pgconn
    pgconn.send_query(f"copy ({query}) to stdout (format binary)".encode())
    _await_result(pgconn)
    result = pgconn.get_result()
    if result is None or result.status != pq.ExecStatus.COPY_OUT:
        raise SourceError(f"the copy was refused: {_message(result)}")
    first, batch, size = True, [], 0
    for frame in _frames(pgconn):
        if first:
            row, first = _without_header(frame), False
        else:
            row = frame
        if len(row) == 2:  # the trailer
            continue
        batch.append(row)
        size += len(row)
        if len(batch) >= BATCH_ROWS or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _frames(pgconn: pq.abc.PGconn) -> Iterator[bytes]:
    poll = select.poll()
    poll.register(pgconn.socket, select.POLLIN)
    gather(pgconn.socket, LOW_WATER)
    get = pgconn.get_copy_data
    while True:
        size, data = get(1)
        if size > 0:
            yield data  # type: ignore[misc]
        elif size == 0:
            poll.poll(GATHER_MS)
            _consume(pgconn)
        else:
            break
    gather(pgconn.socket, 1)
    result = pgconn.get_result()
    if result is None or result.status != pq.ExecStatus.COMMAND_OK:
        raise SourceUnreachable(f"the copy broke off: {_message(result)}")


def _consume(pgconn: pq.abc.PGconn) -> None:
    try:
        pgconn.consume_input()
    except psycopg.OperationalError as error:
        raise SourceUnreachable("the connection of a copy was lost") from error


def _await_result(pgconn: pq.abc.PGconn) -> None:
    """Wait for the answer without blocking inside libpq, so that an interrupt gets through."""
    poll = select.poll()
    poll.register(pgconn.socket, select.POLLIN)
    while pgconn.is_busy():
        poll.poll(1000)
        _consume(pgconn)


def gather(fd: int, low_water: int) -> None:
    """Wake the reader only when so many bytes have come; where the platform has no such option, nothing."""
    if hasattr(socket, "SO_RCVLOWAT"):
        with socket.socket(fileno=socket.dup(fd)) as handle:
            handle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, low_water)


def _without_header(frame: bytes) -> bytes:
    data = bytes(frame)
    if not data.startswith(_SIGNATURE):
        raise SourceError("the server did not answer with a binary copy")
    extension = int.from_bytes(data[15:19], "big")
    return data[19 + extension :]


def _message(result: pq.abc.PGresult | None) -> str:
    if result is None:
        return "no answer"
    primary = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY)
    return primary.decode(errors="replace") if primary else "no reason given"
