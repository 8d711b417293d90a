"""The destination's contract for values and names."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from airflow_provider_pgetl.replication.batch import CHANGE_COLUMNS
from airflow_provider_pgetl.replication.destinations.base import Destination
from airflow_provider_pgetl.replication.schema import Identity, TableName
from airflow_provider_pgetl.testing.destination_rows import RowsRead
from airflow_provider_pgetl.testing.destination_values import (
    TYPES,
    delete,
    insert,
    make_events,
    make_table,
    update,
)

VALUES: dict[str, list[Any]] = {
    "boolean": [True, False],
    "bytea": [b"", b"\x00\xff'\"\\"],
    "bigint": [0, 2**63 - 1, -(2**63)],
    "integer": [-(2**31)],
    "text": ["", " ", "NULL", "ünï — \U0001f600", "quotes \" ' \\ and\nlines\t", "x" * 100_000],
    "real": [0.5, 1.100000023841858],
    "double precision": [0.1, -0.0, 5e-324, 1.7976931348623157e308, float("nan"), float("inf"), float("-inf")],
    "date": [date(1, 1, 1), date(9999, 12, 31), "infinity", "0044-03-15 BC"],
    "timestamp without time zone": [datetime.fromisoformat("2024-02-29 23:59:59.999999"), "-infinity"],
    "timestamp with time zone": [datetime(1, 1, 1, tzinfo=UTC), datetime(2024, 2, 29, 12, 0, 0, 1, UTC), "infinity"],
    "numeric(10,2)": [Decimal("0.00"), Decimal("-99999999.99"), "NaN"],
    "numeric(20,2)": [Decimal("123456789012345678.99")],
    "integer[]": [[], [1, None, 3], "{{1},{2}}", "[2:3]={1,2}"],
}


class CellContract(RowsRead):
    """Values and names arrive as they are."""

    def test_every_type_is_tried(self) -> None:
        assert VALUES.keys() == TYPES.keys()

    @pytest.mark.parametrize("kind", VALUES)
    def test_values_are_the_same_from_a_copy_and_from_an_event(self, destination: Destination, kind: str) -> None:
        schema = make_table({"id": "bigint", "v": kind})
        rows = [{"id": n, "v": value} for n, value in enumerate([None, *VALUES[kind]])]
        self.copy(destination, schema, *rows)
        later = [{"id": 100 + row["id"], "v": row["v"]} for row in rows]
        destination.write_events(make_events(schema, *(insert(10, n, row) for n, row in enumerate(later, 1))))
        self.assert_rows(destination, schema, *rows, *later)

    @pytest.mark.parametrize("kind", VALUES)
    def test_rows_without_key_are_found_by_any_value(self, destination: Destination, kind: str) -> None:
        schema = make_table({"n": "bigint", "v": kind}, key=[], identity=Identity.FULL)
        rows = [{"n": 1, "v": value} for value in [None, *VALUES[kind]]]
        self.copy(destination, schema, *rows)
        updates = [update(10, n, {**row, "n": 2}, row) for n, row in enumerate(rows, 1)]
        destination.write_events(make_events(schema, *updates))
        self.assert_rows(destination, schema, *({**row, "n": 2} for row in rows))
        deletes = [delete(20, n, {**row, "n": 2}) for n, row in enumerate(rows, 1)]
        destination.write_events(make_events(schema, *deletes))
        self.assert_rows(destination, schema)

    @pytest.mark.parametrize("kind", sorted(VALUES.keys() - {"integer[]"}))
    def test_any_value_may_be_a_key(self, destination: Destination, kind: str) -> None:
        schema = make_table({"k": kind, "v": "bigint"}, key=["k"])
        rows = [{"k": value, "v": 1} for value in VALUES[kind]]
        self.copy(destination, schema, *rows)
        updates = [update(10, n, {**row, "v": 2}) for n, row in enumerate(rows, 1)]
        destination.write_events(make_events(schema, *updates))
        self.assert_rows(destination, schema, *({**row, "v": 2} for row in rows))
        destination.write_events(make_events(schema, *(delete(20, n, {"k": r["k"]}) for n, r in enumerate(rows, 1))))
        self.assert_rows(destination, schema)

    def test_an_update_may_bring_or_take_what_a_type_cannot_hold(self, destination: Destination) -> None:
        schema = make_table({"id": "bigint", "due": "date", "note": "text"})
        self.copy(destination, schema, {"id": 1, "due": "infinity", "note": "a"}, {"id": 2, "due": None, "note": "b"})
        changes = [
            update(10, 1, {"id": 1, "due": date(2024, 1, 1), "note": "a"}),
            update(10, 2, {"id": 2, "due": "infinity"}, unchanged=["note"]),
        ]
        destination.write_events(make_events(schema, *changes))
        self.assert_rows(
            destination,
            schema,
            {"id": 1, "due": date(2024, 1, 1), "note": "a"},
            {"id": 2, "due": "infinity", "note": "b"},
        )

    def test_columns_may_have_any_name(self, destination: Destination) -> None:
        names = ["Id", "id", 'we"ird', "a b", "ünï", "select", "x_", "x__op", "kind", "row", *CHANGE_COLUMNS]
        schema = make_table(dict.fromkeys(names, "text"), key=["Id", "_op"])
        row: dict[str, Any] = {name: f"value of {name}" for name in names}
        self.copy(destination, schema, row)
        moved = {**row, "_op": "other", "select": None, "ünï": "ß"}
        sent = {name: value for name, value in moved.items() if name != "_old"}
        change = update(10, 1, sent, {"Id": row["Id"], "_op": row["_op"]}, ["_old"])
        destination.write_events(make_events(schema, change))
        self.assert_rows(destination, schema, moved)

    @pytest.mark.parametrize(
        "table",
        [
            TableName("public", "Orders"),
            TableName('we"ird', "na me; drop — ünïcode"),
            TableName("a.b", "c/d?e=f&g%20"),
            TableName("ß", "\u202e\u4e2d\u6587"),
        ],
        ids=["capital", "quotes", "separators", "scripts"],
    )
    def test_tables_may_have_any_name(self, destination: Destination, table: TableName) -> None:
        schema = make_table({"id": "bigint"}, table=table)
        self.copy(destination, schema, {"id": 1})
        destination.write_events(make_events(schema, insert(10, 1, {"id": 2})))
        self.assert_rows(destination, schema, {"id": 1}, {"id": 2})

    def test_a_table_may_have_no_columns(self, destination: Destination) -> None:
        schema = make_table({}, key=[], identity=Identity.FULL)
        self.copy(destination, schema, {}, {})
        destination.write_events(make_events(schema, insert(10, 1, {}), delete(10, 2, {}), delete(10, 3, {})))
        self.assert_rows(destination, schema, {})
