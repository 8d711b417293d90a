"""The event triggers on a source that tell the stream of schema changes where they happen.

A superuser runs this once for a database; a pipeline whose role may do it does it by itself (ddl_capture).

  pgetl ddl install "host=db dbname=shop user=postgres"
  pgetl ddl sql | psql ...        what install would run, to be read first
"""

from __future__ import annotations

import argparse

from airflow_provider_pgetl.local.errors import CheckFailed
from airflow_provider_pgetl.replication.errors import PgEtlError

HELP = "install, remove or print the DDL triggers of a source"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("action", choices=("install", "uninstall", "status", "sql"))
    parser.add_argument("source", nargs="?", help="conninfo or URL of the database (not for sql)")


def run(options: argparse.Namespace) -> int:
    """Do it and say what was done."""
    from airflow_provider_pgetl.replication.source import ddl

    if options.action == "sql":
        print(ddl.script())
        return 0
    if not options.source:
        raise CheckFailed("name the source: a conninfo such as 'host=db dbname=shop user=postgres'")
    try:
        print(_on_source(options.action, options.source))
    except PgEtlError as error:
        raise CheckFailed(str(error)) from error
    return 0


def _on_source(action: str, source: str) -> str:
    from airflow_provider_pgetl.replication.source import ddl
    from airflow_provider_pgetl.replication.source.connection import connect

    with connect(source, "ddl") as connection:
        if action == "install":
            ddl.install(connection)
        elif action == "uninstall":
            ddl.uninstall(connection)
        return f"DDL triggers are {'installed' if ddl.installed(connection) else 'not installed'}"
