"""The changes of one table as Arrow, in the shape of ``batch.change_schema``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_provider_pgetl.replication.batch import UNCHANGED_TYPE
from airflow_provider_pgetl.replication.decode import frames as wire
from airflow_provider_pgetl.replication.decode.casts import cast_column
from airflow_provider_pgetl.replication.decode.columns import UNCHANGED, Field, Tuples, read_tuples
from airflow_provider_pgetl.replication.decode.frames import BODY, Frames, Positions
from airflow_provider_pgetl.replication.decode.overflow import overflow_map
from airflow_provider_pgetl.replication.decode.plan import Plan, PlannedColumn, plan
from airflow_provider_pgetl.replication.decode.vectors import vector
from airflow_provider_pgetl.replication.schema import TableSchema

_NEW, _KEY, _OLD = b"NKO"
_OPS = pa.array(["i", "u", "d"])
_UTC_US = pa.timestamp("us", "UTC")

Numbers = npt.NDArray[np.int64]


@dataclass(slots=True)
class _Images:
    """The rows' images: the new one (of a delete: the old one), and the old one where an update sent it."""

    image: list[Field]
    old: list[Field]
    old_rows: Positions


def decode_changes(
    frames: Frames, schema: TableSchema, rows: Positions, commit_lsn: Numbers, ordinal: Numbers, at: Numbers
) -> pa.RecordBatch:
    """Decode the inserts, updates and deletes at ``rows`` (indexes of frames of this table, in order)."""
    known = plan(schema)
    images = _read_images(frames, rows, len(known.columns))
    values: list[pa.Array] = []
    overflow: dict[str, pa.Array] = {}
    for column, field in zip(known.columns, images.image, strict=True):
        cast = cast_column(frames, field.start, field.end, field.absent, column, rows)
        values.append(cast.values)
        if cast.overflow is not None:
            overflow[column.name] = cast.overflow
    return pa.RecordBatch.from_arrays(
        [
            _OPS.take(vector(_operations(frames.kind[rows]), pa.int8())),
            vector(commit_lsn, pa.int64()),
            vector(ordinal, pa.int64()),
            vector(at, _UTC_US),
            _unchanged(known.columns, images.image, len(rows)),
            _old_struct(frames, known, images, rows),
            overflow_map(overflow, len(rows)),
            *values,
        ],
        schema=known.change_schema,
    )


def truncate_change(schema: pa.Schema, commit_lsn: int, ordinal: int, at: int) -> pa.RecordBatch:
    """A TRUNCATE: one row without values."""
    row = {"_op": "t", "_commit_lsn": commit_lsn, "_ordinal": ordinal}
    arrays = [pa.array([row.get(field.name)], field.type) for field in schema]
    arrays[3] = pa.array([at], pa.int64()).cast(_UTC_US)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _operations(kinds: npt.NDArray[np.uint8]) -> npt.NDArray[np.int8]:
    return np.where(kinds == wire.INSERT, 0, np.where(kinds == wire.UPDATE, 1, 2)).astype(np.int8)


def _read_images(frames: Frames, rows: Positions, columns: int) -> _Images:
    marker_at = frames.start[rows] + BODY + 4
    marker = frames.byte[marker_at]
    kind = frames.kind[rows]
    with_old = (marker == _KEY) | (marker == _OLD)
    _check_markers(frames, rows, kind, marker, with_old)
    if not with_old.any():
        new = read_tuples(frames, rows, marker_at + 1, columns)
        _check_end(frames, rows, new.end)
        return _Images(new.fields, [], np.empty(0, np.int64))
    old = read_tuples(frames, rows[with_old], marker_at[with_old] + 1, columns)
    return _merge_images(frames, rows, marker_at, with_old, old)


