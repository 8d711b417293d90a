"""Keeps the spool small: deletes what nobody needs, warns early, and gives one table up before the disk is full.

Which files of a table are surely not needed (every position means: all commits before it):

| table                             | not needed before | because                                                |
|-----------------------------------|-------------------|--------------------------------------------------------|
| applying (ready, sync_wait, ...)  | ``applied_lsn``   | they are in the lake; kept for the retention           |
| init                              | the ledger's end  | its snapshot is taken after it has left ``init``       |
| errored, never beyond init        | the ledger's end  | every way on leads through ``init``                    |
| not known any more                | the ledger's end  | it would begin at ``init``                             |
| finished_copy, sync_wait          | its snapshot S    | the copy holds them, or leaves them out on purpose     |
| data_sync                         | nothing           | S is not known yet                                     |
| catchup, errored beyond init      | nothing           | a retry goes on from where it was                      |

Files go first, their ledger rows after: a crash in between leaves rows without files, which the next round
forgets, since a file that is gone is no error.

Past 95 % of ``spool_quota_bytes`` applied files go without waiting for the retention. If that is not enough, the
table that is furthest behind is *put aside*: a new generation, at once in ``errored``. Its changes are gone, so
going on with the old generation would lose them silently; in the new one nothing but ``init`` comes before the
error, so that a rollback, a retry and a resync all lead to a new copy, and whoever still works for the old
generation is overtaken.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from airflow_provider_pgetl.replication.config import PipelineConfig
from airflow_provider_pgetl.replication.errors import Overtaken, PgEtlError, Retry, SpoolError
from airflow_provider_pgetl.replication.failpoints import hit
from airflow_provider_pgetl.replication.lsn import ZERO, Lsn
from airflow_provider_pgetl.replication.progress import Lease, SpoolFile, TableRecord
from airflow_provider_pgetl.replication.spool.segments import Spool
from airflow_provider_pgetl.replication.state import StateKind, TableState
from airflow_provider_pgetl.replication.store.base import Store

log = logging.getLogger(__name__)

BY = "spool keeper"
PUT_ASIDE = TableState(
    StateKind.ERRORED,
    reason="its changes filled the spool",
    hint="They were deleted to keep the other tables going: resync the table, or give the spool a larger quota first.",
    retry=Retry.MANUAL,
)
_POLL_S = 1.0
_SWEEP_S = 30.0
_PRESSURE_S = 2.0
_FOLDERS_S = 600.0
_WARN, _CALM, _FULL = 0.80, 0.75, 0.95
# One call to the store forgets that many files.
_AT_ONCE = 500
_ATTEMPTS = 3
_END = Lsn(2**63 - 1)


@dataclass(slots=True)
class KeeperStats:
    """What the spool holds, for people."""

    files: int = 0
    bytes: int = 0
    free: int | None = None
    deleted: int = 0
    put_aside: int = 0
    warning: str | None = None


class SpoolKeeper:
    """Tidies the spool of one pipeline, under the pipeline's lease.

    ``run`` has a thread of its own, so that a long merge, a lake that is down or a paused pipeline, which make a
    spool grow, don't keep it from its work: what it deletes is read by nobody. ``tidy`` may be called as often as
    one likes.
    """

    def __init__(
        self,
        config: PipelineConfig,
        store: Store,
        spool: Spool,
        lease: Lease,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._store = store
        self._spool = spool
        self._lease = lease
        self._clock = clock
        self._lock = threading.Lock()
        self._swept_at = self._looked_at = float("-inf")
        self._folders_at = clock()
        self._warned = False
        self.stats = KeeperStats()

    def run(self, stop: threading.Event) -> None:
        """Tidy until ``stop``, in a thread of its own; a store that is out of reach is waited for."""
        while not stop.wait(_POLL_S):
            try:
                self.tidy()
            except Overtaken:
                raise
            except PgEtlError as error:
                log.warning("the spool of %s is not tidied: %s", self._config.name, error.message)

    def tidy(self, *, now: bool = False) -> None:
        """Do what is due, or all of it ``now``. A spool that can't be reached is waited for; applying goes on."""
        with self._lock:
            try:
                self._tidy(now=now)
            except SpoolError as error:
                log.warning("the spool of %s is not tidied: %s", self._config.name, error.message)

    def _tidy(self, *, now: bool) -> None:
        moment = self._clock()
        if now or moment - self._swept_at >= _SWEEP_S:
            self._swept_at = moment
            self._sweep()
        if now or moment - self._looked_at >= _PRESSURE_S:
            self._looked_at = moment
            self._relieve()
        if moment - self._folders_at >= _FOLDERS_S:
            self._folders_at = moment
            self._spool.remove_empty_folders()
            self._prune_schemas()

    def _prune_schemas(self) -> None:
        """Forget shapes of tables that lie behind what was applied."""
        for record in self._store.tables(self._config.name):
            if record.applied_lsn is not None and record.state.applying:
                self._store.prune_schemas(record.pipeline, record.relation_id, record.applied_lsn)

    def _sweep(self) -> None:
        """Delete what was applied, after the retention, and what never will be."""
        self._delete(self._store.expired_files(self._config.name, self._config.spool_retention_s))
        self._delete(useless_files(self._config, self._store))

    def _relieve(self) -> None:
        """Make room before there is none."""
        room = self._spool.free()
        self.stats.free = room.free if room else None
        tight = room is not None and room.tight(self._config.batch.max_bytes)
        share = self._share()
        self._warn(share, low=room is not None and room.low(self._config.batch.max_bytes))
        if not tight and share < _FULL:
            return
        # Whoever was overtaken must not decide this; a longer lease does no harm.
        self._store.renew(self._lease, self._config.lease_ttl_s)
        self._delete(self._store.expired_files(self._config.name, 0))
        self._delete(useless_files(self._config, self._store))
        if self._share() >= _FULL:
            self._put_aside_the_furthest_behind()

    def _share(self) -> float:
        """How much of the quota is used; 0 without a quota."""
        self.stats.files, self.stats.bytes = self._store.spool_size(self._config.name)
        quota = self._config.spool_quota_bytes
        return self.stats.bytes / quota if quota else 0.0

    def _warn(self, share: float, *, low: bool) -> None:
        """Say it when it begins, and once more only after it was over."""
        if low or share >= _WARN:
            quota = f"the spool uses {share:.0%} of its quota" if share >= _WARN else ""
            disk = f"its disk has {(self.stats.free or 0) / 1e6:.0f} MB left" if low else ""
            self.stats.warning = " and ".join(filter(None, (quota, disk)))
            if not self._warned:
                log.warning("%s: %s", self._config.name, self.stats.warning)
            self._warned = True
        elif share < _CALM:
            self._warned, self.stats.warning = False, None

    def _put_aside_the_furthest_behind(self) -> None:
        for backlog in self._store.table_backlogs(self._config.name):
            record = self._store.table(self._config.name, backlog.relation_id)
            if record is None:
                continue
            log.error(
                "%s is put aside: its changes filled the spool, %.1f of %.1f MB, from %s on",
                record.table,
                backlog.bytes / 1e6,
                self.stats.bytes / 1e6,
                backlog.first_lsn,
            )
            self._put_aside(record)
            if self._share() < _FULL:
                return
        log.error("the spool of %s is at its quota, and nothing in it can be given up", self._config.name)

    def _put_aside(self, record: TableRecord) -> None:
        for _ in range(_ATTEMPTS):
            # Dying after either step is harmless: a table in init is copied, and its files are useless in both states.
            record = self._store.new_generation(record.pipeline, record.relation_id, by=BY)
            hit("retention.new_generation")
            record = self._store.move(record, PUT_ASIDE, by=BY)
            if _never_beyond_init(self._store, record):
                break
            # Somebody saw it in init and began to copy it: its files are needed again, unless it begins once more.
        hit("retention.put_aside")
        self.stats.put_aside += 1
        self._delete(useless_files(self._config, self._store))

    def _delete(self, files: Sequence[SpoolFile]) -> None:
        for start in range(0, len(files), _AT_ONCE):
            paths = [file.path for file in files[start : start + _AT_ONCE]]
            self._spool.delete(paths)
            hit("retention.deleted")
            self._store.forget_files(self._config.name, paths)
            self.stats.deleted += len(paths)


