"""Slots on real servers: made, looked at, lost, dropped."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import psycopg
import pytest

from airflow_provider_pgetl.local import process
from airflow_provider_pgetl.replication.errors import ConfigError, Retry, SlotError, SlotLost, SourceError
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.source import slots, waiting
from airflow_provider_pgetl.replication.source.connection import Connection, connect
from airflow_provider_pgetl.replication.source.stream import ReplicationStream
from tests.integration.source.conftest import Place, debian_binaries, in_background, own_server


@pytest.fixture
def name(place: Place) -> str:
    return f"pgetl_{place.name}"


@pytest.fixture
def plain(place: Place) -> Iterator[Connection]:
    with connect(place.conninfo, "test") as connection:
        yield connection


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look every few milliseconds for old transactions."""
    monkeypatch.setattr(waiting, "POLL_S", 0.02)


def test_a_slot_is_made_once_and_stands_where_it_was_made(place: Place, name: str, plain: Connection) -> None:
    assert slots.inspect(plain, name) is None
    made = slots.ensure(place.conninfo, plain, name)
    place.execute("create table t (id int)", "insert into t values (1)")
    assert slots.ensure(place.conninfo, plain, name) == made
    slot = slots.require(plain, name)
    assert (slot.name, slot.plugin, slot.database) == (name, "pgoutput", place.name)
    assert (slot.active_pid, slot.wal_status, slot.invalidation_reason) == (None, "reserved", None)
    assert slot.ready
    assert not slot.failover
    assert not slot.lost


def test_lag_is_what_was_written_and_not_confirmed(place: Place, name: str, plain: Connection) -> None:
    slots.create(place.conninfo, name)
    before = slots.require(plain, name)
    place.execute("create table t as select repeat('x', 1000) as pad from generate_series(1, 1000)")
    after = slots.require(plain, name)
    assert after.lag_bytes - before.lag_bytes > 1_000_000
    assert after.retained_bytes >= after.lag_bytes


def test_a_missing_slot_is_a_lost_one(plain: Connection, name: str) -> None:
    with pytest.raises(SlotLost, match="does not exist") as caught:
        slots.require(plain, name)
    assert caught.value.retry is Retry.MANUAL
    assert "invalidated_slot_behavior" in caught.value.hint
    assert "copies all tables again" in caught.value.hint


@pytest.mark.parametrize("binaries", [None, "debian"], ids=["postgres", "debian"])
def test_a_slot_whose_wal_was_removed_is_lost(binaries: str | None) -> None:
    settings = {"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"}
    with own_server(debian_binaries() if binaries else None, settings) as server:
        database = server.create_database("shop")
        with connect(database.conninfo, "test") as connection:
            slots.create(database.conninfo, "pgetl_shop")
            safe = slots.require(connection, "pgetl_shop").safe_wal_size
            assert safe is not None
            for _ in range(4):
                connection.execute("select pg_logical_emit_message(false, 'x', 'y')")
                connection.execute("select pg_switch_wal()")
            connection.execute("checkpoint")
            slot = slots.inspect(connection, "pgetl_shop")
            assert slot is not None
            assert slot.lost
            assert slot.invalidation_reason == ("wal_removed" if server.version >= 17 else None)
            with pytest.raises(SlotLost, match="was invalidated"):
                slots.require(connection, "pgetl_shop")
            with pytest.raises(SlotLost, match="was invalidated"):
                slots.ensure(database.conninfo, connection, "pgetl_shop")
            assert slots.drop(database.conninfo, connection, "pgetl_shop")


def test_a_slot_of_another_kind_is_refused(place: Place, name: str, plain: Connection) -> None:
    place.execute(f"select pg_create_logical_replication_slot('{name}', 'test_decoding')")
    with pytest.raises(SlotError, match="test_decoding"):
        slots.require(plain, name)
    place.execute(f"select pg_drop_replication_slot('{name}')", f"select pg_create_physical_replication_slot('{name}')")
    with pytest.raises(SlotError) as caught:
        slots.require(plain, name)
    place.execute(f"select pg_drop_replication_slot('{name}')")
    assert not isinstance(caught.value, SlotLost)


def test_a_slot_of_another_database_is_refused(place: Place, name: str, plain: Connection) -> None:
    slots.create(place.conninfo, name)
    with connect(place.with_(dbname="postgres"), "test") as other, pytest.raises(SlotError, match=place.name) as caught:
        slots.ensure(place.conninfo, other, name)
    assert "another name" in caught.value.hint


# Failover


def test_a_slot_that_follows_failovers_needs_17(older: Place) -> None:
    if older.version >= 17:
        pytest.skip(f"Debian's Postgres here is {older.version}")
    with connect(older.conninfo, "test") as connection:
        with pytest.raises(ConfigError, match=f"needs PostgreSQL 17 or newer, the source is {older.version}"):
            slots.ensure(older.conninfo, connection, "pgetl_f", failover=True)
        with pytest.raises(ConfigError):
            slots.create(older.conninfo, "pgetl_f", failover=True)
        assert slots.inspect(connection, "pgetl_f") is None


def test_a_slot_is_made_to_follow_failovers_at_once_or_later(newest: Place) -> None:
    with connect(newest.conninfo, "test") as connection:
        slots.ensure(newest.conninfo, connection, "pgetl_at_once", failover=True)
        assert slots.require(connection, "pgetl_at_once").failover
        made = slots.ensure(newest.conninfo, connection, "pgetl_later")
        assert not slots.require(connection, "pgetl_later").failover
        assert slots.ensure(newest.conninfo, connection, "pgetl_later", failover=True) == made
        assert slots.require(connection, "pgetl_later").failover
        slots.ensure(newest.conninfo, connection, "pgetl_later")
        assert slots.require(connection, "pgetl_later").failover, "it is never taken back"


