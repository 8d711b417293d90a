"""The applier: merges every table's spooled changes up to one LSN X, and records the cut.

A cycle picks X (what is spooled, or the LSN that somebody asked a cut for), brings each table to exactly X side
by side, and records {X, table -> snapshot}. One bad table goes to ``errored`` with its reason; the others go on.
A destination's own marker, where it keeps one, wins over the store: it is read when a table is first touched.
Schema changes are part of the changes, in stream order; ``applying`` -> ``applied`` frames them in the store.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from airflow_provider_pgetl.replication.commands import Commands
from airflow_provider_pgetl.replication.config import PipelineConfig
from airflow_provider_pgetl.replication.destinations.base import Applied, Changes, FileDestination
from airflow_provider_pgetl.replication.errors import (
    DestinationError,
    DestinationUnreachable,
    Overtaken,
    PgEtlError,
    Retry,
    StoreError,
    unexpected,
)
from airflow_provider_pgetl.replication.evolution import steps
from airflow_provider_pgetl.replication.failpoints import hit
from airflow_provider_pgetl.replication.lsn import ZERO, Lsn
from airflow_provider_pgetl.replication.progress import CutTable, DestinationStatus, Lease, SpoolFile, TableRecord
from airflow_provider_pgetl.replication.schema import SchemaVersion, TableSchema
from airflow_provider_pgetl.replication.state import READY, StateKind, TableState
from airflow_provider_pgetl.replication.store.base import Store
from airflow_provider_pgetl.replication.store.rules import rows_alike
from airflow_provider_pgetl.replication.threads import Threads

log = logging.getLogger(__name__)

_BY = "applier"
_BACKOFF_S = (0.5, 15.0)
# An unchanged position is worth a new cut now and then: it says "still fresh".
_QUIET_CUT_S = 10.0
# Without being woken: for commands, retries, and copies that others have finished.
_LOOK_S = 1.0


@dataclass(slots=True)
class ApplyStats:
    """What the applier did, for people."""

    applied_lsn: Lsn = ZERO
    cycles: int = 0
    upserts: int = 0
    deletes: int = 0
    cycle_seconds: float = 0.0
    last_cut: int | None = None
    last_cut_at: datetime | None = None
    waiting_for: str | None = None


@dataclass(frozen=True, slots=True)
class _Brought:
    """A table that holds every commit before the target, and whether anything of it had to be moved."""

    relation_id: int
    moved: bool


class Applier:
    """Applies the spool of one pipeline to a destination that takes files, under the pipeline's lease."""

    def __init__(self, config: PipelineConfig, store: Store, destination: FileDestination, lease: Lease) -> None:
        self._config = config
        self._store = store
        self._destination = destination
        self._lease = lease
        self._commands = Commands(store, config.name)
        self._seen: set[tuple[int, int]] = set()
        self._attempts: dict[tuple[int, int], int] = {}
        self._stop = threading.Event()
        # The destination has been reached: copies may begin.
        self.started = threading.Event()
        self._woken = threading.Event()
        self._cut_at = 0.0
        self._pool = Threads(config.max_parallel_applies, thread_name_prefix="pgetl-apply")
        self.stats = ApplyStats()

    def run(self, stop: threading.Event) -> None:
        """Cycle until ``stop``; an unreachable lake or store is waited for, an overtaken lease ends it."""
        # What was interrupted by a stop is nobody's error; the next owner does it again.
        self._stop = stop
        failures = 0
        try:
            while not stop.is_set():
                started = time.monotonic()
                self._woken.clear()
                try:
                    if not self.started.is_set():
                        self._destination.startup()
                        self.started.set()
                    self.cycle()
                    failures, self.stats.waiting_for = 0, None
                except Overtaken:
                    raise
                except PgEtlError as error:
                    # Of the lake or the store as a whole: the stream goes on spooling meanwhile.
                    failures += 1
                    self.stats.waiting_for = error.message
                    log.warning("applying waits: %s", error)
                    stop.wait(min(_BACKOFF_S[1], _BACKOFF_S[0] * 2**failures))
                rest = self._config.apply_interval_ms / 1000 - (time.monotonic() - started)
                if not stop.wait(max(0.0, rest)):
                    self._woken.wait(_LOOK_S)
        finally:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def wake(self) -> None:
        """There is something to do: new changes, or the end."""
        self._woken.set()

    def cycle(self) -> Lsn | None:
        """Bring every table to one LSN and record the cut; returns it, or None if there was nothing to do."""
        started = time.monotonic()
        pipeline = self._store.pipeline(self._config.name)
        if pipeline is None or pipeline.paused:
            return None
        records = self._store.tables(self._config.name)
        target = self._commands.target(pipeline.spooled_lsn, max([self.stats.applied_lsn, *_positions(records)]))
        if target is None:
            return None
        self._retry_errored(records)
        work = [one for one in self._store.tables(self._config.name) if one.state.applying and not one.paused]
        brought = [one for one in self._pool.map(lambda record: self._bring(record, target), work) if one]
        if self._stop.is_set():
            return None
        moved = any(one.moved for one in brought)
        self._cut(target, {one.relation_id for one in brought}, moved=moved)
        if moved:
            self.stats.cycle_seconds = time.monotonic() - started
        self.stats.cycles += 1
        return target

    def _bring(self, record: TableRecord, target: Lsn) -> _Brought | None:
        """Bring one table to ``target``; its errors are its own, unless the lake or the store is gone."""
        try:
            moved = self._step(record, target)
        except BaseException as error:  # noqa: BLE001 - looked at right below
            # Half of a step may be recorded: the next one looks again at how far it came.
            self._seen.discard((record.relation_id, record.generation))
            self._after_error(record, error)
            return None
        self._attempts.pop((record.relation_id, record.generation), None)
        return _Brought(record.relation_id, moved is not None)

    def _after_error(self, record: TableRecord, error: BaseException) -> None:
        """Put the table aside, or raise what concerns all."""
        try:
            raise error
        except Overtaken:
            if self._is_current(record):
                raise
            log.info("%s has a new generation, the old one is left alone", record.table)
        except (DestinationUnreachable, StoreError):
            raise
        except PgEtlError as known:
            if not self._stop.is_set():
                self._fail(record, known)
        except Exception as unknown:  # noqa: BLE001 - anybody's code
            self._fail(record, unexpected(unknown))

    def _is_current(self, record: TableRecord) -> bool:
        """Whether a resync has not begun meanwhile."""
        current = self._store.table(record.pipeline, record.relation_id)
        return current is not None and current.generation == record.generation

    def _step(self, record: TableRecord, target: Lsn) -> TableRecord | None:
        if record.state.kind in (StateKind.SYNC_WAIT, StateKind.CATCHUP):
            return self._catch_up(record, target)
        if record.state.kind is StateKind.SYNC_DONE:
            record = self._store.move(record, READY, by=_BY)
        return self._follow(self._trust_marker(record), target)

    def _follow(self, record: TableRecord, target: Lsn) -> TableRecord | None:
        """Bring a ready table to ``target``; None if nothing of it changed."""
        if record.applied_lsn is None:
            raise DestinationError(f"{record.table} is ready, but nobody knows at which LSN", hint="Resync the table.")
        changes = self._changes(record, record.applied_lsn, target)
        if not changes.files and not changes.versions:
            return None
        return self._take(record, changes, self._destination.apply, frame=bool(changes.versions))

    def _take(
        self, record: TableRecord, changes: Changes, step: Callable[[Changes], Applied], *, frame: bool
    ) -> TableRecord:
        """Let the destination take the changes; ``frame`` says that the shape of its table is new to the store."""
        for before, after in pairwise([changes.schema, *(version.schema for version in changes.versions)]):
            steps(before, after)  # raises before anything is touched
        version = changes.last_schema.version
        if frame:
            self._store.applying(record, str(record.table), version)
        applied = step(changes)
        hit("apply.before_record")
        self.stats.upserts += applied.upserts
        self.stats.deletes += applied.deletes
        record = self._store.applied(self._lease, record, changes.to_lsn, applied.snapshot_id)
        if not frame:
            return record
        hit("apply.before_applied")
        self._store.applied_schema(record, str(record.table), version)
        return self._store.table(record.pipeline, record.relation_id) or record

    def _catch_up(self, record: TableRecord, target: Lsn) -> TableRecord | None:
        """The copy is complete at S: merge what came since, then make it the visible table."""
        snapshot = self._snapshot_lsn(record)
        if target < snapshot:
            # The stream has not passed the snapshot yet.
            return None
        record = self._store.move(record, TableState(StateKind.CATCHUP, lsn=target), by=_BY)
        hit("catchup.begun")
        changes = self._changes(record, snapshot, target)
        promoted = self._promoted(record, changes.schema, snapshot)
        reached = target
        if promoted is not None:
            # An earlier attempt made it visible and did not live to say so.
            reached, snapshot_id = promoted
            record = self._store.applied(self._lease, record, reached, snapshot_id)
            record = self._recover_schema(record)
        else:
            record = self._take(record, changes, self._destination.promote, frame=True)
        hit("catchup.promoted")
        record = self._store.move(record, TableState(StateKind.SYNC_DONE, lsn=reached), by=_BY)
        self._seen.add((record.relation_id, record.generation))
        log.info("%s is equal to the source at %s", record.table, reached)
        record = self._store.move(record, READY, by=_BY)
        # A cut is one LSN over all tables: what an earlier attempt left behind comes along now.
        return self._follow(record, target) or record

    def _promoted(self, record: TableRecord, schema: TableSchema, snapshot: Lsn) -> tuple[Lsn, int | None] | None:
        """Up to where this generation is visible already, and the lake's snapshot there."""
        if self._destination.keeps_markers:
            marker = self._destination.marker(schema)
            if marker is not None and marker.generation == record.generation and marker.lsn >= snapshot:
                return marker.lsn, marker.snapshot_id
            return None
        # Each copy forgets what the destination's table was; the last word on it is the last step of a promotion.
        found = self._store.destination_status(record.pipeline, record.relation_id)
        if found is None or found.status is not DestinationStatus.APPLIED or record.applied_lsn is None:
            return None
        return record.applied_lsn, record.snapshot_id

    def _snapshot_lsn(self, record: TableRecord) -> Lsn:
        """S of this generation's copy: the state of ``sync_wait``, which the history remembers."""
        for generation, state, _ in reversed(self._store.history(record.pipeline, record.relation_id)):
            if generation == record.generation and state.kind is StateKind.SYNC_WAIT and state.lsn is not None:
                return state.lsn
        raise DestinationError(f"{record.table} has no snapshot LSN", hint="Resync the table.")

    def _trust_marker(self, record: TableRecord) -> TableRecord:
        """On first sight: what the lake's table says of itself wins over the store."""
        if (record.relation_id, record.generation) in self._seen:
            return record
        if self._destination.keeps_markers:
            record = self._compare_marker(record)
        record = self._recover_schema(record)
        self._seen.add((record.relation_id, record.generation))
        return record

    def _compare_marker(self, record: TableRecord) -> TableRecord:
        marker = self._destination.marker(self._schema(record))
        if marker is None or marker.generation != record.generation:
            raise DestinationError(
                f"the lake's table of {record.table} is not the one that pgetl wrote",
                hint="It was dropped, replaced or rolled back: resync the table.",
            )
        if marker.epoch > self._lease.epoch:
            raise Overtaken(f"the lake's table of {record.table} was written by a newer epoch")
        stored = record.applied_lsn or ZERO
        if marker.lsn > stored:
            record = self._store.applied(self._lease, record, marker.lsn, marker.snapshot_id)
        elif marker.lsn < stored and self._store.files(record.pipeline, record.relation_id, marker.lsn, stored):
            raise DestinationError(
                f"the lake's table of {record.table} is behind what was applied to it",
                hint="It was rolled back: resync the table.",
            )
        return record

    def _recover_schema(self, record: TableRecord) -> TableRecord:
        """A schema change that was under way when somebody died: what was applied tells whether it is in."""
        found = self._store.destination_status(record.pipeline, record.relation_id)
        if found is None or found.status is DestinationStatus.APPLIED:
            return record
        versions = self._store.schemas(record.pipeline, record.relation_id)
        since = next((one.lsn for one in versions if one.schema.version == found.schema_version), None)
        if since is None or since >= (record.applied_lsn or ZERO):
            # Not in, or not known to be: the changes come again, and the schema change with them.
            return record
        self._store.applied_schema(record, found.name, found.schema_version)
        return self._store.table(record.pipeline, record.relation_id) or record

    def _schema(self, record: TableRecord) -> TableSchema:
        version = record.schema_version or 1
        schema = self._store.schema_version(record.pipeline, record.relation_id, version)
        if schema is None:
            raise DestinationError(f"the schema of {record.table} is not known", hint="Resync the table.")
        return schema

    def _changes(self, record: TableRecord, begin: Lsn, end: Lsn) -> Changes:
        schema = self._schema(record)
        known = self._store.schemas(record.pipeline, record.relation_id)
        versions = _following(known, schema, begin, end)
        files = _in_known_shapes(
            self._store.files(record.pipeline, record.relation_id, begin, end),
            [SchemaVersion(begin, schema), *versions],
            {version.schema.version: version.schema for version in known},
        )
        return Changes(schema, record.generation, self._lease.epoch, begin, end, files, versions)

    def _fail(self, record: TableRecord, error: PgEtlError) -> None:
        log.error("%s is errored: %s", record.table, error.message)
        key = (record.relation_id, record.generation)
        attempts = self._attempts[key] = self._attempts.get(key, 0) + 1
        timed = error.retry is Retry.TIMED and attempts <= self._config.table_error_retry_max_attempts
        delay = timedelta(milliseconds=self._config.table_error_retry_delay_ms * 2 ** (attempts - 1))
        state = TableState(
            StateKind.ERRORED,
            reason=error.message,
            hint=error.hint,
            retry=Retry.TIMED if timed else Retry.MANUAL,
            retry_at=datetime.now(UTC) + delay if timed else None,
        )
        try:
            current = self._store.table(record.pipeline, record.relation_id)
            if current is not None and current.generation == record.generation:
                self._store.move(current, state, by=_BY)
        except Overtaken:
            log.info("%s has a new generation, its error is of the past", record.table)

    def _retry_errored(self, records: Sequence[TableRecord]) -> None:
        """Return tables whose time has come to the state before their error."""
        now = datetime.now(UTC)
        for record in records:
            due = record.state.retry is Retry.TIMED and record.state.retry_at is not None and not record.paused
            if due and record.state.retry_at is not None and record.state.retry_at <= now:
                before = self._state_before(record)
                if before is not None and before.applying:
                    self._return(record, before)

    def _return(self, record: TableRecord, to: TableState) -> None:
        try:
            self._store.move(record, to, by=_BY)
        except Overtaken:
            log.info("%s has a new generation, its error is of the past", record.table)

    def _state_before(self, record: TableRecord) -> TableState | None:
        for generation, state, _ in reversed(self._store.history(record.pipeline, record.relation_id)):
            if generation == record.generation and state.kind is not StateKind.ERRORED:
                return state
        return None

    def _cut(self, target: Lsn, brought: AbstractSet[int], *, moved: bool) -> None:
        """Record the cut when something moved, when somebody waits for it, or now and then.

        Only of tables that were brought here: one that became ready meanwhile may be behind.
        """
        wanted = self._commands.wants(target)
        quiet = time.monotonic() - self._cut_at >= _QUIET_CUT_S and target > self.stats.applied_lsn
        self.stats.applied_lsn = max(self.stats.applied_lsn, target)
        if not (moved or wanted or quiet):
            return
        tables = [
            CutTable(record.relation_id, record.snapshot_id)
            for record in self._store.tables(self._config.name)
            if record.state.kind is StateKind.READY
            and not record.paused
            and record.relation_id in brought
            # After the ledger was set back, a table may be past what is spooled.
            and (record.applied_lsn or ZERO) <= target
        ]
        hit("cut.before")
        cut = self._store.record_cut(self._config.name, self._lease, target, tables)
        self._commands.answer_cuts(target, cut)
        self._cut_at = time.monotonic()
        self.stats.last_cut, self.stats.last_cut_at = cut.id, datetime.now(UTC)


