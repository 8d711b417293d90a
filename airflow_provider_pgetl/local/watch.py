"""Tells how the tables of a pipeline move from state to state, one line for each change."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

# One short query; people don't read faster.
EVERY_SECONDS = 2.0


@dataclass(slots=True)
class StateReporter:
    """Compares table states with what was told before.

    `read` returns table -> state, and an empty mapping for as long as there is nothing to tell.
    """

    read: Callable[[], Mapping[str, str]]
    say: Callable[[str], None]
    final: str = "ready"
    _known: dict[str, str] = field(default_factory=dict)
    _next: float = 0.0
    _all_told: bool = False
    _started: float = field(default_factory=time.monotonic)

    def tick(self) -> None:
        """Look again if it is time to, and tell what changed."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + EVERY_SECONDS
        self.tell(self.read())

    def tell(self, states: Mapping[str, str]) -> None:
        """Tell the changes, and once that all tables are in their final state."""
        if not states:
            return
        for table, state in sorted(states.items()):
            if self._known.get(table) != state:
                self.say(f"{table}: {state}")
        self._known = dict(states)
        complete = all(state == self.final for state in states.values())
        if complete and not self._all_told:
            seconds = time.monotonic() - self._started
            self.say(f"all {len(states)} tables are {self.final} ({seconds:.0f} s after the stack was up)")
        self._all_told = complete
