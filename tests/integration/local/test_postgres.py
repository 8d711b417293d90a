from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from airflow_provider_pgetl.local import process
from airflow_provider_pgetl.local.errors import StartFailed
from airflow_provider_pgetl.local.postgres import Database, EmbeddedPostgres


@pytest.fixture
def own_server(scratch: Path) -> Iterator[EmbeddedPostgres]:
    """A server that the test may stop and kill."""
    folder = Path(tempfile.mkdtemp(dir=scratch))
    folder.chmod(0o755)
    server = EmbeddedPostgres(folder / "pg", settings={"fsync": "off"})
    server.start()
    yield server
    server.kill()
    server.erase()


def put(database: Database) -> None:
    with database.connect() as connection:
        connection.execute("create table t (id int primary key)")
        connection.execute("insert into t values (1)")


def rows(database: Database) -> list[tuple[object, ...]]:
    with database.connect() as connection:
        return connection.execute("select id from t").fetchall()


def test_is_ready_for_logical_replication(database: Database) -> None:
    with database.connect() as connection:
        assert connection.execute("show wal_level").fetchone() == ("logical",)
        connection.execute("select pg_create_logical_replication_slot('a_slot', 'pgoutput')")


def test_each_test_gets_an_empty_database(database: Database) -> None:
    with database.connect() as connection:
        found = connection.execute("select count(*) from pg_class where relnamespace = 'public'::regnamespace")
        assert found.fetchone() == (0,)


def test_a_password_is_needed(database: Database) -> None:
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(f"host=127.0.0.1 port={database.port} user=postgres dbname={database.name} password=wrong")


def test_restart_keeps_port_and_data(own_server: EmbeddedPostgres) -> None:
    database = own_server.create_database("kept")
    put(database)
    own_server.restart()
    assert rows(database) == [(1,)]


def test_killed_server_recovers_what_was_committed(own_server: EmbeddedPostgres) -> None:
    database = own_server.create_database("kept")
    put(database)
    own_server.kill()
    assert not own_server.is_ready()
    own_server.start()
    assert rows(database) == [(1,)]


def test_stop_leaves_no_process(own_server: EmbeddedPostgres) -> None:
    pid = own_server.pid
    assert pid is not None
    backends = process.descendants(pid)
    own_server.stop()
    assert not [one for one in backends if process.alive(one)]
    assert own_server.pid is None


def test_taken_port_is_told_in_one_line(own_server: EmbeddedPostgres, scratch: Path) -> None:
    second = EmbeddedPostgres(scratch / "second", port=own_server.port, settings={"fsync": "off"})
    with pytest.raises(StartFailed, match="could not create any TCP/IP sockets"):
        second.start()


def test_drop_database_takes_its_slots_along(postgres: EmbeddedPostgres) -> None:
    database = postgres.create_database("with_slot")
    with database.connect() as connection:
        connection.execute("select pg_create_logical_replication_slot('left_over', 'pgoutput')")
    postgres.drop_database("with_slot")
    with postgres.database("postgres").connect() as connection:
        left = connection.execute("select 1 from pg_replication_slots where slot_name = 'left_over'")
        assert left.fetchone() is None


def test_programs_of_the_wheel_run(postgres: EmbeddedPostgres) -> None:
    assert postgres.program("pg_recvlogical").exists()
    assert postgres.program("psql").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs Postgres as another user")
def test_below_a_closed_home_the_data_goes_where_the_service_user_can_reach_it(scratch: Path) -> None:
    closed = Path(tempfile.mkdtemp(dir=scratch))
    closed.chmod(0o700)
    server = EmbeddedPostgres(closed / "pg", settings={"fsync": "off"})
    try:
        with server:
            assert closed not in server.data.parents
            put(server.create_database("reached"))
        again = EmbeddedPostgres(closed / "pg", settings={"fsync": "off"})
        with again:
            assert rows(again.database("reached")) == [(1,)]
    finally:
        server.erase()


def test_server_left_by_an_earlier_owner_is_seen(own_server: EmbeddedPostgres) -> None:
    heir = EmbeddedPostgres(own_server.asked_home)
    assert heir.leftover_pid() == own_server.pid
    own_server.stop()
    assert heir.leftover_pid() is None
