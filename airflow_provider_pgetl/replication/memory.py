"""Watches how much memory is used, so that a batch is written before it is too large to be held.

    limit of                      total                     used
    cgroup v2, ours or above it   memory.max                memory.current - inactive_file of memory.stat
    cgroup v1                     memory.limit_in_bytes     memory.usage_in_bytes - total_inactive_file
    the host                      MemTotal                  MemTotal - MemAvailable, of /proc/meminfo

The lowest limit counts. Cache of files that nobody uses is given back as soon as somebody needs the room, so it is
not counted as used (it is read where that decides something: past ``resume_threshold``). Being *pressed* means:
write what you hold before you read on. It is no reason to wait for others: whoever fills the machine, the stream
must go on, or WAL fills the source. Where there is no ``/proc``, nobody is ever pressed.
"""

from __future__ import annotations

import contextvars
import logging
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from airflow_provider_pgetl.replication.config import PipelineConfig

log = logging.getLogger(__name__)

_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")
# Limits are changed by people, usage by programs: the former is looked up at every so many readings.
_READINGS_PER_LOOKUP = 100
_LONGEST = 65_536
_MB = 1e6


@dataclass(frozen=True, slots=True)
class Reading:
    """Memory in bytes: what there is for us, and what of it is used."""

    total: int
    used: int

    @property
    def share(self) -> float:
        return self.used / self.total if self.total else 0.0


@dataclass(frozen=True, slots=True)
class _Group:
    """A cgroup with a limit, and the names of its figures."""

    folder: Path
    limit: int
    usage: str
    reclaimable: bytes

    def used(self, exact_from: float) -> int:
        """Without idle cache, if that makes a difference: it is in a larger file."""
        usage = int(_content(f"{self.folder}/{self.usage}"))
        if usage < self.limit * exact_from:
            return usage
        return max(0, usage - _figure(_content(f"{self.folder}/memory.stat"), self.reclaimable))


class MemoryMonitor:
    """Reads the memory in a thread of its own: ``start`` and ``stop``, or a ``with`` block."""

    def __init__(self, config: PipelineConfig, *, proc: Path = _PROC, cgroups: Path = _CGROUPS) -> None:
        self._batch = config.batch
        self._thresholds = config.memory_backpressure
        self._exact_from = self._thresholds.resume_threshold if self._thresholds else 1.0
        self._every_s = config.memory_refresh_interval_ms / 1000
        self._proc = proc
        self._cgroups = cgroups
        self._read: Callable[[], Reading] | None = None
        self._readings = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._pressed = False
        self.reading: Reading | None = None
        self.activations = 0
        self.transitions = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Read once, then again and again; a second call does nothing."""
        if self._thread is not None:
            return
        self.refresh()
        self._stop.clear()
        # Log lines belong to whoever started it.
        run = contextvars.copy_context().run
        self._thread = threading.Thread(target=run, args=(self._run,), name="pgetl-memory", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; nobody is pressed any more."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._pressed = False

    @property
    def pressed(self) -> bool:
        """Whether memory is short: write what you hold before you read on."""
        return self._pressed

    def budget(self, streams: int) -> int:
        """How many bytes each of so many streams may hold."""
        if self.reading is None:
            return self._batch.max_bytes
        share = int(self.reading.total * self._batch.memory_budget_ratio / max(1, streams))
        return max(1, min(self._batch.max_bytes, share))

    def refresh(self) -> None:
        """Read now, and decide whether memory is short."""
        try:
            if self._read is None or self._readings % _READINGS_PER_LOOKUP == 0:
                self._read = _reader(self._proc, self._cgroups, self._exact_from)
            self._readings += 1
            self.reading = self._read()
        except (OSError, ValueError) as error:
            # Another system, or a cgroup that has just gone: look for it anew the next time.
            if self._read is not None or self._readings == 0:
                log.debug("memory can't be read: %s", type(error).__name__)
            self._read, self.reading = None, None
            self._readings += 1
        self._decide()

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            self.refresh()

    def _decide(self) -> None:
        """On at one threshold, off only below the other."""
        thresholds, found = self._thresholds, self.reading
        if thresholds is None or found is None:
            pressed = False
        elif self._pressed:
            pressed = found.share >= thresholds.resume_threshold
        else:
            pressed = found.share >= thresholds.activate_threshold
        if pressed == self._pressed:
            return
        self._pressed = pressed
        self.transitions += 1
        self.activations += pressed
        if found is not None:
            text = "memory is short, batches are written early" if pressed else "there is memory again"
            log.warning("%s: %.0f of %.0f MB are used", text, found.used / _MB, found.total / _MB)


def _reader(proc: Path, cgroups: Path, exact_from: float) -> Callable[[], Reading]:
    """How to read the memory that is ours: of the cgroup with the lowest limit, or of the host."""
    meminfo = str(proc / "meminfo")
    total = _host(meminfo).total if os.path.exists(meminfo) else 0  # noqa: PTH110
    group = min(_groups(proc, cgroups), key=lambda one: one.limit, default=None)
    if group is not None and (not total or group.limit < total):
        return lambda: Reading(group.limit, group.used(exact_from))
    if not total:
        raise FileNotFoundError(meminfo)
    return lambda: _host(meminfo)


def _host(meminfo: str) -> Reading:
    found = _content(meminfo)
    total, available = (_figure(found, name) * 1024 for name in (b"MemTotal:", b"MemAvailable:"))
    return Reading(total, total - available)


def _groups(proc: Path, cgroups: Path) -> Iterator[_Group]:
    """The cgroups with a limit in which this process is: a limit binds all that lie below it."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            for root in (cgroups, cgroups / "unified"):
                yield from _limited(root, path, "memory.max", "memory.current", b"inactive_file")
        elif "memory" in controllers.split(","):
            root = cgroups / "memory"
            yield from _limited(root, path, "memory.limit_in_bytes", "memory.usage_in_bytes", b"total_inactive_file")


def _limited(root: Path, path: str, limit: str, usage: str, reclaimable: bytes) -> Iterator[_Group]:
    # In a container the path may be the host's, and what is ours is mounted at the root.
    folder = root / path.strip("/")
    for place in (folder, *folder.parents):
        try:
            text = (place / limit).read_text().strip()
            if text != "max" and (place / usage).exists():
                yield _Group(place, int(text), usage, reclaimable)
        except OSError:
            log.debug("no memory limit at %s", place)
        if place == root:
            return


def _content(path: str) -> bytes:
    """A small file of the kernel; measured after a pause, pathlib takes three times as long."""
    handle = os.open(path, os.O_RDONLY)
    try:
        return os.read(handle, _LONGEST)
    finally:
        os.close(handle)


def _figure(content: bytes, name: bytes) -> int:
    """The number after ``name``, which begins a line; ``ValueError`` if there is none."""
    begin = 0 if content.startswith(name + b" ") else content.index(b"\n" + name + b" ") + 1
    return int(content[begin + len(name) : content.index(b"\n", begin)].split()[0])