def _merge_images(
    frames: Frames, rows: Positions, marker_at: Positions, with_old: npt.NDArray[np.bool_], old: Tuples
) -> _Images:
    columns = len(old.fields)
    deleted = frames.kind[rows] == wire.DELETE
    _check_end(frames, rows[deleted], old.end[deleted[with_old]])
    # The new tuple of an update with an old image comes after that image and its own marker.
    new_at = marker_at + 1
    new_at[with_old] = old.end + 1
    upserted = ~deleted
    after_old = rows[upserted & with_old]
    ends = old.end[~deleted[with_old]]
    if not ((ends < frames.end[after_old]) & (frames.byte[ends] == _NEW)).all():
        frames.fail(int(after_old[0]), "an update without its new row")
    new = read_tuples(frames, rows[upserted], new_at[upserted], columns)
    _check_end(frames, rows[upserted], new.end)
    full = (frames.byte[marker_at] == _OLD)[with_old]
    updated = ~deleted[with_old]
    image = []
    for new_field, old_field in zip(new.fields, old.fields, strict=True):
        field = Field(np.empty(len(rows), np.uint8), np.empty(len(rows), np.int64), np.empty(len(rows), np.int64))
        field.put(upserted, new_field)
        field.put(deleted, old_field, ~updated)
        _restore(field, with_old, old_field, full & updated)
        image.append(field)
    return _Images(image, [field.take(updated) for field in old.fields], np.flatnonzero(with_old & ~deleted))


def _restore(field: Field, with_old: npt.NDArray[np.bool_], old: Field, full: npt.NDArray[np.bool_]) -> None:
    """A value that did not travel in the new row is the old row's, where the whole old row was sent."""
    missing = field.kind[with_old] == UNCHANGED
    restored = missing & full & (old.kind != UNCHANGED)
    if restored.any():
        field.put(np.flatnonzero(with_old)[restored], old, restored)


def _check_markers(
    frames: Frames,
    rows: Positions,
    kind: npt.NDArray[np.uint8],
    marker: npt.NDArray[np.uint8],
    with_old: npt.NDArray[np.bool_],
) -> None:
    good = np.where(kind == wire.DELETE, with_old, (marker == _NEW) | (with_old & (kind == wire.UPDATE)))
    if not good.all():
        frames.fail(int(rows[good.argmin()]), "a tuple of an unknown kind")


def _check_end(frames: Frames, rows: Positions, end: Positions) -> None:
    good = end == frames.end[rows]
    if not good.all():
        frames.fail(int(rows[good.argmin()]), "the message is longer than its tuple")


def _unchanged(columns: tuple[PlannedColumn, ...], fields: list[Field], rows: int) -> pa.Array:
    """The names of the columns that did not travel, as a list for each row."""
    masks = [(column, field.kind == UNCHANGED) for column, field in zip(columns, fields, strict=True)]
    masks = [(column, mask) for column, mask in masks if mask.any()]
    if not masks:
        return pa.nulls(rows, UNCHANGED_TYPE)
    names = pa.array([column.name for column, _ in masks])
    table = np.stack([mask for _, mask in masks], axis=1)
    counts = table.sum(axis=1)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    values = names.take(vector(np.nonzero(table)[1], pa.int64()))
    absent = np.append(counts == 0, False)
    return pa.ListArray.from_arrays(vector(offsets, pa.int32(), absent), values, type=UNCHANGED_TYPE)


def _old_struct(frames: Frames, known: Plan, images: _Images, rows: Positions) -> pa.Array:
    """The old identity columns of the updates that sent them."""
    if not len(images.old_rows):
        return pa.nulls(len(rows), known.old_type)
    arrays: list[pa.Array] = []
    overflow: dict[str, pa.Array] = {}
    of = rows[images.old_rows]
    for column, field in zip(known.columns, images.old, strict=True):
        if not column.identity:
            continue
        cast = cast_column(frames, field.start, field.end, field.absent, column, of)
        arrays.append(cast.values)
        if cast.overflow is not None:
            overflow[column.name] = cast.overflow
    arrays.append(overflow_map(overflow, len(of)))
    structs = pa.StructArray.from_arrays(arrays, fields=list(known.old_type))
    places = np.zeros(len(rows), np.int32)
    absent = np.ones(len(rows), np.bool_)
    places[images.old_rows] = np.arange(len(of))
    absent[images.old_rows] = False
    return structs.take(vector(places, pa.int32(), absent))
