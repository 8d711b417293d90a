"""Small values and steps that the store's contract is written with."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeVar

import pytest

from airflow_provider_pgetl.replication.errors import Retry
from airflow_provider_pgetl.replication.lsn import ZERO, Lsn
from airflow_provider_pgetl.replication.progress import Lease, PipelineRecord, Segment, SpoolFile, TableRecord
from airflow_provider_pgetl.replication.schema import Column, Identity, TableName, TableSchema
from airflow_provider_pgetl.replication.state import READY, StateKind, TableState
from airflow_provider_pgetl.replication.store.base import Store

ORDERS, ITEMS = 16_384, 4_294_967_295  # the largest oid needs more than int4
TTL_S = 60.0
ERROR = TableState(StateKind.ERRORED, reason="the lake refused", hint="look at it", retry=Retry.MANUAL)
Answer = TypeVar("Answer")


def make_pipeline(name: str = "shop") -> PipelineRecord:
    """A pipeline at 0/0."""
    return PipelineRecord(name, "shop_pub", f"pgetl_{name}", "7012345678901234567", 1, ZERO)


def make_schema(relation_id: int = ORDERS, table: str = "orders", columns: int = 2) -> TableSchema:
    """A table with a key and ``columns`` columns in all."""
    named = [("id", 1), *((f"c{number}", None) for number in range(2, columns + 1))]
    return TableSchema(
        relation_id,
        TableName("public", table),
        tuple(
            Column(
                name=name,
                attnum=attnum,
                type_oid=20,
                base_oid=20,
                typmod=-1,
                typmod_sent=-1,
                element_oid=0,
                type_name="bigint",
                nullable=key is None,
                key=key,
                identity=key is not None,
            )
            for attnum, (name, key) in enumerate(named, 1)
        ),
        Identity.DEFAULT,
    )


def make_file(
    first: int, last: int, *, relation_id: int = ORDERS, path: str | None = None, version: int = 1
) -> SpoolFile:
    """A file with commits from ``first`` to ``last``."""
    where = path or f"{relation_id}/{first}-{last}"
    return SpoolFile(relation_id, version, where, 3, 100, "c0ffee", Lsn(first), Lsn(last))


def make_segment(start: int, end: int, *files: SpoolFile) -> Segment:
    """A flush of ``[start, end)``."""
    rows, size = sum(file.rows for file in files), sum(file.bytes for file in files)
    return Segment(Lsn(start), Lsn(end), files, rows, size, datetime(2026, 1, 2, 3, 4, 5, 678901, UTC))


def wait_for(attempt: Callable[[], Answer | None], what: str, seconds: float = 10.0) -> Answer:
    """The first answer that is not None."""
    deadline = time.monotonic() + seconds
    while (answer := attempt()) is None:
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.01)
    return answer


def taken(store: Store, owner: str = "one", name: str = "stream", ttl_s: float = TTL_S) -> Lease:
    """The lease, which must be free."""
    lease = store.acquire("shop", name, owner, ttl_s)
    assert lease is not None
    return lease


def stored(store: Store, relation_id: int = ORDERS) -> TableRecord:
    """The table as the store has it."""
    record = store.table("shop", relation_id)
    assert record is not None
    return record


def spooled_lsn(store: Store) -> Lsn:
    """The ledger's position."""
    pipeline = store.pipeline("shop")
    assert pipeline is not None
    return pipeline.spooled_lsn


def walk_to_ready(store: Store, record: TableRecord, lsn: int = 100) -> TableRecord:
    """Move a table from ``init`` through every state."""
    at = Lsn(lsn)
    for state in (
        TableState(StateKind.DATA_SYNC),
        TableState(StateKind.FINISHED_COPY, at),
        TableState(StateKind.SYNC_WAIT, at),
        TableState(StateKind.CATCHUP, at),
        TableState(StateKind.SYNC_DONE, at),
        READY,
    ):
        record = store.move(record, state, by="test")
    return record


class Given:
    """What the parts of the suite build on."""

    @pytest.fixture
    def shop(self, store: Store) -> PipelineRecord:
        """The pipeline ``shop``, registered."""
        return store.register_pipeline(make_pipeline())

    @pytest.fixture
    def orders(self, store: Store, shop: PipelineRecord) -> TableRecord:
        """``public.orders`` in ``init``."""
        return store.register_table(shop.name, make_schema(), Lsn(10), by="discover")
