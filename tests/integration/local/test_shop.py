from __future__ import annotations

import random
import threading

import pytest

from airflow_provider_pgetl.local import load, process, shop
from airflow_provider_pgetl.local.load import LoadGenerator
from airflow_provider_pgetl.local.postgres import Database, EmbeddedPostgres


@pytest.fixture
def seeded(database: Database) -> Database:
    shop.create_shop(database.conninfo)
    return database


def test_shop_is_made_once(seeded: Database) -> None:
    rows = shop.create_shop(seeded.conninfo)
    assert 10_000 < rows < 50_000


def test_every_table_is_published_under_its_own_name(seeded: Database) -> None:
    with seeded.connect() as connection:
        found = connection.execute("select tablename from pg_publication_tables where pubname = 'shop'").fetchall()
    assert sorted(name for (name,) in found) == sorted(shop.TABLES)


def test_every_table_has_a_primary_key(seeded: Database) -> None:
    with seeded.connect() as connection:
        found = connection.execute("select conrelid::regclass::text from pg_constraint where contype = 'p'").fetchall()
    assert {name for (name,) in found} >= set(shop.TABLES)


def test_long_texts_are_stored_out_of_line(seeded: Database) -> None:
    with seeded.connect() as connection:
        toast = connection.execute(
            "select min(length(d.body)) > 8000, pg_relation_size(c.reltoastrelid) > count(*) * 8000"
            " from product_descriptions d, pg_class c where c.relname = 'product_descriptions'"
            " group by c.reltoastrelid"
        ).fetchone()
    assert toast == (True, True)


@pytest.mark.parametrize("action", [action for action, _ in load.ACTIONS], ids=lambda action: action.__name__)
def test_every_action_changes_rows(seeded: Database, action: load.Action) -> None:
    chooser = random.Random(7)
    with seeded.connect() as connection:
        assert sum(action(connection, chooser) for _ in range(30)) > 0


def changes(generator: LoadGenerator, more_than: int) -> bool:
    return process.wait_until(lambda: generator.changes > more_than, timeout=30)


def test_load_goes_on_after_its_connection_was_lost(seeded: Database, postgres: EmbeddedPostgres) -> None:
    generator = LoadGenerator(seeded.conninfo, rate=500)
    thread = threading.Thread(target=generator.run)
    thread.start()
    try:
        assert changes(generator, 20)
        with postgres.database("postgres").connect() as connection:
            connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", (seeded.name,)
            )
        assert changes(generator, generator.changes + 20)
    finally:
        generator.stop()
        thread.join(timeout=10)
    assert not thread.is_alive()


def test_load_keeps_near_its_rate(seeded: Database) -> None:
    generator = LoadGenerator(seeded.conninfo, rate=100)
    thread = threading.Thread(target=generator.run)
    thread.start()
    thread.join(timeout=3)
    generator.stop()
    thread.join(timeout=10)
    assert 30 < generator.changes < 450
