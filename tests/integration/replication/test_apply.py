"""Copy, catch-up, apply, cuts and commands over a fake lake: the paths' own rules, on a real source."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from airflow_provider_pgetl.replication import failpoints
from airflow_provider_pgetl.replication.apply import Applier
from airflow_provider_pgetl.replication.errors import DestinationError, DestinationUnreachable, SourceUnreachable
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.pipeline import Pipeline
from airflow_provider_pgetl.replication.progress import Lease, TableRecord
from airflow_provider_pgetl.replication.source.snapshot import open_snapshot
from airflow_provider_pgetl.replication.spool.segments import Spool
from airflow_provider_pgetl.replication.state import StateKind
from airflow_provider_pgetl.replication.table_copy import CopyProgress, copy_table
from tests.integration.replication.conftest import Source
from tests.integration.replication.lake import FakeLake


@pytest.fixture
def two_tables(source: Source) -> Source:
    source.execute(
        "create table a (id int primary key, v text)",
        "create table b (id int primary key, v text)",
        "insert into a select i, 'a' from generate_series(1, 500) i",
        "insert into b select i, 'b' from generate_series(1, 500) i",
        "create publication pub for table a, b",
    )
    source.discover()
    return source


class Scene:
    """A source, its fake lake, an applier under a lease."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.store = source.store
        self.name = source.config.name
        self.lake = FakeLake(source.conninfo, Spool(source.config.spool_root, self.name, 0))
        self.applier = self.take_over()

    def take_over(self) -> Applier:
        lease = self.lease()
        self.applier = Applier(self.source.config, self.store, self.lake, lease)
        return self.applier

    def lease(self) -> Lease:
        lease = self.store.acquire(self.name, "stream", "test", 60)
        assert lease is not None
        return lease

    def table(self, name: str) -> TableRecord:
        return next(record for record in self.store.tables(self.name) if record.table.name == name)

    def kind(self, name: str) -> StateKind:
        return self.table(name).state.kind

    def copy(self, name: str) -> None:
        copy_table(self.source.config, self.source.conninfo, self.store, self.lake, self.table(name), by="test")

    def cycle(self) -> Lsn | None:
        self.source.spool_all()
        self.take_over()  # the stream of the test takes the lease for itself
        return self.applier.cycle()

    def assert_equal(self, name: str) -> None:
        rows = {(row[0],): {"id": row[0], "v": row[1]} for row in self.source.rows(f"select id, v from {name}")}
        assert self.lake.tables[self.table(name).relation_id] == rows


@pytest.fixture
def scene(two_tables: Source) -> Scene:
    return Scene(two_tables)


def test_a_copied_table_catches_up_and_becomes_ready(scene: Scene) -> None:
    scene.source.execute("update a set v = 'before the copy' where id < 10")
    scene.copy("a")
    scene.source.execute("update a set v = 'after the copy' where id > 490", "delete from a where id = 1")
    assert scene.kind("a") is StateKind.SYNC_WAIT
    target = scene.cycle()
    assert scene.kind("a") is StateKind.READY
    assert scene.table("a").applied_lsn == target
    scene.assert_equal("a")
    scene.source.execute("insert into a values (1, 'back')", "update b set v = 'spooled, not applied'")
    scene.cycle()
    scene.assert_equal("a")
    assert scene.kind("b") is StateKind.INIT


def test_progress_of_a_copy_is_told(scene: Scene) -> None:
    told: list[CopyProgress] = []
    copy_table(
        scene.source.config,
        scene.source.conninfo,
        scene.store,
        scene.lake,
        scene.table("a"),
        by="test",
        on_progress=told.append,
    )
    assert (told[0].partitions_done, told[0].rows) == (0, 0)
    assert (told[-1].partitions_done, told[-1].rows) == (told[-1].partitions_total, 500)


def test_a_resync_is_a_new_generation_and_the_old_rows_stay(scene: Scene) -> None:
    scene.copy("a")
    scene.cycle()
    before = dict(scene.lake.tables[scene.table("a").relation_id])
    record = scene.store.new_generation(scene.name, scene.table("a").relation_id, by="somebody")
    scene.source.execute("update a set v = 'resynced'")
    scene.cycle()
    assert scene.lake.tables[record.relation_id] == before
    scene.copy("a")
    assert scene.lake.tables[record.relation_id] == before
    scene.cycle()
    scene.assert_equal("a")
    assert (scene.table("a").generation, scene.kind("a")) == (2, StateKind.READY)


