"""`./pgetl bench trickle`: one row a second through a whole pipeline: how late it arrives, and what waiting costs.

A row's time is that of its commit on the server to its arrival in the destination, on one clock. The writer is a
process of its own, so that the CPU is the pipeline's alone. The reference is the time that a batch may be gathered
(`batch.max_fill_ms`): what a row has to wait at least if it comes first.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from _wal import make_table, scratch_server

from airflow_provider_pgetl.local.postgres import Database
from airflow_provider_pgetl.replication import MemoryStore, NullDestination, Pipeline, PipelineConfig
from airflow_provider_pgetl.replication.events import Begin, Events

MAX_FILL_MS = 100
WRITER = """
import sys, time, psycopg
with psycopg.connect(sys.argv[1], autocommit=True) as connection:
    for number in range(int(sys.argv[2])):
        time.sleep(1)
        connection.execute("insert into orders (id, customer, status, amount) values (%s, 1, 'new', 1)", (number,))
"""


class Watched(NullDestination):
    """Notes how late each transaction came."""

    def __init__(self) -> None:
        super().__init__()
        self.late: list[float] = []

    def write_events(self, events: Events) -> None:
        now = datetime.now(UTC)
        self.late += [(now - event.committed_at).total_seconds() for event in events if isinstance(event, Begin)]


async def measure(database: Database, folder: Path, seconds: int) -> dict[str, object]:
    config = PipelineConfig(
        "trickle",
        "pub",
        str(folder / "spool"),
        {"max_fill_ms": MAX_FILL_MS},  # type: ignore[arg-type]
        pg_connection=database.conninfo,
        apply_interval_ms=20,
    )
    destination = Watched()
    pipeline = Pipeline(config, MemoryStore(), destination)
    await pipeline.start()
    await asyncio.sleep(5)
    cpu, started = time.process_time(), time.monotonic()
    command = [sys.executable, "-c", WRITER, database.conninfo, str(seconds)]
    writer = await asyncio.create_subprocess_exec(*command)
    while len(destination.late) < seconds and time.monotonic() - started < 2 * seconds + 10:  # noqa: ASYNC110
        await asyncio.sleep(0.5)
    cpu, wall = time.process_time() - cpu, time.monotonic() - started
    await writer.wait()
    await pipeline.shutdown()
    late = sorted(destination.late)
    p95 = late[int(len(late) * 0.95)] * 1000
    return {
        "name": "trickle",
        "rows": len(late),
        "p50_ms": round(late[len(late) // 2] * 1000),
        "p95_ms": round(p95),
        "max_ms": round(late[-1] * 1000),
        "cpu_percent_of_a_core": round(cpu / wall * 100, 2),
        "rows_per_cpu_second": round(len(late) / cpu, 1),
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "reference": "batch.max_fill_ms",
        "reference_ms": MAX_FILL_MS,
        "ratio": round(p95 / MAX_FILL_MS, 2),
        "cores": os.cpu_count(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60)
    options = parser.parse_args()
    with scratch_server({"synchronous_commit": "on"}) as (server, folder):
        database = server.create_database("bench")
        make_table(database)
        result = asyncio.run(measure(database, folder, options.seconds))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
