"""The store in Postgres keeps the contract, and survives what happens to connections."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg import sql

from airflow_provider_pgetl.local.postgres import Database, EmbeddedPostgres
from airflow_provider_pgetl.replication.errors import Overtaken, StoreError
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.progress import CutTable, Lease, TableRecord
from airflow_provider_pgetl.replication.state import StateKind, TableState
from airflow_provider_pgetl.replication.store import postgres_cuts, postgres_pool, postgres_state
from airflow_provider_pgetl.replication.store.postgres import PostgresStore
from airflow_provider_pgetl.replication.store.postgres_lease import hold
from airflow_provider_pgetl.replication.store.postgres_outbox import announce_copy
from airflow_provider_pgetl.replication.store.postgres_pool import MAX_CONNECTIONS
from airflow_provider_pgetl.replication.store.tables import metadata
from airflow_provider_pgetl.testing.store import StoreContract
from airflow_provider_pgetl.testing.store_values import (
    ERROR,
    ITEMS,
    ORDERS,
    make_file,
    make_pipeline,
    make_schema,
    make_segment,
    taken,
    walk_to_ready,
)


@pytest.fixture(scope="module")
def state_database(postgres: EmbeddedPostgres) -> Iterator[Database]:
    """One database for the module; each test empties the tables instead of making them again."""
    database = postgres.create_database("pgetl_store")
    store = PostgresStore(database.conninfo)
    store.create_tables()
    store.close()
    yield database
    postgres.drop_database("pgetl_store")


@pytest.fixture
def store(state_database: Database) -> Iterator[PostgresStore]:
    with state_database.connect() as connection:
        names = sql.SQL(", ").join(sql.Identifier("pgetl", table.name) for table in metadata.sorted_tables)
        connection.execute(sql.SQL("truncate {} restart identity").format(names))
    store = PostgresStore(state_database.conninfo)
    yield store
    store.close()


class TestPostgresStore(StoreContract):
    pass


def _backends(database: Database) -> list[int]:
    with database.connect() as connection:
        rows = connection.execute(
            "select pid from pg_stat_activity where datname = %s and application_name = 'pgetl state'",
            (database.name,),
        ).fetchall()
    return [int(str(pid)) for (pid,) in rows]


def _blocked(database: Database) -> bool:
    with database.connect() as connection:
        row = connection.execute(
            "select count(*) from pg_stat_activity where datname = %s and cardinality(pg_blocking_pids(pid)) > 0",
            (database.name,),
        ).fetchone()
    return row is not None and row[0] != 0


def test_create_tables_can_be_repeated_and_raced(database: Database) -> None:
    stores = [PostgresStore(database.conninfo) for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda store: store.create_tables(), stores))
    stores[0].register_pipeline(make_pipeline())
    stores[1].create_tables()
    assert stores[2].pipeline("shop") == make_pipeline()
    for store in stores:
        store.close()


def test_missing_tables_say_what_to_run(database: Database) -> None:
    store = PostgresStore(database.conninfo)
    with pytest.raises(StoreError, match="airflow db migrate"):
        store.pipelines()
    store.close()


# What came after the first revision of the tables.
LATER = (
    ("table_state", "source_mark"),
    ("table_state_history", "rolled_back"),
    ("destination_table", "previous_version"),
)


def _make_old(database: Database) -> None:
    with database.connect() as connection:
        for table, column in LATER:
            statement = sql.SQL("alter table {} drop column {}")
            connection.execute(statement.format(sql.Identifier("pgetl", table), sql.Identifier(column)))


def test_older_tables_say_what_to_run(database: Database) -> None:
    store = PostgresStore(database.conninfo)
    store.create_tables()
    store.register_pipeline(make_pipeline())
    record, lease = store.register_table("shop", make_schema(), Lsn(10), by="discover"), taken(store)
    _make_old(database)
    calls: list[Callable[[], object]] = [
        lambda: store.table("shop", ORDERS),
        lambda: store.tables("shop"),
        lambda: store.register_table("shop", make_schema(ITEMS, "items"), Lsn(10), by="discover"),
        lambda: store.move(record, TableState(StateKind.DATA_SYNC), by="copy"),
        lambda: store.new_generation("shop", ORDERS, by="someone"),
        lambda: store.rollback(record, by="someone"),
        lambda: store.mark_source("shop", ORDERS, "mark"),
        lambda: store.applied(lease, record, Lsn(20), 1),
        lambda: store.applying(record, "lake.orders", 1),
        lambda: store.applied_schema(record, "lake.orders", 1),
        lambda: store.destination_status("shop", ORDERS),
        lambda: store.prepare_for_copy(record),
        lambda: store.prune_schemas("shop", ORDERS, Lsn(10)),
        lambda: store.reset_all("shop", lease, Lsn(10), by="someone"),
    ]
    for call in calls:
        with pytest.raises(StoreError, match=r"missing or old.*airflow db migrate.*create_tables"):
            call()
    store.close()


def test_create_tables_brings_older_tables_up_to_date_and_keeps_their_rows(database: Database) -> None:
    store = PostgresStore(database.conninfo)
    store.create_tables()
    store.register_pipeline(make_pipeline())
    record = walk_to_ready(store, store.register_table("shop", make_schema(), Lsn(10), by="discover"))
    _make_old(database)
    store.create_tables()
    assert store.table("shop", ORDERS) == record
    assert store.rollback(record, by="someone").state.kind is StateKind.SYNC_DONE
    assert store.mark_source("shop", ORDERS, "mark").source_mark == "mark"
    store.close()


def test_create_tables_waits_for_nobody_where_nothing_is_missing(
    store: PostgresStore, state_database: Database
) -> None:
    """An `alter table` would wait for whoever reads the table, and let all others wait behind it."""
    with state_database.connect() as reader, reader.transaction():
        reader.execute("select count(*) from pgetl.table_state")
        store.create_tables()


def test_an_unreachable_server_is_a_store_error_without_the_password() -> None:
    store = PostgresStore("host=127.0.0.1 port=1 user=u password=s3cret dbname=d")
    with pytest.raises(StoreError) as caught:
        store.pipelines()
    assert "s3cret" not in str(caught.value)
    assert "s3cret" not in repr(store.__dict__)
    with pytest.raises(StoreError, match="can't be read"):
        PostgresStore("host='unfinished password=s3cret")


def test_a_connection_lost_while_idle_is_not_noticed(store: PostgresStore, state_database: Database) -> None:
    store.register_pipeline(make_pipeline())
    before = _backends(state_database)
    assert before
    with state_database.connect() as connection:
        for pid in before:
            connection.execute("select pg_terminate_backend(%s, 5000)", (pid,))
    assert store.pipeline("shop") == make_pipeline()
    assert not set(before) & set(_backends(state_database))


def test_a_connection_lost_in_a_transaction_is_an_error_and_the_next_call_works(
    store: PostgresStore, state_database: Database
) -> None:
    store.register_pipeline(make_pipeline())

    def lose_it_midway() -> None:
        with store._pool.transaction() as cursor:
            cursor.execute("update pgetl.pipeline set paused = true")
            with state_database.connect() as connection:
                connection.execute("select pg_terminate_backend(%s, 5000)", (cursor.connection.info.backend_pid,))
            cursor.execute("select 1")

    with pytest.raises(StoreError):
        lose_it_midway()
    assert store.pipeline("shop") == make_pipeline()


def test_a_transaction_that_raises_is_rolled_back(store: PostgresStore) -> None:
    store.register_pipeline(make_pipeline())

    def fail_midway() -> None:
        with store._pool.transaction() as cursor:
            cursor.execute("update pgetl.pipeline set paused = true")
            raise RuntimeError("midway")

    with pytest.raises(RuntimeError):
        fail_midway()
    assert store.pipeline("shop") == make_pipeline()


def test_many_threads_share_a_few_connections(store: PostgresStore, state_database: Database) -> None:
    store.register_pipeline(make_pipeline())
    with ThreadPoolExecutor(32) as threads:
        found = list(threads.map(lambda _: store.pipeline("shop"), range(200)))
    assert found == [make_pipeline()] * 200
    assert len(_backends(state_database)) <= MAX_CONNECTIONS


def test_a_closed_store_refuses_and_leaves_no_connection(store: PostgresStore, state_database: Database) -> None:
    store.register_pipeline(make_pipeline())
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.pipelines()
    deadline = time.monotonic() + 10
    while _backends(state_database):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_takeover_waits_for_the_write_of_the_old_owner(store: PostgresStore) -> None:
    """Either the old epoch's write is in before the takeover, or it is refused: never in between."""
    store.register_pipeline(make_pipeline())
    for round_number in range(20):
        old = taken(store, f"old {round_number}", ttl_s=0.0)
        lsn = Lsn(round_number + 1)
        with ThreadPoolExecutor(2) as threads:
            write = threads.submit(store.advance, "shop", old, lsn)
            takeover = threads.submit(store.acquire, "shop", "stream", f"new {round_number}", 0.0)
            new = takeover.result()
            failed = write.exception()
        assert new is not None
        pipeline = store.pipeline("shop")
        assert pipeline is not None
        assert (pipeline.spooled_lsn == lsn) is (failed is None)