@pytest.mark.parametrize("point", ["catchup.begun", "catchup.promoted", "apply.before_record", "cut.before"])
def test_a_crash_of_the_applier_is_repaired_by_the_marker(scene: Scene, point: str) -> None:
    scene.copy("a")
    if point == "cut.before":
        scene.cycle()
    scene.source.execute("update a set v = 'x' where id <= 100", "delete from a where id > 400")
    failpoints.arm(point, _die)
    with pytest.raises(KeyboardInterrupt):
        scene.cycle()
    failpoints.disarm()
    scene.source.execute("insert into a values (1000, 'later')")
    scene.cycle()
    assert scene.kind("a") is StateKind.READY
    scene.assert_equal("a")


def _die() -> None:
    """Past every handler, as a kill would be."""
    raise KeyboardInterrupt


def test_one_bad_table_does_not_stop_the_other(scene: Scene) -> None:
    for name in ("a", "b"):
        scene.copy(name)
    scene.cycle()
    scene.lake.fail[scene.table("a").relation_id] = DestinationError("no room", hint="make room")
    scene.source.execute("update a set v = 'x'", "update b set v = 'y'")
    scene.cycle()
    state = scene.table("a").state
    assert (state.kind, state.reason, state.hint) == (StateKind.ERRORED, "no room", "make room")
    scene.assert_equal("b")
    cut = scene.store.latest_cut(scene.name)
    assert cut is not None
    assert [table.relation_id for table in cut.tables] == [scene.table("b").relation_id]


def test_a_timed_error_is_tried_again_and_loses_nothing(scene: Scene) -> None:
    object.__setattr__(scene.source.config, "table_error_retry_delay_ms", 1)
    scene.copy("a")
    scene.cycle()
    scene.lake.fail[scene.table("a").relation_id] = SourceUnreachable("for a moment")
    scene.source.execute("update a set v = 'x'")
    scene.cycle()
    assert scene.kind("a") is StateKind.ERRORED
    scene.lake.fail.clear()
    time.sleep(0.01)
    scene.cycle()  # returns to ready
    scene.cycle()
    scene.assert_equal("a")


def test_an_unreachable_lake_is_nobodys_error(scene: Scene) -> None:
    scene.copy("a")
    scene.cycle()
    scene.lake.fail[scene.table("a").relation_id] = DestinationUnreachable("down")
    scene.source.execute("update a set v = 'x'")
    with pytest.raises(DestinationUnreachable):
        scene.cycle()
    assert scene.kind("a") is StateKind.READY
    scene.lake.fail.clear()
    scene.cycle()
    scene.assert_equal("a")


def test_a_table_that_was_replaced_in_the_lake_is_errored(scene: Scene) -> None:
    scene.copy("a")
    scene.cycle()
    del scene.lake.markers[scene.table("a").relation_id]
    scene.source.execute("update a set v = 'x'")
    scene.cycle()
    assert scene.kind("a") is StateKind.ERRORED
    assert "not the one that pgetl wrote" in (scene.table("a").state.reason or "")


def test_changed_columns_put_the_table_aside_and_the_other_goes_on(scene: Scene) -> None:
    for name in ("a", "b"):
        scene.copy(name)
    scene.cycle()
    scene.source.execute("alter table a alter v type char(9)", "update a set v = 'x'", "update b set v = 'y'")
    scene.cycle()
    assert scene.kind("a") is StateKind.ERRORED
    assert "type of 'v' changed" in (scene.table("a").state.reason or "")
    scene.assert_equal("b")


def test_a_failed_copy_is_errored_and_a_new_generation_works(scene: Scene) -> None:
    scene.lake.fail[scene.table("a").relation_id] = DestinationError("no room")
    with pytest.raises(DestinationError):
        scene.copy("a")
    assert scene.kind("a") is StateKind.ERRORED
    scene.lake.fail.clear()
    scene.store.new_generation(scene.name, scene.table("a").relation_id, by="retry")
    scene.copy("a")
    scene.cycle()
    scene.assert_equal("a")


