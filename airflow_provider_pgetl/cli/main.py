"""The `pgetl` command. Each command is a module here with HELP, `configure(parser)` and `run(options)`.

A command with TAKES_REST gets the arguments that it does not know itself as `options.rest`, in their order.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType

from airflow_provider_pgetl import __version__
from airflow_provider_pgetl.local.errors import CheckFailed, LocalStackError

COMMANDS = ("demo", "status", "check", "query", "ddl", "test", "bench")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 well, 1 not well, 2 could not begin."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    options.rest = rest
    if rest and not options.takes_rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        return int(options.run(options))
    except CheckFailed as problem:
        print(f"pgetl: {problem}", file=sys.stderr)
        return 2
    except LocalStackError as problem:
        print(f"pgetl: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pgetl",
        description="Mirror PostgreSQL tables into Apache Iceberg in near real time, from Apache Airflow.",
        epilog="Start with: pgetl demo",
    )
    parser.add_argument("--version", action="version", version=f"pgetl {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name in COMMANDS:
        module = _command(name)
        if module is None:
            continue
        command = commands.add_parser(
            name,
            help=module.HELP,
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        module.configure(command)
        command.set_defaults(run=module.run, takes_rest=getattr(module, "TAKES_REST", False))
    return parser


def _command(name: str) -> ModuleType | None:
    full_name = f"{__package__}.{name}"
    return importlib.import_module(full_name) if importlib.util.find_spec(full_name) else None


if __name__ == "__main__":
    sys.exit(main())
