"""The stream's trigger: what it keeps, when it parks, how it ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from airflow.triggers.base import TaskFailedEvent, TaskSuccessEvent, TriggerEvent

from airflow_provider_pgetl.operators.stream import TRIGGER, PgStreamOperator
from airflow_provider_pgetl.replication.errors import Overtaken, SlotError, SourceUnreachable
from airflow_provider_pgetl.replication.store.memory import MemoryStore
from airflow_provider_pgetl.testing.store_values import make_pipeline
from airflow_provider_pgetl.triggers import stream
from airflow_provider_pgetl.triggers.stream import PgStreamTrigger
from tests.unit.airflow.fakes import FakeAddresses, FakeDestination, FakeOwnTask, FakePipeline


def trigger(**changes: Any) -> PgStreamTrigger:
    return PgStreamTrigger(**{"pipeline": "shop", "publication": "shop", "spool_root": "spool", **changes})


class Run:
    """A trigger on a fake engine, with the real store in memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *pipelines: FakePipeline, **changes: Any) -> None:
        self.store = MemoryStore()
        self.task = FakeOwnTask()
        self.trigger = trigger(**changes)
        self.pipelines = list(pipelines)
        self.built: list[FakePipeline] = []
        addresses = FakeAddresses(self.store, FakeDestination())

        async def resolve() -> FakeAddresses:
            return addresses

        def build(*_: Any) -> FakePipeline:
            self.built.append(self.pipelines.pop(0))
            return self.built[-1]

        monkeypatch.setattr(self.trigger, "_resolve", resolve)
        monkeypatch.setattr(self.trigger, "_build", build)
        monkeypatch.setattr(self.trigger, "_own_task", lambda: self.task)
        self.running: asyncio.Task[list[TriggerEvent]] | None = None

    def start(self, *, registered: bool = True) -> None:
        if registered:
            self.store.register_pipeline(make_pipeline())
        self.running = asyncio.create_task(self._events())

    async def _events(self) -> list[TriggerEvent]:
        return [event async for event in self.trigger.run()]

    async def events(self) -> list[TriggerEvent]:
        assert self.running is not None
        return await asyncio.wait_for(self.running, 10)

    async def cancel(self) -> None:
        assert self.running is not None
        self.running.cancel("__airflow_user_action__")
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(asyncio.shield(self.running), 10)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "seconds", lambda name, default: 0.01)
    for name in ("REGISTERED_POLL_S", "WATCH_S", "FIRST_PAUSE_S", "LONGEST_PAUSE_S"):
        monkeypatch.setattr(stream, name, 0.01)


@pytest.fixture
async def run(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., Run]]:
    runs: list[Run] = []

    def make(*pipelines: FakePipeline, **changes: Any) -> Run:
        runs.append(Run(monkeypatch, *pipelines, **changes))
        return runs[-1]

    yield make
    for one in runs:
        if one.running is not None and not one.running.done():
            await one.cancel()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def test_its_arguments_survive_a_round_trip_and_hold_no_secret() -> None:
    operator = PgStreamOperator(
        task_id="stream", pipeline="shop", publication="pub", options={"apply_interval_ms": 500}, max_runtime=60
    )
    path, arguments = PgStreamTrigger(**operator.trigger_arguments()).serialize()
    assert path == TRIGGER
    assert operator.start_trigger_args is not None
    assert operator.start_trigger_args.trigger_kwargs == arguments
    text = json.dumps(arguments)
    assert PgStreamTrigger(**json.loads(text)).serialize() == (path, arguments)
    assert not any(word in text.lower() for word in ("password", "token", "host", "://"))


def test_the_arguments_survive_airflows_own_serialisation() -> None:
    from airflow.sdk.serde import deserialize, serialize

    _, arguments = trigger(options={"batch": {"max_fill_ms": 10}}).serialize()
    assert deserialize(serialize(arguments)) == arguments


def test_the_operator_has_no_execution_timeout_and_some_retries() -> None:
    from datetime import timedelta

    operator = PgStreamOperator(
        task_id="stream", pipeline="shop", publication="pub", execution_timeout=timedelta(minutes=1)
    )
    assert operator.execution_timeout is None
    assert operator.start_trigger_args.timeout is None
    assert operator.start_from_trigger is True
    assert operator.retries > 0


