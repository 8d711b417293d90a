"""From one shape of a table to the next: what changed, column by column, told apart by attnum.

A change that keeps every value is a step that a destination can follow. One that does not (a type that is not
wider, values that were rewritten on the source) is refused by ``steps`` with what to do: copy the table again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from airflow_provider_pgetl.replication.errors import NotSupported
from airflow_provider_pgetl.replication.pg_types import (
    FLOAT4,
    FLOAT8,
    INT2,
    INT4,
    INT8,
    TEXT,
    TIMESTAMP,
    TIMESTAMPTZ,
    VARCHAR,
    Kind,
    LakeType,
    lake_type,
)
from airflow_provider_pgetl.replication.schema import Column, TableSchema

_RESYNC = "Resync the table: it is copied again in its new shape."
_ASIDE = "pgetl_renaming_"


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
    """A column under a new name, which is all that differs."""

    before: Column
    after: Column


@dataclass(frozen=True, slots=True)
class Widened:
    """A column whose lake type holds more than before, and all that it held; under its new name."""

    before: Column
    after: Column


Step = Added | Dropped | Renamed | Widened


def steps(before: TableSchema, after: TableSchema) -> tuple[Step, ...]:
    """What leads from one shape to the next: drops, renames, widenings, additions, in this order.

    Each step can be done on what the steps before it left: no name is ever taken twice, so columns that swap their
    names do it by way of a third one. Changes that a row does not show (defaults, NOT NULL, keys, the order of
    columns) need no step. A column that was dropped and added again under its name is a drop and an addition.
    """
    if after.rewrite is not None:
        raise NotSupported(f"the rows of {after.table} were rewritten on the source: {after.rewrite}", hint=_RESYNC)
    if _unnumbered(before) or _unnumbered(after):
        return _by_name(before, after)
    old = {column.attnum: column for column in before.columns}
    new = {column.attnum: column for column in after.columns}
    both = [(old[attnum], new[attnum]) for attnum in new if attnum in old]
    found: list[Step] = [Dropped(column) for attnum, column in old.items() if attnum not in new]
    found += _renames(both)
    found += _widenings(after, both)
    found += [_added(after, column) for attnum, column in new.items() if attnum not in old]
    return tuple(found)


def _renames(both: Iterable[tuple[Column, Column]]) -> list[Step]:
    """Renames in an order in which each new name is free when its turn comes."""
    waiting = {one.name: (one, other.name) for one, other in both if one.name != other.name}
    found: list[Step] = []
    while waiting:
        ready = next((name for name, (_, to) in waiting.items() if to not in waiting), None)
        if ready is not None:
            column, to = waiting.pop(ready)
            found.append(Renamed(column, replace(column, name=to)))
            continue
        # A circle: one of them steps aside.
        column, to = waiting.pop(next(iter(waiting)))
        aside = replace(column, name=f"{_ASIDE}{column.attnum}")
        found.append(Renamed(column, aside))
        waiting[aside.name] = (aside, to)
    return found


def _widenings(after: TableSchema, both: Iterable[tuple[Column, Column]]) -> list[Step]:
    return [Widened(replace(one, name=other.name), other) for one, other in both if _retyped(after, one, other)]


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
    return tuple(_widenings(after, both))


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
    """Whether every value prints the same under the new type, or is the same number."""
    if before.element_oid or after.element_oid:
        return False
    if (before.base_oid, after.base_oid) in _WIDER:
        return True
    if one.kind is other.kind is Kind.DECIMAL:
        return other.scale == one.scale and other.precision >= one.precision
    return (before.base_oid, after.base_oid) in _LONGER and _length(after) >= _length(before)


# int4 to int2 fits, or Postgres refuses it, and the lake holds both as int. int4 to oid turns -1 into 4294967295.
_WIDER = frozenset({(INT2, INT4), (INT2, INT8), (INT4, INT8), (INT4, INT2), (FLOAT4, FLOAT8)})
# The same values within a limit of length or precision; not bpchar: it is padded.
_LONGER = frozenset(
    {(one, other) for one in (TEXT, VARCHAR) for other in (TEXT, VARCHAR)}
    | {(one, one) for one in (TIMESTAMP, TIMESTAMPTZ)}
)
_UNBOUNDED = 2**31


def _length(column: Column) -> int:
    return column.typmod if column.typmod >= 0 else _UNBOUNDED
