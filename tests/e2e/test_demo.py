"""The whole way, from `pgetl demo` on: copy, stream, kill each server in turn, compare, stop, go on.

The tests build on each other and run in the order of the file.
"""

from __future__ import annotations

import os
import signal
import time

import psycopg
import pytest

from airflow_provider_pgetl.local.shop import TABLES
from tests.e2e.conftest import RunningDemo, wait_for


def assert_source_is_lake(demo: RunningDemo) -> None:
    result = demo.pgetl("check")
    assert result.returncode == 0, result.stdout + result.stderr
    for table in TABLES:
        assert f"public.{table}" in result.stdout


def cut_of(demo: RunningDemo) -> int:
    store = demo.store()
    try:
        cut = store.latest_cut("shop")
        return int(cut.lsn) if cut else 0
    finally:
        store.close()


def wait_for_fresh_cut(demo: RunningDemo, seconds: float = 240) -> None:
    """The lake has passed what the source holds now."""
    with psycopg.connect(demo.stack().source_conninfo) as connection:
        row = connection.execute("select (pg_current_wal_lsn() - '0/0')::int8").fetchone()
    assert row is not None
    wait_for(
        lambda: cut_of(demo) >= row[0], seconds, lambda: f"cut {cut_of(demo)} < {row[0]} {demo.log.read_text()[-3000:]}"
    )


def kill(demo: RunningDemo, component: str) -> None:
    demo.remember()
    pid = demo.stack().processes[component]
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: demo.stack().processes.get(component) not in (None, pid), 60, f"{component} was not started again")
    wait_for(lambda: takes_connections(demo), 180, "Postgres does not take connections")


def takes_connections(demo: RunningDemo) -> bool:
    """A killed Postgres recovers first, which takes its time on a busy machine."""
    try:
        psycopg.connect(demo.stack().source_conninfo).close()
    except psycopg.OperationalError:
        return False
    return True


def test_every_table_becomes_ready(demo: RunningDemo) -> None:
    wait_for(lambda: len(demo.states()) == len(TABLES), 180, "discovery")
    demo.wait_ready()


def test_source_and_lake_are_equal_at_one_lsn(demo: RunningDemo) -> None:
    assert_source_is_lake(demo)


def test_a_change_arrives_and_can_be_queried(demo: RunningDemo) -> None:
    with psycopg.connect(demo.stack().source_conninfo, autocommit=True) as connection:
        row = connection.execute("select max(id) from products").fetchone()
        assert row is not None
        connection.execute("update products set title = 'seen in the lake' where id = %s", row)
    wait_for_fresh_cut(demo)
    result = demo.pgetl("query", f"select title from public.products where id = {row[0]}")
    assert result.returncode == 0, result.stderr
    assert "seen in the lake" in result.stdout


def test_status_tells_every_table(demo: RunningDemo) -> None:
    result = demo.pgetl("status")
    assert result.returncode == 0, result.stdout + result.stderr
    assert all(f"public.{table}" in result.stdout for table in TABLES)


@pytest.mark.parametrize("component", ["triggerer", "spark", "postgres"])
def test_a_killed_server_loses_and_doubles_nothing(demo: RunningDemo, component: str) -> None:
    kill(demo, component)
    time.sleep(5)  # the load goes on meanwhile; what it writes must arrive
    wait_for_fresh_cut(demo)
    demo.wait_ready()
    assert_source_is_lake(demo)


def test_a_change_that_never_arrived_fails_the_check(demo: RunningDemo) -> None:
    """A change that Postgres was told not to send is as good as lost: the check must see it."""
    with psycopg.connect(demo.stack().source_conninfo) as connection:
        connection.execute("alter publication shop set (publish = 'insert')")
        connection.execute("update customers set name = 'unsent' where id = (select min(id) from customers)")
        connection.execute("alter publication shop set (publish = 'insert, update, delete, truncate')")
    result = demo.pgetl("check")
    assert result.returncode == 1, result.stdout + result.stderr
    differing = [line.split()[0] for line in result.stdout.splitlines() if "DIFFERS" in line]
    assert differing == ["public.customers"]


def test_a_stop_leaves_no_orphan_and_a_start_goes_on(demo: RunningDemo) -> None:
    before = demo.generations()
    demo.stop()
    assert demo.orphans() == []
    demo.start()
    wait_for_fresh_cut(demo)
    assert demo.generations() == before
    others = [table for table in TABLES if table != "customers"]
    result = demo.pgetl("check", *(argument for table in others for argument in ("--table", f"public.{table}")))
    assert result.returncode == 0, result.stdout + result.stderr
    demo.stop(signal.SIGINT)
    assert demo.orphans() == []
