"""For every kind of change: what arrives is what the source says at the same LSN."""

from __future__ import annotations

import threading

import psycopg
import pytest

from airflow_provider_pgetl.replication.state import StateKind
from tests.integration.pipeline.live import Live

TABLE = "create table t (id int primary key, name text, amount numeric(12,2), at timestamptz, big text)"
EXTERNAL = "alter table t alter big set storage external"
ROWS = "insert into t select i, 'n' || i, i * 1.5, now(), repeat(chr(65 + i), 9000) from generate_series(1, 20) i"
PUBLISH = "create publication pub for table t"

# What is there before, and what happens while the pipeline runs; each string is a transaction.
SCENES: dict[str, tuple[list[str], list[str]]] = {
    "insert, update and delete": (
        [TABLE, ROWS, PUBLISH],
        [
            "insert into t select i, 'new', null, now(), '' from generate_series(100, 200) i",
            "update t set name = 'changed', amount = -1 where id % 3 = 0",
            "delete from t where id % 7 = 0",
        ],
    ),
    "an update that changes the key": (
        [TABLE, ROWS, PUBLISH],
        ["update t set id = id + 1000 where id < 10", "update t set id = id - 1000 where id > 1005"],
    ),
    "keys that change places": (
        [TABLE, ROWS, PUBLISH],
        [
            (
                "begin; update t set id = -1 where id = 1; update t set id = 1 where id = 2; "
                "update t set id = 2 where id = -1; commit"
            )
        ],
    ),
    "delete and insert of one key in one transaction": (
        [TABLE, ROWS, PUBLISH],
        [
            (
                "begin; delete from t where id = 5; insert into t values (5, 'again'); "
                "delete from t where id = 5; insert into t values (5, 'once more'); commit"
            )
        ],
    ),
    "insert and delete of one key in one transaction": (
        [TABLE, ROWS, PUBLISH],
        [
            (
                "begin; insert into t values (77, 'short'); update t set name = 'life' where id = 77; "
                "delete from t where id = 77; commit"
            )
        ],
    ),
    "unchanged TOAST alone": ([TABLE, EXTERNAL, ROWS, PUBLISH], ["update t set name = 'x'"]),
    "unchanged TOAST after an insert in the same batch": (
        [TABLE, EXTERNAL, ROWS, PUBLISH],
        [
            (
                "begin; insert into t values (50, 'a', 1, now(), repeat('z', 9000)); "
                "update t set name = 'b' where id = 50; commit"
            )
        ],
    ),
    "unchanged TOAST with a key change": (
        [TABLE, EXTERNAL, ROWS, PUBLISH],
        [
            "update t set id = id + 500 where id < 5",
            (
                "begin; update t set id = 900 where id = 10; update t set name = 'y' where id = 900; "
                "update t set id = 901 where id = 900; commit"
            ),
        ],
    ),
    "TOAST that becomes null and back": (
        [TABLE, EXTERNAL, ROWS, PUBLISH],
        ["update t set big = null where id < 5", "update t set name = 'n'", "update t set big = repeat('q', 9000)"],
    ),
    "truncate of one table": (
        [TABLE, ROWS, PUBLISH],
        ["begin; insert into t values (60, 'before'); truncate t; insert into t values (61, 'after'); commit"],
    ),
    "truncate of many tables": (
        [
            TABLE,
            ROWS,
            "create table u (id int primary key)",
            "insert into u values (1), (2)",
            "create publication pub for table t, u",
        ],
        ["truncate t, u", "insert into u values (3)"],
    ),
    "truncate cascade": (
        [
            TABLE,
            ROWS,
            "create table child (id int primary key, t int references t)",
            "insert into child values (1, 1), (2, 2)",
            "create publication pub for table t, child",
        ],
        ["truncate t restart identity cascade", "insert into t values (1, 'one')", "insert into child values (9, 1)"],
    ),
    "truncate of the root of partitions": (
        [
            "create table t (id int, day date, primary key (id, day)) partition by range (day)",
            "create table t1 partition of t for values from ('2024-01-01') to ('2025-01-01')",
            "create table t2 partition of t for values from ('2025-01-01') to ('2026-01-01')",
            "insert into t select i, '2024-06-01'::date + i from generate_series(1, 300) i",
            "create publication pub for table t with (publish_via_partition_root)",
        ],
        ["truncate t", "insert into t values (1, '2024-02-03'), (2, '2025-02-03')"],
    ),
    "replica identity full with a key": (
        [TABLE, EXTERNAL, ROWS, "alter table t replica identity full", PUBLISH],
        [
            "update t set name = 'f' where id < 8",
            "update t set id = id + 100 where id > 15",
            "delete from t where id = 3",
        ],
    ),
    "replica identity by an index": (
        [
            TABLE,
            ROWS,
            "alter table t alter name set not null",
            "create unique index by_name on t (name)",
            "alter table t replica identity using index by_name",
            PUBLISH,
        ],
        [
            "update t set name = 'm' || id where id < 5",
            "update t set amount = 0",
            "delete from t where id = 9",
            "update t set id = id + 100 where id < 9",
        ],
    ),
    "replica identity nothing, inserts only": (
        [
            TABLE,
            ROWS,
            "alter table t replica identity nothing",
            "create publication pub for table t with (publish = 'insert')",
        ],
        ["insert into t values (70, 'a'), (71, 'b')"],
    ),
    "a table without key, with duplicates": (
        [
            "create table t (a int, b text)",
            "alter table t replica identity full",
            "insert into t select i % 3, 'x' from generate_series(1, 12) i",
            PUBLISH,
        ],
        [
            "insert into t values (1, 'x'), (1, 'x'), (null, null), (null, null)",
            "delete from t where ctid in (select ctid from t where a = 1 limit 2)",
            "update t set b = 'y' where ctid in (select ctid from t where a = 2 limit 1)",
            "delete from t where ctid in (select ctid from t where a is null limit 1)",
        ],
    ),
    "a table without key whose rows overflow": (
        [
            "create table t (a numeric(5,2), d date)",
            "alter table t replica identity full",
            "insert into t values ('NaN', 'infinity'), (null, null), ('NaN', null)",
            PUBLISH,
        ],
        [
            "delete from t where a = 'NaN' and d is null",
            "update t set a = 1 where a is null",
            "update t set a = 2 where d = 'infinity'",
            "update t set d = '2024-01-01'",
        ],
    ),
    "a key of several columns": (
        [
            "create table t (a int, b text, c int, primary key (b, a))",
            "insert into t select i, 'k' || i % 3, i from generate_series(1, 30) i",
            PUBLISH,
        ],
        ["update t set c = -c where a < 10", "update t set b = b || '!' where a > 25", "delete from t where b = 'k1'"],
    ),
    "a row that moves between partitions": (
        [
            "create table t (id int, day date, v text, primary key (id, day)) partition by range (day)",
            "create table t1 partition of t for values from ('2024-01-01') to ('2025-01-01')",
            "create table t2 partition of t for values from ('2025-01-01') to ('2026-01-01') partition by list (id)",
            "create table t21 partition of t2 for values in (1, 2, 3)",
            "create table t22 partition of t2 default",
            "insert into t select i, '2024-06-01'::date + i, 'v' from generate_series(1, 200) i",
            "create publication pub for table t with (publish_via_partition_root)",
        ],
        [
            "update t set day = day + 200 where id < 50",
            "update t set day = '2025-03-01' where id in (1, 2, 60)",
            "update t set id = 3 where id = 1",
        ],
    ),
    "partitions as tables of their own": (
        [
            "create table t (id int, day date, primary key (id, day)) partition by range (day)",
            "create table t1 partition of t for values from ('2024-01-01') to ('2025-01-01')",
            "create table t2 partition of t for values from ('2025-01-01') to ('2026-01-01')",
            "insert into t select i, '2024-12-01'::date + i from generate_series(1, 60) i",
            PUBLISH,
        ],
        ["update t set day = day + 30 where id < 10", "delete from t where id = 20", "truncate t1"],
    ),
    "a row filter whose result an update changes": (
        [TABLE, ROWS, "alter table t replica identity full", "create publication pub for table t where (amount < 10)"],
        [
            "update t set amount = 100 where id = 1",
            "update t set amount = 1 where id = 20",
            "update t set name = 'in' where amount < 10",
            "delete from t where id = 2",
            "delete from t where id = 19",
        ],
    ),
    "a column list": (
        [TABLE, ROWS, "create publication pub for table t (id, name)"],
        ["update t set name = 'c', amount = 0 where id < 5", "insert into t values (300, 'c', 5)"],
    ),
    "a savepoint that is rolled back": (
        [TABLE, ROWS, PUBLISH],
        [
            (
                "begin; insert into t values (400, 'kept'); savepoint s; insert into t values (401, 'gone'); "
                "update t set name = 'gone'; rollback to s; insert into t values (402, 'kept'); commit"
            ),
            "begin; delete from t; rollback",
        ],
    ),
    "many subtransactions": (
        [TABLE, PUBLISH],
        [
            (
                "do $$ begin for i in 1..300 loop begin insert into t values (i, 'sub'); "
                "if i % 3 = 0 then raise exception 'no'; end if; exception when others then null; end; end loop; end $$"
            )
        ],
    ),
    "a prepared transaction": (
        [TABLE, ROWS, PUBLISH],
        [
            (
                "begin; insert into t values (500, 'prepared'); update t set name = 'p' where id = 1; "
                "prepare transaction 'scene'"
            ),
            "insert into t values (501, 'between')",
            "commit prepared 'scene'",
        ],
    ),
    "odd names": (
        [
            'create schema "S ""p. x"',
            (
                'create table "S ""p. x"."T-é 😀" ("Id" int primary key, "id" text, "select" int, '
                '"_op" text, "a.b" int, "x__op" text)'
            ),
            "insert into \"S \"\"p. x\".\"T-é 😀\" values (1, 'a', 2, 'b', 3, 'c')",
            "create publication pub for all tables",
        ],
        [
            'update "S ""p. x"."T-é 😀" set "_op" = \'n\', "id" = \'m\'',
            'insert into "S ""p. x"."T-é 😀" values (2, null, null, null, null, null)',
        ],
    ),
    "tables in a schema": (
        [
            "create schema s",
            "create table s.a (id int primary key)",
            "create table s.b (id int primary key, v text)",
            "create table other (id int primary key)",
            "insert into s.b values (1, 'x')",
            "create publication pub for tables in schema s",
        ],
        ["insert into s.a values (1)", "insert into other values (1)", "update s.b set v = 'y'"],
    ),
    "generated columns that are not published": (
        [
            "create table t (id int primary key, a int, b int generated always as (a * 2) stored)",
            "insert into t values (1, 2)",
            PUBLISH,
        ],
        ["insert into t values (3, 4)", "update t set a = 9 where id = 1"],
    ),
    "generated columns that are published": (
        [
            "create table t (id int primary key, a int, b int generated always as (a * 2) stored)",
            "insert into t values (1, 2)",
            "create publication pub for table t with (publish_generated_columns = stored)",
        ],
        ["insert into t values (3, 4)", "update t set a = 9 where id = 1"],
    ),
    "an empty table": ([TABLE, PUBLISH], []),
    "a transaction of several tables": (
        [TABLE, ROWS, "create table u (id int primary key, v text)", "create publication pub for table t, u"],
        ["begin; insert into u values (1, 'a'); update t set name = 'both'; update u set v = 'b'; commit"],
    ),
}


