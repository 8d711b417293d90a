"""Changes reach the table exactly once and fold to what the source holds."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgetl.replication import failpoints
from airflow_provider_pgetl.replication.errors import DestinationError, NotSupported, Overtaken
from airflow_provider_pgetl.replication.failpoints import Failpoint
from airflow_provider_pgetl.replication.schema import Identity
from tests.integration.lakehouse.spooling import (
    DATE,
    INT8,
    NUMERIC,
    PLAIN,
    TEXT,
    UNCHANGED,
    Lake,
    Writer,
    column,
    decimal_typmod,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider_pgetl.lakehouse.destination import LakeDestination


def seed(writer: Writer, count: int = 5) -> Writer:
    for number in range(1, count + 1):
        writer.insert(id=number, name=f"name {number}", note=f"long {number}", qty=number)
    return writer.commit()


def apply(lake: Lake, writer: Writer, **more: int) -> None:
    lake.destination.apply(writer.changes(**more))
    assert lake.read(writer) == writer.rows
    assert lake.marker(writer).lsn == writer.lsn


@pytest.fixture(autouse=True)
def _disarm() -> Iterator[None]:
    yield
    failpoints.disarm()


def test_inserts_are_appended(lake: Lake) -> None:
    apply(lake, seed(lake.writer()))


def test_updates_and_deletes_replace_rows(lake: Lake) -> None:
    writer = seed(lake.writer())
    apply(lake, writer)
    writer.update(id=2, name="new", note=None, qty=None).delete(id=3).insert(id=9, name=None, note="", qty=0).commit()
    apply(lake, writer)


def test_changes_of_one_call_come_from_several_files(lake: Lake) -> None:
    writer = seed(lake.writer(), 10)
    writer.update(id=1, name="a", note="b", qty=0).commit().delete(id=2).commit().update(
        id=1, name="c", note="d", qty=1
    )
    apply(lake, writer.commit(), files=4)


def test_commits_outside_of_the_range_are_left_alone(lake: Lake) -> None:
    writer = lake.writer()
    writer.insert(id=1, name="in", note="", qty=1).commit()
    writer.insert(id=2, name="later", note="", qty=1).commit()
    end = writer.lsn - 8
    changes = writer.changes(to_lsn=end)
    lake.destination.apply(changes)
    assert set(lake.read(writer)) == {(1,)}
    assert lake.marker(writer).lsn == end


def test_a_commit_at_exactly_the_marker_is_not_lost(lake: Lake) -> None:
    writer = seed(lake.writer())
    apply(lake, writer)
    assert lake.marker(writer).lsn == writer.lsn
    apply(lake, writer.update(id=1, name="at the marker", note="", qty=0).commit())


def test_a_key_change_moves_the_row(lake: Lake) -> None:
    writer = seed(lake.writer())
    apply(lake, writer)
    apply(lake, writer.update(old={"id": 2}, id=20, name="moved", note="long", qty=2).commit())


def test_a_key_change_onto_a_key_deleted_before_in_the_same_batch(lake: Lake) -> None:
    writer = seed(lake.writer())
    apply(lake, writer)
    writer.delete(id=3).update(old={"id": 2}, id=3, name="moved", note="x", qty=2)
    apply(lake, writer.insert(id=2, name="again", note="y", qty=0).commit())


def test_delete_and_insert_of_one_key(lake: Lake) -> None:
    writer = seed(lake.writer())
    apply(lake, writer)
    apply(lake, writer.delete(id=1).insert(id=1, name="second life", note=None, qty=None).commit())
    apply(lake, writer.insert(id=50, name="short", note="life", qty=1).delete(id=50).commit())


def test_an_unchanged_value_is_taken_from_the_lake(lake: Lake) -> None:
    writer = seed(lake.writer())
    apply(lake, writer)
    apply(lake, writer.update(id=2, name=UNCHANGED, note=UNCHANGED, qty=77).commit())


def test_an_unchanged_value_after_an_insert_in_the_same_batch(lake: Lake) -> None:
    writer = seed(lake.writer())
    writer.insert(id=8, name="a", note="from the insert", qty=1).update(id=8, name="b", note=UNCHANGED, qty=2)
    apply(lake, writer.commit())


def test_an_unchanged_value_after_an_update_that_set_it(lake: Lake) -> None:
    writer = seed(lake.writer())
    apply(lake, writer)
    writer.update(id=2, name="x", note="set here", qty=1).update(id=2, name="y", note=UNCHANGED, qty=2)
    apply(lake, writer.commit())


def test_an_unchanged_value_that_was_set_to_null(lake: Lake) -> None:
    writer = seed(lake.writer())
    apply(lake, writer)
    writer.update(id=2, name="x", note=None, qty=1).update(id=2, name=UNCHANGED, note=UNCHANGED, qty=None)
    apply(lake, writer.commit())


def test_an_unchanged_value_of_a_second_life(lake: Lake) -> None:
    writer = seed(lake.writer())
    apply(lake, writer)
    writer.update(id=2, name="x", note="of the first life", qty=1).delete(id=2)
    writer.insert(id=2, name="y", note="of the second", qty=1).update(id=2, name="z", note=UNCHANGED, qty=1)
    apply(lake, writer.commit())


def test_a_key_change_brings_its_unchanged_values_from_the_old_key(lake: Lake) -> None:
    writer = seed(lake.writer())
    apply(lake, writer)
    writer.update(old={"id": 2}, id=20, name="moved", note=UNCHANGED, qty=0)
    writer.update(id=3, name=UNCHANGED, note="plain", qty=0)
    apply(lake, writer.commit())


def test_a_chain_of_key_changes_is_followed_back(lake: Lake) -> None:
    writer = seed(lake.writer())
    apply(lake, writer)
    writer.update(old={"id": 1}, id=10, name=UNCHANGED, note=UNCHANGED, qty=0)
    writer.update(id=10, name="set on the way", note=UNCHANGED, qty=1)
    writer.update(old={"id": 10}, id=11, name=UNCHANGED, note=UNCHANGED, qty=2)
    writer.update(old={"id": 11}, id=1, name=UNCHANGED, note=UNCHANGED, qty=3)
    writer.update(old={"id": 2}, id=11, name=UNCHANGED, note=UNCHANGED, qty=4)
    writer.insert(id=10, name="new", note="new", qty=5).update(old={"id": 10}, id=12, name="z", note=UNCHANGED, qty=6)
    apply(lake, writer.commit())


def test_a_row_that_must_be_there_and_is_not_is_an_error_not_a_null(lake: Lake) -> None:
    writer = seed(lake.writer())
    writer.rows[(99,)] = {"id": 99, "name": "", "note": "", "qty": 0, "_pgetl_overflow": {}}
    writer.update(id=99, name="x", note=UNCHANGED, qty=1).commit()
    with pytest.raises(DestinationError, match="not in the lake"):
        lake.destination.apply(writer.changes())
    assert lake.read(writer) == {}


def test_truncate_in_the_middle_empties_what_precedes_it(lake: Lake) -> None:
    writer = seed(lake.writer())
    apply(lake, writer)
    writer.insert(id=6, name="before", note="", qty=0).truncate().insert(id=1, name="after", note="x", qty=0)
    apply(lake, writer.update(id=1, name="and", note=UNCHANGED, qty=1).commit())
    apply(lake, writer.truncate().commit())
    apply(lake, seed(writer))


def test_overflow_texts_are_carried_on_for_values_that_did_not_travel(lake: Lake) -> None:
    amount = column("amount", NUMERIC, toastable=True, typmod=decimal_typmod(10, 2))
    writer = lake.writer([column("id", INT8, key=1), amount, column("day", DATE), column("name", TEXT)])
    writer.insert(id=1, amount=None, day=None, name="a", overflow={"amount": "NaN", "day": "infinity"})
    writer.insert(id=2, amount=Decimal("1.50"), day=None, name="b").commit()
    apply(lake, writer)
    writer.update(id=1, amount=UNCHANGED, day=None, name="a2", overflow={"day": "-infinity"})
    writer.update(id=2, amount=None, day=None, name="b2", overflow={"amount": "NaN"})
    writer.update(id=2, amount=UNCHANGED, day=None, name="b3")
    apply(lake, writer.commit())
    apply(lake, writer.update(id=1, amount=Decimal("2.00"), day=None, name="c").commit())


def test_a_key_of_several_columns_and_odd_names(lake: Lake) -> None:
    columns = [
        column("Id", INT8, key=2),
        column("id", TEXT, key=1, toastable=True),
        column("a`b ${x} {y}", TEXT, toastable=True),
        column("r", INT8),
        column("rows", INT8),
        column("c0", TEXT, toastable=True),
    ]
    writer = lake.writer(columns)
    for number in range(4):
        row = {"Id": number, "id": f"it's \\ ${{env}} {number}", "a`b ${x} {y}": "é\n", "r": 1, "rows": 2, "c0": "c"}
        writer.insert(**row)
    apply(lake, writer.commit())
    key = {"Id": 2, "id": "it's \\ ${env} 2"}
    writer.update(**key, **{"a`b ${x} {y}": UNCHANGED, "r": 5, "rows": None, "c0": UNCHANGED})
    writer.update(old=key, **{**key, "Id": 7}, **{"a`b ${x} {y}": UNCHANGED, "r": 6, "rows": 6, "c0": None})
    apply(lake, writer.delete(Id=3, id="it's \\ ${env} 3").commit())


def test_a_toasted_key_travels_as_the_old_one(lake: Lake) -> None:
    writer = lake.writer([column("id", TEXT, key=1, toastable=True), column("n", INT8)])
    writer.insert(id="k" * 300, n=1).insert(id="l", n=1).commit()
    apply(lake, writer)
    writer.rows[("k" * 300,)]["n"] = 2
    writer._event("u", {"id": UNCHANGED, "n": 2}, old={"id": "k" * 300})
    apply(lake, writer.commit())


def test_replica_identity_full_matches_by_the_key(lake: Lake) -> None:
    columns = [column(one.name, one.base_oid, key=one.key, toastable=one.toastable, identity=True) for one in PLAIN]
    writer = seed(lake.writer(columns, Identity.FULL))
    apply(lake, writer)
    old = {name: value for name, value in writer.rows[(2,)].items() if name != "_pgetl_overflow"}
    writer.update(old=old, id=2, name="x", note="y", qty=1)
    writer.update(old={"id": 3, "name": None, "note": None, "qty": None}, id=30, name="x", note="y", qty=1)
    apply(lake, writer.delete(id=1).commit())


def test_a_table_without_key_takes_inserts_and_refuses_the_rest(lake: Lake) -> None:
    writer = lake.writer([column("id", INT8), column("name", TEXT)])
    writer._event("i", {"id": 1, "name": "same"})._event("i", {"id": 1, "name": "same"}).commit()
    lake.destination.apply(writer.changes())
    assert lake.spark.sql(f"select count(*) from {lake.name(writer)}").collect()[0][0] == 2
    writer._event("d", {"id": 1}).commit()
    with pytest.raises(NotSupported, match="no key"):
        lake.destination.apply(writer.changes())


def test_a_key_that_the_lake_cannot_hold_is_refused(lake: Lake) -> None:
    writer = lake.writer([column("id", DATE, key=1), column("n", INT8)])
    writer.insert(id=None, n=1, overflow={"id": "infinity"}).commit()
    with pytest.raises(NotSupported, match="key"):
        lake.destination.apply(writer.changes())


def test_a_replayed_batch_changes_nothing(lake: Lake, fresh: LakeDestination) -> None:
    writer = seed(lake.writer())
    first = writer.changes()
    lake.destination.apply(first)
    again = writer.update(id=1, name="x", note="y", qty=0).delete(id=2).commit().changes()
    applied = lake.destination.apply(again)
    snapshots = lake.snapshots(writer)
    assert lake.destination.apply(again).snapshot_id == applied.snapshot_id
    assert fresh.apply(again).snapshot_id == applied.snapshot_id
    assert fresh.apply(first).snapshot_id == applied.snapshot_id
    assert lake.read(writer) == writer.rows
    assert lake.snapshots(writer) == snapshots


def test_a_batch_that_is_in_already_up_to_its_middle_is_completed(lake: Lake, fresh: LakeDestination) -> None:
    writer = lake.writer()
    writer.insert(id=1, name="a", note="", qty=0).commit().insert(id=2, name="b", note="", qty=0).commit()
    both = writer.changes()
    middle = both.__class__(both.schema, 1, 1, both.from_lsn, type(both.to_lsn)(both.to_lsn - 8), both.files)
    lake.destination.apply(middle)
    fresh.apply(both)
    assert lake.read(writer) == writer.rows


def test_an_old_epoch_is_refused(lake: Lake, fresh: LakeDestination) -> None:
    writer = seed(lake.writer())
    lake.destination.apply(writer.changes(epoch=3))
    stale = writer.insert(id=70, name="stale", note="", qty=0).commit().changes(epoch=3)
    newer = stale.__class__(stale.schema, 1, 4, stale.from_lsn, stale.to_lsn, stale.files)
    fresh.apply(newer)
    later = writer.insert(id=71, name="later", note="", qty=0).commit().changes(epoch=3)
    with pytest.raises(Overtaken):
        lake.destination.apply(later)
    del writer.rows[(71,)]
    assert lake.read(writer) == writer.rows


def test_a_moved_table_is_looked_at_again(lake: Lake, fresh: LakeDestination) -> None:
    writer = seed(lake.writer())
    lake.destination.apply(writer.changes())
    fresh.apply(writer.update(id=1, name="by another", note="", qty=0).commit().changes(epoch=1))
    apply(lake, writer.update(id=2, name="mine", note="", qty=0).commit())


@pytest.mark.parametrize("place", ["apply.branched", "apply.deleted", "apply.appended", "apply.published"])
def test_killed_at_any_step_a_replay_is_right(lake: Lake, fresh: LakeDestination, place: str) -> None:
    writer = seed(lake.writer())
    apply(lake, writer)
    before = lake.read(writer)
    writer.update(id=1, name="x", note=UNCHANGED, qty=0).delete(id=2).insert(id=8, name="n", note="", qty=1).commit()
    changes = writer.changes(epoch=2)
    failpoints.arm(place)
    with pytest.raises(Failpoint):
        fresh.apply(changes)
    failpoints.disarm()
    assert lake.read(writer) == (writer.rows if place == "apply.published" else before)
    newer = changes.__class__(changes.schema, 1, 3, changes.from_lsn, changes.to_lsn, changes.files)
    fresh.apply(newer)
    assert lake.read(writer) == writer.rows
    if place != "apply.published":
        assert lake.branches(writer) == {"main", "pgetl_3"}


def test_readers_see_only_whole_states(lake: Lake) -> None:
    writer = seed(lake.writer())
    apply(lake, writer)
    for number in range(3):
        apply(lake, writer.update(id=1, name=f"{number}", note=UNCHANGED, qty=number).delete(id=number + 2).commit())
    marked = lake.spark.sql(
        f"select h.snapshot_id from {lake.name(writer)}.history h join {lake.name(writer)}.snapshots s "
        "on h.snapshot_id = s.snapshot_id where s.summary['pgetl.applied-lsn'] is null"
    ).collect()
    assert marked == []


def test_a_changed_schema_is_refused_clearly(lake: Lake) -> None:
    writer = seed(lake.writer())
    changes = writer.changes()
    newer = tuple(file.__class__(**{**_fields(file), "schema_version": 2}) for file in changes.files)
    with pytest.raises(NotSupported, match="columns"):
        lake.destination.apply(changes.__class__(changes.schema, 1, 1, changes.from_lsn, changes.to_lsn, newer))


def _fields(file: object) -> dict[str, object]:
    return {name: getattr(file, name) for name in file.__slots__}  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.parametrize("seed_value", range(4))
def test_random_histories_end_equal_to_the_oracle(lake: Lake, seed_value: int) -> None:
    chance = random.Random(seed_value)
    print("seed", seed_value)
    writer = lake.writer()
    for _ in range(4):
        for _ in range(60):
            _random_event(writer, chance)
            if chance.random() < 0.4:
                writer.commit()
        apply(lake, writer.commit(), files=chance.randint(1, 3))


def _random_event(writer: Writer, chance: random.Random) -> None:
    free = [key for key in range(1, 16) if (key,) not in writer.rows]
    used = [key[0] for key in writer.rows]
    what = chance.choices(["i", "u", "move", "d", "t"], [4, 5, 3, 2, 0.1])[0]
    values = {
        name: chance.choice([UNCHANGED, UNCHANGED, f"{name}{chance.random()}", None]) for name in ("name", "note")
    }
    if what == "t":
        writer.truncate()
    elif what == "i" and free:
        writer.insert(id=chance.choice(free), name=f"n{chance.random()}", note=None, qty=1)
    elif what == "d" and used:
        writer.delete(id=chance.choice(used))
    elif what == "move" and used and free:
        writer.update(old={"id": chance.choice(used)}, id=chance.choice(free), qty=2, **values)
    elif used:
        writer.update(id=chance.choice(used), qty=chance.randint(0, 9), **values)
