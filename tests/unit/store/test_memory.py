"""The store in memory keeps the contract."""

from __future__ import annotations

import pytest

from airflow_provider_pgetl.replication.store.base import Store
from airflow_provider_pgetl.replication.store.memory import MemoryStore
from airflow_provider_pgetl.testing.store import StoreContract


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self) -> Store:
        return MemoryStore()
