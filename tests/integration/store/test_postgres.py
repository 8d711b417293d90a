"""The store in Postgres keeps the contract, and survives what happens to connections."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from psycopg import sql

from airflow_provider_pgetl.local.postgres import Database, EmbeddedPostgres
from airflow_provider_pgetl.replication.errors import StoreError
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.progress import CutTable
from airflow_provider_pgetl.replication.store import postgres_cuts
from airflow_provider_pgetl.replication.store.postgres import PostgresStore
from airflow_provider_pgetl.replication.store.postgres_pool import MAX_CONNECTIONS
from airflow_provider_pgetl.replication.store.tables import metadata
from airflow_provider_pgetl.testing.store import StoreContract
from airflow_provider_pgetl.testing.store_values import ITEMS, ORDERS, make_pipeline, make_schema, taken


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
    from airflow_provider_pgetl.testing.store_values import make_file, make_segment

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