def test_a_slot_in_use_can_not_be_changed_and_that_is_said(newest: Place) -> None:
    newest.execute("create publication pub for all tables")
    with connect(newest.conninfo, "test") as connection:
        slots.create(newest.conninfo, "pgetl_used")
        stream = ReplicationStream(newest.conninfo, "pgetl_used", "pub", Lsn(0))
        try:
            with pytest.raises(SlotError, match="while it is in use") as caught:
                slots.ensure(newest.conninfo, connection, "pgetl_used", failover=True)
            assert "Stop the stream" in caught.value.hint
        finally:
            stream.close()


# Waiting for old transactions


def test_who_is_waited_for_is_told_and_the_slot_comes_when_they_end(
    place: Place, name: str, plain: Connection, quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger=waiting.__name__)
    place.execute("create table t (id int)")
    told: list[int] = []
    with (
        place.transaction("insert into t values (1)") as first,
        place.transaction("insert into t values (2)") as second,
        place.transaction("select 1"),  # has no transaction id, so nobody waits for it
    ):
        with in_background(lambda: slots.create(place.conninfo, name, on_wait=told.append)) as made:
            assert process.wait_until(lambda: 2 in told, timeout=30)
            slot = slots.inspect(plain, name)
            assert slot is not None
            assert not slot.ready
            with pytest.raises(SourceError, match="still being made") as caught:
                slots.ensure(place.conninfo, plain, name)
            assert caught.value.retry is Retry.TIMED
            first.commit()
            second.rollback()
        assert made == [slots.require(plain, name).confirmed]
    said = [message for message in caplog.messages if message.startswith("waiting for ")]
    assert len(said) == 1, "now and then, not at every look"
    assert said[0].endswith("old transactions")


def test_a_poor_role_sees_who_is_waited_for(place: Place, name: str, quick: None) -> None:
    role = f"poor_{place.name}"
    place.execute(f"create role {role} login replication password 'p'", "create table t (id int)")
    told: list[int] = []
    try:
        with place.transaction("insert into t values (1)") as writer:
            source = place.with_(user=role, password="p")
            with in_background(lambda: slots.create(source, name, on_wait=told.append)) as made:
                assert process.wait_until(lambda: 1 in told, timeout=30)
                writer.commit()
            assert isinstance(made[0], Lsn)
    finally:
        place.execute(f"drop role {role}")


class Enough(Exception):
    pass


def test_a_wait_that_is_given_up_leaves_no_slot(place: Place, name: str, plain: Connection, quick: None) -> None:
    def give_up(count: int) -> None:
        if count:
            raise Enough

    place.execute("create table t (id int)")
    with place.transaction("insert into t values (1)"):
        with pytest.raises(Enough):
            slots.create(place.conninfo, name, on_wait=give_up)
        assert process.wait_until(lambda: slots.inspect(plain, name) is None, timeout=30)


def test_a_walsender_that_ends_while_the_slot_is_made_may_pass(
    place: Place, name: str, plain: Connection, quick: None
) -> None:
    def end(count: int) -> None:
        plain.execute("select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = %s", (name,))

    place.execute("create table t (id int)")
    with place.transaction("insert into t values (1)"), pytest.raises(SourceError) as caught:
        slots.create(place.conninfo, name, on_wait=end)
    assert caught.value.retry is Retry.TIMED


# Dropping


def test_a_free_slot_is_dropped_and_a_missing_one_is_fine(place: Place, name: str, plain: Connection) -> None:
    slots.create(place.conninfo, name)
    assert slots.drop(place.conninfo, plain, name)
    assert slots.inspect(plain, name) is None
    assert not slots.drop(place.conninfo, plain, name)


def test_a_slot_in_use_is_named_with_its_process_when_the_time_is_up(
    place: Place, name: str, plain: Connection
) -> None:
    place.execute("create publication pub for all tables")
    slots.create(place.conninfo, name)
    stream = ReplicationStream(place.conninfo, name, "pub", Lsn(0))
    try:
        pid = stream.backend_pid
        with pytest.raises(SlotError, match=f"still in use by process {pid}") as caught:
            slots.drop(place.conninfo, plain, name, timeout_s=0.2)
        assert f"pg_terminate_backend({pid})" in caught.value.hint
        assert slots.drop(place.conninfo, plain, name, terminate=True)
    finally:
        stream.close()
    assert slots.inspect(plain, name) is None


def test_a_drop_waits_until_the_stream_lets_go(place: Place, name: str, plain: Connection) -> None:
    place.execute("create publication pub for all tables")
    slots.create(place.conninfo, name)
    stream = ReplicationStream(place.conninfo, name, "pub", Lsn(0))
    trying = "select 1 from pg_stat_activity where application_name = 'pgetl:slot' and datname = current_database()"
    with in_background(lambda: slots.drop(place.conninfo, plain, name)) as dropped:
        assert process.wait_until(lambda: place.rows(trying) == [(1,)], timeout=30)
        stream.close()
    assert dropped == [True]


def test_a_refused_drop_does_not_break_the_callers_transaction(place: Place, name: str) -> None:
    place.execute("create publication pub for all tables")
    slots.create(place.conninfo, name)
    stream = ReplicationStream(place.conninfo, name, "pub", Lsn(0))
    try:
        with connect(place.conninfo, "test", autocommit=False) as connection:
            with pytest.raises(SlotError):
                slots.drop(place.conninfo, connection, name, timeout_s=0)
            assert connection.info.transaction_status is psycopg.pq.TransactionStatus.INTRANS
    finally:
        stream.close()
