"""A copy is invisible until it is promoted, complete, and brought once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import cloudpickle

from airflow_provider_pgetl.lakehouse.copy_worker import reader
from airflow_provider_pgetl.lakehouse.destination import LakeDestination
from airflow_provider_pgetl.local.process import wait_until
from airflow_provider_pgetl.replication import failpoints
from airflow_provider_pgetl.replication.destinations.base import Changes, CopyPlan, Partition
from airflow_provider_pgetl.replication.errors import (
    ConfigError,
    DestinationError,
    NotSupported,
    Overtaken,
    SourceError,
)
from airflow_provider_pgetl.replication.failpoints import Failpoint
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.schema import TableSchema
from airflow_provider_pgetl.replication.source import catalog
from airflow_provider_pgetl.replication.source.partitions import plan_partitions
from airflow_provider_pgetl.replication.source.snapshot import SnapshotHolder, open_snapshot
from tests.integration.lakehouse.spooling import Lake, Writer

if TYPE_CHECKING:
    from airflow_provider_pgetl.local.postgres import Database
    from airflow_provider_pgetl.local.spark import SparkServer

TABLE = """
create table shop.{name} (
    id bigint primary key, name text, note text, qty int, price numeric(12,2), big numeric, at timestamptz,
    ts timestamp, day date, tags text[], data jsonb, raw bytea, ok boolean, ratio double precision
)
"""
ROWS = """
insert into shop.{name}
select i, 'name ' || i, repeat('x', i % 50), i, i / 3.0, i / 7.0, now(), now(), current_date, array['a', i::text, null],
    jsonb_build_object('i', i), decode('00ff', 'hex'), i % 2 = 0, i / 3.0 from generate_series(1, {count}) i
