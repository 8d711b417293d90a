"""The hash of a check: equal for equal rows in any order and batching, and able to differ."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_pgetl.lakehouse.hashing import Digest, digest
from airflow_provider_pgetl.replication.batch import row_schema
from airflow_provider_pgetl.replication.schema import Column, Identity, TableName, TableSchema

UTC = dt.UTC


def _column(number: int, name: str, oid: int, element: int = 0, typmod: int = -1) -> Column:
    return Column(
        name=name,
        attnum=number,
        type_oid=oid,
        base_oid=oid,
        typmod=typmod,
        typmod_sent=typmod,
        element_oid=element,
        type_name="",
        nullable=True,
    )


SCHEMA = TableSchema(
    1,
    TableName("public", "t"),
    (
        _column(1, "id", 20),
        _column(2, "name", 25),
        _column(3, "amount", 1700, typmod=((10 << 16) | 2) + 4),
        _column(4, "at", 1184),
        _column(5, "day", 1082),
        _column(6, "tags", 1009, element=25),
        _column(7, "raw", 17),
        _column(8, "ok", 16),
        _column(9, "ratio", 701),
    ),
    Identity.DEFAULT,
)

ROW: dict[str, Any] = {
    "id": 1,
    "name": "a",
    "amount": Decimal("1.50"),
    "at": dt.datetime(2026, 1, 1, tzinfo=UTC),
    "day": dt.date(2026, 1, 1),
    "tags": ["x", None, "y"],
    "raw": b"\x00\xff",
    "ok": True,
    "ratio": 0.5,
    "_pgetl_lsn": 7,
    "_pgetl_ordinal": 0,
    "_pgetl_overflow": None,
}


def _digest(*batches: list[dict[str, Any]]) -> Digest:
    shape = row_schema(SCHEMA)
    return digest((pa.RecordBatch.from_pylist(rows, schema=shape) for rows in batches), SCHEMA)


def _rows(count: int) -> list[dict[str, Any]]:
    return [{**ROW, "id": number, "name": f"n{number % 7}", "tags": ["t"] * (number % 3)} for number in range(count)]


def test_order_and_batches_do_not_matter() -> None:
    rows = _rows(50)
    assert _digest(rows) == _digest(rows[30:], [], rows[:30][::-1])
    assert _digest(rows).rows == 50


def test_our_position_does_not_matter() -> None:
    assert _digest([ROW]) == _digest([{**ROW, "_pgetl_lsn": 99, "_pgetl_ordinal": 5}])


def test_no_overflow_and_an_empty_one_are_the_same() -> None:
    assert _digest([ROW]) == _digest([{**ROW, "_pgetl_overflow": []}])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("id", 2),
        ("id", None),
        ("name", "b"),
        ("name", ""),
        ("name", None),
        ("amount", Decimal("1.51")),
        ("at", dt.datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=UTC)),
        ("day", dt.date(2026, 1, 2)),
        ("tags", ["x", "y"]),
        ("tags", [None, "x", "y"]),
        ("tags", []),
        ("tags", None),
        ("raw", b"\x00"),
        ("ok", False),
        ("ok", None),
        ("ratio", float("nan")),
        ("ratio", -0.5),
        ("_pgetl_overflow", [("amount", "NaN")]),
    ],
)
def test_one_other_value_is_another_hash(name: str, value: object) -> None:
    assert _digest([ROW]) != _digest([{**ROW, name: value}])


def test_values_that_changed_places_are_another_hash() -> None:
    one, two = {**ROW, "id": 1, "name": "b"}, {**ROW, "id": 2, "name": "a"}
    assert _digest([one, two]) != _digest([{**one, "name": "a"}, {**two, "name": "b"}])


def test_a_row_twice_is_another_hash() -> None:
    assert _digest([ROW, ROW]) != _digest([ROW])


def test_overflow_texts_are_told_apart_by_column() -> None:
    one = {**ROW, "amount": None, "day": None}
    first, second = [("amount", "NaN"), ("day", "infinity")], [("amount", "infinity"), ("day", "NaN")]
    assert _digest([{**one, "_pgetl_overflow": first}]) == _digest([{**one, "_pgetl_overflow": first[::-1]}])
    assert _digest([{**one, "_pgetl_overflow": first}]) != _digest([{**one, "_pgetl_overflow": second}])


def test_no_rows_hash_to_nothing() -> None:
    assert _digest() == _digest([]) == Digest(0, 0, 0)
