"""The snapshot holder: exact, without slot, and never over a table that changed before it was locked."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
import pytest

from airflow_provider_pgetl.local import process
from airflow_provider_pgetl.replication import failpoints
from airflow_provider_pgetl.replication.errors import Retry, SnapshotLost, SourceError
from airflow_provider_pgetl.replication.schema import TableName
from airflow_provider_pgetl.replication.source import snapshot as snapshots
from airflow_provider_pgetl.replication.source import waiting
from airflow_provider_pgetl.replication.source.snapshot import SnapshotHolder, open_snapshot
from tests.integration.source.conftest import Place, in_background

T = TableName("public", "t")


def seen(place: Place, holder: SnapshotHolder, query: str) -> list[tuple[Any, ...]]:
    """What a reader under the snapshot sees."""
    with psycopg.connect(place.conninfo) as connection:
        connection.execute("set transaction isolation level repeatable read read only")
        connection.execute(f"set transaction snapshot '{holder.snapshot}'")
        return connection.execute(query).fetchall()


def once(action: Callable[[], None]) -> Callable[[], None]:
    """The first snapshot only is disturbed; counts all of them."""

    def run() -> None:
        run.count += 1  # type: ignore[attr-defined]
        if run.count == 1:  # type: ignore[attr-defined]
            action()

    run.count = 0  # type: ignore[attr-defined]
    return run


def disturb(place: Place, *statements: str) -> Callable[[], None]:
    action = once(lambda: place.execute(*statements))
    failpoints.arm("snapshot.taken", action)
    return action


def test_readers_see_exactly_what_was_committed_before_the_lsn(place: Place) -> None:
    place.execute("create table t (id int primary key)", "insert into t values (1)")
    with open_snapshot(place.conninfo, [T]) as holder:
        place.execute("insert into t values (2)", "delete from t where id = 1")
        assert seen(place, holder, "select id from t") == [(1,)]
        now = place.rows("select pg_current_wal_lsn() > %s::pg_lsn", str(holder.lsn))
        assert now == [(True,)]
        assert holder.connection.execute("show transaction_read_only").fetchone() == ("on",)


def test_the_slot_is_gone_before_the_tables_are_locked(place: Place) -> None:
    place.execute("create table t (id int primary key)")
    slots: list[Any] = []
    query = "select slot_name from pg_replication_slots where database = current_database()"
    failpoints.arm(
        "snapshot.taken", lambda: slots.append(process.wait_until(lambda: place.rows(query) == [], timeout=10))
    )
    with open_snapshot(place.conninfo, [T]):
        assert place.rows(query) == []
    assert slots == [True]


def test_a_locked_table_can_not_be_rewritten_meanwhile(place: Place) -> None:
    place.execute("create table t (id int primary key)")
    with open_snapshot(place.conninfo, [T]), pytest.raises(psycopg.errors.LockNotAvailable):
        place.execute("set lock_timeout = '50ms'", "alter table t add column x int")


TREE = (
    "create table t (id int, day int, primary key (id, day)) partition by list (day)",
    "create table t1 partition of t for values in (1)",
    "create table t2 partition of t for values in (2) partition by list (id)",
    "create table t21 partition of t2 default",
    "insert into t values (1, 1), (2, 2)",
)
PLAIN = ("create table t (id int primary key, a int, b text)", "insert into t values (1, 1, 'x')")
LATER = "create table later (id int not null, day int not null)"


@pytest.mark.parametrize(
    ("setup", "between", "expected"),
    [
        (PLAIN, ["vacuum full t"], 1),
        (PLAIN, ["cluster t using t_pkey"], 1),
        (PLAIN, ["truncate t"], 0),
        (PLAIN, ["alter table t alter column a type bigint"], 1),
        (PLAIN, ["alter table t add column c int"], 1),
        (PLAIN, ["alter table t drop column b"], 1),
        (PLAIN, ["alter table t rename column b to c"], 1),
        (PLAIN, ["alter table t alter column b type varchar"], 1),
        (PLAIN, ["drop table t", *PLAIN], 1),
        (PLAIN, ["alter table t rename to u", "create table t (like u)", "insert into t select * from u"], 1),
        (TREE, ["vacuum full t21"], 2),
        (TREE, ["truncate t1"], 1),
        (TREE, [LATER, "insert into later values (3, 3)", "alter table t attach partition later for values in (3)"], 3),
        (TREE, ["create table t22 partition of t2 for values in (7)", "insert into t values (7, 2)"], 3),
        (TREE, ["alter table t detach partition t1"], 1),
        (TREE, ["drop table t1"], 1),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else None,
)
def test_a_table_that_changes_between_snapshot_and_lock_gets_a_new_snapshot(
    place: Place, setup: Sequence[str], between: list[str], expected: int
) -> None:
    place.execute(*setup)
    taken = disturb(place, *between)
    with open_snapshot(place.conninfo, [T]) as holder:
        assert seen(place, holder, "select count(*) from t") == [(expected,)]
    assert taken.count == 2  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "between",
    [
        "insert into t values (2, 2, 'y')",
        "update t set a = a + 1",
        "analyze t",
        "vacuum t",
        "create index on t (a)",
        "create table child () inherits (t)",
        "create table other (id int)",
    ],
)
def test_what_does_not_touch_the_shape_needs_no_new_snapshot(place: Place, between: str) -> None:
    place.execute(*PLAIN)
    taken = disturb(place, between)
    with open_snapshot(place.conninfo, [T]) as holder:
        assert seen(place, holder, "select * from only t") == [(1, 1, "x")]
    assert taken.count == 1  # type: ignore[attr-defined]


def test_a_table_that_never_rests_is_given_up(place: Place) -> None:
    place.execute(*PLAIN)
    failpoints.arm("snapshot.taken", lambda: place.execute("vacuum full t"))
    with pytest.raises(SnapshotLost, match="changed each time") as caught:
        open_snapshot(place.conninfo, [T])
    assert caught.value.retry is Retry.TIMED
    assert left_over(place) == []


@pytest.mark.parametrize("statement", ["drop table t", "alter table t rename to u", "drop schema public cascade"])
def test_a_table_that_is_dropped_meanwhile_is_said(place: Place, statement: str) -> None:
    place.execute(*PLAIN)
    disturb(place, statement)
    with pytest.raises(SourceError, match=r"public\.t does not exist") as caught:
        open_snapshot(place.conninfo, [T])
    assert "discovery" in caught.value.hint
    assert caught.value.retry is Retry.MANUAL
    assert left_over(place) == []


def test_a_table_that_may_not_be_read_is_said_with_its_quoted_name(place: Place) -> None:
    role = f"poor_{place.name}"
    place.execute(f"create role {role} login replication password 'p'", 'create table "odd name" (id int)')
    try:
        with pytest.raises(SourceError, match="may not read") as caught:
            open_snapshot(place.with_(user=role, password="p"), [TableName("public", "odd name")])
    finally:
        place.execute(f"drop role {role}")
    assert 'grant select on "public"."odd name"' in caught.value.hint


def left_over(place: Place) -> list[tuple[Any, ...]]:
    """Connections of ours that are still there."""
    query = "select application_name from pg_stat_activity where application_name like 'pgetl:%' and datname = '{}'"
    process.wait_until(lambda: place.rows(query.format(place.name)) == [], timeout=10)
    return place.rows(query.format(place.name))


def test_a_lost_holder_knows_it(place: Place) -> None:
    place.execute(*PLAIN)
    holder = open_snapshot(place.conninfo, [T])
    holder.check()
    assert not holder.lost
    pid = holder.connection.info.backend_pid
    place.execute(f"select pg_terminate_backend({pid}, 10000)")
    with pytest.raises(SnapshotLost, match=holder.snapshot) as caught:
        holder.check()
    assert holder.lost
    assert caught.value.retry is Retry.TIMED
    holder.close()


def test_a_closed_holder_is_lost(place: Place) -> None:
    place.execute(*PLAIN)
    with open_snapshot(place.conninfo, [T]) as holder:
        assert not holder.lost
    assert holder.lost
    with pytest.raises(SnapshotLost):
        holder.check()


def test_an_old_snapshot_is_warned_about_once(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place.execute(*PLAIN)
    with open_snapshot(place.conninfo, [T]) as holder:
        holder.check()
        assert caplog.records == []
        assert 0 < holder.age_s < snapshots.OLD_AFTER_S
        monkeypatch.setattr(snapshots, "OLD_AFTER_S", 0.0)
        holder.check()
        holder.check()
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert str(holder.lsn) in warnings[0].getMessage()


def test_a_snapshot_waits_for_old_transactions_and_says_so(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row of the old transaction is in the snapshot: it would be in no stream that starts there."""
    monkeypatch.setattr(waiting, "POLL_S", 0.02)
    place.execute(*PLAIN)
    told: list[int] = []
    with (
        place.transaction("insert into t values (2)") as writer,
        in_background(lambda: open_snapshot(place.conninfo, [T], on_wait=told.append)) as made,
    ):
        assert process.wait_until(lambda: 1 in told, timeout=30)
        writer.commit()
    with made[0] as holder:
        assert seen(place, holder, "select id from t order by id") == [(1,), (2,)]
