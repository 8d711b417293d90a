"""Casts of whole columns: values, what overflows, arrays; and the table of types that people read."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_pgetl.replication.decode.casts import cast_text
from airflow_provider_pgetl.replication.decode.overflow import overflow_map
from airflow_provider_pgetl.replication.pg_types import CopyForm, Kind, LakeType, copy_form, lake_type, type_table
from airflow_provider_pgetl.replication.schema import Column

PROJECT = Path(__file__).parents[3]
STRINGS = LakeType(Kind.ARRAY, element=LakeType(Kind.STRING))
UNKNOWN_OID = 654_321

TEXTS = st.text(st.sampled_from('ab,{}"\\ \tNUL[]é😀'), max_size=6)


def printed(elements: list[str | None]) -> str:
    """An array as Postgres prints it."""
    return "{" + ",".join(_printed(element) for element in elements) + "}"


def _printed(element: str | None) -> str:
    if element is None:
        return "NULL"
    if element == "" or element.upper() == "NULL" or re.search(r'[\s"\\{},]', element):
        return '"' + re.sub(r'(["\\])', r"\\\1", element) + '"'
    return element


@settings(deadline=None)
@given(st.lists(st.none() | st.lists(st.none() | TEXTS, max_size=4), max_size=6), st.integers(0, 2))
def test_arrays_are_taken_apart_as_they_were_printed(rows: list[list[str | None] | None], skipped: int) -> None:
    column = pa.array([None if row is None else printed(row) for row in rows], pa.string())
    cast = cast_text(column.slice(skipped), STRINGS)
    assert cast.values.to_pylist() == rows[skipped:]
    assert cast.overflow is None
    cast.values.validate(full=True)


@settings(deadline=None)
@given(st.lists(st.none() | st.binary(max_size=5), max_size=6), st.integers(0, 2))
def test_hex_becomes_its_bytes(rows: list[bytes | None], skipped: int) -> None:
    column = pa.array([None if row is None else f"\\x{row.hex()}" for row in rows], pa.string())
    cast = cast_text(column.slice(skipped), LakeType(Kind.BINARY))
    assert cast.values.to_pylist() == rows[skipped:]
    cast.values.validate(full=True)


def test_arrays_that_no_list_holds_are_kept_as_text() -> None:
    texts = ["{1,2}", "{{1},{2}}", None, "[2:3]={1,2}", "{}", "{NULL}"]
    cast = cast_text(pa.array(texts), LakeType(Kind.ARRAY, element=LakeType(Kind.INT)))
    assert cast.values.to_pylist() == [[1, 2], None, None, None, [], [None]]
    assert cast.overflow.to_pylist() == [None, "{{1},{2}}", None, "[2:3]={1,2}", None, None]
    only = cast_text(pa.array(["{{1}}", None]), LakeType(Kind.ARRAY, element=LakeType(Kind.INT)))
    assert (only.values.to_pylist(), only.overflow.to_pylist()) == ([None, None], ["{{1}}", None])


def test_an_element_that_overflows_takes_its_whole_array_along() -> None:
    cast = cast_text(
        pa.array(["{1.50,NaN}", "{2.25}", None, "{}"]), LakeType(Kind.ARRAY, element=LakeType(Kind.DECIMAL, 6, 2))
    )
    assert cast.values.to_pylist() == [None, [Decimal("2.25")], None, []]
    assert cast.overflow.to_pylist() == ["{1.50,NaN}", None, None, None]


@pytest.mark.parametrize(
    ("lake", "held", "beyond"),
    [
        (
            LakeType(Kind.DECIMAL, 6, 2),
            ["1.50", "-9999.99", "0.00"],
            ["NaN", "Infinity", "10000.00", "1.505", "-Infinity"],
        ),
        (LakeType(Kind.DECIMAL, 2, 2), ["0.99", "-0.01"], ["1.00", "0.999"]),
        (LakeType(Kind.DECIMAL, 38, 0), ["9" * 38, "-" + "9" * 38], ["9" * 39, "1.5"]),
        (LakeType(Kind.DATE), ["0001-01-01", "9999-12-31"], ["infinity", "10000-01-01", "0044-03-15 BC"]),
        (LakeType(Kind.TIMESTAMP_NTZ), ["9999-12-31 23:59:59.999999"], ["-infinity", "0001-01-01 00:00:00 BC"]),
        (LakeType(Kind.TIMESTAMP), ["2024-01-01 00:00:00.1+00"], ["infinity", "10000-01-01 00:00:00+00"]),
    ],
)
def test_a_value_is_held_or_kept_as_text(lake: LakeType, held: list[str], beyond: list[str]) -> None:
    cast = cast_text(pa.array([*held, None, *beyond]), lake)
    values = cast.values.to_pylist()
    assert [value is not None for value in values] == [True] * len(held) + [False] * (1 + len(beyond))
    assert cast.overflow.to_pylist() == [None] * (len(held) + 1) + beyond
    alone = cast_text(pa.array(held), lake)
    assert (alone.values.to_pylist(), alone.overflow) == (values[: len(held)], None)
    if lake.kind is Kind.DECIMAL:
        assert values[: len(held)] == [Decimal(text) for text in held]


@settings(deadline=None)
@given(st.lists(st.tuples(st.none() | TEXTS, st.none() | TEXTS, st.none() | TEXTS), max_size=6))
def test_overflow_is_a_map_for_each_row(rows: list[tuple[str | None, ...]]) -> None:
    names = ("a", "b", "c")
    columns = {name: pa.array([row[at] for row in rows], pa.string()) for at, name in enumerate(names)}
    wanted = [[(name, text) for name, text in zip(names, row, strict=True) if text is not None] or None for row in rows]
    found = overflow_map(columns, len(rows))
    found.validate(full=True)
    assert found.to_pylist() == wanted


def test_a_type_that_nobody_knows_is_text() -> None:
    column = Column("c", 1, UNKNOWN_OID, UNKNOWN_OID, -1, -1, 0, "geometry", True)
    assert lake_type(column) == LakeType(Kind.STRING)
    assert copy_form(column) is CopyForm.PRINT
    array = Column("c", 1, UNKNOWN_OID, UNKNOWN_OID, -1, -1, UNKNOWN_OID + 1, "geometry[]", True)
    assert lake_type(array) == STRINGS
    gone = Column("c", 0, UNKNOWN_OID, 0, -1, -1, 0, "unknown", True)
    assert lake_type(gone) == LakeType(Kind.STRING)
    texts = pa.array(["0101000020E6100000", None])
    assert cast_text(texts, lake_type(column)).values is texts


@pytest.mark.parametrize("name", ["README.md", "docs/types.md"])
def test_the_table_that_people_read_is_the_engines_own(name: str) -> None:
    found = re.search(r"<!-- types: begin[^\n]*-->\n\n(.*?)\n\n<!-- types: end -->", (PROJECT / name).read_text(), re.S)
    assert found is not None
    assert found[1] == type_table(), "print it by: python -m airflow_provider_pgetl.replication.pg_types"
