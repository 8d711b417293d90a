"""The copy path's reader: ranges, partitions, names and refusals. Values are in ``test_types``."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_pgetl.replication.batch import change_schema, row_schema
from airflow_provider_pgetl.replication.config import PipelineConfig
from airflow_provider_pgetl.replication.destinations.base import Partition
from airflow_provider_pgetl.replication.errors import SnapshotLost, SourceError
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.source import catalog, partitions
from airflow_provider_pgetl.replication.source.connection import connect
from airflow_provider_pgetl.replication.source.snapshot import open_snapshot
from airflow_provider_pgetl.replication.table_copy import read_partition
from tests.integration.replication.conftest import Source


def copied(source: Source, name: str) -> tuple[list[dict[str, Any]], Lsn]:
    """All rows of a table by the copy path."""
    with connect(source.conninfo, "test") as connection:
        table = next(t for t in catalog.published_tables(connection, "pub") if t.schema.table.name == name)
    with open_snapshot(source.conninfo, [table.schema.table]) as holder:
        plan = partitions.plan_partitions(holder.connection, table, 4)
        batches = [
            batch
            for part in plan
            for batch in read_partition(source.conninfo, holder.snapshot, part.select, table.schema, holder.lsn)
        ]
    assert all(batch.schema.equals(row_schema(table.schema)) for batch in batches)
    return [row for batch in batches for row in batch.to_pylist()], holder.lsn


def test_ranges_cover_every_row_once_while_others_write(source: Source) -> None:
    source.execute(
        "create table t (id int primary key, pad text)",
        "insert into t select i, repeat('x', 200) from generate_series(1, 20000) i",
        "analyze t",
        "create publication pub for table t",
    )
    with connect(source.conninfo, "test") as connection:
        table = catalog.published_tables(connection, "pub")[0]
        with open_snapshot(source.conninfo, [table.schema.table]) as holder:
            source.execute(
                "delete from t where id % 2 = 0", "insert into t select i from generate_series(30000, 31000) i"
            )
            partitions_ = _forced(holder.connection, table, 8)
            seen = [
                row["id"]
                for part in partitions_
                for batch in read_partition(source.conninfo, holder.snapshot, part.select, table.schema, holder.lsn)
                for row in batch.to_pylist()
            ]
    assert len(partitions_) == 8
    assert sorted(seen) == list(range(1, 20001))


def _forced(connection: Any, table: Any, count: int) -> tuple[Partition, ...]:
    original = partitions.ROWS_PER_PARTITION
    partitions.ROWS_PER_PARTITION = 20000 // count
    try:
        return partitions.plan_partitions(connection, table, count)
    finally:
        partitions.ROWS_PER_PARTITION = original


def test_a_partitioned_table_is_read_by_its_leaves(source: Source) -> None:
    source.execute(
        "create table t (id int, day date, primary key (id, day)) partition by range (day)",
        "create table t1 partition of t for values from ('2024-01-01') to ('2025-01-01')",
        "create table t2 partition of t for values from ('2025-01-01') to ('2026-01-01') partition by list (id)",
        "create table t21 partition of t2 for values in (1, 2, 3)",
        "create table t22 partition of t2 default",
        "create publication pub for table t with (publish_via_partition_root)",
        "insert into t select i, '2024-06-01'::date + i * 100 from generate_series(1, 5) i",
    )
    rows, lsn = copied(source, "t")
    assert sorted(row["id"] for row in rows) == [1, 2, 3, 4, 5]
    assert {row["_pgetl_lsn"] for row in rows} == {lsn - 1}


def test_odd_names_are_read(source: Source) -> None:
    name, column = 'O"dd. `Näme', "_op"
    source.execute(
        f'create table "{name.replace(chr(34), chr(34) * 2)}" ("Id" int primary key, "{column}" text, "select" int)',
        "create publication pub for all tables",
    )
    record = next(iter(source.discover().values()))
    source.execute(f"insert into \"{name.replace(chr(34), chr(34) * 2)}\" values (1, 'x', 2)")
    source.spool_all()
    assert source.changes(record)[0]["x__op"] == "x"
    rows, _ = copied(source, name)
    assert (rows[0]["Id"], rows[0]["x__op"], rows[0]["select"]) == (1, "x", 2)


def test_a_lost_snapshot_is_said(source: Source) -> None:
    source.execute("create table t (id int primary key)", "create publication pub for table t")
    with connect(source.conninfo, "test") as connection:
        table = catalog.published_tables(connection, "pub")[0]
    holder = open_snapshot(source.conninfo, [table.schema.table])
    holder.close()
    with pytest.raises(SnapshotLost):
        list(read_partition(source.conninfo, holder.snapshot, 'select id from "t"', table.schema, holder.lsn))


def test_the_snapshot_keeps_no_slot(source: Source) -> None:
    source.execute("create table t (id int primary key)", "create publication pub for table t")
    with connect(source.conninfo, "test") as connection:
        table = catalog.published_tables(connection, "pub")[0]
    with open_snapshot(source.conninfo, [table.schema.table]):
        found = source.rows("select slot_name from pg_replication_slots where database = current_database()")
    assert found == []


@pytest.mark.parametrize(
    ("statements", "error", "message"),
    [
        ((), SourceError, "no publication"),
        (("create publication pub",), SourceError, "no tables"),
        (("create table t (i int)", "create publication pub for table t"), SourceError, "has no key"),
        (("create table t ()", "create publication pub for table t"), SourceError, "no columns"),
        (
            (
                "create table t (i int primary key)",
                "alter table t replica identity nothing",
                "create publication pub for table t",
            ),
            SourceError,
            "REPLICA IDENTITY NOTHING",
        ),
    ],
)
def test_discovery_refuses_with_a_hint(
    source: Source, statements: tuple[str, ...], error: type[SourceError], message: str
) -> None:
    source.execute(*statements)
    with pytest.raises(error, match=message) as caught:
        source.discover()
    assert caught.value.hint
    assert source.rows("select 1 from pg_replication_slots where database = current_database()") == []


def test_wrong_credentials_are_a_clear_error(source: Source, tmp_path: Any) -> None:
    config = PipelineConfig("p", "pub", str(tmp_path))
    wrong = source.conninfo.replace("dbname=", "dbname=no_such_")
    with pytest.raises(SourceError, match="does not exist"):
        Source(wrong, config, source.store).discover()


def test_schemas_survive_json(source: Source) -> None:
    source.execute(
        "create type mood as enum ('sad', 'happy')",
        "create domain positive as int check (value > 0)",
        "create table t (id int primary key, m mood[], p positive)",
        "create publication pub for table t",
    )
    record = source.discover()["public.t"]
    schema = source.store.latest_schema(source.config.name, record.relation_id)
    assert schema is not None
    assert type(schema).from_json(schema.to_json()) == schema
    assert change_schema(schema).names[-3:] == ["id", "m", "p"]
