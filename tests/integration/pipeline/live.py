"""A pipeline that really runs, in a thread with an event loop of its own, and the question whether it is right."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import psycopg

from airflow_provider_pgetl.local.postgres import Database
from airflow_provider_pgetl.replication import MemoryDestination, MemoryStore, Pipeline, PipelineConfig
from airflow_provider_pgetl.replication.destinations.base import Destination
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.progress import TableRecord
from airflow_provider_pgetl.replication.state import StateKind
from airflow_provider_pgetl.replication.store.base import Store

WAIT_S = 60.0


class Killed(BaseException):
    """The end of a process, as far as one thread can show it: nobody catches it."""


@dataclass
class Live:
    """One source, one pipeline over it that can be stopped and started, one destination."""

    conninfo: str
    config: PipelineConfig
    store: Store = field(default_factory=MemoryStore)
    destination: Any = field(default_factory=MemoryDestination)
    pipeline: Pipeline | None = None

    def execute(self, *statements: str) -> None:
        """Each string is a transaction of its own."""
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.conninfo, autocommit=True, options="-c timezone=utc") as connection:
            return connection.execute(query.encode()).fetchall()

    def lsn(self) -> Lsn:
        return Lsn.parse(self.rows("select pg_current_wal_insert_lsn()::text")[0][0])

    def table(self, name: str) -> TableRecord:
        return next(r for r in self.store.tables(self.config.name) if name in (str(r.table), r.table.name))

    def kinds(self) -> dict[str, StateKind]:
        return {r.table.name: r.state.kind for r in self.store.tables(self.config.name)}

    @contextmanager
    def running(self, destination: Destination | None = None) -> Iterator[Pipeline]:
        """The pipeline runs; what ends it by itself is raised here."""
        pipeline = self.pipeline = Pipeline(self.config, self.store, destination or self.destination)
        started, failed = threading.Event(), []
        stop = threading.Event()

        async def run() -> None:
            try:
                await pipeline.start()
                started.set()
                waiting = asyncio.ensure_future(pipeline.wait())
                while not stop.is_set() and not waiting.done():  # noqa: ASYNC110 - it is a thread's event
                    await asyncio.sleep(0.02)
                await pipeline.shutdown()
                await waiting
            except BaseException as error:  # noqa: BLE001
                failed.append(error)
            finally:
                started.set()

        thread = threading.Thread(target=lambda: asyncio.run(run()))
        thread.start()
        started.wait(WAIT_S)
        try:
            if not failed:
                yield pipeline
        finally:
            stop.set()
            thread.join(WAIT_S)
            assert not thread.is_alive(), "the pipeline did not stop"
        if failed:
            raise failed[0]

    def wait_for(self, condition: Callable[[], bool], what: str, *, kinds: bool = True) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, f"waited for {what}: {self.kinds() if kinds else ''} {self._status()}"
            time.sleep(0.02)

    def settle(self, *, errored: int = 0) -> None:
        """Until every table is ready (but for some errored ones) and holds all that is committed now."""
        target = self.lsn()

        def settled() -> bool:
            kinds = list(self.kinds().values())
            bad = kinds.count(StateKind.ERRORED)
            status = self.pipeline.status() if self.pipeline else None
            applied = Lsn.parse(status.applied_lsn) if status else Lsn(0)
            if bad != errored or kinds.count(StateKind.READY) != len(kinds) - bad or applied < target:
                return False
            ready = {r.relation_id for r in self.store.tables(self.config.name) if r.state.kind is StateKind.READY}
            return not any(one.relation_id in ready for one in self.store.table_backlogs(self.config.name))

        self.wait_for(settled, f"all to be ready at {target}")

    def assert_equal(self, *names: str) -> None:
        """The destination's rows are the source's."""
        for name in names or [str(record.table) for record in self.store.tables(self.config.name)]:
            record = self.table(name)
            schema = self.store.latest_schema(self.config.name, record.relation_id)
            assert schema is not None
            columns = [column.name for column in schema.columns]
            listed = ", ".join('"' + column.replace('"', '""') + '"' for column in columns)
            quoted = ".".join('"' + part.replace('"', '""') + '"' for part in (record.table.schema, record.table.name))
            wanted = [dict(zip(columns, row, strict=True)) for row in self.rows(f"select {listed} from {quoted}")]
            found = self.destination.rows(str(record.table))
            assert sorted(map(_sortable, found)) == sorted(map(_sortable, wanted)), name

    def _status(self) -> object:
        return self.pipeline.status() if self.pipeline else None


def _sortable(row: dict[str, Any]) -> str:
    return repr(sorted((name, _plain(value)) for name, value in row.items()))


def _plain(value: Any) -> Any:
    """Drivers name UTC by different objects."""
    return value.astimezone(UTC) if isinstance(value, datetime) and value.tzinfo else value


def make_live(database: Database, folder: str, **options: Any) -> Live:
    """A quick pipeline over a database with a publication called ``pub``."""
    settings: dict[str, Any] = {
        "batch": {"max_fill_ms": 20},
        "apply_interval_ms": 20,
        "watch_interval_ms": 200,
        "table_error_retry_delay_ms": 200,
        **options,
    }
    config = PipelineConfig(f"p_{database.name}", "pub", folder, pg_connection=database.conninfo, **settings)
    return Live(database.conninfo, config)
