"""Show where the tables of the running demo stand: state, position, lag, spool and the latest cut."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from typing import Any

from airflow_provider_pgetl.cli.options import add_home
from airflow_provider_pgetl.local.errors import LocalStackError
from airflow_provider_pgetl.local.stack import running_stack
from airflow_provider_pgetl.replication.errors import PgEtlError
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.progress import PipelineRecord, TableRecord
from airflow_provider_pgetl.replication.store.base import Store
from airflow_provider_pgetl.replication.store.postgres import PostgresStore

HELP = "show the tables of the running demo"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_home(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(options: argparse.Namespace) -> int:
    """Print; 0 if every table is ready, else 1."""
    stack = running_stack(options.home)
    store = PostgresStore(stack.state_conninfo)
    try:
        pipelines = [describe(store, pipeline, _now(stack.source_conninfo)) for pipeline in store.pipelines()]
    except PgEtlError as error:
        raise LocalStackError(str(error)) from error
    finally:
        store.close()
    if options.json:
        print(json.dumps(pipelines, indent=2, default=str))
    else:
        print("\n\n".join(map(as_text, pipelines)) or "no pipeline is registered yet; is shop_copy running?")
    states = [table["state"] for pipeline in pipelines for table in pipeline["tables"]]
    return 0 if states and all(state == "ready" for state in states) else 1


def describe(store: Store, pipeline: PipelineRecord, now: Lsn | None) -> dict[str, Any]:
    """A pipeline and its tables in primitives."""
    files, size = store.backlog(pipeline.name)
    cut = store.latest_cut(pipeline.name)
    return {
        "pipeline": pipeline.name,
        "publication": pipeline.publication,
        "slot": pipeline.slot,
        "source_lsn": str(now) if now is not None else None,
        "spooled_lsn": str(pipeline.spooled_lsn),
        "backlog_files": files,
        "backlog_bytes": size,
        "cut": None if cut is None else {"id": cut.id, "lsn": str(cut.lsn), "at": cut.created_at},
        "stream": store.latest_sample(pipeline.name),
        "tables": [_table(record, now) for record in store.tables(pipeline.name)],
    }


def _table(record: TableRecord, now: Lsn | None) -> dict[str, Any]:
    applied = record.applied_lsn
    return {
        "table": str(record.table),
        "state": str(record.state.kind),
        "generation": record.generation,
        "copied_rows": record.copied_rows,
        "applied_lsn": None if applied is None else str(applied),
        "lag_bytes": None if applied is None or now is None else max(0, now - applied),
        "reason": record.state.reason,
        "hint": record.state.hint,
    }


def _now(conninfo: str) -> Lsn | None:
    """The end of the source's WAL; None while it is out of reach."""
    import psycopg

    try:
        with psycopg.connect(conninfo, connect_timeout=5) as connection:
            row = connection.execute("select pg_current_wal_lsn()::text").fetchone()
    except psycopg.Error:
        return None
    return Lsn.parse(row[0]) if row else None


def as_text(pipeline: dict[str, Any]) -> str:
    """For people."""
    cut, stream = pipeline["cut"], pipeline["stream"] or {}
    latest = f"{cut['id']} at {cut['lsn']}" if cut else "none yet"
    head = (
        f"pipeline {pipeline['pipeline']}: publication {pipeline['publication']}, slot {pipeline['slot']}\n"
        f"  source at {pipeline['source_lsn'] or 'unknown'}, spooled to {pipeline['spooled_lsn']},"
        f" {pipeline['backlog_files']} files ({_size(pipeline['backlog_bytes'])}) wait in the spool\n"
        f"  latest cut: {latest}"
        f"; behind: {stream.get('behind_seconds', 'unknown')} s\n"
    )
    rows = [
        (
            table["table"],
            table["state"],
            str(table["generation"]),
            "-" if table["copied_rows"] is None else str(table["copied_rows"]),
            table["applied_lsn"] or "-",
            "-" if table["lag_bytes"] is None else _size(table["lag_bytes"]),
        )
        for table in pipeline["tables"]
    ]
    errors = [
        f"  {table['table']}: {table['reason']}\n    what to do: {table['hint']}"
        for table in pipeline["tables"]
        if table["reason"]
    ]
    titles = ("table", "state", "generation", "copied", "applied to", "lag")
    return "\n".join([head, *_columns([titles, *rows]), *errors])


def _columns(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _size(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
