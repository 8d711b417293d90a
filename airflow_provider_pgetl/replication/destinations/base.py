"""The contracts of destinations: ``Destination`` takes rows and events, ``FileDestination`` takes files.

Most destinations implement ``Destination``. One that reads the spool and the source by itself (the lakehouse)
implements ``FileDestination`` and says so by ``takes_files = True``; the paths ask for that, not for the class.

Both are called from threads of the pipeline and may block. Errors are ``DestinationError`` (or any ``PgEtlError``)
and concern that table only, except ``DestinationUnreachable``, which concerns all: the spool keeps the changes
until the destination is back. Any other exception counts as a ``DestinationFailed`` of that table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import pyarrow as pa

from airflow_provider_pgetl.replication.events import Events
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.progress import SpoolFile
from airflow_provider_pgetl.replication.schema import SchemaVersion, TableSchema


@dataclass(frozen=True, slots=True)
class Marker:
    """What the destination's table itself says: every commit before ``lsn`` is in, written by ``epoch``."""

    lsn: Lsn
    generation: int
    epoch: int
    snapshot_id: int


@dataclass(frozen=True, slots=True)
class Changes:
    """The pending changes of one table in ``[from_lsn, to_lsn)``; ``files`` may hold commits outside of it.

    ``schema`` is the shape in which the destination's table is. ``versions`` are the shapes that follow it in this
    window, in order, each with the LSN of the commit that brought it; the table is in the last of them afterwards,
    also if no row of it is among the changes. Files are in stream order, each with the version of its rows.
    """

    schema: TableSchema
    generation: int
    epoch: int
    from_lsn: Lsn
    to_lsn: Lsn
    files: tuple[SpoolFile, ...]
    versions: tuple[SchemaVersion, ...] = ()

    @property
    def last_schema(self) -> TableSchema:
        """The shape of the table after the changes."""
        return self.versions[-1].schema if self.versions else self.schema


@dataclass(frozen=True, slots=True)
class Applied:
    """The table after ``apply``: its snapshot, if the destination has such, and what was done."""

    snapshot_id: int | None
    upserts: int = 0
    deletes: int = 0


@dataclass(frozen=True, slots=True)
class Partition:
    """A part of a table, read by one job: ``select`` is a complete query without parameters."""

    number: int
    select: str
    estimated_rows: int
    estimated_bytes: int


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """One table's copy: its schema, the snapshot that every job reads under, and the partitions."""

    schema: TableSchema
    generation: int
    snapshot: str
    lsn: Lsn
    partitions: tuple[Partition, ...]


@dataclass(frozen=True, slots=True)
class CopiedPartition:
    """A partition that is in."""

    number: int
    rows: int
    bytes: int
    seconds: float


class Destination(Protocol):
    """A destination that takes rows and events.

    Tables: a table is its ``relation_id``; its name may change with its shape (``Relation``). A table that is copied
    under the name of another one takes its place: it was dropped and made again.

    Order: events of one table come in commit order, each call after the call before it has returned. Calls for
    different tables, and ``write_table_rows`` for parts of one table, come from several threads at once.

    Copy: ``drop_table_for_copy``, then ``write_table_rows`` any number of times, at least once (an empty table is
    written with an empty batch), then events. A copied row is as the snapshot shows it, and events go on from
    there. No row comes twice: after an error the copy begins again with ``drop_table_for_copy``. A table whose copy
    is skipped begins with events.

    Repetition: whatever was written since the last recorded progress is written again after a crash or an error,
    in the same order, perhaps divided into other calls. It must change nothing. The simplest way is to remember the
    last ``place`` of a change and of a ``Relation`` together with the rows, and to skip what is not after it. To
    apply by key alone is enough only for tables with a key and without schema changes.

    Durability: when a call returns, its rows or events must survive a crash of the destination. A call that raises
    may have written some of its events, in order.

    Schema changes: a batch of events has the shape of its rows; where it differs from the batch before, the table
    has changed between the two (``Relation`` among the plain events). A batch without rows brings only that.
    """

    name: str

    def startup(self) -> None:
        """Connect and check; raise with a hint. Called before anything else, again if it raised."""

    def shutdown(self) -> None:
        """Let go of everything. Called once, also after errors."""

    def drop_table_for_copy(self, schema: TableSchema) -> None:
        """The table is going to be copied from scratch: forget its rows, its shape and its last place.

        No error if there is no such table.
        """

    def write_table_rows(self, schema: TableSchema, rows: pa.RecordBatch) -> None:
        """Copied rows, in the shape of ``batch.row_schema``; ``plain_rows`` makes dictionaries of them."""

    def write_events(self, events: Events) -> None:
        """Changes of one table, in order: iterate ``events`` for plain ones, or take its Arrow batches."""


class FileDestination(Protocol):
    """A destination that takes files: it reads the spool and the copy plan by itself.

    The applier calls ``apply`` for several tables at once, each from a thread of its own, never twice at once for
    one table. Calls may be repeated after a crash: the destination's own marker says what is in, and ``apply`` up
    to an LSN that is already in changes nothing. Only whole transactions become visible: all changes of a call, or
    none. Where ``keeps_markers`` is False the store's own progress counts, and calls are repeated after a crash.
    """

    name: str
    takes_files: Literal[True]
    keeps_markers: bool

    def startup(self) -> None:
        """Connect and check; raise with a hint."""

    def shutdown(self) -> None:
        """Let go of everything."""

    def marker(self, schema: TableSchema) -> Marker | None:
        """What the visible table says of itself; None if there is no table, or one that was never applied to."""

    def apply(self, changes: Changes) -> Applied:
        """Make the visible table hold every commit before ``to_lsn``, in one step for readers."""

    def begin_copy(self, plan: CopyPlan) -> None:
        """Make room for a generation, invisible to readers; leftovers of earlier generations go."""

    def copy_partition(self, plan: CopyPlan, partition: Partition) -> CopiedPartition:
        """Bring one partition in, once: a partition that is already in is not brought again."""

    def finish_copy(self, plan: CopyPlan) -> None:
        """All partitions are in: mark the generation as complete at ``plan.lsn``, still invisible."""

    def promote(self, changes: Changes) -> Applied:
        """Apply ``changes`` to the complete, invisible generation, then make it the visible table in one step."""

    def cancel(self) -> None:
        """Interrupt every call that runs now, from any thread: it raises. Later calls are taken."""
