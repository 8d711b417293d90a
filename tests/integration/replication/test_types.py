"""Every type, copied and streamed: identical, equal to what the server prints, and nothing lost."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import sql

from airflow_provider_pgetl.replication.decode.plan import plan
from airflow_provider_pgetl.replication.pg_types import Kind, LakeType
from airflow_provider_pgetl.replication.schema import TableSchema
from airflow_provider_pgetl.replication.source import catalog, partitions
from airflow_provider_pgetl.replication.source.connection import connect
from airflow_provider_pgetl.replication.source.snapshot import open_snapshot
from airflow_provider_pgetl.replication.table_copy import read_partition
from tests.integration.replication.conftest import Source
from tests.integration.replication.typed_values import RANDOM, SETUP, TYPES, exact, lake_list, lake_value

# What the server itself prints: the value, the array, the array's elements and whether a list can hold their shape.
ORACLE = """
select id, case when v is distinct from null then format('%s', v) end,
       case when a is distinct from null then format('%s', a) end,
       case when a is distinct from null then array(
           select case when a[i] is distinct from null then format('%s', a[i]) end
           from generate_subscripts(a, 1) i order by i)::text[] end,
       coalesce(array_ndims(a), 1) = 1 and coalesce(array_lower(a, 1), 1) = 1
from {} order by id
"""
Found = dict[str, dict[int, dict[str, Any]]]


def make_tables(source: Source, kinds: Sequence[str]) -> dict[str, str]:
    """One table for each type, with a column of the type and one of arrays of it; type -> table."""
    tables = {kind: f"t{number}" for number, kind in enumerate(kinds)}
    with psycopg.connect(source.conninfo) as connection:
        for statement in SETUP:
            connection.execute(statement)
        for kind, table in tables.items():
            connection.execute(f"create table {table} (id int primary key, v {kind}, a {_array(kind)})")
        connection.execute("create publication pub for all tables")
    return tables


def _array(kind: str) -> str:
    # An array of a domain over an array is an array of that domain.
    return f"{kind}[]"


def fill(connection: psycopg.Connection[Any], table: str, kind: str, values: Sequence[str]) -> None:
    """Each value, the array of all, shapes that no list has, and nothing."""
    array = _array(kind)
    insert = f"insert into {table} (id, v, a)"
    rows = [(number, value, [value, None]) for number, value in enumerate(values)]
    with connection.cursor() as cursor:
        cursor.executemany(f"{insert} values (%s, %s::text::{kind}, %s::text[]::{array})", rows)
    after = len(values)
    last = f"(select v from {table} where id = {after - 1})"
    connection.execute(f"{insert} values (%s, null, %s::text[]::{array})", (after, [*values, None]))
    connection.execute(f"{insert} values (%s, null, '{{}}')", (after + 1,))
    connection.execute(f"{insert} select %s, null, array_fill({last}, array[2, 1])", (after + 2,))
    connection.execute(f"{insert} select %s, null, array_fill({last}, array[2], array[5])", (after + 3,))
    connection.execute(f"{insert} values (%s, null, null)", (after + 4,))


def streamed(source: Source, tables: Sequence[str]) -> Found:
    source.spool_all()
    records = {str(record.table.name): record for record in source.store.tables(source.config.name)}
    return {table: _by_id(source.changes(records[table]), "_overflow") for table in tables}


def copied(source: Source) -> tuple[Found, dict[str, TableSchema]]:
    """All tables by the copy path, under one snapshot."""
    with connect(source.conninfo, "test") as connection:
        published = catalog.published_tables(connection, "pub")
    found: Found = {}
    with open_snapshot(source.conninfo, [table.schema.table for table in published]) as holder:
        for table in published:
            rows = [
                row
                for part in partitions.plan_partitions(holder.connection, table, 1)
                for batch in read_partition(source.conninfo, holder.snapshot, part.select, table.schema, holder.lsn)
                for row in batch.to_pylist()
            ]
            found[table.schema.table.name] = _by_id(rows, "_pgetl_overflow")
    return found, {table.schema.table.name: table.schema for table in published}


def _by_id(rows: list[dict[str, Any]], overflow: str) -> dict[int, dict[str, Any]]:
    return {row["id"]: {"v": row["v"], "a": row["a"], "overflow": dict(row[overflow] or [])} for row in rows}


def expected(source: Source, table: str, schema: TableSchema) -> dict[int, dict[str, Any]]:
    """What the lake must hold, from what the server prints under the engine's session settings."""
    with connect(source.conninfo, "test") as connection:
        rows = connection.execute(sql.SQL(ORACLE).format(sql.Identifier("public", table))).fetchall()
    _, value, array = (column.lake for column in plan(schema).columns)
    found = {}
    for number, text, whole, elements, plain in rows:
        v, v_beyond = _expect(value, text)
        a, a_beyond = _expect_array(array, whole, elements, plain)
        overflow = {name: t for name, t, beyond in (("v", text, v_beyond), ("a", whole, a_beyond)) if beyond}
        found[number] = {"v": v, "a": a, "overflow": overflow}
    return found


