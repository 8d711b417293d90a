"""The copy plan: every row once, in a bounded number of jobs, largest first."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from airflow_provider_pgetl.replication.destinations.base import Partition
from airflow_provider_pgetl.replication.errors import NotSupported
from airflow_provider_pgetl.replication.source import partitions
from airflow_provider_pgetl.replication.source.catalog import PublishedTable
from airflow_provider_pgetl.replication.source.connection import connect
from airflow_provider_pgetl.replication.source.copy_out import RawRows, copy_rows
from airflow_provider_pgetl.replication.source.partitions import plan_partitions
from airflow_provider_pgetl.replication.source.snapshot import open_snapshot
from tests.integration.source.conftest import Place

ROOT = "create publication pub for table t with (publish_via_partition_root)"


def plan(place: Place, workers: int = 4, name: str = "t") -> tuple[Partition, ...]:
    table = place.table(name)
    with connect(place.conninfo, "test") as connection:
        return plan_partitions(connection, table, workers)


def read(place: Place, planned: Sequence[Partition]) -> list[tuple[Any, ...]]:
    """All rows of all partitions."""
    with psycopg.connect(place.conninfo, autocommit=True) as connection:
        return [row for part in planned for row in connection.execute(part.select.encode()).fetchall()]


def ids(place: Place, planned: Sequence[Partition]) -> list[int]:
    return sorted(row[0] for row in read(place, planned))


def fill(place: Place, table: str, low: int, high: int, pad: int = 200) -> None:
    place.execute(f"insert into {table} select i, repeat('x', {pad}) from generate_series({low}, {high}) i")


def leaves(place: Place, count: int) -> None:
    """`t` with so many empty leaves."""
    place.execute(
        "create table t (id int primary key, pad text) partition by range (id)",
        f"""do $$ begin for i in 0..{count - 1} loop
            execute format('create table t_%s partition of t for values from (%s) to (%s)', i, i * 10, i * 10 + 10);
        end loop; end $$""",
        ROOT,
    )


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Partitions of a thousand rows."""
    monkeypatch.setattr(partitions, "ROWS_PER_PARTITION", 1000)


def test_ranges_cover_every_row_once(place: Place, small: None) -> None:
    place.execute("create table t (id int primary key, pad text)", "create publication pub for table t")
    fill(place, "t", 1, 8000)
    place.execute("analyze t")
    planned = plan(place)
    assert len(planned) == 8
    assert [part.number for part in planned] == list(range(1, 9))
    assert ids(place, planned) == list(range(1, 8001))
    assert sum(part.estimated_rows for part in planned) == pytest.approx(8000, rel=0.01)
    size = place.rows("select pg_relation_size('t')")[0][0]
    assert sum(part.estimated_bytes for part in planned) == pytest.approx(size, rel=0.01)


def test_a_range_is_read_by_its_blocks_only(place: Place, small: None) -> None:
    place.execute("create table t (id int primary key, pad text)", "create publication pub for table t")
    fill(place, "t", 1, 4000)
    place.execute("analyze t")
    for part in plan(place):
        explained = "\n".join(row[0] for row in place.rows(f"explain {part.select}"))
        assert "Tid Range Scan" in explained


def test_an_empty_table_has_one_partition(place: Place) -> None:
    place.execute("create table t (id int primary key)", "create publication pub for table t")
    planned = plan(place)
    assert [(part.number, part.estimated_rows, part.estimated_bytes) for part in planned] == [(1, 0, 0)]
    assert read(place, planned) == []


def test_a_small_table_is_one_job(place: Place) -> None:
    place.execute("create table t (id int primary key, pad text)", "create publication pub for table t")
    fill(place, "t", 1, 5000)
    place.execute("analyze t")
    assert len(plan(place)) == 1


def test_each_worker_gets_a_part_of_a_table_that_is_worth_it(place: Place, small: None) -> None:
    place.execute("create table t (id int primary key, pad text)", "create publication pub for table t")
    fill(place, "t", 1, 900)
    place.execute("analyze t")
    assert len(plan(place, workers=4)) == 4
    assert len(plan(place, workers=1)) == 1


