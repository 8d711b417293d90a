"""A fake lake: the contract of a destination that takes files, in memory, for tests of the paths."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any, Literal

from airflow_provider_pgetl.replication.destinations.base import (
    Applied,
    Changes,
    CopiedPartition,
    CopyPlan,
    Marker,
    Partition,
)
from airflow_provider_pgetl.replication.schema import TableSchema
from airflow_provider_pgetl.replication.spool.segments import Spool
from airflow_provider_pgetl.replication.table_copy import read_partition

Rows = dict[Any, dict[str, Any]]


@dataclass
class FakeLake:
    """Tables as dicts by key; the visible one with its marker, and copies that nobody sees yet."""

    source: str
    spool: Spool
    name: str = "fake lake"
    takes_files: Literal[True] = True
    keeps_markers: bool = True
    tables: dict[int, Rows] = field(default_factory=dict)
    markers: dict[int, Marker] = field(default_factory=dict)
    copies: dict[tuple[int, int], dict[int, Rows]] = field(default_factory=dict)
    complete: dict[tuple[int, int], int] = field(default_factory=dict)
    applied: list[tuple[int, int, int]] = field(default_factory=list)
    fail: dict[int, Exception] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    snapshots: int = 0

    def startup(self) -> None: ...

    def shutdown(self) -> None: ...

    def cancel(self) -> None: ...

    def marker(self, schema: TableSchema) -> Marker | None:
        return self.markers.get(schema.relation_id)

    def apply(self, changes: Changes) -> Applied:
        relation_id = changes.schema.relation_id
        if relation_id in self.fail:
            raise self.fail[relation_id]
        marker = self.markers[relation_id]
        rows = dict(self.tables[relation_id])
        count = self._merge(rows, changes, max(int(changes.from_lsn), int(marker.lsn)))
        return self._show(changes, rows, count)

    def begin_copy(self, plan: CopyPlan) -> None:
        self.copies[plan.schema.relation_id, plan.generation] = {}

    def copy_partition(self, plan: CopyPlan, partition: Partition) -> CopiedPartition:
        if plan.schema.relation_id in self.fail:
            raise self.fail[plan.schema.relation_id]
        keys = [column.name for column in plan.schema.key]
        rows: Rows = {}
        for batch in read_partition(self.source, plan.snapshot, partition.select, plan.schema, plan.lsn):
            for row in batch.to_pylist():
                key = tuple(row[name] for name in keys)
                rows[key] = {column.name: row[column.name] for column in plan.schema.columns}
        with self.lock:
            self.copies[plan.schema.relation_id, plan.generation][partition.number] = rows
        return CopiedPartition(partition.number, len(rows), 1, 0.1)

    def finish_copy(self, plan: CopyPlan) -> None:
        parts = self.copies[plan.schema.relation_id, plan.generation]
        assert len(parts) == len(plan.partitions)
        self.complete[plan.schema.relation_id, plan.generation] = int(plan.lsn)

    def promote(self, changes: Changes) -> Applied:
        place = (changes.schema.relation_id, changes.generation)
        rows = {key: row for part in self.copies[place].values() for key, row in part.items()}
        assert sum(map(len, self.copies[place].values())) == len(rows), "a row was copied twice"
        count = self._merge(rows, changes, self.complete[place])
        return self._show(changes, rows, count)

    def _merge(self, rows: Rows, changes: Changes, begin: int) -> int:
        found = [row for file in changes.files for row in self.spool.read(file).to_pylist()]
        found = [row for row in found if begin <= row["_commit_lsn"] < changes.to_lsn]
        found.sort(key=lambda row: (row["_commit_lsn"], row["_ordinal"]))
        replay(rows, found, changes.schema)
        return len(found)

    def _show(self, changes: Changes, rows: Rows, count: int) -> Applied:
        with self.lock:
            self.snapshots += 1
            relation_id = changes.schema.relation_id
            self.tables[relation_id] = rows
            marker = Marker(changes.to_lsn, changes.generation, changes.epoch, self.snapshots)
            self.markers[relation_id] = marker
            self.applied.append((relation_id, int(changes.from_lsn), int(changes.to_lsn)))
        return Applied(marker.snapshot_id, upserts=count)


def replay(table: Rows, changes: list[dict[str, Any]], schema: TableSchema) -> None:
    """The oracle: apply changes one by one, and fail on what can't be right."""
    names = [column.name for column in schema.columns]
    keys = [column.name for column in schema.key]
    for change in changes:
        key = tuple(change[name] for name in keys)
        if change["_op"] == "t":
            table.clear()
            continue
        if change["_op"] == "d":
            del table[key]
            continue
        if change["_op"] == "i":
            assert key not in table, "an insert of a row that is there"
        old_key = tuple(change["_old"][name] for name in keys) if change["_old"] else key
        before = table.pop(old_key, {})
        row = {name: change[name] for name in names}
        for name in change["_unchanged"] or []:
            row[name] = before[name]
        table[key] = row
