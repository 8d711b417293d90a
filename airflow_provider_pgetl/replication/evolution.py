"""From one shape of a table to the next: what changed, column by column, told apart by attnum.

A change that keeps every value is a step that a destination can follow. One that does not (a type that is not
wider, values that were rewritten on the source) is refused by ``steps`` with what to do: copy the table again.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_pgetl.replication.errors import NotSupported
from airflow_provider_pgetl.replication.pg_types import Kind, LakeType, lake_type
from airflow_provider_pgetl.replication.schema import Column, TableSchema

_RESYNC = "Resync the table: it is copied again in its new shape."


@dataclass(frozen=True, slots=True)
class Added:
    """A new column; rows that are there show ``column.missing``, as text, or null."""

    column: Column


@dataclass(frozen=True, slots=True)
class Dropped:
    """A column that is gone."""

    column: Column


@dataclass(frozen=True, slots=True)
class Renamed:
    """A column under a new name."""

    before: Column
    after: Column


@dataclass(frozen=True, slots=True)
class Widened:
    """A column whose lake type holds more than before, and all that it held."""

    before: Column
    after: Column


Step = Added | Dropped | Renamed | Widened


def steps(before: TableSchema, after: TableSchema) -> tuple[Step, ...]:
    """What leads from one shape to the next: drops, renames, widenings, additions, in this order.

    Changes that a row does not show (defaults, NOT NULL, keys, the order of columns) need no step. A column that
    was dropped and added again under its name is a drop and an addition.
    """
    if after.rewrite is not None:
        raise NotSupported(f"the rows of {after.table} were rewritten on the source: {after.rewrite}", hint=_RESYNC)
    if _unnumbered(before) or _unnumbered(after):
        return _by_name(before, after)
    old = {column.attnum: column for column in before.columns}
    new = {column.attnum: column for column in after.columns}
    both = [(old[attnum], new[attnum]) for attnum in new if attnum in old]
    found: list[Step] = [Dropped(column) for attnum, column in old.items() if attnum not in new]
    found += [Renamed(one, other) for one, other in both if one.name != other.name]
    found += [Widened(one, other) for one, other in both if _retyped(after, one, other)]
    found += [_added(after, column) for attnum, column in new.items() if attnum not in old]
    return tuple(found)


def _unnumbered(schema: TableSchema) -> bool:
    return any(not column.attnum for column in schema.columns)


def _by_name(before: TableSchema, after: TableSchema) -> tuple[Step, ...]:
    """The catalog was ahead of the stream: which column is which nobody knows, unless all of them are as before."""
    old = {column.name: column for column in before.columns}
    if old.keys() != {column.name for column in after.columns}:
        raise NotSupported(
            f"the columns of {after.table} were changed again before the first change could be looked up",
            hint=f"{_RESYNC} With the source-side DDL trigger this does not happen.",
        )
    both = [(old[column.name], column) for column in after.columns]
    return tuple(Widened(one, other) for one, other in both if _retyped(after, one, other))


def _added(after: TableSchema, column: Column) -> Added:
    if column.default is not None and column.missing is None:
        # Its value differs by row, or was set later: either way the rows that are there are not known.
        raise NotSupported(
            f"{after.table} got the column {column.name!r} with a default that is not one value", hint=_RESYNC
        )
    return Added(column)


def _retyped(after: TableSchema, before: Column, column: Column) -> bool:
    """Whether the lake type changes, and to a wider one; a change that may alter values is refused."""
    if (before.base_oid, before.typmod, before.element_oid) == (column.base_oid, column.typmod, column.element_oid):
        return False
    one, other = lake_type(before), lake_type(column)
    if not _keeps_values(before, column, one, other):
        raise NotSupported(
            f"{after.table}: the type of {column.name!r} changed from {before.type_name} to {column.type_name}",
            hint=_RESYNC,
        )
    return one != other


def _keeps_values(before: Column, after: Column, one: LakeType, other: LakeType) -> bool:
    """Whether every value prints the same under the new type."""
    if before.element_oid or after.element_oid:
        return False
    if (one.kind, other.kind) in _WIDER or (one == other and before.base_oid in _INTEGERS):
        return True
    if one.kind is other.kind is Kind.DECIMAL:
        return other.scale == one.scale and other.precision >= one.precision
    return before.base_oid in _TEXTS and after.base_oid in _TEXTS and _length(after) >= _length(before)


_WIDER = frozenset({(Kind.INT, Kind.BIGINT), (Kind.FLOAT, Kind.DOUBLE)})
_INTEGERS = frozenset({20, 21, 23})
_TEXTS = frozenset({25, 1043})  # not bpchar: it is padded
_UNBOUNDED = 2**31


def _length(column: Column) -> int:
    return column.typmod if column.typmod >= 0 else _UNBOUNDED
