"""The adapter that brings the spool and the copy to a destination that takes rows and events.

To the paths it is a ``FileDestination`` without markers: the store's own progress counts, and what was not recorded
is delivered again. One file is in memory at a time; small files share a call.
"""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_pgetl.replication.batch import change_schema, row_schema
from airflow_provider_pgetl.replication.destinations.base import (
    Applied,
    Changes,
    CopiedPartition,
    CopyPlan,
    Destination,
    Marker,
    Partition,
)
from airflow_provider_pgetl.replication.errors import (
    DestinationFailed,
    Overtaken,
    PgEtlError,
    SpoolCorrupt,
)
from airflow_provider_pgetl.replication.events import EventBatch, Events, Place
from airflow_provider_pgetl.replication.lsn import ZERO, Lsn
from airflow_provider_pgetl.replication.progress import SpoolFile
from airflow_provider_pgetl.replication.schema import TableSchema
from airflow_provider_pgetl.replication.shapes import Shapes
from airflow_provider_pgetl.replication.spool.segments import Spool
from airflow_provider_pgetl.replication.table_copy import read_partition

log = logging.getLogger(__name__)

# Files below this share a call: a backlog of many small flushes is not as many round trips.
_CALL_BYTES = 4 * 1024 * 1024


@dataclass(slots=True)
class _Copy:
    """A copy that this process runs."""

    generation: int
    written: bool = False
    broken: dict[int, PgEtlError] = field(default_factory=dict)


@dataclass(slots=True)
class _Turn:
    lock: threading.Lock = field(default_factory=threading.Lock)
    generation: int = 0


