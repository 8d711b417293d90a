"""What Postgres does not send is noticed: publications, partitions, slots, heartbeats."""

from __future__ import annotations

import pytest

from airflow_provider_pgetl.replication.errors import SlotLost
from airflow_provider_pgetl.replication.state import StateKind
from tests.integration.pipeline.live import Live

TABLE = "create table t (id int primary key, v text)"
ROWS = "insert into t select i, 'v' from generate_series(1, 50) i"
PARTITIONED = (
    "create table t (id int, day date, v text, primary key (id, day)) partition by range (day)",
    "create table t1 partition of t for values from ('2024-01-01') to ('2025-01-01')",
    "create table t2 partition of t for values from ('2025-01-01') to ('2026-01-01')",
    "insert into t select i, '2024-06-01'::date + i, 'v' from generate_series(1, 300) i",
    "create publication pub for table t with (publish_via_partition_root)",
)


def test_a_table_that_is_added_while_running_arrives(live: Live) -> None:
    live.execute(TABLE, ROWS, "create table u (id int primary key, v text)", "insert into u values (1, 'old')")
    live.execute("create publication pub for table t")
    with live.running():
        live.settle()
        live.execute("alter publication pub add table u", "insert into u values (2, 'new')")
        live.wait_for(lambda: live.kinds().get("u") is StateKind.READY, "the new table")
        live.execute("update u set v = 'newer'", "update t set v = 'w'")
        live.settle()
        live.assert_equal()


def test_a_table_that_leaves_is_forgotten_and_its_rows_stay(live: Live) -> None:
    live.execute(TABLE, ROWS, "create table u (id int primary key)", "insert into u values (1)")
    live.execute("create publication pub for table t, u")
    with live.running():
        live.settle()
        live.execute("insert into u values (2)", "alter publication pub drop table u")
        live.wait_for(lambda: "u" not in live.kinds(), "the table to be forgotten")
        live.execute("update t set v = 'w'")
        live.settle()
        live.assert_equal("t")
        assert live.destination.rows("public.u")


def test_a_table_that_left_and_came_back_is_copied_again(live: Live) -> None:
    live.execute(TABLE, ROWS, "create table u (id int primary key)", "create publication pub for table t, u")
    with live.running():
        live.settle()
    live.execute(
        "alter publication pub drop table t", "delete from t where id > 10", "alter publication pub add table t"
    )
    with live.running():
        live.wait_for(lambda: live.table("t").generation > 1, "a new generation")
        live.settle()
        live.assert_equal()


def test_a_changed_row_filter_is_a_new_generation(live: Live) -> None:
    live.execute(TABLE, ROWS, "create publication pub for table t where (id < 10)")
    with live.running():
        live.settle()
        assert len(live.destination.rows("public.t")) == 9
        live.execute("alter publication pub set table t where (id < 20)")
        live.wait_for(lambda: live.table("t").generation > 1, "a new generation")
        live.settle()
        assert len(live.destination.rows("public.t")) == 19


def test_a_new_partition_is_followed_without_a_resync(live: Live) -> None:
    live.execute(*PARTITIONED)
    with live.running():
        live.settle()
        live.execute(
            "create table t3 partition of t for values from ('2026-01-01') to ('2027-01-01')",
            "insert into t values (1000, '2026-02-03', 'new')",
        )
        live.settle()
        live.execute("update t set v = 'x' where id = 1000")
        live.settle()
        live.assert_equal()
        assert live.table("t").generation == 1


@pytest.mark.parametrize(
    "change",
    [
        "alter table t detach partition t1",
        "drop table t1",
        "truncate t1",
        (
            "create table t3 (like t including all); insert into t3 values (7, '2026-05-05', 'attached'); "
            "alter table t attach partition t3 for values from ('2026-01-01') to ('2027-01-01')"
        ),
    ],
    ids=["detach", "drop", "truncate of a leaf", "attach"],
)
def test_what_partitions_do_silently_is_noticed(live: Live, change: str) -> None:
    live.execute(*PARTITIONED)
    with live.running():
        live.settle()
        live.execute(change)
        live.wait_for(lambda: live.table("t").generation > 1, "a new generation")
        live.settle()
        live.assert_equal()


def test_a_heartbeat_moves_the_slot_of_an_idle_source(live: Live) -> None:
    live.execute(TABLE, "create publication pub for table t")
    object.__setattr__(live.config, "heartbeat_interval_ms", 100)
    with live.running():
        live.settle()
        before = live.lsn()
        query = f"select confirmed_flush_lsn::text from pg_replication_slots where slot_name = '{live.config.slot}'"
        live.wait_for(lambda: live.rows(query)[0][0] > str(before), "the slot to pass a heartbeat")


def test_a_lost_slot_is_an_error_by_default(live: Live) -> None:
    live.execute(TABLE, ROWS, "create publication pub for table t")
    with live.running():
        live.settle()
    live.execute(f"select pg_drop_replication_slot('{live.config.slot}')", "insert into t values (100, 'unseen')")
    with pytest.raises(SlotLost, match="does not exist"), live.running() as pipeline:
        live.wait_for(pipeline._workers[0].done, "the stream to end")


def test_a_slot_made_anew_by_somebody_is_not_trusted(live: Live) -> None:
    live.execute(TABLE, ROWS, "create publication pub for table t")
    with live.running():
        live.settle()
    live.execute(
        f"select pg_drop_replication_slot('{live.config.slot}')",
        "insert into t values (100, 'unseen')",
        f"select pg_create_logical_replication_slot('{live.config.slot}', 'pgoutput')",
    )
    with pytest.raises(SlotLost, match="made anew"), live.running() as pipeline:
        live.wait_for(pipeline._workers[0].done, "the stream to end")


def test_a_lost_slot_is_made_anew_and_everything_copied_again_if_asked(live: Live) -> None:
    live.execute(TABLE, ROWS, "create publication pub for table t")
    with live.running():
        live.settle()
    live.execute(f"select pg_drop_replication_slot('{live.config.slot}')", "insert into t values (100, 'unseen')")
    live.config = type(live.config)(
        **{name: getattr(live.config, name) for name in live.config.__slots__}
        | {"invalidated_slot_behavior": "recreate"}
    )
    with live.running():
        live.wait_for(lambda: live.table("t").generation > 1, "a new generation")
        live.settle()
        live.assert_equal()
        live.execute("update t set v = 'after'")
        live.settle()
        live.assert_equal()
