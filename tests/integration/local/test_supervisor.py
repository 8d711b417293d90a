"""The supervisor with toy processes: small Python programs that note what happens to them in a shared file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from airflow_provider_pgetl.local import process
from airflow_provider_pgetl.local.errors import StartFailed
from airflow_provider_pgetl.local.supervisor import HANDLED, Component, Supervisor

# Notes its start and its end; with a child of its own when asked, in a session of its own (as daemons are).
TOY = """
import os, signal, subprocess, sys, time
name, journal, child = sys.argv[1:4]
def note(what):
    with open(journal, "a") as file:
        file.write(f"{what} {name} {os.getpid()}\\n")
def end(*_):
    note("end")
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
if child == "child":
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
note("start")
while True:
    time.sleep(0.05)
"""


class Toys:
    """Makes components and reads their journal."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.journal = folder / "journal"

    def component(self, name: str, rank: int, *, child: bool = False, program: str = TOY) -> Component:
        log = self.folder / f"{name}.log"
        command = [sys.executable, "-c", program, name, self.journal, "child" if child else "-"]
        return Component(
            name=name,
            launch=lambda: process.spawn(command, log=log),
            healthy=lambda: f"start {name} " in self.text(),
            log=log,
            stop_rank=rank,
            stop_timeout=5,
            start_timeout=20,
        )

    def text(self) -> str:
        return self.journal.read_text() if self.journal.exists() else ""

    def order(self, what: str) -> list[str]:
        return [line.split()[1] for line in self.text().splitlines() if line.startswith(what)]


@pytest.fixture
def toys(tmp_path: Path) -> Toys:
    return Toys(tmp_path)


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    one = Supervisor(say=lambda line: None)
    yield one
    one.stop_all()


def test_stops_rank_by_rank(toys: Toys, supervisor: Supervisor) -> None:
    supervisor.start(toys.component("last", 9))
    supervisor.start(toys.component("middle", 5), toys.component("first", 1))
    supervisor.stop_all()
    assert toys.order("end") == ["first", "middle", "last"]


def test_dead_child_is_started_again_and_told(toys: Toys, supervisor: Supervisor) -> None:
    said: list[str] = []
    supervisor.say = said.append
    supervisor.start(toys.component("toy", 1))
    os.kill(supervisor.pids()["toy"], signal.SIGKILL)

    def started_twice() -> bool:
        supervisor.check_once()
        return toys.order("start") == ["toy", "toy"] and supervisor.is_healthy()

    assert process.wait_until(started_twice, timeout=20)
    assert any(line.startswith("toy was ended by SIGKILL; starting it again in 1 s") for line in said)


def test_pause_grows_when_it_keeps_ending(toys: Toys, supervisor: Supervisor) -> None:
    said: list[str] = []
    supervisor.say = said.append
    supervisor.start(toys.component("toy", 1))
    for _ in range(2):
        os.kill(supervisor.pids()["toy"], signal.SIGKILL)
        known = len(toys.order("start"))

        def again(known: int = known) -> bool:
            supervisor.check_once()
            return len(toys.order("start")) > known

        assert process.wait_until(again, timeout=20)
    pauses = [line.split("again in ")[1].split(" s")[0] for line in said if "again in" in line]
    assert pauses == ["1", "2"]


def test_children_of_a_killed_component_end_with_the_stack(toys: Toys, supervisor: Supervisor) -> None:
    supervisor.start(toys.component("parent", 1, child=True))
    parent = supervisor.pids()["parent"]
    family = process.descendants(parent)
    assert len(family) == 1
    os.kill(parent, signal.SIGKILL)
    supervisor.stop_all()
    assert not [one for one in family if process.alive(one)]


