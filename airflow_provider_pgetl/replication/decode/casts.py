"""Postgres text to lake types: the one table of casts that copy and stream share.

A cast never changes a value. What the lake type can't hold becomes null, and its text goes into the overflow.
Arrow casts the whole column at once; only when that fails is the column looked at value by value, by regex.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_pgetl.replication.decode import arrays
from airflow_provider_pgetl.replication.decode.columns import text_array
from airflow_provider_pgetl.replication.decode.frames import Buffer, Positions
from airflow_provider_pgetl.replication.decode.plan import PlannedColumn
from airflow_provider_pgetl.replication.decode.vectors import Mask, booleans, mask, validity, vector
from airflow_provider_pgetl.replication.errors import DecodeError
from airflow_provider_pgetl.replication.pg_types import Kind, LakeType

_DAY = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
# What the Arrow cast of a kind takes; the rest of what Postgres prints for it is overflow.
_HOLDS = {
    Kind.DATE: f"^{_DAY}$",
    Kind.TIMESTAMP_NTZ: f"^{_DAY} [0-9:.]+$",
    Kind.TIMESTAMP: rf"^{_DAY} [0-9:.]+\+00$",
}


def _hex_pairs() -> npt.NDArray[np.uint16]:
    """Two hex digits, read as one native 16-bit number, to their byte; 256 for anything else."""
    pairs = np.full(65536, 256, np.uint16)
    for value in range(256):
        pairs[np.frombuffer(f"{value:02x}".encode(), np.uint16)[0]] = value
    return pairs


_BINARY = LakeType(Kind.BINARY)
_HEX_PAIRS = _hex_pairs()
_HEX_PREFIX = np.frombuffer(b"\\x", np.uint16)[0]


@dataclass(frozen=True, slots=True)
class Cast:
    """A column in its lake type; ``overflow`` holds the text of what it can't hold, None if there is none."""

    values: pa.Array
    overflow: pa.Array | None = None


def cast_column(
    frames: Buffer,
    start: Positions,
    end: Positions,
    absent: Mask | None,
    column: PlannedColumn,
    rows: Positions | None = None,
) -> Cast:
    """Read a column's texts from the buffer and cast them; an error names the message at fault.

    ``rows`` are the indexes of the messages, None if there is one for each value.
    """

    def attempt(low: int, high: int) -> Cast:
        part = slice(low, high)
        return cast_text(
            text_array(frames, start[part], end[part], None if absent is None else absent[part]), column.lake
        )

    try:
        return attempt(0, len(start))
    except DecodeError as error:
        bad = _first_bad(attempt, len(start))
        index = bad if rows is None else int(rows[bad])
        frames.fail(index, f"{error.message}, in column {column.name!r}", error.hint)


def _first_bad(attempt: Callable[[int, int], object], high: int) -> int:
    """Which value alone brings the error."""
    low = 0
    while high - low > 1:
        middle = (low + high) // 2
        try:
            attempt(low, middle)
        except DecodeError:
            high = middle
        else:
            low = middle
    return low


def cast_text(text: pa.Array, lake: LakeType) -> Cast:
    """Cast a column of Postgres' text forms."""
    if lake.kind is Kind.STRING:
        return Cast(text)
    if lake.kind is Kind.BOOLEAN:
        return Cast(_booleans(text))
    if lake.kind is Kind.BINARY:
        return Cast(_unhex(text))
    if lake.element is not None:
        return _cast_arrays(text, lake)
    try:
        return Cast(pc.cast(text, lake.arrow))
    except pa.ArrowInvalid:
        return _cast_some(text, lake)


def _cast_some(text: pa.Array, lake: LakeType) -> Cast:
    pattern = _decimal_pattern(lake) if lake.kind is Kind.DECIMAL else _HOLDS.get(lake.kind)
    if pattern is None:
        raise _not_a(lake)
    held = pc.match_substring_regex(text, pattern)
    try:
        values = pc.cast(pc.if_else(held, text, None), lake.arrow)
    except pa.ArrowInvalid:
        # Arrow's message quotes the value, which must not reach a log: no cause.
        raise _not_a(lake) from None
    return Cast(values, pc.if_else(held, None, text))


def _decimal_pattern(lake: LakeType) -> str:
    """So many digits before the point and after it; NaN, Infinity and what is too wide do not match."""
    fraction = rf"(\.[0-9]{{1,{lake.scale}}})?" if lake.scale else ""
    return rf"^-?0*[0-9]{{0,{lake.precision - lake.scale}}}{fraction}$"


def _not_a(lake: LakeType) -> DecodeError:
    return DecodeError(f"a value is not of type {lake.sql}", kind="t")


def _booleans(text: pa.Array) -> pa.Array:
    values = pc.equal(text, "t")
    if not pc.all(pc.or_(values, pc.equal(text, "f")), min_count=0).as_py():
        raise DecodeError("a value is not of type boolean", kind="t")
    return values


def _cast_arrays(text: pa.Array, lake: LakeType) -> Cast:
    assert lake.element is not None
    split = arrays.split(text)
    elements = cast_text(split.elements, lake.element)
    values = pa.ListArray.from_arrays(
        vector(split.offsets, pa.int32(), _list_mask(split.absent)), elements.values, type=lake.arrow
    )
    spilled = split.spilled
    if elements.overflow is not None:
        spilled = spilled | arrays.any_in_list(split.offsets, mask(elements.overflow.is_valid()))
    if not spilled.any():
        return Cast(values)
    kept = booleans(~spilled)
    return Cast(pc.if_else(kept, values, None), pc.if_else(kept, None, text))


def _list_mask(absent: Mask) -> Mask | None:
    """A null offset makes a null list; the last offset only closes the array."""
    return np.append(absent, False) if absent.any() else None


def _unhex(text: pa.Array) -> pa.Array:
    r"""bytea in hex form (``\x6162``) to bytes: all pairs of digits at once, then without the prefixes."""
    offsets, data = arrays.buffers(text)
    lengths = np.diff(offsets)
    filled = lengths > 0  # a null has no bytes; a value has at least its prefix
    if (lengths % 2).any() or (~filled & mask(text.is_valid())).any():
        raise _not_a(_BINARY)
    pairs = data.view(np.uint16)
    prefixes = offsets[:-1][filled] // 2
    decoded = _HEX_PAIRS[pairs]
    if (pairs[prefixes] != _HEX_PREFIX).any():
        raise _not_a(_BINARY)
    decoded = np.delete(decoded, prefixes)
    if (decoded > 255).any():
        raise _not_a(_BINARY)
    ends = np.cumsum(np.where(filled, lengths // 2 - 1, 0), dtype=np.int32)
    starts = np.concatenate([np.zeros(1, np.int32), ends])
    null = mask(text.is_null()) if text.null_count else None
    return pa.Array.from_buffers(
        pa.binary(),
        len(text),
        [validity(null), pa.py_buffer(starts), pa.py_buffer(decoded.astype(np.uint8))],
    )
