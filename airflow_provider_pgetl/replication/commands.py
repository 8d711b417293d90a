"""What people ask of the running stream, as the applier sees it.

``hold {seconds}``   apply nothing more until a cut was made or the time is over, so that a cut at an LSN of the
                     near future can be asked for before it has passed
``cut {lsn}``        bring every table to exactly this LSN and record the cut
"""

from __future__ import annotations

import logging
import time

from airflow_provider_pgetl.replication.lsn import ZERO, Lsn
from airflow_provider_pgetl.replication.progress import Command, Cut
from airflow_provider_pgetl.replication.store.base import Store

log = logging.getLogger(__name__)

_MAX_HOLD_S = 600.0


class Commands:
    """Reads the open commands of one pipeline and answers them."""

    def __init__(self, store: Store, pipeline: str) -> None:
        self._store = store
        self._pipeline = pipeline
        self._cuts: dict[int, Lsn] = {}
        self._held_until = 0.0

    def target(self, spooled: Lsn, applied: Lsn) -> Lsn | None:
        """The LSN of this cycle: the next cut that was asked for, else all that is spooled; None while held."""
        self._cuts = {}
        for command in self._store.open_commands(self._pipeline):
            self._read(command, applied)
        due = [lsn for lsn in self._cuts.values() if lsn <= spooled]
        if due:
            return min(due)
        if time.monotonic() < self._held_until:
            return None
        # Never past a cut that somebody waits for.
        return min([spooled, *self._cuts.values()])

    def wants(self, lsn: Lsn) -> bool:
        """Whether somebody waits for a cut at exactly this LSN."""
        return lsn in self._cuts.values()

    def answer_cuts(self, lsn: Lsn, cut: Cut) -> None:
        """Tell those who asked."""
        for command_id in [command_id for command_id, wanted in self._cuts.items() if wanted == lsn]:
            self._store.answer(self._pipeline, command_id, {"cut": cut.id, "lsn": str(lsn)})
            self._held_until = 0.0

    def _read(self, command: Command, applied: Lsn) -> None:
        if command.kind == "hold":
            seconds = min(float(command.payload.get("seconds", 60)), _MAX_HOLD_S)
            self._held_until = time.monotonic() + seconds
            self._store.answer(self._pipeline, command.id, {"held": seconds})
        elif command.kind == "cut":
            self._read_cut(command, applied)
        else:
            log.warning("nobody knows the command %s", command.kind)
            self._store.answer(self._pipeline, command.id, {"error": f"unknown command {command.kind!r}"})

    def _read_cut(self, command: Command, applied: Lsn) -> None:
        try:
            lsn = Lsn.parse(str(command.payload.get("lsn", "")))
        except ValueError as error:
            self._store.answer(self._pipeline, command.id, {"error": str(error)})
            return
        if applied > ZERO and lsn < applied:
            self._store.answer(self._pipeline, command.id, {"error": f"the lake is past {lsn} already: {applied}"})
            return
        self._cuts[command.id] = lsn
