"""Bytes that lie, on both paths: one typed error that names kind and offset and shows no value, or a result."""

from __future__ import annotations

import random
import struct
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from airflow_provider_pgetl.replication.decode import frames as decode_frames
from airflow_provider_pgetl.replication.decode.casts import cast_text
from airflow_provider_pgetl.replication.decode.copy_rows import decode_rows
from airflow_provider_pgetl.replication.decode.decoder import Decoder
from airflow_provider_pgetl.replication.errors import DecodeError
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.pg_types import Kind, LakeType
from airflow_provider_pgetl.replication.schema import Column, Identity, TableName, TableSchema
from tests.unit.replication import wire

SECRET = "s3cr3t"
TYPES = {"b": 16, "i": 23, "f": 701, "x": 17, "d": 1082, "ts": 1114, "tz": 1184, "n": 1700, "t": 25, "l": 1009}

BROKEN_ARRAYS = [
    *("", "x", "{", "}", "{a", "a}", "{a}b", "{a,}", "{,a}", "{,}", '{"a}', '{"a"b}', '{a"b"}', '{"a""b"}', "{a}{b}"),
    *('{"a\\', '{"a\\"}', "{a}}", "{a{b}}", '{"}', "{\\}", '{a"}', "[1:1]", "{a},{b}"),
]


def lenient(relation: Any, lsn: Lsn) -> TableSchema:
    """A damaged relation may describe anything; what it is resolved to is not the decoder's matter."""
    return wire.schema(relation_id=relation.relation_id)


def stream_frames() -> list[bytes]:
    return [
        wire.begin(100),
        wire.relation(wire.schema()),
        wire.insert(1, SECRET, SECRET * 5),
        wire.update(2, wire.UNCHANGED, SECRET, key=[1, None, None]),
        wire.update(2, wire.UNCHANGED, SECRET, old=[1, SECRET, None]),
        wire.delete(2, None, None),
        wire.truncate(7),
        wire.message("p", b"content"),
        wire.commit(100, 110),
    ]


def wide_schema() -> TableSchema:
    """A table with a column of each kind that a copy reads."""
    columns = [
        Column(
            name, number, oid, oid, ((12 << 16) | 2) + 4 if name == "n" else -1, -1, 25 if name == "l" else 0, "", True
        )
        for number, (name, oid) in enumerate(TYPES.items(), 1)
    ]
    return TableSchema(9, TableName("public", "w"), tuple(columns), Identity.DEFAULT)


def copied_row(*cells: bytes | None) -> bytes:
    out = struct.pack(">h", len(cells))
    for cell in cells:
        out += struct.pack(">i", -1) if cell is None else struct.pack(">i", len(cell)) + cell
    return out


def wide_rows() -> list[bytes]:
    numbers = [b"\1", struct.pack(">i", 5), struct.pack(">d", 1.5), b"\0\xff"]
    times = [struct.pack(">i", 2**31 - 1), struct.pack(">q", 7), struct.pack(">q", -(2**63))]
    texts = [b"12.50", SECRET.encode(), f'{{{SECRET},"a\\"b",NULL}}'.encode()]
    return [copied_row(*numbers, *times, *texts), copied_row(*([None] * len(TYPES)))]


def decode_copy(rows: list[bytes]) -> pa.RecordBatch:
    return decode_rows(bytearray(b"".join(rows)), array("q", map(len, rows)), wide_schema(), Lsn(5))


def attempt(run: Callable[[], object]) -> DecodeError | None:
    """The error, which must be of the one kind and must not show what the bytes hold."""
    found: list[DecodeError] = []
    try:
        run()
    except DecodeError as error:
        found.append(error)
    for error in found:
        assert SECRET not in str(error)
        assert repr(error.kind) in error.message
        assert str(error.offset) in error.message or error.offset == 0
        assert error.__cause__ is None
    return found[0] if found else None


def test_undamaged_bytes_are_read() -> None:
    assert attempt(lambda: Decoder(lenient).decode(stream_frames())) is None
    assert decode_copy(wide_rows()).num_rows == 2


