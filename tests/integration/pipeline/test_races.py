"""What people, the watch, the copier, the applier and a failing store do to each other."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import Any

import psycopg
import pytest

from airflow_provider_pgetl.local.postgres import Database
from airflow_provider_pgetl.replication import MemoryDestination, MemoryStore, failpoints
from airflow_provider_pgetl.replication.apply import Applier
from airflow_provider_pgetl.replication.errors import StoreError
from airflow_provider_pgetl.replication.events import Events
from airflow_provider_pgetl.replication.progress import TableRecord
from airflow_provider_pgetl.replication.relations import Relations
from airflow_provider_pgetl.replication.spool.segments import Spool
from airflow_provider_pgetl.replication.state import StateKind
from tests.integration.pipeline.live import Killed, Live, make_live

TABLE = "create table t (id int primary key, v text)"
PUBLISH = "create publication pub for table t"


@pytest.fixture
def plain(database: Database, tmp_path: Path) -> Live:
    """Without the source's DDL trigger."""
    return make_live(database, str(tmp_path / "spool"), ddl_capture="off")


@pytest.mark.parametrize("capture", ["auto", "off"])
def test_a_truncate_before_a_schema_change_in_one_transaction(database: Database, tmp_path: Path, capture: str) -> None:
    live = make_live(database, str(tmp_path / "spool"), ddl_capture=capture)
    live.execute(TABLE, "insert into t values (1, 'a')", PUBLISH)
    with live.running():
        live.settle()
        live.execute("begin; truncate t; alter table t add n int; insert into t values (2, 'b', 3); commit")
        live.settle()
        live.assert_equal()


def test_a_table_that_was_altered_left_and_came_back_is_followed(live: Live) -> None:
    live.execute(TABLE, "create table u (id int primary key)", "create publication pub for table t, u")
    with live.running():
        live.settle()
        live.execute("alter table t add n int", "insert into t values (1, 'a', 1)")
        live.settle()
        live.execute("alter publication pub drop table t")
        live.wait_for(lambda: "t" not in live.kinds(), "the table to leave")
        live.execute("alter publication pub add table t")
        live.wait_for(lambda: live.kinds().get("t") is StateKind.READY, "the table to be back")
        live.execute("insert into t values (2, 'b', 2)")
        live.settle()
        live.assert_equal()


def test_a_resync_after_a_change_that_rows_do_not_show(plain: Live) -> None:
    plain.execute(TABLE, "insert into t values (1, 'a')", PUBLISH)
    with plain.running():
        plain.settle()
        plain.execute("insert into t values (2, 'a')")
        plain.settle()
        plain.execute("alter table t alter v set default 'x'")
        plain.store.new_generation(plain.config.name, plain.table("t").relation_id, by="test")
        plain.wait_for(lambda: plain.table("t").state.kind is StateKind.READY, "the resync")
        plain.execute("insert into t values (3, 'c')")
        plain.settle()
        plain.assert_equal()


