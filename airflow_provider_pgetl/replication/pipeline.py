"""The stream path and the applier as one object, under one lease.

``await start()`` takes the lease (waiting for an owner that is still alive) and starts both in threads of their
own; ``await wait()`` returns after a shutdown and raises what a person must look at; ``await shutdown()`` stops
both and gives the lease back. Nothing here blocks the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from airflow_provider_pgetl.replication.apply import Applier
from airflow_provider_pgetl.replication.config import PipelineConfig
from airflow_provider_pgetl.replication.destinations.base import FileDestination
from airflow_provider_pgetl.replication.errors import Overtaken, PgEtlError, StoreError
from airflow_provider_pgetl.replication.progress import Lease
from airflow_provider_pgetl.replication.store.base import Store
from airflow_provider_pgetl.replication.stream import StreamPath
from airflow_provider_pgetl.replication.threads import Threads

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
    waiting_for: str | None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Pipeline:
    """A running pipeline: ``Pipeline(config, source, store, destination, owner=...)``."""

    def __init__(
        self, config: PipelineConfig, source: str, store: Store, destination: FileDestination, *, owner: str
    ) -> None:
        self._config = config
        self._source = source
        self._store = store
        self._destination = destination
        self._owner = owner
        self._stop = threading.Event()
        self._lease: Lease | None = None
        self._stream: StreamPath | None = None
        self._applier: Applier | None = None
        self._threads = Threads(5, thread_name_prefix=f"pgetl-{config.name}")
        self._tasks: list[asyncio.Future[None]] = []
        self._closing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Take the lease and begin."""
        self._lease = await self._take_lease()
        log.info("%s runs with epoch %d", self._config.name, self._lease.epoch)
        self._stream = StreamPath(self._config, self._source, self._store, self._lease)
        self._applier = Applier(self._config, self._store, self._destination, self._lease)
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.run_in_executor(self._threads, self._stream.run, self._stop),
            loop.run_in_executor(self._threads, self._applier.run, self._stop),
            asyncio.ensure_future(self._keep_lease(self._lease)),
            asyncio.ensure_future(self._sample()),
        ]

    async def wait(self) -> None:
        """Until one part ends; whatever it ends with, the others are stopped, too."""
        if not self._tasks:
            return
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
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
        stream, applier = self._stream.stats, self._applier.stats
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
            waiting_for=stream.waiting_for or applier.waiting_for,
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
        threads, helpers = self._tasks[:2], self._tasks[2:]
        for helper in helpers:
            helper.cancel()
        if threads:
            # A merge in flight may end by itself; one that takes long is interrupted, its replay is safe.
            _, running = await asyncio.wait(threads, timeout=_GRACE_S)
            if running:
                await self._in_thread(self._destination.cancel)
        await asyncio.gather(*threads, *helpers, return_exceptions=True)
        with contextlib.suppress(PgEtlError):
            await self._in_thread(self._destination.shutdown)
        if self._lease is not None:
            lease = self._lease
            with contextlib.suppress(PgEtlError):
                await self._in_thread(lambda: self._store.release(lease))
        self._threads.shutdown(wait=False)

    async def _in_thread(self, step: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, step)
