"""What people, the watch, the copier, the applier and a failing store do to each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_pgetl.local.postgres import Database
from airflow_provider_pgetl.replication.state import StateKind
from tests.integration.pipeline.live import Live, make_live

TABLE = "create table t (id int primary key, v text)"
PUBLISH = "create publication pub for table t"


@pytest.fixture
def plain(database: Database, tmp_path: Path) -> Live:
    """Without the source's DDL trigger."""
    return make_live(database, str(tmp_path / "spool"), ddl_capture="off")


@pytest.mark.parametrize("capture", ["auto", "off"])
def test_a_truncate_before_a_schema_change_in_one_transaction(database: Database, tmp_path: Path, capture: str) -> None:
    live = make_live(database, str(tmp_path / "spool"), ddl_capture=capture)
    live.execute(TABLE, "insert into t values (1, 'a')", PUBLISH)
    with live.running():
        live.settle()
        live.execute("begin; truncate t; alter table t add n int; insert into t values (2, 'b', 3); commit")
        live.settle()
        live.assert_equal()


def test_a_table_that_was_altered_left_and_came_back_is_followed(live: Live) -> None:
    live.execute(TABLE, "create table u (id int primary key)", "create publication pub for table t, u")
    with live.running():
        live.settle()
        live.execute("alter table t add n int", "insert into t values (1, 'a', 1)")
        live.settle()
        live.execute("alter publication pub drop table t")
        live.wait_for(lambda: "t" not in live.kinds(), "the table to leave")
        live.execute("alter publication pub add table t")
        live.wait_for(lambda: live.kinds().get("t") is StateKind.READY, "the table to be back")
        live.execute("insert into t values (2, 'b', 2)")
        live.settle()
        live.assert_equal()