def test_a_frozen_writer_is_cut_off_and_writes_nothing(
    store: PostgresStore, state_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stopped in mid-transaction and holds its lease's row: the server lets the next owner in."""
    soon = "idle_in_transaction_session_timeout = '300ms'"
    shorter = postgres_pool.BEGIN.replace("idle_in_transaction_session_timeout = '10s'", soon)
    assert soon in shorter
    monkeypatch.setattr(postgres_pool, "BEGIN", shorter)
    store.register_pipeline(make_pipeline())
    old = taken(store, ttl_s=0.0)
    frozen = PostgresStore(state_database.conninfo)
    owners = []

    def freeze_midway() -> None:
        with frozen._pool.transaction() as cursor:
            hold(cursor, old)
            cursor.execute("update pgetl.pipeline set spooled_lsn = '0/FF'")
            owners.append(store.acquire("shop", "stream", "two", 60.0))
            cursor.execute("select 1")

    with pytest.raises(StoreError):
        freeze_midway()
    assert [owner and owner.owner for owner in owners] == ["two"]
    assert store.pipeline("shop") == make_pipeline()
    with pytest.raises(Overtaken):
        frozen.advance("shop", old, Lsn(500))
    frozen.close()


def test_writers_of_all_kinds_never_wait_for_each_other_in_a_circle(store: PostgresStore) -> None:
    """Postgres would end one of them with "deadlock detected"."""
    relations = range(1, 4)
    leases: list[Lease] = []

    def register() -> None:
        store.register_pipeline(make_pipeline())
        for relation_id in relations:
            store.register_table("shop", make_schema(relation_id, f"t{relation_id}"), Lsn(1), by="discover")
        leases.append(taken(store))

    def record(relation_id: int) -> TableRecord:
        found = store.table("shop", relation_id)
        if found is None:
            raise StoreError("no table any more")
        return found

    register()
    writes: list[Callable[[int], object]] = [
        lambda n: store.new_generation("shop", n, by="someone"),
        lambda n: store.applied_schema(record(n), "lake.t", n),
        lambda n: store.applying(record(n), "lake.t", n),
        lambda n: store.prepare_for_copy(record(n)),
        lambda n: store.move(record(n), ERROR, by="applier"),
        lambda n: store.rollback(record(n), by="someone"),
        lambda n: store.applied(leases[-1], record(n), Lsn(n), n),
        lambda n: store.record_cut("shop", leases[-1], Lsn(n), [CutTable(n, n)]),
        lambda n: store.reset_all("shop", leases[-1], Lsn(n), by="someone"),
        lambda n: store.rewind("shop", leases[-1], Lsn(n)),
        lambda n: store.add_schema("shop", make_schema(n, f"t{n}", columns=n), Lsn(n)),
        lambda n: store.prune_schemas("shop", n, Lsn(n)),
        lambda n: store.delete_table("shop", n),
        lambda _: store.delete_pipeline("shop"),
        lambda _: register(),
    ]

    def run(number: int) -> str:
        try:
            writes[number % len(writes)](number % len(relations) + 1)
        except StoreError as refused:
            return refused.message
        return ""

    with ThreadPoolExecutor(8) as threads:
        said = list(threads.map(run, range(len(writes) * 40)))
    assert [message for message in said if "deadlock" in message or "failed" in message] == []
    assert said.count("") > len(said) // 4


def test_an_announcement_is_not_seen_before_an_older_one(
    store: PostgresStore, state_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that goes on from the newer one's id would never see the older."""
    store.register_pipeline(make_pipeline())
    store.register_table("shop", make_schema(), Lsn(1), by="discover")
    lease, last = taken(store), store.announcements("shop")[-1].id
    seen = []

    def announce_and_wait(cursor: Any, pipeline: str, relation_ids: Sequence[int]) -> None:
        announce_copy(cursor, pipeline, relation_ids)
        cut = threads.submit(store.record_cut, "shop", lease, Lsn(5), [CutTable(ITEMS, 1)])
        while not cut.done() and not _blocked(state_database):
            time.sleep(0.01)
        seen.extend(store.announcements("shop", after=last))

    monkeypatch.setattr(postgres_state, "announce_copy", announce_and_wait)
    with ThreadPoolExecutor(1) as threads:
        store.new_generation("shop", ORDERS, by="someone")
    assert seen == []
    assert [known.kind for known in store.announcements("shop", after=last)] == ["copy", "cut"]


def test_a_copy_begun_again_and_a_deletion_forget_the_name_map(store: PostgresStore, state_database: Database) -> None:
    store.register_pipeline(make_pipeline())
    record = store.register_table("shop", make_schema(), Lsn(10), by="discover")

    def names() -> int:
        with state_database.connect() as connection:
            row = connection.execute("select count(*) from pgetl.name_map").fetchone()
        assert row is not None
        return int(str(row[0]))

    for forget in (lambda: store.prepare_for_copy(record), lambda: store.delete_table("shop", ORDERS)):
        with state_database.connect() as connection:
            connection.execute("insert into pgetl.name_map values ('shop', %s, '_row_id', '_row_id_')", (ORDERS,))
        assert names() == 1
        forget()
        assert names() == 0


def test_deleting_a_table_and_rewinding_leave_no_empty_segment(store: PostgresStore, state_database: Database) -> None:
    store.register_pipeline(make_pipeline())
    lease = taken(store)
    store.add_segment("shop", lease, make_segment(0, 25, make_file(10, 20), make_file(10, 20, relation_id=ITEMS)))
    store.add_segment("shop", lease, make_segment(25, 50, make_file(30, 40)))
    store.add_segment("shop", lease, make_segment(50, 75, make_file(60, 70, relation_id=ITEMS)))
    store.delete_table("shop", ORDERS)
    with state_database.connect() as connection:
        rows = connection.execute("select from_lsn::text from pgetl.segment order by id").fetchall()
    assert rows == [("0/0",), ("0/32",)]
    store.rewind("shop", lease, Lsn(50))
    with state_database.connect() as connection:
        rows = connection.execute("select from_lsn::text from pgetl.segment order by id").fetchall()
    assert rows == [("0/0",)]


def test_a_cut_leaves_one_outbox_row_for_each_table(store: PostgresStore, state_database: Database) -> None:
    store.register_pipeline(make_pipeline())
    lease = taken(store)
    store.record_cut("shop", lease, Lsn(100), [CutTable(ORDERS, 1), CutTable(ITEMS, 2)])
    store.record_cut("shop", lease, Lsn(200), [CutTable(ORDERS, 3)])
    with state_database.connect() as connection:
        rows = connection.execute("select relation_id, lsn::text, snapshot_id from pgetl.outbox order by id").fetchall()
    assert rows == [(ITEMS, "0/64", 2), (ORDERS, "0/C8", 3)]


def test_old_cuts_and_samples_are_thinned(
    store: PostgresStore, state_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_cuts, "CUTS_KEPT", 3)
    monkeypatch.setattr(postgres_cuts, "SAMPLES_KEPT", 3)
    monkeypatch.setattr(postgres_cuts, "THIN_EVERY", 1)
    store.register_pipeline(make_pipeline())
    lease = taken(store)
    for number in range(10):
        store.record_cut("shop", lease, Lsn(number), [CutTable(ORDERS, number)])
        store.add_sample("shop", {"number": number})
    with state_database.connect() as connection:
        counts = connection.execute(
            "select (select count(*) from pgetl.cut), (select count(*) from pgetl.cut_table),"
            " (select count(*) from pgetl.sample)"
        ).fetchone()
    assert counts == (3, 3, 3)
    latest = store.latest_cut("shop")
    assert latest is not None
    assert latest.lsn == Lsn(9)


def test_forgetting_the_last_file_removes_the_segment(store: PostgresStore, state_database: Database) -> None:
    store.register_pipeline(make_pipeline())
    store.register_table("shop", make_schema(), Lsn(1), by="test")
    store.add_segment("shop", taken(store), make_segment(0, 100, make_file(1, 2), make_file(3, 4)))

    def segments() -> object:
        with state_database.connect() as connection:
            return connection.execute("select count(*) from pgetl.segment").fetchone()

    store.forget_files("shop", [make_file(1, 2).path])
    assert segments() == (1,)
    store.forget_files("shop", [make_file(3, 4).path])
    assert segments() == (0,)


def test_a_role_without_rights_is_told_what_to_grant(store: PostgresStore, state_database: Database) -> None:
    with state_database.connect() as connection:
        connection.execute("drop role if exists pgetl_stranger")
        connection.execute("create role pgetl_stranger login password 'stranger'")
    conninfo = psycopg.conninfo.make_conninfo(state_database.conninfo, user="pgetl_stranger", password="stranger")
    stranger = PostgresStore(conninfo)
    with pytest.raises(StoreError, match="Grant usage on schema pgetl"):
        stranger.pipelines()
    stranger.close()
    with state_database.connect() as connection:
        connection.execute("drop role pgetl_stranger")