class Turns:
    """Whose turn it is at each table of a destination: changes of a generation never come after a later one's copy."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turns: dict[int, _Turn] = {}

    @contextmanager
    def take(self, schema: TableSchema, generation: int) -> Iterator[None]:
        """Alone at the table; ``Overtaken`` if a later generation has been there."""
        with self._lock:
            turn = self._turns.setdefault(schema.relation_id, _Turn())
        with turn.lock:
            if generation < turn.generation:
                raise Overtaken(f"{schema.table} is at generation {turn.generation}, not {generation}")
            turn.generation = generation
            yield


class Delivery:
    """Brings files and copy plans to ``destination`` as rows and events; implements ``FileDestination``.

    Several may share a destination (one for the applier, one for each copy): ``cancel`` concerns the calls of one,
    ``turns`` is common to all of them.
    """

    takes_files: Literal[True] = True
    keeps_markers = False

    def __init__(self, destination: Destination, spool: Spool, source: str, turns: Turns | None = None) -> None:
        self.name = destination.name
        self._destination = destination
        self._spool = spool
        self._source = source
        self._turns = turns or Turns()
        self._lock = threading.Lock()
        self._copies: dict[int, _Copy] = {}
        self._cancels = 0

    def startup(self) -> None:
        """Start the destination."""
        with self._guarded("starting"):
            self._destination.startup()

    def shutdown(self) -> None:
        """Shut the destination down."""
        with self._guarded("shutting down"):
            self._destination.shutdown()

    def marker(self, schema: TableSchema) -> Marker | None:
        """None: such a destination does not say how far it is."""
        return None

    def cancel(self) -> None:
        """Calls that run now raise before their next batch; a batch that the destination has is waited for."""
        with self._lock:
            self._cancels += 1

    # --- copies

    def begin_copy(self, plan: CopyPlan) -> None:
        """Let the destination forget the table."""
        with self._lock:
            self._copies[plan.schema.relation_id] = _Copy(plan.generation)
        with self._turns.take(plan.schema, plan.generation), self._guarded(f"dropping {plan.schema.table}"):
            self._destination.drop_table_for_copy(plan.schema)

    def copy_partition(self, plan: CopyPlan, partition: Partition) -> CopiedPartition:
        """Read the partition and write it, batch by batch.

        Rows have no identity that every destination could tell a repetition by, so a partition that broke off after
        its first row can't be tried again alone: it raises the same error, until the whole copy begins again.
        """
        started, cancels = time.monotonic(), self._cancels
        copy = self._copy(plan)
        if partition.number in copy.broken:
            raise copy.broken[partition.number]
        rows = size = 0
        begun = False
        frames = read_partition(self._source, plan.snapshot, partition.select, plan.schema, plan.lsn)
        with closing(frames):  # type: ignore[type-var]
            try:
                for batch in frames:
                    self._check(cancels)
                    begun = True
                    self._write_rows(plan, batch)
                    rows, size = rows + batch.num_rows, size + batch.nbytes
            except PgEtlError as error:
                if begun:
                    copy.broken[partition.number] = error
                raise
        return CopiedPartition(partition.number, rows, size, time.monotonic() - started)

    def finish_copy(self, plan: CopyPlan) -> None:
        """A table without rows is written with an empty batch."""
        copy = self._copy(plan)
        if not copy.written:
            self._write_rows(plan, pa.RecordBatch.from_pylist([], schema=row_schema(plan.schema)))
        with self._lock:
            self._copies.pop(plan.schema.relation_id, None)

    def _copy(self, plan: CopyPlan) -> _Copy:
        with self._lock:
            copy = self._copies.get(plan.schema.relation_id)
        if copy is None or copy.generation != plan.generation:
            raise Overtaken(f"the copy of {plan.schema.table} has begun again")
        return copy

    def _write_rows(self, plan: CopyPlan, rows: pa.RecordBatch) -> None:
        self._copy(plan).written = True
        with self._guarded(f"writing rows of {plan.schema.table}"):
            self._destination.write_table_rows(plan.schema, rows)

    # --- changes

    def promote(self, changes: Changes) -> Applied:
        """The copy is visible already: only the changes since are missing."""
        return self.apply(changes)

    def apply(self, changes: Changes) -> Applied:
        """Write the changes in order, in as many calls as their files need."""
        cancels = self._cancels
        upserts = deletes = 0
        for events in _Reading(self._spool, changes).events():
            self._check(cancels)
            turn = self._turns.take(changes.schema, changes.generation)
            with turn, self._guarded(f"writing events of {events.table}"):
                self._destination.write_events(events)
            for part in events.batches:
                ops = part.batch.column("_op")
                deletes += _count(ops, ["d"])
                upserts += _count(ops, ["i", "u"])
        return Applied(None, upserts, deletes)

    def _check(self, cancels: int) -> None:
        if self._cancels != cancels:
            raise DestinationFailed("interrupted", hint="It was cancelled; it is tried again by itself.")

    @contextmanager
    def _guarded(self, doing: str) -> Iterator[None]:
        """Whatever else the destination raises: its type and place in the code, never its message."""
        try:
            yield
        except PgEtlError:
            raise
        except Exception as error:  # noqa: BLE001 - anybody's code
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{PurePath(frame.filename).name}:{frame.lineno}"
            raise DestinationFailed(
                f"the destination {self.name} failed while {doing}: {type(error).__name__} at {place}",
                hint="It is tried again by itself; if it stays, look at the destination's code there.",
            ) from None


class _Reading:
    """The files of some changes as events, call by call."""

    def __init__(self, spool: Spool, changes: Changes) -> None:
        self._spool = spool
        self._changes = changes
        self._shapes = Shapes(changes.schema, changes.versions)
        self._held: list[EventBatch] = []
        self._bytes = 0
        self._last: Place = (ZERO, -1)

    def events(self) -> Iterator[Events]:
        for file in self._changes.files:
            if self._bytes and self._bytes + file.bytes > _CALL_BYTES:
                # What the next file begins with may still belong to the last transaction.
                yield self._call(complete=file.first_lsn != self._last[0])
            self._take(file)
        self._held += [EventBatch(one.after, _no_changes(one.after), one) for one in self._shapes.rest()]
        if self._held:
            yield self._call(complete=True)

    def _call(self, *, complete: bool) -> Events:
        held, self._held, self._bytes = tuple(self._held), [], 0
        return Events(held[-1].schema.table, held, complete)

    def _take(self, file: SpoolFile) -> None:
        found = _in_order(_window(self._spool.read(file), self._changes.from_lsn, self._changes.to_lsn))
        if not found.num_rows:
            return
        self._check_order(file, found)
        passed = self._shapes.lead_to(file.schema_version)
        relation = passed.pop() if passed else None
        self._held += [EventBatch(one.after, _no_changes(one.after), one) for one in passed]
        schema = self._shapes.present
        for batch in found.cast(change_schema(schema)).combine_chunks().to_batches():
            self._held.append(EventBatch(schema, batch, relation))
            relation = None
        self._bytes += file.bytes

    def _check_order(self, file: SpoolFile, found: pa.Table) -> None:
        places = [(Lsn(found["_commit_lsn"][at].as_py()), found["_ordinal"][at].as_py()) for at in (0, -1)]
        if places[0] <= self._last:
            raise SpoolCorrupt(f"the spool file {file.path} holds changes from before the file before it")
        self._last = places[1]


def _window(table: pa.Table, begin: Lsn, end: Lsn) -> pa.Table:
    lsn = table["_commit_lsn"]
    bounds = pc.min_max(lsn).as_py()
    if table.num_rows and begin <= bounds["min"] and bounds["max"] < end:
        return table
    return table.filter(pc.and_(pc.greater_equal(lsn, int(begin)), pc.less(lsn, int(end))))


def _in_order(table: pa.Table) -> pa.Table:
    """By place; TRUNCATEs stand at the end of a decoded batch."""
    lsn, ordinal = (table[name].to_numpy() for name in ("_commit_lsn", "_ordinal"))
    ahead, same = lsn[1:] > lsn[:-1], lsn[1:] == lsn[:-1]
    if (ahead | (same & (ordinal[1:] > ordinal[:-1]))).all():
        return table
    return table.take(pa.array(np.lexsort((ordinal, lsn))))


def _no_changes(schema: TableSchema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=change_schema(schema))


def _count(ops: pa.Array, wanted: Sequence[str]) -> int:
    return int(pc.sum(pc.is_in(ops, pa.array(wanted))).as_py() or 0)


if TYPE_CHECKING:
    from airflow_provider_pgetl.replication.destinations.base import FileDestination

    _keeps_the_contract: type[FileDestination] = Delivery
