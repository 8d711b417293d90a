"""Keeps the processes of a local stack running and ends them.

Start: one after the other, each must be healthy before the next that needs it; what takes long says so.
While running: a component that ended is started again, with a growing pause.
Stop: in ranks, lowest first, the members of a rank together; then everything that is still below us, for a
component may leave children behind. Ctrl-C and SIGTERM only set a flag that every wait looks at; a second one
skips the grace.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from airflow_provider_pgetl.local import process
from airflow_provider_pgetl.local.errors import StartFailed

HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
POLL = 0.1
SAY_EVERY = 10.0
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0
# Who lived this long has recovered: its next end is a new story.
STEADY_AFTER = 60.0


class StopRequested(Exception):
    """Somebody asked us to end while we were starting or waiting."""


@dataclass(frozen=True, slots=True)
class Component:
    """One process: how it is started, when it is healthy, how it is ended."""

    name: str
    launch: Callable[[], subprocess.Popen[bytes]]
    healthy: Callable[[], bool]
    log: Path
    stop_rank: int
    stop_signal: int = signal.SIGTERM
    stop_timeout: float = 15.0
    start_timeout: float = 180.0


@dataclass(slots=True)
class _Running:
    component: Component
    child: subprocess.Popen[bytes]
    started: float
    failures: int = 0
    restart_at: float | None = None
    healthy: bool = False


@dataclass(slots=True)
class Supervisor:
    """The parent of all components."""

    say: Callable[[str], None]
    stopping: bool = False
    _impatient: bool = False
    _before: frozenset[int] = frozenset()
    _running: dict[str, _Running] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """From now on orphaned grandchildren come to us; children from before are none of our business."""
        self._before = process.children()
        process.adopt_orphans()

    # Signals

    def handle_signals(self) -> None:
        """Let SIGINT and SIGTERM (and a closed terminal) ask for an orderly end."""
        for number in HANDLED:
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._impatient = self.stopping
        self.stopping = True

    def raise_if_stopping(self) -> None:
        """Leave what we are doing if somebody asked us to end."""
        if self.stopping:
            raise StopRequested

    # Start

    def start(self, *components: Component) -> None:
        """Start the components at once and return when all of them are healthy."""
        self.launch(*components)
        self.wait(*components)

    def launch(self, *components: Component) -> None:
        """Start the components without waiting for them."""
        for component in components:
            self.raise_if_stopping()
            self._launch(component)

    def wait(self, *components: Component) -> None:
        """Return when all of these components, launched before, are healthy."""
        for component in components:
            self._wait_healthy(self._running[component.name])

    def run_to_end(self, name: str, command: Sequence[str], *, log: Path, env: dict[str, str]) -> None:
        """Run a command that has to succeed before the next step."""
        started = time.monotonic()
        child = process.spawn(command, log=log, env=env)
        try:
            self._wait(name, lambda: child.poll() is not None, timeout=600, log=log, started=started)
        finally:
            process.stop_process(child, signal.SIGTERM, timeout=5)
        if child.returncode != 0:
            raise StartFailed(f"{name} failed with exit code {child.returncode}, see {log}")

    def _launch(self, component: Component, failures: int = 0) -> None:
        child = component.launch()
        self._running[component.name] = _Running(component, child, time.monotonic(), failures)

    def _wait_healthy(self, running: _Running) -> None:
        component, child = running.component, running.child
        self._wait(
            component.name,
            lambda: child.poll() is not None or component.healthy(),
            timeout=component.start_timeout,
            log=component.log,
            started=running.started,
        )
        if child.poll() is not None:
            tail = process.last_lines(component.log)
            raise StartFailed(f"{component.name} {_how_it_ended(child)} ({component.log}): {tail}")
        running.healthy = True
        self.say(f"{component.name} is up ({time.monotonic() - running.started:.1f} s)")

    def _wait(self, name: str, done: Callable[[], bool], *, timeout: float, log: Path, started: float) -> None:
        said = time.monotonic()
        while not done():
            self.raise_if_stopping()
            now = time.monotonic()
            if now - started > timeout:
                raise StartFailed(f"{name} is not up after {timeout:.0f} s, see {log}")
            if now - said >= SAY_EVERY:
                self.say(f"{name}: still waiting after {now - started:.0f} s (log: {log})")
                said = now
            time.sleep(POLL)

    # While running

    def pids(self) -> dict[str, int]:
        """Return the process id of each component."""
        return {name: running.child.pid for name, running in self._running.items()}

    def is_healthy(self) -> bool:
        """Tell whether every component runs and was healthy since its last start."""
        return all(one.healthy and one.child.poll() is None for one in self._running.values())

    def watch(self, *, every: float = 0.5, tick: Callable[[], None] | None = None) -> None:
        """Keep everything running until somebody asks us to end; call `tick` now and then."""
        while not self.stopping:
            self.check_once()
            if tick is not None:
                tick()
            process.wait_until(lambda: self.stopping, timeout=every, pause=POLL)

    def check_once(self) -> None:
        """Look at each component once: plan, do or report a restart."""
        for running in list(self._running.values()):
            if running.restart_at is not None:
                self._restart_when_due(running)
            elif running.child.poll() is not None:
                self._plan_restart(running)
            elif not running.healthy and running.component.healthy():
                running.healthy = True
                self.say(f"{running.component.name} is up again ({_since(running.started)})")
        process.reap_adopted({*self._before, *self.pids().values()})

    def _plan_restart(self, running: _Running) -> None:
        # Its children must not go on without it: an Airflow task runner would work beside its successor.
        process.signal_group(running.child, signal.SIGKILL)
        steady = time.monotonic() - running.started > STEADY_AFTER
        running.failures = 0 if steady else running.failures
        pause = min(FIRST_PAUSE * 2**running.failures, LONGEST_PAUSE)
        running.restart_at = time.monotonic() + pause
        self.say(
            f"{running.component.name} {_how_it_ended(running.child)}; "
            f"starting it again in {pause:.0f} s (log: {running.component.log})"
        )

    def _restart_when_due(self, running: _Running) -> None:
        if running.restart_at is None or time.monotonic() < running.restart_at:
            return
        self._launch(running.component, running.failures + 1)

    # Stop

    def stop_all(self) -> None:
        """End every component, rank by rank, and then whatever is still below us."""
        self.stopping = True
        ranks = sorted({one.component.stop_rank for one in self._running.values()})
        for rank in ranks:
            self._stop_rank([one for one in self._running.values() if one.component.stop_rank == rank])
        self._running.clear()
        left = process.end_children(spare=self._before, grace=0.0 if self._impatient else 3.0)
        if left:
            self.say(f"ended {left} processes that were left over")

    def _stop_rank(self, members: Sequence[_Running]) -> None:
        for one in members:
            if one.child.poll() is None:
                one.child.send_signal(one.component.stop_signal)
        for one in members:
            deadline = time.monotonic() + one.component.stop_timeout
            while one.child.poll() is None and time.monotonic() < deadline and not self._impatient:
                time.sleep(POLL)
            if one.child.poll() is None:
                self.say(f"{one.component.name} did not end by itself; killing it")
            process.signal_group(one.child, signal.SIGKILL)
            one.child.wait()


def _how_it_ended(child: subprocess.Popen[bytes]) -> str:
    code = child.returncode
    if code is None or code >= 0:
        return f"ended with exit code {code}"
    return f"was ended by {signal.Signals(-code).name}"


def _since(moment: float) -> str:
    return f"{time.monotonic() - moment:.1f} s"
