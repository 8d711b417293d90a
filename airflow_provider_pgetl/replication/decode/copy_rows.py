"""Rows of a binary COPY as Arrow, by the same walk as the stream's tuples.

Fixed-width types are read as NumPy views; everything else arrives as text and goes through the stream's casts,
so that a row copied and the same row streamed are identical.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_provider_pgetl.replication import pg_types
from airflow_provider_pgetl.replication.batch import lake_column, row_schema
from airflow_provider_pgetl.replication.decode.casts import Cast, cast_text
from airflow_provider_pgetl.replication.decode.columns import NULL, TEXT, Field, text_array
from airflow_provider_pgetl.replication.decode.dates import date_text, timestamp_text
from airflow_provider_pgetl.replication.decode.frames import Frames, Positions
from airflow_provider_pgetl.replication.decode.overflow import overflow_map
from airflow_provider_pgetl.replication.errors import DecodeError
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.pg_types import lake_type
from airflow_provider_pgetl.replication.schema import Column, TableSchema

# Postgres counts days and microseconds from 2000-01-01, the lake from 1970-01-01.
_EPOCH_DAYS = 10_957
_EPOCH_US = 946_684_800_000_000
_DAY_US = 86_400_000_000
# The years 1 to 9999, counted from 2000-01-01: what the lake's dates hold.
_MIN_DAY, _MAX_DAY = -730_119, 2_921_939
_MIN_US, _MAX_US = _MIN_DAY * _DAY_US, (_MAX_DAY + 1) * _DAY_US - 1


def decode_rows(raw: Sequence[bytes], schema: TableSchema, lsn: Lsn) -> pa.RecordBatch:
    """One batch of rows in the lake's shape; copied rows carry the snapshot's LSN - 1."""
    frames = Frames(raw, header=0)
    rows = len(frames)
    position = _check_counts(frames, len(schema.columns))
    values: list[pa.Array] = []
    overflow: dict[str, pa.Array] = {}
    for column in schema.columns:
        field = _read_field(frames, position)
        cast = _READERS.get(_wire(column), _read_text)(frames, field, column)
        values.append(cast.values)
        if cast.overflow is not None:
            overflow[lake_column(column.name)] = cast.overflow
        position = field.end
    if not (position == frames.end).all():
        raise DecodeError("a copied row is longer than its columns", kind="copy")
    return pa.RecordBatch.from_arrays(
        [
            *values,
            pa.array(np.full(rows, lsn - 1, np.int64)),
            pa.array(np.zeros(rows, np.int64)),
            overflow_map(overflow, rows),
        ],
        schema=row_schema(schema),
    )


def _check_counts(frames: Frames, columns: int) -> Positions:
    if not (frames.i16[frames.start] == columns).all():
        raise DecodeError("a copied row has another number of columns than its table", kind="copy")
    return frames.start + 2


def _wire(column: Column) -> int:
    return 0 if column.element_oid else column.base_oid


def _read_field(frames: Frames, position: Positions) -> Field:
    if not (position + 4 <= frames.end).all():
        raise DecodeError("a copied row is cut short", kind="copy")
    length = frames.i32[position].astype(np.int64)
    null = length < 0
    start = position + 4
    end = start + np.where(null, 0, length)
    if not (end <= frames.end).all():
        raise DecodeError("a copied value reaches past its row", kind="copy")
    return Field(np.where(null, NULL, TEXT).astype(np.uint8), start, end)


def _fixed(frames: Frames, field: Field, layout: str) -> tuple[npt.NDArray[np.generic], npt.NDArray[np.bool_] | None]:
    """Values of a fixed width at unaligned places; nulls read as whatever lies there, and are masked."""
    size = np.dtype(layout).itemsize
    null = field.kind == NULL
    if not (null | (field.end - field.start == size)).all():
        raise DecodeError("a copied value has another width than its type", kind="copy")
    view = np.ndarray((len(frames.buffer) - size + 1,), layout, frames.buffer, 0, (1,))
    values = view[field.start].astype(np.dtype(layout).newbyteorder("="))
    return values, null if null.any() else None


def _plain(layout: str) -> Callable[[Frames, Field, Column], Cast]:
    def read(frames: Frames, field: Field, column: Column) -> Cast:
        values, null = _fixed(frames, field, layout)
        return Cast(pa.array(values, mask=null).cast(lake_type(column).arrow))

    return read


def _read_bool(frames: Frames, field: Field, column: Column) -> Cast:
    values, null = _fixed(frames, field, ">u1")
    return Cast(pa.array(values != 0, mask=null))


def _read_text(frames: Frames, field: Field, column: Column) -> Cast:
    return cast_text(text_array(frames, field), lake_type(column))


def _read_bytes(frames: Frames, field: Field, column: Column) -> Cast:
    return Cast(text_array(frames, field, pa.binary()))


def _read_date(frames: Frames, field: Field, column: Column) -> Cast:
    values, null = _fixed(frames, field, ">i4")
    days = values.astype(np.int64)
    beyond = (days < _MIN_DAY) | (days > _MAX_DAY)
    return _bounded(days + _EPOCH_DAYS, days, beyond, null, pa.int32(), pa.date32(), date_text)


def _timestamp(zone: str | None) -> Callable[[Frames, Field, Column], Cast]:
    def read(frames: Frames, field: Field, column: Column) -> Cast:
        values, null = _fixed(frames, field, ">i8")
        ticks = values.astype(np.int64)
        beyond = (ticks < _MIN_US) | (ticks > _MAX_US)
        shifted = np.where(beyond, 0, ticks) + _EPOCH_US
        kind = pa.timestamp("us", zone)
        return _bounded(shifted, ticks, beyond, null, pa.int64(), kind, lambda t: timestamp_text(t, zone))

    return read


def _bounded(
    values: npt.NDArray[np.int64],
    raw: npt.NDArray[np.int64],
    beyond: npt.NDArray[np.bool_],
    null: npt.NDArray[np.bool_] | None,
    physical: pa.DataType,
    kind: pa.DataType,
    text: Callable[[int], str],
) -> Cast:
    """Values in range as they are; those beyond become null, with the text that Postgres prints as overflow."""
    if null is not None:
        beyond = beyond & ~null
    if not beyond.any():
        return Cast(pa.array(values, mask=null).cast(physical).cast(kind))
    absent = beyond if null is None else beyond | null
    texts = [text(int(raw[row])) if beyond[row] else None for row in range(len(raw))]
    held = np.where(absent, 0, values)
    return Cast(pa.array(held, mask=absent).cast(physical).cast(kind), pa.array(texts, pa.string()))


_READERS: dict[int, Callable[[Frames, Field, Column], Cast]] = {
    pg_types.BOOL: _read_bool,
    pg_types.INT2: _plain(">i2"),
    pg_types.INT4: _plain(">i4"),
    pg_types.INT8: _plain(">i8"),
    pg_types.OID: _plain(">u4"),
    pg_types.FLOAT4: _plain(">f4"),
    pg_types.FLOAT8: _plain(">f8"),
    pg_types.BYTEA: _read_bytes,
    pg_types.DATE: _read_date,
    pg_types.TIMESTAMP: _timestamp(None),
    pg_types.TIMESTAMPTZ: _timestamp("UTC"),
}
