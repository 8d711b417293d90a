"""The destination in memory: for tests, and for a first pipeline. Nothing survives the process.

It is strict: what can't be (a delete of a row that is not there, a second row under a key, an old row that is not
the one held, a change that comes late) is an error, so that it can judge all that comes before it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_provider_pgetl.replication.errors import DestinationError
from airflow_provider_pgetl.replication.events import (
    Begin,
    Commit,
    Delete,
    Event,
    Events,
    Insert,
    Place,
    Relation,
    Row,
    RowChange,
    Truncate,
    Update,
    plain_rows,
)
from airflow_provider_pgetl.replication.evolution import Added, Dropped, Renamed
from airflow_provider_pgetl.replication.lsn import ZERO, Lsn
from airflow_provider_pgetl.replication.schema import Identity, TableSchema

_SKIPPED = "If the copy of the table was skipped, use MemoryDestination(strict=False); else resync the table."
_RESYNC = "Resync the table: it is copied again."


class MemoryDestination:
    """A ``Destination`` that holds rows and events as Python objects.

    With ``strict=False`` changes of rows that are not there are taken: for tables whose copy was skipped.
    """

    name = "memory"

    def __init__(self, *, strict: bool = True) -> None:
        self._strict = strict
        self._lock = threading.RLock()
        self._tables: dict[int, _Table] = {}

    def tables(self) -> list[str]:
        """The names of the tables that are here, such as ``public.orders``."""
        with self._lock:
            return sorted(str(table.schema.table) for table in self._tables.values())

    def rows(self, table: str) -> list[Row]:
        """The present rows of a table, column name to value; empty if it is not here (yet)."""
        with self._lock:
            found = self._named(table)
            return [dict(row) for row in found.rows] if found else []

    def events(self, table: str) -> list[Event]:
        """The events since the table's last copy, each once, in order; repetitions are only counted."""
        with self._lock:
            found = self._named(table)
            return list(found.events) if found else []

    def repetitions(self, table: str) -> int:
        """How many changes came again, and changed nothing."""
        with self._lock:
            found = self._named(table)
            return found.repeated if found else 0

    def startup(self) -> None:
        """Nothing to reach."""

    def shutdown(self) -> None:
        """Nothing to let go of: rows and events stay readable."""

    def drop_table_for_copy(self, schema: TableSchema) -> None:
        with self._lock:
            self._tables = {
                relation_id: table
                for relation_id, table in self._tables.items()
                if relation_id != schema.relation_id and table.schema.table != schema.table
            }

    def write_table_rows(self, schema: TableSchema, rows: pa.RecordBatch) -> None:
        plain = list(plain_rows(schema, rows))
        with self._lock:
            self._table(schema).copy(schema, plain)

    def write_events(self, events: Events) -> None:
        with self._lock:
            self._table(events.first_schema).take(events)

    def _named(self, name: str) -> _Table | None:
        # A table that was renamed may bear, for a while, the name that another had: the newest counts.
        return next((table for table in reversed(self._tables.values()) if str(table.schema.table) == name), None)

    def _table(self, schema: TableSchema) -> _Table:
        known = self._tables.get(schema.relation_id)
        if known is None:
            known = self._tables[schema.relation_id] = _Table(schema, _Rows(schema, self._strict))
        return known


