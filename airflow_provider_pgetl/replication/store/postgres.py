"""The store in Postgres: schema ``pgetl``, usually in Airflow's metadata database.

Each part of the contract has its file: ``postgres_state``, ``postgres_lease``, ``postgres_ledger``,
``postgres_cuts``; ``postgres_pool`` owns the connections. Works without Airflow: ``create_tables`` makes what
``airflow db migrate`` would.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_pgetl.replication.store.postgres_cuts import PostgresCuts, PostgresSamples
from airflow_provider_pgetl.replication.store.postgres_lease import PostgresLeases
from airflow_provider_pgetl.replication.store.postgres_ledger import PostgresLedger
from airflow_provider_pgetl.replication.store.postgres_pool import Pool
from airflow_provider_pgetl.replication.store.postgres_state import PostgresSchemas, PostgresStates


class PostgresStore(PostgresSchemas, PostgresStates, PostgresLeases, PostgresLedger, PostgresCuts, PostgresSamples):
    """A ``Store`` over a libpq connection string; connects when first used."""

    def __init__(self, conninfo: str) -> None:
        self._pool = Pool(conninfo)

    def create_tables(self) -> None:
        """Make the state tables where they are missing."""
        with self._pool.transaction() as cursor:
            cursor.execute("select pg_advisory_xact_lock(hashtext('pgetl.create_tables'))")
            for statement in _definitions():
                cursor.execute(statement)

    def close(self) -> None:
        """Let go of connections."""
        self._pool.close()


def _definitions() -> list[str]:
    from sqlalchemy.dialects import postgresql
    from sqlalchemy.schema import CreateIndex, CreateSchema, CreateTable, ExecutableDDLElement

    from airflow_provider_pgetl.replication.store.tables import SCHEMA, metadata

    tables = metadata.sorted_tables
    ddl: list[ExecutableDDLElement] = [
        CreateSchema(SCHEMA, if_not_exists=True),
        *(CreateTable(table, if_not_exists=True) for table in tables),
        *(CreateIndex(index, if_not_exists=True) for table in tables for index in sorted(table.indexes, key=str)),
    ]
    return [
        str(
            element.compile(
                dialect=postgresql.dialect()  # type: ignore[no-untyped-call]
            )
        )
        for element in ddl
    ]


if TYPE_CHECKING:
    from airflow_provider_pgetl.replication.store.base import Store

    _keeps_the_contract: type[Store] = PostgresStore
