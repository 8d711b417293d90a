"""Replication commands that wait for old transactions, and how many those are.

A slot becomes consistent only when every transaction that ran before has ended. That can take long, and nothing
on the source says why; so we count them on a second connection and say it.
"""

from __future__ import annotations

import logging
import select
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress

import psycopg
from psycopg import pq, sql

from airflow_provider_pgetl.replication.errors import SourceError
from airflow_provider_pgetl.replication.source.connection import Connection, connect, source_errors

log = logging.getLogger(__name__)

OnWait = Callable[[int], None]

POLL_S = 0.5
LOG_EVERY_S = 30.0
_CANCEL_TIMEOUT_S = 5.0

# Only transactions with an id are waited for, also prepared ones, in all databases. Each holds the lock of its id,
# which any role may see; pg_stat_activity hides the transactions of others.
_WRITING = """
select distinct virtualtransaction from pg_locks
where locktype = 'transactionid' and mode = 'ExclusiveLock' and granted
"""


def run_waiting(
    source: str, replication: Connection, command: sql.Composable, on_wait: OnWait | None = None
) -> tuple[str, ...]:
    """Run a replication command and return its one row, if any; meanwhile tell ``on_wait`` how many are waited for."""
    pgconn = replication.pgconn
    with ExitStack() as stack, source_errors():
        counter = _Counter(source, on_wait, stack)
        pgconn.send_query(command.as_string(replication).encode())
        try:
            _await(pgconn, counter)
        except BaseException:
            # Without this the server would go on waiting, and then make the slot for nobody.
            with suppress(psycopg.Error):
                replication.cancel_safe(timeout=_CANCEL_TIMEOUT_S)
            raise
        return _row(pgconn)


def _await(pgconn: pq.abc.PGconn, counter: _Counter) -> None:
    poll = select.poll()
    poll.register(pgconn.socket, select.POLLIN)
    while pgconn.is_busy():
        if not poll.poll(POLL_S * 1000):
            counter.tell()
        pgconn.consume_input()


def _row(pgconn: pq.abc.PGconn) -> tuple[str, ...]:
    result = pgconn.get_result()
    while pgconn.get_result() is not None:
        pass
    if result is None:
        raise psycopg.OperationalError("the server gave no answer")
    if result.status == pq.ExecStatus.COMMAND_OK:
        return ()
    if result.status != pq.ExecStatus.TUPLES_OK:
        raise psycopg.errors.error_from_result(result)
    return tuple((result.get_value(0, column) or b"").decode() for column in range(result.nfields))


class _Counter:
    """Counts transactions that were there at the last look and still are; opens its connection only if need be."""

    def __init__(self, source: str, on_wait: OnWait | None, stack: ExitStack) -> None:
        self._source = source
        self._on_wait = on_wait
        self._stack = stack
        self._connection: Connection | None = None
        self._before: frozenset[str] = frozenset()
        self._logged_at = 0.0

    def tell(self) -> None:
        try:
            waiting = self._count()
        except SourceError as error:
            # The wait itself goes on, or ends with an error of its own.
            log.debug("old transactions can't be counted: %s", error.message)
            return
        if waiting and (not self._logged_at or time.monotonic() - self._logged_at >= LOG_EVERY_S):
            log.info("waiting for %d old transactions", waiting)
            self._logged_at = time.monotonic()
        if self._on_wait is not None:
            self._on_wait(waiting)

    def _count(self) -> int:
        if self._connection is None:
            self._connection = self._stack.enter_context(closing(connect(self._source, "slot-wait")))
        with source_errors():
            rows = self._connection.execute(_WRITING).fetchall()
        running = frozenset(row[0] for row in rows)
        waiting, self._before = len(self._before & running), running
        return waiting
