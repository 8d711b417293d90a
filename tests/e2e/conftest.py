"""One running demo for the whole floor: embedded Postgres, Airflow's four components, Spark, load, all real."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from airflow_provider_pgetl.local.places import Places, pgetl_home, project_root
from airflow_provider_pgetl.local.process import free_port
from airflow_provider_pgetl.local.stack import StackInfo
from airflow_provider_pgetl.replication.store.postgres import PostgresStore

START_S = 420.0
READY_S = 420.0
STOP_S = 120.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.e2e)


def wait_for(condition: Callable[[], object], seconds: float, what: Callable[[], str] | str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {seconds:.0f} s: {what() if callable(what) else what}")
        time.sleep(0.5)


@dataclass
class RunningDemo:
    """`pgetl demo` as a child, driven by its own commands."""

    home: Path
    port: int
    child: subprocess.Popen[bytes] | None = None
    seen: set[psutil.Process] = field(default_factory=set)

    @property
    def log(self) -> Path:
        return self.home / "demo.out"

    def start(self) -> None:
        command = [sys.executable, "-P", "-m", "airflow_provider_pgetl.cli", "demo", "--home", str(self.home)]
        before = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as out:
            self.child = subprocess.Popen(
                [*command, "--port", str(self.port)], stdout=out, stderr=out, cwd=project_root(), env=self.environment()
            )
        wait_for(lambda: "] ready" in self._said(before) or self._dead(), START_S, self._tail)
        assert not self._dead(), self._tail()

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Ask it to end; afterwards nothing that it ever started may be alive."""
        assert self.child is not None
        self.remember()
        self.child.send_signal(number)
        assert self.child.wait(STOP_S) == 0, self._tail()

    def remember(self) -> None:
        """Note every process below the demo, to look for orphans later."""
        assert self.child is not None
        self.seen |= set(psutil.Process(self.child.pid).children(recursive=True))

    def orphans(self) -> list[str]:
        return [" ".join(p.cmdline())[:200] for p in self.seen if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]

    def stack(self) -> StackInfo:
        info = StackInfo.read(Places(self.home).stack_file)
        assert info is not None
        return info

    def pgetl(self, *arguments: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-P", "-m", "airflow_provider_pgetl.cli", *arguments],
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd=project_root(),
            env=self.environment(),
            check=False,
        )

    def environment(self) -> dict[str, str]:
        return {**os.environ, "PGETL_HOME": str(self.home)}

    def store(self) -> PostgresStore:
        return PostgresStore(self.stack().state_conninfo)

    def states(self) -> dict[str, str]:
        store = self.store()
        try:
            return {str(record.table): record.state.reason or str(record.state.kind) for record in store.tables("shop")}
        finally:
            store.close()

    def generations(self) -> dict[str, int]:
        store = self.store()
        try:
            return {str(record.table): record.generation for record in store.tables("shop")}
        finally:
            store.close()

    def wait_ready(self) -> None:
        wait_for(
            lambda: (states := self.states()) and set(states.values()) == {"ready"},
            READY_S,
            lambda: json.dumps(self.states()) + self._tail(),
        )

    def _said(self, after: int) -> str:
        return self.log.read_bytes()[after:].decode(errors="replace") if self.log.exists() else ""

    def _dead(self) -> bool:
        return self.child is None or self.child.poll() is not None

    def _tail(self) -> str:
        return "\n" + self.log.read_text(errors="replace")[-4000:]


@pytest.fixture(scope="module")
def demo() -> Iterator[RunningDemo]:
    with tempfile.TemporaryDirectory(prefix="pgetl-e2e-") as folder:
        home = Path(folder)
        home.chmod(0o755)
        jars = pgetl_home() / "ivy"
        jars.mkdir(parents=True, exist_ok=True)
        (home / "ivy").symlink_to(jars)  # downloaded once, whoever comes first
        running = RunningDemo(home, free_port())
        try:
            running.start()
            yield running
        finally:
            if running.child is not None and running.child.poll() is None:
                running.child.terminate()
                running.child.wait(STOP_S)
