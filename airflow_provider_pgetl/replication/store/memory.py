"""The store in memory: for tests, and for a first pipeline without a database. Nothing survives the process.

Each part of the contract has its file, as in Postgres; ``memory_data`` owns the data and the one lock that makes
every call a transaction. JSON goes through JSON, so that what comes back is what a database would give back.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from airflow_provider_pgetl.replication.store.memory_cuts import MemoryCuts, MemorySamples
from airflow_provider_pgetl.replication.store.memory_destination import MemoryDestinations
from airflow_provider_pgetl.replication.store.memory_lease import MemoryLeases
from airflow_provider_pgetl.replication.store.memory_ledger import MemoryLedger
from airflow_provider_pgetl.replication.store.memory_lifecycle import MemoryLifecycle
from airflow_provider_pgetl.replication.store.memory_state import MemoryStates


class MemoryStore(
    MemoryStates, MemoryLifecycle, MemoryDestinations, MemoryLeases, MemoryLedger, MemoryCuts, MemorySamples
):
    """A ``Store`` in this process; ``clock`` is what leases and ages go by."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)

    def close(self) -> None:
        """Nothing to let go of."""


if TYPE_CHECKING:
    from airflow_provider_pgetl.replication.store.base import Store

    _keeps_the_contract: type[Store] = MemoryStore
