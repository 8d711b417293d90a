"""DDL capture on a real server: what the triggers write, read through a real slot in commit order."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from airflow_provider_pgetl.cli.main import main
from airflow_provider_pgetl.local.postgres import Database, EmbeddedPostgres
from airflow_provider_pgetl.replication.config import DdlCapture
from airflow_provider_pgetl.replication.ddl import DdlMessage
from airflow_provider_pgetl.replication.decode.ddl import PREFIX, read_ddl
from airflow_provider_pgetl.replication.decode.messages import read_message
from airflow_provider_pgetl.replication.errors import SourceError
from airflow_provider_pgetl.replication.schema import Column, Identity
from airflow_provider_pgetl.replication.source import catalog, ddl
from airflow_provider_pgetl.replication.source.connection import connect
from tests.integration.conftest import FAST


@dataclass
class Log:
    """A database with a slot, and what came out of it since the last look."""

    database: Database
    slot: str

    def execute(self, *statements: str) -> None:
        """Each statement is a transaction of its own."""
        with self.database.connect() as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def frames(self, publication: str = "pub") -> list[bytes]:
        with self.database.connect() as connection:
            rows = connection.execute(
                "select data from pg_logical_slot_get_binary_changes(%s, null, null, 'proto_version', '1',"
                " 'publication_names', %s, 'messages', 'true')",
                (self.slot, publication),
            ).fetchall()
        return [bytes(row[0]) for row in rows]  # type: ignore[call-overload]

    def messages(self, publication: str = "pub") -> list[DdlMessage]:
        return [message for message in map(_ddl, self.frames(publication)) if message is not None]

    def after(self, *statements: str) -> DdlMessage:
        """The one message of these statements."""
        self.execute(*statements)
        (message,) = self.messages()
        return message

    def columns(self, table: str) -> tuple[Column, ...]:
        """What the catalog says."""
        with connect(self.database.conninfo, "test") as connection:
            row = connection.execute("select %s::regclass::oid::int8", (table,)).fetchone()
            assert row is not None
            return tuple(catalog.columns(connection, [row[0]])[row[0]])


def _ddl(frame: bytes) -> DdlMessage | None:
    if frame[:1] != b"M":
        return None
    message = read_message(frame[1:])
    assert message.prefix == PREFIX
    assert message.transactional
    return read_ddl(message.content)


def column(message: DdlMessage, name: str) -> Column:
    return next(column for column in message.columns if column.name == name)


def names(message: DdlMessage) -> list[str]:
    return [column.name for column in message.columns]


@pytest.fixture
def log(database: Database) -> Iterator[Log]:
    """Triggers, a publication over table t, a slot."""
    slot = f"slot_{database.name}"
    log = Log(database, slot)
    log.execute("create table t (id int primary key, a int, b text)", "create publication pub for table t")
    with connect(database.conninfo, "test") as connection:
        ddl.install(connection)
    log.execute(f"select pg_create_logical_replication_slot('{slot}', 'pgoutput')")
    yield log
    log.execute(f"select pg_drop_replication_slot('{slot}')")


@pytest.fixture
def poor(database: Database) -> Iterator[Database]:
    """The same database for a role that may do nothing special."""
    name = f"poor_{database.name}"
    with database.connect() as connection:
        connection.execute(f"create role {name} login password 'poor'".encode())
    yield Database(database.name, database.port, "poor", user=name)
    with database.connect() as connection:
        connection.execute(f"drop owned by {name} cascade".encode())
        connection.execute(f"drop role {name}".encode())


# What a change looks like


def test_an_added_column_is_told_as_the_catalog_has_it(log: Log) -> None:
    message = log.after("alter table t add c numeric(10, 2)")
    assert names(message) == ["id", "a", "b", "c"]
    assert message.columns == log.columns("t")
    assert message.identity is Identity.DEFAULT
    assert (str(message.table), message.rewritten, message.using) == ("public.t", False, False)
    added = column(message, "c")
    assert (added.attnum, added.type_name, added.default, added.missing) == (4, "numeric(10,2)", None, None)
    assert [(c.key, c.identity) for c in message.columns][:2] == [(1, True), (None, False)]


@pytest.mark.parametrize(
    ("definition", "default", "missing"),
    [
        ("int default 7", "7", "7"),
        ("text default 'a,{\"\\b'", "'a,{\"\\b'::text", 'a,{"\\b'),
        ("int[] default '{1,null,3}'", "'{1,NULL,3}'::integer[]", "{1,NULL,3}"),
        ("box default '(1,1),(0,0)'", "'(1,1),(0,0)'::box", "(1,1),(0,0)"),
        ("timestamptz default '2024-07-01 12:00+02'", None, "2024-07-01 10:00:00+00"),
        ("double precision default 0.1::float8 + 0.2::float8", None, "0.30000000000000004"),
        ("bytea default '\\x00ff'", "'\\x00ff'::bytea", "\\x00ff"),
        ("text default ''", "''::text", ""),
    ],
)
def test_the_value_of_old_rows_travels_with_the_column(log: Log, definition: str, default: str, missing: str) -> None:
    log.execute("insert into t values (1, 1, 'x')")
    log.messages()
    message = log.after(
        f"set datestyle = 'German'; set timezone = 'America/New_York'; set extra_float_digits = 0;"
        f" set bytea_output = 'escape'; alter table t add c {definition}"
    )
    added = column(message, "c")
    assert default is None or added.default == default
    assert added.missing == missing
    assert not message.rewritten


def test_a_volatile_default_is_a_rewrite(log: Log) -> None:
    message = log.after("alter table t add c float default random()")
    assert message.rewritten
    assert column(message, "c").default == "random()"
    assert column(message, "c").missing is None


def test_an_identity_column_is_a_rewrite(log: Log) -> None:
    assert log.after("alter table t add c int generated always as identity").rewritten


def test_a_rewrite_is_forgotten_by_the_next_command(log: Log) -> None:
    log.execute(
        "begin; alter table t add c float default random(); alter table t add d int; commit;",
        "alter table t add e int",
    )
    assert [message.rewritten for message in log.messages()] == [True, False, False]


def test_a_rewrite_that_was_rolled_back_is_forgotten(log: Log) -> None:
    log.execute(
        "begin; savepoint s; alter table t add c float default random(); rollback to s; alter table t add d int; commit"
    )
    (message,) = log.messages()
    assert names(message) == ["id", "a", "b", "d"]
    assert not message.rewritten


def test_a_change_of_persistence_rewrites_no_value(log: Log) -> None:
    log.execute("create publication everything for all tables", "create unlogged table u (id int primary key)")
    assert not log.after("alter table u set logged").rewritten


def test_a_dropped_column_is_gone(log: Log) -> None:
    assert names(log.after("alter table t drop a")) == ["id", "b"]


def test_a_renamed_column_keeps_its_number(log: Log) -> None:
    message = log.after("alter table t rename a to z")
    assert [(c.attnum, c.name) for c in message.columns] == [(1, "id"), (2, "z"), (3, "b")]


def test_a_renamed_table_keeps_its_id(log: Log) -> None:
    before = log.after("alter table t add c int")
    after = log.after("alter table t rename to u")
    assert str(after.table) == "public.u"
    assert after.relation_id == before.relation_id


def test_a_table_may_be_renamed_as_if_it_were_an_index(log: Log) -> None:
    assert str(log.after("alter index t rename to u").table) == "public.u"


def test_a_table_that_moves_to_another_schema_is_told(log: Log) -> None:
    assert str(log.after("create schema s", "alter table t set schema s").table) == "s.t"
    assert str(log.after("alter schema s rename to r").table) == "r.t"


def test_a_widening_is_a_rewrite_without_using(log: Log) -> None:
    message = log.after("alter table t alter a type bigint")
    assert (message.rewritten, message.using) == (True, False)
    assert column(message, "a").type_name == "bigint"


def test_a_type_that_is_only_relaxed_is_no_rewrite(log: Log) -> None:
    log.execute("alter table t add c varchar(5)")
    log.messages()
    message = log.after("alter table t alter c type varchar(9)")
    assert not message.rewritten
    assert (column(message, "c").typmod, column(message, "c").typmod_sent) == (13, 13)


def test_a_type_with_using_is_told_apart(log: Log) -> None:
    message = log.after("alter table t alter a type bigint uSiNg a + 1")
    assert (message.rewritten, message.using) == (True, True)


def test_a_name_that_holds_the_word_is_not_the_word(log: Log) -> None:
    log.execute("alter table t rename a to housing")
    log.messages()
    assert not log.after("alter table t alter housing type bigint").using


@pytest.mark.parametrize(
    ("body", "using"),
    [("alter table t alter a type bigint", False), ("alter table t alter a type bigint using 1", True)],
)
@pytest.mark.parametrize("how", ["{}", "execute '{}'"])
def test_using_is_seen_inside_of_functions(log: Log, body: str, using: bool, how: str) -> None:
    log.execute(f"create function migrate() returns void language plpgsql as $$ begin {how.format(body)}; end $$")
    message = log.after("select migrate()")
    assert (message.rewritten, message.using) == (True, using)


def test_where_the_text_of_the_command_is_hidden_it_counts_as_using(log: Log) -> None:
    log.execute("create function migrate() returns void language sql as 'alter table t alter a type bigint'")
    assert log.after("select migrate()").using


def test_drop_and_add_of_one_name_is_a_new_column(log: Log) -> None:
    message = log.after("alter table t drop a, add a int")
    assert [(c.attnum, c.name) for c in message.columns] == [(1, "id"), (3, "b"), (4, "a")]
    log.execute("alter table t drop a", "alter table t add a int")
    first, second = log.messages()
    assert names(first) == ["id", "b"]
    assert [(c.attnum, c.name) for c in second.columns] == [(1, "id"), (3, "b"), (5, "a")]


def test_not_null_and_defaults_are_told(log: Log) -> None:
    assert not column(log.after("alter table t alter a set not null"), "a").nullable
    assert column(log.after("alter table t alter a drop not null"), "a").nullable
    message = log.after("alter table t alter a set default 5")
    assert (column(message, "a").default, column(message, "a").missing) == ("5", None)


def test_the_replica_identity_is_told(log: Log) -> None:
    full = log.after("alter table t replica identity full")
    assert full.identity is Identity.FULL
    assert all(c.identity for c in full.columns)
    log.execute("alter table t alter a set not null", "create unique index by_a on t (a)")
    log.messages()
    index = log.after("alter table t replica identity using index by_a")
    assert index.identity is Identity.INDEX
    assert [(c.name, c.key) for c in index.columns if c.identity] == [("a", 1)]
    dropped = log.after("drop index by_a")
    assert not any(c.identity or c.key for c in dropped.columns)
    assert log.after("alter table t replica identity nothing").identity is Identity.NOTHING


def test_keys_come_and_go(log: Log) -> None:
    assert not any(c.key for c in log.after("alter table t drop constraint t_pkey").columns)
    message = log.after("alter table t add primary key (b, id)")
    assert [(c.name, c.key) for c in message.columns] == [("id", 2), ("a", None), ("b", 1)]


def test_a_deferrable_key_is_none(log: Log) -> None:
    log.execute("alter table t drop constraint t_pkey")
    log.messages()
    assert not any(c.key for c in log.after("alter table t add primary key (id) deferrable").columns)


def test_a_column_that_falls_with_its_type_is_told(log: Log) -> None:
    log.execute("create type mood as enum ('ok')", "alter table t add m mood")
    assert column(log.messages()[0], "m").type_name == "public.mood"
    assert names(log.after("drop type mood cascade")) == ["id", "a", "b"]


def test_a_table_of_a_type_follows_the_type(log: Log) -> None:
    log.execute(
        "create type shape as (x int)",
        "create table s of shape",
        "alter publication pub add table s",
        "alter table s replica identity full",
    )
    log.messages()
    assert names(log.after("alter type shape add attribute y int cascade")) == ["x", "y"]
    assert names(log.after("alter type shape rename attribute y to z cascade")) == ["x", "z"]


def test_generated_columns_are_named(log: Log) -> None:
    message = log.after("alter table t add twice int generated always as (a * 2) stored, add c int")
    assert names(message) == ["id", "a", "b", "twice", "c"]
    assert message.generated == {"twice"}


# When there is one


@pytest.mark.parametrize("alter", ["alter table t add c int", "savepoint s; alter table t add c int; release s"])
def test_messages_stand_between_the_rows(log: Log, alter: str) -> None:
    log.execute(
        "insert into t values (1, 1, 'x')",
        f"begin; insert into t values (2, 2, 'x'); {alter}; insert into t values (3, 3, 'x', 3); commit",
        "insert into t values (4, 4, 'x', 4)",
    )
    kinds = b"".join(frame[:1] for frame in log.frames())
    assert kinds in (b"BRICBIMRICBIC", b"BRICBIMRICBRIC")  # a Relation may be repeated


def test_several_subcommands_are_one_message(log: Log) -> None:
    assert names(log.after("alter table t add c int, drop a, alter b set not null, add check (id > 0)")) == [
        "id",
        "b",
        "c",
    ]


def test_what_was_rolled_back_says_nothing(log: Log) -> None:
    log.execute(
        "begin; alter table t add c int; rollback", "begin; savepoint s; alter table t add c int; rollback to s"
    )
    assert log.messages() == []


def test_a_table_that_is_not_published_says_nothing(log: Log) -> None:
    log.execute(
        "create table other (id int)",
        "alter table other add a int",
        "create view v as select 1 as one",
        "alter view v rename one to two",
        "create temp table passing (id int); alter table passing add a int; drop table passing",
    )
    assert log.messages() == []


@pytest.mark.parametrize("scope", ["all tables", "tables in schema s"])
def test_publications_of_more_than_tables_count(log: Log, scope: str) -> None:
    log.execute("create schema s", "create table s.u (id int primary key)", f"create publication more for {scope}")
    assert str(log.after("alter table s.u add a int").table) == "s.u"


def test_the_opt_out_is_honoured(log: Log) -> None:
    log.execute("set pgetl.skip_ddl_log = 'on'; alter table t add c float default random()")
    log.execute("alter table t add d int")
    (message,) = log.messages()
    assert names(message) == ["id", "a", "b", "c", "d"]
    assert not message.rewritten


def test_a_session_that_applies_changes_is_heard(log: Log) -> None:
    assert names(log.after("set session_replication_role = replica; alter table t add c int"))[-1] == "c"


def test_odd_names_travel(log: Log) -> None:
    log.execute(
        'create schema "S.ä"',
        'create table "S.ä"."T ""1"" %s" ("Ü\n{}" int primary key)',
        "create publication odd for all tables",
    )
    message = log.after('alter table "S.ä"."T ""1"" %s" add "select \'$body$\'" "char"')
    assert (message.table.schema, message.table.name) == ("S.ä", 'T "1" %s')
    assert names(message) == ["Ü\n{}", "select '$body$'"]


def test_names_travel_from_a_database_of_another_encoding(log: Log, database: Database) -> None:
    del log
    other = f"{database.name}_latin"
    with database.connect() as connection:
        connection.execute(
            f"create database {other} encoding latin1 locale_provider libc locale 'C' template template0".encode()
        )
    latin = Log(Database(other, database.port, database.password), f"slot_{other}")
    try:
        latin.execute("create table t (id int primary key)", "create publication pub for table t")
        with connect(latin.database.conninfo, "test") as connection:
            ddl.install(connection)
        latin.execute(f"select pg_create_logical_replication_slot('{latin.slot}', 'pgoutput')")
        with connect(latin.database.conninfo, "test") as connection:
            connection.execute('alter table t add "größe" int')
        assert [names(message) for message in latin.messages()] == [["id", "größe"]]
        latin.execute(f"select pg_drop_replication_slot('{latin.slot}')")
    finally:
        with database.connect() as connection:
            connection.execute(f"drop database {other} with (force)".encode())


# Partitions and children


@pytest.fixture
def parts(log: Log) -> Log:
    """A root with two leaves, one of them a level deeper, and no rows."""
    log.execute(
        "create table root (id int, a int, primary key (id)) partition by range (id)",
        "create table p1 partition of root for values from (0) to (10)",
        "create table p2 partition of root for values from (10) to (20) partition by range (id)",
        "create table p2a partition of p2 for values from (10) to (20)",
    )
    return log


def changed(log: Log, *statements: str) -> dict[str, DdlMessage]:
    log.execute(*statements)
    found = log.messages()
    by_name = {message.table.name: message for message in found}
    assert len(by_name) == len(found), "a table was told twice"
    return by_name


def test_a_change_of_the_root_is_told_for_the_root(parts: Log) -> None:
    parts.execute("create publication roots for table root with (publish_via_partition_root)")
    found = changed(parts, "alter table root add c int default 3")
    assert list(found) == ["root"]
    assert column(found["root"], "c").missing == "3"
    assert found["root"].columns == parts.columns("root")
    assert changed(parts, "alter table root add d float default random()")["root"].rewritten


def test_a_change_of_the_root_is_told_for_the_leaves(parts: Log) -> None:
    parts.execute("create publication leaves for table root")
    found = changed(parts, "alter table root add c int default 3")
    assert sorted(found) == ["p1", "p2a"]
    assert {column(message, "c").missing for message in found.values()} == {"3"}


def test_a_change_of_a_leaf_is_told_for_the_root(parts: Log) -> None:
    parts.execute("create publication roots for table root with (publish_via_partition_root)")
    found = changed(parts, "alter table p2a alter a set default 1")
    assert list(found) == ["root"]
    assert column(found["root"], "a").default is None


def test_both_ways_at_once_are_both_told(parts: Log) -> None:
    parts.execute(
        "create publication roots for all tables with (publish_via_partition_root)",
        "create publication leaves for all tables",
    )
    assert sorted(changed(parts, "alter table root rename a to z")) == ["p1", "p2a", "root"]


def test_the_topmost_published_ancestor_speaks(parts: Log) -> None:
    parts.execute("create publication middle for table p2 with (publish_via_partition_root)")
    assert sorted(changed(parts, "alter table root add c int")) == ["p2"]


def test_only_the_rewritten_leaf_is_rewritten(parts: Log) -> None:
    parts.execute("create publication leaves for table root", "alter table root add c int")
    parts.messages()
    found = changed(parts, "alter table root alter a type bigint")
    assert {name: message.rewritten for name, message in found.items()} == {"p1": True, "p2a": True}


def test_children_by_inheritance_are_told(log: Log) -> None:
    log.execute("create table child (c int) inherits (t)", "create publication children for table child")
    found = changed(log, "alter table t add d int default 4")
    assert sorted(found) == ["child", "t"]
    assert column(found["child"], "d").missing == "4"


# Harm that must not be done


def test_a_role_that_only_owns_the_table_may_go_on(log: Log, poor: Database) -> None:
    log.execute(f"alter table t owner to {poor.user}", f"grant create on schema public to {poor.user}")
    log.messages()
    with poor.connect() as connection:
        connection.execute("alter table t add c int default 1")
        connection.execute("create table own (id int)")
        connection.execute("drop table own")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("select pgetl_source.log(null, false)")
    (message,) = log.messages()
    assert column(message, "c").missing == "1"


def test_a_broken_trigger_breaks_no_ddl(log: Log) -> None:
    log.execute(
        "create or replace function pgetl_source.sent(altered oid[]) returns setof oid language plpgsql as"
        " $$ begin raise exception 'broken'; end $$"
    )
    said: list[str | None] = []
    with log.database.connect() as connection:
        connection.add_notice_handler(lambda notice: said.append(notice.message_primary))
        connection.execute("alter table t add c float default random()")
        connection.execute("insert into t values (1, 1, 'x', 1)")
    assert any("broken" in (text or "") for text in said)
    assert log.messages() == []


def test_nothing_is_done_on_a_server_without_logical_wal(scratch: Path) -> None:
    with EmbeddedPostgres(scratch / "replica", settings={**FAST, "wal_level": "replica"}) as server:
        log = Log(server.create_database("shop"), "none")
        with connect(log.database.conninfo, "test") as connection:
            ddl.install(connection)
        log.execute(
            "create table t (id int primary key)",
            "create or replace function pgetl_source.log(altered oid[], own_expression bool) returns void"
            " language plpgsql as $$ begin raise warning 'called'; end $$",
        )
        said: list[str | None] = []
        with log.database.connect() as connection:
            connection.execute("set client_min_messages = error; create publication pub for table t")
            connection.execute("set client_min_messages = warning")
            connection.add_notice_handler(lambda notice: said.append(notice.message_primary))
            connection.execute("alter table t add c float default random()")
        assert said == []


def test_two_sessions_that_change_two_tables_do_not_wait_for_each_other(log: Log) -> None:
    log.execute("create table u (id int primary key)", "create publication everything for all tables")
    with log.database.connect(autocommit=False) as one, log.database.connect(autocommit=False) as other:
        other.execute("set lock_timeout = '10s'")
        one.execute("alter table t add c int")
        other.execute("alter table u add c int")
        one.execute("alter table t add d int")
        one.commit()
        other.commit()
    assert sorted(message.table.name for message in log.messages()) == ["t", "t", "u"]


def test_nothing_is_written_when_the_triggers_are_gone(log: Log) -> None:
    with connect(log.database.conninfo, "test") as connection:
        assert ddl.installed(connection)
        ddl.uninstall(connection)
        assert not ddl.installed(connection)
        ddl.uninstall(connection)
        assert connection.execute("select 1 from pg_namespace where nspname = %s", (ddl.SCHEMA,)).fetchone() is None
    log.execute("alter table t add c int")
    assert log.messages() == []


# Installing


def left_behind(database: Database) -> list[Any]:
    with database.connect() as connection:
        return connection.execute(
            "select nspname from pg_namespace where nspname = 'pgetl_source'"
            " union all select evtname from pg_event_trigger"
        ).fetchall()


def test_ensure_installs_once(database: Database) -> None:
    with connect(database.conninfo, "test") as connection:
        assert "installed" in ddl.ensure(connection, DdlCapture.AUTO).what
        again = ddl.ensure(connection, DdlCapture.REQUIRED)
        assert again.active
        assert "installed" not in again.what


def test_ensure_does_nothing_when_it_is_off(database: Database) -> None:
    with connect(database.conninfo, "test") as connection:
        assert not ddl.ensure(connection, DdlCapture.OFF).active
    assert left_behind(database) == []


def test_a_role_that_may_not_gets_an_answer_and_leaves_nothing(database: Database, poor: Database) -> None:
    with database.connect() as connection:
        connection.execute(
            sql.SQL("grant create on database {} to {}").format(
                sql.Identifier(database.name), sql.Identifier(poor.user)
            )
        )
    with connect(poor.conninfo, "test") as connection:
        found = ddl.ensure(connection, DdlCapture.AUTO)
        assert not found.active
        assert "permission denied to create event trigger" in found.what
        assert "superuser" in found.hint
        with pytest.raises(SourceError, match="can't be installed"):
            ddl.ensure(connection, DdlCapture.REQUIRED)
    assert left_behind(database) == []


def test_a_role_that_may_not_uses_what_a_superuser_installed(log: Log, poor: Database) -> None:
    with connect(poor.conninfo, "test") as connection:
        assert ddl.ensure(connection, DdlCapture.REQUIRED).active
    del log


def test_an_older_version_is_replaced_and_a_newer_one_left(log: Log) -> None:
    with connect(log.database.conninfo, "test") as connection:
        log.execute("comment on schema pgetl_source is 'pgetl: DDL capture, version 0'")
        assert not ddl.installed(connection)
        ddl.install(connection)
        assert ddl.installed(connection)
        log.execute("comment on schema pgetl_source is 'pgetl: DDL capture, version 999'")
        ddl.install(connection)
        row = connection.execute("select obj_description('pgetl_source'::regnamespace)").fetchone()
        assert row is not None
        assert row[0].endswith("999")


def test_a_disabled_trigger_does_not_count_and_is_enabled_again(log: Log) -> None:
    log.execute("alter event trigger pgetl_ddl_end disable")
    with connect(log.database.conninfo, "test") as connection:
        assert not ddl.installed(connection)
        assert ddl.ensure(connection, DdlCapture.REQUIRED).active
    assert names(log.after("alter table t add c int"))[-1] == "c"


def test_pipelines_that_start_together_install_once(database: Database) -> None:
    start = threading.Barrier(4)
    found: list[bool] = []

    def run() -> None:
        with connect(database.conninfo, "test") as connection:
            start.wait(10)
            found.append(ddl.ensure(connection, DdlCapture.REQUIRED).active)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == [True] * 4
    assert len(left_behind(database)) == 4


def test_the_command_installs_tells_and_removes(database: Database, capsys: pytest.CaptureFixture[str]) -> None:
    for action, wanted in (("status", "not installed"), ("install", "are installed"), ("uninstall", "not installed")):
        assert main(["ddl", action, database.conninfo]) == 0
        assert wanted in capsys.readouterr().out
    assert main(["ddl", "sql"]) == 0
    script = capsys.readouterr().out
    with database.connect() as connection:
        connection.execute(script.encode())
    assert main(["ddl", "status", database.conninfo]) == 0
    assert "are installed" in capsys.readouterr().out


def test_the_command_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ddl", "install"]) == 2
    assert "name the source" in capsys.readouterr().err
    assert main(["ddl", "install", "host=127.0.0.1 port=1 dbname=none"]) == 2
    assert "can't be reached" in capsys.readouterr().err
