"""`./pgetl bench copy-null`: a wide table to Arrow over two connections, against `psql` writing to /dev/null.

2 M rows of 17 mixed columns. Ours reads its two ctid ranges under one snapshot by `table_copy.read_partition` and
drops the batches: once with two processes (as Spark's Python workers do), once with two threads of one process.
The reference is two `psql` with `COPY (SELECT *) TO STDOUT (FORMAT binary)` of the same ranges to /dev/null: it
decodes nothing. All take turns, several times; the ratio is of the medians.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

import psutil
from _wal import scratch_server

from airflow_provider_pgetl.local.postgres import Database, EmbeddedPostgres
from airflow_provider_pgetl.replication.destinations.base import Partition
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.schema import TableSchema
from airflow_provider_pgetl.replication.source import catalog, partitions
from airflow_provider_pgetl.replication.source.connection import connect
from airflow_provider_pgetl.replication.source.snapshot import open_snapshot
from airflow_provider_pgetl.replication.table_copy import read_partition

CONNECTIONS = 2
TARGET = 0.55
TABLE = """
create table wide (
    id bigint primary key, a int, b smallint, f float8, n1 numeric(18,4), n2 numeric, t text, v varchar(200),
    tz timestamptz, ts timestamp, d date, j jsonb, u uuid, bo bool, by bytea, ta text[], ia int[]
)
"""
ROWS = """
insert into wide
select i, i % 100000, i % 30000, i / 7.0, i * 1.2345, i / 3.0, 'some text of row ' || i,
       case when i % 10 = 0 then null else E'line\\n"quoted" é ' || i end,
       timestamptz '2020-01-01' + i * interval '1 second', timestamp '2020-01-01' + i * interval '1 minute',
       date '2000-01-01' + i % 9000, jsonb_build_object('id', i, 'name', 'n' || i, 'ok', i % 2 = 0),
       md5(i::text)::uuid, i % 3 = 0, decode(md5(i::text), 'hex'), array['a' || i, 'b c', null], array[i, i + 1, null]
