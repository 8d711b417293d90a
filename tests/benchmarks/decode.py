"""`./pgetl bench decode`: frames of a real server to Arrow, nothing else.

The WAL of `bench stream` (a large transaction of inserts, then single-row update transactions, 8 columns) is read
once and written to a file. A fresh process then decodes it in batches of the size that the stream uses; only the
calls of the decoder count, in CPU time, so that a busy machine changes little. The reference is a plain decoder in
Python, message by message, of the first frames of either kind; it makes the same values.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from _wal import make_table, make_wal, scratch_server

from airflow_provider_pgetl.local.postgres import Database
from airflow_provider_pgetl.replication.decode.decoder import Decoder
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.schema import TableSchema
from airflow_provider_pgetl.replication.source import catalog
from airflow_provider_pgetl.replication.source.connection import connect
from airflow_provider_pgetl.replication.source.stream import ReplicationStream
from airflow_provider_pgetl.replication.stream import DECODE_MESSAGES

SLOT = "bench_decode"
SAMPLE = 50_000
TARGET = 500_000


def record(database: Database, end: Lsn, folder: Path) -> None:
    """Every frame up to ``end``, each with its length before it; inserts and updates in a file of their own."""
    stream = ReplicationStream(database.conninfo, SLOT, "pub", Lsn(0))
    commits, reached = 0, Lsn(0)
    files = [(folder / name).open("wb") for name in ("inserts", "updates")]
    try:
        while max(stream.received, reached) < end:
            for frame in stream.read(DECODE_MESSAGES, 1 << 24, 0.1).frames:
                files[commits > 0].write(struct.pack("<I", len(frame)))
                files[commits > 0].write(frame)
                commits += frame[25] == ord("C")
                reached = Lsn(int.from_bytes(frame[1:9], "big"))
    finally:
        stream.close()
        for file in files:
            file.close()


def batches(path: Path) -> Iterator[list[memoryview]]:
    """The frames as the stream gathers them: each an object of its own, so many at a time."""
    batch: list[memoryview] = []
    with path.open("rb") as file:
        while head := file.read(4):
            batch.append(memoryview(file.read(struct.unpack("<I", head)[0])))
            if len(batch) == DECODE_MESSAGES:
                yield batch
                batch = []
    if batch:
        yield batch


def ours(folder: Path, schema: TableSchema) -> dict[str, tuple[int, float]]:
    """Rows and CPU seconds of each file."""
    decoder = Decoder(lambda relation, lsn: schema)
    found = {}
    for name in ("inserts", "updates"):
        rows, cpu = 0, 0.0
        for batch in batches(folder / name):
            before = time.process_time()
            decoded = decoder.decode(batch)
            cpu += time.process_time() - before
            rows += sum(changes.batch.num_rows for changes in decoded.changes)
        found[name] = (rows, cpu)
    return found


def plain(folder: Path) -> dict[str, tuple[int, float]]:
    """The reference: one message after the other, the usual way."""
    found = {}
    for name in ("inserts", "updates"):
        frames = [frame for _, batch in zip(range(4), batches(folder / name), strict=False) for frame in batch][:SAMPLE]
        before = time.process_time()
        rows = _plain_decode(frames)
        found[name] = (len(rows), time.process_time() - before)
    return found


def _plain_decode(frames: list[memoryview]) -> list[tuple[Any, ...]]:
    epoch = datetime(2000, 1, 1, tzinfo=UTC)
    casts: tuple[Callable[[str], Any], ...]
    casts = (int, int, str, Decimal, datetime.fromisoformat, str, lambda text: text == "t", float)
    rows: list[tuple[Any, ...]] = []
    commit_lsn, committed_at, ordinal = 0, epoch, 0
    for frame in frames:
        data, at = bytes(frame), 26
        kind = data[25:26]
        ordinal += 1
        if kind == b"B":
            commit_lsn, micros = struct.unpack_from(">Qq", data, at)
            committed_at, ordinal = epoch + timedelta(microseconds=micros), 0
        elif kind in b"IU":
            at += 7  # relation, 'N', columns
            values: list[Any] = []
            for cast in casts:
                if data[at : at + 1] == b"t":
                    (size,) = struct.unpack_from(">I", data, at + 1)
                    values.append(cast(data[at + 5 : at + 5 + size].decode()))
                    at += 5 + size
                else:
                    values.append(None)
                    at += 1
            rows.append((kind, commit_lsn, committed_at, ordinal, *values))
    return rows


def child(folder: Path) -> None:
    """One measured round in a process of its own; prints what it found."""
    schema = TableSchema.from_json((folder / "schema.json").read_text())
    found = ours(folder, schema)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(json.dumps({"ours": found, "peak_memory_mb": peak, "plain": plain(folder)}))


def measure(folder: Path, rounds: int) -> dict[str, Any]:
    """Several rounds; the medians."""
    found = []
    for _ in range(rounds):
        command = [sys.executable, __file__, "--child", str(folder)]
        answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found.append(json.loads(answer))
        print(answer.strip(), flush=True)

    def median(who: str, *names: str) -> float:
        """Rows per CPU-second."""
        return statistics.median(
            sum(one[who][name][0] for name in names) / sum(one[who][name][1] for name in names) for one in found
        )

    everything = ("inserts", "updates")
    rate = median("ours", *everything)
    # The reference reads as many of either kind; ours read five inserts to an update: compare kind by kind.
    ratios = [median("ours", name) / median("plain", name) for name in everything]
    return {
        "name": "decode",
        "rows": sum(found[0]["ours"][name][0] for name in everything),
        "rows_per_cpu_second": round(rate),
        "insert_rows_per_cpu_second": round(median("ours", "inserts")),
        "update_transactions_per_cpu_second": round(median("ours", "updates")),
        "peak_memory_mb": max(one["peak_memory_mb"] for one in found),
        "reference": "a plain Python decoder, message by message",
        "reference_rows_per_cpu_second": round(median("plain", *everything)),
        "ratio": round(min(ratios), 1),
        "target_rows_per_cpu_second": TARGET,
        "reached": rate >= TARGET,
        "cores": os.cpu_count(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inserts", type=int, default=1_000_000)
    parser.add_argument("--updates", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="a folder to keep the frames in, for a profiler")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child)
        return
    with scratch_server() as (server, scratch):
        folder = options.keep or scratch
        database = server.create_database("bench")
        make_table(database)
        with database.connect() as connection:
            connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (SLOT,))
        with connect(database.conninfo, "bench") as source:
            schema = catalog.published_tables(source, "pub")[0].schema
        (folder / "schema.json").write_text(schema.to_json())
        print(f"writing {options.inserts} inserts and {options.updates} update transactions", flush=True)
        end = make_wal(database, server, options.inserts, options.updates)
        record(database, end, folder)
        result = measure(folder, options.rounds)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
