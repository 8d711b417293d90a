"""What a trigger asks and tells about the task that it runs for.

Airflow does not cancel the trigger of a cleared task while that task has no new state (its DAG is paused, or an
upstream task is pending), and two triggerers may run one trigger for a while. So a trigger that must be alone asks
for its task's state now and then. Every call goes through the triggerer's supervisor; when that one hangs, the call
never returns, hence the timeouts.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

DEFERRED = "deferred"


class Silence(Exception):
    """The supervisor did not answer in time."""


class TaskLike(Protocol):
    """What is read of a task instance."""

    dag_id: str
    task_id: str
    run_id: str
    map_index: int | None
    try_number: int


class OwnTask:
    """The task instance of a trigger."""

    def __init__(self, task: TaskLike) -> None:
        self._task = task
        self._map_index = -1 if task.map_index is None else task.map_index

    def __str__(self) -> str:
        return f"{self._task.dag_id}.{self._task.task_id} try {self._task.try_number}"

    async def state(self, timeout_s: float) -> str | None:
        """The task's state now, None where it has none; ``Silence`` without an answer in time."""
        from airflow.sdk.execution_time import task_runner
        from airflow.sdk.execution_time.comms import GetTaskStates, TaskStatesResult

        task = self._task
        question = GetTaskStates(
            dag_id=task.dag_id, task_ids=[task.task_id], run_ids=[task.run_id], map_index=self._map_index
        )
        try:
            answer: Any = await asyncio.wait_for(task_runner.SUPERVISOR_COMMS.asend(question), timeout_s)
        except TimeoutError as error:
            raise Silence(f"no answer from the triggerer's supervisor for {timeout_s:.0f} s") from error
        if not isinstance(answer, TaskStatesResult):
            raise Silence(f"the triggerer's supervisor could not tell the task's state ({type(answer).__name__})")
        mapped = f"{task.task_id}_{self._map_index}"
        states = answer.task_states.get(task.run_id, {})
        state = states.get(task.task_id if self._map_index < 0 else mapped)
        return None if state is None else str(getattr(state, "value", state))

    async def tell(self, key: str, value: dict[str, Any], timeout_s: float) -> None:
        """Put ``value`` where people see it at once: an XCom of the task."""
        from airflow.sdk.execution_time.xcom import XCom

        task = self._task
        written = XCom.aset(
            key,
            value,
            dag_id=task.dag_id,
            task_id=task.task_id,
            run_id=task.run_id,
            map_index=self._map_index,
        )
        try:
            await asyncio.wait_for(written, timeout_s)
        except TimeoutError as error:
            raise Silence(f"no answer from the triggerer's supervisor for {timeout_s:.0f} s") from error
