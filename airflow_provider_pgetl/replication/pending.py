"""Changes that are decoded and not yet durable."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

import pyarrow as pa

from airflow_provider_pgetl.replication.decode.decoder import Decoded
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.spool.segments import TableVersion


@dataclass(slots=True)
class Pending:
    """Whole transactions, or a piece of one that is too large to be held."""

    tables: dict[TableVersion, list[pa.RecordBatch]] = field(default_factory=dict)
    rows: int = 0
    bytes: int = 0
    transactions: int = 0
    end_lsn: Lsn | None = None
    committed_at: int | None = None

    def add(self, decoded: Decoded) -> None:
        for changes in decoded.changes:
            version = (changes.schema.relation_id, changes.schema.version)
            self.tables.setdefault(version, []).append(changes.batch)
            self.rows += changes.batch.num_rows
            self.bytes += changes.batch.nbytes
        self.transactions += decoded.transactions
        self.end_lsn = decoded.end_lsn or self.end_lsn
        self.committed_at = decoded.committed_at or self.committed_at

    def merge(self, other: Pending) -> None:
        """Take in what came later."""
        for version, batches in other.tables.items():
            self.tables.setdefault(version, []).extend(batches)
        self.rows += other.rows
        self.bytes += other.bytes
        self.transactions += other.transactions
        self.end_lsn = other.end_lsn or self.end_lsn
        self.committed_at = other.committed_at or self.committed_at

    @property
    def empty(self) -> bool:
        return not self.tables and self.end_lsn is None

    @property
    def last_committed_at(self) -> datetime | None:
        return None if self.committed_at is None else datetime.fromtimestamp(self.committed_at / 1e6, UTC)
