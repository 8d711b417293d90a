"""The stream path against a real server: what is committed is spooled, once, unaltered, whatever fails."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from airflow_provider_pgetl.replication import failpoints
from airflow_provider_pgetl.replication.config import BatchConfig
from airflow_provider_pgetl.replication.errors import Overtaken, SlotError
from airflow_provider_pgetl.replication.source import slots
from airflow_provider_pgetl.replication.source.connection import connect
from tests.integration.replication.conftest import Source
from tests.integration.replication.lake import Rows, replay

TABLE = "create table t (id int primary key, name text, amount numeric(12,2), at timestamptz, big text)"


def assert_equal_to_source(source: Source, name: str = "public.t") -> None:
    record = next(r for r in source.store.tables(source.config.name) if str(r.table) == name)
    schema = source.store.latest_schema(source.config.name, record.relation_id)
    assert schema is not None
    found: Rows = {}
    replay(found, source.changes(record), schema)
    columns = ", ".join(f'"{column.name}"' for column in schema.columns)
    wanted = source.rows(f"select {columns} from {name}")
    by_key = {tuple(row[schema.columns.index(column)] for column in schema.key): row for row in wanted}
    assert {key: tuple(row.values()) for key, row in found.items()} == by_key


@pytest.fixture
def table(source: Source) -> Source:
    source.execute(TABLE, "create publication pub for table t")
    source.discover()
    return source


def test_inserts_updates_and_deletes_give_the_source_rows(table: Source) -> None:
    table.execute(
        "insert into t select i, 'n' || i, i * 1.5, now(), null from generate_series(1, 1000) i",
        "update t set name = 'changed', amount = null where id % 3 = 0",
        "delete from t where id % 5 = 0",
        "update t set id = id + 10000 where id < 20",
        "insert into t values (5, 'again', 0.01, 'epoch', '')",
    )
    table.spool_all()
    assert_equal_to_source(table)


def test_an_unchanged_toast_value_is_named_not_nulled(table: Source) -> None:
    table.execute(
        "alter table t alter big set storage external",
        "insert into t select 1, 'a', 1, now(), repeat('x', 100000)",
        "update t set name = 'b' where id = 1",
    )
    table.spool_all()
    record = table.store.tables(table.config.name)[0]
    last = table.changes(record)[-1]
    assert (last["_op"], last["name"], last["big"], last["_unchanged"]) == ("u", "b", None, ["big"])
    assert_equal_to_source(table)


def test_replica_identity_full_restores_toast_from_the_old_row(table: Source) -> None:
    table.execute(
        "alter table t replica identity full",
        "alter table t alter big set storage external",
        "insert into t select 1, 'a', 1, now(), repeat('x', 100000)",
        "update t set name = 'b' where id = 1",
    )
    table.spool_all()
    last = table.changes(table.store.tables(table.config.name)[0])[-1]
    assert last["_unchanged"] is None
    assert last["big"] == "x" * 100000
    assert last["_old"]["name"] == "a"


def test_truncate_empties_what_precedes_it(table: Source) -> None:
    table.execute(
        "insert into t select i from generate_series(1, 10) i",
        "truncate t",
        "insert into t select i from generate_series(5, 7) i",
    )
    table.spool_all()
    assert_equal_to_source(table)


def test_a_transaction_past_the_limit_is_written_in_pieces_and_registered_once(table: Source) -> None:
    object.__setattr__(table.config, "batch", BatchConfig(max_fill_ms=50, max_bytes=200_000))
    table.execute("insert into t select i, repeat('v', 50) from generate_series(1, 30000) i")
    table.spool_all()
    record = table.store.tables(table.config.name)[0]
    files = table.store.files(table.config.name, record.relation_id, table.lsn().__class__(0), table.lsn())
    assert len(files) > 1
    assert len({file.first_lsn for file in files}) == 1
    assert_equal_to_source(table)


def test_a_rolled_back_savepoint_leaves_no_trace(table: Source) -> None:
    with psycopg.connect(table.conninfo) as connection:
        connection.execute("insert into t values (1, 'kept')")
        connection.execute("savepoint s")
        connection.execute("insert into t values (2, 'gone')")
        connection.execute("rollback to s")
        connection.execute("insert into t values (3, 'kept')")
    table.spool_all()
    assert_equal_to_source(table)


@pytest.mark.parametrize("point", ["spool.written", "ledger.before", "ledger.after", "confirm.before"])
def test_a_crash_at_any_step_loses_and_doubles_nothing(table: Source, point: str) -> None:
    table.execute("insert into t select i, 'before' from generate_series(1, 100) i")
    failpoints.arm(point)
    with pytest.raises(failpoints.Failpoint), table.streaming():
        table.wait_ended()
    failpoints.disarm()
    table.execute("update t set name = 'after' where id <= 50", "delete from t where id > 90")
    table.spool_all()
    assert_equal_to_source(table)


def test_a_crash_leaves_no_file_that_stays(table: Source) -> None:
    table.execute("insert into t values (1, 'x')")
    failpoints.arm("ledger.before")
    with pytest.raises(failpoints.Failpoint), table.streaming():
        table.wait_ended()
    failpoints.disarm()
    orphans = set(Path(table.config.spool_root).rglob("*.parquet"))
    assert orphans
    table.spool_all()
    files = set(Path(table.config.spool_root).rglob("*.parquet"))
    assert not files & orphans
    assert {str(file) for file in files} == table.store.all_paths(table.config.name)


def test_the_walsender_is_terminated_and_the_stream_goes_on(table: Source) -> None:
    with table.streaming() as path:
        for number in range(5):
            table.execute(f"insert into t values ({number}, 'x')")
            table.wait_spooled(table.lsn())
            table.execute(
                "select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = "
                f"'{table.config.slot}' and active"
            )
        table.execute("insert into t values (99, 'last')")
        table.wait_spooled(table.lsn())
        assert path.stats.reconnects > 0
    assert_equal_to_source(table)


def test_an_overtaken_stream_writes_nothing_more(table: Source) -> None:
    with pytest.raises(Overtaken), table.streaming():
        table.store.acquire(table.config.name, "stream", "test", 60)  # a newer epoch
        table.execute("insert into t values (1, 'x')")
        table.wait_ended()
    assert table.store.all_paths(table.config.name) == set()
    table.spool_all()
    assert_equal_to_source(table)


def test_an_idle_stream_moves_the_slot_past_unrelated_wal(table: Source) -> None:
    table.execute("create table other (i int)", "insert into other select generate_series(1, 10000)")
    target = table.lsn()
    table.spool_all()
    with connect(table.conninfo, "test") as connection:
        assert slots.require(connection, table.config.slot).confirmed >= target


def test_a_dropped_slot_is_a_clear_error(table: Source) -> None:
    table.execute(f"select pg_drop_replication_slot('{table.config.slot}')")
    with pytest.raises(SlotError, match="does not exist"), table.streaming():
        table.wait_ended()


def test_a_row_filter_and_a_column_list_hold(source: Source) -> None:
    source.execute(TABLE, "create publication pub for table t (id, name) where (id < 10)")
    source.discover()
    source.execute("insert into t select i, 'n', 5 from generate_series(1, 20) i")
    source.spool_all()
    changes = source.changes(source.store.tables(source.config.name)[0])
    assert [change["id"] for change in changes] == list(range(1, 10))
    assert "amount" not in changes[0]


def test_partitions_stream_as_their_root_and_are_no_tables_of_their_own(source: Source) -> None:
    source.execute(
        "create table t (id int, day date, primary key (id, day)) partition by range (day)",
        "create table t1 partition of t for values from ('2024-01-01') to ('2025-01-01')",
        "create table t2 partition of t for values from ('2025-01-01') to ('2026-01-01')",
        "create publication pub for table t with (publish_via_partition_root)",
    )
    source.discover()
    source.execute(
        "insert into t select i, '2024-06-01'::date + i from generate_series(1, 300) i",
        "update t set day = day + 200 where id < 50",
        "truncate t",
        "insert into t values (1, '2024-06-01'), (2, '2025-06-01')",
        "update t set day = '2025-07-01' where id = 1",
    )
    source.spool_all()
    assert [str(record.table) for record in source.store.tables(source.config.name)] == ["public.t"]
    assert_equal_to_source(source)


class Pressed:
    """A machine whose memory others have filled."""

    pressed = True

    def budget(self, streams: int) -> int:
        return 100_000


def test_a_stream_under_memory_pressure_writes_early_and_goes_on(table: Source) -> None:
    table.execute(
        "insert into t select i, repeat('v', 50) from generate_series(1, 30000) i",
        "update t set name = 'short' where id < 20000",
        "delete from t where id > 29000",
    )
    with table.streaming(memory=Pressed()):
        table.wait_spooled(table.lsn())
    assert len(table.store.all_paths(table.config.name)) > 3
    assert_equal_to_source(table)
