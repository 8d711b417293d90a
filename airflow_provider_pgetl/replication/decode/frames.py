"""A batch of replication frames, or of copied rows, as one buffer that NumPy can read at once.

A frame is what the walsender puts into one CopyData message:

    byte   0      'w'
    bytes  1..8   WAL start of the message        big endian, like all numbers here
    bytes  9..16  WAL end on the server
    bytes 17..24  clock of the server
    byte  25      kind of the pgoutput message
    bytes 26..    its body (see ``messages`` and ``columns``)

A copied row has no header (see ``copy_rows``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from airflow_provider_pgetl.replication.errors import DecodeError

HEADER = 25
BODY = HEADER + 1

BEGIN, COMMIT, ORIGIN, RELATION, TYPE = b"BCORY"
INSERT, UPDATE, DELETE, TRUNCATE, MESSAGE = b"IUDTM"


def _among(*kinds: int) -> npt.NDArray[np.bool_]:
    """A table to look kinds up in: far cheaper than a search for each batch."""
    table = np.zeros(256, np.bool_)
    table[list(kinds)] = True
    return table


IS_ROW = _among(INSERT, UPDATE, DELETE)
IS_CHANGE = _among(INSERT, UPDATE, DELETE, TRUNCATE)
IS_KNOWN = _among(BEGIN, COMMIT, ORIGIN, RELATION, TYPE, INSERT, UPDATE, DELETE, TRUNCATE, MESSAGE)

# Arrow's string offsets are 32 bits wide. A frame is below 1 GB (the server's own limit) and batches are cut at
# some MB, so that no batch comes near it.
MAX_BUFFER = 2**31 - 64
# Unaligned reads look a few bytes ahead; the padding keeps them inside the buffer.
PADDING = bytes(16)

Positions = npt.NDArray[np.int64]
Frame = bytes | bytearray | memoryview


class Buffer:
    """Messages in one buffer, with typed views at every byte offset."""

    __slots__ = ("buffer", "byte", "end", "i16", "i32", "i64", "start")

    def __init__(self, buffer: bytes | bytearray, end: Positions, start: Positions) -> None:
        """``buffer`` ends with PADDING."""
        self.buffer = buffer
        self.start = start
        self.end = end
        size = len(buffer)
        self.byte = np.frombuffer(buffer, np.uint8)
        self.i16: npt.NDArray[np.int16] = np.ndarray((size - 1,), ">i2", buffer, 0, (1,))
        self.i32: npt.NDArray[np.int32] = np.ndarray((size - 3,), ">i4", buffer, 0, (1,))
        self.i64: npt.NDArray[np.int64] = np.ndarray((size - 7,), ">i8", buffer, 0, (1,))

    def __len__(self) -> int:
        return len(self.start)

    def kind_at(self, index: int) -> str:
        """What kind of message it is, for errors."""
        raise NotImplementedError

    def fail(self, index: int, what: str, hint: str | None = None) -> NoReturn:
        """Raise for one message, naming its kind and offset, never its bytes."""
        raise located(what, self.kind_at(index), int(self.start[index]), hint)


class Frames(Buffer):
    """Replication frames, joined."""

    __slots__ = ("kind",)

    def __init__(self, frames: Sequence[Frame]) -> None:
        lengths = np.fromiter(map(len, frames), np.int64, len(frames))
        start, end = bounds(lengths, least=BODY)
        super().__init__(b"".join((*frames, PADDING)), end, start)
        self.kind: npt.NDArray[np.uint8] = self.byte[start + HEADER]

    def kind_at(self, index: int) -> str:
        return chr(self.kind[index])

    def body(self, index: int) -> bytes:
        """The body of one message, for the kinds that are read one by one."""
        return bytes(self.buffer[self.start[index] + BODY : self.end[index]])

    def require(self, indexes: Positions, size: int) -> None:
        """All of these messages have at least ``size`` bytes of body."""
        short = self.end[indexes] - self.start[indexes] < BODY + size
        if short.any():
            self.fail(int(indexes[short.argmax()]), "the message is cut short")


def bounds(lengths: Positions, least: int, kind: str = "?") -> tuple[Positions, Positions]:
    """Where each message starts and ends in the buffer; none is shorter than ``least``."""
    end = np.cumsum(lengths)
    start = end - lengths
    if len(lengths) and lengths.min() < least:
        raise located("the message is shorter than its header", kind, int(start[lengths.argmin()]))
    if len(lengths) and end[-1] + len(PADDING) > MAX_BUFFER:
        raise located("a batch is past 2 GB", kind, int(end[-1]))
    return start, end


def located(what: str, kind: str, offset: int, hint: str | None = None) -> DecodeError:
    """The error of this room: what, in which kind of message, where in the batch."""
    return DecodeError(f"{what} (kind {kind!r}, offset {offset})", kind=kind, offset=offset, hint=hint)
