"""`./pgetl bench stream`: drain, decode and durably spool a WAL, against `pg_recvlogical` on the same WAL.

The WAL: a large transaction of inserts, then many single-row update transactions, of a table of 8 columns. Both
readers get a slot of their own that was made before. `pg_recvlogical` (protocol 1) writes to /dev/null and
decodes nothing; ours decodes, writes Parquet and registers it in a store. The readers take turns, several times;
the ratio is of the medians. The event loop of the process is watched while ours runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from _wal import make_table, make_wal, scratch_server

from airflow_provider_pgetl.local.postgres import Database, EmbeddedPostgres
from airflow_provider_pgetl.replication.config import PipelineConfig
from airflow_provider_pgetl.replication.discover import discover
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.store.memory import MemoryStore
from airflow_provider_pgetl.replication.stream import StreamPath


@dataclass
class Run:
    seconds: float
    cpu: float
    loop_lag_p99_ms: float = 0.0
    messages: int = 0


def reference(database: Database, server: EmbeddedPostgres, slot: str, end: Lsn) -> Run:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.monotonic()
    subprocess.run(
        [
            server.program("pg_recvlogical"),
            "--dbname",
            database.conninfo,
            "--slot",
            slot,
            "--start",
            f"--endpos={end}",
            "--no-loop",
            "-o",
            "proto_version=1",
            "-o",
            "publication_names=pub",
            "-f",
            "/dev/null",
        ],
        check=True,
        capture_output=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Run(time.monotonic() - started, cpu)


async def ours(database: Database, slot: str, end: Lsn, folder: Path) -> Run:
    config = PipelineConfig(name=slot.removeprefix("pgetl_"), publication="pub", spool_root=str(folder))
    store = MemoryStore()
    discover(config, database.conninfo, store, by="bench")
    lease = store.acquire(config.name, "stream", "bench", 3600)
    assert lease is not None
    path = StreamPath(config, database.conninfo, store, lease)
    stop = threading.Event()
    lags: list[float] = []
    cpu, started = time.process_time(), time.monotonic()
    running = asyncio.get_running_loop().run_in_executor(None, path.run, stop)
    while path.stats.spooled_lsn < end:
        tick = time.perf_counter()
        await asyncio.sleep(0.005)
        lags.append(time.perf_counter() - tick - 0.005)
        if running.done():
            running.result()
    seconds, cpu = time.monotonic() - started, time.process_time() - cpu
    stop.set()
    await running
    lags.sort()
    return Run(seconds, cpu, lags[int(len(lags) * 0.99)] * 1000, path.stats.rows + 2 * path.stats.transactions)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inserts", type=int, default=1_000_000)
    parser.add_argument("--updates", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    with scratch_server() as (server, folder):
        result = measure(server, folder, options)
    print(json.dumps(result))


def measure(server: EmbeddedPostgres, folder: Path, options: argparse.Namespace) -> dict[str, object]:
    database = server.create_database("bench")
    make_table(database)
    with database.connect() as connection:
        for number in range(options.rounds):
            for slot in (f"ref_{number}", f"pgetl_bench_{number}"):
                connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
    print(f"writing {options.inserts} inserts and {options.updates} update transactions", flush=True)
    end = make_wal(database, server, options.inserts, options.updates)
    references, runs = [], []
    for number in range(options.rounds):
        references.append(reference(database, server, f"ref_{number}", end))
        print(f"pg_recvlogical {references[-1]}", flush=True)
        runs.append(asyncio.run(ours(database, f"pgetl_bench_{number}", end, folder / f"spool{number}")))
        print(f"pgetl          {runs[-1]}", flush=True)
    seconds = statistics.median(run.seconds for run in runs)
    cpu = statistics.median(run.cpu for run in runs)
    wanted = statistics.median(run.seconds for run in references)
    messages = runs[0].messages
    return {
        "name": "stream",
        "messages": messages,
        "seconds": round(seconds, 2),
        "messages_per_second": round(messages / seconds),
        "cpu_seconds_per_million": round(cpu / messages * 1e6, 2),
        "messages_per_cpu_second": round(messages / cpu),
        "loop_lag_p99_ms": round(max(run.loop_lag_p99_ms for run in runs), 1),
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "reference": "pg_recvlogical",
        "reference_seconds": round(wanted, 2),
        "ratio": round(wanted / seconds, 2),
        "cores": os.cpu_count(),
    }


if __name__ == "__main__":
    main()