"""


class Source:
    """A source table and plans to copy it."""

    def __init__(self, database: Database, name: str) -> None:
        self.database = database
        self.name = name
        self.holders: list[SnapshotHolder] = []
        self.execute("create schema if not exists shop")
        self.execute(TABLE.format(name=name))
        self.execute(f"create publication pub_{name} for table shop.{name}")

    def execute(self, statement: str) -> list[Any]:
        with self.database.connect() as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def fill(self, count: int) -> None:
        self.execute(ROWS.format(name=self.name, count=count))

    def plan(self, generation: int = 1, connections: int = 4) -> CopyPlan:
        with self.database.connect() as connection:
            relation = connection.execute("select %s::regclass::oid::int8", (f"shop.{self.name}",)).fetchone()
            assert relation is not None
            published = catalog.describe(connection, f"pub_{self.name}", int(str(relation[0])))
        assert published is not None
        holder = open_snapshot(self.database.conninfo, [published.schema.table])
        self.holders.append(holder)
        partitions = plan_partitions(holder.connection, published, connections)
        return CopyPlan(published.schema, generation, holder.snapshot, holder.lsn, partitions)

    def close(self) -> None:
        for holder in self.holders:
            holder.close()


@pytest.fixture
def source(database: Database, request: pytest.FixtureRequest) -> Iterator[Source]:
    name = f"t{abs(hash(request.node.nodeid)) % 10**9}"
    source = Source(database, name)
    yield source
    source.close()


@pytest.fixture
def copier(spark: SparkServer, database: Database) -> Iterator[LakeDestination]:
    destination = LakeDestination(spark.url, catalog="lake", source=database.conninfo)
    destination.startup()
    yield destination
    destination.shutdown()
    failpoints.disarm()


def copy(destination: LakeDestination, plan: CopyPlan) -> int:
    destination.begin_copy(plan)
    rows = sum(destination.copy_partition(plan, partition).rows for partition in plan.partitions)
    destination.finish_copy(plan)
    return rows


def nothing(plan: CopyPlan, *, to_lsn: int | None = None, epoch: int = 1) -> Changes:
    return Changes(plan.schema, plan.generation, epoch, plan.lsn, Lsn(to_lsn or plan.lsn), ())


def count(lake: Lake, schema: TableSchema) -> int:
    name = f"lake.`{schema.table.schema}`.`{schema.table.name}`"
    return int(lake.spark.sql(f"select count(*) from {name}").collect()[0][0])


def test_a_copied_table_holds_what_the_source_holds(lake: Lake, source: Source, copier: LakeDestination) -> None:
    source.fill(5000)
    plan = source.plan()
    assert copy(copier, plan) == 5000
    assert count(lake, plan.schema) == 0
    applied = copier.promote(nothing(plan))
    marker = copier.marker(plan.schema)
    assert marker is not None
    assert (marker.lsn, marker.generation, marker.epoch) == (plan.lsn, 1, 1)
    assert marker.snapshot_id == applied.snapshot_id
    name = f"lake.shop.{source.name}"
    row = lake.spark.sql(f"select * from {name} where id = 10").collect()[0]
    there = source.execute(
        f"select name, qty, price, big::text, day, tags, raw, ratio from shop.{source.name} where id = 10"
    )
    assert tuple(row[name] for name in ("name", "qty", "price", "big", "day", "tags", "raw", "ratio")) == tuple(
        bytearray(value) if isinstance(value, bytes) else value for value in there[0]
    )
    assert (row["_pgetl_lsn"], row["_pgetl_ordinal"], row["_pgetl_overflow"]) == (int(plan.lsn) - 1, 0, None)
    sums = "select count(*), sum(id), sum(qty), sum(price), count(distinct note) from {}"
    assert (
        tuple(lake.spark.sql(sums.format(name)).collect()[0]) == source.execute(sums.format(f"shop.{source.name}"))[0]
    )


def test_an_empty_table_is_copied_and_promoted(lake: Lake, source: Source, copier: LakeDestination) -> None:
    plan = source.plan()
    assert copy(copier, plan) == 0
    copier.promote(nothing(plan))
    assert count(lake, plan.schema) == 0
    assert lake.branches(_writer(lake, plan)) == {"main", "pgetl_1"}


def test_a_partition_that_is_in_is_not_brought_again(lake: Lake, source: Source, copier: LakeDestination) -> None:
    source.fill(300)
    plan = source.plan()
    copier.begin_copy(plan)
    first = [copier.copy_partition(plan, partition) for partition in plan.partitions]
    again = [copier.copy_partition(plan, partition) for partition in plan.partitions]
    assert [part.rows for part in again] == [part.rows for part in first]
    copier.finish_copy(plan)
    copier.promote(nothing(plan))
    assert count(lake, plan.schema) == 300


def test_a_partition_lost_after_its_commit_is_not_brought_again(
    lake: Lake, source: Source, copier: LakeDestination
) -> None:
    source.fill(100)
    plan = source.plan()
    copier.begin_copy(plan)
    failpoints.arm("copy.appended")
    with pytest.raises(Failpoint):
        copier.copy_partition(plan, plan.partitions[0])
    failpoints.disarm()
    for partition in plan.partitions:
        copier.copy_partition(plan, partition)
    copier.finish_copy(plan)
    copier.promote(nothing(plan))
    assert count(lake, plan.schema) == 100


def test_an_incomplete_copy_is_neither_finished_nor_promoted(source: Source, copier: LakeDestination) -> None:
    source.fill(100)
    plan = source.plan()
    copier.begin_copy(plan)
    with pytest.raises(DestinationError, match="not in"):
        copier.finish_copy(plan)
    with pytest.raises(DestinationError, match="not complete"):
        copier.promote(nothing(plan))


def test_partitions_are_copied_side_by_side(lake: Lake, source: Source, copier: LakeDestination) -> None:
    source.fill(2000)
    plan = source.plan()
    whole = plan.partitions[0].select
    parts = tuple(Partition(number, f"{whole} where id % 4 = {number}", 500, 1) for number in range(4))
    plan = replace(plan, partitions=parts)
    copier.begin_copy(plan)
    threads = [threading.Thread(target=copier.copy_partition, args=(plan, partition)) for partition in plan.partitions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    copier.finish_copy(plan)
    copier.promote(nothing(plan))
    assert count(lake, plan.schema) == 2000


def test_a_resync_is_invisible_until_it_is_promoted(lake: Lake, source: Source, copier: LakeDestination) -> None:
    source.fill(50)
    first = source.plan()
    copy(copier, first)
    copier.promote(nothing(first))
    source.execute(f"delete from shop.{source.name} where id > 20")
    second = source.plan(generation=2)
    copy(copier, second)
    assert count(lake, first.schema) == 50
    copier.promote(nothing(second, epoch=2))
    assert count(lake, first.schema) == 20
    marker = copier.marker(first.schema)
    assert marker is not None
    assert marker.generation == 2
    assert lake.branches(_writer(lake, first)) == {"main", "pgetl_2"}


def test_a_resync_replaces_a_table_that_moved_meanwhile(lake: Lake, source: Source, copier: LakeDestination) -> None:
    source.fill(50)
    first = source.plan()
    copy(copier, first)
    copier.promote(nothing(first))
    second = source.plan(generation=2)
    copier.begin_copy(second)
    writer = _writer(lake, first)
    writer._event("d", {"id": 1}).commit()
    copier.apply(writer.changes())
    for partition in second.partitions:
        copier.copy_partition(second, partition)
    copier.finish_copy(second)
    assert count(lake, first.schema) == 49
    copier.promote(nothing(second))
    assert count(lake, first.schema) == 50


@pytest.mark.parametrize("place", ["apply.branched", "promote.prepared", "apply.published", "promote.swapped"])
def test_promote_is_idempotent_wherever_it_was_killed(
    lake: Lake, source: Source, copier: LakeDestination, fresh: LakeDestination, place: str
) -> None:
    source.fill(20)
    plan = source.plan()
    copy(copier, plan)
    writer = _writer(lake, plan)
    writer._event("d", {"id": 3}).commit()
    changes = writer.changes()
    failpoints.arm(place)
    with pytest.raises(Failpoint):
        copier.promote(changes)
    failpoints.disarm()
    later = replace(changes, epoch=2)
    snapshot = fresh.promote(later).snapshot_id
    assert fresh.promote(later).snapshot_id == snapshot
    assert count(lake, plan.schema) == 19
    assert "pgetl_copy_1" not in lake.branches(writer)


def test_changes_since_the_snapshot_are_merged_by_promote(lake: Lake, source: Source, copier: LakeDestination) -> None:
    source.fill(20)
    plan = source.plan()
    copy(copier, plan)
    writer = _writer(lake, plan)
    empty = {column.name: None for column in plan.schema.columns}
    writer._event("u", {**empty, "id": 5, "name": "new"})._event("i", {**empty, "id": 99})._event(
        "d", {"id": 6}
    ).commit()
    copier.promote(writer.changes())
    name = f"lake.shop.{source.name}"
    rows = lake.spark.sql(f"select id, name from {name} where id in (5, 6, 99) order by id").collect()
    assert [tuple(row) for row in rows] == [(5, "new"), (99, None)]
    assert count(lake, plan.schema) == 20


def test_an_older_generation_is_refused(source: Source, copier: LakeDestination) -> None:
    plan = source.plan(generation=2)
    copier.begin_copy(plan)
    with pytest.raises(Overtaken):
        copier.begin_copy(replace(plan, generation=1))


def test_a_generation_that_the_lake_has_seen_is_refused(source: Source, copier: LakeDestination) -> None:
    plan = source.plan()
    copy(copier, plan)
    copier.promote(nothing(plan))
    with pytest.raises(DestinationError, match="generation 1 already"):
        copier.begin_copy(plan)


def test_begin_drops_what_an_earlier_generation_left(lake: Lake, source: Source, copier: LakeDestination) -> None:
    source.fill(10)
    copy(copier, source.plan(generation=1))
    plan = source.plan(generation=2)
    assert copy(copier, plan) == 10
    assert lake.branches(_writer(lake, plan)) == {"pgetl_copy_2"}


def test_other_columns_are_refused_clearly(source: Source, copier: LakeDestination) -> None:
    copier.begin_copy(source.plan())
    source.close()
    source.holders.clear()
    source.execute(f"alter table shop.{source.name} add column extra int")
    with pytest.raises(NotSupported, match="extra"):
        copier.begin_copy(source.plan(generation=2))


def test_a_lost_snapshot_comes_out_as_the_source_error_that_it_is(source: Source, copier: LakeDestination) -> None:
    source.fill(10)
    plan = replace(source.plan(), snapshot="00000099-00000099-1")
    copier.begin_copy(plan)
    with pytest.raises(SourceError):
        copier.copy_partition(plan, plan.partitions[0])


def test_a_copy_without_conninfo_says_so(fresh: LakeDestination, source: Source) -> None:
    source.fill(1)
    plan = source.plan()
    with pytest.raises(ConfigError, match="conninfo"):
        fresh.copy_partition(plan, plan.partitions[0])


def test_the_conninfo_does_not_travel_with_the_function(source: Source, database: Database) -> None:
    plan = source.plan()
    read = reader(source_file="f", snapshot="", select=plan.partitions[0].select, schema=plan.schema.to_json(), lsn=1)
    pickled = cloudpickle.dumps(read)
    assert plan.partitions[0].select.encode() in pickled
    assert database.password.encode() not in pickled


def test_cancel_interrupts_a_running_copy_and_leaves_no_backend(source: Source, copier: LakeDestination) -> None:
    source.fill(10)
    plan = source.plan()
    # A row now and then: a backend notices that its client is gone when it sends.
    rows = f"select q.* from ({plan.partitions[0].select}) q, generate_series(1, 10000) g"
    slow = replace(plan.partitions[0], select=f"{rows} where pg_sleep(0.01)::text = ''")
    copier.begin_copy(plan)
    errors: list[BaseException] = []

    def run() -> None:
        try:
            copier.copy_partition(plan, slow)
        except DestinationError as error:
            errors.append(error)

    sleeping = "select count(*) from pg_stat_activity where query like '%pg_sleep(0.01)%' and pid <> pg_backend_pid()"
    thread = threading.Thread(target=run)
    thread.start()
    assert wait_until(lambda: source.execute(sleeping)[0][0] > 0, timeout=30)
    copier.cancel()
    thread.join(10)
    assert not thread.is_alive()
    assert "cancelled" in str(errors[0])
    assert wait_until(lambda: source.execute(sleeping)[0][0] == 0, timeout=10)
    assert copier.copy_partition(plan, plan.partitions[0]).rows == 10


def _writer(lake: Lake, plan: CopyPlan) -> Writer:
    return Writer(plan.schema, Path(lake.folder), lsn=int(plan.lsn), from_lsn=int(plan.lsn), generation=plan.generation)
