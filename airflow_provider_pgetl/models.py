"""The state tables as Airflow's DB manager sees them.

The tables are defined with the store (``replication/store/tables.py``); here they learn to make their schema
first: a fresh ``airflow db migrate`` calls ``create_all`` and stamps, it runs no migration.
"""
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from sqlalchemy import DDL, event
from sqlalchemy.dialects.postgresql.base import ischema_names

from airflow_provider_pgetl.replication.store.tables import SCHEMA, PgLsn, metadata

__all__ = ["SCHEMA", "PgLsn", "metadata"]

event.listen(
    metadata,
    "before_create",
    DDL(f"create schema if not exists {SCHEMA}").execute_if(dialect="postgresql"),
)

# So that a comparison of tables and migrations knows the type that it finds in the database.
ischema_names.setdefault("pg_lsn", PgLsn)