def _positions(records: Sequence[TableRecord]) -> list[Lsn]:
    """Where the tables stand that a cut would hold."""
    return [one.applied_lsn for one in records if one.state.kind is StateKind.READY and one.applied_lsn is not None]


def _following(known: Sequence[SchemaVersion], schema: TableSchema, begin: Lsn, end: Lsn) -> tuple[SchemaVersion, ...]:
    """The shapes that follow the destination's in the window."""
    found = [version for version in known if begin <= version.lsn < end]
    names = [version.schema.version for version in found]
    if schema.version in names:
        del found[: names.index(schema.version) + 1]
    return tuple(found)


def _in_known_shapes(
    files: Sequence[SpoolFile], way: Sequence[SchemaVersion], known: Mapping[int, TableSchema]
) -> tuple[SpoolFile, ...]:
    """The files under the names of the shapes on the destination's ``way``.

    Copy and stream may know one shape by two versions: each looks at the catalog at a moment of its own, and what
    rows do not show (a default, NOT NULL, a name that went and came back) may have changed in between.
    """
    return tuple(_in_known_shape(file, way, known.get(file.schema_version)) for file in files)


def _in_known_shape(file: SpoolFile, way: Sequence[SchemaVersion], shape: TableSchema | None) -> SpoolFile:
    if shape is None or any(version.schema.version == shape.version for version in way):
        return file
    for version in reversed(way):
        if (version is way[0] or version.lsn <= file.first_lsn) and rows_alike(version.schema, shape):
            return replace(file, schema_version=version.schema.version)
    return file
