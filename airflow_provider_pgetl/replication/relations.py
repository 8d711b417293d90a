"""From a Relation message to the table's schema: where stream, catalog and store meet."""

from __future__ import annotations

import logging
from dataclasses import replace

from airflow_provider_pgetl.replication.config import PipelineConfig
from airflow_provider_pgetl.replication.decode.messages import Relation
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.schema import Column, Identity, TableSchema
from airflow_provider_pgetl.replication.source import catalog
from airflow_provider_pgetl.replication.source.connection import connect
from airflow_provider_pgetl.replication.store.base import Store

log = logging.getLogger(__name__)


class Relations:
    """Resolves relations of one pipeline; a shape that was not seen before becomes a new schema version."""

    def __init__(self, config: PipelineConfig, source: str, store: Store) -> None:
        self._config = config
        self._source = source
        self._store = store

    def resolve(self, relation: Relation, lsn: Lsn) -> TableSchema:
        """The stored schema that the relation describes, stored now if it is new."""
        known = self._store.latest_schema(self._config.name, relation.relation_id)
        if known is not None and relation.describes(known):
            return known
        schema = self._describe(relation, known)
        log.info("%s has a new shape from %s on: %d columns", schema.table, lsn, len(schema.columns))
        self._store.register_table(self._config.name, schema, lsn, by="stream")
        return self._store.add_schema(self._config.name, schema, lsn)

    def _describe(self, relation: Relation, known: TableSchema | None) -> TableSchema:
        with connect(self._source, "relations") as connection:
            found = catalog.describe(connection, self._config.publication, relation.relation_id)
            if found is not None and relation.describes(found.schema):
                return found.schema
            # The catalog is ahead of the stream: believe the stream, column by column.
            types = catalog.types(connection, [column.type_oid for column in relation.columns])
        return _from_relation(relation, types, known)


def _from_relation(relation: Relation, types: dict[int, catalog.BaseType], known: TableSchema | None) -> TableSchema:
    keys = {column.name: column.key for column in known.columns} if known else {}
    flagged = [column.name for column in relation.columns if column.identity]
    full = relation.identity is Identity.FULL
    columns = []
    for column in relation.columns:
        base = types.get(column.type_oid, catalog.UNKNOWN_TYPE)
        key = keys.get(column.name) if full else _position(flagged, column.name)
        columns.append(
            Column(
                name=column.name,
                attnum=0,  # the catalog can't be asked any more
                type_oid=column.type_oid,
                base_oid=base.oid,
                typmod=column.typmod if base.oid == column.type_oid else base.typmod,
                typmod_sent=column.typmod,
                element_oid=base.element_oid,
                type_name=base.name,
                nullable=True,
                key=key,
                identity=column.identity,
                toastable=base.toastable,
            )
        )
    schema = TableSchema(relation.relation_id, relation.table, tuple(columns), relation.identity)
    return replace(schema, version=known.version + 1 if known else 1)


def _position(names: list[str], name: str) -> int | None:
    return names.index(name) + 1 if name in names else None
