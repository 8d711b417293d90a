"""The one hash of rows for both sides of a check: vectorised, independent of order, batch by batch.

Each value becomes 64 bits, each row the sum of its columns' bits (a place in the row has a seed of its own), a
table the sums of its rows' bits modulo 2^64, twice with other seeds. Ours (``_pgetl_lsn``, ``_pgetl_ordinal``) are
left out: copied and streamed rows differ there. The overflow texts are in: a NULL with a text is another value.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_pgetl.replication.batch import row_schema
from airflow_provider_pgetl.replication.schema import TableSchema

Bits = npt.NDArray[np.uint64]

_LEFT_OUT = frozenset({"_pgetl_lsn", "_pgetl_ordinal"})
_NULL = np.uint64(0x9E3779B97F4A7C15)
_SEEDS = (0x243F6A8885A308D3, 0x13198A2E03707344)
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Digest:
    """Rows and their hash; digests of parts add up to the digest of the whole."""

    rows: int = 0
    first: int = 0
    second: int = 0

    def __add__(self, other: Digest) -> Digest:
        return Digest(self.rows + other.rows, (self.first + other.first) & _MASK, (self.second + other.second) & _MASK)

    def __str__(self) -> str:
        return f"{self.first:016x}{self.second:016x}"


def digest(batches: Iterable[pa.RecordBatch], schema: TableSchema) -> Digest:
    """The digest of rows in the lake's shape; only one batch is in memory at a time."""
    total = Digest()
    for batch in batches:
        total += digest_batch(batch, schema)
    return total


def digest_batch(batch: pa.RecordBatch, schema: TableSchema) -> Digest:
    """The digest of one batch; columns are found by name and brought to the types of the lake's shape first."""
    rows = np.zeros(batch.num_rows, np.uint64)
    wanted = [field for field in row_schema(schema) if field.name not in _LEFT_OUT]
    for place, field in enumerate(wanted, 1):
        values = batch.column(batch.schema.get_field_index(field.name))
        rows += _mix(_bits(values.cast(field.type)) + _mix(np.full(1, place, np.uint64)))
    first, second = (int(_mix(rows ^ np.uint64(seed)).sum(dtype=np.uint64)) for seed in _SEEDS)
    return Digest(batch.num_rows, first, second)


def _mix(bits: Bits) -> Bits:
    """splitmix64's last step: every bit of the input moves every bit of the output."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def _bits(values: pa.Array) -> Bits:
    """64 bits for each value; equal values have equal bits, whatever their buffers look like."""
    kind = values.type
    if pa.types.is_map(kind):
        return _map_bits(values)
    if pa.types.is_list(kind):
        bits = _list_bits(values)
    elif pa.types.is_floating(kind):
        bits = _float_bits(values)
    elif pa.types.is_string(kind) or pa.types.is_binary(kind):
        bits = _text_bits(values)
    elif pa.types.is_decimal(kind):
        bits = _text_bits(values.cast(pa.string()))
    else:
        bits = _integer_bits(values)
    missing = values.is_null().to_numpy(zero_copy_only=False)
    return np.where(missing, _NULL, bits) if missing.any() else bits


def _integer_bits(values: pa.Array) -> Bits:
    """Booleans, integers, dates and timestamps by their numbers."""
    kind = values.type
    if pa.types.is_boolean(kind) or pa.types.is_date32(kind):
        values = values.cast(pa.int32()) if pa.types.is_date32(kind) else values.cast(pa.int8())
    numbers = pc.fill_null(values.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    return _mix(numbers.astype(np.int64).view(np.uint64))


def _float_bits(values: pa.Array) -> Bits:
    numbers = pc.fill_null(values.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False)
    # There are many NaNs, and one is meant.
    plain = np.where(np.isnan(numbers), np.nan, numbers)
    return _mix(plain.view(np.uint64))


def _text_bits(values: pa.Array) -> Bits:
    unique = values.dictionary_encode()
    hashed = pd.util.hash_array(unique.dictionary.to_numpy(zero_copy_only=False).astype(object), categorize=False)
    if not len(hashed):
        return np.zeros(len(values), np.uint64)
    codes = pc.fill_null(unique.indices, 0).to_numpy(zero_copy_only=False)
    return _mix(np.asarray(hashed, np.uint64)[codes])


def _list_bits(values: pa.Array) -> Bits:
    lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    elements = _bits(values.flatten())
    ends = np.cumsum(lengths)
    places = np.arange(len(elements)) - np.repeat(ends - lengths, lengths)
    return _mix(_sums(_mix(elements + _mix(places.astype(np.uint64))), ends, lengths) + lengths.astype(np.uint64))


def _map_bits(values: pa.Array) -> Bits:
    """Entries in any order; no map is an empty map."""
    entries = values.cast(pa.list_(pa.struct([pa.field("k", pa.string()), pa.field("v", pa.string())])))
    lengths = pc.fill_null(pc.list_value_length(entries), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    flat = entries.flatten()
    pairs = _mix(_bits(pc.struct_field(flat, "k")) + _mix(_bits(pc.struct_field(flat, "v"))))
    return _mix(_sums(pairs, np.cumsum(lengths), lengths))


def _sums(bits: Bits, ends: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> Bits:
    """The sum of each row's stretch of ``bits``."""
    running: Bits = np.concatenate([np.zeros(1, np.uint64), np.cumsum(bits, dtype=np.uint64)])
    sums: Bits = running[ends] - running[ends - lengths]
    return sums
