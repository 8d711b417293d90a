"""The state tables, made and brought up to date without Alembic: for users of the library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psycopg import Cursor
from psycopg.rows import DictRow

if TYPE_CHECKING:
    from sqlalchemy.schema import ExecutableDDLElement


def create_tables(cursor: Cursor[DictRow]) -> None:
    """Make what is missing: the schema, tables, columns, indexes. What is there is left alone, and not locked."""
    cursor.execute("select pg_advisory_xact_lock(hashtext('pgetl.create_tables'))")
    for statement in (*_tables(), *_columns(_known_columns(cursor)), *_indexes()):
        cursor.execute(statement)


def _known_columns(cursor: Cursor[DictRow]) -> dict[str, set[str]]:
    rows = cursor.execute(
        "select c.relname as name, array_agg(a.attname::text) as columns"
        " from pg_class c join pg_attribute a on a.attrelid = c.oid"
        " where c.relnamespace = to_regnamespace('pgetl') and c.relkind = 'r' and a.attnum > 0 and not a.attisdropped"
        " group by c.relname"
    ).fetchall()
    return {row["name"]: set(row["columns"]) for row in rows}


def _tables() -> list[str]:
    from sqlalchemy.schema import CreateSchema, CreateTable

    from airflow_provider_pgetl.replication.store.tables import SCHEMA, metadata

    made: list[ExecutableDDLElement] = [CreateTable(table, if_not_exists=True) for table in metadata.sorted_tables]
    return [_sql(element) for element in (CreateSchema(SCHEMA, if_not_exists=True), *made)]


def _columns(known: dict[str, set[str]]) -> list[str]:
    """Columns that came after the table; each is nullable or has a default."""
    from sqlalchemy.schema import CreateColumn

    from airflow_provider_pgetl.replication.store.tables import metadata

    return [
        f"alter table {table.fullname} add column if not exists {_sql(CreateColumn(column))}"
        for table in metadata.sorted_tables
        if table.name in known
        for column in table.columns
        if column.name not in known[table.name]
    ]


def _indexes() -> list[str]:
    from sqlalchemy.schema import CreateIndex

    from airflow_provider_pgetl.replication.store.tables import metadata

    return [
        _sql(CreateIndex(index, if_not_exists=True))
        for table in metadata.sorted_tables
        for index in sorted(table.indexes, key=str)
    ]


def _sql(element: Any) -> str:
    from sqlalchemy.dialects import postgresql

    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    return str(element.compile(dialect=dialect))
