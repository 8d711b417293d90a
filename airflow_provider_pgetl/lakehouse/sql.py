"""Names and literals as Spark SQL text. Every identifier and every literal passes through here."""

from __future__ import annotations

import datetime as dt
import decimal
from dataclasses import dataclass

from airflow_provider_pgetl.replication.batch import lake_column
from airflow_provider_pgetl.replication.pg_types import lake_type
from airflow_provider_pgetl.replication.schema import Column, TableName, TableSchema

MAX_TEXT_LITERAL = 256

OVERFLOW_SQL = "map<string,string>"


def quote(name: str) -> str:
    """An identifier.

    >>> quote("a`b")
    '`a``b`'
    """
    return "`" + name.replace("`", "``") + "`"


def text(value: str) -> str:
    r"""A string literal.

    >>> text("it's")
    "'it\\'s'"
    """
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def literal(value: object) -> str | None:
    """A literal of a key value, or None where there is none that is short and compares as the column does."""
    match value:
        case bool() | dt.datetime():
            return None
        case int():
            return str(value)
        case decimal.Decimal():
            return f"{value:f}bd"
        case str() if len(value) <= MAX_TEXT_LITERAL:
            return text(value)
        case dt.date():
            return f"date'{value.isoformat()}'"
    return None


def column(one: Column) -> str:
    """The quoted lake name of a column."""
    return quote(lake_column(one.name))


def old(one: Column) -> str:
    """The column of the old row in a spooled change."""
    return f"_old.{column(one)}"


def row_columns(schema: TableSchema) -> list[tuple[str, str]]:
    """(lake name, SQL type) of every column of a lake table, ours last."""
    named = [(lake_column(one.name), lake_type(one).sql) for one in schema.columns]
    return [*named, ("_pgetl_lsn", "bigint"), ("_pgetl_ordinal", "bigint"), ("_pgetl_overflow", OVERFLOW_SQL)]


def row_ddl(schema: TableSchema) -> str:
    """The columns of a lake table as DDL."""
    return ", ".join(f"{quote(name)} {kind}" for name, kind in row_columns(schema))


def change_ddl(schema: TableSchema) -> str:
    """The columns of a spool file as DDL: saves Spark a job that reads the footers."""
    fields = [
        "_op string",
        "_commit_lsn bigint",
        "_ordinal bigint",
        "_committed_at timestamp",
        "_unchanged array<string>",
    ]
    if schema.identity_columns:
        inner = ", ".join(f"{column(one)}: {lake_type(one).sql}" for one in schema.identity_columns)
        fields.append(f"_old struct<{inner}>")
    fields.append(f"_overflow {OVERFLOW_SQL}")
    fields += [f"{column(one)} {lake_type(one).sql}" for one in schema.columns]
    return ", ".join(fields)


@dataclass(frozen=True, slots=True)
class LakeTable:
    """A table of the lake, by catalog, schema and name."""

    catalog: str
    schema: str
    name: str

    @classmethod
    def of(cls, catalog: str, table: TableName) -> LakeTable:
        """The lake's table of a Postgres table."""
        return cls(catalog, table.schema, table.name)

    @property
    def namespace(self) -> str:
        return f"{quote(self.catalog)}.{quote(self.schema)}"

    @property
    def sql(self) -> str:
        return f"{self.namespace}.{quote(self.name)}"

    @property
    def argument(self) -> str:
        """The name as procedures take it: without the catalog, as a string."""
        return text(f"{quote(self.schema)}.{quote(self.name)}")

    def branch(self, name: str) -> str:
        """A branch of the table, to read from and write to."""
        return f"{self.sql}.{quote('branch_' + name)}"

    def metadata(self, name: str) -> str:
        """A metadata table: refs, snapshots, ..."""
        return f"{self.sql}.{quote(name)}"

    def at(self, snapshot_id: int) -> str:
        """The table as it was at a snapshot."""
        return f"{self.sql} version as of {snapshot_id:d}"

    def __str__(self) -> str:
        return f"{self.catalog}.{self.schema}.{self.name}"
