"""What a running demo tells the other commands, and how they know that it still runs.

The demo holds a lock on a file for as long as it lives, however it ends; `stack.json` (mode 0600) has the
addresses and passwords.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO

from airflow_provider_pgetl.local.errors import CheckFailed, LocalStackError
from airflow_provider_pgetl.local.places import Places


@dataclass(frozen=True, slots=True)
class StackInfo:
    """The addresses of one demo."""

    pid: int
    airflow_url: str
    airflow_user: str
    airflow_password: str
    source_conninfo: str
    state_conninfo: str
    spark_url: str
    catalog: str
    spool: str
    warehouse: str
    logs: str
    ports: dict[str, int] = field(default_factory=dict)
    processes: dict[str, int] = field(default_factory=dict)  # component -> process id, as started last

    def write(self, path: Path) -> None:
        """Replace the file in one step, readable by its owner only."""
        scratch = path.with_suffix(".new")
        scratch.unlink(missing_ok=True)
        scratch.touch(mode=0o600)
        scratch.write_text(json.dumps(asdict(self), indent=2) + "\n")
        scratch.rename(path)

    @classmethod
    def read(cls, path: Path) -> StackInfo | None:
        """Return what the file says, None when there is none or it is of another version."""
        try:
            return cls(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            return None


class DemoLock:
    """Held by the one demo of a home; the system gives it back when the process ends, whatever the way."""

    def __init__(self, home: Path) -> None:
        """Name the lock without taking it."""
        self._path = home / "demo.lock"
        self._file: IO[str] | None = None

    def take(self) -> None:
        """Take it, or tell who has it."""
        handle = self._path.open("a+")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            handle.seek(0)
            holder = handle.read().strip()
            handle.close()
            raise CheckFailed(f"a demo already runs in {self._path.parent} (pid {holder})") from None
        handle.truncate(0)
        handle.write(f"{os.getpid()}\n")
        handle.flush()
        self._file = handle

    def release(self) -> None:
        """Give it back."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def is_held(self) -> bool:
        """Tell whether some process holds it."""
        if not self._path.exists():
            return False
        try:
            self.take()
        except CheckFailed:
            return True
        self.release()
        return False


def running_stack(home: Path) -> StackInfo:
    """Return the addresses of the demo that runs in `home`; one clear line if none does."""
    places = Places(home)
    info = StackInfo.read(places.stack_file) if DemoLock(home).is_held() else None
    if info is None:
        raise LocalStackError(f"no demo runs in {home}; start one with: pgetl demo")
    return info
