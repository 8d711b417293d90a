"""The destination's contract for tables whose shape changes."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from airflow_provider_pgetl.replication.destinations.base import Destination
from airflow_provider_pgetl.replication.events import EventBatch, Events, Relation, RowChange
from airflow_provider_pgetl.replication.schema import Identity, TableName, TableSchema
from airflow_provider_pgetl.testing.destination_rows import RowsRead
from airflow_provider_pgetl.testing.destination_values import (
    delete,
    insert,
    make_batch,
    make_events,
    make_relation,
    make_table,
    next_shape,
    order,
    update,
    with_column,
    with_names,
    with_type,
    without_column,
)

AB = {"id": "bigint", "a": "text", "b": "text"}


def part(schema: TableSchema, *changes: RowChange, relation: Relation | None = None) -> EventBatch:
    return EventBatch(schema, make_batch(schema, changes), relation)


class ShapeContract(RowsRead):
    """``Relation``."""

    def test_an_added_column_shows_its_default_in_rows_that_are_there(self, destination: Destination) -> None:
        before = make_table()
        after = with_column(before, "stock", "integer", missing="7")
        self.copy(destination, before, order(1), order(2))
        destination.write_events(
            make_events(
                after,
                insert(20, 3, {**order(3), "stock": None}),
                update(20, 4, {**order(2), "stock": 8}),
                relation=make_relation(20, before, after, stock=7),
            )
        )
        self.assert_rows(
            destination, after, {**order(1), "stock": 7}, {**order(2), "stock": 8}, {**order(3), "stock": None}
        )

    def test_an_added_column_without_default_is_null(self, destination: Destination) -> None:
        before = make_table()
        after = with_column(before, "note", "text")
        self.copy(destination, before, order(1))
        destination.write_events(make_events(after, relation=make_relation(20, before, after)))
        self.assert_rows(destination, after, {**order(1), "note": None})

    def test_a_default_that_its_type_cannot_hold_is_its_text(self, destination: Destination) -> None:
        before = make_table()
        after = with_column(before, "due", "date", missing="infinity")
        self.copy(destination, before, order(1))
        destination.write_events(make_events(after, relation=make_relation(20, before, after, due="infinity")))
        self.assert_rows(destination, after, {**order(1), "due": "infinity"})

    def test_a_dropped_column_is_gone(self, destination: Destination) -> None:
        before = make_table()
        after = without_column(before, "item")
        self.copy(destination, before, order(1))
        relation = make_relation(20, before, after)
        destination.write_events(make_events(after, insert(20, 3, {"id": 2, "price": None}), relation=relation))
        self.assert_rows(destination, after, {"id": 1, "price": None}, {"id": 2, "price": None})

    def test_a_renamed_column_keeps_its_values(self, destination: Destination) -> None:
        before = make_table()
        after = with_names(before, {"item": "product"})
        self.copy(destination, before, order(1, "tea"))
        unchanged = update(20, 3, {"id": 1, "price": Decimal("1.50")}, unchanged=["product"])
        destination.write_events(make_events(after, unchanged, relation=make_relation(20, before, after)))
        self.assert_rows(destination, after, {"id": 1, "product": "tea", "price": Decimal("1.50")})

    def test_columns_may_swap_their_names(self, destination: Destination) -> None:
        before = make_table(AB)
        after = with_names(before, {"a": "b", "b": "a"})
        self.copy(destination, before, {"id": 1, "a": "x", "b": "y"})
        destination.write_events(make_events(after, relation=make_relation(20, before, after)))
        self.assert_rows(destination, after, {"id": 1, "a": "y", "b": "x"})

    def test_a_column_dropped_and_added_again_begins_anew(self, destination: Destination) -> None:
        before = make_table(AB)
        after = replace(with_column(without_column(before, "b"), "b", "text"), version=2)
        self.copy(destination, before, {"id": 1, "a": "x", "b": "y"})
        destination.write_events(make_events(after, relation=make_relation(20, before, after)))
        self.assert_rows(destination, after, {"id": 1, "a": "x", "b": None})

    def test_a_wider_type_keeps_its_values(self, destination: Destination) -> None:
        before = make_table({"id": "integer", "ratio": "real", "price": "numeric(10,2)"})
        wider = with_type(with_type(before, "id", "bigint"), "ratio", "double precision")
        after = replace(with_type(wider, "price", "numeric(20,2)"), version=2)
        kept = {"id": 1, "ratio": 0.5, "price": Decimal("12.50")}
        self.copy(destination, before, kept)
        new = {"id": 2**40, "ratio": 0.1, "price": Decimal("123456789012345678.99")}
        relation = make_relation(20, before, after)
        destination.write_events(make_events(after, insert(20, 3, new), relation=relation))
        self.assert_rows(destination, after, kept, new)

    def test_a_change_without_rows_comes_alone(self, destination: Destination) -> None:
        before = make_table()
        after = without_column(before, "item")
        self.copy(destination, before, order(1))
        destination.write_events(make_events(after, relation=make_relation(20, before, after)))
        self.assert_rows(destination, after, {"id": 1, "price": None})
        destination.write_events(make_events(after, insert(30, 1, {"id": 2, "price": None})))
        self.assert_rows(destination, after, {"id": 1, "price": None}, {"id": 2, "price": None})

    def test_a_call_may_pass_through_several_shapes(self, destination: Destination) -> None:
        first = make_table()
        second = with_column(first, "note", "text", missing="old")
        third = with_names(second, {"note": "remark"})
        self.copy(destination, first, order(1))
        batches = (
            part(first, insert(10, 1, order(2))),
            part(second, relation=make_relation(20, first, second, note="old")),
            part(third, insert(30, 2, {**order(3), "remark": "new"}), relation=make_relation(30, second, third)),
            part(third, update(40, 1, {**order(2), "remark": "seen"})),
        )
        destination.write_events(Events(third.table, batches))
        self.assert_rows(
            destination,
            third,
            {**order(1), "remark": "old"},
            {**order(2), "remark": "seen"},
            {**order(3), "remark": "new"},
        )

    def test_a_shape_may_change_inside_a_transaction(self, destination: Destination) -> None:
        before = make_table()
        after = with_column(before, "note", "text", missing="-")
        self.copy(destination, before)
        batches = (
            part(before, insert(10, 1, order(1))),
            part(after, insert(10, 3, {**order(2), "note": "n"}), relation=make_relation(10, before, after, note="-")),
        )
        destination.write_events(Events(after.table, batches))
        self.assert_rows(destination, after, {**order(1), "note": "-"}, {**order(2), "note": "n"})

    def test_the_key_may_change_with_the_shape(self, destination: Destination) -> None:
        before = make_table(AB)
        keys = {"a": 1}
        columns = [replace(one, key=keys.get(one.name), identity=one.name in keys) for one in before.columns]
        after = next_shape(before, columns, identity=Identity.INDEX)
        self.copy(destination, before, {"id": 1, "a": "x", "b": "1"}, {"id": 2, "a": "y", "b": "2"})
        changes = [update(20, 3, {"id": 1, "a": "y", "b": "3"}), delete(20, 4, {"a": "x"})]
        destination.write_events(make_events(after, *changes, relation=make_relation(20, before, after)))
        self.assert_rows(destination, after, {"id": 1, "a": "y", "b": "3"})

    def test_a_table_without_key_keeps_its_equal_rows(self, destination: Destination) -> None:
        before = make_table(key=[], identity=Identity.FULL)
        after = with_column(before, "note", "text", missing="-")
        noted = {**order(1), "note": "-"}
        self.copy(destination, before, order(1), order(1), order(1))
        relation = make_relation(20, before, after, note="-")
        destination.write_events(make_events(after, delete(20, 3, noted), relation=relation))
        self.assert_rows(destination, after, noted, noted)

    def test_a_renamed_table_keeps_its_rows(self, destination: Destination) -> None:
        before = make_table()
        after = replace(with_column(before, "note", "text"), table=TableName("sales", "done"))
        self.copy(destination, before, order(1))
        new = insert(20, 3, {**order(2), "note": "n"})
        destination.write_events(make_events(after, new, relation=make_relation(20, before, after)))
        self.assert_rows(destination, after, {**order(1), "note": None}, {**order(2), "note": "n"})

    def test_changes_of_shape_that_come_again_change_nothing(self, destination: Destination) -> None:
        first = make_table()
        second = without_column(first, "item")
        third = with_column(second, "item", "text", missing="new")
        self.copy(destination, first, order(1, "old"))
        calls = [
            make_events(first, update(10, 1, order(1, "x"))),
            make_events(second, insert(20, 2, {"id": 2, "price": None}), relation=make_relation(20, first, second)),
            make_events(third, relation=make_relation(30, second, third, item="new")),
            make_events(third, update(40, 1, order(2, "y"))),
        ]
        for events in [*calls, *calls[1:], *calls[2:], *calls]:
            destination.write_events(events)
        destination.write_events(make_events(third, insert(50, 1, order(3, "z"))))
        self.assert_rows(destination, third, order(1, "new"), order(2, "y"), order(3, "z"))
