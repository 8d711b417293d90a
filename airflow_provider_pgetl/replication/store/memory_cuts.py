"""Cuts, the outbox, commands to the running stream, and samples, in memory."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.progress import Announcement, Command, Cut, CutTable, Lease
from airflow_provider_pgetl.replication.store.memory_data import KeptCommand, MemoryData, through_json
from airflow_provider_pgetl.replication.store.rules import CUTS_KEPT, SAMPLES_KEPT


class MemoryCuts(MemoryData):
    """``CutStore``."""

    def record_cut(self, pipeline: str, lease: Lease, lsn: Lsn, tables: Sequence[CutTable]) -> Cut:
        with self._lock:
            self._hold(lease)
            with self._of(pipeline) as found:
                in_order = tuple(sorted(tables, key=lambda table: table.relation_id))
                found.cuts.append(Cut(self._next_id(), lsn, in_order, datetime.now(UTC)))
                del found.cuts[:-CUTS_KEPT]
                self._announce(found, "cut", [(table.relation_id, lsn, table.snapshot_id) for table in in_order])
                return found.cuts[-1]

    def latest_cut(self, pipeline: str) -> Cut | None:
        with self._lock:
            found = self._pipelines.get(pipeline)
            return found.cuts[-1] if found and found.cuts else None

    def cut_at(self, pipeline: str, lsn: Lsn) -> Cut | None:
        with self._lock:
            found = self._pipelines.get(pipeline)
            return next((cut for cut in reversed(found.cuts) if cut.lsn == lsn), None) if found else None

    def announcements(self, pipeline: str, after: int = 0) -> list[Announcement]:
        with self._lock:
            found = self._pipelines.get(pipeline)
            return [known for known in found.outbox if known.id > after] if found else []

    def ask(self, pipeline: str, kind: str, payload: dict[str, Any], *, by: str) -> int:
        with self._of(pipeline) as found:
            command = Command(self._next_id(), kind, through_json(payload), by)
            found.commands[command.id] = KeptCommand(command)
            return command.id

    def open_commands(self, pipeline: str) -> list[Command]:
        with self._lock:
            found = self._pipelines.get(pipeline)
            asked = found.commands.values() if found else ()
            return [entry.command for entry in asked if entry.result is None]

    def answer(self, pipeline: str, command_id: int, result: dict[str, Any]) -> None:
        with self._lock:
            found = self._pipelines.get(pipeline)
            entry = found.commands.get(command_id) if found else None
            if entry is not None and entry.result is None:
                entry.result = through_json(result)

    def command_result(self, pipeline: str, command_id: int) -> dict[str, Any] | None:
        with self._lock:
            found = self._pipelines.get(pipeline)
            entry = found.commands.get(command_id) if found else None
            return entry.result if entry else None


class MemorySamples(MemoryData):
    """``SampleStore``."""

    def add_sample(self, pipeline: str, values: dict[str, Any]) -> None:
        with self._of(pipeline) as found:
            found.samples.append({**through_json(values), "at": datetime.now(UTC)})
            del found.samples[:-SAMPLES_KEPT]

    def latest_sample(self, pipeline: str) -> dict[str, Any] | None:
        with self._lock:
            found = self._pipelines.get(pipeline)
            return dict(found.samples[-1]) if found and found.samples else None
