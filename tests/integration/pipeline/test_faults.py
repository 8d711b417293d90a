"""Whatever breaks, at whatever moment: nothing is lost, nothing is doubled, and it goes on by itself."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_pgetl.local.postgres import EmbeddedPostgres
from airflow_provider_pgetl.replication import MemoryDestination, PostgresStore, failpoints
from airflow_provider_pgetl.replication.errors import DestinationError, DestinationUnreachable
from airflow_provider_pgetl.replication.events import Events
from tests.integration.conftest import FAST
from tests.integration.pipeline.live import Killed, Live, make_live

TABLE = "create table t (id int primary key, v text)"
ROWS = "insert into t select i, 'v' from generate_series(1, 500) i"
PUBLISH = "create publication pub for table t"
CHANGES = (
    "update t set v = v || '!' where id % 2 = 0",
    "delete from t where id % 5 = 0",
    "insert into t values (1000, 'n')",
)

POINTS = [
    "copy.planned",
    "copy.finished",
    "catchup.begun",
    "catchup.promoted",
    "spool.written",
    "ledger.before",
    "ledger.after",
    "confirm.before",
    "apply.before_record",
    "cut.before",
]


@pytest.mark.parametrize("point", POINTS)
def test_a_restart_after_a_crash_at_any_point(live: Live, point: str) -> None:
    live.execute(TABLE, ROWS, PUBLISH)
    hits = 0

    def die() -> None:
        nonlocal hits
        hits += 1
        raise Killed

    failpoints.arm(point, die)
    with pytest.raises(Killed), live.running():
        live.execute(*CHANGES)
        live.wait_for(lambda: hits > 0, "the crash")
        raise Killed
    failpoints.disarm()
    live.execute("update t set v = 'after the crash' where id < 50")
    with live.running():
        live.settle()
        live.assert_equal()


def test_connections_that_are_cut_again_and_again(live: Live) -> None:
    live.execute(TABLE, ROWS, PUBLISH)
    chance = random.Random(7)
    with live.running() as pipeline:
        live.settle()
        for number in range(12):
            live.execute(f"insert into t values ({2000 + number}, 'x')", f"update t set v = 'c{number}' where id < 30")
            if chance.random() < 0.7:
                live.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'pgetl:%'"
                )
        live.settle()
        live.assert_equal()
        status = pipeline.status()
        assert status is not None
        assert status.reconnects > 0


class Faulty(MemoryDestination):
    """Rejects, fails after writing, or is out of reach, as told."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[Any] = []

    def write_events(self, events: Events) -> None:
        fault = self.faults.pop(0) if self.faults else None
        if fault is not None and fault != "after":
            raise fault
        super().write_events(events)
        if fault == "after":
            raise DestinationUnreachable("gone after writing")


@pytest.mark.parametrize(
    "faults",
    [
        [DestinationUnreachable("down")] * 3,
        ["after", "after"],
        [ZeroDivisionError()],
        [DestinationUnreachable("down"), "after", ZeroDivisionError()],
    ],
    ids=["unreachable", "fails after writing", "unknown error", "all of it"],
)
def test_a_faulty_destination_gets_everything_in_the_end(live: Live, faults: list[Any]) -> None:
    live.destination = Faulty()
    live.execute(TABLE, ROWS, PUBLISH)
    with live.running():
        live.settle()
        live.destination.faults = list(faults)
        live.execute(*CHANGES)
        live.wait_for(lambda: not live.destination.faults, "the faults to be over")
        live.settle()
        live.assert_equal()


def test_a_rejected_table_is_put_aside_and_the_others_go_on(live: Live) -> None:
    class Picky(MemoryDestination):
        def write_events(self, events: Events) -> None:
            if events.table.name == "t":
                raise DestinationError("no room for t", hint="Make room.")
            super().write_events(events)

    live.destination = Picky()
    live.execute(TABLE, ROWS, "create table u (id int primary key)", "create publication pub for table t, u")
    with live.running():
        live.settle()
        live.execute("update t set v = 'x'", "insert into u values (1)")
        live.settle(errored=1)
        live.assert_equal("u")
        state = live.table("t").state
        assert (state.reason, state.hint) == ("no room for t", "Make room.")


def test_a_failing_copy_is_tried_again_as_a_new_generation(live: Live) -> None:
    left = [2]

    class Slow(MemoryDestination):
        def write_table_rows(self, schema: Any, rows: Any) -> None:
            if left[0]:
                left[0] -= 1
                raise DestinationUnreachable("not yet")
            super().write_table_rows(schema, rows)

    live.destination = Slow()
    live.execute(TABLE, ROWS, PUBLISH)
    with live.running():
        live.settle()
        live.assert_equal()