def test_rows_without_nulls_are_read_like_those_with() -> None:
    """Neighbours of fixed width are fetched at once where nothing is null, else one by one."""
    full, empty = wide_rows()
    alone, beside = decode_copy([full, full]), decode_copy([full, empty, full])
    assert alone.slice(1).equals(alone.slice(0, 1))
    assert beside.slice(0, 1).equals(alone.slice(0, 1))
    assert beside.slice(2).equals(alone.slice(0, 1))
    assert set(beside.slice(1, 1).to_pylist()[0].values()) == {None, 4, 0}
    assert alone.to_pylist()[0]["_pgetl_overflow"] == [("d", "infinity"), ("tz", "-infinity")]


@pytest.mark.parametrize("victim", range(9))
def test_a_frame_cut_at_any_byte_is_an_error(victim: int) -> None:
    whole = stream_frames()
    for length in range(len(whole[victim])):
        frames = [*whole[:victim], whole[victim][:length], *whole[victim + 1 :]]
        assert attempt(lambda frames=frames: Decoder(lenient).decode(frames)) is not None, length


@pytest.mark.parametrize("victim", range(2))
def test_a_copied_row_cut_at_any_byte_is_an_error(victim: int) -> None:
    whole = wide_rows()
    for length in range(len(whole[victim])):
        rows = [*whole[:victim], whole[victim][:length], *whole[victim + 1 :]]
        assert attempt(lambda rows=rows: decode_copy(rows)) is not None, length


@pytest.mark.parametrize("victim", range(9))
def test_a_flipped_bit_is_an_error_or_a_value(victim: int) -> None:
    whole = stream_frames()
    for bit in range(25 * 8, len(whole[victim]) * 8):
        frames = [*whole[:victim], _flip(whole[victim], bit), *whole[victim + 1 :]]
        attempt(lambda frames=frames: Decoder(lenient).decode(frames))


def test_a_flipped_bit_of_a_copied_row_is_an_error_or_a_value() -> None:
    whole = wide_rows()
    for victim, row in enumerate(whole):
        for bit in range(len(row) * 8):
            rows = [*whole[:victim], _flip(row, bit), *whole[victim + 1 :]]
            attempt(lambda rows=rows: decode_copy(rows))


