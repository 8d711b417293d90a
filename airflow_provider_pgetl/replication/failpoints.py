"""Named places where a test makes the process fail. No-ops otherwise.

A test arms one with ``failpoints.arm("spool.after_write", action)``; ``PGETL_FAILPOINTS="name=exit;other=raise"``
arms them in a child process: ``exit`` is a hard ``os._exit(86)``, as a kill -9 would be.
"""

from __future__ import annotations

import os
from collections.abc import Callable

_ARMED: dict[str, Callable[[], None]] = {}


class Failpoint(Exception):
    """Raised by an armed failpoint."""


def _raise() -> None:
    raise Failpoint("failpoint")


def _exit() -> None:
    os._exit(86)


_ACTIONS: dict[str, Callable[[], None]] = {"raise": _raise, "exit": _exit}


def arm(name: str, action: Callable[[], None] | str = "raise") -> None:
    """Make ``name`` fail from now on."""
    _ARMED[name] = _ACTIONS[action] if isinstance(action, str) else action


def disarm(name: str | None = None) -> None:
    """Make one failpoint, or all of them, a no-op again."""
    if name is None:
        _ARMED.clear()
    else:
        _ARMED.pop(name, None)


def hit(name: str) -> None:
    """Pass the place called ``name``."""
    if _ARMED and name in _ARMED:
        _ARMED[name]()


for _entry in filter(None, os.environ.get("PGETL_FAILPOINTS", "").split(";")):
    arm(*_entry.split("=", 1))
