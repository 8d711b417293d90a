"""Looks at the spooled changes of a table before SQL is written for them.

Only the columns that decide are read (operation, position, key, what did not travel), file by file, by Arrow in
this process: a query for the same would cost as much as the rest of a small apply.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from airflow_provider_pgetl.replication.batch import lake_column
from airflow_provider_pgetl.replication.errors import NotSupported, SpoolCorrupt
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.pg_types import lake_type
from airflow_provider_pgetl.replication.progress import SpoolFile
from airflow_provider_pgetl.replication.schema import Column, TableSchema

Position = tuple[int, int]
Range = tuple[Any, Any]

_PLACE = ["_op", "_commit_lsn", "_ordinal"]


@dataclass(frozen=True, slots=True)
class Pending:
    """What the changes of a table in ``[from_lsn, to_lsn)`` are made of.

    ``rows`` counts all of them, the rest only what follows the last TRUNCATE (at ``truncated``). ``moved``: a key
    changes; ``unchanged``: some value did not travel; ``moved_unchanged``: both in one change. ``ranges`` bounds,
    for each key column, the keys of rows that the lake may hold already; None where there is no usable bound.
    """

    from_lsn: Lsn
    to_lsn: Lsn
    rows: int = 0
    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    truncated: Position | None = None
    moved: bool = False
    unchanged: bool = False
    moved_unchanged: bool = False
    ranges: tuple[Range | None, ...] = ()

    @property
    def insert_only(self) -> bool:
        """No row that the lake holds is touched, except by the TRUNCATE before all of them."""
        return not (self.updates or self.deletes)


@dataclass(frozen=True, slots=True)
class _Window:
    """The changes of a call: files, a half-open range of LSNs, and the TRUNCATE that they follow."""

    files: Sequence[SpoolFile]
    from_lsn: Lsn
    to_lsn: Lsn
    after: Position | None = None

    def read(self, columns: list[str]) -> Iterator[pa.Table]:
        """The wanted columns of the wanted changes, file by file."""
        for file in self.files:
            table = _read_file(file.path, columns)
            table = table.filter(self._mask(table))
            if table.num_rows:
                yield table

    def _mask(self, table: pa.Table) -> pa.ChunkedArray:
        lsn = table["_commit_lsn"]
        mask = pc.and_(pc.greater_equal(lsn, int(self.from_lsn)), pc.less(lsn, int(self.to_lsn)))
        if self.after is None:
            return mask
        same = pc.and_(pc.equal(lsn, self.after[0]), pc.greater(table["_ordinal"], self.after[1]))
        return pc.and_(mask, pc.or_(pc.greater(lsn, self.after[0]), same))


def inspect(schema: TableSchema, files: Sequence[SpoolFile], from_lsn: Lsn, to_lsn: Lsn) -> Pending:
    """Read what decides of the changes with ``from_lsn <= commit_lsn < to_lsn``."""
    rows, truncated = _outline(_Window(files, from_lsn, to_lsn))
    if not rows:
        return Pending(from_lsn, to_lsn)
    window = _Window(files, from_lsn, to_lsn, truncated)
    seen = [_look(changes, schema) for changes in window.read(_deciding(schema))]
    total = reduce(_Glance.plus, seen, _Glance((None,) * len(schema.key)))
    return Pending(
        from_lsn=from_lsn,
        to_lsn=to_lsn,
        rows=rows,
        inserts=total.inserts,
        updates=total.updates,
        deletes=total.deletes,
        truncated=truncated,
        moved=total.moved,
        unchanged=total.unchanged,
        moved_unchanged=total.moved_unchanged,
        ranges=total.ranges,
    )


def _outline(window: _Window) -> tuple[int, Position | None]:
    """How many changes there are, and where the last TRUNCATE is."""
    rows, last = 0, None
    for changes in window.read(_PLACE):
        rows += changes.num_rows
        truncates = changes.filter(pc.equal(changes["_op"], "t"))
        if truncates.num_rows:
            ordered = truncates.sort_by([("_commit_lsn", "descending"), ("_ordinal", "descending")])
            position = (ordered["_commit_lsn"][0].as_py(), ordered["_ordinal"][0].as_py())
            last = position if last is None else max(last, position)
    return rows, last


def _deciding(schema: TableSchema) -> list[str]:
    old = ["_old"] if schema.identity_columns else []
    return [*_PLACE, "_unchanged", *old, *(lake_column(one.name) for one in schema.key)]


def _read_file(path: str, columns: list[str]) -> pa.Table:
    try:
        filesystem, inner = fs.FileSystem.from_uri(path)
        return pq.read_table(inner, columns=columns, filesystem=filesystem, use_threads=False)
    except (OSError, pa.ArrowException) as error:
        raise SpoolCorrupt(f"spool file {path} can't be read") from error


@dataclass(frozen=True, slots=True)
class _Glance:
    """What one file's changes are made of."""

    ranges: tuple[Range | None, ...]
    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    moved: bool = False
    unchanged: bool = False
    moved_unchanged: bool = False

    def plus(self, other: _Glance) -> _Glance:
        return _Glance(
            tuple(map(_wider, self.ranges, other.ranges)),
            self.inserts + other.inserts,
            self.updates + other.updates,
            self.deletes + other.deletes,
            self.moved or other.moved,
            self.unchanged or other.unchanged,
            self.moved_unchanged or other.moved_unchanged,
        )


