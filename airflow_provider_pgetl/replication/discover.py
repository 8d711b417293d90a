"""Discovery: check the source, make the slot, register the tables. Repeatable."""

from __future__ import annotations

import logging

from airflow_provider_pgetl.replication.config import PipelineConfig
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.progress import PipelineRecord, TableRecord
from airflow_provider_pgetl.replication.source import catalog, ddl, slots
from airflow_provider_pgetl.replication.source.connection import Connection, connect
from airflow_provider_pgetl.replication.source.marks import source_marks
from airflow_provider_pgetl.replication.source.preflight import preflight, refuse
from airflow_provider_pgetl.replication.store.base import Store

log = logging.getLogger(__name__)


def discover(
    config: PipelineConfig, source: str, store: Store, *, by: str, run_id: str | None = None
) -> list[TableRecord]:
    """Register the pipeline and its published tables; the slot is made after the publication was seen.

    A slot made before its publication fails on 15 and silently skips changes on 18. A slot that a known pipeline
    has lost is not made anew here: what it missed must be copied again, and that is the stream's to decide.
    """
    known = store.pipeline(config.name)
    with connect(source, "discover") as connection:
        findings = preflight(connection, config.publication, config.slot)
        for finding in findings:
            log.info("preflight of %s: %s", config.name, finding)
        refuse(findings)
        captured = ddl.ensure(connection, config.ddl_capture)
        log.info("schema changes of %s: %s (%s)", config.name, captured.what, captured.hint)
        tables = catalog.published_tables(connection, config.publication)
        marks = source_marks(connection, config.publication)
        server = catalog.server(connection)
        position = known.spooled_lsn if known else _slot(config, source, connection)
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
    records = [store.register_table(config.name, table.schema, position, by=by) for table in tables]
    return [_marked(store, record, marks.get(record.relation_id)) for record in records]


def _slot(config: PipelineConfig, source: str, connection: Connection) -> Lsn:
    return slots.ensure(source, connection, config.slot, failover=config.slot_failover)


def _marked(store: Store, record: TableRecord, mark: str | None) -> TableRecord:
    """How the table is published when it is first seen; later changes are the watch's to judge."""
    if mark is None or record.source_mark is not None:
        return record
    return store.mark_source(record.pipeline, record.relation_id, mark)
