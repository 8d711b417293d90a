"""Start a live pipeline on this machine and keep it running until Ctrl-C.

An embedded Postgres with a lively shop, an Airflow with the two example DAGs, a Spark Connect server with
Iceberg. Nothing outside the project's own folder is touched. A second start goes on where the first stopped.
"""

from __future__ import annotations

import argparse

from airflow_provider_pgetl.cli.options import add_home
from airflow_provider_pgetl.local.stack import StackInfo

HELP = "start a live pipeline on this machine"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_home(parser)
    parser.add_argument("--port", type=int, default=8080, help="Airflow's port (default: %(default)s)")
    parser.add_argument("--reset", action="store_true", help="remove everything earlier runs left and start over")
    parser.add_argument(
        "--rate", type=float, default=30.0, help="changed rows per second in the shop (default: %(default)s)"
    )
    parser.add_argument("--no-load", action="store_true", help="leave the shop quiet")
    parser.add_argument("--exit-when-ready", action="store_true", help="stop again as soon as everything is up")


def run(options: argparse.Namespace) -> int:
    """Run the demo."""
    from airflow_provider_pgetl.local.demo import Demo, DemoOptions

    return Demo(
        DemoOptions(
            home=options.home,
            port=options.port,
            rate=options.rate,
            reset=options.reset,
            with_load=not options.no_load,
            exit_when_ready=options.exit_when_ready,
        ),
        read_states=read_states,
    ).run()


def read_states(info: StackInfo) -> dict[str, str]:
    """Return table -> state from the store; nothing while it is out of reach or not made yet."""
    from airflow_provider_pgetl.replication.errors import PgEtlError
    from airflow_provider_pgetl.replication.store.postgres import PostgresStore

    store = PostgresStore(info.state_conninfo)
    try:
        tables = [table for pipeline in store.pipelines() for table in store.tables(pipeline.name)]
    except PgEtlError:
        return {}
    finally:
        store.close()
    return {str(one.table): _described(str(one.state.kind), one.state.reason) for one in tables}


def _described(state: str, reason: str | None) -> str:
    return f"{state} ({reason})" if reason else state
