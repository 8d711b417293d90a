"""The paths as one object, under one lease: the engine as a library.

    config = PipelineConfig(name="shop", publication="shop", spool_root="/var/spool/pgetl", pg_connection="host=...")
    pipeline = Pipeline(config, MemoryStore(), MemoryDestination())
    await pipeline.start()
    await pipeline.wait()

``start`` checks the source, makes the slot, registers the tables, takes the lease (waiting for an owner that is
still alive) and starts the stream, the applier, the copier and the watch, each in a thread of its own. ``wait``
returns after a shutdown and raises what a person must look at; ``shutdown`` stops everything and gives the lease
back. Nothing here blocks the event loop. Where somebody else discovers and copies (Airflow's tasks), ``copies=False``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import threading
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar, cast

from airflow_provider_pgetl.replication.apply import Applier
from airflow_provider_pgetl.replication.config import PipelineConfig
from airflow_provider_pgetl.replication.copier import Copier
from airflow_provider_pgetl.replication.delivery import Delivery, Turns
from airflow_provider_pgetl.replication.destinations.base import Destination, FileDestination
from airflow_provider_pgetl.replication.discover import discover
from airflow_provider_pgetl.replication.errors import ConfigError, Overtaken, PgEtlError, StoreError
from airflow_provider_pgetl.replication.memory import MemoryMonitor
from airflow_provider_pgetl.replication.progress import Lease
from airflow_provider_pgetl.replication.retention import SpoolKeeper
from airflow_provider_pgetl.replication.spool.segments import Spool
from airflow_provider_pgetl.replication.store.base import Store
from airflow_provider_pgetl.replication.stream import StreamPath
from airflow_provider_pgetl.replication.threads import Threads
from airflow_provider_pgetl.replication.watch import SourceWatch

log = logging.getLogger(__name__)

T = TypeVar("T")

_LEASE = "stream"
_LEASE_POLL_S = 1.0
_SAMPLE_S = 5.0
_GRACE_S = 3.0


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """Where a running pipeline stands, in primitives."""

    epoch: int
    received_lsn: str
    spooled_lsn: str
    applied_lsn: str
    rows: int
    transactions: int
    segments: int
    reconnects: int
    upserts: int
    deletes: int
    cycle_seconds: float
    cut: int | None
    behind_bytes: int
    behind_seconds: float
    retained_bytes: int
    wal_status: str | None
    safe_wal_size: int | None
    spool_bytes: int
    warning: str | None
    waiting_for: str | None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Pipeline:
    """A running pipeline: ``Pipeline(config, store, destination)``."""

    def __init__(
        self,
        config: PipelineConfig,
        store: Store,
        destination: Destination | FileDestination,
        *,
        owner: str | None = None,
        copies: bool = True,
    ) -> None:
        self._config = config
        self._source = config.source
        self._store = store
        self._spool = Spool.of(config)
        self._given = destination
        self._turns = Turns()
        self._destination = self._taking_files()
        self._owner = owner or f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self._copies = copies
        self._stop = threading.Event()
        self._lease: Lease | None = None
        self._stream: StreamPath | None = None
        self._applier: Applier | None = None
        self._keeper: SpoolKeeper | None = None
        self._watch = SourceWatch(config, self._source, store, self._spool)
        self._memory = MemoryMonitor(config)
        self._threads = Threads(8, thread_name_prefix="pgetl")
        # What works in threads, and what helps it on the event loop.
        self._workers: list[asyncio.Future[None]] = []
        self._helpers: list[asyncio.Future[None]] = []
        self._closing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Check, register, take the lease and begin; raises what stands in the way."""
        if self._lease is not None or self._closing is not None:
            raise ConfigError("a pipeline can be started once", hint="Make a new Pipeline.")
        if self._copies:
            await self._in_thread(lambda: discover(self._config, self._source, self._store, by="pipeline"))
        self._lease = await self._take_lease()
        log.info("%s runs with epoch %d", self._config.name, self._lease.epoch)
        self._memory.start()
        applier = self._applier = Applier(self._config, self._store, self._destination, self._lease)
        stream = self._stream = StreamPath(
            self._config, self._source, self._store, self._lease, memory=self._memory, on_spooled=applier.wake
        )
        keeper = self._keeper = SpoolKeeper(self._config, self._store, self._spool, self._lease)
        works: list[Callable[[], None]] = [
            lambda: stream.run(self._stop),
            lambda: self._apply(applier, stream),
            lambda: self._watch.run(self._stop),
            lambda: keeper.run(self._stop),
        ]
        if self._copies:
            copier = Copier(self._config, self._source, self._store, self._taking_files)
            works.append(lambda: copier.run(self._stop, applier.started))
        loop = asyncio.get_running_loop()
        self._workers = [loop.run_in_executor(self._threads, work) for work in works]
        self._helpers = [
            asyncio.ensure_future(self._keep_lease(self._lease)),
            asyncio.ensure_future(self._sample()),
        ]

    async def wait(self) -> None:
        """Until one part ends; whatever it ends with, the others are stopped, too."""
        if not self._workers:
            return
        done, _ = await asyncio.wait([*self._workers, *self._helpers], return_when=asyncio.FIRST_COMPLETED)
        await self.shutdown()
        for task in done:
            if not task.cancelled():
                task.result()

    async def shutdown(self) -> None:
        """Stop everything and give the lease back; idempotent, goes on if the caller is cancelled."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    def status(self) -> PipelineStatus | None:
        """Where it stands; None before it has begun."""
        if self._stream is None or self._applier is None or self._lease is None:
            return None
        stream, applier, watch = self._stream.stats, self._applier.stats, self._watch.stats
        behind = max(0, stream.spooled_lsn - applier.applied_lsn)
        age = (datetime.now(UTC) - stream.last_committed_at).total_seconds() if stream.last_committed_at else 0.0
        return PipelineStatus(
            epoch=self._lease.epoch,
            received_lsn=str(stream.received_lsn),
            spooled_lsn=str(stream.spooled_lsn),
            applied_lsn=str(applier.applied_lsn),
            rows=stream.rows,
            transactions=stream.transactions,
            segments=stream.segments,
            reconnects=stream.reconnects,
            upserts=applier.upserts,
            deletes=applier.deletes,
            cycle_seconds=round(applier.cycle_seconds, 3),
            cut=applier.last_cut,
            behind_bytes=behind,
            behind_seconds=round(age, 1) if behind else 0.0,
            retained_bytes=watch.retained_bytes,
            wal_status=watch.wal_status,
            safe_wal_size=watch.safe_wal_size,
            spool_bytes=self._keeper.stats.bytes if self._keeper else 0,
            warning=self._keeper.stats.warning if self._keeper else None,
            waiting_for=stream.waiting_for or applier.waiting_for or watch.waiting_for,
        )

    async def _take_lease(self) -> Lease:
        said = False
        while True:
            lease = await self._in_thread(
                lambda: self._store.acquire(self._config.name, _LEASE, self._owner, self._config.lease_ttl_s)
            )
            if lease is not None:
                return lease
            if not said:
                log.info("another stream of %s is alive, waiting for its lease", self._config.name)
                said = True
            await asyncio.sleep(_LEASE_POLL_S)

    async def _keep_lease(self, lease: Lease) -> None:
        """Renew it well before it expires; a store that is out of reach is not yet a lost lease."""
        while not self._stop.is_set():
            await asyncio.sleep(self._config.lease_ttl_s / 4)
            try:
                await self._in_thread(lambda: self._store.renew(lease, self._config.lease_ttl_s))
            except Overtaken:
                raise
            except StoreError as error:
                log.warning("the lease could not be renewed: %s", error.message)

    async def _sample(self) -> None:
        while not self._stop.is_set():
            await asyncio.sleep(_SAMPLE_S)
            status = self.status()
            if status is None:
                continue
            try:
                await self._in_thread(lambda: self._store.add_sample(self._config.name, status.as_dict()))  # noqa: B023
            except PgEtlError as error:
                log.debug("a sample was not kept: %s", error.message)

    async def _close(self) -> None:
        self._stop.set()
        if self._applier is not None:
            self._applier.wake()
        for helper in self._helpers:
            helper.cancel()
        if self._workers:
            # A merge in flight may end by itself; one that takes long is interrupted, its replay is safe.
            _, running = await asyncio.wait(self._workers, timeout=_GRACE_S)
            if running:
                await self._in_thread(self._destination.cancel)
        await asyncio.gather(*self._workers, *self._helpers, return_exceptions=True)
        with contextlib.suppress(PgEtlError):
            await self._in_thread(self._destination.shutdown)
        await self._in_thread(self._memory.stop)
        if self._lease is not None:
            lease = self._lease
            with contextlib.suppress(PgEtlError):
                await self._in_thread(lambda: self._store.release(lease))
        self._threads.shutdown(wait=False)

    def _apply(self, applier: Applier, stream: StreamPath) -> None:
        # Of a spool that does not survive, the stream first forgets what the ledger says.
        while not (self._config.spool_durable or stream.began.wait(0.1) or self._stop.is_set()):
            pass
        applier.run(self._stop)

    def _taking_files(self) -> FileDestination:
        """The destination as the paths need it: for one that takes rows and events, somebody who reads for it."""
        if getattr(self._given, "takes_files", False):
            return cast("FileDestination", self._given)
        return Delivery(cast("Destination", self._given), self._spool, self._source, self._turns)

    async def _in_thread(self, step: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, step)
