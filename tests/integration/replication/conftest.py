"""A source with a publication, a store in memory and a spool in a folder: all that the engine needs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from airflow_provider_pgetl.local.postgres import Database
from airflow_provider_pgetl.replication import failpoints
from airflow_provider_pgetl.replication.config import BatchConfig, DdlCapture, PipelineConfig
from airflow_provider_pgetl.replication.discover import discover
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.progress import TableRecord
from airflow_provider_pgetl.replication.spool.segments import Spool
from airflow_provider_pgetl.replication.store.memory import MemoryStore
from airflow_provider_pgetl.replication.stream import Memory, StreamPath


@dataclass
class Source:
    """One pipeline over one database, driven by hand."""

    conninfo: str
    config: PipelineConfig
    store: MemoryStore
    thread: threading.Thread | None = None

    def execute(self, *statements: str) -> None:
        """Each statement is a transaction of its own."""
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.conninfo, autocommit=True, options="-c timezone=utc") as connection:
            return connection.execute(query).fetchall()

    def lsn(self) -> Lsn:
        return Lsn.parse(self.rows("select pg_current_wal_lsn()::text")[0][0])

    def discover(self) -> dict[str, TableRecord]:
        return {str(r.table): r for r in discover(self.config, self.conninfo, self.store, by="test")}

    @contextmanager
    def streaming(self, owner: str = "test", memory: Memory | None = None) -> Iterator[StreamPath]:
        """The stream runs in a thread; what it raises is raised at the end."""
        lease = self.store.acquire(self.config.name, "stream", owner, 60)
        assert lease is not None
        path = StreamPath(self.config, self.conninfo, self.store, lease, memory=memory)
        stop = threading.Event()
        errors: list[BaseException] = []

        def run() -> None:
            try:
                path.run(stop)
            except BaseException as error:  # noqa: BLE001
                errors.append(error)

        self.thread = thread = threading.Thread(target=run)
        thread.start()
        try:
            yield path
        finally:
            stop.set()
            thread.join(30)
            self.store.release(lease)
        if errors:
            raise errors[0]

    def wait_ended(self) -> None:
        """Until the stream ended by itself."""
        assert self.thread is not None
        self.thread.join(30)
        assert not self.thread.is_alive()

    def spool_all(self) -> None:
        """Stream until all that was committed up to now is in the ledger."""
        target = self.lsn()
        with self.streaming():
            self.wait_spooled(target)

    def wait_spooled(self, target: Lsn, seconds: float = 30) -> None:
        deadline = time.monotonic() + seconds
        while True:
            record = self.store.pipeline(self.config.name)
            if record is not None and record.spooled_lsn >= target:
                return
            assert time.monotonic() < deadline, f"not spooled up to {target}"
            time.sleep(0.02)

    def changes(self, record: TableRecord, begin: Lsn = Lsn(0), end: Lsn = Lsn(2**62)) -> list[dict[str, Any]]:  # noqa: B008
        """The spooled changes of a table in order."""
        spool = Spool(self.config.spool_root, self.config.name, 0)
        files = self.store.files(self.config.name, record.relation_id, begin, end)
        tables = [spool.read(file) for file in files]
        rows = pa.concat_tables(tables, promote_options="default").to_pylist() if tables else []
        rows = [row for row in rows if begin <= row["_commit_lsn"] < end]
        return sorted(rows, key=lambda row: (row["_commit_lsn"], row["_ordinal"]))


@pytest.fixture
def source(database: Database, tmp_path: Path) -> Iterator[Source]:
    config = PipelineConfig(
        name=f"p_{database.name}",
        publication="pub",
        spool_root=str(tmp_path / "spool"),
        pg_connection=database.conninfo,
        ddl_capture=DdlCapture.OFF,
        batch=BatchConfig(max_fill_ms=50),
    )
    yield Source(database.conninfo, config, MemoryStore())
    failpoints.disarm()
