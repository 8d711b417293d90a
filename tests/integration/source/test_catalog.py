"""The catalog on a real server: columns with their defaults and the values of rows older than them."""

from __future__ import annotations

import pytest

from airflow_provider_pgetl.local.postgres import Database
from airflow_provider_pgetl.replication.schema import Column
from airflow_provider_pgetl.replication.source import catalog
from airflow_provider_pgetl.replication.source.connection import Connection, connect


def execute(database: Database, *statements: str) -> None:
    with database.connect() as connection:
        for statement in statements:
            connection.execute(statement.encode())


def oid(connection: Connection, table: str) -> int:
    row = connection.execute("select %s::regclass::oid::int8", (table,)).fetchone()
    assert row is not None
    return int(row[0])


def columns(database: Database, table: str) -> dict[str, Column]:
    with connect(database.conninfo, "test") as connection:
        found = catalog.describe(connection, "pub", oid(connection, table))
    assert found is not None
    return {column.name: column for column in found.schema.columns}


def test_defaults_and_missing_values_are_known(database: Database) -> None:
    execute(
        database,
        "create table t (id serial primary key, a int default 1)",
        "insert into t values (1)",
        "alter table t add b int default 2, add c timestamptz default '2024-07-01 12:00+02', add d int",
        "alter table t alter b set default 3",
        "create publication pub for table t",
    )
    found = columns(database, "t")
    assert {name: (column.default, column.missing) for name, column in found.items()} == {
        "id": ("nextval('public.t_id_seq'::regclass)", None),
        "a": ("1", None),
        "b": ("3", "2"),
        "c": ("'2024-07-01 10:00:00+00'::timestamp with time zone", "2024-07-01 10:00:00+00"),
        "d": (None, None),
    }


def test_a_rewrite_leaves_no_missing_value(database: Database) -> None:
    execute(
        database,
        "create table t (id int primary key)",
        "alter table t add b int default 2",
        "create publication pub for table t",
    )
    assert columns(database, "t")["b"].missing == "2"
    execute(database, "vacuum full t")
    assert columns(database, "t")["b"].missing is None


def test_the_root_of_partitions_shows_the_missing_value_of_its_leaves(database: Database) -> None:
    execute(
        database,
        "create table root (gone int, id int primary key) partition by range (id)",
        "alter table root drop gone",
        "create table p1 partition of root for values from (0) to (10) partition by range (id)",
        "create table p1a partition of p1 for values from (0) to (10)",
        "alter table root add b text default 'x'",
        "create table p2 partition of root for values from (10) to (20)",
        "create publication pub for table root with (publish_via_partition_root)",
    )
    assert columns(database, "root")["b"].missing == "x"


def test_names_do_not_depend_on_the_search_path(database: Database) -> None:
    execute(
        database,
        "create type mood as enum ('ok')",
        "create table t (id int primary key, m mood default 'ok')",
        "create publication pub for table t",
    )
    found = columns(database, "t")["m"]
    assert (found.type_name, found.default) == ("public.mood", "'ok'::public.mood")


@pytest.mark.parametrize("autocommit", [True, False])
def test_the_search_path_of_the_connection_stays(database: Database, autocommit: bool) -> None:
    execute(database, "create table t (id int primary key)", "create publication pub for table t")
    with connect(database.conninfo, "test", autocommit=autocommit) as connection:
        connection.execute("set search_path = public, pg_temp")
        assert catalog.published_tables(connection, "pub")
        assert connection.execute("show search_path").fetchone() == ("public, pg_temp",)


def test_one_table_is_described_as_among_all(database: Database) -> None:
    execute(
        database,
        "create table t (id int primary key, a int, b int)",
        "create table u (id int primary key)",
        "create table other (id int)",
        "create publication pub for table t (id, a) where (id > 1), u",
    )
    with connect(database.conninfo, "test") as connection:
        everything = catalog.published_tables(connection, "pub")
        assert [str(table.schema.table) for table in everything] == ["public.t", "public.u"]
        assert [catalog.describe(connection, "pub", oid(connection, name)) for name in ("t", "u")] == everything
        assert catalog.describe(connection, "pub", oid(connection, "other")) is None
        assert catalog.columns(connection, [oid(connection, "other")])[oid(connection, "other")][0].name == "id"


def test_the_fields_of_a_column_are_those_of_the_query(database: Database) -> None:
    execute(database, "create table t (id int primary key)", "create publication pub for table t")
    with connect(database.conninfo, "test") as connection:
        cursor = connection.execute(catalog.columns_query("array['t'::regclass]").encode())
        assert cursor.description is not None
        assert [field.name for field in cursor.description] == ["relation_id", *Column.__dataclass_fields__]
