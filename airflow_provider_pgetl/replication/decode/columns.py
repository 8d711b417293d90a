"""Tuples of many rows at once: a column is an array of positions, never a Python value.

tuple   int16 columns, then for each:
        'n'                      null
        'u'                      unchanged TOAST: the value did not travel
        't' int32 length, bytes  text
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_provider_pgetl.replication.decode.frames import Frames, Positions
from airflow_provider_pgetl.replication.errors import DecodeError

NULL, UNCHANGED, TEXT = b"nut"

Mask = npt.NDArray[np.bool_]


@dataclass(slots=True)
class Field:
    """One column of some rows: what kind each value is, and where its text lies in the buffer."""

    kind: npt.NDArray[np.uint8]
    start: Positions
    end: Positions

    def put(self, rows: Positions | Mask, other: Field, of: Positions | Mask | slice = slice(None)) -> None:
        """Overwrite some rows by some rows of ``other``."""
        self.kind[rows] = other.kind[of]
        self.start[rows] = other.start[of]
        self.end[rows] = other.end[of]

    def take(self, rows: Positions | Mask) -> Field:
        """Some of the rows."""
        return Field(self.kind[rows], self.start[rows], self.end[rows])


@dataclass(slots=True)
class Tuples:
    """The columns of some rows, and where each row's tuple ends."""

    fields: list[Field]
    end: Positions


def read_tuples(frames: Frames, rows: Positions, at: Positions, columns: int) -> Tuples:
    """Walk one tuple of each of ``rows`` (indexes of frames), which begin at ``at``, column by column."""
    limit = frames.end[rows]
    _check(frames, rows, at + 2 <= limit, "the tuple is cut short")
    _check(frames, rows, frames.i16[at] == columns, "the tuple has another number of columns than its relation")
    position = at + 2
    fields = []
    for _ in range(columns):
        field = _read_field(frames, rows, position, limit)
        fields.append(field)
        position = field.end
    return Tuples(fields, position)


def _read_field(frames: Frames, rows: Positions, position: Positions, limit: Positions) -> Field:
    _check(frames, rows, position < limit, "the tuple is cut short")
    kind = frames.byte[position]
    text = kind == TEXT
    if text.all():
        start = position + 5
        end = start + frames.i32[position + 1]
    else:
        _check(frames, rows, text | (kind == NULL) | (kind == UNCHANGED), "a column of an unknown kind")
        start = position + np.where(text, 5, 1)
        end = start + np.where(text, frames.i32[position + 1], 0)
    _check(frames, rows, (end >= start) & (end <= limit), "a value reaches past its message")
    return Field(kind, start, end)


def _check(frames: Frames, rows: Positions, good: Mask, what: str) -> None:
    if not good.all():
        frames.fail(int(rows[good.argmin()]), what)


def text_array(frames: Frames, field: Field, kind: pa.DataType | None = None) -> pa.Array:
    """The column as Arrow strings (or bytes); what is null or did not travel is null.

    Values lie in the buffer in row order with gaps between them, so the offsets value, gap, value, gap ... make
    an Arrow array without copying; ``take`` then keeps the values only.
    """
    rows = len(field.kind)
    kind = kind or pa.string()
    if rows == 0:
        return pa.array([], kind)
    offsets = np.empty(2 * rows, np.int32)
    offsets[0::2] = field.start
    offsets[1::2] = field.end
    gapped = pa.Array.from_buffers(kind, 2 * rows - 1, [None, pa.py_buffer(offsets), pa.py_buffer(frames.buffer)])
    absent = field.kind != TEXT
    wanted = np.arange(0, 2 * rows - 1, 2, dtype=np.int32)
    values = gapped.take(pa.array(wanted, mask=absent if absent.any() else None))
    try:
        values.validate(full=True)
    except pa.ArrowInvalid as error:
        raise DecodeError("a value is not UTF-8", kind="t", offset=int(field.start[0])) from error
    return values
