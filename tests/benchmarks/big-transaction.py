"""`./pgetl bench big-transaction`: one transaction of many rows: how much memory the stream takes for it.

Drained, decoded and durably spooled in pieces while it arrives; it enters the ledger as a whole. The growth is of
the process's resident memory, from when everything is loaded and connected to its peak. `pg_recvlogical` reads the
same WAL for the time.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from pathlib import Path

from _wal import INSERT, make_table, scratch_server
from stream import reference

from airflow_provider_pgetl.local.postgres import Database
from airflow_provider_pgetl.replication.config import PipelineConfig
from airflow_provider_pgetl.replication.discover import discover
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.store.memory import MemoryStore
from airflow_provider_pgetl.replication.stream import StreamPath


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


class Peak(threading.Thread):
    """The most resident memory seen."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.over = threading.Event()
        self.mb = resident_mb()

    def run(self) -> None:
        while not self.over.wait(0.02):
            self.mb = max(self.mb, resident_mb())


def spool(database: Database, folder: Path, rows: int) -> dict[str, float]:
    config = PipelineConfig("big", "pub", str(folder / "spool"))
    store = MemoryStore()
    discover(config, database.conninfo, store, by="bench")
    lease = store.acquire(config.name, "stream", "bench", 36000)
    assert lease is not None
    path = StreamPath(config, database.conninfo, store, lease)
    stop = threading.Event()
    thread = threading.Thread(target=path.run, args=(stop,))
    thread.start()
    path.began.wait(60)
    with database.connect() as connection:
        # A first row, so that everything is loaded before the memory is looked at.
        connection.execute("insert into orders (id, customer, status, amount) values (0, 0, 'first', 0)")
        while path.stats.rows == 0:
            time.sleep(0.05)
        before = resident_mb()
        peak = Peak()
        peak.start()
        print(f"writing {rows} rows in one transaction", flush=True)
        connection.execute(INSERT.format(inserts=rows))
        row = connection.execute("select pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None
    cpu, started = time.process_time(), time.monotonic()
    end = Lsn.parse(str(row[0]))
    while path.stats.spooled_lsn < end and thread.is_alive():
        time.sleep(0.1)
    result = {
        "seconds": time.monotonic() - started,
        "cpu": time.process_time() - cpu,
        "before": before,
        "peak": peak.mb,
        "rows": path.stats.rows,
        "end": end,
    }
    peak.over.set()
    stop.set()
    thread.join()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000_000)
    options = parser.parse_args()
    with scratch_server({"max_wal_size": "20GB"}) as (server, folder):
        database = server.create_database("bench")
        make_table(database)
        with database.connect() as connection:
            connection.execute("select pg_create_logical_replication_slot('ref', 'pgoutput')")
        ours = spool(database, folder, options.rows)
        wanted = reference(database, server, "ref", Lsn(int(ours["end"])))
    print(
        json.dumps(
            {
                "name": "big-transaction",
                "rows": ours["rows"] - 1,
                "seconds_after_commit": round(ours["seconds"], 1),
                "rows_per_cpu_second": round(ours["rows"] / ours["cpu"]),
                "memory_before_mb": round(ours["before"]),
                "peak_memory_mb": round(ours["peak"]),
                "memory_growth_mb": round(ours["peak"] - ours["before"]),
                "reference": "pg_recvlogical",
                "reference_seconds": round(wanted.seconds, 1),
                "ratio": round(wanted.seconds / ours["seconds"], 2),
                "cores": os.cpu_count(),
            }
        )
    )


if __name__ == "__main__":
    main()