def test_a_cut_at_an_asked_lsn_is_exactly_there(scene: Scene) -> None:
    for name in ("a", "b"):
        scene.copy(name)
    scene.cycle()
    hold = scene.store.ask(scene.name, "hold", {"seconds": 60}, by="test")
    assert scene.applier.cycle() is None
    assert scene.store.command_result(scene.name, hold) == {"held": 60.0}
    scene.source.execute("update a set v = 'in the cut'")
    with open_snapshot(scene.source.conninfo, [scene.table("a").table, scene.table("b").table]) as holder:
        asked = scene.store.ask(scene.name, "cut", {"lsn": str(holder.lsn)}, by="test")
        scene.source.execute("update a set v = 'after the cut'", "delete from b")
        assert scene.cycle() == holder.lsn
    assert {row["v"] for row in scene.lake.tables[scene.table("a").relation_id].values()} == {"in the cut"}
    assert len(scene.lake.tables[scene.table("b").relation_id]) == 500
    result = scene.store.command_result(scene.name, asked)
    assert result is not None
    assert result["lsn"] == str(holder.lsn)
    scene.cycle()
    scene.assert_equal("a")
    scene.assert_equal("b")


@pytest.mark.parametrize(("payload", "message"), [({"lsn": "0/1"}, "past"), ({"lsn": "x"}, "not an LSN"), ({}, "LSN")])
def test_a_cut_that_cannot_be_is_answered(scene: Scene, payload: dict[str, Any], message: str) -> None:
    scene.copy("a")
    scene.cycle()
    asked = scene.store.ask(scene.name, "cut", payload, by="test")
    scene.applier.cycle()
    result = scene.store.command_result(scene.name, asked)
    assert result is not None
    assert message in result["error"]


def test_a_running_pipeline_follows_and_stops_cleanly(scene: Scene) -> None:
    asyncio.run(_follow(scene))
    scene.assert_equal("a")
    scene.assert_equal("b")


async def _follow(scene: Scene) -> None:
    object.__setattr__(scene.source.config, "apply_interval_ms", 50)
    pipeline = Pipeline(scene.source.config, scene.store, scene.lake, copies=False)
    await pipeline.start()
    waiting = asyncio.ensure_future(pipeline.wait())
    writing = threading.Thread(target=_write, args=(scene.source,))
    writing.start()
    for name in ("a", "b"):
        await asyncio.to_thread(scene.copy, name)
    await asyncio.to_thread(writing.join)
    target = scene.source.lsn()
    async with asyncio.timeout(30):
        while not (scene.kind("a") is scene.kind("b") is StateKind.READY and _cut(scene) >= target):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    status = pipeline.status()
    assert status is not None
    assert status.rows >= 400
    assert status.as_dict()["epoch"] == status.epoch
    await pipeline.shutdown()
    await waiting
    assert scene.store.acquire(scene.name, "stream", "next", 60) is not None, "the lease was given back"


def _cut(scene: Scene) -> Lsn:
    cut = scene.store.latest_cut(scene.name)
    return cut.lsn if cut else Lsn(0)


def _write(source: Source) -> None:
    for number in range(200):
        source.execute(
            f"insert into a values ({1000 + number}, 'while copying')",
            f"update b set v = 'v{number}' where id = {number % 50 + 1}",
        )


def test_a_resync_in_the_middle_of_an_apply_stops_nobody_else(scene: Scene) -> None:
    for name in ("a", "b"):
        scene.copy(name)
    scene.cycle()
    scene.source.execute("update a set v = 'x'", "update b set v = 'y'")
    relation_id = scene.table("a").relation_id

    def resync_once() -> None:
        failpoints.disarm()
        scene.store.new_generation(scene.name, relation_id, by="somebody")

    failpoints.arm("apply.before_record", resync_once)
    scene.source.spool_all()
    scene.take_over()
    object.__setattr__(scene.source.config, "max_parallel_applies", 1)
    scene.applier.cycle()
    assert scene.kind("a") is StateKind.INIT
    scene.cycle()
    scene.assert_equal("b")


def test_a_lake_that_is_down_at_the_start_does_not_stop_the_spooling(scene: Scene) -> None:
    def unreachable() -> None:
        raise DestinationUnreachable("down")

    scene.lake.startup = unreachable  # type: ignore[method-assign]
    asyncio.run(_spool_without_a_lake(scene))


async def _spool_without_a_lake(scene: Scene) -> None:
    pipeline = Pipeline(scene.source.config, scene.store, scene.lake, copies=False)
    await pipeline.start()
    scene.source.execute("update a set v = 'spooled'")
    await asyncio.to_thread(scene.source.wait_spooled, scene.source.lsn())
    status = pipeline.status()
    assert status is not None
    assert status.waiting_for == "down"
    await pipeline.shutdown()
