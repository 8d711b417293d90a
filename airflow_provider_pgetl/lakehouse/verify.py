"""Source = lake at one LSN: both sides read as Arrow, hashed by one function.

The stream is asked to hold, a slot snapshot S is taken on the source, and the stream is asked for a cut at exactly S.
Then the source is read under the snapshot, here, by the copy's own reader, and the lake at the cut's snapshots, by
Spark; both give rows and a hash. The stream spools all the while and goes on to apply as soon as the cut is made.
"""

# ruff: noqa: S608 - names pass through sql.py
from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql.connect.session import SparkSession

from airflow_provider_pgetl.lakehouse.hashing import Digest, digest
from airflow_provider_pgetl.lakehouse.session import Sessions
from airflow_provider_pgetl.lakehouse.sql import LakeTable, quote, row_columns
from airflow_provider_pgetl.replication.errors import NotSupported, PgEtlError
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.progress import Cut, PipelineRecord, TableRecord
from airflow_provider_pgetl.replication.schema import TableName, TableSchema
from airflow_provider_pgetl.replication.source import catalog
from airflow_provider_pgetl.replication.source.partitions import plan_partitions
from airflow_provider_pgetl.replication.source.snapshot import SnapshotHolder, open_snapshot
from airflow_provider_pgetl.replication.state import StateKind
from airflow_provider_pgetl.replication.store.base import Store
from airflow_provider_pgetl.replication.table_copy import read_partition

log = logging.getLogger(__name__)

_BY = "check"
_POLL_S = 0.1
_ATTEMPTS = 5
_HASH_DDL = "n bigint, a bigint, b bigint"
_HASH_ARROW = pa.schema([("n", pa.int64()), ("a", pa.int64()), ("b", pa.int64())])


class NoCut(PgEtlError):
    """The stream made no cut at the snapshot's LSN."""

    default_hint = "Check that the stream runs and is not paused."


@dataclass(frozen=True, slots=True)
class Compared:
    """One table at one LSN; ``problem`` says why a side could not be read."""

    table: TableName
    lsn: Lsn
    source: Digest | None = None
    lake: Digest | None = None
    problem: str | None = None

    @property
    def equal(self) -> bool:
        return self.problem is None and self.source == self.lake


@dataclass(frozen=True, slots=True)
class Check:
    """A check of one pipeline's tables."""

    store: Store
    sessions: Sessions
    source: str
    pipeline: PipelineRecord
    timeout: float = 120.0

    def run(self, tables: Sequence[TableName] = ()) -> Iterator[Compared]:
        """Compare the named tables, or all of the pipeline, at one LSN; what is not ready is said, not skipped."""
        records = [one for one in self.store.tables(self.pipeline.name) if not tables or one.table in tables]
        missing = set(tables) - {one.table for one in records}
        yield from (Compared(one, Lsn(0), problem="not a table of the pipeline") for one in sorted(missing))
        ready = [one for one in records if one.state.kind is StateKind.READY]
        for one in records:
            if one not in ready:
                yield Compared(one.table, Lsn(0), problem=f"not ready: {one.state.kind}")
        if ready:
            holder, cut = self._cut([one.table for one in ready])
            with holder:
                yield from (self._compare(one, holder, cut) for one in ready)

    def _cut(self, tables: Sequence[TableName]) -> tuple[SnapshotHolder, Cut]:
        deadline = time.monotonic() + self.timeout
        reason = ""
        for _ in range(_ATTEMPTS):
            # Without the hold the lake may be past the snapshot before anybody can ask for it.
            self._ask("hold", {"seconds": self.timeout}, deadline)
            holder = open_snapshot(self.source, tables)
            try:
                result = self._ask("cut", {"lsn": str(holder.lsn)}, deadline)
                cut = self.store.cut_at(self.pipeline.name, holder.lsn)
            except BaseException:
                holder.close()
                raise
            if cut is not None and "error" not in result:
                return holder, cut
            holder.close()
            reason = str(result.get("error", ""))
        raise NoCut(f"the stream of {self.pipeline.name} made no cut at the snapshot: {reason}")

    def _ask(self, kind: str, payload: dict[str, Any], deadline: float) -> dict[str, Any]:
        name = self.pipeline.name
        command = self.store.ask(name, kind, payload, by=_BY)
        while time.monotonic() < deadline:
            result = self.store.command_result(name, command)
            if result is not None:
                return result
            time.sleep(_POLL_S)
        raise NoCut(f"the stream of {name} did not answer within {self.timeout:.0f} s")

    def _compare(self, record: TableRecord, holder: SnapshotHolder, cut: Cut) -> Compared:
        compared = Compared(record.table, cut.lsn)
        snapshots = {one.relation_id: one.snapshot_id for one in cut.tables}
        snapshot_id = snapshots.get(record.relation_id)
        if snapshot_id is None:
            return replace(compared, problem="not part of the cut")
        try:
            schema = self._schema(record)
            lake = LakeTable.of(self.sessions.catalog, schema.table)
            there = self.sessions.run(f"hashing {lake}", lambda spark: hash_lake(spark, lake, snapshot_id, schema))
            here = hash_source(self.source, self.pipeline.publication, holder, schema)
        except PgEtlError as error:
            return replace(compared, problem=str(error))
        return replace(compared, source=here, lake=there)

    def _schema(self, record: TableRecord) -> TableSchema:
        schema = self.store.schema_version(record.pipeline, record.relation_id, record.schema_version or 1)
        if schema is None:
            raise NotSupported(f"the schema of {record.table} is not known", hint="Resync the table.")
        return schema


def hash_source(source: str, publication: str, holder: SnapshotHolder, schema: TableSchema) -> Digest:
    """Read the table under the snapshot, as a copy would, and hash it."""
    published = catalog.describe(holder.connection, publication, schema.relation_id)
    if published is None or published.schema.columns != schema.columns:
        raise NotSupported(f"the columns of {schema.table} are not those that were copied", hint="Resync the table.")
    total = Digest()
    for partition in plan_partitions(holder.connection, published, 1):
        total += digest(read_partition(source, holder.snapshot, partition.select, schema, holder.lsn), schema)
    return total


def hash_lake(spark: SparkSession, table: LakeTable, snapshot_id: int, schema: TableSchema) -> Digest:
    """Hash the table at a snapshot where its rows are: in Spark's Python workers."""
    names = ", ".join(quote(name) for name, _ in row_columns(schema))
    rows = spark.sql(f"select {names} from {table.at(snapshot_id)}")
    sums = rows.mapInArrow(_hasher(schema.to_json()), _HASH_DDL).collect()
    total = Digest()
    for count, first, second in sums:
        total += Digest(count, first % 2**64, second % 2**64)
    return total


def _hasher(schema: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for ``mapInArrow``: one row of sums for each Spark partition."""

    def hash_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from airflow_provider_pgetl.lakehouse.hashing import digest
        from airflow_provider_pgetl.lakehouse.verify import sums
        from airflow_provider_pgetl.replication.schema import TableSchema

        yield sums(digest(batches, TableSchema.from_json(schema)))

    return hash_rows


def sums(found: Digest) -> pa.RecordBatch:
    """A digest as a row of signed numbers, the only ones that Spark has."""
    signed = [number - 2**64 if number >= 2**63 else number for number in (found.first, found.second)]
    return pa.RecordBatch.from_arrays(
        [pa.array([one], pa.int64()) for one in (found.rows, *signed)], schema=_HASH_ARROW
    )
