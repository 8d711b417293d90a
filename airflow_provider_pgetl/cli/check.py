"""Compare source and lake of the running demo at one LSN: rows and a hash of every value, for each table.

Exit code 0: all equal; 1: a table differs; 2: it could not be checked (no stream, not ready, time is over).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from airflow_provider_pgetl.cli.options import add_home
from airflow_provider_pgetl.local.errors import CheckFailed, LocalStackError
from airflow_provider_pgetl.local.stack import StackInfo, running_stack
from airflow_provider_pgetl.replication.errors import PgEtlError
from airflow_provider_pgetl.replication.schema import TableName

HELP = "compare source and lake of the running demo at one LSN"

EQUAL, DIFFERS, UNCHECKED = 0, 1, 2


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_home(parser)
    parser.add_argument(
        "--table",
        action="append",
        default=[],
        metavar="SCHEMA.NAME",
        type=_table_name,
        help="only this one; may be repeated",
    )
    parser.add_argument("--pipeline", metavar="NAME", help="only this pipeline (default: all)")
    parser.add_argument(
        "--timeout", type=float, default=120.0, metavar="SECONDS", help="how long to wait for the stream (default: 120)"
    )


def _table_name(given: str) -> TableName:
    schema, _, name = given.rpartition(".")
    return TableName(schema or "public", name)


def run(options: argparse.Namespace) -> int:
    """Print a line for each table."""
    try:
        stack = running_stack(options.home)
    except LocalStackError as error:
        raise CheckFailed(str(error)) from error
    codes = set()
    try:
        for line, code in compare(stack, options):
            print(line, flush=True)
            codes.add(code)
    except PgEtlError as error:
        print(f"pgetl: {error}", file=sys.stderr)
        codes.add(UNCHECKED)
    if not codes:
        print("pgetl: no pipeline has tables yet; is the copy running?", file=sys.stderr)
        return UNCHECKED
    return DIFFERS if DIFFERS in codes else max(codes)


def compare(stack: StackInfo, options: argparse.Namespace) -> Iterator[tuple[str, int]]:
    """Yield a line and an exit code for each table."""
    from airflow_provider_pgetl.lakehouse.session import Sessions
    from airflow_provider_pgetl.lakehouse.verify import Check, Compared
    from airflow_provider_pgetl.replication.store.postgres import PostgresStore

    def told(compared: Compared) -> tuple[str, int]:
        name = f"{compared.table!s:<32}"
        if compared.problem is not None or compared.source is None or compared.lake is None:
            return f"{name} not checked: {compared.problem}", UNCHECKED
        source, lake = compared.source, compared.lake
        if compared.equal:
            return f"{name} equal at {compared.lsn}  {source.rows:>10} rows  {source}", EQUAL
        return (
            f"{name} DIFFERS at {compared.lsn}  source {source.rows} rows {source}  lake {lake.rows} rows {lake}",
            DIFFERS,
        )

    store = PostgresStore(stack.state_conninfo)
    sessions = Sessions(stack.spark_url, catalog=stack.catalog)
    try:
        for pipeline in store.pipelines():
            if options.pipeline in (None, pipeline.name):
                check = Check(store, sessions, stack.source_conninfo, pipeline, options.timeout)
                yield from map(told, check.run(options.table))
    finally:
        sessions.close()
        store.close()