@pytest.mark.parametrize("scene", SCENES)
def test_the_destination_is_equal_to_the_source(live: Live, scene: str) -> None:
    before, changes = SCENES[scene]
    live.execute(*before)
    with live.running():
        live.settle()
        live.execute(*changes)
        live.settle()
        if "row filter" in scene:
            wanted = live.rows("select id from t where amount < 10 order by id")
            assert sorted(row["id"] for row in live.destination.rows("public.t")) == [row[0] for row in wanted]
        else:
            live.assert_equal()


@pytest.mark.parametrize(
    "scene",
    [
        "insert, update and delete",
        "unchanged TOAST with a key change",
        "a table without key, with duplicates",
        "truncate of one table",
    ],
)
def test_changes_that_were_waiting_are_as_good_as_live_ones(live: Live, scene: str) -> None:
    """All changes are in one window of the applier."""
    before, changes = SCENES[scene]
    live.execute(*before)
    with live.running():
        live.settle()
    live.execute(*changes)
    with live.running():
        live.settle()
        live.assert_equal()


def test_events_arrive_in_order_and_whole(live: Live) -> None:
    live.execute(TABLE, PUBLISH)
    with live.running():
        live.settle()
        live.execute(
            "insert into t values (1, 'a')", "begin; update t set name = 'b'; delete from t; commit", "truncate t"
        )
        live.settle()
    kinds = [type(event).__name__ for event in live.destination.events("public.t")]
    assert kinds == ["Begin", "Insert", "Commit", "Begin", "Update", "Delete", "Commit", "Begin", "Truncate", "Commit"]
    places = [(e.commit_lsn, e.ordinal) for e in live.destination.events("public.t") if hasattr(e, "ordinal")]
    assert places == sorted(places)


def test_a_copy_while_others_write_has_no_gap_and_no_double(live: Live) -> None:
    live.execute(
        TABLE,
        "insert into t select i, 'n', i, now(), repeat('x', 300) from generate_series(1, 60000) i",
        "analyze t",
        PUBLISH,
    )
    object.__setattr__(live.config, "max_copy_connections_per_table", 8)
    stop = threading.Event()

    def write() -> None:
        with psycopg.connect(live.conninfo, autocommit=True) as connection:
            number = 100_000
            while not stop.is_set():
                number += 1
                connection.execute("insert into t values (%s, 'while copying')", (number,))
                connection.execute("update t set name = name || '+' where id = %s", (number * 7919 % 60000,))
                connection.execute("delete from t where id = %s", (number * 104729 % 60000,))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with live.running():
            live.wait_for(lambda: live.kinds().get("t") is StateKind.READY, "the table to be ready")
            stop.set()
            writer.join()
            live.settle()
            live.assert_equal()
    finally:
        stop.set()
        writer.join()
