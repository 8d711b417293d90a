"""Events: how batches read as plain ones, and steps from shape to shape."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from airflow_provider_pgetl.replication.errors import NotSupported
from airflow_provider_pgetl.replication.events import Begin, Commit, EventBatch, Events, Update, plain_rows
from airflow_provider_pgetl.replication.evolution import Added, Dropped, Renamed, Step, Widened, steps
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.schema import Identity, TableSchema
from airflow_provider_pgetl.testing.destination_values import (
    committed_at,
    delete,
    insert,
    make_batch,
    make_events,
    make_relation,
    make_rows,
    make_table,
    next_shape,
    order,
    truncate,
    update,
    with_column,
    with_names,
    with_type,
    without_column,
)

ORDERS = make_table()


def begin(lsn: int) -> Begin:
    return Begin(Lsn(lsn), committed_at(lsn))


def commit(lsn: int) -> Commit:
    return Commit(Lsn(lsn), committed_at(lsn))


def test_changes_read_as_they_were_written() -> None:
    changes = [
        insert(10, 1, order(1, None, "NaN")),
        update(10, 2, order(1)),
        update(10, 4, {"id": 2, "price": None}, {"id": 1}, ["item"]),
        delete(20, 1, {"id": 2}),
        truncate(30, 1),
    ]
    assert list(make_events(ORDERS, *changes)) == [
        begin(10),
        *changes[:3],
        commit(10),
        begin(20),
        changes[3],
        commit(20),
        begin(30),
        changes[4],
        commit(30),
    ]


def test_a_transaction_that_goes_on_has_no_commit_yet() -> None:
    part = EventBatch(ORDERS, make_batch(ORDERS, [insert(10, 1, order(1)), insert(20, 1, order(2))]))
    events = list(Events(ORDERS.table, (part,), complete=False))
    assert [type(event).__name__ for event in events] == ["Begin", "Insert", "Commit", "Begin", "Insert"]


def test_many_changes_are_all_there() -> None:
    changes = [insert(10, n, order(n)) for n in range(1, 10_001)]
    assert list(make_events(ORDERS, *changes))[1:-1] == changes


@pytest.mark.parametrize(
    ("relation_lsn", "expected"),
    [
        (10, ["Begin", "Insert", "Relation", "Insert", "Commit"]),
        (20, ["Begin", "Insert", "Commit", "Relation", "Begin", "Insert", "Commit"]),
    ],
)
def test_a_relation_stands_in_its_own_transaction(relation_lsn: int, expected: list[str]) -> None:
    wider = with_column(ORDERS, "note", "text")
    after = insert(relation_lsn, 3, {**order(2), "note": None})
    batches = (
        EventBatch(ORDERS, make_batch(ORDERS, [insert(10, 1, order(1))])),
        EventBatch(wider, make_batch(wider, [after]), make_relation(relation_lsn, ORDERS, wider)),
    )
    assert [type(event).__name__ for event in Events(ORDERS.table, batches)] == expected


def test_a_long_key_that_did_not_travel_is_the_old_one() -> None:
    """Postgres sends the old key of a TOASTed one even if it did not change, and the new one as unchanged."""
    schema = make_table({"id": "text", "body": "text", "n": "bigint"})
    sent = Update(Lsn(10), 1, {"n": 2}, {"id": "long"}, frozenset({"id", "body"}))
    found = list(make_events(schema, sent))[1]
    assert found == Update(Lsn(10), 1, {"id": "long", "n": 2}, {"id": "long"}, frozenset({"body"}))
    assert found.over({"id": "long", "body": "b", "n": 1}) == {"id": "long", "body": "b", "n": 2}


def test_old_rows_have_their_own_overflow() -> None:
    schema = make_table({"id": "bigint", "due": "date"}, key=[], identity=Identity.FULL)
    change = update(10, 1, {"id": 1, "due": date(2024, 1, 1)}, {"id": 1, "due": "infinity"})
    assert list(make_events(schema, change))[1] == change


def test_copied_rows_read_like_those_of_events() -> None:
    rows = [order(1, None, "NaN"), order(2)]
    assert list(plain_rows(ORDERS, make_rows(ORDERS, rows))) == rows


def test_batches_must_follow_each_other() -> None:
    second = with_column(ORDERS, "note", "text")
    third = with_names(second, {"note": "remark"})
    one, other = EventBatch(ORDERS, make_batch(ORDERS, [])), EventBatch(second, make_batch(second, []))
    skipping = EventBatch(third, make_batch(third, []), make_relation(20, second, third))
    for batches in ((), (one, other), (one, skipping), (replace(other, relation=skipping.relation),)):
        with pytest.raises(ValueError, match=r"batch|shape"):
            Events(ORDERS.table, batches)


def short(found: tuple[Step, ...]) -> list[str]:
    texts = []
    for step in found:
        match step:
            case Added(column=column):
                texts.append(f"+{column.name}")
            case Dropped(column=column):
                texts.append(f"-{column.name}")
            case Renamed(before=before, after=after):
                assert replace(before, name=after.name) == after
                texts.append(f"{before.name}>{after.name}")
            case Widened(before=before, after=after):
                assert before.name == after.name
                texts.append(f"{after.name}:{after.type_name}")
    return texts


ABC = make_table({"id": "integer", "a": "text", "b": "text", "c": "text"})


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (ABC, []),
        (with_column(without_column(ABC, "a"), "a", "text"), ["-a", "+a"]),
        (with_names(ABC, {"a": "b", "b": "c", "c": "d"}), ["c>d", "b>c", "a>b"]),
        (with_names(without_column(ABC, "a"), {"b": "a"}), ["-a", "b>a"]),
        (with_names(ABC, {"a": "b", "b": "a"}), ["a>pgetl_renaming_2", "b>a", "pgetl_renaming_2>b"]),
        (
            with_names(ABC, {"a": "b", "b": "c", "c": "a"}),
            ["a>pgetl_renaming_2", "c>a", "b>c", "pgetl_renaming_2>b"],
        ),
        (with_type(with_names(ABC, {"id": "key"}), "key", "bigint"), ["id>key", "key:bigint"]),
        (next_shape(ABC, reversed(ABC.columns)), []),
    ],
)
def test_steps_can_be_done_one_after_the_other(after: TableSchema, expected: list[str]) -> None:
    assert short(steps(ABC, after)) == expected
    names = {column.name for column in ABC.columns}
    for step in steps(ABC, after):
        match step:
            case Added(column=column):
                assert column.name not in names
                names.add(column.name)
            case Dropped(column=column):
                names.remove(column.name)
            case Renamed(before=before, after=to):
                names.remove(before.name)
                assert to.name not in names
                names.add(to.name)
    assert names == {column.name for column in after.columns}


def typed(oid: int, typmod: int = -1, element: int = 0) -> TableSchema:
    column = replace(make_table({"v": "text"}, key=[]).columns[0], base_oid=oid, typmod=typmod, element_oid=element)
    return replace(make_table({"v": "text"}, key=[]), columns=(column,))


NUMERIC = {(p, s): ((p << 16) | s) + 4 for p, s in ((10, 2), (12, 2), (12, 4))}


@pytest.mark.parametrize(
    ("before", "after", "step"),
    [
        ((23,), (20,), True),
        ((21,), (23,), False),
        ((23,), (21,), False),
        ((700,), (701,), True),
        ((1043, 14), (1043, 24), False),
        ((1043, 14), (25,), False),
        ((1114, 3), (1114, -1), False),
        ((1184, 0), (1184, 6), False),
        ((1700, NUMERIC[10, 2]), (1700, NUMERIC[12, 2]), True),
    ],
)
def test_wider_types_are_followed(before: tuple[int, ...], after: tuple[int, ...], step: bool) -> None:
    assert bool(steps(typed(*before), typed(*after))) is step


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((20,), (23,)),
        ((23,), (26,)),  # -1 becomes 4294967295
        ((23,), (25,)),
        ((701,), (700,)),
        ((1043, 24), (1043, 14)),
        ((25,), (1043, 14)),
        ((1042, 14), (1042, 24)),
        ((1114, 6), (1114, 3)),
        ((1114,), (1184,)),
        ((1700, NUMERIC[10, 2]), (1700, NUMERIC[12, 4])),
        ((1700, NUMERIC[12, 2]), (1700, NUMERIC[10, 2])),
        ((1007, -1, 23), (1016, -1, 20)),
    ],
)
def test_other_changes_of_type_are_refused(before: tuple[int, ...], after: tuple[int, ...]) -> None:
    with pytest.raises(NotSupported, match="the type of 'v' changed") as caught:
        steps(typed(*before), typed(*after))
    assert "Resync" in caught.value.hint


def test_rows_that_nobody_knows_are_refused() -> None:
    for changes in ({"rewrite": "a new type"}, {"columns": (*ABC.columns, unknown_default())}):
        made: dict[str, Any] = changes
        with pytest.raises(NotSupported):
            steps(ABC, replace(ABC, version=2, **made))


def unknown_default() -> Any:
    return replace(with_column(ABC, "n", "bigint").columns[-1], default="random()", missing=None)


def test_without_numbers_only_types_may_change() -> None:
    unnumbered = tuple(replace(column, attnum=0) for column in ABC.columns)
    assert steps(ABC, next_shape(ABC, unnumbered)) == ()
    with pytest.raises(NotSupported, match="changed again"):
        steps(ABC, next_shape(ABC, unnumbered[:-1]))
