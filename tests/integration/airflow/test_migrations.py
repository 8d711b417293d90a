"""The migrations make exactly the tables that the store is written for."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import create_engine
from sqlalchemy.engine import Connection

from airflow_provider_pgetl.db_manager import PgEtlDBManager
from airflow_provider_pgetl.local.postgres import Database
from airflow_provider_pgetl.models import SCHEMA, metadata
from airflow_provider_pgetl.replication.state import INIT
from airflow_provider_pgetl.replication.store.postgres import PostgresStore


@pytest.fixture
def connection(database: Database) -> Iterator[Connection]:
    engine = create_engine(database.uri("postgresql+psycopg"))
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def _alembic(connection: Connection) -> Config:
    config = Config(PgEtlDBManager.alembic_file)
    config.set_main_option("script_location", PgEtlDBManager.migration_dir)
    config.attributes["connection"] = connection
    return config


def _differences(connection: Connection) -> list[Any]:
    options = {
        "include_schemas": True,
        "include_name": lambda name, kind, _: kind != "schema" or name == SCHEMA,
        "compare_type": True,
        "compare_server_default": True,
    }
    return list(compare_metadata(MigrationContext.configure(connection, opts=options), metadata))


def _tables(connection: Connection) -> set[str]:
    query = "select tablename from pg_tables where schemaname = 'pgetl'"
    return {name for (name,) in connection.exec_driver_sql(query)}


def test_migrations_and_tables_are_the_same(connection: Connection) -> None:
    command.upgrade(_alembic(connection), "head")
    assert _tables(connection) == {table.name for table in metadata.sorted_tables}
    assert _differences(connection) == []


def test_the_store_makes_the_same_tables(connection: Connection, database: Database) -> None:
    store = PostgresStore(database.conninfo)
    store.create_tables()
    store.close()
    assert _differences(connection) == []


def test_the_comparison_can_fail(connection: Connection) -> None:
    command.upgrade(_alembic(connection), "head")
    connection.exec_driver_sql("alter table pgetl.lease alter column epoch type integer")
    connection.exec_driver_sql("alter table pgetl.cut drop column lsn")
    assert len(_differences(connection)) >= 2


def test_downgrade_to_nothing_and_up_again(connection: Connection) -> None:
    command.upgrade(_alembic(connection), "head")
    command.downgrade(_alembic(connection), "base")
    assert _tables(connection) == set()
    command.upgrade(_alembic(connection), "head")
    assert _differences(connection) == []


def test_a_database_at_the_first_revision_is_upgraded(connection: Connection, database: Database) -> None:
    command.upgrade(_alembic(connection), "0001")
    connection.exec_driver_sql(
        "insert into pgetl.pipeline (name, publication, slot, system_identifier, timeline, spooled_lsn)"
        " values ('shop', 'p', 's', '1', 1, '0/10')"
    )
    connection.exec_driver_sql(
        "insert into pgetl.table_state (pipeline, relation_id, schema_name, table_name, generation, state)"
        " values ('shop', 1, 'public', 'orders', 1, 'data_sync')"
    )
    connection.exec_driver_sql(
        "insert into pgetl.table_state_history (pipeline, relation_id, generation, state, moved_by)"
        " values ('shop', 1, 1, 'init', 'discover'), ('shop', 1, 1, 'data_sync', 'copy')"
    )
    connection.commit()
    command.upgrade(_alembic(connection), "head")
    assert _differences(connection) == []
    connection.commit()
    store = PostgresStore(database.conninfo)
    record = store.table("shop", 1)
    assert record is not None
    assert record.source_mark is None
    assert store.rollback(record, by="someone").state == INIT
    store.close()


def test_the_second_revision_can_be_taken_back(connection: Connection) -> None:
    command.upgrade(_alembic(connection), "head")
    command.downgrade(_alembic(connection), "0001")
    assert len(_differences(connection)) == 3
    command.upgrade(_alembic(connection), "head")
    assert _differences(connection) == []


def test_the_store_brings_the_first_revision_up_to_date_and_alembic_goes_on(
    connection: Connection, database: Database
) -> None:
    command.upgrade(_alembic(connection), "0001")
    connection.commit()
    store = PostgresStore(database.conninfo)
    store.create_tables()
    store.close()
    assert _differences(connection) == []
    connection.commit()
    command.upgrade(_alembic(connection), "head")
    assert _differences(connection) == []


def test_the_newest_revision_is_the_one_of_this_version(connection: Connection) -> None:
    from alembic.script import ScriptDirectory

    heads = ScriptDirectory.from_config(_alembic(connection)).get_heads()
    assert heads == [list(PgEtlDBManager.revision_heads_map.values())[-1]]


def _airflow(home: Path, uri: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": uri,
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
    }
    return subprocess.run(
        [sys.executable, "-m", "airflow", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--use-migration-files",)])
def test_airflow_db_migrate_makes_the_tables(
    connection: Connection, database: Database, tmp_path: Path, options: tuple[str, ...]
) -> None:
    uri = database.uri("postgresql+psycopg2")
    made = _airflow(tmp_path, uri, "db", "migrate", *options)
    assert made.returncode == 0, made.stdout + made.stderr
    assert _differences(connection) == []
    version = connection.exec_driver_sql("select version_num from public.alembic_version_pgetl").scalar()
    assert version == list(PgEtlDBManager.revision_heads_map.values())[-1]
    again = _airflow(tmp_path, uri, "db", "check-migrations", "-t", "5")
    assert again.returncode == 0, again.stdout + again.stderr


@pytest.mark.slow
def test_airflow_db_migrate_on_sqlite_leaves_us_out_and_says_so(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/airflow.db"
    made = _airflow(tmp_path, uri, "db", "migrate")
    said = made.stdout + made.stderr
    assert made.returncode == 0, said
    assert "pgetl keeps its state in Postgres" in said
    assert _airflow(tmp_path, uri, "db", "check-migrations", "-t", "5").returncode == 0