def test_stubborn_component_is_killed(toys: Toys, supervisor: Supervisor) -> None:
    stubborn = TOY.replace("signal.signal(signal.SIGTERM, end)", "signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    component = toys.component("stubborn", 1, program=stubborn)
    said: list[str] = []
    supervisor.say = said.append
    supervisor.start(component)
    pid = supervisor.pids()["stubborn"]
    supervisor.stop_all()
    assert not psutil.pid_exists(pid)
    assert "stubborn did not end by itself; killing it" in said


def test_second_signal_skips_the_grace(toys: Toys, supervisor: Supervisor) -> None:
    stubborn = TOY.replace("signal.signal(signal.SIGTERM, end)", "signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    supervisor.start(toys.component("stubborn", 1, program=stubborn))
    pid = supervisor.pids()["stubborn"]
    before = [signal.getsignal(number) for number in HANDLED]
    try:
        supervisor.handle_signals()
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        begun = time.monotonic()
        supervisor.stop_all()
    finally:
        for number, handler in zip(HANDLED, before, strict=True):
            signal.signal(number, handler)
    assert time.monotonic() - begun < 4  # its grace is 5 s
    assert not psutil.pid_exists(pid)


def test_component_that_ends_at_once_is_a_failed_start(toys: Toys, supervisor: Supervisor) -> None:
    with pytest.raises(StartFailed, match=r"broken ended with exit code 7 .*: no luck"):
        supervisor.start(toys.component("broken", 1, program="print('no luck'); raise SystemExit(7)"))


def test_failing_step_is_a_failed_start(tmp_path: Path, supervisor: Supervisor) -> None:
    command = [sys.executable, "-c", "raise SystemExit(3)"]
    with pytest.raises(StartFailed, match="a step failed with exit code 3"):
        supervisor.run_to_end("a step", command, log=tmp_path / "log", env=dict(os.environ))


# A whole supervisor in a process of its own, to be ended from outside.
PROGRAM = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_supervisor import Toys
from airflow_provider_pgetl.local.supervisor import StopRequested, Supervisor
toys = Toys(Path(sys.argv[2]))
supervisor = Supervisor(say=lambda line: None)
supervisor.handle_signals()
try:
    supervisor.start(toys.component("second", 2, child=True), toys.component("first", 1, child=True))
    if sys.argv[3] == "stuck":
        supervisor.start(toys.component("never", 3, program="import time; time.sleep(600)"))
    (toys.folder / "up").touch()
    supervisor.watch()
except StopRequested:
    pass
finally:
    supervisor.stop_all()
"""


@pytest.fixture
def outside(toys: Toys) -> Iterator[subprocess.Popen[bytes]]:
    """A supervisor with two components, each with a child that left its session."""
    command = [sys.executable, "-c", PROGRAM, str(Path(__file__).parent), str(toys.folder), "-"]
    with subprocess.Popen(command, start_new_session=True) as child:
        assert process.wait_until((toys.folder / "up").exists, timeout=30)
        yield child
        process.end_processes(process.descendants(child.pid), grace=0)
        child.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_to_the_supervisor_ends_everything_in_order(
    outside: subprocess.Popen[bytes], toys: Toys, number: signal.Signals
) -> None:
    family = process.descendants(outside.pid)
    assert len(family) == 4
    outside.send_signal(number)
    assert outside.wait(timeout=20) == 0
    assert not [one for one in family if process.alive(one)]
    assert toys.order("end") == ["first", "second"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells a child that its parent died")
def test_killed_supervisor_takes_its_components_along(outside: subprocess.Popen[bytes], toys: Toys) -> None:
    components = psutil.Process(outside.pid).children()
    leftovers = [one for one in process.descendants(outside.pid) if one not in components]
    assert len(components) == 2
    outside.kill()
    try:
        assert process.wait_until(lambda: not any(map(process.alive, components)), timeout=10)
        assert sorted(toys.order("end")) == ["first", "second"]
    finally:
        process.end_processes(leftovers, grace=0)


def test_supervisor_that_waits_for_a_start_can_be_ended(toys: Toys) -> None:
    command = [sys.executable, "-c", PROGRAM, str(Path(__file__).parent), str(toys.folder), "stuck"]
    with subprocess.Popen(command, start_new_session=True) as child:
        assert process.wait_until(lambda: len(process.descendants(child.pid)) == 5, timeout=30)
        family = process.descendants(child.pid)
        child.send_signal(signal.SIGTERM)
        assert child.wait(timeout=20) == 0
        assert not [one for one in family if process.alive(one)]
