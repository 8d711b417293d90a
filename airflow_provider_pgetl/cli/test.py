"""Run all checks of the project: ruff, mypy, and pytest with real servers that the tests start themselves.

All other arguments go to pytest, for example:

  pgetl test tests/unit
  pgetl test -k restart -x
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

from airflow_provider_pgetl.local.errors import CheckFailed
from airflow_provider_pgetl.local.places import pgetl_home, project_root

HELP = "run ruff, mypy and all tests"
TAKES_REST = True


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--no-lint", action="store_true", help="only the tests, without ruff and mypy")


def run(options: argparse.Namespace) -> int:
    """Run every step, also after one failed; return 1 if any did or if no test ran."""
    root = project_root()
    if not (root / "tests").is_dir():
        raise CheckFailed(f"there are no tests in {root}; run this from a checkout of the project")
    report = pgetl_home() / "test" / "report.xml"
    report.parent.mkdir(parents=True, exist_ok=True)
    report.unlink(missing_ok=True)
    lint = [] if options.no_lint else [["ruff", "check"], ["ruff", "format", "--check"], ["mypy"]]
    failed = [" ".join(step) for step in lint if not _step(step)]
    if not _step(["pytest", f"--junit-xml={report}", *options.rest]):
        failed.append("pytest")
    failed += missing_tests(report)
    print(f"pgetl: failed: {', '.join(failed)}" if failed else "pgetl: all checks passed", flush=True)
    return 1 if failed else 0


def _step(command: list[str]) -> bool:
    begun = time.monotonic()
    print(f"pgetl: {' '.join(command[:3])}", flush=True)
    code = subprocess.run([sys.executable, "-m", *command], cwd=project_root(), check=False).returncode
    print(f"pgetl: {command[0]} ended with {code} after {time.monotonic() - begun:.0f} s", flush=True)
    return code == 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How many tests ran and how many were skipped (an expected failure did run)."""

    ran: int
    skipped: int


def read_outcome(report: Path) -> Outcome:
    """Read pytest's JUnit report, which is our own file."""
    cases = list(ET.parse(report).iter("testcase"))  # noqa: S314
    skipped = sum(any(mark.get("type") == "pytest.skip" for mark in case.iter("skipped")) for case in cases)
    return Outcome(ran=len(cases) - skipped, skipped=skipped)


def missing_tests(report: Path) -> list[str]:
    """Tests that did not run prove nothing: none at all is a failure, in CI a single one is."""
    if not report.exists():
        return ["no test report"]
    outcome = read_outcome(report)
    if outcome.ran == 0:
        return ["no test ran"]
    if outcome.skipped and os.environ.get("CI"):
        return [f"{outcome.skipped} tests were skipped, which CI does not allow"]
    return []