class Unsteady(MemoryStore):
    """Fails as told: ``faults`` of the calls of one name."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: dict[str, int] = {}

    def fault(self, name: str) -> None:
        if self.faults.get(name, 0):
            self.faults[name] -= 1
            raise StoreError("the state database is away")

    def applied_schema(self, *args: Any, **options: Any) -> Any:
        self.fault("applied_schema")
        return super().applied_schema(*args, **options)

    def move(self, record: Any, to: Any, **options: Any) -> Any:
        self.fault(str(to.kind))
        return super().move(record, to, **options)


def test_a_store_that_fails_after_a_schema_change_was_applied(live: Live) -> None:
    store = live.store = Unsteady()
    live.execute(TABLE, "insert into t values (1, 'a')", PUBLISH)
    with live.running():
        live.settle()
        store.faults["applied_schema"] = 1
        live.execute("alter table t add n int", "insert into t values (2, 'b', 2)")
        live.wait_for(lambda: not store.faults["applied_schema"], "the fault")
        live.execute("insert into t values (3, 'c', 3)")
        live.settle()
        live.assert_equal()


def test_a_store_that_is_away_while_a_copy_ends(live: Live) -> None:
    store = live.store = Unsteady()
    store.faults = {"finished_copy": 1, "errored": 1}
    live.execute(TABLE, "insert into t values (1, 'a')", PUBLISH)
    with live.running():
        live.settle()
        live.assert_equal()


def test_a_failed_copy_that_is_rolled_back_is_copied_again(live: Live) -> None:
    class Full(MemoryDestination):
        full = True

        def write_table_rows(self, schema: Any, rows: Any) -> None:
            if self.full:
                raise StoreError("full")
            super().write_table_rows(schema, rows)

    live.destination = Full()
    live.config = dataclasses.replace(live.config, table_error_retry_max_attempts=0)
    live.execute(TABLE, "insert into t values (1, 'a')", PUBLISH)
    with live.running():
        live.wait_for(lambda: live.table("t").state.kind is StateKind.ERRORED, "the error")
        live.destination.full = False
        live.store.rollback(live.table("t"), by="test")
        live.settle()
        live.assert_equal()


@pytest.mark.parametrize("point", ["catchup.promoted", "apply.before_applied", "apply.before_record"])
def test_a_crash_after_a_catch_up_with_a_schema_change(live: Live, point: str) -> None:
    live.execute(TABLE, "insert into t values (1, 'a')", PUBLISH)
    hits = 0

    def change() -> None:
        failpoints.disarm("copy.finished")
        live.execute("insert into t values (2, 'b')", "alter table t add n int", "insert into t values (3, 'c', 3)")
        target = live.lsn()
        live.wait_for(lambda: live.store.pipeline(live.config.name).spooled_lsn >= target, "the spool")  # type: ignore[union-attr]

    def die() -> None:
        nonlocal hits
        hits += 1
        raise Killed

    failpoints.arm("copy.finished", change)
    failpoints.arm(point, die)
    with pytest.raises(Killed), live.running():
        live.wait_for(lambda: hits > 0, "the crash")
        raise Killed
    failpoints.disarm()
    with live.running():
        live.execute("insert into t values (4, 'd', 4)")
        live.settle()
        live.assert_equal()


def test_a_resync_while_a_retry_is_due_stops_nobody(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    class Picky(MemoryDestination):
        bad = False

        def write_events(self, events: Events) -> None:
            if self.bad:
                self.bad = False
                raise ZeroDivisionError
            super().write_events(events)

    state_before, raced = Applier._state_before, threading.Event()

    def racing(self: Applier, record: TableRecord) -> Any:
        found = state_before(self, record)
        if not raced.is_set():
            live.store.new_generation(record.pipeline, record.relation_id, by="test")
            raced.set()
        return found

    monkeypatch.setattr(Applier, "_state_before", racing)
    live.destination = Picky()
    live.execute(TABLE, "insert into t values (1, 'a')", PUBLISH)
    with live.running():
        live.settle()
        live.destination.bad = True
        live.execute("insert into t values (2, 'b')")
        live.wait_for(raced.is_set, "the race")
        live.settle()
        live.assert_equal()


def test_a_cut_in_the_past_is_refused_after_a_restart(live: Live) -> None:
    live.execute(TABLE, "insert into t values (1, 'a')", PUBLISH)
    with live.running():
        live.settle()
        past = live.lsn()
        live.execute("insert into t values (2, 'b')")
        live.settle()
    asked = live.store.ask(live.config.name, "cut", {"lsn": str(past)}, by="test")
    with live.running():
        live.wait_for(lambda: live.store.command_result(live.config.name, asked) is not None, "an answer")
    result = live.store.command_result(live.config.name, asked)
    assert result is not None
    assert "error" in result


def test_a_resync_in_the_middle_of_a_delivery_does_not_mix_old_changes_into_the_copy(live: Live) -> None:
    class Slow(MemoryDestination):
        def __init__(self) -> None:
            super().__init__(strict=False)
            self.slow = False
            self.inside, self.copied = threading.Event(), threading.Event()

        def write_table_rows(self, schema: Any, rows: Any) -> None:
            super().write_table_rows(schema, rows)
            self.copied.set()

        def write_events(self, events: Events) -> None:
            if self.slow:
                self.slow = False
                self.copied.clear()
                self.inside.set()
                self.copied.wait(3)
            super().write_events(events)

    live.destination = Slow()
    live.execute(TABLE, "insert into t values (1, 'a')", PUBLISH)
    with live.running():
        live.settle()
        live.destination.slow = True
        live.execute("update t set v = 'b'")
        assert live.destination.inside.wait(20)
        live.execute("update t set v = 'c'")
        live.store.new_generation(live.config.name, live.table("t").relation_id, by="test")
        live.wait_for(lambda: live.table("t").state.kind is StateKind.READY, "the resync")
        live.settle()
        live.assert_equal()


def test_a_shutdown_does_not_wait_for_old_transactions_of_the_source(live: Live) -> None:
    live.execute(TABLE, "create table other (id int)", PUBLISH)
    with psycopg.connect(live.conninfo) as old, live.running():
        live.settle()
        old.execute("insert into other values (1)")
        live.store.new_generation(live.config.name, live.table("t").relation_id, by="test")
        live.wait_for(lambda: live.table("t").state.kind is StateKind.DATA_SYNC, "the copy")
        waiting = "select count(*) from pg_replication_slots where slot_name like 'pgetl_tmp%'"
        live.wait_for(lambda: live.rows(waiting)[0][0] == 1, "the snapshot")


def test_a_shutdown_does_not_wait_for_locks_of_the_source(live: Live) -> None:
    live.execute(TABLE, PUBLISH)
    with psycopg.connect(live.conninfo) as other, live.running():
        live.settle()
        other.execute("lock table t in access exclusive mode")
        live.store.new_generation(live.config.name, live.table("t").relation_id, by="test")
        waiting = "select count(*) from pg_locks where not granted"
        live.wait_for(lambda: live.rows(waiting)[0][0] >= 1, "the lock")


def test_a_shutdown_does_not_wait_for_a_long_copy(live: Live) -> None:
    class Slow(MemoryDestination):
        calls = 0
        going = threading.Event()

        def write_table_rows(self, schema: Any, rows: Any) -> None:
            self.calls += 1
            if self.calls > 1:
                self.going.wait(2)
            super().write_table_rows(schema, rows)

    live.destination = Slow()
    live.execute(
        "create table t (id int primary key, v text)",
        "insert into t select i, repeat('x', 800) from generate_series(1, 300000) i",
        "analyze t",
        PUBLISH,
    )
    with live.running():
        live.wait_for(lambda: live.destination.calls > 1, "the copy to run")
    assert live.table("t").state.kind is StateKind.DATA_SYNC


def test_a_cell_value_in_an_unexpected_error_stays_out_of_the_log(
    live: Live, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    live.execute(TABLE, PUBLISH)
    with live.running():
        live.settle()

        def broken(self: Any, file: Any) -> Any:
            raise ValueError("can't parse 'my secret cell'")

        monkeypatch.setattr(Spool, "read", broken)
        live.execute("insert into t values (1, 'a')")
        live.wait_for(lambda: live.table("t").state.kind is StateKind.ERRORED, "the error")
    assert "my secret cell" not in caplog.text


def test_a_table_that_is_dropped_and_made_again_under_its_name(live: Live) -> None:
    live.execute(TABLE, "insert into t values (1, 'a')", "create publication pub for all tables")
    with live.running():
        live.settle()
        old = live.table("t").relation_id
        live.execute("insert into t values (2, 'b')", "drop table t", TABLE, "insert into t values (3, 'c')")
        live.wait_for(lambda: live.table("t").relation_id != old and len(live.kinds()) == 1, "the new one")
        live.settle()
        live.assert_equal()


def test_transactions_with_only_messages_leave_nothing_behind(live: Live) -> None:
    live.execute(TABLE, PUBLISH)
    with live.running():
        live.settle()
        for _ in range(3):
            live.execute("select pg_logical_emit_message(true, 'other', 'x')")
            live.settle()
        assert not live.store._pipelines[live.config.name].segments


def test_a_copy_that_is_ahead_of_a_rewrite_in_the_stream(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copy and stream know the shape by two versions, and the source falls silent while the stream has work."""
    live.execute("create table t (id int primary key, v int)", "insert into t values (1, 1)", PUBLISH)
    with live.running():
        live.settle()
    live.execute("alter table t alter v type bigint using v * 10")
    live.store.new_generation(live.config.name, live.table("t").relation_id, by="test")
    announce, copied = Relations.announce, threading.Event()

    def late(self: Relations, message: Any, lsn: Any) -> None:
        copied.wait(20)
        announce(self, message, lsn)

    monkeypatch.setattr(Relations, "announce", late)
    failpoints.arm("copy.finished", copied.set)
    with live.running():
        live.execute("insert into t values (2, 2)")
        live.settle()
        live.execute("insert into t values (3, 3)")
        live.settle()
        live.assert_equal()