def test_a_table_that_was_never_analyzed_is_cut_by_its_size(place: Place, small: None) -> None:
    place.execute(
        "create table t (id int primary key, pad text) with (autovacuum_enabled = off)",
        "create publication pub for table t",
    )
    fill(place, "t", 1, 8000)
    assert place.rows("select reltuples from pg_class where relname = 't'") == [(-1,)]
    planned = plan(place)
    assert 4 < len(planned) < 40
    assert ids(place, planned) == list(range(1, 8001))


@pytest.mark.parametrize("before", [0, 1000])
def test_a_table_that_grew_since_it_was_analyzed_is_cut_by_what_it_is_now(
    place: Place, small: None, before: int
) -> None:
    place.execute(
        "create table t (id int primary key, pad text) with (autovacuum_enabled = off)",
        "create publication pub for table t",
    )
    fill(place, "t", 1, before)
    place.execute("analyze t")
    fill(place, "t", before + 1, 8000)
    planned = plan(place)
    assert len(planned) >= 8
    assert ids(place, planned) == list(range(1, 8001))


def test_rows_that_come_after_the_plan_are_in_the_open_end(place: Place, small: None) -> None:
    place.execute("create table t (id int primary key, pad text)", "create publication pub for table t")
    fill(place, "t", 1, 4000)
    place.execute("analyze t")
    planned = plan(place)
    fill(place, "t", 4001, 6000)
    assert ids(place, planned) == list(range(1, 6001))


