"""Rows of a binary COPY as Arrow, by the same walk as the stream's tuples.

row   int16 columns, then for each column int32 length (-1 is null) and the bytes

Fixed-width types are read as NumPy views; everything else arrives as text and goes through the stream's casts,
so that a row copied and the same row streamed are identical.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_provider_pgetl.replication import pg_types
from airflow_provider_pgetl.replication.decode.casts import Cast, cast_column
from airflow_provider_pgetl.replication.decode.columns import check, text_array
from airflow_provider_pgetl.replication.decode.dates import date_text, timestamp_text
from airflow_provider_pgetl.replication.decode.frames import PADDING, Buffer, Positions, bounds, located
from airflow_provider_pgetl.replication.decode.overflow import overflow_map
from airflow_provider_pgetl.replication.decode.plan import PlannedColumn, plan
from airflow_provider_pgetl.replication.decode.vectors import Mask, booleans, vector
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.schema import TableSchema

# Postgres counts days and microseconds from 2000-01-01, the lake from 1970-01-01.
_EPOCH_DAYS = 10_957
_EPOCH_US = 946_684_800_000_000
_DAY_US = 86_400_000_000
# The years 1 to 9999, counted from 2000-01-01: what the lake's dates hold.
_MIN_DAY, _MAX_DAY = -730_119, 2_921_939
_MIN_US, _MAX_US = _MIN_DAY * _DAY_US, (_MAX_DAY + 1) * _DAY_US - 1
_KIND = "copy"

Columns = tuple[PlannedColumn, ...]
_FixedCast = Callable[[npt.NDArray[Any], Mask | None, PlannedColumn], Cast]


class _Rows(Buffer):
    """Copied rows, joined by their reader."""

    __slots__ = ("index",)

    def __init__(self, buffer: bytearray, lengths: array[int]) -> None:
        start, end = bounds(np.asarray(lengths, np.int64), least=2, kind=_KIND)
        if len(buffer) != (end[-1] if len(end) else 0):
            raise located("the rows are not as long as they say", _KIND, len(buffer))
        buffer += PADDING
        super().__init__(buffer, end, start)
        self.index: Positions = np.arange(len(start))

    def kind_at(self, index: int) -> str:
        return _KIND

    def check(self, good: Mask, what: str) -> None:
        check(self, self.index, good, what)


@dataclass(slots=True)
class _Cells:
    """One column of all rows: where its bytes lie, and which rows are null (None: not one)."""

    start: Positions
    end: Positions
    null: Mask | None


def decode_rows(buffer: bytearray, lengths: array[int], schema: TableSchema, lsn: Lsn) -> pa.RecordBatch:
    """One batch of rows in the lake's shape; copied rows carry the snapshot's LSN - 1.

    ``buffer`` holds the rows one after the other, and is ours from here on; ``lengths`` says how long each is.
    """
    known = plan(schema)
    rows = _Rows(buffer, lengths)
    rows.check(rows.i16[rows.start] == len(known.columns), "the row has another number of columns than its table")
    position = rows.start + 2
    casts: list[Cast] = []
    for fixed, columns in groupby(known.columns, lambda column: column.wire in _FIXED):
        found, position = (_read_run if fixed else _read_each)(rows, position, tuple(columns))
        casts += found
    rows.check(position == rows.end, "the row is longer than its columns")
    return pa.RecordBatch.from_arrays(
        [
            *(cast.values for cast in casts),
            vector(np.full(len(rows), lsn - 1, np.int64), pa.int64()),
            vector(np.zeros(len(rows), np.int64), pa.int64()),
            overflow_map(_overflow(known.columns, casts), len(rows)),
        ],
        schema=known.row_schema,
    )


def _overflow(columns: Sequence[PlannedColumn], casts: Sequence[Cast]) -> dict[str, pa.Array]:
    pairs = zip(columns, casts, strict=True)
    return {column.name: cast.overflow for column, cast in pairs if cast.overflow is not None}


def _read_each(rows: _Rows, position: Positions, columns: Columns) -> tuple[list[Cast], Positions]:
    """Columns one by one: what each holds, and where the last ends."""
    casts = []
    for column in columns:
        cells = _read_cells(rows, position)
        if fixed := _FIXED.get(column.wire):
            casts.append(fixed.cast(_read_fixed(rows, cells, fixed.layout), cells.null, column))
        elif column.wire == pg_types.BYTEA:
            casts.append(Cast(text_array(rows, cells.start, cells.end, cells.null, pa.binary())))
        else:
            casts.append(cast_column(rows, cells.start, cells.end, cells.null, column))
        position = cells.end
    return casts, position


def _read_run(rows: _Rows, position: Positions, columns: Columns) -> tuple[list[Cast], Positions]:
    """Neighbours of fixed width: without nulls they are a block of the same layout in each row, fetched at once.

    A gather by position is what costs; so there is one instead of two for each column.
    """
    layout = _run_layout(tuple(column.wire for column in columns))
    end = position + layout.itemsize
    if len(rows) and (end <= rows.end).all():
        view = np.ndarray((len(rows.buffer) - layout.itemsize + 1,), f"V{layout.itemsize}", rows.buffer, 0, (1,))
        block = view[position].view(layout)
        widths = [(f"length{at}", np.dtype(_FIXED[column.wire].layout).itemsize) for at, column in enumerate(columns)]
        if all((block[name] == width).all() for name, width in widths):
            values = [_native(block[f"value{at}"]) for at in range(len(columns))]
            return [_FIXED[c.wire].cast(v, None, c) for c, v in zip(columns, values, strict=True)], end
    return _read_each(rows, position, columns)


@lru_cache(maxsize=4096)
def _run_layout(wires: tuple[int, ...]) -> np.dtype[np.void]:
    fields = [[(f"length{at}", ">i4"), (f"value{at}", _FIXED[wire].layout)] for at, wire in enumerate(wires)]
    return np.dtype([field for pair in fields for field in pair])


def _native(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return values.astype(values.dtype.newbyteorder("="))


def _read_cells(rows: _Rows, position: Positions) -> _Cells:
    """Reads ahead of its check: the padding allows it, and what begins past its row also ends past it."""
    length = rows.i32[position].astype(np.int64)
    start = position + 4
    null = None
    if length.min(initial=0) < 0:
        null = length == -1
        rows.check(null | (length >= 0), "a value of a negative length")
        length[null] = 0
    end = start + length
    rows.check(end <= rows.end, "a value reaches past its row")
    return _Cells(start, end, null)


def _read_fixed(rows: _Rows, cells: _Cells, layout: str) -> npt.NDArray[Any]:
    """Values of a fixed width at unaligned places; nulls read as whatever lies there, and are masked."""
    size = np.dtype(layout).itemsize
    right = cells.end - cells.start == size
    rows.check(right if cells.null is None else right | cells.null, "a value has another width than its type")
    view = np.ndarray((len(rows.buffer) - size + 1,), layout, rows.buffer, 0, (1,))
    return _native(view[cells.start])


def _integers(lake: type[np.integer]) -> _FixedCast:
    def cast(values: npt.NDArray[Any], null: Mask | None, column: PlannedColumn) -> Cast:
        return Cast(vector(values.astype(lake, copy=False), column.lake.arrow, null))

    return cast


def _floats(values: npt.NDArray[Any], null: Mask | None, column: PlannedColumn) -> Cast:
    # There is one NaN in text; in binary it may have a sign (that of -'NaN'::float8).
    odd = np.isnan(values)
    if odd.any():
        values[odd] = np.nan
    return Cast(vector(values, column.lake.arrow, null))


def _booleans(values: npt.NDArray[Any], null: Mask | None, column: PlannedColumn) -> Cast:
    return Cast(booleans(values != 0, null))


def _dates(values: npt.NDArray[Any], null: Mask | None, column: PlannedColumn) -> Cast:
    days = values.astype(np.int64)
    beyond = (days < _MIN_DAY) | (days > _MAX_DAY)
    return _bounded(days, beyond, _EPOCH_DAYS, null, np.int32, column, date_text)


def _timestamps(zone: str | None) -> _FixedCast:
    def text(ticks: int) -> str:
        return timestamp_text(ticks, zone)

    def cast(values: npt.NDArray[Any], null: Mask | None, column: PlannedColumn) -> Cast:
        ticks = values.astype(np.int64, copy=False)
        beyond = (ticks < _MIN_US) | (ticks > _MAX_US)
        return _bounded(ticks, beyond, _EPOCH_US, null, np.int64, column, text)

    return cast


def _bounded(
    raw: npt.NDArray[np.int64],
    beyond: Mask,
    epoch: int,
    null: Mask | None,
    physical: type[np.integer],
    column: PlannedColumn,
    text: Callable[[int], str],
) -> Cast:
    """Values in range as they are; those beyond become null, with the text that Postgres prints as overflow."""
    if null is not None:
        raw = np.where(null, 0, raw)
        beyond = beyond & ~null
    overflow = None
    if beyond.any():
        overflow = _texts(raw, beyond, text)
        raw = np.where(beyond, 0, raw)
        null = beyond if null is None else beyond | null
    return Cast(vector((raw + epoch).astype(physical), column.lake.arrow, null), overflow)


def _texts(raw: npt.NDArray[np.int64], beyond: Mask, text: Callable[[int], str]) -> pa.Array:
    """The texts of what is beyond; nearly always it is the same value many times, infinity."""
    different, which = np.unique(raw[beyond], return_inverse=True)
    places = np.zeros(len(raw), np.int64)
    places[beyond] = which
    return pa.array([text(int(value)) for value in different], pa.string()).take(vector(places, pa.int64(), ~beyond))


@dataclass(frozen=True, slots=True)
class _Fixed:
    """A type of fixed width: how its binary form lies, and what it becomes."""

    layout: str
    cast: _FixedCast


_FIXED: dict[int, _Fixed] = {
    pg_types.BOOL: _Fixed(">u1", _booleans),
    pg_types.INT2: _Fixed(">i2", _integers(np.int32)),
    pg_types.INT4: _Fixed(">i4", _integers(np.int32)),
    pg_types.INT8: _Fixed(">i8", _integers(np.int64)),
    pg_types.OID: _Fixed(">u4", _integers(np.int64)),
    pg_types.FLOAT4: _Fixed(">f4", _floats),
    pg_types.FLOAT8: _Fixed(">f8", _floats),
    pg_types.DATE: _Fixed(">i4", _dates),
    pg_types.TIMESTAMP: _Fixed(">i8", _timestamps(None)),
    pg_types.TIMESTAMPTZ: _Fixed(">i8", _timestamps("UTC")),
}
