"""Real servers for the tests: one Postgres and one Spark Connect server for the whole run.

`postgres`   the server; stop, restart or kill only servers of your own, this one is shared
`database`   a fresh empty database, dropped after the test together with its replication slots
`spark`      a Spark Connect server with the Iceberg catalog `lake`, see `SparkServer.url`
`spark_session`  a Spark Connect session of the test's own on that server
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgetl.local.places import pgetl_home
from airflow_provider_pgetl.local.postgres import Database, EmbeddedPostgres
from airflow_provider_pgetl.local.spark import SparkServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The machine does not lose power during a test, so nothing is gained by waiting for the disk.
FAST = {
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "64MB",
    "max_prepared_transactions": "4",
    "max_replication_slots": "20",
}
_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything on this floor needs a server."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.integration)


@pytest.fixture(scope="session")
def scratch() -> Iterator[Path]:
    """A folder that other users may enter (pytest's own may not), removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="pgetl-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres(scratch: Path) -> Iterator[EmbeddedPostgres]:
    """One Postgres with wal_level=logical for the whole run."""
    with EmbeddedPostgres(scratch / "postgres", settings=FAST) as server:
        yield server


@pytest.fixture
def database(postgres: EmbeddedPostgres) -> Iterator[Database]:
    """A fresh empty database."""
    name = f"test_{next(_numbers)}"
    yield postgres.create_database(name)
    postgres.drop_database(name)


@pytest.fixture(scope="session")
def spark(postgres: EmbeddedPostgres, scratch: Path) -> Iterator[SparkServer]:
    """One Spark Connect server for the whole run; the jars are kept in PGETL_HOME between runs."""
    server = SparkServer(
        scratch / "spark",
        catalog=postgres.create_database("lake_catalog"),
        warehouse=scratch / "warehouse",
        ivy=pgetl_home() / "ivy",
    )
    with server:
        yield server


@pytest.fixture
def spark_session(spark: SparkServer) -> Iterator[SparkSession]:
    """A session of its own on the shared server."""
    from pyspark.sql import SparkSession

    session = SparkSession.builder.remote(spark.url).create()
    yield session
    session.stop()