def _expect(lake: LakeType, text: str | None) -> tuple[Any, bool]:
    if lake.kind is not Kind.ARRAY or text is None:
        return lake_value(lake, text)
    # A domain over an array: psycopg reads the text, nested where it has dimensions.
    elements = _read_array(text)
    nested = any(isinstance(one, list) for one in elements)
    return (None, True) if nested else lake_list(lake, elements)


def _read_array(text: str) -> list[Any]:
    from psycopg.types.array import ArrayLoader

    class Texts(ArrayLoader):
        base_oid = 25

    loaded = Texts(1009).load(text.encode())
    return json.loads(json.dumps(loaded))  # type: ignore[no-any-return]


def _expect_array(lake: LakeType, whole: str | None, elements: list[str | None], plain: bool) -> tuple[Any, bool]:
    if whole is None:
        return None, False
    if lake.kind is Kind.STRING:
        return whole, False
    return lake_list(lake, elements) if plain else (None, True)


def compare(source: Source, tables: dict[str, str]) -> None:
    """Both ways against the server, all differences in one list."""
    by_stream = streamed(source, list(tables.values()))
    by_copy, schemas = copied(source)
    wrong = []
    for kind, table in tables.items():
        wanted = expected(source, table, schemas[table])
        assert set(by_stream[table]) == set(by_copy[table]) == set(wanted)
        for number, row in wanted.items():
            for name in ("v", "a", "overflow"):
                right = exact(row[name])
                for way, found in (("streamed", by_stream), ("copied", by_copy)):
                    got = exact(found[table][number][name])
                    if got != right:
                        wrong.append(f"{kind} {name} of row {number} {way}: {got!s:.200} and not {right!s:.200}")
    assert not wrong, "\n".join(wrong)


def test_every_type_copied_and_streamed_is_what_the_server_prints(source: Source) -> None:
    tables = make_tables(source, list(TYPES))
    source.discover()
    with psycopg.connect(source.conninfo) as connection:
        for kind, table in tables.items():
            fill(connection, table, kind, TYPES[kind])
    compare(source, tables)


def test_random_values_copied_and_streamed_are_what_the_server_prints(source: Source) -> None:
    seed = int(os.environ.get("PGETL_TEST_SEED") or random.SystemRandom().randrange(2**32))
    chance = random.Random(seed)
    values = {kind: [make(chance) for _ in range(100)] for kind, make in RANDOM.items()}
    tables = make_tables(source, list(values))
    source.discover()
    with psycopg.connect(source.conninfo) as connection:
        for kind, table in tables.items():
            fill(connection, table, kind, values[kind])
    try:
        compare(source, tables)
    except AssertionError as error:
        raise AssertionError(f"with PGETL_TEST_SEED={seed}: {error}") from None


def test_a_nan_with_a_sign_is_the_one_nan(source: Source) -> None:
    source.execute(
        "create table t (id int primary key, v float8, a float4)",
        "create publication pub for table t",
    )
    record = source.discover()["public.t"]
    source.execute("insert into t values (1, -'NaN'::float8, -'NaN'::float4)")
    sent = source.rows("select encode(float8send(v), 'hex'), encode(float4send(a), 'hex') from t")
    assert sent == [("fff8000000000000", "ffc00000")]
    source.spool_all()
    (streamed_row,) = source.changes(record)
    copies, _ = copied(source)
    for row in (streamed_row, copies["t"][1]):
        assert exact([row["v"], row["a"]]) == ["7ff8000000000000", "7ff8000000000000"]


def test_a_row_of_a_hundred_megabytes_comes_through_on_both_ways(source: Source) -> None:
    source.execute(
        "create table t (id int primary key, v text, a bytea, w text[])",
        "create publication pub for table t",
    )
    record = source.discover()["public.t"]
    size = 100 * 1024 * 1024
    source.execute(
        f"insert into t values (1, repeat('é', {size // 2}), decode(repeat('ab', {size // 4}), 'hex'),"
        f" array[repeat('\"\\', {size // 16}), null]), (2, 'x', 'y', '{{}}')"
    )
    source.spool_all()
    large, small = source.changes(record)
    with connect(source.conninfo, "test") as connection:
        (table,) = catalog.published_tables(connection, "pub")
    with open_snapshot(source.conninfo, [table.schema.table]) as holder:
        (part,) = partitions.plan_partitions(holder.connection, table, 1)
        batches = read_partition(source.conninfo, holder.snapshot, part.select, table.schema, holder.lsn)
        copies = [row for batch in batches for row in batch.to_pylist()]
    for row in (large, copies[0]):
        # Not by assert of the values themselves, which pytest would print.
        assert (row["v"] == "é" * (size // 2), row["a"] == b"\xab" * (size // 4)) == (True, True)
        assert (row["w"] == ['"\\' * (size // 16), None]) is True
    for row in (small, copies[1]):
        assert (row["v"], row["a"], row["w"]) == ("x", b"y", [])
