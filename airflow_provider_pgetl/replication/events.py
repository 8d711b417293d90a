"""Changes of one table as a destination gets them: Arrow batches, or plain Python events by iteration.

    for event in events:
        match event:
            case Begin() | Commit(): ...                        around the table's changes of each transaction
            case Relation(after=after, steps=steps): ...        the table's shape changes here
            case Insert(row=row): ...
            case Update(row=row, old=old, unchanged=names): ... ``unchanged``: columns that keep their old value
            case Delete(old=old): ...
            case Truncate(): ...

``old`` is what Postgres sent of the old row: the key, or all columns with REPLICA IDENTITY FULL; None where the key
did not change. Values that their lake type can't hold (``NaN`` in a numeric, ``infinity``) are their Postgres text.

``(commit_lsn, ordinal)`` orders all changes of a table and names each: a repetition has the same one. Shapes are
ordered by ``(commit_lsn, version)`` in the same way. Both are called ``place``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise, repeat
from typing import Any

import pyarrow as pa

from airflow_provider_pgetl.replication.batch import CHANGE_COLUMNS, lake_column
from airflow_provider_pgetl.replication.evolution import Step
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.schema import TableName, TableSchema

Row = dict[str, Any]
Place = tuple[Lsn, int]

# Rows that are Python objects at a time, however large the batch is.
_SLICE = 4096


@dataclass(frozen=True, slots=True)
class Begin:
    """The table's changes of a transaction begin; one that goes on in the next call begins there again."""

    commit_lsn: Lsn
    committed_at: datetime


@dataclass(frozen=True, slots=True)
class Commit:
    """All changes of the transaction to this table have come."""

    commit_lsn: Lsn
    committed_at: datetime


@dataclass(frozen=True, slots=True)
class Relation:
    """The table's shape changes, by the transaction of ``commit_lsn``; between Begin and Commit only if that has
    changes before it in the same call.

    ``steps`` can be done one after the other. ``defaults``: what rows that are there show in added columns. Where
    ``before.table`` and ``after.table`` differ, the table has a new name. One whose place is not after the last
    one's is a repetition.
    """

    commit_lsn: Lsn
    before: TableSchema
    after: TableSchema
    steps: tuple[Step, ...]
    defaults: Mapping[str, Any]

    @property
    def place(self) -> Place:
        return self.commit_lsn, self.after.version


@dataclass(frozen=True, slots=True)
class Change:
    """What the changes of rows have in common."""

    commit_lsn: Lsn
    ordinal: int

    @property
    def place(self) -> Place:
        return self.commit_lsn, self.ordinal


@dataclass(frozen=True, slots=True)
class Insert(Change):
    row: Row


@dataclass(frozen=True, slots=True)
class Update(Change):
    """``row`` has all columns but the ``unchanged`` ones, whose values Postgres did not send (TOAST)."""

    row: Row
    old: Row | None
    unchanged: frozenset[str]

    def over(self, before: Row) -> Row:
        """The whole row, given the one that it replaces."""
        return {**before, **self.row}


@dataclass(frozen=True, slots=True)
class Delete(Change):
    old: Row


@dataclass(frozen=True, slots=True)
class Truncate(Change):
    """All rows are gone."""