from generate_series(1, {rows}) i
"""


@dataclass
class Run:
    """``server_cpu`` is that of the backends: they share the cores with the reader."""

    seconds: float
    cpu: float
    peak_mb: int = 0
    rows: int = 0
    server_cpu: float = 0.0


def backends(server: EmbeddedPostgres) -> set[int]:
    """The processes that serve connections, or did and were not reaped yet (these have no command line)."""
    found = [(child.pid, " ".join(child.cmdline())) for child in psutil.Process(server.pid).children()]
    return {pid for pid, title in found if not title or "127.0.0.1" in title}


def ended_cpu(server: EmbeddedPostgres, others: set[int]) -> float:
    """CPU seconds of all backends that have ended; waits until only ``others`` are left."""
    while backends(server) - others:
        time.sleep(0.02)
    times = psutil.Process(server.pid).cpu_times()
    return float(times.children_user + times.children_system)


def reference(server: EmbeddedPostgres, database: Database, parts: list[Partition]) -> Run:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.monotonic()
    children = []
    for part in parts:
        # The same ranges, each column in its own binary form.
        query = "select * " + part.select[part.select.index("from only") :]
        command = f"copy ({query}) to stdout (format binary)"
        children.append(
            subprocess.Popen(
                [server.program("psql"), "--no-psqlrc", "--quiet", "--dbname", database.conninfo, "-c", command],
                stdout=subprocess.DEVNULL,
            )
        )
    if max(child.wait() for child in children):
        raise SystemExit("psql failed")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Run(time.monotonic() - started, _cpu(after) - _cpu(before))


def _cpu(usage: resource.struct_rusage) -> float:
    return usage.ru_utime + usage.ru_stime


def ours(job: dict[str, Any], *, processes: int) -> Run:
    """All parts, in so many processes with a thread for each part; they start their clocks after the imports."""
    parts = job["parts"]
    shares = [parts[number::processes] for number in range(processes)]
    children = [
        subprocess.Popen(
            [sys.executable, __file__, "--child", json.dumps({**job, "parts": share})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for share in shares
    ]
    for child in children:
        assert child.stdout is not None
        child.stdout.readline()  # it is ready
    started = time.monotonic()
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    found = [json.loads(child.communicate()[0]) for child in children]
    if any(child.returncode for child in children):
        raise SystemExit("a reader failed")
    seconds = time.monotonic() - started
    return Run(
        seconds, sum(one["cpu"] for one in found), sum(one["peak"] for one in found), sum(one["rows"] for one in found)
    )


def child(job: dict[str, Any]) -> None:
    """One process of ours: a thread for each part."""
    schema = TableSchema.from_json(job["schema"])
    rows = [0] * len(job["parts"])

    def read(number: int) -> None:
        for batch in read_partition(job["source"], job["snapshot"], job["parts"][number], schema, Lsn(job["lsn"])):
            rows[number] += batch.num_rows

    print("ready", flush=True)
    sys.stdin.readline()
    cpu = time.process_time()
    threads = [threading.Thread(target=read, args=(number,)) for number in range(len(rows))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(json.dumps({"rows": sum(rows), "cpu": time.process_time() - cpu, "peak": peak}))


def measure(server: EmbeddedPostgres, options: argparse.Namespace) -> dict[str, Any]:
    database = server.create_database("bench")
    print(f"writing {options.rows} rows", flush=True)
    with database.connect() as connection:
        connection.execute(TABLE)
        connection.execute(ROWS.format(rows=options.rows))
        connection.execute("create publication pub for table wide")
        connection.execute("vacuum (freeze, analyze) wide")
    with connect(database.conninfo, "bench") as source:
        table = catalog.published_tables(source, "pub")[0]
    runs: dict[str, list[Run]] = {"psql": [], "processes": [], "threads": []}
    with open_snapshot(database.conninfo, [table.schema.table]) as holder:
        partitions.ROWS_PER_PARTITION = options.rows
        parts = list(partitions.plan_partitions(holder.connection, table, CONNECTIONS))
        job = {
            "source": database.conninfo,
            "snapshot": holder.snapshot,
            "parts": [part.select for part in parts],
            "schema": table.schema.to_json(),
            "lsn": int(holder.lsn),
        }
        for _ in range(options.rounds):
            turns = {
                "psql": lambda: reference(server, database, parts),
                "processes": lambda: ours(job, processes=CONNECTIONS),
                "threads": lambda: ours(job, processes=1),
            }
            for name, turn in turns.items():
                others = backends(server)
                before = ended_cpu(server, others)
                run = turn()
                run.server_cpu = ended_cpu(server, others) - before
                runs[name].append(run)
            for name, found in runs.items():
                print(f"{name:10} {found[-1]}", flush=True)
    assert all(run.rows == options.rows for name in ("processes", "threads") for run in runs[name])
    return result(runs, options.rows, len(parts))


def result(runs: dict[str, list[Run]], rows: int, parts: int) -> dict[str, Any]:
    seconds = {name: statistics.median(run.seconds for run in found) for name, found in runs.items()}
    cpu = {name: statistics.median(run.cpu for run in found) for name, found in runs.items()}
    total = {name: statistics.median(run.cpu + run.server_cpu for run in found) for name, found in runs.items()}
    ratio = seconds["psql"] / seconds["processes"]
    return {
        "name": "copy-null",
        "rows": rows,
        "partitions": parts,
        "connections": CONNECTIONS,
        "seconds": round(seconds["processes"], 2),
        "rows_per_second": round(rows / seconds["processes"]),
        "rows_per_cpu_second": round(rows / cpu["processes"]),
        "peak_memory_mb": max(run.peak_mb for run in runs["processes"]),
        "threads_seconds": round(seconds["threads"], 2),
        "threads_rows_per_second": round(rows / seconds["threads"]),
        "threads_rows_per_cpu_second": round(rows / cpu["threads"]),
        "threads_peak_memory_mb": max(run.peak_mb for run in runs["threads"]),
        "threads_ratio": round(seconds["psql"] / seconds["threads"], 2),
        "reference": "psql, COPY BINARY to /dev/null",
        "reference_seconds": round(seconds["psql"], 2),
        "ratio": round(ratio, 2),
        # Client and server together: what the ratio would be if both cores were ours alone.
        "cpu_ratio": round(total["psql"] / total["processes"], 2),
        "threads_cpu_ratio": round(total["psql"] / total["threads"], 2),
        "target_ratio": TARGET,
        "reached": ratio >= TARGET,
        "cores": os.cpu_count(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child)
        return
    with scratch_server({"shared_buffers": "1GB", "max_parallel_workers_per_gather": "0"}) as (server, _):
        found = measure(server, options)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
