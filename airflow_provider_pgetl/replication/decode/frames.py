"""A batch of replication frames as one buffer that NumPy can read at once.

A frame is what the walsender puts into one CopyData message:

    byte   0      'w'
    bytes  1..8   WAL start of the message        big endian, like all numbers here
    bytes  9..16  WAL end on the server
    bytes 17..24  clock of the server
    byte  25      kind of the pgoutput message
    bytes 26..    its body (see ``messages`` and ``columns``)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from airflow_provider_pgetl.replication.errors import DecodeError

HEADER = 25
BODY = HEADER + 1

BEGIN, COMMIT, ORIGIN, RELATION, TYPE = b"BCORY"
INSERT, UPDATE, DELETE, TRUNCATE, MESSAGE = b"IUDTM"
KINDS = frozenset((BEGIN, COMMIT, ORIGIN, RELATION, TYPE, INSERT, UPDATE, DELETE, TRUNCATE, MESSAGE))

# Arrow's string offsets are 32 bits wide.
MAX_BUFFER = 2**31 - 64
# Unaligned reads look a few bytes ahead; the padding keeps them inside the buffer.
_PADDING = bytes(16)

Positions = npt.NDArray[np.int64]
Frame = bytes | bytearray | memoryview


class Frames:
    """Frames joined into one buffer, with typed views at every byte offset."""

    __slots__ = ("buffer", "byte", "end", "i16", "i32", "i64", "kind", "start")

    def __init__(self, frames: Sequence[Frame], header: int = HEADER) -> None:
        lengths = np.fromiter(map(len, frames), np.int64, len(frames))
        self.end: Positions = np.cumsum(lengths)
        self.start: Positions = self.end - lengths
        if len(frames) and lengths.min() <= header:
            at = int(lengths.argmin())
            raise DecodeError("a frame is shorter than its header", offset=int(self.start[at]))
        self.buffer = b"".join((*frames, _PADDING))
        size = len(self.buffer)
        if size > MAX_BUFFER:
            raise DecodeError("a batch of frames is past 2 GB", offset=size)
        self.byte = np.frombuffer(self.buffer, np.uint8)
        self.i16: npt.NDArray[np.int16] = np.ndarray((size - 1,), ">i2", self.buffer, 0, (1,))
        self.i32: npt.NDArray[np.int32] = np.ndarray((size - 3,), ">i4", self.buffer, 0, (1,))
        self.i64: npt.NDArray[np.int64] = np.ndarray((size - 7,), ">i8", self.buffer, 0, (1,))
        self.kind: npt.NDArray[np.uint8] = self.byte[self.start + header]

    def __len__(self) -> int:
        return len(self.start)

    def body(self, index: int) -> bytes:
        """The body of one message, for the kinds that are read one by one."""
        return self.buffer[self.start[index] + BODY : self.end[index]]

    def require(self, indexes: Positions, size: int) -> None:
        """All of these messages have at least ``size`` bytes of body."""
        short = self.end[indexes] - self.start[indexes] < BODY + size
        if short.any():
            self.fail(int(indexes[short.argmax()]), "the message is cut short")

    def fail(self, index: int, what: str) -> None:
        """Raise for one message, naming its kind and offset, never its bytes."""
        raise DecodeError(
            f"{what} (kind {chr(self.kind[index])!r}, offset {self.start[index]})",
            kind=chr(self.kind[index]),
            offset=int(self.start[index]),
        )
