"""Schema changes in stream order, with the source's DDL trigger and without it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_pgetl.local.postgres import Database
from airflow_provider_pgetl.replication import failpoints
from airflow_provider_pgetl.replication.state import StateKind
from tests.integration.pipeline.live import Killed, Live, make_live

TABLE = "create table t (id int primary key, a int, b text, f real, n numeric(6,2), v varchar(5))"
ROWS = "insert into t select i, i, 'b' || i, i / 4.0, i, 'v' || i from generate_series(1, 9) i"
PUBLISH = "create publication pub for table t"
TOUCH = "update t set b = b || '.' where id < 4"

# Statements between two changes of rows; the last change makes the stream describe the table again.
FOLLOWED: dict[str, list[str]] = {
    "add a column": ["alter table t add column c int", TOUCH],
    "add a column with a default": ["alter table t add column c int not null default 42", TOUCH],
    "add a text default with odd characters": ["""alter table t add column c text default 'it''s {"a,b"}\\'""", TOUCH],
    "add a timestamp default": ["alter table t add column c timestamptz default '2024-01-02 03:04:05+02'", TOUCH],
    "drop a column": ["alter table t drop column a", TOUCH],
    "rename a column": ["alter table t rename column a to z", TOUCH],
    "rename the key": ["alter table t rename column id to key", TOUCH.replace("id", "key")],
    "widen an integer": ["alter table t alter a type bigint", "update t set a = 5000000000 where id = 1", TOUCH],
    "widen a float": ["alter table t alter f type double precision", "update t set f = 0.1 where id = 1", TOUCH],
    "widen a numeric": ["alter table t alter n type numeric(10,2)", "update t set n = 12345678.25 where id = 1", TOUCH],
    "lengthen a varchar": [
        "alter table t alter v type varchar(50)",
        "update t set v = repeat('v', 40) where id = 1",
        TOUCH,
    ],
    "varchar to text": ["alter table t alter v type text", TOUCH],
    "not null and back": ["alter table t alter a set not null", TOUCH, "alter table t alter a drop not null", TOUCH],
    "another key": [
        "begin; alter table t drop constraint t_pkey; alter table t alter b set not null; "
        "alter table t add primary key (b); commit",
        "update t set a = 0 where id < 4",
        "delete from t where id = 5",
    ],
    "replica identity full": [
        "alter table t replica identity full",
        TOUCH,
        "alter table t replica identity default",
        TOUCH,
    ],
    "several changes in one command": [
        "alter table t add column c int default 7, drop column a, alter n type numeric(9,2)",
        TOUCH,
    ],
    "there and back": ["alter table t add column c int default 3", TOUCH, "alter table t drop column c", TOUCH],
    "rename the table": [
        "alter table t rename to u",
        "update u set b = 'renamed' where id = 1",
        "alter table u rename to t",
        TOUCH,
    ],
}

# Only the trigger can tell these.
CAPTURED: dict[str, list[str]] = {
    "inside of a transaction": [
        "begin; update t set b = 'before' where id = 1; alter table t add column c int default 1; "
        "update t set c = 2 where id = 2; alter table t drop column a; insert into t (id, b) values (50, 'x'); commit",
        TOUCH,
    ],
    "a default without any row after it": ["alter table t add column c int default 42"],
    "a drop without any row after it": ["alter table t drop column b"],
    "drop and add of one name": ["alter table t drop column a", "alter table t add column a int", TOUCH],
    "drop and add of one name in one command": ["alter table t drop column a, add column a int default 8", TOUCH],
    "drop and add of one name inside of a transaction": [
        "begin; update t set a = 100 where id = 1; alter table t drop column a; alter table t add column a int default 5; "
        "update t set b = 'y' where id = 2; commit"
    ],
    "changes faster than the stream": [
        "alter table t add column c int default 1",
        "update t set c = 2 where id = 1",
        "alter table t rename column c to d",
        "update t set d = 3 where id = 2",
        "alter table t drop column a",
        "alter table t add column a text default 'x'",
        TOUCH,
    ],
}

# Values change on the source and nothing is sent: the table must be copied again.
REFUSED: dict[str, list[str]] = {
    "a type that is not wider": ["alter table t alter a type text", TOUCH],
    "a default that differs by row": ["alter table t add column c float default random()", TOUCH],
}
REFUSED_CAPTURED: dict[str, list[str]] = {
    "a widening by an expression": ["alter table t alter a type bigint using a * 10", TOUCH],
}


@pytest.fixture
def plain(database: Database, tmp_path: Path) -> Iterator[Live]:
    """Without the trigger."""
    yield make_live(database, str(tmp_path / "spool"), ddl_capture="off")
    failpoints.disarm()


@pytest.mark.parametrize("scene", CAPTURED)
def test_a_schema_change_is_followed_where_it_happened(live: Live, scene: str) -> None:
    live.execute(TABLE, ROWS, PUBLISH)
    with live.running():
        live.settle()
        live.execute(*CAPTURED[scene])
        live.settle()
        live.assert_equal()


@pytest.mark.parametrize("scene", FOLLOWED)
def test_a_schema_change_is_followed_without_the_trigger(plain: Live, scene: str) -> None:
    """Each change has been seen before the next one comes: the catalog is not ahead."""
    plain.execute(TABLE, ROWS, PUBLISH)
    with plain.running():
        plain.settle()
        for change in FOLLOWED[scene]:
            plain.execute(change)
            plain.settle()
        plain.assert_equal()


@pytest.mark.parametrize("scene", [*FOLLOWED, *CAPTURED])
def test_a_schema_change_while_nobody_looked_is_followed(live: Live, scene: str) -> None:
    live.execute(TABLE, ROWS, PUBLISH)
    with live.running():
        live.settle()
    live.execute(*{**FOLLOWED, **CAPTURED}[scene])
    with live.running():
        live.settle()
        live.assert_equal()


@pytest.mark.parametrize("scene", [*REFUSED, *REFUSED_CAPTURED])
def test_what_cannot_be_followed_puts_the_table_aside_and_a_resync_mends_it(live: Live, scene: str) -> None:
    live.execute(TABLE, ROWS, "create table other (id int primary key)", "create publication pub for table t, other")
    with live.running():
        live.settle()
        live.execute(*{**REFUSED, **REFUSED_CAPTURED}[scene], "insert into other values (1)")
        live.wait_for(lambda: live.kinds()["t"] is StateKind.ERRORED, "the table to be put aside")
        live.settle(errored=1)
        live.assert_equal("other")
        state = live.table("t").state
        assert "Resync" in (state.hint or "")
        live.store.new_generation(live.config.name, live.table("t").relation_id, by="somebody")
        live.settle()
        live.assert_equal()


def test_a_catalog_that_is_ahead_is_not_believed(plain: Live) -> None:
    """Without the trigger: the first change can't be looked up any more when the stream gets to it."""
    plain.execute(TABLE, ROWS, PUBLISH)
    with plain.running():
        plain.settle()
    plain.execute(
        "alter table t add column c int default 1",
        TOUCH,
        "alter table t rename column c to d",
        "alter table t drop column a",
        TOUCH,
    )
    with plain.running():
        plain.wait_for(lambda: plain.kinds()["t"] is StateKind.ERRORED, "the table to be put aside")
        plain.store.new_generation(plain.config.name, plain.table("t").relation_id, by="somebody")
        plain.settle()
        plain.assert_equal()


