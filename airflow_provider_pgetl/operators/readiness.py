"""Waiting for the applier to make a table ready."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from airflow_provider_pgetl.replication.errors import Overtaken, PgEtlError, Retry, StoreError
from airflow_provider_pgetl.replication.state import StateKind, TableState

if TYPE_CHECKING:
    from airflow_provider_pgetl.replication.progress import TableRecord
    from airflow_provider_pgetl.replication.store.base import Store

log = logging.getLogger(__name__)

POLL_S = 1.0
SAY_EVERY_S = 30.0


class TableErrored(PgEtlError):
    """The table ended in ``errored`` and nothing brings it back by itself."""


def wait_until_ready(store: Store, record: TableRecord, *, timeout_s: float, poll_s: float = POLL_S) -> None:
    """Return when the table of ``record``'s generation is ready; raise if that will not happen."""
    started = time.monotonic()
    told, told_at = None, 0.0
    while True:
        state = _look(store, record)
        now = time.monotonic()
        if state is not None and state.kind is StateKind.READY:
            log.info("%s is ready after %.1f s with the applier", record.table, now - started)
            return
        if now - started > timeout_s:
            raise TimeoutError(
                f"{record.table} is still {state.kind if state else 'unknown'} after {timeout_s:.0f} s;"
                " is the stream DAG running, and does its log show progress?"
            )
        if state is not None and (state.kind is not told or now - told_at > SAY_EVERY_S):
            log.info("waiting for the applier: %s is %s", record.table, state.kind)
            told, told_at = state.kind, now
        time.sleep(poll_s)


def _look(store: Store, record: TableRecord) -> TableState | None:
    """The table's state; None while the store is out of reach."""
    try:
        stored = store.table(record.pipeline, record.relation_id)
    except StoreError as error:
        log.warning("the table's state can't be read now: %s", error.message)
        return None
    if stored is None or stored.generation != record.generation:
        raise Overtaken(f"{record.table} has begun again, generation {record.generation} is over")
    state = stored.state
    if state.kind is StateKind.ERRORED and state.retry is not Retry.TIMED:
        raise TableErrored(f"{record.table} is errored: {state.reason}", hint=state.hint)
    return state