async def test_it_waits_for_discovery(run: Callable[..., Run]) -> None:
    one = run(FakePipeline())
    one.start(registered=False)
    await until(lambda: one.task.asked > 3)
    assert one.built == []
    one.store.register_pipeline(make_pipeline())
    await until(lambda: one.built and one.built[0].started.is_set())


async def test_it_publishes_progress(run: Callable[..., Run]) -> None:
    one = run(FakePipeline())
    one.start()
    await until(lambda: len(one.task.told) > 1)
    assert one.task.told[-1] == {"applied_lsn": "0/10", "rows": 3, "waiting_for": None}


async def test_max_runtime_ends_with_success(run: Callable[..., Run]) -> None:
    one = run(FakePipeline(), max_runtime=0.2)
    one.start()
    (event,) = await one.events()
    assert isinstance(event, TaskSuccessEvent)
    assert event.xcoms == {"return_value": {"applied_lsn": "0/10", "rows": 3, "waiting_for": None}}
    assert one.built[0].shutdowns == 1


async def test_a_cleared_task_stops_the_pipeline_and_parks(run: Callable[..., Run]) -> None:
    one = run(FakePipeline())
    one.start()
    await until(lambda: one.built and one.built[0].started.is_set())
    one.task.current = None
    await until(one.built[0].stopped.is_set)
    asked = one.task.asked
    await asyncio.sleep(0.1)
    assert one.running is not None
    assert not one.running.done()
    assert one.task.asked == asked
    await one.cancel()


async def test_a_task_that_is_not_deferred_never_starts_the_pipeline(run: Callable[..., Run]) -> None:
    one = run()
    one.task.current = "failed"
    one.start()
    await until(lambda: one.task.asked == 1)
    await asyncio.sleep(0.05)
    assert one.built == []
    await one.cancel()


async def test_silence_stops_the_pipeline_until_there_is_an_answer(run: Callable[..., Run]) -> None:
    one = run(FakePipeline(), FakePipeline())
    one.start()
    await until(lambda: one.built and one.built[0].started.is_set())
    one.task.silent = True
    await until(one.built[0].stopped.is_set)
    await asyncio.sleep(0.05)
    assert len(one.built) == 1
    one.task.silent = False
    await until(lambda: len(one.built) == 2 and one.built[1].started.is_set())


@pytest.mark.parametrize("error", [SourceUnreachable("the source is gone"), Overtaken("a newer epoch")])
async def test_what_passes_is_waited_for(run: Callable[..., Run], error: Exception) -> None:
    one = run(FakePipeline(error), FakePipeline())
    one.start()
    await until(lambda: len(one.built) == 2 and one.built[1].started.is_set())
    assert one.built[0].shutdowns == 1


async def test_what_needs_somebody_ends_the_task_with_reason_and_hint(run: Callable[..., Run]) -> None:
    one = run(FakePipeline(SlotError("the slot is gone", hint="make it again")))
    one.start()
    (event,) = await one.events()
    assert isinstance(event, TaskFailedEvent)
    assert event.xcoms is not None
    said = event.xcoms["return_value"]
    assert isinstance(said, dict)
    assert (said["error"], said["reason"], said["hint"]) == ("SlotError", "the slot is gone", "make it again")
    assert one.built[0].shutdowns == 1


async def test_a_bug_is_raised_with_its_trace(run: Callable[..., Run]) -> None:
    one = run(FakePipeline(ZeroDivisionError()))
    one.start()
    with pytest.raises(ZeroDivisionError):
        await one.events()
    assert one.built[0].shutdowns == 1


async def test_a_clean_stop_survives_repeated_cancellation(run: Callable[..., Run]) -> None:
    one = run(FakePipeline(slow_shutdown=0.3))
    one.start()
    await until(lambda: one.built and one.built[0].started.is_set())
    assert one.running is not None
    for _ in range(10):
        one.running.cancel("__airflow_user_action__")
        await asyncio.sleep(0.02)
    assert not one.running.done()
    with pytest.raises(asyncio.CancelledError):
        await one.running
    assert one.built[0].stopped.is_set()
    assert one.built[0].shutdowns == 1