def _look(changes: pa.Table, schema: TableSchema) -> _Glance:
    operations = changes["_op"]
    unchanged = pc.fill_null(pc.greater(pc.list_value_length(changes["_unchanged"]), 0), False)
    glance = _Glance(
        ranges=(None,) * len(schema.key),
        inserts=_count(pc.equal(operations, "i")),
        updates=_count(pc.equal(operations, "u")),
        deletes=_count(pc.equal(operations, "d")),
        unchanged=_count(unchanged) > 0,
    )
    return _look_at_keys(changes, schema, unchanged, glance) if schema.key else glance


def _look_at_keys(changes: pa.Table, schema: TableSchema, unchanged: Any, glance: _Glance) -> _Glance:
    new = [_new_key(changes, one) for one in schema.key]
    old = [_old_key(changes, one) for one in schema.key]
    _refuse_null_keys(schema, changes, new, old)
    differs = [pc.fill_null(pc.not_equal(before, after), False) for before, after in zip(old, new, strict=True)]
    moved = reduce(pc.or_, differs)
    touching = pc.is_in(changes["_op"], pa.array(["u", "d"]))
    return replace(
        glance,
        ranges=tuple(_min_max([after.filter(touching), before]) for after, before in zip(new, old, strict=True)),
        moved=_count(moved) > 0,
        moved_unchanged=_count(pc.and_(moved, unchanged)) > 0,
    )


def _count(mask: pa.ChunkedArray | pa.Array) -> int:
    return int(pc.sum(mask).as_py() or 0)


def _new_key(changes: pa.Table, column: Column) -> Any:
    """The key after the change; a key value so long that it is TOASTed travels only as the old one."""
    value = changes[lake_column(column.name)]
    return pc.coalesce(value, _old_key(changes, column)) if column.toastable else value


def _old_key(changes: pa.Table, column: Column) -> Any:
    """The key before the change, where Postgres sent it; else null."""
    if not column.identity:
        return pa.nulls(changes.num_rows, lake_type(column).arrow)
    return pc.struct_field(changes["_old"].combine_chunks(), lake_column(column.name))


def _refuse_null_keys(schema: TableSchema, changes: pa.Table, new: list[Any], old: list[Any]) -> None:
    """Keys are never null in Postgres: a null one is a value that the lake's type can't hold."""
    sent = _count(pc.is_valid(changes["_old"])) if schema.identity_columns else 0
    identity = [before for before, one in zip(old, schema.key, strict=True) if one.identity]
    lost = any(len(before) - before.null_count < sent for before in identity)
    if lost or any(after.null_count for after in new):
        raise NotSupported(
            f"a key of {schema.table} holds a value that the lake's type can't (NaN, infinity, BC, ...)",
            hint="Give the row another key at the source, then resync the table.",
        )


def _min_max(columns: list[Any]) -> Range | None:
    if not _ordered(columns[0].type):
        return None
    found = [pc.min_max(column).as_py() for column in columns if len(column) > column.null_count]
    return reduce(_wider, [(one["min"], one["max"]) for one in found], None) if found else None


def _wider(one: Range | None, other: Range | None) -> Range | None:
    if one is None or other is None:
        return one or other
    return min(one[0], other[0]), max(one[1], other[1])


def _ordered(kind: pa.DataType) -> bool:
    """Whether Arrow, Spark and Iceberg order the type alike, and a literal of it is short."""
    return bool(
        pa.types.is_integer(kind) or pa.types.is_decimal(kind) or pa.types.is_string(kind) or pa.types.is_date(kind)
    )
