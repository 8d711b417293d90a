"""Where a stream begins: at the ledger's position, if the source is still the one that the ledger speaks of.

| found                                              | what follows                                              |
|----------------------------------------------------|-----------------------------------------------------------|
| another system                                     | an error: the connection points somewhere else            |
| a new timeline that branched after the ledger      | go on, the timeline is remembered                         |
| a new timeline that branched before the ledger     | all tables are copied again: two histories share no LSNs  |
| the slot is missing, invalidated or made anew      | ``invalidated_slot_behavior``: an error, or copy again    |
| the spool does not survive (``spool_durable=False``) | the ledger goes back to the slot, which knows what is applied |
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from airflow_provider_pgetl.replication.config import InvalidatedSlotBehavior, PipelineConfig
from airflow_provider_pgetl.replication.errors import SlotError, SlotLost
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.progress import Lease, PipelineRecord
from airflow_provider_pgetl.replication.source import catalog, ddl, slots
from airflow_provider_pgetl.replication.source.connection import Connection, connect
from airflow_provider_pgetl.replication.source.timelines import branch_point
from airflow_provider_pgetl.replication.spool.segments import Spool
from airflow_provider_pgetl.replication.store.base import Store

log = logging.getLogger(__name__)

_BY = "stream"


@dataclass(frozen=True, slots=True)
class Start:
    """The position to stream from, and whether the source tells of its DDL."""

    lsn: Lsn
    ddl_captured: bool


def start_position(
    config: PipelineConfig, source: str, store: Store, spool: Spool, lease: Lease, record: PipelineRecord
) -> Start:
    """Look at the source and the slot, and bring the ledger in line with them."""
    origin = _Origin(config, source, store, spool, lease)
    with connect(source, "stream-check") as connection:
        record = origin.follow(connection, record)
        return Start(origin.position(connection, record), ddl.installed(connection))


@dataclass(frozen=True, slots=True)
class _Origin:
    config: PipelineConfig
    source: str
    store: Store
    spool: Spool
    lease: Lease

    def follow(self, connection: Connection, record: PipelineRecord) -> PipelineRecord:
        """The pipeline on the source's present timeline."""
        found = catalog.server(connection)
        if found.system_identifier != record.system_identifier:
            raise SlotError(
                "the source is another server than the one that was discovered",
                hint="Point the connection at the right server, or drop the pipeline and discover it again.",
            )
        if found.timeline == record.timeline:
            return record
        branched = branch_point(self.source, record.timeline, found.timeline)
        log.warning("the source was promoted: timeline %d left %d at %s", found.timeline, record.timeline, branched)
        if branched < record.spooled_lsn:
            log.warning(
                "what was spooled up to %s is not the source's: all tables are copied again", record.spooled_lsn
            )
            self._begin_again(branched)
        return self.store.follow_timeline(record.name, self.lease, found.timeline)

    def position(self, connection: Connection, record: PipelineRecord) -> Lsn:
        """The ledger's position, which the slot has not passed."""
        try:
            slot = slots.require(connection, self.config.slot)
            if slot.confirmed > record.spooled_lsn:
                raise SlotLost(
                    f"the replication slot {slot.name!r} stands at {slot.confirmed}, past what was spooled"
                    f" ({record.spooled_lsn}): it was made anew, or somebody else has read from it"
                )
        except SlotLost as error:
            if self.config.invalidated_slot_behavior is InvalidatedSlotBehavior.ERROR:
                raise
            log.warning("the slot is made anew and all tables are copied again: %s", error.message)
            return self._recreate(connection)
        if self.config.slot_failover and not slot.failover:
            slots.ensure(self.source, connection, self.config.slot, failover=True)
        if self.config.spool_durable:
            return record.spooled_lsn
        files = self.store.rewind(record.name, self.lease, slot.confirmed)
        self.spool.delete(file.path for file in files)
        return slot.confirmed

    def _recreate(self, connection: Connection) -> Lsn:
        slots.drop(self.source, connection, self.config.slot)
        position = slots.create(self.source, self.config.slot, failover=self.config.slot_failover)
        self._begin_again(position)
        return position

    def _begin_again(self, position: Lsn) -> None:
        files = self.store.reset_all(self.config.name, self.lease, position, by=_BY)
        self.spool.delete(file.path for file in files)