def test_wide_values_count_though_they_lie_elsewhere(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "BYTES_PER_PARTITION", 1024**2)
    place.execute(
        "create table t (id int primary key, pad text)",
        "alter table t alter pad set storage external",
        "create publication pub for table t",
    )
    fill(place, "t", 1, 400, pad=20_000)
    planned = plan(place, workers=1)
    heap, toast = place.rows(
        "select pg_relation_size('t'), pg_relation_size(reltoastrelid) from pg_class where relname = 't'"
    )[0]
    assert toast > 7 * 1024**2
    blocks = heap // 8192
    assert len(planned) == min(blocks, -(-(heap + toast) // 1024**2))
    assert sum(part.estimated_bytes for part in planned) == pytest.approx(heap + toast, rel=0.01)
    assert ids(place, planned) == list(range(1, 401))


def test_there_are_never_too_many_partitions(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "ROWS_PER_PARTITION", 10)
    monkeypatch.setattr(partitions, "MAX_PARTITIONS", 16)
    place.execute("create table t (id int primary key, pad text)", "create publication pub for table t")
    fill(place, "t", 1, 4000)
    place.execute("analyze t")
    planned = plan(place)
    assert len(planned) == 16
    assert ids(place, planned) == list(range(1, 4001))


# Partitioned tables


def test_nested_leaves_are_read_each_once_and_the_largest_first(place: Place, small: None) -> None:
    place.execute(
        "create table t (id int primary key, pad text) partition by range (id)",
        "create table t1 partition of t for values from (0) to (5000)",
        "create table t2 partition of t for values from (5000) to (9000) partition by range (id)",
        "create table t21 partition of t2 for values from (5000) to (5010)",
        'create table "T 22" partition of t2 for values from (5010) to (9000)',
        "create table t3 partition of t default",
        ROOT,
    )
    fill(place, "t", 1, 9999)
    place.execute("analyze t1", "analyze t21", 'analyze "T 22"', "analyze t3")
    planned = plan(place)
    assert ids(place, planned) == list(range(1, 10000))
    sizes = [part.estimated_bytes for part in planned]
    assert sizes == sorted(sizes, reverse=True)
    assert 10 <= len(planned) <= 14
    assert sum(part.estimated_rows for part in planned) == pytest.approx(9999, rel=0.01)


def test_a_partitioned_table_without_partitions_is_empty(place: Place) -> None:
    place.execute("create table t (id int primary key) partition by range (id)", ROOT)
    planned = plan(place)
    assert len(planned) == 1
    assert read(place, planned) == []


def test_small_leaves_share_a_partition(place: Place) -> None:
    leaves(place, 100)
    fill(place, "t", 0, 999)
    planned = plan(place)
    assert len(planned) == 4, "of 32 leaves at most, so that a job does not take too many locks"
    assert max(part.select.count("from only") for part in planned) == partitions.LEAVES_PER_PARTITION
    assert ids(place, planned) == list(range(1000))


@pytest.mark.slow
def test_three_thousand_leaves_keep_the_bound(newest: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each leaf is worth several partitions, so that nothing but the bound holds the number down."""
    monkeypatch.setattr(partitions, "ROWS_PER_PARTITION", 1)
    monkeypatch.setattr(partitions, "LEAVES_PER_PARTITION", 1)
    newest.execute("create table t (id int) partition by range (id)")
    for begin in range(0, 3000, 500):  # a transaction for all would need more locks than the server has
        newest.execute(
            f"""do $$ begin for i in {begin}..{begin + 499} loop
                execute format('create table t_%s partition of t for values from (%s) to (%s)', i, i * 2, i * 2 + 2);
            end loop; end $$"""
        )
    newest.execute(
        "insert into t select generate_series(0, 5999)",
        "create publication pub for table t with (publish = 'insert', publish_via_partition_root)",
    )
    planned = plan(newest)
    assert len(planned) <= partitions.MAX_PARTITIONS
    assert ids(newest, planned) == list(range(6000))


def test_large_leaves_keep_the_bound_too(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is worth one partition and two thirds: two for each would be too many."""
    monkeypatch.setattr(partitions, "ROWS_PER_PARTITION", 10)
    monkeypatch.setattr(partitions, "MAX_PARTITIONS", 10)
    place.execute(
        "create table t (id int primary key, pad text) partition by range (id)",
        *(f"create table t{i} partition of t for values from ({i * 500}) to ({i * 500 + 500})" for i in range(6)),
        ROOT,
    )
    fill(place, "t", 0, 2999)
    planned = plan(place)
    assert len(planned) <= 10
    assert ids(place, planned) == list(range(3000))


def test_a_foreign_leaf_is_refused_by_name(place: Place) -> None:
    place.execute(
        "create foreign data wrapper nowhere",
        "create server nowhere foreign data wrapper nowhere",
        "create table t (id int) partition by list (id)",
        "create foreign table far partition of t for values in (4) server nowhere",
        "create publication pub for table t with (publish = 'insert', publish_via_partition_root)",
    )
    with pytest.raises(NotSupported, match=r"foreign table public\.far") as caught:
        plan(place)
    assert "Detach" in caught.value.hint


def test_a_child_by_inheritance_is_a_table_of_its_own(place: Place) -> None:
    place.execute(
        "create table t (id int primary key)",
        "create table child (primary key (id)) inherits (t)",
        "insert into t values (1)",
        "insert into child values (2)",
        "create publication pub for table t",
    )
    assert ids(place, plan(place)) == [1]
    assert ids(place, plan(place, name="child")) == [2]


def test_leaves_published_one_by_one_are_planned_alone(place: Place) -> None:
    leaves(place, 2)
    fill(place, "t", 0, 19)
    place.execute("alter publication pub set (publish_via_partition_root = false)")
    assert ids(place, plan(place, name="t_0")) == list(range(10))
    assert ids(place, plan(place, name="t_1")) == list(range(10, 20))


def test_the_plan_is_that_of_the_snapshot(place: Place) -> None:
    """A partition attached after the snapshot is not in its tree, though the newest catalog has it."""
    leaves(place, 2)
    fill(place, "t", 0, 19)
    place.execute("create table late (like t including all)", "insert into late values (25)")
    table = place.table()
    with open_snapshot(place.conninfo, [table.schema.table]) as holder:
        place.execute("alter table t attach partition late for values from (20) to (30)")
        planned = plan_partitions(holder.connection, table, 4)
    assert ids(place, planned) == list(range(20))


# What the publication shows


def test_only_rows_that_pass_the_filter_are_read(place: Place, small: None) -> None:
    place.execute(
        "create table t (id int primary key, pad text)",
        "create publication pub for table t where (id % 2 = 0 or id = 1)",
    )
    fill(place, "t", 1, 4000)
    place.execute("analyze t")
    planned = plan(place)
    assert len(planned) > 1
    assert ids(place, planned) == [1, *range(2, 4001, 2)]


def test_a_filter_with_braces_and_percents_is_kept(place: Place) -> None:
    place.execute(
        "create table t (id int, pad text)",
        "alter table t replica identity full",
        "create publication pub for table t where (pad like '{0}%%s')",
        "insert into t values (1, '{0}%s'), (2, 'other')",
    )
    assert ids(place, plan(place)) == [1]


def test_a_filter_of_the_root_holds_for_each_leaf(place: Place) -> None:
    place.execute(
        "create table t (id int primary key, pad text) partition by range (id)",
        "create table a partition of t for values from (0) to (10)",
        "create table b partition of t for values from (10) to (20)",
        "create publication pub for table t where (id % 2 = 0) with (publish_via_partition_root)",
    )
    fill(place, "t", 0, 19)
    assert ids(place, plan(place)) == list(range(0, 20, 2))


def test_only_columns_of_the_list_are_read(place: Place) -> None:
    place.execute(
        "create table t (id int primary key, secret text, shown text)",
        "create publication pub for table t (id, shown)",
        "insert into t values (1, 'hidden', 'open')",
    )
    planned = plan(place)
    assert "secret" not in planned[0].select
    assert read(place, planned) == [(1, "open")]


def test_leaves_with_columns_in_another_order_are_read_by_name(place: Place) -> None:
    place.execute(
        "create table t (id int, pad text) partition by range (id)",
        "create table a (pad text, gone int, id int)",
        "alter table a drop column gone",
        "alter table t attach partition a for values from (0) to (10)",
        "create table b partition of t for values from (10) to (20)",
        "insert into t values (1, 'one'), (11, 'eleven')",
        "create publication pub for table t with (publish = 'insert', publish_via_partition_root)",
    )
    planned = plan(place)
    assert len(planned) == 1
    assert sorted(read(place, planned)) == [(1, "one"), (11, "eleven")]


def test_a_shared_partition_is_one_binary_copy(place: Place) -> None:
    """What the copy reader makes of it: the same frames as from the table itself."""
    place.execute(
        "create table t (id int, at timestamptz, n numeric(9, 2), v varchar(5), c char(3), j jsonb)"
        " partition by range (id)",
        "create table a partition of t for values from (0) to (10)",
        "create table b partition of t for values from (10) to (20)",
        "insert into t select i, now(), i, 'abc', 'x', '{}' from generate_series(0, 19) i",
        "create publication pub for table t with (publish = 'insert', publish_via_partition_root)",
    )
    table: PublishedTable = place.table()
    with open_snapshot(place.conninfo, [table.schema.table]) as holder:
        (only,) = plan_partitions(holder.connection, table, 4)
        whole = re.sub(r" from only .*", " from public.t", only.select.split(" union all ")[0])
        frames = [
            sorted(row for raw in copy_rows(place.conninfo, holder.snapshot, query) for row in split(raw))
            for query in (only.select, whole)
        ]
    assert frames[0] == frames[1]
    assert len(frames[0]) == 20


def split(raw: RawRows) -> list[bytes]:
    """The rows one by one."""
    ends = list(itertools.accumulate(raw.lengths))
    return [bytes(raw.buffer[end - size : end]) for end, size in zip(ends, raw.lengths, strict=True)]
