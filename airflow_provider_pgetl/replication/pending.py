"""Changes that are decoded and not yet durable."""

from __future__ import annotations

import time
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
    since: float | None = None
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
        if self.since is None:
            self.since = time.monotonic()

    @property
    def empty(self) -> bool:
        return self.since is None

    @property
    def age_s(self) -> float:
        """Seconds since the first change came in."""
        return 0.0 if self.since is None else time.monotonic() - self.since

    @property
    def last_committed_at(self) -> datetime | None:
        return None if self.committed_at is None else datetime.fromtimestamp(self.committed_at / 1e6, UTC)
