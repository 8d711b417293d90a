"""The copy path's reader: a copied row and the same row streamed are identical, and equal to the source."""

from __future__ import annotations

from typing import Any

import psycopg
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

# Type and the values that it is tried with; NULL is tried for each.
TYPES = {
    "bool": ["true", "false"],
    "int2": ["-32768", "32767"],
    "int4": ["-2147483648", "2147483647"],
    "int8": ["-9223372036854775808", "9223372036854775807"],
    "oid": ["0", "4294967295"],
    "float4": ["1.1", "NaN", "-Infinity", "3.4028235e38"],
    "float8": ["0.1", "NaN", "Infinity", "5e-324", "-0"],
    "numeric(12,2)": ["-9999999999.99", "0.01", "NaN"],
    "numeric(38,10)": ["1234567890123456789012345678.0123456789"],
    "numeric": ["1e-20", "123456789012345678901234567890123456789012345678901234567890.5", "NaN", "Infinity"],
    "numeric(3,-2)": ["12345"],
    "text": ["", "a\tb\nc", "€ 😀", "back\\slash"],
    "varchar(5)": ["abc  "],
    "char(5)": ["abc"],
    "name": ["n"],
    '"char"': ["c"],
    "bytea": ["", "\\x00ff10"],
    "date": ["0001-01-01", "2024-02-29", "9999-12-31", "infinity", "-infinity", "0044-03-15 BC", "10000-01-01"],
    "timestamp": ["2024-02-29 12:34:56.789", "infinity", "0001-12-31 23:59:59.999999 BC", "294276-12-31 00:00:00"],
    "timestamptz": ["2024-02-29 12:34:56.789+02", "1883-11-18 12:00:00-07:52:58", "-infinity", "0044-03-15 BC"],
    "time": ["24:00:00", "12:34:56.789"],
    "timetz": ["12:34:56+02:30"],
    "interval": ["1 year 2 mons -3 days 04:05:06.789"],
    "uuid": ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"],
    "json": ['{"b": 1,  "a": [1e400]}'],
    "jsonb": ['{"b": 1, "a": [1.50]}'],
    "inet": ["1.2.3.4", "10.0.0.0/8", "::1"],
    "cidr": ["10.0.0.0/8"],
    "macaddr": ["08:00:2b:01:02:03"],
    "bit(3)": ["101"],
    "money": ["1.25"],
    "int4range": ["[1,5)"],
    "point": ["(1,2)"],
    "tsvector": ["a:1 b:2"],
    "pg_lsn": ["16/B374D848"],
    "int4[]": ["{}", "{1,NULL,3}", "{{1,2},{3,4}}", "[2:3]={1,2}"],
    "text[]": ["{}", "{a,b}", '{"a b","c\\"d",NULL,"NULL",""}', '{"x,y","{z}"}'],
    "numeric(6,2)[]": ["{1.50,-2.25}", "{NaN,1}"],
    "timestamptz[]": ['{"2024-01-01 00:00:00+00",infinity}'],
    "bool[]": ["{t,f}"],
    "bytea[]": ['{"\\\\x00ff"}'],
    "int2vector": ["1 2 3"],
    "mood": ["sad", "happy"],
    "mood[]": ["{sad,happy}"],
    "pair": ['(1,"a b")'],
    "positive": ["7"],
    "short": ["abc"],
}
SETUP = (
    "create type mood as enum ('sad', 'happy')",
    "create type pair as (a int, b text)",
    "create domain positive as int check (value > 0)",
    "create domain short as varchar(5)",
)


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


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.strip('"'))
def test_a_value_copied_and_streamed_is_the_same_and_nothing_is_lost(source: Source, kind: str) -> None:
    source.execute(*SETUP, f"create table t (id int primary key, v {kind})", "create publication pub for table t")
    record = source.discover()["public.t"]
    with psycopg.connect(source.conninfo) as connection:
        for number, value in enumerate([*TYPES[kind], None]):
            connection.execute(f"insert into t values (%s, %s::text::{kind})", (number, value))
    source.spool_all()
    streamed = [{"id": c["id"], "v": c["v"], "overflow": c["_overflow"]} for c in source.changes(record)]
    rows, lsn = copied(source, "t")
    from_copy = [{"id": r["id"], "v": r["v"], "overflow": r["_pgetl_overflow"]} for r in rows]
    assert repr(sorted(from_copy, key=lambda row: row["id"])) == repr(streamed)
    assert {row["_pgetl_lsn"] for row in rows} == {lsn - 1}
    for row in streamed[:-1]:
        assert (row["v"] is None) == (row["overflow"] is not None), "a value is held, or kept as text"
        if row["overflow"]:
            original = source.rows(f"select format('%s', v) from t where id = {row['id']}")
            assert dict(row["overflow"]) == {"v": original[0][0]}
    assert streamed[-1] == {"id": len(TYPES[kind]), "v": None, "overflow": None}


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
    rows, _ = copied(source, "t")
    assert sorted(row["id"] for row in rows) == [1, 2, 3, 4, 5]


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
        *SETUP, "create table t (id int primary key, m mood[], p positive)", "create publication pub for table t"
    )
    record = source.discover()["public.t"]
    schema = source.store.latest_schema(source.config.name, record.relation_id)
    assert schema is not None
    assert type(schema).from_json(schema.to_json()) == schema
    assert change_schema(schema).names[-3:] == ["id", "m", "p"]