def test_a_replaced_column_is_noticed_without_the_trigger(plain: Live) -> None:
    plain.execute(TABLE, ROWS, PUBLISH)
    with plain.running():
        plain.settle()
        plain.execute("begin; alter table t drop column v; alter table t add column v varchar(5); commit", TOUCH)
        plain.wait_for(lambda: plain.kinds()["t"] is StateKind.ERRORED, "the table to be put aside")
        assert "dropped and added again" in (plain.table("t").state.reason or "")


@pytest.mark.parametrize("point", ["apply.before_record", "apply.before_applied"])
def test_a_crash_in_the_middle_of_a_schema_change_is_mended(live: Live, point: str) -> None:
    live.execute(TABLE, ROWS, PUBLISH)
    with live.running():
        live.settle()
    live.execute("alter table t add column c int default 4", "alter table t rename column a to z", TOUCH)

    def die() -> None:
        failpoints.disarm()
        raise Killed

    failpoints.arm(point, die)
    with pytest.raises(Killed), live.running():
        live.wait_for(lambda: not failpoints._ARMED, "the crash")
        assert live.pipeline is not None
        live.wait_for(lambda: any(worker.done() for worker in live.pipeline._workers), "the end")  # type: ignore[union-attr]
    with live.running():
        live.settle()
        live.assert_equal()


def test_a_copy_during_schema_changes_is_right(live: Live) -> None:
    live.execute(TABLE, ROWS, PUBLISH)
    failpoints.arm("copy.planned", lambda: live.execute(TOUCH))
    with live.running():
        live.settle()
        for number in range(4):
            live.execute(f"alter table t add column c{number} int default {number}", TOUCH)
            live.store.new_generation(live.config.name, live.table("t").relation_id, by="somebody")
            live.execute(f"update t set c{number} = 9 where id = 2")
        live.settle()
        live.assert_equal()
