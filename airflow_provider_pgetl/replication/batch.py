"""The Arrow shapes that travel: rows of a copy, changes of a stream.

A spool file holds the changes of one table under one schema version:

    _op            string        i u d t (insert, update, delete, truncate)
    _commit_lsn    int64         LSN of the transaction's commit record
    _ordinal       int64         place of the change in its transaction
    _committed_at  timestamp     UTC
    _unchanged     list<string>  columns whose value did not travel (unchanged TOAST); null if none
    _old           struct        old identity columns, when Postgres sent them, and their own _overflow; else null
    _overflow      map           column -> original text of values that the lake type can't hold; null if none
    then the table's columns in their lake types; of a delete, those that Postgres sent of the old row
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from airflow_provider_pgetl.replication.pg_types import lake_type
from airflow_provider_pgetl.replication.schema import Column, TableSchema

OVERFLOW_TYPE = pa.map_(pa.string(), pa.string())
UNCHANGED_TYPE = pa.list_(pa.field("element", pa.string()))

CHANGE_COLUMNS = ("_op", "_commit_lsn", "_ordinal", "_committed_at", "_unchanged", "_old", "_overflow")
LAKE_COLUMNS = ("_pgetl_lsn", "_pgetl_ordinal", "_pgetl_overflow")
# Iceberg's own metadata columns can't be written to.
_FORMAT_COLUMNS = (
    "_row_id",
    "_file",
    "_pos",
    "_partition",
    "_spec_id",
    "_deleted",
    "_last_updated_sequence_number",
)
_RESERVED = frozenset((*CHANGE_COLUMNS, *LAKE_COLUMNS, *_FORMAT_COLUMNS))
_ESCAPE = "x_"


def lake_column(name: str) -> str:
    """The lake's name of a Postgres column: itself, unless it is one of ours (or an escaped one of ours).

    >>> lake_column("id"), lake_column("_op"), lake_column("x__op")
    ('id', 'x__op', 'x_x__op')
    """
    bare = name.lower()
    while bare.startswith(_ESCAPE):
        bare = bare.removeprefix(_ESCAPE)
    return _ESCAPE + name if bare in _RESERVED else name


def column_fields(columns: Iterable[Column]) -> list[pa.Field]:
    """One nullable Arrow field for each column, by lake name and lake type."""
    return [pa.field(lake_column(column.name), lake_type(column).arrow) for column in columns]


def change_schema(schema: TableSchema) -> pa.Schema:
    """The Arrow schema of a spool file of this table version."""
    return pa.schema(
        [
            pa.field("_op", pa.string(), nullable=False),
            pa.field("_commit_lsn", pa.int64(), nullable=False),
            pa.field("_ordinal", pa.int64(), nullable=False),
            pa.field("_committed_at", pa.timestamp("us", "UTC"), nullable=False),
            pa.field("_unchanged", UNCHANGED_TYPE),
            pa.field("_old", pa.struct(old_fields(schema))),
            pa.field("_overflow", OVERFLOW_TYPE),
            *column_fields(schema.columns),
        ]
    )


def old_fields(schema: TableSchema) -> list[pa.Field]:
    """The fields of ``_old``: the identity columns, and the text of those values that their lake type can't hold."""
    return [*column_fields(schema.identity_columns), pa.field("_overflow", OVERFLOW_TYPE)]


def row_schema(schema: TableSchema) -> pa.Schema:
    """The Arrow schema of a lake table: the columns, then ours."""
    return pa.schema(
        [
            *column_fields(schema.columns),
            pa.field("_pgetl_lsn", pa.int64()),
            pa.field("_pgetl_ordinal", pa.int64()),
            pa.field("_pgetl_overflow", OVERFLOW_TYPE),
        ]
    )
