"""The stream, in the triggerer.

    until the task is ours ──▶ until discovery registered the pipeline ──▶ run the pipeline ──┐
          ▲                                                                                    │
          └──── supervisor silent / overtaken / a timed error: stop, wait, take part again ◀───┤
                                                                                               │
    max_runtime ▶ TaskSuccessEvent     manual or never ▶ TaskFailedEvent     not deferred ▶ park

All of that is one child task, ``_work``, which is never cancelled by us: Airflow repeats a cancellation every second,
which no clean stop would survive. ``run`` only waits for it; when it is cancelled it asks the child to stop and waits
on, however often it is cancelled. Nothing here ends a slot or changes a table's state, so that whatever Airflow does
with the trigger, another one can go on from the ledger; the lease and its epoch keep two of them apart.

A trigger whose task is not deferred any more parks until it is cancelled: one that returned would be started again.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.sdk.exceptions import AirflowException
from airflow.triggers.base import BaseTrigger, TaskFailedEvent, TaskSuccessEvent, TriggerEvent

from airflow_provider_pgetl.hooks.conninfo import preload
from airflow_provider_pgetl.hooks.pgetl import CATALOG, SOURCE_CONN_ID, SPARK_CONN_ID, Addresses, PgEtlHook
from airflow_provider_pgetl.hooks.settings import pipeline_config, seconds
from airflow_provider_pgetl.replication.errors import Overtaken, PgEtlError, Retry
from airflow_provider_pgetl.triggers.own_task import DEFERRED, OwnTask, Silence

if TYPE_CHECKING:
    from airflow_provider_pgetl.replication.pipeline import Pipeline
    from airflow_provider_pgetl.replication.store.base import Store

T = TypeVar("T")

PROGRESS_S = 15.0
WATCH_S = 2.0
COMMS_TIMEOUT_S = 10.0
# The first answer after the start of a triggerer took 8 to 12 s: its supervisor builds its API then.
FIRST_ANSWER_S = 60.0
REGISTERED_POLL_S = 2.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0


class Ended(StrEnum):
    """Why a pipeline was stopped without an error."""

    ASKED = "asked to stop"
    BY_ITSELF = "the pipeline ended"
    RUNTIME = "max_runtime is over"
    NOT_MINE = "the task is not deferred any more"
    SILENCE = "the triggerer's supervisor is silent"


class PgStreamTrigger(BaseTrigger):
    """Runs a pipeline for ``PgStreamOperator``; its arguments are stored in clear and hold no secret."""

    def __init__(
        self,
        *,
        pipeline: str,
        publication: str,
        source_conn_id: str = SOURCE_CONN_ID,
        state_conn_id: str | None = None,
        spark_conn_id: str = SPARK_CONN_ID,
        catalog: str = CATALOG,
        spool_root: str | None = None,
        options: Mapping[str, Any] | None = None,
        max_runtime: float | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.pipeline = pipeline
        self.publication = publication
        self.source_conn_id = source_conn_id
        self.state_conn_id = state_conn_id
        self.spark_conn_id = spark_conn_id
        self.catalog = catalog
        self.spool_root = spool_root
        self.options = dict(options or {})
        self.max_runtime = max_runtime
        self._stop = asyncio.Event()
        self._ends_at = float("inf")
        self._progress: dict[str, Any] = {}
        self._comms_timeout = COMMS_TIMEOUT_S

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class path and arguments; both are a promise to rows that are already stored."""
        arguments = {
            "pipeline": self.pipeline,
            "publication": self.publication,
            "source_conn_id": self.source_conn_id,
            "state_conn_id": self.state_conn_id,
            "spark_conn_id": self.spark_conn_id,
            "catalog": self.catalog,
            "spool_root": self.spool_root,
            "options": self.options,
            "max_runtime": self.max_runtime,
        }
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Work in a task of its own, and see it to its end whatever happens to this one."""
        self._ends_at = time.monotonic() + (float("inf") if self.max_runtime is None else self.max_runtime)
        self._comms_timeout = seconds("comms_timeout", COMMS_TIMEOUT_S)
        work = asyncio.create_task(self._work(), name=f"pgetl stream {self.pipeline}")
        try:
            event = await asyncio.shield(work)
        except asyncio.CancelledError:
            self.log.info("the stream of %s is asked to stop", self.pipeline)
            self._stop.set()
            await finished(work)
            raise
        if event is not None:
            yield event

    # --- the loop

    async def _work(self) -> TriggerEvent | None:
        pause = FIRST_PAUSE_S
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                ended = await self._take_part()
            except PgEtlError as error:
                if error.retry is not Retry.TIMED and not isinstance(error, Overtaken):
                    return self._failed(error)
                # Whoever overtook us may go away, and what is out of reach comes back.
                pause = FIRST_PAUSE_S if time.monotonic() - began > LONGEST_PAUSE_S else pause
                self.log.warning("the stream of %s goes on in %.0f s: %s", self.pipeline, pause, error)
                await self._sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_S)
                continue
            self.log.info("the stream of %s has stopped: %s", self.pipeline, ended)
            if ended is Ended.RUNTIME:
                return TaskSuccessEvent(xcoms={"return_value": self._progress})
            if ended is Ended.NOT_MINE:
                await self._stop.wait()
            await self._sleep(FIRST_PAUSE_S)
        return None

    async def _take_part(self) -> Ended:
        """Run the pipeline once, from the first question to its stop."""
        if not await self._is_mine():
            return Ended.NOT_MINE
        addresses = await self._resolve()
        store = await asyncio.to_thread(addresses.store)
        try:
            ended = await self._until_registered(store)
            return ended or await self._stream(addresses, store)
        finally:
            await asyncio.to_thread(store.close)

    async def _is_mine(self) -> bool:
        task = self._own_task()
        while task is not None and not self._stop.is_set():
            try:
                return await task.state(FIRST_ANSWER_S) == DEFERRED
            except Silence as error:
                self.log.warning("waiting for the triggerer's supervisor: %s", error)
                await self._sleep(WATCH_S)
        return True

    async def _resolve(self) -> Addresses:
        hook = PgEtlHook(self.source_conn_id, state_conn_id=self.state_conn_id, spark_conn_id=self.spark_conn_id)
        await asyncio.to_thread(preload)
        try:
            return await asyncio.wait_for(hook.aaddresses(), FIRST_ANSWER_S)
        except TimeoutError as error:
            raise ConnectionsUnread("the connections could not be read in time") from error
        except AirflowException as error:
            raise ConnectionsUnread(f"a connection could not be read: {error}") from error

    async def _until_registered(self, store: Store) -> Ended | None:
        """Wait for discovery; a reason if the task ended meanwhile."""
        watch, told = asyncio.create_task(self._watch()), False
        try:
            while await asyncio.to_thread(store.pipeline, self.pipeline) is None:
                if not told:
                    self.log.info("pipeline %s is not registered yet: waiting for its discovery", self.pipeline)
                    told = True
                done, _ = await asyncio.wait({watch}, timeout=REGISTERED_POLL_S)
                if done:
                    return watch.result()
            return None
        finally:
            await cancelled(watch)

    async def _stream(self, addresses: Addresses, store: Store) -> Ended:
        pipeline = await asyncio.to_thread(self._build, addresses, store)
        driven = asyncio.create_task(self._drive(pipeline), name="pgetl pipeline")
        watch = asyncio.create_task(self._watch(), name="pgetl watch")
        report = asyncio.create_task(self._report(pipeline), name="pgetl report")
        try:
            done, _ = await asyncio.wait({driven, watch}, return_when=asyncio.FIRST_COMPLETED)
            if driven in done:
                driven.result()
            return watch.result() if watch in done else Ended.BY_ITSELF
        finally:
            await cancelled(watch, report)
            if not driven.done():
                driven.cancel()
            await finished(asyncio.create_task(pipeline.shutdown()))
            await cancelled(driven)

    def _build(self, addresses: Addresses, store: Store) -> Pipeline:
        """In a thread: this imports Arrow and Spark."""
        from airflow_provider_pgetl.replication.pipeline import Pipeline

        config = pipeline_config(self.pipeline, self.publication, self.spool_root, self.options)
        config = dataclasses.replace(config, pg_connection=addresses.source)
        destination = addresses.destination(self.catalog)
        # Tables are discovered and copied by tasks.
        return Pipeline(config, store, destination, copies=False)

    async def _drive(self, pipeline: Pipeline) -> None:
        await pipeline.start()
        self.log.info("the stream of %s runs", self.pipeline)
        await pipeline.wait()

    # --- beside the pipeline

    async def _watch(self) -> Ended:
        """Return when the pipeline must not run any longer."""
        every, task = seconds("watch_interval", WATCH_S), self._own_task()
        while True:
            await self._sleep(min(every, max(self._ends_at - time.monotonic(), 0.0)))
            if self._stop.is_set():
                return Ended.ASKED
            if time.monotonic() >= self._ends_at:
                return Ended.RUNTIME
            if task is None:
                continue
            try:
                state = await task.state(self._comms_timeout)
            except Silence as error:
                self.log.warning("%s: another triggerer may have taken over", error)
                return Ended.SILENCE
            if state != DEFERRED:
                self.log.info("the task's state is %s", state)
                return Ended.NOT_MINE

    async def _report(self, pipeline: Pipeline) -> None:
        """One line in the log and one XCom in each interval."""
        every, task = seconds("progress_interval", PROGRESS_S), self._own_task()
        while True:
            status = pipeline.status()
            if status is not None:
                self._progress = status.as_dict()
                self.log.info("%s", in_one_line(self._progress))
                if task is not None:
                    await self._told(task, self._progress)
            # Until there is something to tell, look often.
            await asyncio.sleep(every if status is not None else 1.0)

    async def _told(self, task: OwnTask, progress: dict[str, Any]) -> None:
        try:
            await task.tell("progress", progress, self._comms_timeout)
        except (Silence, AirflowException) as error:
            # Only people miss it; whether the silence means more, the watch finds out.
            self.log.warning("the progress could not be published: %s", error)

    def _failed(self, error: PgEtlError) -> TriggerEvent:
        self.log.error("the stream of %s failed: %s; what to do: %s", self.pipeline, error.message, error.hint)
        reason = {"error": type(error).__name__, "reason": error.message, "hint": error.hint}
        return TaskFailedEvent(xcoms={"return_value": {**self._progress, **reason}})

    def _own_task(self) -> OwnTask | None:
        return None if self.task_instance is None else OwnTask(self.task_instance)

    async def _sleep(self, seconds_: float) -> None:
        """Sleep, but not on when asked to stop."""
        stopped = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait({stopped}, timeout=seconds_)
        await cancelled(stopped)


class ConnectionsUnread(PgEtlError):
    """A connection could not be resolved."""

    retry = Retry.TIMED
    default_hint = "Check that the connections of the pipeline exist and that the secrets backend answers."


async def finished(task: asyncio.Task[T]) -> None:
    """Wait for the end of ``task``, however often the caller is cancelled meanwhile; its outcome is not raised."""
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            continue
    if not task.cancelled():
        task.exception()


async def cancelled(*tasks: asyncio.Future[Any]) -> None:
    """Cancel and wait until they are gone."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def in_one_line(progress: Mapping[str, Any]) -> str:
    """``name=value`` of everything that is known."""
    return " ".join(f"{name}={value}" for name, value in progress.items() if value is not None)
