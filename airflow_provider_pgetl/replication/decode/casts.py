"""Postgres text to lake types: the one table of casts that copy and stream share.

A cast never changes a value. What the lake type can't hold becomes null, and its text goes into the overflow.
Arrow casts the whole column at once; only when that fails is the column looked at value by value, by regex.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_pgetl.replication.decode import arrays
from airflow_provider_pgetl.replication.errors import DecodeError
from airflow_provider_pgetl.replication.pg_types import Kind, LakeType

# What the Arrow cast of a kind takes; the rest of what Postgres prints for it is overflow.
_HOLDS = {
    Kind.DECIMAL: r"^-?[0-9]+(\.[0-9]+)?$",
    Kind.DATE: r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$",
    Kind.TIMESTAMP_NTZ: r"^[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:.]+$",
    Kind.TIMESTAMP: r"^[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:.]+\+00$",
}

_HEX = np.full(256, 255, np.uint8)
_HEX[np.frombuffer(b"0123456789", np.uint8)] = np.arange(10)
_HEX[np.frombuffer(b"abcdef", np.uint8)] = np.arange(10, 16)


@dataclass(frozen=True, slots=True)
class Cast:
    """A column in its lake type; ``overflow`` holds the text of what it can't hold, None if there is none."""

    values: pa.Array
    overflow: pa.Array | None = None


def cast_text(text: pa.Array, lake: LakeType) -> Cast:
    """Cast a column of Postgres' text forms."""
    if lake.kind is Kind.STRING:
        return Cast(text)
    if lake.kind is Kind.BOOLEAN:
        return Cast(pc.equal(text, "t"))
    if lake.kind is Kind.BINARY:
        return Cast(_unhex(text))
    if lake.element is not None:
        return _cast_arrays(text, lake)
    try:
        return Cast(pc.cast(text, lake.arrow))
    except pa.ArrowInvalid:
        return _cast_some(text, lake)


def _cast_some(text: pa.Array, lake: LakeType) -> Cast:
    pattern = _HOLDS.get(lake.kind)
    if pattern is None:
        raise DecodeError(f"a value is not a {lake.sql}", kind="t")
    held = pc.match_substring_regex(text, pattern)
    try:
        values = pc.cast(pc.if_else(held, text, None), lake.arrow)
    except pa.ArrowInvalid:
        # Arrow's message quotes the value, which must not reach a log: no cause.
        raise DecodeError(f"a value is not a {lake.sql}", kind="t") from None
    return Cast(values, pc.if_else(held, None, text))


def _cast_arrays(text: pa.Array, lake: LakeType) -> Cast:
    assert lake.element is not None
    split = arrays.split(text)
    elements = cast_text(split.elements, lake.element)
    values = pa.ListArray.from_arrays(
        pa.array(split.offsets, mask=_list_mask(split.absent)), elements.values, type=lake.arrow
    )
    spilled = split.spilled
    if elements.overflow is not None:
        spilled = spilled | arrays.any_in_list(split.offsets, elements.overflow.is_valid().to_numpy(False))
    if not spilled.any():
        return Cast(values)
    kept = pa.array(~spilled)
    return Cast(pc.if_else(kept, values, None), pc.if_else(kept, None, text))


def _list_mask(absent: np.ndarray) -> np.ndarray | None:
    """A null offset makes a null list; the last offset only closes the array."""
    return np.append(absent, False) if absent.any() else None


def _unhex(text: pa.Array) -> pa.Array:
    r"""bytea in hex form (``\x6162``) to bytes."""
    text = pa.concat_arrays([text]) if text.offset else text
    offsets = np.frombuffer(text.buffers()[1], np.int32, len(text) + 1)
    lengths = np.diff(offsets)
    filled = lengths > 0  # a null has no bytes; a value has at least its prefix
    data = np.frombuffer(text.buffers()[2] or b"", np.uint8)[: offsets[-1]]
    keep = np.ones(len(data), np.bool_)
    keep[offsets[:-1][filled]] = False
    keep[offsets[:-1][filled] + 1] = False
    nibbles = _HEX[data[keep]]
    if (nibbles == 255).any() or (lengths[filled] % 2).any():
        raise DecodeError("a bytea value is not in hex form", kind="t")
    decoded = (nibbles[0::2] << 4) | nibbles[1::2]
    ends = np.cumsum(np.where(filled, (lengths - 2) // 2, 0), dtype=np.int32)
    starts = np.concatenate([np.zeros(1, np.int32), ends])
    return pa.Array.from_buffers(
        pa.binary(),
        len(text),
        [text.buffers()[0], pa.py_buffer(starts), pa.py_buffer(decoded.tobytes())],
        null_count=text.null_count,
    )
