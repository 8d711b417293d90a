"""The contract of a destination that takes files: it reads the spool and the copy plan by itself.

The applier calls ``apply`` for several tables at once, each from a thread of its own, never twice at once for
one table. Calls may be repeated after a crash: the destination's own marker says what is in, and ``apply`` up
to an LSN that is already in changes nothing. Only whole transactions become visible: all changes of a call, or
none. Errors are ``DestinationError`` (or any ``PgEtlError``) and concern that table only, except
``DestinationUnreachable``, which concerns all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.progress import SpoolFile
from airflow_provider_pgetl.replication.schema import TableSchema


@dataclass(frozen=True, slots=True)
class Marker:
    """What the destination's table itself says: every commit before ``lsn`` is in, written by ``epoch``."""

    lsn: Lsn
    generation: int
    epoch: int
    snapshot_id: int


@dataclass(frozen=True, slots=True)
class Changes:
    """The pending changes of one table in ``[from_lsn, to_lsn)``; ``files`` may hold commits outside of it."""

    schema: TableSchema
    generation: int
    epoch: int
    from_lsn: Lsn
    to_lsn: Lsn
    files: tuple[SpoolFile, ...]


@dataclass(frozen=True, slots=True)
class Applied:
    """The table after ``apply``: its snapshot, and what was done."""

    snapshot_id: int
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


class FileDestination(Protocol):
    """A destination that takes files."""

    name: str

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
        """Interrupt what runs for this object; its calls raise."""
