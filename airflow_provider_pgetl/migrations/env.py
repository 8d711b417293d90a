"""How Alembic runs the migrations: over a connection that is handed in, else over Airflow's own."""
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from typing import Any

from alembic import context

from airflow_provider_pgetl.db_manager import PgEtlDBManager
from airflow_provider_pgetl.models import SCHEMA, metadata


def only_ours(name: str | None, kind: str, _: Any) -> bool:
    """Whether an object found in the database is of the schema that we look after."""
    return kind != "schema" or name == SCHEMA


SETTINGS: dict[str, Any] = {
    "target_metadata": metadata,
    "version_table": PgEtlDBManager.version_table_name,
    "include_schemas": True,
    "include_name": only_ours,
    "compare_type": True,
    "transaction_per_migration": True,
}


def run_offline() -> None:
    """Write SQL instead of running it."""
    context.configure(url=context.config.get_main_option("sqlalchemy.url"), literal_binds=True, **SETTINGS)
    with context.begin_transaction():
        context.run_migrations()


def run_online() -> None:
    """Run over a connection."""
    handed_in = context.config.attributes.get("connection")
    if handed_in is not None:
        migrate(handed_in)
        return
    from airflow import settings

    with settings.get_engine().connect() as connection:
        migrate(connection)


def migrate(connection: Any) -> None:
    """Run what is missing."""
    context.configure(connection=connection, **SETTINGS)
    with context.begin_transaction():
        context.run_migrations()


if context.is_offline_mode():
    run_offline()
else:
    run_online()