RowChange = Insert | Update | Delete | Truncate
Event = Begin | Commit | Relation | RowChange


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Changes under one shape, in order, as in ``batch.change_schema``; ``relation`` if the shape is new here."""

    schema: TableSchema
    batch: pa.RecordBatch
    relation: Relation | None = None


@dataclass(frozen=True, slots=True)
class Events:
    """The events of one call: of one table, in commit order; at least one batch.

    ``complete``: the last transaction is whole. One that is too large for one call goes on in the next.
    """

    table: TableName
    batches: tuple[EventBatch, ...]
    complete: bool = True

    def __post_init__(self) -> None:
        if not self.batches:
            raise ValueError("events without a batch")
        for part in self.batches:
            if part.relation is not None and part.relation.after != part.schema:
                raise ValueError("the batch has another shape than its relation")
        for one, other in pairwise(self.batches):
            before = other.schema if other.relation is None else other.relation.before
            if before.version != one.schema.version:
                raise ValueError("the shape changes without a relation")

    @property
    def first_schema(self) -> TableSchema:
        """The shape before the first event."""
        first = self.batches[0]
        return first.schema if first.relation is None else first.relation.before

    @property
    def schema(self) -> TableSchema:
        """The shape after the last event."""
        return self.batches[-1].schema

    @property
    def rows(self) -> int:
        """How many changes there are."""
        return sum(one.batch.num_rows for one in self.batches)

    def __iter__(self) -> Iterator[Event]:
        # The transaction that is open: its commit LSN and time.
        within: tuple[Lsn, datetime] | None = None
        for part in self.batches:
            if part.relation is not None:
                if within is not None and within[0] != part.relation.commit_lsn:
                    yield Commit(*within)
                    within = None
                yield part.relation
            for at, change in _Reader(part.schema).changes(part.batch):
                if within is None or within[0] != change.commit_lsn:
                    if within is not None:
                        yield Commit(*within)
                    within = (change.commit_lsn, at)
                    yield Begin(*within)
                yield change
        if within is not None and self.complete:
            yield Commit(*within)


def plain_rows(schema: TableSchema, rows: pa.RecordBatch) -> Iterator[Row]:
    """Copied rows as plain dictionaries, in the same form as those of events."""
    reader = _Reader(schema)
    for part in _slices(rows):
        for values, overflow in zip(reader.values(part), part.column("_pgetl_overflow").to_pylist(), strict=True):
            yield reader.row(values, overflow)


def _slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    for start in range(0, batch.num_rows, _SLICE):
        yield batch.slice(start, _SLICE)


class _Reader:
    """Reads rows and changes of one shape, by the columns' own names."""

    def __init__(self, schema: TableSchema) -> None:
        self._names = [column.name for column in schema.columns]
        self._identity = [column.name for column in schema.identity_columns]
        self._own = {lake_column(name): name for name in self._names}

    def changes(self, batch: pa.RecordBatch) -> Iterator[tuple[datetime, RowChange]]:
        """Each change, with the time of its commit."""
        for part in _slices(batch):
            columns = [part.column(name).to_pylist() for name in CHANGE_COLUMNS]
            for values, *change in zip(self.values(part), *columns, strict=True):
                op, lsn, ordinal, at, unchanged, old, overflow = change
                if op == "t":
                    yield at, Truncate(Lsn(lsn), ordinal)
                    continue
                row = self.row(values, overflow)
                if op == "i":
                    yield at, Insert(Lsn(lsn), ordinal, row)
                elif op == "d":
                    yield at, Delete(Lsn(lsn), ordinal, {name: row[name] for name in self._identity})
                else:
                    yield at, self._update(Lsn(lsn), ordinal, row, old, unchanged)

    def values(self, batch: pa.RecordBatch) -> Iterable[tuple[Any, ...]]:
        """The table's own columns, row by row."""
        if not self._own:
            return repeat((), batch.num_rows)
        return zip(*(batch.column(lake).to_pylist() for lake in self._own), strict=True)

    def row(self, values: Iterable[Any], overflow: list[tuple[str, str]] | None) -> Row:
        row = dict(zip(self._names, values, strict=True))
        for lake, text in overflow or ():
            row[self._own[lake]] = text
        return row

    def _update(self, lsn: Lsn, ordinal: int, row: Row, sent: Row | None, absent: list[str] | None) -> Update:
        old = None if sent is None else self._old(sent)
        unchanged = set()
        for name in (self._own[lake] for lake in absent or ()):
            if old is not None and name in old:
                # A key so long that it is TOASTed: it did not change, so the old one is the new one.
                row[name] = old[name]
            else:
                del row[name]
                unchanged.add(name)
        return Update(lsn, ordinal, row, old, frozenset(unchanged))

    def _old(self, sent: Row) -> Row:
        old = {self._own[lake]: value for lake, value in sent.items() if lake != "_overflow"}
        for lake, text in sent["_overflow"] or ():
            old[self._own[lake]] = text
        return old