def _flip(data: bytes, bit: int) -> bytes:
    return bytes(byte ^ (1 << bit % 8) if at == bit // 8 else byte for at, byte in enumerate(data))


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes_are_an_error_or_a_value(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(40):
        frames = stream_frames()
        victim = chance.randrange(len(frames))
        kind = bytes([chance.choice(np.flatnonzero(decode_frames.IS_KNOWN).tolist())])
        frames[victim] = frames[victim][:25] + kind + chance.randbytes(chance.randrange(80))
        attempt(lambda frames=frames: Decoder(lenient).decode(frames))
        rows = wide_rows()
        row = rows[0]
        at = chance.randrange(len(row))
        rows[0] = row[:at] + chance.randbytes(chance.randrange(1, 9)) + row[at + chance.randrange(9) :]
        attempt(lambda rows=rows: decode_copy(rows))


@pytest.mark.parametrize("length", [-1, -2, -(2**31), 2**31 - 1, 2**31 - 30, 41])
def test_a_length_that_lies_is_an_error(length: int) -> None:
    before = wire.frame(b"I" + struct.pack(">I", 7) + b"N" + struct.pack(">H", 3))
    for cells in (
        b"t" + struct.pack(">i", length) + b"1" * 40,
        b"t" + struct.pack(">i", 1) + b"1" + b"t" + struct.pack(">i", length) + b"x" * 30 + b"n",
    ):
        frames = [wire.begin(1), wire.relation(wire.schema()), before + cells]
        error = attempt(lambda frames=frames: Decoder(lenient).decode(frames))
        assert error is not None
        assert (error.kind, error.offset) == ("I", len(frames[0]) + len(frames[1]))


@pytest.mark.parametrize("length", [-2, -(2**31), 2**31 - 1, 500])
def test_a_copied_length_that_lies_is_an_error(length: int) -> None:
    good, other = wide_rows()
    error = attempt(lambda: decode_copy([other, good[:2] + struct.pack(">i", length) + good[6:]]))
    assert error is not None
    assert (error.kind, error.offset) == ("copy", len(other))


@pytest.mark.parametrize("count", [0, 2, 4, 65535])
def test_another_number_of_columns_is_an_error(count: int) -> None:
    body = b"I" + struct.pack(">I", 7) + b"N" + struct.pack(">H", count) + b"n" * 3
    frames = [wire.begin(1), wire.relation(wire.schema()), wire.frame(body)]
    error = attempt(lambda: Decoder(lenient).decode(frames))
    assert error is not None
    assert "number of columns" in error.message


@pytest.mark.parametrize("count", [2, 2**30, 2**32 - 1])
def test_a_truncate_of_more_tables_than_it_names_is_an_error(count: int) -> None:
    frames = [wire.begin(1), wire.frame(b"T" + struct.pack(">IBI", count, 0, 7))]
    assert attempt(lambda: Decoder(lenient).decode(frames)) is not None


def test_values_in_binary_form_name_the_option() -> None:
    cells = b"b" + struct.pack(">i", 4) + bytes(4) + b"nn"
    body = b"I" + struct.pack(">I", 7) + b"N" + struct.pack(">H", 3) + cells
    error = attempt(lambda: Decoder(lenient).decode([wire.begin(1), wire.relation(wire.schema()), wire.frame(body)]))
    assert error is not None
    assert "binary" in error.message
    assert "'binary'" in error.hint


def test_an_error_names_the_column_and_the_message_at_fault() -> None:
    good = wire.insert(1, "a", "b")
    frames = [wire.begin(1), wire.relation(wire.schema()), good, good, wire.insert(SECRET, "a", "b"), good]
    error = attempt(lambda: Decoder(lenient).decode(frames))
    assert error is not None
    assert "'id'" in error.message
    assert error.offset == sum(map(len, frames[:4]))


def test_text_that_is_not_utf8_is_an_error() -> None:
    bad = wire.insert(1, "abcd", "b").replace(b"abcd", b"ab\xff\xfe")
    frames = [wire.begin(1), wire.relation(wire.schema()), wire.insert(1, "a", "b"), bad]
    error = attempt(lambda: Decoder(lenient).decode(frames))
    assert error is not None
    assert (error.kind, error.offset) == ("I", sum(map(len, frames[:3])))
    assert "UTF-8" in error.message
    rows = wide_rows()
    rows[0] = rows[0].replace(SECRET.encode(), b"\xc3\x28\xff\xff\xff\xff", 1)
    assert attempt(lambda: decode_copy(rows)) is not None


def test_a_batch_past_two_gigabytes_is_refused_before_it_is_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_frames, "MAX_BUFFER", 300)
    error = attempt(lambda: Decoder(lenient).decode(stream_frames()))
    assert error is not None
    assert "2 GB" in error.message
    assert attempt(lambda: decode_copy(wide_rows() * 3)) is not None


@pytest.mark.parametrize(
    "text",
    BROKEN_ARRAYS,
)
def test_an_array_that_is_none_is_an_error_or_kept_as_text(text: str) -> None:
    strings = LakeType(Kind.ARRAY, element=LakeType(Kind.STRING))
    for before, after in (([], []), (["{x}"], ["{y}"]), ([None, '{"q"}'], ["{}"])):
        column = pa.array([*before, text, *after], pa.string())
        try:
            cast = cast_text(column, strings)
        except DecodeError:
            continue
        assert text.startswith("["), "only a text with bounds is kept as it is"
        assert cast.overflow.to_pylist()[len(before)] == text


@pytest.mark.parametrize(
    ("text", "lake"),
    [
        ("true", LakeType(Kind.BOOLEAN)),
        ("", LakeType(Kind.BOOLEAN)),
        ("x", LakeType(Kind.INT)),
        ("2147483648", LakeType(Kind.INT)),
        ("1.5.5", LakeType(Kind.DOUBLE)),
        ("", LakeType(Kind.BINARY)),
        ("ab", LakeType(Kind.BINARY)),
        ("\\xa", LakeType(Kind.BINARY)),
        ("\\xAG", LakeType(Kind.BINARY)),
        ("\\000", LakeType(Kind.BINARY)),
        ("2024-13-45", LakeType(Kind.DATE)),
        ("2024-01-01 25:00:00", LakeType(Kind.TIMESTAMP_NTZ)),
    ],
)
def test_a_text_that_its_type_never_prints_is_an_error(text: str, lake: LakeType) -> None:
    with pytest.raises(DecodeError, match=lake.sql):
        cast_text(pa.array([None, text]), lake)
