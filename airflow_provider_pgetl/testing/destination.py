"""The destination's contract as tests: inherit ``DestinationContract`` and say how its rows are read.

    class TestMyDestination(DestinationContract):
        @pytest.fixture
        def destination(self) -> Iterator[Destination]:      fresh and started
            ...

        def rows_of(self, destination, table):               what it holds, or None if it can't be read
            ...

A destination whose rows outlive it inherits ``DurabilityContract`` as well, and gives it a fixture ``reopen``.
Copies, order and repetition are here, schema changes in ``destination_shapes``, values in ``destination_cells``.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from airflow_provider_pgetl.replication.destinations.base import Destination
from airflow_provider_pgetl.replication.events import EventBatch, Events
from airflow_provider_pgetl.replication.schema import Identity, TableSchema
from airflow_provider_pgetl.testing.destination_cells import CellContract
from airflow_provider_pgetl.testing.destination_rows import RowsRead
from airflow_provider_pgetl.testing.destination_shapes import ShapeContract
from airflow_provider_pgetl.testing.destination_values import (
    ORDERS,
    delete,
    insert,
    make_batch,
    make_events,
    make_rows,
    make_table,
    order,
    truncate,
    update,
    with_column,
)

MANY = 12_000


class CopyContract(RowsRead):
    """``drop_table_for_copy`` and ``write_table_rows``."""

    def test_a_table_that_is_not_there_can_be_dropped(self, destination: Destination) -> None:
        destination.drop_table_for_copy(make_table())
        destination.drop_table_for_copy(make_table())

    def test_copied_rows_are_there(self, destination: Destination) -> None:
        schema = make_table()
        self.copy(destination, schema, order(1), order(2, None))
        self.assert_rows(destination, schema, order(1), order(2, None))

    def test_rows_come_in_any_number_of_batches(self, destination: Destination) -> None:
        schema = make_table()
        self.copy(destination, schema, order(1))
        destination.write_table_rows(schema, make_rows(schema, []))
        destination.write_table_rows(schema, make_rows(schema, [order(2), order(3)]))
        self.assert_rows(destination, schema, order(1), order(2), order(3))

    def test_an_empty_table_is_an_empty_batch(self, destination: Destination) -> None:
        schema = make_table()
        self.copy(destination, schema)
        self.assert_rows(destination, schema)
        destination.write_events(make_events(schema, insert(10, 1, order(1))))
        self.assert_rows(destination, schema, order(1))

    def test_parts_of_a_table_come_from_several_threads(self, destination: Destination) -> None:
        schema = make_table()
        destination.drop_table_for_copy(schema)
        parts = [[order(part * 100 + n) for n in range(100)] for part in range(8)]
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda part: destination.write_table_rows(schema, make_rows(schema, part)), parts))
        self.assert_rows(destination, schema, *(row for part in parts for row in part))

    def test_tables_are_copied_side_by_side(self, destination: Destination) -> None:
        schemas = [make_table(table=f"t{n}", relation_id=20_000 + n) for n in range(8)]
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda schema: self.copy(destination, schema, order(schema.relation_id)), schemas))
        for schema in schemas:
            self.assert_rows(destination, schema, order(schema.relation_id))

    def test_a_large_batch_arrives_whole(self, destination: Destination) -> None:
        schema = make_table()
        rows = [order(n, "x" * (n % 50)) for n in range(MANY)]
        self.copy(destination, schema, *rows)
        self.assert_rows(destination, schema, *rows)

    def test_a_dropped_table_forgets_its_rows(self, destination: Destination) -> None:
        schema, other = make_table(), make_table(table="other", relation_id=1)
        self.copy(destination, schema, order(1), order(2))
        self.copy(destination, other, order(7))
        self.copy(destination, schema, order(3))
        self.assert_rows(destination, schema, order(3))
        self.assert_rows(destination, other, order(7))

    def test_a_dropped_table_forgets_its_shape(self, destination: Destination) -> None:
        schema = make_table()
        self.copy(destination, schema, order(1))
        wider = with_column(schema, "note", "text")
        self.copy(destination, wider, {**order(1), "note": "new"})
        destination.write_events(make_events(wider, insert(10, 1, {**order(2), "note": None})))
        self.assert_rows(destination, wider, {**order(1), "note": "new"}, {**order(2), "note": None})

    def test_a_dropped_table_forgets_its_place(self, destination: Destination) -> None:
        """After a failover LSNs may begin again further back."""
        schema = make_table()
        self.copy(destination, schema, order(1))
        destination.write_events(make_events(schema, insert(100, 1, order(2))))
        self.copy(destination, schema, order(1), order(2))
        destination.write_events(make_events(schema, insert(50, 1, order(3))))
        self.assert_rows(destination, schema, order(1), order(2), order(3))

    def test_a_table_made_again_under_its_name_takes_the_place(self, destination: Destination) -> None:
        old, new = make_table(relation_id=1), make_table({"code": "text"}, key=["code"], relation_id=2)
        self.copy(destination, old, order(1))
        self.copy(destination, new, {"code": "a"})
        self.assert_rows(destination, new, {"code": "a"})

    def test_a_table_whose_copy_is_skipped_begins_with_events(self, destination: Destination) -> None:
        schema = make_table()
        destination.write_events(make_events(schema, insert(10, 1, order(1))))
        destination.write_events(make_events(schema, update(20, 1, order(1, "milk"))))
        self.assert_rows(destination, schema, order(1, "milk"))


class OrderContract(RowsRead):
    """``write_events``: what each event does, one after the other."""

    def test_changes_of_a_call_are_done_in_order(self, destination: Destination) -> None:
        schema = make_table()
        self.copy(destination, schema, order(1))
        changes = [
            update(10, 1, order(1, "a")),
            update(10, 2, order(1, "b")),
            delete(10, 3, {"id": 1}),
            insert(10, 4, order(1, "c")),
            insert(10, 5, order(2, "d")),
            update(20, 1, order(1, "e")),
            delete(30, 1, {"id": 2}),
        ]
        destination.write_events(make_events(schema, *changes))
        self.assert_rows(destination, schema, order(1, "e"))

    def test_calls_are_done_in_order(self, destination: Destination) -> None:
        schema = make_table()
        self.copy(destination, schema, order(1))
        for lsn in range(10, 30):
            destination.write_events(make_events(schema, update(lsn, 1, order(1, str(lsn)))))
        self.assert_rows(destination, schema, order(1, "29"))

    def test_a_changed_key_moves_the_row(self, destination: Destination) -> None:
        schema = make_table()
        self.copy(destination, schema, order(1, "a"), order(2, "b"))
        changes = [
            update(10, 1, order(3, "a"), {"id": 1}),
            update(10, 2, order(1, "b"), {"id": 2}),
            update(20, 1, order(2, "a"), {"id": 3}),
        ]
        destination.write_events(make_events(schema, *changes))
        self.assert_rows(destination, schema, order(1, "b"), order(2, "a"))

    def test_unchanged_values_stay(self, destination: Destination) -> None:
        schema = make_table()
        self.copy(destination, schema, order(1, "long"), order(2, None))
        changes = [
            update(10, 1, {"id": 1, "price": None}, unchanged=["item"]),
            update(10, 2, {"id": 2, "price": None}, unchanged=["item"]),
            update(20, 1, {"id": 9, "price": None}, {"id": 1}, ["item"]),
        ]
        destination.write_events(make_events(schema, *changes))
        self.assert_rows(destination, schema, order(9, "long"), order(2, None))

    def test_a_truncate_removes_what_is_before_it(self, destination: Destination) -> None:
        schema = make_table()
        self.copy(destination, schema, order(1), order(2))
        changes = [insert(10, 1, order(3)), truncate(10, 2), insert(10, 3, order(1, "new"))]
        destination.write_events(make_events(schema, *changes))
        self.assert_rows(destination, schema, order(1, "new"))

    def test_a_key_of_several_columns_is_one_key(self, destination: Destination) -> None:
        schema = make_table({"a": "bigint", "b": "text", "v": "text"}, key=["b", "a"])
        self.copy(destination, schema, {"a": 1, "b": "x", "v": "1"}, {"a": 1, "b": "y", "v": "2"})
        changes = [
            update(10, 1, {"a": 1, "b": "y", "v": "3"}),
            update(10, 2, {"a": 2, "b": "x", "v": "4"}, {"a": 1, "b": "x"}),
            delete(10, 3, {"a": 1, "b": "y"}),
        ]
        destination.write_events(make_events(schema, *changes))
        self.assert_rows(destination, schema, {"a": 2, "b": "x", "v": "4"})

    def test_a_table_with_a_key_may_send_whole_old_rows(self, destination: Destination) -> None:
        schema = make_table(identity=Identity.FULL)
        self.copy(destination, schema, order(1), order(2))
        changes = [update(10, 1, order(3, "milk"), order(1)), delete(10, 2, order(2))]
        destination.write_events(make_events(schema, *changes))
        self.assert_rows(destination, schema, order(3, "milk"))

    def test_equal_rows_of_a_table_without_key_are_counted(self, destination: Destination) -> None:
        schema = make_table(key=[], identity=Identity.FULL)
        self.copy(destination, schema, order(1), order(1), order(1), order(2, None))
        changes = [
            delete(10, 1, order(1)),
            update(10, 2, order(2, "milk"), order(1)),
            insert(10, 3, order(2, None)),
            delete(20, 1, order(2, None)),
        ]
        destination.write_events(make_events(schema, *changes))
        self.assert_rows(destination, schema, order(1), order(2, "milk"), order(2, None))

    def test_a_transaction_may_go_on_in_the_next_call(self, destination: Destination) -> None:
        schema = make_table()
        self.copy(destination, schema)
        first = EventBatch(schema, make_batch(schema, [insert(10, n, order(n)) for n in range(1, 50)]))
        destination.write_events(Events(schema.table, (first,), complete=False))
        destination.write_events(make_events(schema, *(delete(10, 50 + n, {"id": n}) for n in range(1, 49))))
        self.assert_rows(destination, schema, order(49))

    def test_a_call_may_have_several_batches_of_one_shape(self, destination: Destination) -> None:
        schema = make_table()
        self.copy(destination, schema)
        parts = [[insert(10, 1, order(1))], [], [update(10, 2, order(1, "a"))], [delete(20, 1, {"id": 1})]]
        batches = tuple(EventBatch(schema, make_batch(schema, part)) for part in parts)
        destination.write_events(Events(schema.table, batches))
        self.assert_rows(destination, schema)

    def test_tables_are_changed_side_by_side(self, destination: Destination) -> None:
        schemas = [make_table(table=f"t{n}", relation_id=20_000 + n) for n in range(6)]

        def follow(schema: TableSchema) -> None:
            self.copy(destination, schema)
            for lsn in range(10, 30):
                destination.write_events(make_events(schema, insert(lsn, schema.relation_id, order(lsn))))

        with ThreadPoolExecutor(3) as threads:
            list(threads.map(follow, schemas))
        for schema in schemas:
            self.assert_rows(destination, schema, *(order(n) for n in range(10, 30)))

    def test_a_large_call_arrives_whole(self, destination: Destination) -> None:
        schema = make_table()
        self.copy(destination, schema)
        inserts = [insert(10, n, order(n)) for n in range(1, MANY)]
        updates = [update(20, n, order(n, "milk")) for n in range(1, MANY, 3)]
        destination.write_events(make_events(schema, *inserts, *updates))
        self.assert_rows(destination, schema, *(order(n, "milk" if n % 3 == 1 else "tea") for n in range(1, MANY)))


class RepetitionContract(RowsRead):
    """What comes again changes nothing."""

    @pytest.mark.parametrize("key", [["id"], []], ids=["by key", "without key"])
    def test_a_call_that_comes_again_changes_nothing(self, destination: Destination, key: list[str]) -> None:
        schema = make_table(key=key, identity=Identity.FULL)
        self.copy(destination, schema, order(1), order(2))
        events = make_events(
            schema,
            update(10, 1, order(3), order(1)),
            insert(10, 2, order(1)),
            delete(20, 1, order(2)),
            insert(20, 2, order(4)),
        )
        for _ in range(3):
            destination.write_events(events)
            self.assert_rows(destination, schema, order(3), order(1), order(4))

    def test_a_truncate_that_comes_again_removes_nothing(self, destination: Destination) -> None:
        schema = make_table()
        self.copy(destination, schema, order(1))
        calls = [make_events(schema, truncate(10, 1)), make_events(schema, insert(20, 1, order(2)))]
        for events in [*calls, *calls]:
            destination.write_events(events)
        self.assert_rows(destination, schema, order(2))

    def test_several_calls_that_come_again_are_followed_by_new_ones(self, destination: Destination) -> None:
        schema = make_table()
        self.copy(destination, schema)
        calls = [
            make_events(schema, insert(10, 1, order(1, "a")), insert(10, 2, order(2))),
            make_events(schema, delete(20, 1, {"id": 1})),
            make_events(schema, insert(30, 1, order(1, "b"))),
        ]
        for events in [*calls, *calls]:
            destination.write_events(events)
        destination.write_events(make_events(schema, update(40, 1, order(1, "c"))))
        self.assert_rows(destination, schema, order(1, "c"), order(2))

    def test_repetitions_may_be_divided_in_another_way(self, destination: Destination) -> None:
        schema = make_table(key=[], identity=Identity.FULL)
        self.copy(destination, schema)
        changes = [insert(10, 1, order(1)), insert(10, 2, order(1)), delete(20, 1, order(1)), insert(20, 2, order(2))]
        destination.write_events(make_events(schema, *changes[:3]))
        destination.write_events(make_events(schema, changes[0]))
        destination.write_events(make_events(schema, *changes[1:]))
        self.assert_rows(destination, schema, order(1), order(2))

    def test_changes_of_one_commit_are_told_apart_by_their_ordinal(self, destination: Destination) -> None:
        schema = make_table(key=[], identity=Identity.FULL)
        self.copy(destination, schema)
        half = Events(schema.table, (EventBatch(schema, make_batch(schema, [insert(10, 1, order(1))])),), False)
        whole = make_events(schema, insert(10, 1, order(1)), insert(10, 2, order(1)))
        destination.write_events(half)
        destination.write_events(whole)
        self.assert_rows(destination, schema, order(1), order(1))


class DurabilityContract(RowsRead):
    """What was written survives; for destinations that keep something: inherit it, too."""

    @pytest.fixture
    def reopen(self) -> Callable[[Destination], Destination]:
        """Makes the destination again over what it has kept, started; to be overridden."""
        raise NotImplementedError

    def test_what_was_written_survives(
        self, destination: Destination, reopen: Callable[[Destination], Destination]
    ) -> None:
        schema = make_table(ORDERS)
        self.copy(destination, schema, order(1))
        events = make_events(schema, insert(10, 1, order(2)), update(10, 2, order(1, "milk")))
        destination.write_events(events)
        destination.shutdown()
        again = reopen(destination)
        self.assert_rows(again, schema, order(1, "milk"), order(2))
        again.write_events(events)
        again.write_events(make_events(schema, delete(20, 1, {"id": 2})))
        self.assert_rows(again, schema, order(1, "milk"))


class DestinationContract(CopyContract, OrderContract, RepetitionContract, ShapeContract, CellContract):
    """All of it."""
