"""Changes of one table as a destination gets them: Arrow batches, or plain Python events by iteration.

    for event in events:
        match event:
            case Begin() | Commit(): ...                       around the table's changes of each transaction
            case Relation(before, after, steps, defaults): ... the table's shape changes here
            case Insert(row): ...
            case Update(row, old, unchanged): ...              ``unchanged``: columns that keep their old value
            case Delete(old): ...
            case Truncate(): ...

``old`` is what Postgres sent of the old row: the key, or all columns with REPLICA IDENTITY FULL; None where the key
did not change. Values that their lake type can't hold (``NaN`` in a numeric, ``infinity``) are their Postgres text.
``(commit_lsn, ordinal)`` orders all events of a table and names each: a repetition has the same one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa

from airflow_provider_pgetl.replication.batch import lake_column
from airflow_provider_pgetl.replication.evolution import Step
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.schema import TableName, TableSchema

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Begin:
    """The table's changes of a transaction begin; a long one may begin again in the next call."""

    commit_lsn: Lsn
    committed_at: datetime


@dataclass(frozen=True, slots=True)
class Commit:
    """All changes of the transaction to this table have come."""

    commit_lsn: Lsn
    committed_at: datetime


@dataclass(frozen=True, slots=True)
class Relation:
    """The table's shape changes. ``defaults``: what rows that are there show in added columns."""

    before: TableSchema
    after: TableSchema
    steps: tuple[Step, ...]
    defaults: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Insert:
    commit_lsn: Lsn
    ordinal: int
    row: Row


@dataclass(frozen=True, slots=True)
class Update:
    commit_lsn: Lsn
    ordinal: int
    row: Row
    old: Row | None
    unchanged: frozenset[str]


@dataclass(frozen=True, slots=True)
class Delete:
    commit_lsn: Lsn
    ordinal: int
    old: Row


@dataclass(frozen=True, slots=True)
class Truncate:
    commit_lsn: Lsn
    ordinal: int


Event = Begin | Commit | Relation | Insert | Update | Delete | Truncate


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Changes under one shape, in order, as in ``batch.change_schema``; ``relation`` if the shape is new here."""

    schema: TableSchema
    batch: pa.RecordBatch
    relation: Relation | None = None


@dataclass(frozen=True, slots=True)
class Events:
    """The events of one call: of one table, in commit order.

    ``complete``: the last transaction is whole. A transaction that is too large for one call goes on in the next.
    """

    table: TableName
    batches: tuple[EventBatch, ...]
    complete: bool = True

    @property
    def schema(self) -> TableSchema:
        """The shape after the last event."""
        return self.batches[-1].schema

    @property
    def rows(self) -> int:
        """How many changes there are."""
        return sum(one.batch.num_rows for one in self.batches)

    def __iter__(self) -> Iterator[Event]:
        open_: tuple[Lsn, datetime] | None = None
        for part in self.batches:
            if part.relation is not None:
                yield part.relation
            reader = _Reader(part.schema)
            for change in part.batch.to_pylist():
                place = (Lsn(change["_commit_lsn"]), change["_committed_at"])
                if place != open_:
                    if open_ is not None:
                        yield Commit(*open_)
                    yield Begin(*place)
                    open_ = place
                yield reader.event(change)
        if open_ is not None and self.complete:
            yield Commit(*open_)


@dataclass(slots=True)
class _Reader:
    """Reads changes of one shape, by the columns' own names."""

    schema: TableSchema
    names: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names = {lake_column(column.name): column.name for column in self.schema.columns}

    def event(self, change: Row) -> Event:
        lsn, ordinal = Lsn(change["_commit_lsn"]), change["_ordinal"]
        if change["_op"] == "t":
            return Truncate(lsn, ordinal)
        row = self._row(change, change["_overflow"])
        if change["_op"] == "i":
            return Insert(lsn, ordinal, row)
        if change["_op"] == "d":
            return Delete(lsn, ordinal, {c.name: row[c.name] for c in self.schema.identity_columns})
        before = change["_old"]
        old = None if before is None else self._row(before, before["_overflow"])
        unchanged = frozenset(self.names[name] for name in change["_unchanged"] or ())
        return Update(lsn, ordinal, {n: v for n, v in row.items() if n not in unchanged}, old, unchanged)

    def _row(self, values: Row, overflow: list[tuple[str, str]] | None) -> Row:
        row = {name: values[lake] for lake, name in self.names.items() if lake in values}
        for lake, text in overflow or ():
            row[self.names[lake]] = text
        return row


def plain_rows(schema: TableSchema, rows: pa.RecordBatch) -> Iterator[Row]:
    """Copied rows as plain dictionaries, in the same form as those of events."""
    reader = _Reader(schema)
    for row in rows.to_pylist():
        yield reader._row(row, row["_pgetl_overflow"])