def test_a_spool_that_does_not_survive_is_read_again_from_the_source(live: Live, tmp_path: Path) -> None:
    object.__setattr__(live.config, "spool_durable", False)
    live.execute(TABLE, ROWS, PUBLISH)
    with live.running():
        live.settle()

    class Down(MemoryDestination):
        def write_events(self, events: Events) -> None:
            raise DestinationUnreachable("down")

    down = Down()
    with live.running(down):
        live.execute(*CHANGES)
        target = live.lsn()
        live.wait_for(
            lambda: (p := live.store.pipeline(live.config.name)) is not None and p.spooled_lsn >= target, "spooling"
        )
    for file in tmp_path.rglob("*.parquet"):
        file.unlink()
    with live.running():
        live.settle()
        live.assert_equal()
        query = (
            f"select confirmed_flush_lsn >= '{target}' from pg_replication_slots where slot_name = '{live.config.slot}'"
        )
        live.wait_for(lambda: live.rows(query) == [(True,)], "the slot to move on when all is applied")


@pytest.fixture
def own_server(scratch: Path, tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    """A server that a test may stop."""
    with EmbeddedPostgres(scratch / f"own-{tmp_path.name}", settings=FAST) as server:
        yield server


def test_a_server_that_restarts_is_waited_for(own_server: EmbeddedPostgres, tmp_path: Path) -> None:
    live = make_live(own_server.create_database("shop"), str(tmp_path / "spool"))
    live.execute(TABLE, ROWS, PUBLISH)
    with live.running():
        live.settle()
        for _ in range(2):
            live.execute(*CHANGES[:2])
            own_server.stop()
            own_server.start()
        live.execute("insert into t values (5000, 'after')")
        live.settle()
        live.assert_equal()


def test_a_store_that_is_down_for_a_while_loses_nothing(live: Live, own_server: EmbeddedPostgres) -> None:
    """The walsender is kept alive and nothing is confirmed; then it goes on, if nobody has taken over."""
    store = PostgresStore(own_server.create_database("state").conninfo)
    store.create_tables()
    live.store = store
    live.execute(TABLE, ROWS, PUBLISH)
    slot = f"from pg_replication_slots where slot_name = '{live.config.slot}'"
    slot = f"select confirmed_flush_lsn::text, active_pid {slot}"
    with live.running():
        live.settle()
        own_server.stop()
        before = live.rows(slot)
        live.execute(*CHANGES)
        live.wait_for(lambda: "state database" in waiting_for(live), "the stream to wait", kinds=False)
        assert live.rows(slot) == before
        own_server.start()
        live.settle()
        live.assert_equal()
        assert live.rows(slot)[0][1] == before[0][1], "the same connection went on"
    store.close()


def test_a_promotion_after_all_was_spooled_is_followed(own_server: EmbeddedPostgres, tmp_path: Path) -> None:
    live = make_live(own_server.create_database("shop"), str(tmp_path / "spool"))
    live.execute(TABLE, ROWS, PUBLISH)
    with live.running():
        live.settle()
    _promote(own_server)
    live.execute(*CHANGES)
    with live.running():
        live.settle()
        live.assert_equal()
        assert live.table("t").generation == 1
    record = live.store.pipeline(live.config.name)
    assert record is not None
    assert record.timeline == 2


def test_a_history_that_branched_before_what_was_spooled_is_copied_again(
    own_server: EmbeddedPostgres, tmp_path: Path
) -> None:
    live = make_live(own_server.create_database("shop"), str(tmp_path / "spool"))
    live.execute(TABLE, ROWS, PUBLISH)
    with live.running():
        live.settle()
    own_server.stop()
    backup = tmp_path / "backup"
    _copy_folder(own_server, backup)
    own_server.start()
    live.execute("insert into t select i, 'never was' from generate_series(3000, 3999) i")
    with live.running():
        live.settle()
        assert len(live.destination.rows("public.t")) == 1500
    own_server.stop()
    _restore_folder(own_server, backup)
    _promote(own_server)
    live.execute("insert into t values (7000, 'the other history')")
    with live.running():
        live.wait_for(lambda: live.table("t").generation > 1, "a new generation")
        live.settle()
        live.assert_equal()


def waiting_for(live: Live) -> str:
    status = live.pipeline.status() if live.pipeline else None
    return (status.waiting_for if status else None) or ""


def _promote(server: EmbeddedPostgres) -> None:
    """The same data goes on as a new timeline."""
    server.stop()
    signal = server.data / "standby.signal"
    signal.touch()
    owner = server.data.stat()
    os.chown(signal, owner.st_uid, owner.st_gid)
    server.start()
    with server.database("postgres").connect() as connection:
        connection.execute("select pg_promote()")


def _copy_folder(server: EmbeddedPostgres, target: Path) -> None:
    subprocess.run(["cp", "-a", server.data, target], check=True)


def _restore_folder(server: EmbeddedPostgres, backup: Path) -> None:
    shutil.rmtree(server.data)
    subprocess.run(["cp", "-a", backup, server.data], check=True)
