"""The spool's ledger in memory."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Sequence

from airflow_provider_pgetl.replication.errors import StoreError
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.progress import Lease, PipelineRecord, Segment, SpoolFile, TableBacklog
from airflow_provider_pgetl.replication.store.memory_data import (
    KeptPipeline,
    KeptSegment,
    MemoryData,
    forget,
    set_spooled,
)
from airflow_provider_pgetl.replication.store.rules import replayed, rewound


class MemoryLedger(MemoryData):
    """``LedgerStore``."""

    def add_segment(self, pipeline: str, lease: Lease, segment: Segment) -> int:
        with self._lock:
            self._hold(lease)
            paths = {file.path for file in segment.files}
            with self._of(pipeline) as found:
                if segment.from_lsn < found.record.spooled_lsn:
                    return _repeated(found, lease, segment)
                if len(paths) < len(segment.files) or paths & self.all_paths(pipeline):
                    raise StoreError("a file of the segment is registered already")
                added = KeptSegment(self._next_id(), lease.epoch, segment, list(segment.files), self._clock())
                found.segments.append(added)
                _move_spooled(found, segment.to_lsn)
                return added.id

    def advance(self, pipeline: str, lease: Lease, lsn: Lsn) -> None:
        with self._lock:
            self._hold(lease)
            with self._of(pipeline) as found:
                _move_spooled(found, lsn)

    def files(self, pipeline: str, relation_id: int, from_lsn: Lsn, to_lsn: Lsn) -> list[SpoolFile]:
        with self._lock:
            return [
                file
                for _, file in self._files(pipeline)
                if file.relation_id == relation_id and file.last_lsn >= from_lsn and file.first_lsn < to_lsn
            ]

    def all_paths(self, pipeline: str) -> set[str]:
        with self._lock:
            return {file.path for _, file in self._files(pipeline)}

    def expired_files(self, pipeline: str, older_than_s: float) -> list[SpoolFile]:
        with self._lock:
            limit = self._clock() - older_than_s
            return [
                file
                for segment, file in self._files(pipeline)
                if segment.added <= limit and self._expired(pipeline, file)
            ]

    def forget_files(self, pipeline: str, paths: Sequence[str]) -> None:
        with self._lock:
            found = self._pipelines.get(pipeline)
            gone = set(paths)
            if found is not None:
                forget(found, lambda file: file.path in gone)

    def backlog(self, pipeline: str) -> tuple[int, int]:
        with self._lock:
            pending = [file for file, _ in self._pending(pipeline)]
            return len(pending), sum(file.bytes for file in pending)

    def table_backlogs(self, pipeline: str) -> list[TableBacklog]:
        with self._lock:
            pending: dict[int, list[tuple[SpoolFile, Lsn]]] = defaultdict(list)
            for file, first in self._pending(pipeline):
                pending[file.relation_id].append((file, first))
            backlogs = [
                TableBacklog(
                    relation_id,
                    files=len(found),
                    bytes=sum(file.bytes for file, _ in found),
                    first_lsn=min(first for _, first in found),
                )
                for relation_id, found in pending.items()
            ]
            return sorted(backlogs, key=lambda backlog: (backlog.first_lsn, backlog.relation_id))

    def spool_size(self, pipeline: str) -> tuple[int, int]:
        with self._lock:
            sizes = [file.bytes for _, file in self._files(pipeline)]
            return len(sizes), sum(sizes)

    def rewind(self, pipeline: str, lease: Lease, lsn: Lsn) -> list[SpoolFile]:
        with self._lock:
            self._hold(lease)
            with self._of(pipeline) as found:
                past = [kept for kept in found.segments if kept.segment.to_lsn > lsn]
                forgotten = [file for kept in past for file in kept.files]
                found.segments = [kept for kept in found.segments if kept.segment.to_lsn <= lsn]
                set_spooled(found, rewound(found.record.spooled_lsn, lsn, forgotten))
                return forgotten

    def follow_timeline(self, pipeline: str, lease: Lease, timeline: int) -> PipelineRecord:
        with self._lock:
            self._hold(lease)
            with self._of(pipeline) as found:
                found.record = dataclasses.replace(found.record, timeline=timeline)
                return found.record

    def _pending(self, pipeline: str) -> Iterator[tuple[SpoolFile, Lsn]]:
        """Files that their table has not applied wholly, with the first position in them that it has not."""
        for _, file in self._files(pipeline):
            applied = self._applied(pipeline, file)
            if applied is None:
                yield file, file.first_lsn
            elif file.last_lsn >= applied:
                yield file, max(file.first_lsn, applied)

    def _expired(self, pipeline: str, file: SpoolFile) -> bool:
        table = self._find(pipeline, file.relation_id)
        applied = self._applied(pipeline, file)
        return table is not None and table.record.state.applying and applied is not None and file.last_lsn < applied

    def _applied(self, pipeline: str, file: SpoolFile) -> Lsn | None:
        table = self._find(pipeline, file.relation_id)
        return table.record.applied_lsn if table else None


def _move_spooled(found: KeptPipeline, lsn: Lsn) -> None:
    set_spooled(found, max(found.record.spooled_lsn, lsn))


def _repeated(found: KeptPipeline, lease: Lease, segment: Segment) -> int:
    """The id under which this very call succeeded before its answer was lost; else it is a replay."""
    this = (lease.epoch, segment.from_lsn, segment.to_lsn)
    for known in found.segments:
        if (known.epoch, known.segment.from_lsn, known.segment.to_lsn) == this:
            return known.id
    raise replayed(segment, found.record.spooled_lsn)
