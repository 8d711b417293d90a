"""Names and literals as SQL text."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pytest

from airflow_provider_pgetl.lakehouse.sql import LakeTable, literal, quote, text
from airflow_provider_pgetl.replication.schema import TableName


def test_identifiers_are_quoted_with_backticks_doubled() -> None:
    assert quote("plain") == "`plain`"
    assert quote("a`b.c") == "`a``b.c`"


def test_strings_are_escaped() -> None:
    assert text("it's \\n") == "'it\\'s \\\\n'"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (7, "7"),
        (-7, "-7"),
        (Decimal("1.50"), "1.50bd"),
        (Decimal("1E+3"), "1000bd"),
        ("o'k", "'o\\'k'"),
        (dt.date(2026, 1, 2), "date'2026-01-02'"),
        (True, None),
        (1.5, None),
        (b"x", None),
        (dt.datetime(2026, 1, 2, tzinfo=dt.UTC), None),
        ("x" * 257, None),
        (None, None),
    ],
)
def test_only_values_that_compare_alike_become_literals(value: object, expected: str | None) -> None:
    assert literal(value) == expected


def test_a_lake_table_is_named_like_its_source() -> None:
    table = LakeTable.of("lake", TableName("my.schema", "Order`s"))
    assert table.sql == "`lake`.`my.schema`.`Order``s`"
    assert table.branch("pgetl_7") == "`lake`.`my.schema`.`Order``s`.`branch_pgetl_7`"
    assert table.argument == "'`my.schema`.`Order``s`'"
    assert table.at(12) == "`lake`.`my.schema`.`Order``s` version as of 12"
