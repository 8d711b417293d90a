"""The states of a table, and the one function that moves it.

| state         | set by            | stored | meaning; on restart                              |
|---------------|-------------------|--------|--------------------------------------------------|
| init          | discovery, resync | yes    | known, to be copied                              |
| data_sync     | copy task         | yes    | copying; restart = new generation, copy again    |
| finished_copy | copy task         | yes    | rows are in the lake at snapshot S               |
| sync_wait     | copy task         | yes    | waits for the applier                            |
| catchup       | applier           | yes    | merging spooled changes from S to lsn, then swap |
| sync_done     | applier           | yes    | equal to the source at lsn                       |
| ready         | applier           | yes    | part of every cut                                |
| errored       | whoever failed    | yes    | reason, hint, retry; the others go on            |

A resync is a new generation that begins at ``init``; every write says which generation it speaks for.
"Paused" is a flag beside the state, not a state.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from airflow_provider_pgetl.replication.errors import IllegalTransition, Retry
from airflow_provider_pgetl.replication.lsn import Lsn


class StateKind(StrEnum):
    INIT = "init"
    DATA_SYNC = "data_sync"
    FINISHED_COPY = "finished_copy"
    SYNC_WAIT = "sync_wait"
    CATCHUP = "catchup"
    SYNC_DONE = "sync_done"
    READY = "ready"
    ERRORED = "errored"


@dataclass(frozen=True, slots=True)
class TableState:
    """A state with what belongs to it: an LSN (snapshot S of a copy, target of a catch-up), or an error."""

    kind: StateKind
    lsn: Lsn | None = None
    reason: str | None = None
    hint: str | None = None
    retry: Retry | None = None
    retry_at: datetime | None = None

    @property
    def applying(self) -> bool:
        """Whether the applier looks after the table."""
        return self.kind in _APPLYING


INIT = TableState(StateKind.INIT)
READY = TableState(StateKind.READY)

_APPLYING = frozenset({StateKind.SYNC_WAIT, StateKind.CATCHUP, StateKind.SYNC_DONE, StateKind.READY})
_NEEDS_LSN = frozenset({StateKind.FINISHED_COPY, StateKind.SYNC_WAIT, StateKind.CATCHUP, StateKind.SYNC_DONE})

# From each state to the states that may follow it within one generation. ``errored`` may follow any.
_MOVES: dict[StateKind, frozenset[StateKind]] = {
    StateKind.INIT: frozenset({StateKind.DATA_SYNC}),
    StateKind.DATA_SYNC: frozenset({StateKind.FINISHED_COPY}),
    StateKind.FINISHED_COPY: frozenset({StateKind.SYNC_WAIT}),
    StateKind.SYNC_WAIT: frozenset({StateKind.CATCHUP}),
    StateKind.CATCHUP: frozenset({StateKind.CATCHUP, StateKind.SYNC_DONE}),
    StateKind.SYNC_DONE: frozenset({StateKind.READY}),
    StateKind.READY: frozenset(),
    # A rollback returns to the state before the error; which one that was, the history knows.
    StateKind.ERRORED: frozenset(StateKind) - {StateKind.ERRORED},
}


def transition(current: TableState, to: TableState) -> TableState:
    """The state after the move, or ``IllegalTransition``."""
    if to.kind in _NEEDS_LSN and to.lsn is None:
        raise IllegalTransition(f"{to.kind} needs an LSN")
    if to.kind is StateKind.ERRORED:
        if not (to.reason and to.hint and to.retry):
            raise IllegalTransition("errored needs a reason, a hint and a retry policy")
        return to
    if to.kind not in _MOVES[current.kind]:
        raise IllegalTransition(f"no way from {current.kind} to {to.kind}")
    return to
