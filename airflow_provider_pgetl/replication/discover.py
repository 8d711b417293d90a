"""Discovery: check the source, make the slot, register the tables. Repeatable."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from airflow_provider_pgetl.replication.config import PipelineConfig
from airflow_provider_pgetl.replication.errors import NotSupported, SourceError
from airflow_provider_pgetl.replication.progress import PipelineRecord, TableRecord
from airflow_provider_pgetl.replication.schema import Identity
from airflow_provider_pgetl.replication.source import catalog, preflight, slots
from airflow_provider_pgetl.replication.source.catalog import Publication, PublishedTable
from airflow_provider_pgetl.replication.source.connection import connect
from airflow_provider_pgetl.replication.store.base import Store

log = logging.getLogger(__name__)


def discover(
    config: PipelineConfig, source: str, store: Store, *, by: str, run_id: str | None = None
) -> list[TableRecord]:
    """Register the pipeline and its published tables; the slot is made after the publication was seen.

    A slot made before its publication fails on 15 and silently skips changes on 18.
    """
    with connect(source, "discover") as connection:
        preflight.check_server(connection)
        publication = catalog.publication(connection, config.publication)
        tables = catalog.published_tables(connection, config.publication)
        check_tables(config.publication, publication, tables)
        server = catalog.server(connection)
        position = slots.ensure(source, connection, config.slot)
    store.register_pipeline(
        PipelineRecord(
            name=config.name,
            publication=config.publication,
            slot=config.slot,
            system_identifier=server.system_identifier,
            timeline=server.timeline,
            spooled_lsn=position,
        )
    )
    return [store.register_table(config.name, table.schema, position, by=by) for table in tables]


def check_tables(name: str, publication: Publication, tables: Iterable[PublishedTable]) -> None:
    """Refuse what can't be mirrored, before anything is made."""
    found = list(tables)
    if not found:
        raise SourceError(
            f"the publication {name!r} has no tables",
            hint=f'Add some: alter publication "{name}" add table ...',
        )
    if "insert" not in publication.actions:
        raise SourceError(f"the publication {name!r} does not publish inserts", hint="Publish all actions.")
    changing = publication.actions & {"update", "delete"}
    for table in found:
        schema = table.schema
        if not schema.columns:
            raise NotSupported(f"{schema.table} publishes no columns")
        if changing and not schema.key:
            raise NotSupported(
                f"{schema.table} has no key, and the publication sends its {' and '.join(sorted(changing))}s",
                hint="Give it a primary key or a replica identity index, or take it out of the publication.",
            )
        if changing and schema.identity is Identity.NOTHING:
            raise NotSupported(
                f"{schema.table} has REPLICA IDENTITY NOTHING: Postgres refuses its updates and deletes",
                hint=f"alter table {schema.table} replica identity default",
            )
