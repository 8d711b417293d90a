"""Child processes that don't outlive us, and the ports they listen on.

Every child leads a session of its own, so a Ctrl-C in the terminal reaches only the supervisor, which then
stops the children in their order. On Linux a child also gets a signal when its parent dies without a word
(kill -9), and grandchildren that lost their parent come back to us, where `end_children` finds them.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
POLL_SECONDS = 0.05


@functools.cache
def _prctl() -> Callable[[int, int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    # A libc without it (or none that can be opened) costs only the safety net.
    with contextlib.suppress(OSError, AttributeError):
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        return lambda option, value: int(prctl(option, value, 0, 0, 0))
    return None


def adopt_orphans() -> None:
    """Let grandchildren whose parent died become our children, so that none escapes the final stop."""
    if prctl := _prctl():
        prctl(PR_SET_CHILD_SUBREAPER, 1)


def reap_adopted(own: Collection[int]) -> None:
    """Collect adopted children that ended; the `own` ones belong to their `Popen`, which collects them itself."""
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None or ended.si_pid in own:
            return
        os.waitpid(ended.si_pid, 0)


def _die_with_parent(death_signal: int) -> Callable[[], None] | None:
    prctl = _prctl()
    if prctl is None:
        return None
    parent = os.getpid()

    def before_exec() -> None:
        prctl(PR_SET_PDEATHSIG, death_signal)
        if os.getppid() != parent:  # it died between fork and here
            os._exit(1)

    return before_exec


def spawn(
    command: Sequence[str | Path],
    *,
    log: Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    user: int | None = None,
    group: int | None = None,
    death_signal: int = signal.SIGTERM,
) -> subprocess.Popen[bytes]:
    """Start a child in a session of its own, its output appended to `log`.

    Call it from a thread that lives as long as the child should: the death signal is bound to the thread.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        return subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=None if env is None else dict(env),
            cwd=cwd,
            user=user,
            group=group,
            extra_groups=None if user is None else [],
            start_new_session=True,
            # Only an async-signal-safe system call, bound before the fork: safe beside threads.
            preexec_fn=_die_with_parent(death_signal),  # noqa: PLW1509
        )


def signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to the child's whole process group; a group that is gone already is fine."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def descendants(pid: int | None = None) -> list[psutil.Process]:
    """All living processes below `pid` (default: us), zombies left out."""
    import psutil

    try:
        found = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [process for process in found if alive(process)]


def alive(process: psutil.Process) -> bool:
    """Tell whether it runs; a zombie does not."""
    import psutil

    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def runs_program(pid: int, name: str) -> bool:
    """Tell whether a living process has this id and runs this program; ids are used again."""
    import psutil

    try:
        one = psutil.Process(pid)
        return alive(one) and one.name().startswith(name)
    except psutil.NoSuchProcess:
        return False


def end_processes(processes: Sequence[psutil.Process], *, grace: float) -> None:
    """SIGTERM, wait up to `grace` seconds, then SIGKILL whatever is left."""
    import psutil

    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    _, left = psutil.wait_procs(processes, timeout=grace)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=5)


def children() -> frozenset[int]:
    """Return the ids of our direct children."""
    import psutil

    return frozenset(one.pid for one in psutil.Process().children())


def end_children(*, spare: Collection[int] = (), grace: float = 3.0) -> int:
    """End every living process below us except the `spare` children and theirs; return how many there were."""
    import psutil

    left = [
        one
        for child in psutil.Process().children()
        if child.pid not in spare
        for one in (child, *descendants(child.pid))
        if alive(one)
    ]
    end_processes(left, grace=grace)
    return len(left)


def stop_process(process: subprocess.Popen[bytes], number: int, *, timeout: float) -> bool:
    """Ask the child to end with `number`, after `timeout` kill its group; return if asking was enough."""
    if process.poll() is not None:
        return True
    process.send_signal(number)
    try:
        process.wait(timeout)
    except subprocess.TimeoutExpired:
        signal_group(process, signal.SIGKILL)
        process.wait(5)
        return False
    return True


def wait_until(condition: Callable[[], bool], *, timeout: float, pause: float = POLL_SECONDS) -> bool:
    """Poll `condition` until it holds (True) or `timeout` seconds have passed (False)."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
    return True


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port that nothing listens on right now."""
    return free_ports(1, host)[0]


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Return `count` different ports that nothing listens on right now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind((host, 0))
        return [int(one.getsockname()[1]) for one in sockets]


def port_is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Tell whether a server could listen on the port."""
    with socket.socket() as probe:
        # Servers set this too; without it a port in TIME_WAIT would look taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def port_answers(port: int, host: str = "127.0.0.1") -> bool:
    """Tell whether something accepts connections on the port."""
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False


def last_lines(log: Path, count: int = 3) -> str:
    """Return the end of a log as one line, for a message about a component that did not start."""
    try:
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    except OSError:
        return "no log"
    # The frames of a Java stack trace tell a person nothing.
    telling = [line for line in lines if line and not line.startswith("at ")]
    return " | ".join(telling[-count:]) or "empty log"