@dataclass(slots=True)
class _Table:
    """A table: its shape, its rows, and how far its events have come."""

    schema: TableSchema
    rows: _Rows
    events: list[Event] = field(default_factory=list)
    last: Place = (ZERO, -1)
    seen: set[Place] = field(default_factory=set)
    shaped: Place = (ZERO, -1)
    committed: Lsn = ZERO
    repeated: int = 0

    def copy(self, schema: TableSchema, rows: Iterable[Row]) -> None:
        if schema.version != self.schema.version or self.events:
            raise DestinationError(f"rows of {schema.table} come after its copy", hint=_RESYNC)
        for row in rows:
            if not self.rows.add(row):
                raise DestinationError(f"a row of {schema.table} was copied twice", hint=_RESYNC)

    def take(self, events: Events) -> None:
        shape, previous = events.first_schema, (ZERO, -1)
        begin: Begin | None = None
        for event in events:
            match event:
                case Begin():
                    begin = event
                case Commit():
                    self._commit(event)
                case Relation():
                    shape = event.after
                    self._reshape(event)
                case _:
                    if event.place <= previous:
                        raise self._refusal("comes out of order", event)
                    previous = event.place
                    if self._repeats(event):
                        continue
                    if shape.version != self.schema.version:
                        raise self._refusal("has another shape than the table", event)
                    self._apply(event, begin)
                    begin = None

    def _commit(self, event: Commit) -> None:
        if event.commit_lsn > self.committed:
            self.committed = event.commit_lsn
            self.events.append(event)

    def _repeats(self, event: RowChange) -> bool:
        if event.place > self.last:
            return False
        if event.place not in self.seen:
            raise self._refusal("comes late: later ones are in", event)
        self.repeated += 1
        return True

    def _apply(self, event: RowChange, begin: Begin | None) -> None:
        match event:
            case Insert():
                if not self.rows.add(event.row):
                    raise self._refusal("has the key of a row that is there", event)
            case Update():
                self._update(event)
            case Delete():
                self._remove(event.old, event)
            case Truncate():
                self.rows.clear()
        self.last = event.place
        self.seen.add(event.place)
        self.events.extend([event] if begin is None else [begin, event])

    def _update(self, event: Update) -> None:
        before = self._remove(event.row if event.old is None else event.old, event)
        if before is None and event.unchanged:
            raise self._refusal("keeps values of a row that is not there", event)
        if not self.rows.add(event.over(before or {})):
            if before is not None:
                self.rows.add(before)
            raise self._refusal("has the key of a row that is there", event)

    def _remove(self, old: Row, event: RowChange) -> Row | None:
        try:
            before = self.rows.remove(old)
        except KeyError:
            raise self._refusal("is of a row that is not there", event, _SKIPPED) from None
        full = self.schema.identity is Identity.FULL and not (isinstance(event, Update) and event.old is None)
        if full and before is not None and not self.rows.equal(before, old):
            self.rows.add(before)
            raise self._refusal("tells of another old row than the one that is there", event)
        return before

    def _reshape(self, relation: Relation) -> None:
        if relation.place <= self.shaped:
            return
        if relation.before.version != self.schema.version:
            raise DestinationError(
                f"{self.schema.table} goes on from shape {relation.before.version}, but is in {self.schema.version}",
                hint=_RESYNC,
            )
        reshaped = self.rows.reshaped(relation)
        self.schema, self.rows, self.shaped = relation.after, reshaped, relation.place
        self.events.append(relation)

    def _refusal(self, what: str, event: RowChange, hint: str = _RESYNC) -> DestinationError:
        kind, (lsn, ordinal) = type(event).__name__.lower(), event.place
        return DestinationError(f"{self.schema.table}: the {kind} at {lsn}, change {ordinal}, {what}", hint=hint)


class _Rows:
    """The rows of a table: by key, or where there is none as a multiset of whole rows."""

    def __init__(self, schema: TableSchema, strict: bool) -> None:
        self._strict = strict
        self._keyed = bool(schema.key)
        self._names = [column.name for column in schema.key or schema.columns]
        self._all = [column.name for column in schema.columns]
        self._held: dict[Hashable, list[Row]] = {}

    def __iter__(self) -> Iterator[Row]:
        for rows in self._held.values():
            yield from rows

    def add(self, row: Row) -> bool:
        """False if there is a row with this key."""
        rows = self._held.setdefault(self._identity(row), [])
        if self._keyed and rows:
            if self._strict:
                return False
            rows.clear()
        rows.append(row)
        return True

    def remove(self, old: Row) -> Row | None:
        """Take one row out; KeyError if there is none, or nothing if that does not matter."""
        identity = self._identity(old)
        if identity not in self._held and not self._strict:
            return None
        rows = self._held[identity]
        if len(rows) == 1:
            del self._held[identity]
        return rows.pop()

    def clear(self) -> None:
        self._held.clear()

    def equal(self, row: Row, other: Row) -> bool:
        return all(_exact(row[name]) == _exact(other[name]) for name in self._all)

    def reshaped(self, relation: Relation) -> _Rows:
        """The same rows in another shape."""
        made = _Rows(relation.after, self._strict)
        steps = [_step(step, relation) for step in relation.steps]
        try:
            for row in self:
                changed = dict(row)
                for step in steps:
                    step(changed)
                fits = made.add({name: changed.pop(name) for name in made._all})
                if changed or not fits:
                    raise KeyError
        except KeyError:
            raise DestinationError(
                f"the rows of {relation.after.table} do not fit shape {relation.after.version}", hint=_RESYNC
            ) from None
        return made

    def _identity(self, row: Row) -> Hashable:
        return tuple([_exact(row[name]) for name in self._names])


def _step(step: object, relation: Relation) -> Callable[[Row], None]:
    match step:
        case Added(column=column):
            value = relation.defaults[column.name]
            return lambda row: row.__setitem__(column.name, value)
        case Dropped(column=column):
            return lambda row: row.__delitem__(column.name)
        case Renamed(before=before, after=after):
            return lambda row: row.__setitem__(after.name, row.pop(before.name))
        case _:  # A wider type holds the value as it is.
            return lambda row: None


def _exact(value: Any) -> Hashable:
    """A value that equals only itself: every NaN is the same, and -0.0 is not 0.0."""
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, list):
        return tuple([_exact(one) for one in value])
    return value  # type: ignore[no-any-return]


if TYPE_CHECKING:
    from airflow_provider_pgetl.replication.destinations.base import Destination

    _keeps_the_contract: type[Destination] = MemoryDestination
