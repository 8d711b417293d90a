from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgetl.local import process
from airflow_provider_pgetl.local.errors import StartFailed
from airflow_provider_pgetl.local.places import pgetl_home
from airflow_provider_pgetl.local.postgres import Database, EmbeddedPostgres
from airflow_provider_pgetl.local.spark import SparkServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow


def test_iceberg_table_is_written_and_read(spark_session: SparkSession) -> None:
    spark_session.sql("create namespace if not exists lake.local_spark")
    spark_session.sql("create table lake.local_spark.t (id bigint, name string) using iceberg")
    spark_session.sql("insert into lake.local_spark.t values (1, 'one'), (2, 'two')")
    found = spark_session.sql("select name from lake.local_spark.t order by id").collect()
    assert [row.name for row in found] == ["one", "two"]
    spark_session.sql("drop table lake.local_spark.t purge")


def test_python_runs_on_the_server(spark_session: SparkSession) -> None:
    def twice(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        import pyarrow.compute as pc

        for batch in batches:
            yield pa.record_batch({"id": pc.multiply(batch.column(0), 2)})

    found = spark_session.range(3).mapInArrow(twice, "id long").collect()
    assert sorted(row.id for row in found) == [0, 2, 4]


def test_catalog_password_is_not_on_the_command_line(spark: SparkServer, database: Database) -> None:
    import psutil

    assert spark.pid is not None
    assert database.password not in " ".join(psutil.Process(spark.pid).cmdline())


def test_stopped_and_killed_servers_leave_no_process(postgres: EmbeddedPostgres, scratch: Path) -> None:
    catalog = postgres.create_database("own_spark_catalog")
    server = SparkServer(
        scratch / "own-spark", catalog=catalog, warehouse=scratch / "own-lake", ivy=pgetl_home() / "ivy"
    )
    for end in (server.stop, server.kill):
        server.start()
        assert server.pid is not None
        family = [server.pid, *(one.pid for one in process.descendants(server.pid))]
        end()
        import psutil

        assert not [pid for pid in family if psutil.pid_exists(pid)]
        assert not process.port_answers(server.port)


def test_server_that_can_not_start_is_told_in_one_line(postgres: EmbeddedPostgres, scratch: Path) -> None:
    server = SparkServer(
        scratch / "bad-spark",
        catalog=postgres.database("postgres"),
        warehouse=scratch / "bad-lake",
        ivy=pgetl_home() / "ivy",
        settings={"spark.master": "nonsense"},
    )
    with pytest.raises(StartFailed, match="Spark did not start"):
        server.start()
