"""Source = lake at one LSN, over the whole way: copy, stream, apply, cut; and a check that can fail."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgetl.lakehouse.destination import LakeDestination
from airflow_provider_pgetl.lakehouse.session import Sessions
from airflow_provider_pgetl.lakehouse.verify import Check, Compared, NoCut
from airflow_provider_pgetl.local.process import wait_until
from airflow_provider_pgetl.replication.config import BatchConfig, DdlCapture, PipelineConfig
from airflow_provider_pgetl.replication.discover import discover
from airflow_provider_pgetl.replication.pipeline import Pipeline
from airflow_provider_pgetl.replication.schema import TableName
from airflow_provider_pgetl.replication.state import StateKind
from airflow_provider_pgetl.replication.store.memory import MemoryStore
from airflow_provider_pgetl.replication.table_copy import copy_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_provider_pgetl.local.postgres import Database
    from airflow_provider_pgetl.local.spark import SparkServer

SETUP = """
create schema checked;
create table checked.items (
    id bigint primary key, name text, price numeric(10,2), tags text[], at timestamptz, day date
);
create table checked.empty (id int primary key);
insert into checked.items
    select i, 'n' || i, i / 3.0, array['a', i::text], now(), current_date from generate_series(1, 500) i;
insert into checked.items values
    (1001, 'odd', 'NaN', '{{1,2},{3,4}}', 'infinity', '-infinity'),
    (1002, null, null, null, null, null);
create publication checked for tables in schema checked;
"""
CHANGES = """
update checked.items set name = 'changed' where id % 3 = 0;
delete from checked.items where id % 5 = 0;
update checked.items set id = id + 5000 where id % 7 = 0;
insert into checked.items values (2001, 'new', 'NaN', array[]::text[], '-infinity', 'infinity');
"""


class Mirror:
    """A running pipeline into the lake."""

    def __init__(self, database: Database, spark: SparkServer, folder: Path) -> None:
        self.database = database
        self.config = PipelineConfig(
            "checked",
            "checked",
            str(folder),
            BatchConfig(100),
            pg_connection=database.conninfo,
            apply_interval_ms=100,
            ddl_capture=DdlCapture.OFF,
        )
        self.store = MemoryStore()
        self.sessions = Sessions(spark.url, catalog="lake")
        self.destination = LakeDestination(spark.url, catalog="lake", source=database.conninfo)
        self.pipeline = Pipeline(self.config, self.store, self.destination, copies=False)

    async def start(self) -> None:
        records = await asyncio.to_thread(discover, self.config, self.database.conninfo, self.store, by="test")
        await self.pipeline.start()
        for record in records:
            await asyncio.to_thread(
                copy_table, self.config, self.database.conninfo, self.store, self.destination, record, by="test"
            )
        await asyncio.to_thread(wait_until, self.ready, timeout=120)

    def ready(self) -> bool:
        return {record.state.kind for record in self.store.tables("checked")} == {StateKind.READY}

    async def execute(self, statements: str) -> None:
        def run() -> None:
            with self.database.connect() as connection:
                connection.execute(statements)  # type: ignore[call-overload]

        await asyncio.to_thread(run)

    async def check(self, *tables: TableName, patience: float = 60) -> dict[str, Compared]:
        pipeline = self.store.pipeline("checked")
        assert pipeline is not None
        check = Check(self.store, self.sessions, self.database.conninfo, pipeline, patience)
        found = await asyncio.to_thread(lambda: list(check.run(tables)))
        return {str(one.table): one for one in found}

    async def stop(self) -> None:
        await self.pipeline.shutdown()
        await asyncio.to_thread(self.sessions.close)


@pytest.fixture
async def mirror(
    database: Database, spark: SparkServer, spark_session: SparkSession, tmp_path: Path
) -> AsyncIterator[Mirror]:
    mirror = Mirror(database, spark, tmp_path)
    await mirror.execute(SETUP)
    await mirror.start()
    yield mirror
    await mirror.stop()
    for table in ("items", "empty"):
        spark_session.sql(f"drop table lake.checked.{table}")


async def test_copied_and_streamed_tables_equal_the_source_and_a_changed_row_is_found(
    mirror: Mirror, spark_session: SparkSession
) -> None:
    copied = await mirror.check()
    assert copied["checked.items"].source is not None
    assert copied["checked.items"].source.rows == 502
    assert all(one.equal for one in copied.values()), copied

    await mirror.execute(CHANGES)
    streamed = await mirror.check()
    assert all(one.equal for one in streamed.values()), streamed
    assert streamed["checked.items"].source != copied["checked.items"].source
    assert streamed["checked.items"].lsn == streamed["checked.empty"].lsn > copied["checked.items"].lsn

    # Somebody alters a row of the lake behind our back, and the next commit of ours builds on it.
    table = next(one for one in mirror.store.tables("checked") if one.table.name == "items")
    marker = "'pgetl.applied-lsn', 'pgetl.generation', 'pgetl.epoch', 'pgetl.from-lsn'"
    summary = spark_session.sql(
        f"select map_filter(summary, (k, v) -> k in ({marker})) from lake.checked.items.snapshots "
        "order by committed_at desc limit 1"
    ).collect()[0][0]
    for name, value in summary.items():
        spark_session.conf.set(f"spark.sql.iceberg.snapshot-property.{name}", value)
    spark_session.sql("update lake.checked.items set price = price + 1 where id = 1")
    await mirror.execute("update checked.items set name = 'again' where id = 2")
    altered = await mirror.check(table.table)
    assert list(altered) == ["checked.items"]
    assert not altered["checked.items"].equal
    assert altered["checked.items"].problem is None


async def test_without_an_answer_from_the_stream_there_is_no_verdict(mirror: Mirror) -> None:
    await mirror.pipeline.shutdown()
    with pytest.raises(NoCut, match="did not answer"):
        await mirror.check(patience=0.5)
    unknown = await mirror.check(TableName("checked", "nobody"))
    assert unknown["checked.nobody"].problem == "not a table of the pipeline"


def test_the_command_without_a_running_demo_could_not_check(tmp_path: Path) -> None:
    from airflow_provider_pgetl.cli import check
    from airflow_provider_pgetl.local.errors import CheckFailed

    with pytest.raises(CheckFailed, match="no demo runs"):
        check.run(Namespace(home=tmp_path, table=[], pipeline=None, timeout=1.0))
