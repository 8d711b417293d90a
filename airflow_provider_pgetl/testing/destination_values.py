"""Small tables and events that the destination's contract is written with.

A schema is made from names and types, the next one from the one before; changes are plain events, which become the
Arrow batches that a destination gets. A text in a column of another type is a value that its lake type can't hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from airflow_provider_pgetl.replication.batch import change_schema, lake_column, row_schema
from airflow_provider_pgetl.replication.events import (
    Delete,
    EventBatch,
    Events,
    Insert,
    Relation,
    Row,
    RowChange,
    Truncate,
    Update,
)
from airflow_provider_pgetl.replication.evolution import Added, steps
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.pg_types import Kind, lake_type
from airflow_provider_pgetl.replication.schema import Column, Identity, TableName, TableSchema

# Type -> oid, typmod, element oid.
TYPES = {
    "boolean": (16, -1, 0),
    "bytea": (17, -1, 0),
    "bigint": (20, -1, 0),
    "integer": (23, -1, 0),
    "text": (25, -1, 0),
    "real": (700, -1, 0),
    "double precision": (701, -1, 0),
    "date": (1082, -1, 0),
    "timestamp without time zone": (1114, -1, 0),
    "timestamp with time zone": (1184, -1, 0),
    "numeric(10,2)": (1700, ((10 << 16) | 2) + 4, 0),
    "numeric(20,2)": (1700, ((20 << 16) | 2) + 4, 0),
    "integer[]": (1007, -1, 23),
}
ORDERS = {"id": "bigint", "item": "text", "price": "numeric(10,2)"}
_START = datetime(2024, 2, 29, 12, tzinfo=UTC)


def make_column(name: str, type_name: str, attnum: int, *, key: int | None = None, identity: bool = False) -> Column:
    """A column of one of ``TYPES``."""
    oid, typmod, element = TYPES[type_name]
    return Column(
        name=name,
        attnum=attnum,
        type_oid=oid,
        base_oid=oid,
        typmod=typmod,
        typmod_sent=typmod,
        element_oid=element,
        type_name=type_name,
        nullable=key is None,
        key=key,
        identity=identity,
        toastable=type_name in ("text", "bytea", "integer[]"),
    )


def make_table(
    columns: Mapping[str, str] = ORDERS,
    *,
    key: Sequence[str] = ("id",),
    identity: Identity = Identity.DEFAULT,
    table: TableName | str = "orders",
    relation_id: int = 16_384,
) -> TableSchema:
    """A table in its first shape; a bare name is one in ``public``."""
    full = identity is Identity.FULL
    made = [
        make_column(name, kind, attnum, key=key.index(name) + 1 if name in key else None, identity=full or name in key)
        for attnum, (name, kind) in enumerate(columns.items(), 1)
    ]
    named = TableName("public", table) if isinstance(table, str) else table
    return TableSchema(relation_id, named, tuple(made), identity)


def next_shape(schema: TableSchema, columns: Iterable[Column], **changes: Any) -> TableSchema:
    """The version after ``schema``."""
    return replace(schema, columns=tuple(columns), version=schema.version + 1, **changes)


def with_column(schema: TableSchema, name: str, type_name: str, missing: str | None = None) -> TableSchema:
    """A column is added; rows that are there show ``missing``."""
    attnum = max(column.attnum for column in schema.columns) + schema.version
    added = make_column(name, type_name, attnum, identity=schema.identity is Identity.FULL)
    return next_shape(schema, [*schema.columns, replace(added, missing=missing, default=missing)])


def without_column(schema: TableSchema, name: str) -> TableSchema:
    """A column is dropped."""
    return next_shape(schema, [column for column in schema.columns if column.name != name])


def with_names(schema: TableSchema, names: Mapping[str, str]) -> TableSchema:
    """Columns are renamed."""
    return next_shape(schema, [replace(one, name=names.get(one.name, one.name)) for one in schema.columns])


def with_type(schema: TableSchema, name: str, type_name: str) -> TableSchema:
    """A column gets another type."""
    oid, typmod, element = TYPES[type_name]
    kind: dict[str, Any] = {"type_oid": oid, "base_oid": oid, "typmod": typmod, "typmod_sent": typmod}
    columns = [
        replace(one, type_name=type_name, element_oid=element, **kind) if one.name == name else one
        for one in schema.columns
    ]
    return next_shape(schema, columns)


def make_rows(schema: TableSchema, rows: Iterable[Row], lsn: int = 9) -> pa.RecordBatch:
    """Copied rows, in the shape in which ``write_table_rows`` gets them."""
    ours = {"_pgetl_lsn": lsn, "_pgetl_ordinal": 0}
    made = []
    for row in rows:
        values, overflow = _values(schema, row)
        made.append({**values, **ours, "_pgetl_overflow": overflow})
    return pa.RecordBatch.from_pylist(made, schema=row_schema(schema))


def make_batch(schema: TableSchema, changes: Iterable[RowChange]) -> pa.RecordBatch:
    """Changes of one shape, in the shape of ``change_schema``."""
    return pa.RecordBatch.from_pylist([_change(schema, one) for one in changes], schema=change_schema(schema))


def make_events(schema: TableSchema, *changes: RowChange, relation: Relation | None = None) -> Events:
    """One call with one batch."""
    return Events(schema.table, (EventBatch(schema, make_batch(schema, changes), relation),))


def make_relation(lsn: int, before: TableSchema, after: TableSchema, **defaults: Any) -> Relation:
    """From one shape to the next; added columns without a default show null."""
    found = steps(before, after)
    shown = {step.column.name: defaults.get(step.column.name) for step in found if isinstance(step, Added)}
    return Relation(Lsn(lsn), before, after, found, shown)


def insert(lsn: int, ordinal: int, row: Row) -> RowChange:
    return Insert(Lsn(lsn), ordinal, row)


def update(lsn: int, ordinal: int, row: Row, old: Row | None = None, unchanged: Iterable[str] = ()) -> RowChange:
    return Update(Lsn(lsn), ordinal, row, old, frozenset(unchanged))


def delete(lsn: int, ordinal: int, old: Row) -> RowChange:
    return Delete(Lsn(lsn), ordinal, old)


def truncate(lsn: int, ordinal: int) -> RowChange:
    return Truncate(Lsn(lsn), ordinal)


def order(number: int, item: str | None = "tea", price: Any = None) -> Row:
    """A row of ``ORDERS``."""
    return {"id": number, "item": item, "price": price}


def committed_at(lsn: int) -> datetime:
    """The time of a commit in these tests."""
    return _START + timedelta(seconds=lsn)


def _change(schema: TableSchema, change: RowChange) -> dict[str, Any]:
    made: dict[str, Any] = {
        "_op": type(change).__name__[0].lower(),
        "_commit_lsn": int(change.commit_lsn),
        "_ordinal": change.ordinal,
        "_committed_at": committed_at(change.commit_lsn),
    }
    match change:
        case Insert():
            row = change.row
        case Update():
            row = change.row
            made["_unchanged"] = sorted(map(lake_column, change.unchanged)) or None
            if change.old is not None:
                values, overflow = _values(schema, change.old)
                made["_old"] = {**values, "_overflow": overflow}
        case Delete():
            row = change.old
        case Truncate():
            row = {}
    values, overflow = _values(schema, row)
    return {**made, **values, "_overflow": overflow}


def _values(schema: TableSchema, row: Row) -> tuple[dict[str, Any], list[tuple[str, str]] | None]:
    values: dict[str, Any] = {}
    overflow: list[tuple[str, str]] = []
    for column in schema.columns:
        if column.name not in row:
            continue
        value, lake = row[column.name], lake_column(column.name)
        if isinstance(value, str) and lake_type(column).kind is not Kind.STRING:
            overflow.append((lake, value))
        else:
            values[lake] = value
    return values, overflow or None
