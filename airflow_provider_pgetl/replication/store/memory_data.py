"""What the store in memory keeps, and how its parts reach it: under one lock, which makes every call a transaction."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.progress import (
    Announcement,
    Command,
    Cut,
    DestinationTable,
    Lease,
    PipelineRecord,
    Segment,
    SpoolFile,
    TableRecord,
)
from airflow_provider_pgetl.replication.schema import SchemaVersion
from airflow_provider_pgetl.replication.state import TableState
from airflow_provider_pgetl.replication.store.rules import (
    overtaken_generation,
    overtaken_lease,
    unknown_pipeline,
    unknown_table,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Move:
    """An entry of a table's history."""

    generation: int
    state: TableState
    by: str
    rolled_back: bool = False


@dataclasses.dataclass(slots=True)
class KeptTable:
    """A table with its history."""

    record: TableRecord
    history: list[Move] = dataclasses.field(default_factory=list)
    destination: DestinationTable | None = None


@dataclasses.dataclass(slots=True)
class KeptSegment:
    """A segment with those of its files that are still registered."""

    id: int
    epoch: int
    segment: Segment
    files: list[SpoolFile]
    added: float


@dataclasses.dataclass(slots=True)
class KeptCommand:
    """A command and its answer."""

    command: Command
    result: dict[str, Any] | None = None


@dataclasses.dataclass(slots=True)
class KeptPipeline:
    """A pipeline and all that belongs to it; schema versions are in order."""

    record: PipelineRecord
    tables: dict[int, KeptTable] = dataclasses.field(default_factory=dict)
    schemas: dict[int, list[SchemaVersion]] = dataclasses.field(default_factory=dict)
    segments: list[KeptSegment] = dataclasses.field(default_factory=list)
    cuts: list[Cut] = dataclasses.field(default_factory=list)
    outbox: list[Announcement] = dataclasses.field(default_factory=list)
    commands: dict[int, KeptCommand] = dataclasses.field(default_factory=dict)
    samples: list[dict[str, Any]] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(slots=True)
class KeptLease:
    """Who holds it, until when."""

    owner: str | None
    epoch: int
    expires: float


class MemoryData:
    """The data behind a lock; every other method than ``_of`` expects that the lock is held."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._pipelines: dict[str, KeptPipeline] = {}
        self._leases: dict[tuple[str, str], KeptLease] = {}
        self._last_id = 0

    @contextmanager
    def _of(self, pipeline: str) -> Iterator[KeptPipeline]:
        with self._lock:
            found = self._pipelines.get(pipeline)
            if found is None:
                raise unknown_pipeline(pipeline)
            yield found

    def _find(self, pipeline: str, relation_id: int) -> KeptTable | None:
        found = self._pipelines.get(pipeline)
        return found.tables.get(relation_id) if found else None

    def _table(self, pipeline: str, relation_id: int) -> KeptTable:
        table = self._find(pipeline, relation_id)
        if table is None:
            raise unknown_table(pipeline, relation_id)
        return table

    def _generation(self, record: TableRecord) -> KeptTable:
        table = self._table(record.pipeline, record.relation_id)
        if table.record.generation != record.generation:
            raise overtaken_generation(record, table.record)
        return table

    def _hold(self, lease: Lease) -> KeptLease:
        held = self._leases.get((lease.pipeline, lease.name))
        if held is None or (held.owner, held.epoch) != (lease.owner, lease.epoch):
            raise overtaken_lease(lease)
        return held

    def _files(self, pipeline: str) -> Iterator[tuple[KeptSegment, SpoolFile]]:
        found = self._pipelines.get(pipeline)
        for segment in found.segments if found else ():
            for file in segment.files:
                yield segment, file

    def _announce(self, found: KeptPipeline, kind: str, tables: Iterable[tuple[int, Lsn | None, int | None]]) -> None:
        """A newer announcement of a table replaces the older: readers want the latest."""
        new = [Announcement(self._next_id(), kind, *table) for table in tables]
        replaced = {(announcement.kind, announcement.relation_id) for announcement in new}
        kept = [known for known in found.outbox if (known.kind, known.relation_id) not in replaced]
        found.outbox = kept + new

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id


def forget(found: KeptPipeline, gone: Callable[[SpoolFile], bool]) -> list[SpoolFile]:
    """Take files out of the ledger, and the segments that this leaves empty."""
    forgotten: list[SpoolFile] = []
    for segment in list(found.segments):
        leaving = [file for file in segment.files if gone(file)]
        segment.files = [file for file in segment.files if not gone(file)]
        if leaving and not segment.files:
            found.segments.remove(segment)
        forgotten += leaving
    return forgotten


def set_spooled(found: KeptPipeline, lsn: Lsn) -> None:
    """Put the ledger's position at ``lsn``."""
    found.record = dataclasses.replace(found.record, spooled_lsn=lsn)


def stamped(record: TableRecord, **changes: Any) -> TableRecord:
    """The record, changed now."""
    return dataclasses.replace(record, updated_at=datetime.now(UTC), **changes)


def through_json(value: dict[str, Any]) -> dict[str, Any]:
    """The value as a database would give it back."""
    through: dict[str, Any] = json.loads(json.dumps(value))
    return through
