"""A live pipeline over a fresh database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_pgetl.local.postgres import Database
from airflow_provider_pgetl.replication import failpoints
from tests.integration.pipeline.live import Live, make_live


@pytest.fixture
def live(database: Database, tmp_path: Path) -> Iterator[Live]:
    yield make_live(database, str(tmp_path / "spool"))
    failpoints.disarm()
