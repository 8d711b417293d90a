"""A spool at its quota, over a real source: one table is given up, the others lose nothing, a new copy heals it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_pgetl.local.postgres import Database
from airflow_provider_pgetl.replication.config import BatchConfig
from airflow_provider_pgetl.replication.errors import DestinationError, DestinationUnreachable
from airflow_provider_pgetl.replication.lsn import ZERO
from airflow_provider_pgetl.replication.retention import PUT_ASIDE, SpoolKeeper
from airflow_provider_pgetl.replication.spool.segments import Spool
from airflow_provider_pgetl.replication.state import StateKind
from airflow_provider_pgetl.replication.store.postgres import PostgresStore
from tests.integration.replication.conftest import Source
from tests.integration.replication.test_apply import Scene

QUOTA = 200_000
ROWS = 1500  # some 120 kB of spool: the values don't compress


@pytest.fixture(params=["memory", "postgres"])
def scene(request: pytest.FixtureRequest, source: Source, database: Database) -> Iterator[Scene]:
    """The tables a and b are ready; the spool may hold 200 kB."""
    store = PostgresStore(database.conninfo)
    if request.param == "postgres":
        store.create_tables()
        source.store = store  # type: ignore[assignment]
    object.__setattr__(source.config, "batch", BatchConfig(max_fill_ms=50, max_bytes=QUOTA // 2))
    object.__setattr__(source.config, "spool_quota_bytes", QUOTA)
    source.execute(
        "create table a (id int primary key, v text)",
        "create table b (id int primary key, v text)",
        "create publication pub for table a, b",
    )
    source.discover()
    scene = Scene(source)
    for name in ("a", "b"):
        scene.copy(name)
    scene.cycle()
    yield scene
    store.close()


def write(scene: Scene, table: str, first: int) -> None:
    scene.source.execute(
        f"insert into {table} select i, md5(i::text) || md5((-i)::text)"
        f" from generate_series({first}, {first + ROWS - 1}) i"
    )


def tidy(scene: Scene) -> SpoolKeeper:
    lease = scene.lease()
    keeper = SpoolKeeper(scene.source.config, scene.store, Spool(scene.source.config.spool_root, scene.name, 9), lease)
    keeper.tidy(now=True)
    return keeper


def break_a(scene: Scene) -> None:
    scene.lake.fail[scene.table("a").relation_id] = DestinationError("no room", hint="make room")
    write(scene, "a", 1)
    scene.cycle()
    assert scene.kind("a") is StateKind.ERRORED


def assert_spool_is_as_registered(scene: Scene) -> None:
    there = {str(path) for path in Path(scene.source.config.spool_root).rglob("*") if path.is_file()}
    assert there == scene.store.all_paths(scene.name)


def test_an_errored_table_fills_the_spool_is_put_aside_and_healed_by_a_copy(scene: Scene) -> None:
    break_a(scene)
    tidy(scene)
    assert scene.table("a").generation == 1, "there is room yet"
    write(scene, "b", 1)
    scene.source.spool_all()
    keeper = tidy(scene)
    assert (scene.table("a").generation, scene.table("a").state) == (2, PUT_ASIDE)
    assert keeper.stats.bytes < QUOTA * 0.95
    assert_spool_is_as_registered(scene)
    scene.cycle()
    scene.assert_equal("b")
    frozen = dict(scene.lake.tables[scene.table("a").relation_id])
    # Whatever people press, the table is not taken up where its changes are missing.
    scene.lake.fail.clear()
    scene.store.rollback(scene.table("a"), by="somebody")
    scene.source.execute("insert into a values (1000000, 'later')")
    scene.cycle()
    assert scene.kind("a") is StateKind.INIT
    assert scene.lake.tables[scene.table("a").relation_id] == frozen
    scene.copy("a")
    write(scene, "b", 10_000)
    scene.cycle()
    tidy(scene)
    assert scene.kind("a") is StateKind.READY
    scene.assert_equal("a")
    scene.assert_equal("b")
    assert_spool_is_as_registered(scene)


def test_while_the_lake_is_down_the_quota_holds(scene: Scene) -> None:
    for name in ("a", "b"):
        scene.lake.fail[scene.table(name).relation_id] = DestinationUnreachable("down")
    write(scene, "b", 1)
    scene.source.spool_all()
    write(scene, "a", 1)
    with pytest.raises(DestinationUnreachable):
        scene.cycle()
    keeper = tidy(scene)
    assert keeper.stats.bytes < QUOTA * 0.95
    assert (scene.table("b").state, scene.kind("a")) == (PUT_ASIDE, StateKind.READY)
    scene.lake.fail.clear()
    scene.cycle()
    scene.assert_equal("a")


def test_changes_of_a_waiting_table_are_dropped_and_a_later_copy_misses_none(scene: Scene) -> None:
    relation_id = scene.store.new_generation(scene.name, scene.table("a").relation_id, by="resync").relation_id
    write(scene, "a", 1)
    scene.source.spool_all()
    assert scene.store.files(scene.name, relation_id, ZERO, scene.source.lsn())
    tidy(scene)
    assert scene.store.files(scene.name, relation_id, ZERO, scene.source.lsn()) == []
    with scene.source.streaming():
        scene.copy("a")
        scene.source.execute("update a set v = 'after the copy' where id <= 10", "delete from a where id > 1000")
        scene.source.wait_spooled(scene.source.lsn())
    tidy(scene)
    scene.cycle()
    scene.assert_equal("a")
