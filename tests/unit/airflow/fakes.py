"""Fakes of what the surface talks to. The store is the real one in memory."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from airflow_provider_pgetl.hooks.pgetl import Addresses
from airflow_provider_pgetl.replication.store.memory import MemoryStore
from airflow_provider_pgetl.triggers.own_task import Silence


class FakeDestination:
    """Counts what is called."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def startup(self) -> None:
        self.calls.append("startup")

    def shutdown(self) -> None:
        self.calls.append("shutdown")

    def cancel(self) -> None:
        self.calls.append("cancel")


class FakeAddresses(Addresses):
    """Addresses whose store is in memory and whose lake is a fake."""

    __slots__ = ("lake", "memory")

    def __init__(self, memory: MemoryStore, lake: FakeDestination) -> None:
        super().__init__(source="host=source password=s3cret", state="", spark="")
        object.__setattr__(self, "memory", memory)
        object.__setattr__(self, "lake", lake)

    def store(self) -> Any:
        return self.memory

    def destination(self, catalog: str) -> Any:
        return self.lake


@dataclass
class FakeTaskInstance:
    """A task instance that keeps its XComs."""

    dag_id: str = "shop_copy"
    task_id: str = "copy"
    run_id: str = "run 1"
    map_index: int = 0
    try_number: int = 1
    max_tries: int = 3
    xcoms: dict[str, Any] = field(default_factory=dict)

    def xcom_push(self, key: str, value: Any) -> None:
        self.xcoms[key] = value


def context(task: Any, **changes: Any) -> Any:
    """What a task gets, as far as our operators read it."""
    ti = FakeTaskInstance(**{"max_tries": task.retries, **changes})
    return {"ti": ti, "run_id": ti.run_id, "task": task}


class FakeOwnTask:
    """A task whose state a test sets; ``None`` in ``answers`` is silence."""

    def __init__(self) -> None:
        self.current: str | None = "deferred"
        self.silent = False
        self.asked = 0
        self.told: list[dict[str, Any]] = []

    async def state(self, timeout_s: float) -> str | None:
        self.asked += 1
        await asyncio.sleep(0)
        if self.silent:
            raise Silence("silent")
        return self.current

    async def tell(self, key: str, value: dict[str, Any], timeout_s: float) -> None:
        self.told.append(value)


class FakePipeline:
    """Runs until it is shut down; ``fails`` is what ``wait`` raises, once."""

    def __init__(self, fails: Exception | None = None, *, slow_shutdown: float = 0.0) -> None:
        self.fails = fails
        self.slow_shutdown = slow_shutdown
        self.started = asyncio.Event()
        self.stopped = asyncio.Event()
        self.shutdowns = 0

    async def start(self) -> None:
        self.started.set()

    async def wait(self) -> None:
        if self.fails is not None:
            raise self.fails
        await self.stopped.wait()

    async def shutdown(self) -> None:
        self.shutdowns += 1
        await asyncio.sleep(self.slow_shutdown)
        self.stopped.set()

    def status(self) -> Any:
        return SimpleNamespace(as_dict=lambda: {"applied_lsn": "0/10", "rows": 3, "waiting_for": None})
