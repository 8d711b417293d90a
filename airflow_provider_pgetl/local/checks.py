"""What could be in the way of a demo, asked before anything is started. Each problem is one line."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from airflow_provider_pgetl.local.binaries import service_user
from airflow_provider_pgetl.local.errors import CheckFailed
from airflow_provider_pgetl.local.java import find_java
from airflow_provider_pgetl.local.places import Places
from airflow_provider_pgetl.local.process import port_is_free
from airflow_provider_pgetl.local.stack import DemoLock

GIGABYTE = 1 << 30
# All processes together use 1.5 GB when idle and about 3 GB while tables are copied.
NEEDED_MEMORY = int(3.5 * GIGABYTE)
NEEDED_DISK = 2 * GIGABYTE


def check_platform() -> None:
    """Linux and macOS have what is needed."""
    if os.name != "posix":
        raise CheckFailed(f"the local stack runs on Linux and macOS, not on {sys.platform}")


def check_writable(home: Path) -> None:
    """State and logs go to `home`."""
    probe = home / f".probe-{os.getpid()}"
    try:
        home.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise CheckFailed(
            f"no write permission in {home} ({error.strerror}); choose another folder with --home"
        ) from None


def check_disk(home: Path, *, free: Callable[[Path], int] | None = None) -> None:
    """Jars, logs and the lake need some room."""
    available = free(home) if free else shutil.disk_usage(home).free
    if available < NEEDED_DISK:
        raise CheckFailed(f"too little free disk in {home}: {_gb(available)}, the demo needs {_gb(NEEDED_DISK)}")


def check_memory(*, available: Callable[[], int] | None = None) -> None:
    """Airflow, Spark and Postgres at the same time need some memory."""
    free = (available or available_memory)()
    if free < NEEDED_MEMORY:
        raise CheckFailed(f"too little free memory: {_gb(free)}, the demo needs {_gb(NEEDED_MEMORY)}")


def check_ports(ports: Mapping[str, int]) -> None:
    """Each port that was asked for must be free."""
    for name, port in ports.items():
        if not 1 <= port <= 65535:
            raise CheckFailed(f"{port} is no port; choose one from 1 to 65535 with --port")
        if not port_is_free(port):
            raise CheckFailed(f"port {port} ({name}) is in use; choose another with --port")


def check_dags(dags: Path) -> None:
    """The demo shows the example DAGs, which are not part of the installed package."""
    if not dags.is_dir():
        raise CheckFailed(f"there are no example DAGs in {dags}; run the demo from a checkout of the project")


def check_not_running(home: Path) -> None:
    """One demo per home."""
    lock = DemoLock(home)
    lock.take()
    lock.release()


def available_memory() -> int:
    """Return the bytes that may still be used: the machine's or, if less, the container's."""
    import psutil

    free = int(psutil.virtual_memory().available)
    return min([free, *container_memory()])


def container_memory(root: Path = Path("/sys/fs/cgroup")) -> Iterator[int]:
    """Return what the container may still use, nothing where there is no limit."""
    try:
        limit = int((root / "memory.max").read_text())  # "max" without a limit, which is no number
        used = int((root / "memory.current").read_text())
        reclaimable = dict(line.split() for line in (root / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return
    yield limit - used + int(reclaimable.get("inactive_file", 0))


def failures(home: Path, ports: Mapping[str, int]) -> list[str]:
    """Return one line for each thing in the way; none of the checks changes anything but `home` itself."""
    try:
        check_platform()
        check_writable(home)
        check_not_running(home)
    except CheckFailed as problem:
        return [str(problem)]  # the others would only repeat it
    found = []
    for check in (
        lambda: check_disk(home),
        check_memory,
        find_java,
        service_user,
        lambda: check_ports(ports),
        lambda: check_dags(Places(home).dags),
    ):
        try:
            check()
        except CheckFailed as problem:
            found.append(str(problem))
    return found


def _gb(size: int) -> str:
    return f"{size / GIGABYTE:.1f} GB"
