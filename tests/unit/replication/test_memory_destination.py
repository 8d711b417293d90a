"""The destination in memory keeps the contract, and refuses what can't be."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from airflow_provider_pgetl.replication.destinations.base import Destination
from airflow_provider_pgetl.replication.destinations.memory import MemoryDestination
from airflow_provider_pgetl.replication.errors import DestinationError
from airflow_provider_pgetl.replication.events import (
    Begin,
    Commit,
    EventBatch,
    Events,
    Relation,
    Row,
    RowChange,
)
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.schema import Identity, TableSchema
from airflow_provider_pgetl.testing.destination import DestinationContract
from airflow_provider_pgetl.testing.destination_values import (
    committed_at,
    delete,
    insert,
    make_batch,
    make_events,
    make_relation,
    make_rows,
    make_table,
    order,
    truncate,
    update,
    with_column,
    with_names,
)

ORDERS = make_table()
NAME = "public.orders"


class TestMemoryDestination(DestinationContract):
    @pytest.fixture
    def destination(self) -> Destination:
        return MemoryDestination()

    def rows_of(self, destination: Destination, table: str) -> list[Row] | None:
        assert isinstance(destination, MemoryDestination)
        return destination.rows(table)


def copied(*rows: Row, schema: TableSchema = ORDERS, strict: bool = True) -> MemoryDestination:
    destination = MemoryDestination(strict=strict)
    destination.drop_table_for_copy(schema)
    destination.write_table_rows(schema, make_rows(schema, rows))
    return destination


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (insert(10, 1, order(1, "secret")), "the insert at 0/A, change 1, has the key of a row that is there"),
        (update(10, 1, order(7, "secret")), "the update .* is of a row that is not there"),
        (update(10, 1, order(8, "secret"), {"id": 7}), "the update .* is of a row that is not there"),
        (update(10, 1, order(2, "secret"), {"id": 1}), "the update .* has the key of a row that is there"),
        (delete(10, 1, {"id": 7}), "the delete .* is of a row that is not there"),
    ],
)
def test_what_cannot_be_is_refused_without_a_value(change: RowChange, reason: str) -> None:
    destination = copied(order(1), order(2))
    for _ in range(2):  # it stays refused
        with pytest.raises(DestinationError, match=reason) as caught:
            destination.write_events(make_events(ORDERS, change))
        assert "secret" not in str(caught.value)
        assert destination.rows(NAME) == [order(1), order(2)] or destination.rows(NAME) == [order(2), order(1)]
    assert destination.events(NAME) == []


def test_a_row_without_key_must_be_there_to_be_removed() -> None:
    schema = make_table(key=[], identity=Identity.FULL)
    destination = copied(order(1), schema=schema)
    destination.write_events(make_events(schema, delete(10, 1, order(1))))
    with pytest.raises(DestinationError, match="not there"):
        destination.write_events(make_events(schema, delete(20, 1, order(1))))


def test_a_whole_old_row_must_be_the_one_that_is_there() -> None:
    schema = make_table(identity=Identity.FULL)
    destination = copied(order(1, "tea"), schema=schema)
    with pytest.raises(DestinationError, match="another old row"):
        destination.write_events(make_events(schema, delete(10, 1, order(1, "milk"))))
    assert destination.rows(NAME) == [order(1, "tea")]


def test_a_change_that_comes_late_is_refused() -> None:
    destination = copied()
    destination.write_events(make_events(ORDERS, insert(20, 2, order(2))))
    with pytest.raises(DestinationError, match="comes late"):
        destination.write_events(make_events(ORDERS, insert(20, 1, order(1))))


def test_changes_out_of_order_are_refused() -> None:
    destination = copied()
    with pytest.raises(DestinationError, match="out of order"):
        destination.write_events(make_events(ORDERS, insert(20, 1, order(1)), insert(10, 1, order(2))))


def test_a_row_copied_twice_is_refused() -> None:
    with pytest.raises(DestinationError, match="copied twice"):
        copied(order(1), order(1))


def test_rows_do_not_come_after_events() -> None:
    destination = copied(order(1))
    destination.write_events(make_events(ORDERS, insert(20, 2, order(2))))
    with pytest.raises(DestinationError, match="after its copy"):
        destination.write_table_rows(ORDERS, make_rows(ORDERS, [order(3)]))


def test_a_shape_must_follow_the_one_that_is_there() -> None:
    second = with_column(ORDERS, "note", "text")
    third = with_names(second, {"note": "remark"})
    destination = copied(order(1))
    with pytest.raises(DestinationError, match="from shape 2, but is in 1"):
        destination.write_events(make_events(third, relation=make_relation(20, second, third)))
    with pytest.raises(DestinationError, match="another shape"):
        destination.write_events(make_events(second, insert(20, 1, {**order(2), "note": None})))


def test_steps_must_lead_to_the_shape() -> None:
    second = with_column(ORDERS, "note", "text")
    destination = copied(order(1))
    relation = replace(make_relation(20, ORDERS, second), steps=())
    with pytest.raises(DestinationError, match="do not fit shape 2"):
        destination.write_events(make_events(second, relation=relation))
    assert destination.rows(NAME) == [order(1)]


def test_what_came_before_an_error_is_in_and_the_rest_can_follow() -> None:
    destination = copied()
    bad = make_events(ORDERS, insert(10, 1, order(1)), delete(10, 2, {"id": 9}))
    with pytest.raises(DestinationError):
        destination.write_events(bad)
    destination.write_events(make_events(ORDERS, insert(10, 1, order(1)), insert(10, 2, order(2))))
    assert destination.rows(NAME) == [order(1), order(2)]


def test_a_table_whose_copy_was_skipped_takes_changes_of_rows_from_before() -> None:
    destination = MemoryDestination(strict=False)
    destination.write_events(
        make_events(
            ORDERS,
            delete(10, 1, {"id": 1}),
            update(10, 2, order(2, "milk")),
            insert(10, 3, order(2, "again")),
            update(10, 4, order(4), {"id": 3}),
        )
    )
    assert destination.rows(NAME) == [order(2, "again"), order(4)]
    with pytest.raises(DestinationError, match="keeps values of a row that is not there"):
        destination.write_events(make_events(ORDERS, update(20, 1, {"id": 9, "price": None}, unchanged=["item"])))


def test_events_are_kept_once_in_order() -> None:
    wider = with_column(ORDERS, "note", "text")
    destination = copied(order(1))
    first, second = insert(10, 1, order(2)), truncate(10, 2)
    half = Events(ORDERS.table, (EventBatch(ORDERS, make_batch(ORDERS, [first])),), complete=False)
    relation = make_relation(20, ORDERS, wider)
    third = insert(20, 3, {**order(3), "note": None})
    for _ in range(2):
        destination.write_events(half)
        destination.write_events(make_events(ORDERS, first, second))
        destination.write_events(make_events(wider, third, relation=relation))
    times = [(Lsn(lsn), committed_at(lsn)) for lsn in (10, 20)]
    assert destination.events(NAME) == [
        Begin(*times[0]),
        first,
        Begin(*times[0]),
        second,
        Commit(*times[0]),
        relation,
        Begin(*times[1]),
        third,
        Commit(*times[1]),
    ]
    assert destination.repetitions(NAME) == 5


def test_what_is_read_is_a_copy() -> None:
    destination = copied(order(1))
    destination.rows(NAME)[0]["item"] = "other"
    destination.rows(NAME).clear()
    assert destination.rows(NAME) == [order(1)]
    assert destination.tables() == [NAME]


def test_an_unknown_table_has_nothing() -> None:
    destination = MemoryDestination()
    assert (destination.tables(), destination.rows("a.b"), destination.events("a.b")) == ([], [], [])
    assert destination.repetitions("a.b") == 0


def test_a_table_that_takes_the_name_of_another_is_found_under_it() -> None:
    old, new = make_table(relation_id=1, table="a"), make_table(relation_id=2, table="b")
    destination = MemoryDestination()
    for schema, row in ((old, order(1)), (new, order(2))):
        destination.write_table_rows(schema, make_rows(schema, [row]))
    renamed = replace(with_column(new, "note", "text"), table=old.table)
    destination.write_events(make_events(renamed, relation=make_relation(20, new, renamed)))
    assert destination.rows("public.a") == [{**order(2), "note": None}]
    assert isinstance(destination.events("public.a")[0], Relation)


def test_rows_can_be_read_while_they_change() -> None:
    destination = copied(order(0))
    done = threading.Event()

    def read() -> int:
        most = 0
        while not done.is_set():
            most = max(most, len(destination.rows(NAME)))
        return most

    with ThreadPoolExecutor(2) as threads:
        reader = threads.submit(read)
        for lsn in range(10, 200):
            destination.write_events(make_events(ORDERS, insert(lsn, 1, order(lsn))))
        done.set()
        assert reader.result() <= 191
    assert len(destination.rows(NAME)) == 191


@pytest.mark.timeout(60)
def test_equal_rows_are_not_searched_one_by_one() -> None:
    """With a search it would take hours."""
    schema = make_table({"id": "bigint"}, key=[], identity=Identity.FULL)
    destination = MemoryDestination()
    destination.write_events(make_events(schema, *(insert(10, n, {"id": n % 7}) for n in range(100_000))))
    destination.write_events(make_events(schema, *(delete(20, n, {"id": n % 7}) for n in range(100_000))))
    assert destination.rows(NAME) == []
