"""The store in memory: for tests, and for a first pipeline without a database. Nothing survives the process.

One lock makes every call a transaction. JSON goes through JSON, so that what comes back is what a database
would give back.
"""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_provider_pgetl.replication.errors import StoreError
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.progress import (
    Command,
    Cut,
    CutTable,
    Lease,
    PipelineRecord,
    Segment,
    SpoolFile,
    TableRecord,
)
from airflow_provider_pgetl.replication.schema import TableSchema
from airflow_provider_pgetl.replication.state import INIT, TableState, transition
from airflow_provider_pgetl.replication.store.rules import (
    CUTS_KEPT,
    SAMPLES_KEPT,
    next_version,
    overtaken_generation,
    overtaken_lease,
    replayed,
    same_shape,
    unknown_pipeline,
    unknown_table,
)


@dataclasses.dataclass(slots=True)
class _Table:
    record: TableRecord
    history: list[tuple[int, TableState, str]] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(slots=True)
class _Segment:
    id: int
    epoch: int
    segment: Segment
    files: list[SpoolFile]
    added: float


@dataclasses.dataclass(slots=True)
class _Command:
    command: Command
    result: dict[str, Any] | None = None


@dataclasses.dataclass(slots=True)
class _Pipeline:
    record: PipelineRecord
    tables: dict[int, _Table] = dataclasses.field(default_factory=dict)
    schemas: dict[int, list[TableSchema]] = dataclasses.field(default_factory=dict)
    segments: list[_Segment] = dataclasses.field(default_factory=list)
    cuts: list[Cut] = dataclasses.field(default_factory=list)
    commands: dict[int, _Command] = dataclasses.field(default_factory=dict)
    samples: list[dict[str, Any]] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(slots=True)
class _Lease:
    owner: str | None
    epoch: int
    expires: float


