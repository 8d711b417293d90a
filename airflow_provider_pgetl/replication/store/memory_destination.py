"""The destination's tables and their shapes, in memory."""

from __future__ import annotations

from airflow_provider_pgetl.replication.progress import DestinationStatus, DestinationTable, TableRecord
from airflow_provider_pgetl.replication.store.memory_data import MemoryData, stamped
from airflow_provider_pgetl.replication.store.rules import change_begun, change_done, under_way


class MemoryDestinations(MemoryData):
    """``DestinationStore``."""

    def applying(self, record: TableRecord, name: str, version: int) -> DestinationTable:
        with self._lock:
            table = self._generation(record)
            table.destination = change_begun(table.destination, record.relation_id, name, version)
            return table.destination

    def applied_schema(self, record: TableRecord, name: str, version: int) -> DestinationTable:
        with self._lock:
            table = self._generation(record)
            table.destination = change_done(record.relation_id, name, version)
            table.record = stamped(table.record, schema_version=version)
            return table.destination

    def destination_table(self, pipeline: str, relation_id: int) -> DestinationTable | None:
        known = self.destination_status(pipeline, relation_id)
        if known is not None and known.status is DestinationStatus.APPLYING:
            raise under_way(known)
        return known

    def destination_status(self, pipeline: str, relation_id: int) -> DestinationTable | None:
        with self._lock:
            table = self._find(pipeline, relation_id)
            return table.destination if table else None
