"""What a try of the copy does, by where the table stands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_provider_pgetl.hooks.pgetl import PgEtlHook
from airflow_provider_pgetl.operators import readiness
from airflow_provider_pgetl.operators.copy import PgInitialCopyOperator, Step, is_first_try, next_step
from airflow_provider_pgetl.replication import table_copy
from airflow_provider_pgetl.replication.errors import DestinationUnreachable, NotSupported, Overtaken, Retry
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.progress import TableRecord
from airflow_provider_pgetl.replication.state import READY, StateKind, TableState
from airflow_provider_pgetl.replication.store.memory import MemoryStore
from airflow_provider_pgetl.testing.store_values import ORDERS, make_pipeline, make_schema, walk_to_ready
from tests.unit.airflow.fakes import FakeAddresses, FakeDestination, context

ERROR = TableState(StateKind.ERRORED, reason="no", hint="look", retry=Retry.MANUAL)


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    store.register_pipeline(make_pipeline())
    store.register_table("shop", make_schema(), Lsn(1), by="discover")
    return store


@pytest.fixture
def lake() -> FakeDestination:
    return FakeDestination()


@pytest.fixture
def copies(store: MemoryStore, lake: FakeDestination, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[TableRecord]]:
    """The records that the fake engine was asked to copy; it moves them as the real one does."""
    asked: list[TableRecord] = []

    def fake_copy_table(
        config: Any, source: str, store: MemoryStore, destination: Any, record: TableRecord, **how: Any
    ) -> table_copy.CopyResult:
        asked.append(record)
        how["on_progress"](table_copy.CopyProgress(0, 2, 0, 0, 0.0, None))
        moved = store.move(record, TableState(StateKind.DATA_SYNC), by=how["by"], run_id=how["run_id"])
        moved = store.move(moved, TableState(StateKind.FINISHED_COPY, Lsn(9)), by=how["by"], copied_rows=5)
        store.move(moved, TableState(StateKind.SYNC_WAIT, Lsn(9)), by=how["by"])
        how["on_progress"](table_copy.CopyProgress(2, 2, 5, 100, 0.5, 0.0))
        return table_copy.CopyResult(5, 2, Lsn(9), 0.5, record.generation)

    monkeypatch.setattr(table_copy, "copy_table", fake_copy_table)
    monkeypatch.setattr(PgEtlHook, "addresses", lambda _: FakeAddresses(store, lake))
    monkeypatch.setattr(readiness, "POLL_S", 0.01)
    return asked


def operator(**changes: Any) -> PgInitialCopyOperator:
    arguments: dict[str, Any] = {
        "task_id": "copy",
        "pipeline": "shop",
        "publication": "shop",
        "spool_root": "spool",
        "table": "public.orders",
        "retries": 3,
    }
    return PgInitialCopyOperator(**{**arguments, **changes})


def stored(store: MemoryStore) -> TableRecord:
    record = store.table("shop", ORDERS)
    assert record is not None
    return record


def at(store: MemoryStore, kind: StateKind, run_id: str) -> TableRecord:
    """The table brought to a state by a run."""
    record = stored(store)
    path = (
        TableState(StateKind.DATA_SYNC),
        TableState(StateKind.FINISHED_COPY, Lsn(5)),
        TableState(StateKind.SYNC_WAIT, Lsn(5)),
        TableState(StateKind.CATCHUP, Lsn(5)),
        TableState(StateKind.SYNC_DONE, Lsn(5)),
        READY,
    )
    if kind is StateKind.ERRORED:
        return store.move(record, ERROR, by="test", run_id=run_id)
    for state in path:
        if record.state.kind is kind:
            break
        record = store.move(record, state, by="test", run_id=run_id)
    return record


@pytest.mark.parametrize(
    ("kind", "other_run", "cleared", "retried"),
    [
        (StateKind.INIT, Step.COPY, Step.COPY, Step.COPY),
        (StateKind.READY, Step.SKIP, Step.AGAIN, Step.DONE),
        (StateKind.SYNC_WAIT, Step.WAIT, Step.AGAIN, Step.WAIT),
        (StateKind.CATCHUP, Step.WAIT, Step.AGAIN, Step.WAIT),
        (StateKind.SYNC_DONE, Step.WAIT, Step.AGAIN, Step.WAIT),
        (StateKind.DATA_SYNC, Step.AGAIN, Step.AGAIN, Step.AGAIN),
        (StateKind.FINISHED_COPY, Step.AGAIN, Step.AGAIN, Step.AGAIN),
        (StateKind.ERRORED, Step.AGAIN, Step.AGAIN, Step.AGAIN),
    ],
)
def test_the_table_of_steps(store: MemoryStore, kind: StateKind, other_run: Step, cleared: Step, retried: Step) -> None:
    record = at(store, kind, "run 1")
    assert next_step(record, run_id="run 2", first_try=True) is other_run
    assert next_step(record, run_id="run 1", first_try=True) is cleared
    assert next_step(record, run_id="run 1", first_try=False) is retried


@pytest.mark.parametrize(
    ("try_number", "max_tries", "first"),
    [(1, 3, True), (2, 3, False), (4, 3, False), (2, 4, True), (3, 4, False), (5, 7, True)],
)
def test_a_clear_begins_a_new_cycle_of_tries(try_number: int, max_tries: int, first: bool) -> None:
    assert is_first_try(context(operator(), try_number=try_number, max_tries=max_tries)) is first


def test_a_new_table_is_copied(store: MemoryStore, copies: list[TableRecord], lake: FakeDestination) -> None:
    told = context(operator())
    result = operator().execute(told)
    assert [record.generation for record in copies] == [1]
    assert lake.calls == ["startup", "shutdown"]
    assert result == {
        "table": "public.orders",
        "state": "sync_wait",
        "generation": 1,
        "rows": 5,
        "partitions": 2,
        "lsn": "0/9",
        "seconds": 0.5,
    }
    assert told["ti"].xcoms["progress"]["partitions_done"] == 2
    assert stored(store).run_id == "run 1"
    assert store.history("shop", ORDERS)[1][2] == "shop_copy.copy[0] try 1"


def test_a_table_that_another_run_made_ready_is_skipped(store: MemoryStore, copies: list[TableRecord]) -> None:
    at(store, StateKind.READY, "run 0")
    with pytest.raises(AirflowSkipException, match="another run"):
        operator().execute(context(operator()))
    assert copies == []
    assert stored(store).generation == 1


def test_clearing_the_task_of_a_ready_table_copies_it_again(store: MemoryStore, copies: list[TableRecord]) -> None:
    at(store, StateKind.READY, "run 1")
    operator().execute(context(operator(), try_number=2, max_tries=4))
    assert [record.generation for record in copies] == [2]
    assert stored(store).state.kind is StateKind.SYNC_WAIT


def test_a_retry_after_the_table_became_ready_does_not_copy(store: MemoryStore, copies: list[TableRecord]) -> None:
    at(store, StateKind.READY, "run 1")
    assert operator(wait_ready=True).execute(context(operator(), try_number=2))["state"] == "ready"
    assert copies == []


@pytest.mark.parametrize("kind", [StateKind.DATA_SYNC, StateKind.FINISHED_COPY, StateKind.ERRORED])
def test_a_retry_after_a_broken_copy_is_a_new_generation(
    store: MemoryStore, copies: list[TableRecord], kind: StateKind
) -> None:
    broken = at(store, kind, "run 1")
    operator().execute(context(operator(), try_number=2))
    assert [record.generation for record in copies] == [2]
    with pytest.raises(Overtaken):
        store.move(broken, ERROR, by="the broken try")


def test_an_unknown_table_fails_without_retry(copies: list[TableRecord]) -> None:
    with pytest.raises(AirflowFailException, match="discovery"):
        operator(table="public.nothing").execute(context(operator()))


def test_wait_ready_ends_when_the_applier_is_done(
    store: MemoryStore, copies: list[TableRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    at(store, StateKind.SYNC_WAIT, "run 1")
    steps = iter([StateKind.CATCHUP, StateKind.SYNC_DONE, StateKind.READY])
    monkeypatch.setattr(
        "airflow_provider_pgetl.operators.readiness.time.sleep",
        lambda _: store.move(stored(store), TableState(next(steps), Lsn(9)), by="applier"),
    )
    result = operator(wait_ready=True).execute(context(operator(), try_number=2))
    assert (result["state"], copies) == ("ready", [])


def test_wait_ready_fails_with_the_reason_and_the_hint(store: MemoryStore, copies: list[TableRecord]) -> None:
    record = at(store, StateKind.SYNC_WAIT, "run 1")
    store.move(record, ERROR, by="applier")
    with pytest.raises(readiness.TableErrored, match=r"no .look"):
        readiness.wait_until_ready(store, record, timeout_s=5)


def test_wait_ready_bears_with_a_timed_error_and_gives_up_in_the_end(store: MemoryStore) -> None:
    record = at(store, StateKind.SYNC_WAIT, "run 1")
    timed = TableState(StateKind.ERRORED, reason="no", hint="look", retry=Retry.TIMED)
    store.move(record, timed, by="applier")
    with pytest.raises(TimeoutError, match="stream DAG"):
        readiness.wait_until_ready(store, record, timeout_s=0.05, poll_s=0.01)


def test_wait_ready_ends_when_the_table_begins_again(store: MemoryStore) -> None:
    record = at(store, StateKind.SYNC_WAIT, "run 1")
    store.new_generation("shop", ORDERS, by="someone")
    with pytest.raises(Overtaken):
        readiness.wait_until_ready(store, record, timeout_s=5)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (NotSupported("a type", hint="drop the column"), AirflowFailException),
        (DestinationUnreachable("spark is gone"), DestinationUnreachable),
        (Overtaken("a newer generation"), AirflowSkipException),
    ],
)
def test_errors_become_what_airflow_should_do(
    copies: list[TableRecord],
    lake: FakeDestination,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    expected: type[Exception],
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(table_copy, "copy_table", fail)
    with pytest.raises(expected) as caught:
        operator().execute(context(operator()))
    assert lake.calls[-1] == "shutdown"
    if expected is AirflowFailException:
        assert "drop the column" in str(caught.value)


def test_kill_cancels_the_destination(
    copies: list[TableRecord], lake: FakeDestination, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = operator()
    monkeypatch.setattr(table_copy, "copy_table", lambda *_, **__: task.on_kill() or pytest.fail("interrupted"))
    task.on_kill()
    with pytest.raises(pytest.fail.Exception):
        task.execute(context(task))
    assert lake.calls == ["startup", "cancel", "shutdown"]


def test_walking_the_states_is_what_the_contract_does(store: MemoryStore) -> None:
    assert walk_to_ready(store, stored(store)).state == READY
