"""Pipelines and the states of their tables, in memory."""

from __future__ import annotations

import dataclasses

from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.progress import Lease, PipelineRecord, TableRecord
from airflow_provider_pgetl.replication.schema import TableSchema
from airflow_provider_pgetl.replication.state import INIT, TableState, transition
from airflow_provider_pgetl.replication.store.memory_data import KeptPipeline, KeptTable, Move, stamped
from airflow_provider_pgetl.replication.store.memory_schema import MemorySchemas
from airflow_provider_pgetl.replication.store.rules import nothing_before, state_before


class MemoryStates(MemorySchemas):
    """``StateStore``."""

    def register_pipeline(self, pipeline: PipelineRecord) -> PipelineRecord:
        with self._lock:
            found = self._pipelines.setdefault(pipeline.name, KeptPipeline(pipeline))
            found.record = dataclasses.replace(found.record, publication=pipeline.publication, slot=pipeline.slot)
            return found.record

    def pipeline(self, name: str) -> PipelineRecord | None:
        with self._lock:
            found = self._pipelines.get(name)
            return found.record if found else None

    def pipelines(self) -> list[PipelineRecord]:
        with self._lock:
            return [self._pipelines[name].record for name in sorted(self._pipelines)]

    def register_table(self, pipeline: str, schema: TableSchema, lsn: Lsn, *, by: str) -> TableRecord:
        with self._of(pipeline) as found:
            known = found.tables.get(schema.relation_id)
            if known is not None:
                if known.record.table != schema.table:
                    known.record = stamped(known.record, table=schema.table)
                return known.record
            record = stamped(TableRecord(pipeline, schema.relation_id, schema.table, 1, INIT))
            found.tables[schema.relation_id] = KeptTable(record, [Move(1, INIT, by)])
            self.add_schema(pipeline, schema, lsn)
            self._announce(found, "copy", [(schema.relation_id, None, None)])
            return record

    def table(self, pipeline: str, relation_id: int) -> TableRecord | None:
        with self._lock:
            table = self._find(pipeline, relation_id)
            return table.record if table else None

    def tables(self, pipeline: str) -> list[TableRecord]:
        with self._lock:
            found = self._pipelines.get(pipeline)
            records = [table.record for table in found.tables.values()] if found else []
            return sorted(records, key=lambda record: (record.table, record.relation_id))

    def move(
        self,
        record: TableRecord,
        to: TableState,
        *,
        by: str,
        run_id: str | None = None,
        copied_rows: int | None = None,
        schema_version: int | None = None,
    ) -> TableRecord:
        with self._lock:
            table = self._generation(record)
            stored = table.record
            table.record = stamped(
                stored,
                state=transition(stored.state, to),
                run_id=stored.run_id if run_id is None else run_id,
                copied_rows=stored.copied_rows if copied_rows is None else copied_rows,
                schema_version=stored.schema_version if schema_version is None else schema_version,
            )
            table.history.append(Move(stored.generation, to, by))
            return table.record

    def new_generation(self, pipeline: str, relation_id: int, *, by: str, run_id: str | None = None) -> TableRecord:
        with self._of(pipeline) as found:
            table = self._table(pipeline, relation_id)
            begin_again(table, by=by, run_id=run_id)
            self._announce(found, "copy", [(relation_id, None, None)])
            return table.record

    def rollback(self, record: TableRecord, *, by: str) -> TableRecord:
        with self._lock:
            table = self._generation(record)
            moves = [(move.state, move.rolled_back) for move in table.history if move.generation == record.generation]
            before = state_before(moves)
            if before is None:
                raise nothing_before(table.record)
            table.record = stamped(table.record, state=before)
            table.history.append(Move(record.generation, before, by, rolled_back=True))
            return table.record

    def mark_source(self, pipeline: str, relation_id: int, mark: str) -> TableRecord:
        with self._lock:
            table = self._table(pipeline, relation_id)
            table.record = stamped(table.record, source_mark=mark)
            return table.record

    def applied(self, lease: Lease, record: TableRecord, lsn: Lsn, snapshot_id: int | None) -> TableRecord:
        with self._lock:
            self._hold(lease)
            table = self._generation(record)
            stored = table.record
            if stored.applied_lsn is None or lsn >= stored.applied_lsn:
                kept = stored.snapshot_id if snapshot_id is None else snapshot_id
                table.record = stamped(stored, applied_lsn=lsn, snapshot_id=kept)
            return table.record

    def history(self, pipeline: str, relation_id: int) -> list[tuple[int, TableState, str]]:
        with self._lock:
            table = self._find(pipeline, relation_id)
            return [(move.generation, move.state, move.by) for move in table.history] if table else []

    def delete_pipeline(self, name: str) -> None:
        with self._lock:
            self._pipelines.pop(name, None)
            # The epochs stay and move on, so that whoever still holds a lease can't write any more.
            for (pipeline, _), lease in self._leases.items():
                if pipeline == name:
                    lease.owner, lease.epoch = None, lease.epoch + 1


def begin_again(table: KeptTable, *, by: str, run_id: str | None = None) -> None:
    """The next generation, at ``init``."""
    generation = table.record.generation + 1
    table.record = stamped(
        table.record, generation=generation, state=INIT, run_id=run_id, copied_rows=None, schema_version=None
    )
    table.history.append(Move(generation, INIT, by))
