"""What survives a restart, as values: segments, cuts, leases, commands. The store keeps them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.schema import TableName
from airflow_provider_pgetl.replication.state import TableState


@dataclass(frozen=True, slots=True)
class PipelineRecord:
    """A pipeline as registered by discovery.

    ``spooled_lsn`` only moves forward: every commit before it is durable in the spool. ``system_identifier``
    and ``timeline`` tell a failover from a restart.
    """

    name: str
    publication: str
    slot: str
    system_identifier: str
    timeline: int
    spooled_lsn: Lsn
    paused: bool = False


@dataclass(frozen=True, slots=True)
class TableRecord:
    """A table of a pipeline: where it stands.

    ``applied_lsn``: the lake's table holds every commit before it. ``snapshot_id``: the lake's snapshot there.
    ``schema_version``: the shape of the destination's table: that of its copy, then of the schema changes applied.
    ``source_mark``: how the source publishes the table (filter, columns, partitions), to notice a change of that.
    """

    pipeline: str
    relation_id: int
    table: TableName
    generation: int
    state: TableState
    paused: bool = False
    run_id: str | None = None
    applied_lsn: Lsn | None = None
    snapshot_id: int | None = None
    copied_rows: int | None = None
    schema_version: int | None = None
    source_mark: str | None = None
    updated_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write, until it expires by the store's clock; a higher epoch has overtaken it."""

    pipeline: str
    name: str
    owner: str
    epoch: int


@dataclass(frozen=True, slots=True)
class SpoolFile:
    """A registered file: changes of one table version with ``first_lsn <= commit_lsn <= last_lsn``."""

    relation_id: int
    schema_version: int
    path: str
    rows: int
    bytes: int
    checksum: str
    first_lsn: Lsn
    last_lsn: Lsn


@dataclass(frozen=True, slots=True)
class Segment:
    """One flush: every commit in ``[from_lsn, to_lsn)``, one file or more for each table that changed."""

    from_lsn: Lsn
    to_lsn: Lsn
    files: tuple[SpoolFile, ...]
    rows: int
    bytes: int
    last_committed_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class CutTable:
    """A table at a cut."""

    relation_id: int
    snapshot_id: int | None


@dataclass(frozen=True, slots=True)
class Cut:
    """One LSN over all ready tables, with the lake's snapshot of each."""

    id: int
    lsn: Lsn
    tables: tuple[CutTable, ...]
    created_at: datetime | None = None


class DestinationStatus(StrEnum):
    """Whether the destination's table has the shape that the store says."""

    APPLYING = "applying"
    APPLIED = "applied"


@dataclass(frozen=True, slots=True)
class DestinationTable:
    """What the destination calls a table, and in which shape it is.

    While a schema change is under way (``applying``) the table may be in either shape.
    """

    relation_id: int
    name: str
    schema_version: int
    previous_version: int | None
    status: DestinationStatus


@dataclass(frozen=True, slots=True)
class TableBacklog:
    """What a table has in the spool that it has not applied yet; ``first_lsn`` is the oldest commit of it."""

    relation_id: int
    files: int
    bytes: int
    first_lsn: Lsn


@dataclass(frozen=True, slots=True)
class Announcement:
    """A row of the outbox: ``cut`` (new data), ``copy`` (the table waits to be copied)."""

    id: int
    kind: str
    relation_id: int | None
    lsn: Lsn | None = None
    snapshot_id: int | None = None


@dataclass(frozen=True, slots=True)
class Command:
    """What somebody asks of the running stream: ``kind`` is cut, pause, resume or resync."""

    id: int
    kind: str
    payload: dict[str, Any] = field(default_factory=dict)
    created_by: str = ""
