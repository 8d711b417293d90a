"""A destination on the shared Spark server, and the means to look at what it wrote."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgetl.lakehouse.destination import LakeDestination
from tests.integration.lakehouse.spooling import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_provider_pgetl.local.spark import SparkServer


@pytest.fixture(scope="session")
def destination(spark: SparkServer) -> Iterator[LakeDestination]:
    """One destination for all tests: its sessions stay warm."""
    destination = LakeDestination(spark.url, catalog="lake")
    destination.startup()
    yield destination
    destination.shutdown()


@pytest.fixture
def lake(destination: LakeDestination, spark: SparkServer, spark_session: SparkSession, tmp_path: Path) -> Lake:
    spark_session.conf.set("spark.sql.caseSensitive", "true")
    spark_session.conf.set("spark.sql.catalog.lake.cache-enabled", "false")
    return Lake(destination, spark_session, tmp_path)


@pytest.fixture
def fresh(spark: SparkServer) -> Iterator[LakeDestination]:
    """A second destination, as a new process would have it: it remembers nothing."""
    destination = LakeDestination(spark.url, catalog="lake")
    yield destination
    destination.shutdown()
