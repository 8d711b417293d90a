"""The versions of the tables' schemas, in memory."""

from __future__ import annotations

from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.schema import SchemaVersion, TableSchema
from airflow_provider_pgetl.replication.store.memory_data import MemoryData
from airflow_provider_pgetl.replication.store.rules import holding, placed, unneeded


class MemorySchemas(MemoryData):
    """``SchemaStore``."""

    def add_schema(self, pipeline: str, schema: TableSchema, lsn: Lsn) -> TableSchema:
        with self._of(pipeline) as found:
            versions = found.schemas.get(schema.relation_id, [])
            version = placed(versions, schema, lsn)
            others = [known for known in versions if known.schema.version != version.schema.version]
            found.schemas[schema.relation_id] = in_order([*others, version])
            return version.schema

    def latest_schema(self, pipeline: str, relation_id: int) -> TableSchema | None:
        versions = self.schemas(pipeline, relation_id)
        return versions[-1].schema if versions else None

    def schema_at(self, pipeline: str, relation_id: int, lsn: Lsn) -> TableSchema | None:
        return holding(self.schemas(pipeline, relation_id), lsn)

    def schemas(self, pipeline: str, relation_id: int) -> list[SchemaVersion]:
        with self._lock:
            found = self._pipelines.get(pipeline)
            return list(found.schemas.get(relation_id, ())) if found else []

    def prune_schemas(self, pipeline: str, relation_id: int, before: Lsn) -> int:
        with self._lock:
            found = self._pipelines.get(pipeline)
            if found is None:
                return 0
            versions = found.schemas.get(relation_id, [])
            gone = set(unneeded(versions, before, self._used(pipeline, relation_id)))
            found.schemas[relation_id] = [version for version in versions if version.schema.version not in gone]
            return len(gone)

    def schema_version(self, pipeline: str, relation_id: int, version: int) -> TableSchema | None:
        versions = self.schemas(pipeline, relation_id)
        return next((known.schema for known in versions if known.schema.version == version), None)

    def _used(self, pipeline: str, relation_id: int) -> set[int | None]:
        used: set[int | None] = {
            file.schema_version for _, file in self._files(pipeline) if file.relation_id == relation_id
        }
        table = self._find(pipeline, relation_id)
        if table is not None:
            used.add(table.record.schema_version)
            if table.destination is not None:
                used |= {table.destination.schema_version, table.destination.previous_version}
        return used


def in_order(versions: list[SchemaVersion]) -> list[SchemaVersion]:
    """By LSN, then by version."""
    return sorted(versions, key=lambda version: (version.lsn, version.schema.version))
