"""The store in Postgres: schema ``pgetl``, usually in Airflow's metadata database.

Each part of the contract has its file: ``postgres_schema``, ``postgres_state``, ``postgres_lifecycle``,
``postgres_destination``, ``postgres_lease``, ``postgres_ledger``, ``postgres_cuts``; ``postgres_pool`` owns the
connections. Works without Airflow: ``create_tables`` makes what ``airflow db migrate`` would.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_pgetl.replication.store.postgres_create import create_tables
from airflow_provider_pgetl.replication.store.postgres_cuts import PostgresCuts, PostgresSamples
from airflow_provider_pgetl.replication.store.postgres_destination import PostgresDestinations
from airflow_provider_pgetl.replication.store.postgres_lease import PostgresLeases
from airflow_provider_pgetl.replication.store.postgres_ledger import PostgresLedger
from airflow_provider_pgetl.replication.store.postgres_lifecycle import PostgresLifecycle
from airflow_provider_pgetl.replication.store.postgres_pool import Pool
from airflow_provider_pgetl.replication.store.postgres_schema import PostgresSchemas
from airflow_provider_pgetl.replication.store.postgres_state import PostgresStates


class PostgresStore(
    PostgresSchemas,
    PostgresStates,
    PostgresLifecycle,
    PostgresDestinations,
    PostgresLeases,
    PostgresLedger,
    PostgresCuts,
    PostgresSamples,
):
    """A ``Store`` over a libpq connection string; connects when first used."""

    def __init__(self, conninfo: str) -> None:
        self._pool = Pool(conninfo)

    def create_tables(self) -> None:
        """Make the state tables, columns and indexes that are missing."""
        with self._pool.transaction() as cursor:
            create_tables(cursor)

    def close(self) -> None:
        """Let go of connections."""
        self._pool.close()


if TYPE_CHECKING:
    from airflow_provider_pgetl.replication.store.base import Store

    _keeps_the_contract: type[Store] = PostgresStore