def useless_files(config: PipelineConfig, store: Store) -> list[SpoolFile]:
    """Files whose changes no table will ever take in; those of tables that are not known any more, too."""
    # In this order: a table that is in init *after* the ledger was read takes its snapshot past all that is in it.
    pipeline = store.pipeline(config.name)
    if pipeline is None:
        return []
    records = store.tables(config.name)
    bounds = {record.relation_id: _useless_before(store, record, pipeline.spooled_lsn) for record in records}
    for backlog in store.table_backlogs(config.name):
        bounds.setdefault(backlog.relation_id, pipeline.spooled_lsn)
    return [
        file
        for relation_id, bound in bounds.items()
        if bound is not None
        for file in _before(store.files(config.name, relation_id, ZERO, bound), bound)
    ]


def lost_files(config: PipelineConfig, store: Store, spool: Spool) -> list[SpoolFile]:
    """Registered files that a table still needs and that are not there.

    Not simply all registered ones: of a file that nobody needs, a crash may have left the ledger row.
    """
    pipeline = store.pipeline(config.name)
    if pipeline is None:
        return []
    needed: list[SpoolFile] = []
    for record in store.tables(config.name):
        begin = _useless_before(store, record, pipeline.spooled_lsn)
        if begin is None and record.state.kind in (StateKind.SYNC_DONE, StateKind.READY):
            begin = record.applied_lsn
        needed += store.files(config.name, record.relation_id, begin or ZERO, _END)
    gone = spool.missing([file.path for file in needed])
    return [file for file in needed if file.path in gone]


def _before(files: Iterable[SpoolFile], bound: Lsn) -> list[SpoolFile]:
    return [file for file in files if file.last_lsn < bound]


def _useless_before(store: Store, record: TableRecord, ledger: Lsn) -> Lsn | None:
    """The table above, as far as it is not about applied files."""
    if record.state.kind in (StateKind.FINISHED_COPY, StateKind.SYNC_WAIT):
        return record.state.lsn
    if record.state.kind is StateKind.INIT:
        return ledger
    return ledger if record.state.kind is StateKind.ERRORED and _never_beyond_init(store, record) else None


def _never_beyond_init(store: Store, record: TableRecord) -> bool:
    """Whether nobody has begun to copy the table in this generation."""
    return all(
        state.kind in (StateKind.INIT, StateKind.ERRORED)
        for generation, state, _ in store.history(record.pipeline, record.relation_id)
        if generation == record.generation
    )
