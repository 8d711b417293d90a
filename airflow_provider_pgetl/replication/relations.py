"""From what the stream says of a table to its schema: where stream, catalog and store meet.

With the source's DDL trigger the stream itself tells of every change, at its very place. Without it a Relation
message tells the new shape with the first change that follows, and the catalog, if it is not ahead by then, tells
which column is which (attnum). Where nobody can tell, the version says so, and the applier puts the table aside.

Versions of a table are walked in stream order: after a restart the same messages lead to the same versions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from airflow_provider_pgetl.replication.config import PipelineConfig
from airflow_provider_pgetl.replication.decode.ddl import PREFIX, DdlMessage, read_ddl
from airflow_provider_pgetl.replication.decode.messages import Message, Relation
from airflow_provider_pgetl.replication.errors import DecodeError
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.schema import Column, Identity, SchemaVersion, TableSchema
from airflow_provider_pgetl.replication.source import catalog
from airflow_provider_pgetl.replication.source.connection import connect
from airflow_provider_pgetl.replication.store.base import Store
from airflow_provider_pgetl.replication.store.rules import same_shape

log = logging.getLogger(__name__)

_BY = "stream"
_REPLACED = "a column was dropped and added again under its name"
_USING = "a column was given another type by an expression (USING)"

Matches = Callable[[TableSchema], bool]


class Relations:
    """Resolves the relations of one connection; a shape that was not seen before becomes a new schema version.

    ``captured``: the source tells of its DDL, so what is stored and fits needs no look at the catalog.
    """

    def __init__(self, config: PipelineConfig, source: str, store: Store, *, captured: bool = False) -> None:
        self._config = config
        self._source = source
        self._store = store
        self._captured = captured
        # Where each table stands among its versions.
        self._current: dict[int, SchemaVersion] = {}
        # Of these the stream itself has told, whatever was known when it began.
        self._told: set[int] = set()

    def resolve(self, relation: Relation, lsn: Lsn) -> TableSchema:
        """The stored schema that the relation describes, stored now if it is new."""
        known = self._walk(relation.relation_id, lsn, relation.describes)
        if known is None:
            return self._add(self._describe(relation), lsn)
        told = self._captured or relation.relation_id in self._told
        replaced = None if told else self._replaced(relation, known.schema)
        return self._stand(known) if replaced is None else self._add(replaced, lsn)

    def announce(self, message: Message, lsn: Lsn) -> None:
        """Take in the schema that a DDL message brings, if it is one and of a table of ours."""
        if message.prefix != PREFIX:
            return
        try:
            ddl = read_ddl(message.content)
        except DecodeError as error:
            # Anybody can write such a message. What it would have told, the catalog must.
            log.error("schema changes are looked up from here on: %s", error)
            self._captured = False
            self._told.clear()
            return
        if self._store.table(self._config.name, ddl.relation_id) is None:
            return
        self._told.add(ddl.relation_id)
        schema = self._announced(ddl)
        known = self._walk(ddl.relation_id, lsn, lambda stored: _is(stored, schema))
        if known is not None:
            self._store.register_table(self._config.name, schema, lsn, by=_BY)
            self._stand(known)
        else:
            self._add(schema, lsn)

    def _walk(self, relation_id: int, lsn: Lsn, matches: Matches) -> SchemaVersion | None:
        """The first version from where the table stands on, up to ``lsn``, that matches.

        On first sight it stands at what held before this transaction: of a transaction that changed the table in
        its middle, the first part comes in the old shape.
        """
        versions = self._store.schemas(self._config.name, relation_id)
        current = self._current.get(relation_id)
        if current is None:
            earlier = [at for at, version in enumerate(versions) if version.lsn < lsn]
            start = earlier[-1] if earlier else 0
        else:
            names = [version.schema.version for version in versions]
            start = names.index(current.schema.version) if current.schema.version in names else 0
        return next((v for v in versions[start:] if v.lsn <= lsn and matches(v.schema)), None)

    def _stand(self, version: SchemaVersion) -> TableSchema:
        self._current[version.schema.relation_id] = version
        return version.schema

    def _add(self, schema: TableSchema, lsn: Lsn) -> TableSchema:
        self._store.register_table(self._config.name, schema, lsn, by=_BY)
        added = self._store.add_schema(self._config.name, schema, lsn)
        log.info("%s has version %d from %s on: %d columns", added.table, added.version, lsn, len(added.columns))
        return self._stand(SchemaVersion(lsn, added))

    def _describe(self, relation: Relation) -> TableSchema:
        """A shape that is not known yet: the catalog's, if it agrees with the stream."""
        with connect(self._source, "relations") as connection:
            found = catalog.describe(connection, self._config.publication, relation.relation_id)
            if found is not None and relation.describes(found.schema):
                return found.schema
            # The catalog is ahead of the stream: believe the stream, column by column.
            types = catalog.types(connection, [column.type_oid for column in relation.columns])
        before = self._current.get(relation.relation_id)
        return _from_relation(relation, types, before.schema if before else None)

    def _replaced(self, relation: Relation, known: TableSchema) -> TableSchema | None:
        """The shape of a table of which the catalog says that its columns are other ones, though they look alike."""
        if any(not column.attnum for column in known.columns):
            return None
        with connect(self._source, "relations") as connection:
            found = catalog.describe(connection, self._config.publication, relation.relation_id)
        if found is None or not relation.describes(found.schema) or _numbers(found.schema) == _numbers(known):
            return None
        # When it happened nobody knows: values of the old column and of the new one can't be told apart.
        return replace(found.schema, rewrite=_REPLACED)

    def _announced(self, ddl: DdlMessage) -> TableSchema:
        with connect(self._source, "relations") as connection:
            listed = catalog.column_list(connection, self._config.publication, ddl.relation_id)
            all_sent = catalog.sends_generated(connection, self._config.publication)
        unsent = frozenset() if all_sent else ddl.generated
        columns = tuple(c for c in ddl.columns if (c.name in listed if listed is not None else c.name not in unsent))
        reason = _USING if ddl.rewritten and ddl.using else None
        return TableSchema(ddl.relation_id, ddl.table, columns, ddl.identity, rewrite=reason)


def _is(stored: TableSchema, schema: TableSchema) -> bool:
    """Whether a stored version is what a DDL message brings; a rewrite is a version of its own."""
    return same_shape(stored, schema) and (schema.rewrite is None or stored.rewrite == schema.rewrite)


def _numbers(schema: TableSchema) -> list[int]:
    return [column.attnum for column in schema.columns]


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
    return TableSchema(relation.relation_id, relation.table, tuple(columns), relation.identity)


def _position(names: list[str], name: str) -> int | None:
    return names.index(name) + 1 if name in names else None
