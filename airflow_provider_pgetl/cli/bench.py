"""Run the benchmarks in tests/benchmarks. Each ends with one line of JSON: name, figures, ratio.

All other arguments go to the benchmark, for example:

  pgetl bench stream --rounds 3
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from airflow_provider_pgetl.local.errors import CheckFailed
from airflow_provider_pgetl.local.places import project_root

HELP = "run the benchmarks"
TAKES_REST = True


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("name", nargs="?", help="one benchmark (default: all)")
    parser.add_argument("--list", action="store_true", help="only print their names")


def run(options: argparse.Namespace) -> int:
    """Run one or all benchmarks; 1 if one fails or does not end with its JSON line."""
    known = benchmarks(project_root() / "tests" / "benchmarks")
    if options.list:
        print("\n".join(known))
        return 0
    if options.name and options.name not in known:
        raise CheckFailed(f"no benchmark named {options.name!r}; there are: {', '.join(known) or 'none'}")
    chosen = [options.name] if options.name else list(known)
    if not chosen:
        raise CheckFailed("there are no benchmarks in tests/benchmarks")
    failed = [name for name in chosen if not run_one(known[name], options.rest)]
    for name in failed:
        print(f"pgetl: benchmark {name} failed", file=sys.stderr)
    return 1 if failed else 0


def benchmarks(folder: Path) -> dict[str, Path]:
    """Return name -> file; files that begin with an underscore are shared parts."""
    return {path.stem: path for path in sorted(folder.glob("*.py")) if not path.stem.startswith(("_", "conftest"))}


def run_one(path: Path, arguments: list[str]) -> bool:
    """Run one benchmark, showing what it prints; tell whether it ended well and with its JSON line."""
    last = ""
    command = [sys.executable, str(path), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=project_root()) as child:
        for line in child.stdout or ():
            print(line, end="", flush=True)
            last = line.strip() or last
    return child.returncode == 0 and _is_result(last)


def _is_result(line: str) -> bool:
    try:
        result = json.loads(line)
    except ValueError:
        return False
    return isinstance(result, dict) and "name" in result