class MemoryStore:
    """A ``Store`` in this process; ``clock`` is what leases and ages go by."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._pipelines: dict[str, _Pipeline] = {}
        self._leases: dict[tuple[str, str], _Lease] = {}
        self._last_id = 0

    def close(self) -> None:
        """Nothing to let go of."""

    # --- schemas

    def add_schema(self, pipeline: str, schema: TableSchema, lsn: Lsn) -> TableSchema:
        with self._of(pipeline) as found:
            versions = found.schemas.setdefault(schema.relation_id, [])
            latest = versions[-1] if versions else None
            if latest is not None and same_shape(latest, schema):
                return latest
            versions.append(next_version(latest, schema))
            return versions[-1]

    def latest_schema(self, pipeline: str, relation_id: int) -> TableSchema | None:
        with self._lock:
            versions = self._schemas(pipeline, relation_id)
            return versions[-1] if versions else None

    def schema_version(self, pipeline: str, relation_id: int, version: int) -> TableSchema | None:
        with self._lock:
            versions = self._schemas(pipeline, relation_id)
            return next((schema for schema in versions if schema.version == version), None)

    # --- states

    def register_pipeline(self, pipeline: PipelineRecord) -> PipelineRecord:
        with self._lock:
            found = self._pipelines.setdefault(pipeline.name, _Pipeline(pipeline))
            found.record = dataclasses.replace(found.record, publication=pipeline.publication, slot=pipeline.slot)
            return found.record

    def pipeline(self, name: str) -> PipelineRecord | None:
        with self._lock:
            found = self._pipelines.get(name)
            return found.record if found else None

    def pipelines(self) -> list[PipelineRecord]:
        with self._lock:
            return [self._pipelines[name].record for name in sorted(self._pipelines)]

    def register_table(self, pipeline: str, schema: TableSchema, lsn: Lsn, *, by: str) -> TableRecord:
        with self._of(pipeline) as found:
            known = found.tables.get(schema.relation_id)
            if known is not None:
                if known.record.table != schema.table:
                    known.record = _stamped(known.record, table=schema.table)
                return known.record
            record = _stamped(TableRecord(pipeline, schema.relation_id, schema.table, 1, INIT))
            found.tables[schema.relation_id] = _Table(record, [(1, INIT, by)])
            self.add_schema(pipeline, schema, lsn)
            return record

    def table(self, pipeline: str, relation_id: int) -> TableRecord | None:
        with self._lock:
            found = self._pipelines.get(pipeline)
            table = found.tables.get(relation_id) if found else None
            return table.record if table else None

    def tables(self, pipeline: str) -> list[TableRecord]:
        with self._lock:
            found = self._pipelines.get(pipeline)
            records = [table.record for table in found.tables.values()] if found else []
            return sorted(records, key=lambda record: (record.table, record.relation_id))

    def move(
        self,
        record: TableRecord,
        to: TableState,
        *,
        by: str,
        run_id: str | None = None,
        copied_rows: int | None = None,
        schema_version: int | None = None,
    ) -> TableRecord:
        with self._lock:
            table = self._generation(record)
            stored = table.record
            table.record = _stamped(
                stored,
                state=transition(stored.state, to),
                run_id=stored.run_id if run_id is None else run_id,
                copied_rows=stored.copied_rows if copied_rows is None else copied_rows,
                schema_version=stored.schema_version if schema_version is None else schema_version,
            )
            table.history.append((stored.generation, to, by))
            return table.record

    def new_generation(self, pipeline: str, relation_id: int, *, by: str, run_id: str | None = None) -> TableRecord:
        with self._lock:
            table = self._table(pipeline, relation_id)
            generation = table.record.generation + 1
            table.record = _stamped(
                table.record,
                generation=generation,
                state=INIT,
                run_id=run_id,
                copied_rows=None,
                schema_version=None,
            )
            table.history.append((generation, INIT, by))
            return table.record

    def applied(self, lease: Lease, record: TableRecord, lsn: Lsn, snapshot_id: int | None) -> TableRecord:
        with self._lock:
            self._hold(lease)
            table = self._generation(record)
            stored = table.record
            if stored.applied_lsn is None or lsn >= stored.applied_lsn:
                kept = stored.snapshot_id if snapshot_id is None else snapshot_id
                table.record = _stamped(stored, applied_lsn=lsn, snapshot_id=kept)
            return table.record

    def history(self, pipeline: str, relation_id: int) -> list[tuple[int, TableState, str]]:
        with self._lock:
            found = self._pipelines.get(pipeline)
            table = found.tables.get(relation_id) if found else None
            return list(table.history) if table else []

    def delete_pipeline(self, name: str) -> None:
        with self._lock:
            self._pipelines.pop(name, None)
            # The epochs stay and move on, so that whoever still holds a lease can't write any more.
            for (pipeline, _), lease in self._leases.items():
                if pipeline == name:
                    lease.owner, lease.epoch = None, lease.epoch + 1

    # --- leases

    def acquire(self, pipeline: str, name: str, owner: str, ttl_s: float) -> Lease | None:
        with self._lock:
            now = self._clock()
            held = self._leases.setdefault((pipeline, name), _Lease(None, 0, now))
            if held.owner not in (None, owner) and held.expires > now:
                return None
            held.owner, held.epoch, held.expires = owner, held.epoch + 1, now + ttl_s
            return Lease(pipeline, name, owner, held.epoch)

    def renew(self, lease: Lease, ttl_s: float) -> None:
        with self._lock:
            self._hold(lease).expires = self._clock() + ttl_s

    def release(self, lease: Lease) -> None:
        with self._lock:
            held = self._leases.get((lease.pipeline, lease.name))
            if held is not None and (held.owner, held.epoch) == (lease.owner, lease.epoch):
                held.owner = None

    # --- ledger

    def add_segment(self, pipeline: str, lease: Lease, segment: Segment) -> int:
        with self._lock:
            self._hold(lease)
            paths = {file.path for file in segment.files}
            with self._of(pipeline) as found:
                if segment.from_lsn < found.record.spooled_lsn:
                    return _repeated(found, lease, segment)
                if paths & self.all_paths(pipeline):
                    raise StoreError("a file of the segment is registered already")
                added = _Segment(self._next_id(), lease.epoch, segment, list(segment.files), self._clock())
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
                if segment.added <= limit and self._done(pipeline, file, only_applying=True)
            ]

    def forget_files(self, pipeline: str, paths: Sequence[str]) -> None:
        with self._lock:
            found = self._pipelines.get(pipeline)
            gone = set(paths)
            for segment in list(found.segments) if found else []:
                kept = [file for file in segment.files if file.path not in gone]
                emptied = bool(segment.files) and not kept
                segment.files = kept
                if emptied and found:
                    found.segments.remove(segment)

    def backlog(self, pipeline: str) -> tuple[int, int]:
        with self._lock:
            pending = [file for _, file in self._files(pipeline) if not self._done(pipeline, file)]
            return len(pending), sum(file.bytes for file in pending)

    # --- cuts, commands, samples

    def record_cut(self, pipeline: str, lease: Lease, lsn: Lsn, tables: Sequence[CutTable]) -> Cut:
        with self._lock:
            self._hold(lease)
            with self._of(pipeline) as found:
                in_order = tuple(sorted(tables, key=lambda table: table.relation_id))
                found.cuts.append(Cut(self._next_id(), lsn, in_order, datetime.now(UTC)))
                del found.cuts[:-CUTS_KEPT]
                return found.cuts[-1]

    def latest_cut(self, pipeline: str) -> Cut | None:
        with self._lock:
            found = self._pipelines.get(pipeline)
            return found.cuts[-1] if found and found.cuts else None

    def cut_at(self, pipeline: str, lsn: Lsn) -> Cut | None:
        with self._lock:
            found = self._pipelines.get(pipeline)
            return next((cut for cut in reversed(found.cuts) if cut.lsn == lsn), None) if found else None

    def ask(self, pipeline: str, kind: str, payload: dict[str, Any], *, by: str) -> int:
        with self._of(pipeline) as found:
            command = Command(self._next_id(), kind, _through_json(payload), by)
            found.commands[command.id] = _Command(command)
            return command.id

    def open_commands(self, pipeline: str) -> list[Command]:
        with self._lock:
            found = self._pipelines.get(pipeline)
            asked = found.commands.values() if found else ()
            return [entry.command for entry in asked if entry.result is None]

    def answer(self, pipeline: str, command_id: int, result: dict[str, Any]) -> None:
        with self._lock:
            found = self._pipelines.get(pipeline)
            entry = found.commands.get(command_id) if found else None
            if entry is not None and entry.result is None:
                entry.result = _through_json(result)

    def command_result(self, pipeline: str, command_id: int) -> dict[str, Any] | None:
        with self._lock:
            found = self._pipelines.get(pipeline)
            entry = found.commands.get(command_id) if found else None
            return entry.result if entry else None

    def add_sample(self, pipeline: str, values: dict[str, Any]) -> None:
        with self._of(pipeline) as found:
            found.samples.append({**_through_json(values), "at": datetime.now(UTC)})
            del found.samples[:-SAMPLES_KEPT]

    def latest_sample(self, pipeline: str) -> dict[str, Any] | None:
        with self._lock:
            found = self._pipelines.get(pipeline)
            return dict(found.samples[-1]) if found and found.samples else None

    # --- inside; the lock is held

    @contextmanager
    def _of(self, pipeline: str) -> Iterator[_Pipeline]:
        with self._lock:
            found = self._pipelines.get(pipeline)
            if found is None:
                raise unknown_pipeline(pipeline)
            yield found

    def _schemas(self, pipeline: str, relation_id: int) -> list[TableSchema]:
        found = self._pipelines.get(pipeline)
        return found.schemas.get(relation_id, []) if found else []

    def _table(self, pipeline: str, relation_id: int) -> _Table:
        found = self._pipelines.get(pipeline)
        table = found.tables.get(relation_id) if found else None
        if table is None:
            raise unknown_table(pipeline, relation_id)
        return table

    def _generation(self, record: TableRecord) -> _Table:
        table = self._table(record.pipeline, record.relation_id)
        if table.record.generation != record.generation:
            raise overtaken_generation(record, table.record)
        return table

    def _hold(self, lease: Lease) -> _Lease:
        held = self._leases.get((lease.pipeline, lease.name))
        if held is None or (held.owner, held.epoch) != (lease.owner, lease.epoch):
            raise overtaken_lease(lease)
        return held

    def _files(self, pipeline: str) -> Iterator[tuple[_Segment, SpoolFile]]:
        found = self._pipelines.get(pipeline)
        for segment in found.segments if found else ():
            for file in segment.files:
                yield segment, file

    def _done(self, pipeline: str, file: SpoolFile, *, only_applying: bool = False) -> bool:
        record = self.table(pipeline, file.relation_id)
        if record is None or record.applied_lsn is None or file.last_lsn >= record.applied_lsn:
            return False
        return record.state.applying or not only_applying

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id


def _stamped(record: TableRecord, **changes: Any) -> TableRecord:
    return dataclasses.replace(record, updated_at=datetime.now(UTC), **changes)


def _move_spooled(found: _Pipeline, lsn: Lsn) -> None:
    spooled = max(found.record.spooled_lsn, lsn)
    found.record = dataclasses.replace(found.record, spooled_lsn=spooled)


def _repeated(found: _Pipeline, lease: Lease, segment: Segment) -> int:
    """The id under which this very call succeeded before its answer was lost; else it is a replay."""
    this = (lease.epoch, segment.from_lsn, segment.to_lsn)
    for known in found.segments:
        if (known.epoch, known.segment.from_lsn, known.segment.to_lsn) == this:
            return known.id
    raise replayed(segment, found.record.spooled_lsn)


def _through_json(value: dict[str, Any]) -> dict[str, Any]:
    through: dict[str, Any] = json.loads(json.dumps(value))
    return through


if TYPE_CHECKING:
    from airflow_provider_pgetl.replication.store.base import Store

    _keeps_the_contract: type[Store] = MemoryStore
