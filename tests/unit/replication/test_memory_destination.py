"""The destination in memory keeps the contract."""

from __future__ import annotations

import pytest

from airflow_provider_pgetl.replication.destinations.base import Destination
from airflow_provider_pgetl.replication.destinations.memory import MemoryDestination
from airflow_provider_pgetl.replication.events import Row
from airflow_provider_pgetl.testing.destination import DestinationContract


class TestMemoryDestination(DestinationContract):
    @pytest.fixture
    def destination(self) -> Destination:
        return MemoryDestination()

    def rows_of(self, destination: Destination, table: str) -> list[Row] | None:
        assert isinstance(destination, MemoryDestination)
        return destination.rows(table)
