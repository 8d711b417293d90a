"""Run Spark SQL on the lake of the running demo and print the result.

The catalog `lake` is the default, so a table of the shop is just `public.orders`. Examples:

  pgetl query "show tables in public"
  pgetl query "select status, count(*) from public.orders group by status"
  pgetl query "select committed_at, operation, summary from public.orders.snapshots"
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from airflow_provider_pgetl.cli.options import add_home
from airflow_provider_pgetl.local.stack import running_stack

HELP = "run Spark SQL on the lake of the running demo"
WIDEST = 60


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_home(parser)
    parser.add_argument("sql", help="one statement of Spark SQL")
    parser.add_argument("--limit", type=int, default=100, help="most rows to print (default: %(default)s)")
    parser.add_argument("--wide", action="store_true", help=f"don't shorten values beyond {WIDEST} characters")


def run(options: argparse.Namespace) -> int:
    """Run the statement; one line if it does not work."""
    info = running_stack(options.home)
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    try:
        session = SparkSession.builder.remote(info.spark_url).create()
        session.sql(f"use {info.catalog}")
        found = session.sql(options.sql)
        rows = found.limit(options.limit + 1).collect() if found.columns else []
        session.stop()
    except PySparkException as error:
        print(f"pgetl: {_first_line(error)}", file=sys.stderr)
        return 1
    print(table(found.columns, rows[: options.limit], widest=None if options.wide else WIDEST))
    more = len(rows) > options.limit
    print(f"the first {options.limit} rows, --limit shows more" if more else f"{len(rows)} rows")
    return 0


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, widest: int | None) -> str:
    """Return rows as text in columns, numbers to the right."""
    cells = [[_cell(value, widest) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    right = [bool(rows) and all(_is_number(row[at]) for row in rows) for at in range(len(columns))]

    def line(values: Sequence[str]) -> str:
        padded = [
            value.rjust(width) if to_right else value.ljust(width)
            for value, width, to_right in zip(values, widths, right, strict=True)
        ]
        return "  ".join(padded).rstrip()

    return "\n".join([line(columns), "  ".join("-" * width for width in widths), *map(line, cells)])


def _cell(value: Any, widest: int | None) -> str:
    text = "NULL" if value is None else str(value).replace("\n", "\\n")
    return text if widest is None or len(text) <= widest else text[: widest - 1] + "…"


def _is_number(value: Any) -> bool:
    from decimal import Decimal

    return value is None or (isinstance(value, int | float | Decimal) and not isinstance(value, bool))
