r"""Postgres array text, one dimension: ``{1,2,NULL}``, ``{"a b","c\"d"}``.

A column is taken apart at once: NumPy finds the bytes that mean something (quotes, backslashes, commas, braces),
throws away those that are escaped or inside of quotes, and what is left bounds the elements.
Several dimensions (``{{1},{2}}``) and lower bounds (``[2:3]={1,2}``) do not fit a list: they are spilled.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_pgetl.replication.decode.columns import pick
from airflow_provider_pgetl.replication.decode.frames import Positions
from airflow_provider_pgetl.replication.decode.vectors import Mask, booleans, mask
from airflow_provider_pgetl.replication.errors import DecodeError

_QUOTE, _BACKSLASH, _COMMA, _OPEN, _CLOSE, _BOUND = b'"\\,{}['
_NULL = int.from_bytes(b"NULL", "big")
_NONE = np.empty(0, np.int64)

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Split:
    """Elements of all rows in a row, the offsets of each row's elements, and which rows are null or spilled."""

    elements: pa.Array
    offsets: npt.NDArray[np.int32]
    absent: Mask
    spilled: Mask


@dataclass(slots=True)
class _Marks:
    """Bytes that bound elements (position and byte), those that only escape the next, and how many quotes."""

    at: Positions
    byte: Bytes
    escapes: Positions
    quotes: int


def split(text: pa.Array) -> Split:
    """Take a column of array texts apart; ``absent`` rows (null) and ``spilled`` rows have no elements."""
    absent = mask(text.is_null())
    spilled = _spilled(text, absent)
    listed = ~(absent | spilled)
    if not listed.any():
        return Split(pa.array([], pa.string()), np.zeros(len(text) + 1, np.int32), absent, spilled)
    if spilled.any():
        text = pc.filter(text, booleans(listed | absent))
    elements, found = _elements(text, listed[~spilled])
    counts = np.zeros(len(listed), np.int64)
    counts[listed] = found
    return Split(elements, _offsets(counts), absent, spilled)


def any_in_list(offsets: npt.NDArray[np.int32], marked: Mask) -> Mask:
    """Which lists have a marked element."""
    total = np.concatenate([[0], np.cumsum(marked)])
    return np.asarray(total[offsets[1:]] > total[offsets[:-1]])


def buffers(text: pa.Array) -> tuple[Positions, Bytes]:
    """The offsets of a string array, from 0 on, and its bytes; also of a slice of a larger one."""
    offsets = np.frombuffer(text.buffers()[1], np.int32, len(text) + 1, text.offset * 4).astype(np.int64)
    data = text.buffers()[2]
    found = np.frombuffer(data if data is not None else b"", np.uint8)[offsets[0] : offsets[-1]]
    return offsets - offsets[0], found


def _spilled(text: pa.Array, absent: Mask) -> Mask:
    """Which rows begin with a bound or a second brace."""
    offsets, data = buffers(text)
    first = offsets[:-1]
    if (np.diff(offsets)[~absent] < 2).any():
        raise _malformed()
    # A null has no bytes; what it reads here belongs to others, and is masked.
    peek = np.append(data, (0, 0))
    return np.asarray(((peek[first] == _BOUND) | (peek[first + 1] == _OPEN)) & ~absent)


def _elements(text: pa.Array, listed: Mask) -> tuple[pa.Array, Positions]:
    """The elements of all rows, and how many each of the listed rows has."""
    offsets, data = buffers(text)
    marks = _marks(data)
    begins = np.flatnonzero(marks.byte != _CLOSE)
    first = np.flatnonzero(marks.byte[begins] == _OPEN)
    # As many braces of either kind as rows, and the last byte is one: so each element has a mark behind it.
    rows = int(listed.sum())
    if not (len(marks.at) - len(begins) == len(first) == rows and marks.byte[-1] == _CLOSE):
        raise _malformed()
    start, end = marks.at[begins] + 1, marks.at[begins + 1]
    # They stand at the very ends of their rows: then all commas are between them.
    last = np.append(first[1:], len(begins)) - 1
    if (start[first] - 1 != offsets[:-1][listed]).any() or (end[last] != offsets[1:][listed] - 1).any():
        raise _malformed()
    counts = np.diff(np.append(first, len(start)))
    empty = start == end
    if empty.any():
        # No element is empty (an empty string is quoted), so these are the empty arrays.
        if not (counts[np.searchsorted(first, np.flatnonzero(empty), "right") - 1] == 1).all():
            raise _malformed()
        counts[empty[first]] = 0
        start, end = start[~empty], end[~empty]
    return _texts(data, start, end, marks), counts


def _marks(data: Bytes) -> _Marks:
    at = np.flatnonzero((data == _COMMA) | (data == _QUOTE) | (data == _OPEN) | (data == _CLOSE) | (data == _BACKSLASH))
    byte = data[at]
    escapes = _NONE
    if (byte == _BACKSLASH).any():
        escapes = _escapes(at[byte == _BACKSLASH])
        escaped = np.zeros(len(data) + 1, np.bool_)
        escaped[escapes + 1] = True
        plain = ~escaped[at] & (byte != _BACKSLASH)
        at, byte = at[plain], byte[plain]
    quotes = byte == _QUOTE
    count = int(quotes.sum())
    if count:
        outside = ~quotes & ~np.logical_xor.accumulate(quotes)
        at, byte = at[outside], byte[outside]
    return _Marks(at, byte, escapes, count)


def _escapes(backslashes: Positions) -> Positions:
    """Of neighbouring backslashes every other one escapes: the first, the third, ..."""
    begins = np.diff(backslashes, prepend=-2) != 1
    run = np.maximum.accumulate(np.where(begins, backslashes, 0))
    return np.asarray(backslashes[(backslashes - run) % 2 == 0])


def _texts(data: Bytes, start: Positions, end: Positions, marks: _Marks) -> pa.Array:
    if not len(start):
        return pa.array([], pa.string())
    quoted = None
    if marks.quotes:
        quoted = data[start] == _QUOTE
        good = ~quoted | ((end - start >= 2) & (data[end - 1] == _QUOTE))
        if not good.all() or marks.quotes != 2 * int(quoted.sum()):
            raise _malformed()
        start, end = start + quoted, end - quoted
    absent = _nulls(data, start, end)
    if quoted is not None:
        absent &= ~quoted
    if len(marks.escapes):
        start = start - np.searchsorted(marks.escapes, start)
        end = end - np.searchsorted(marks.escapes, end)
        data = np.delete(data, marks.escapes)
    return pick(pa.py_buffer(data), start, end, absent if absent.any() else None, pa.string())


def _nulls(data: Bytes, start: Positions, end: Positions) -> Mask:
    """Which elements are the word NULL."""
    words = np.ndarray((max(len(data) - 3, 0),), ">u4", data, 0, (1,))
    four = end - start == 4
    four[four] = words[start[four]] == _NULL
    return np.asarray(four)


def _malformed() -> DecodeError:
    return DecodeError("an array value can't be read", kind="t")


def _offsets(counts: Positions) -> npt.NDArray[np.int32]:
    return np.concatenate([np.zeros(1, np.int32), np.cumsum(counts).astype(np.int32)])
