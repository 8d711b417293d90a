"""What happens to all that is kept of a table at once, in memory."""

from __future__ import annotations

from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.progress import Lease, SpoolFile, TableRecord
from airflow_provider_pgetl.replication.schema import SchemaVersion
from airflow_provider_pgetl.replication.store.memory_data import MemoryData, forget, set_spooled, stamped
from airflow_provider_pgetl.replication.store.memory_schema import in_order
from airflow_provider_pgetl.replication.store.memory_state import begin_again


class MemoryLifecycle(MemoryData):
    """``TableLifecycleStore``."""

    def prepare_for_copy(self, record: TableRecord) -> None:
        with self._lock:
            self._generation(record).destination = None

    def reset_all(self, pipeline: str, lease: Lease, lsn: Lsn, *, by: str) -> list[SpoolFile]:
        with self._lock:
            self._hold(lease)
            with self._of(pipeline) as found:
                files = [file for _, file in self._files(pipeline)]
                found.segments.clear()
                set_spooled(found, lsn)
                for relation_id, table in sorted(found.tables.items()):
                    begin_again(table, by=by)
                    table.record = stamped(table.record, applied_lsn=None, snapshot_id=None)
                    self._announce(found, "copy", [(relation_id, None, None)])
                for relation_id, versions in found.schemas.items():
                    moved = [SchemaVersion(min(known.lsn, lsn), known.schema) for known in versions]
                    found.schemas[relation_id] = in_order(moved)
                return files

    def delete_table(self, pipeline: str, relation_id: int) -> list[SpoolFile]:
        with self._lock:
            found = self._pipelines.get(pipeline)
            if found is None:
                return []
            found.tables.pop(relation_id, None)
            found.schemas.pop(relation_id, None)
            found.outbox = [known for known in found.outbox if known.relation_id != relation_id]
            return forget(found, lambda file: file.relation_id == relation_id)
