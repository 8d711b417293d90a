# ruff: noqa: S608 - names and literals pass through sql.py
"""Everything that is Iceberg's own, as narrow functions over a session: tables, branches, snapshots, markers.

The marker of a table stands in the summary of the snapshot that its main branch points to:

    pgetl.applied-lsn   every commit before this LSN (decimal) is in
    pgetl.from-lsn      the commit began where the one before ended
    pgetl.generation    the copy that the rows descend from
    pgetl.epoch         the lease that wrote it

A commit by somebody else on main hides the marker, so the applier redoes nothing: it stops with an error.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql.connect.dataframe import DataFrame
from pyspark.sql.connect.session import SparkSession

from airflow_provider_pgetl.lakehouse.sql import LakeTable, quote, row_columns, row_ddl, text
from airflow_provider_pgetl.replication.destinations.base import Marker
from airflow_provider_pgetl.replication.errors import NotSupported
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.schema import TableSchema

log = logging.getLogger(__name__)

MAIN = "main"
APPLIED, FROM, GENERATION, EPOCH = "pgetl.applied-lsn", "pgetl.from-lsn", "pgetl.generation", "pgetl.epoch"
PART = "pgetl.part"

PROPERTIES = {
    "format-version": "3",
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    # Copy jobs append to one branch side by side.
    "commit.retry.num-retries": "20",
    # Each apply is four small commits: keep the metadata files from piling up.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "50",
}


@dataclass(frozen=True, slots=True)
class Ref:
    """A branch and the snapshot it points to."""

    name: str
    snapshot_id: int
    summary: Mapping[str, str]

    @property
    def marker(self) -> Marker | None:
        """The marker in the snapshot's summary, if there is one."""
        if APPLIED not in self.summary:
            return None
        return Marker(
            lsn=Lsn(int(self.summary[APPLIED])),
            generation=int(self.summary[GENERATION]),
            epoch=int(self.summary[EPOCH]),
            snapshot_id=self.snapshot_id,
        )


@dataclass(frozen=True, slots=True)
class Part:
    """A partition of a copy that is in: what its commit added."""

    rows: int
    bytes: int


def marker_properties(*, lsn: int, from_lsn: int, generation: int, epoch: int) -> dict[str, str]:
    """The summary entries of a commit that carries a marker."""
    return {APPLIED: str(int(lsn)), FROM: str(int(from_lsn)), GENERATION: str(generation), EPOCH: str(epoch)}


def branches(spark: SparkSession, table: LakeTable) -> dict[str, Ref] | None:
    """Every branch with its snapshot's summary, in one query; None if there is no such table."""
    query = (
        f"select r.name, r.snapshot_id, s.summary from {table.metadata('refs')} r "
        f"join {table.metadata('snapshots')} s on r.snapshot_id = s.snapshot_id where r.type = 'BRANCH'"
    )
    try:
        rows = spark.sql(query).collect()
    except AnalysisException as error:
        if error.getCondition() in {"TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND"}:
            return None
        raise
    return {row[0]: Ref(row[0], row[1], row[2] or {}) for row in rows}


def create_table(spark: SparkSession, table: LakeTable, schema: TableSchema) -> None:
    """Make the table, and its namespace; one that is there with the same columns is left as it is."""
    _create_namespace(spark, table)
    properties = ", ".join(f"{text(key)} = {text(value)}" for key, value in PROPERTIES.items())
    spark.sql(f"create table if not exists {table.sql} ({row_ddl(schema)}) using iceberg tblproperties ({properties})")
    check_columns(spark, table, schema)


def _create_namespace(spark: SparkSession, table: LakeTable) -> None:
    """Copies of several tables begin at once, and a JDBC catalog fails the second of two who make one namespace."""
    statement = f"create namespace if not exists {table.namespace}"
    try:
        spark.sql(statement)
    except PySparkException:
        log.info("somebody else makes the namespace of %s, looking again", table)
        spark.sql(statement)


def check_columns(spark: SparkSession, table: LakeTable, schema: TableSchema) -> None:
    """Raise ``NotSupported`` unless the lake's table has exactly the columns of ``schema``."""
    have = {field.name: field.dataType.simpleString() for field in spark.table(table.sql).schema.fields}
    want = dict(row_columns(schema))
    if have == want:
        return
    names = sorted(name for name in have.keys() | want.keys() if have.get(name) != want.get(name))
    raise NotSupported(
        f"the columns of {table} are not those of the source any more: {', '.join(names)}",
        hint="Changed columns are not followed yet: drop the lake's table, then resync.",
    )


def create_branch(spark: SparkSession, table: LakeTable, name: str, snapshot_id: int | None) -> None:
    """Make the branch, or move it, to exactly that snapshot; None: to an empty table's beginning."""
    version = "" if snapshot_id is None else f" as of version {snapshot_id:d}"
    spark.sql(f"alter table {table.sql} create or replace branch {quote(name)}{version}")


def drop_branch(spark: SparkSession, table: LakeTable, name: str) -> None:
    """Remove the branch, if it is there."""
    spark.sql(f"alter table {table.sql} drop branch if exists {quote(name)}")


def fast_forward(spark: SparkSession, table: LakeTable, branch: str) -> int:
    """Move main to the branch, unless main has moved elsewhere since the branch was made; returns the snapshot."""
    call = f"call {quote(table.catalog)}.system.fast_forward({table.argument}, {text(MAIN)}, {text(branch)})"
    row = spark.sql(call).collect()[0]
    return int(row["updated_ref"])


def set_current(spark: SparkSession, table: LakeTable, branch: str) -> int:
    """Move main to the branch, wherever main is; returns the snapshot."""
    call = f"call {quote(table.catalog)}.system.set_current_snapshot(table => {table.argument}, ref => {text(branch)})"
    row = spark.sql(call).collect()[0]
    return int(row["current_snapshot_id"])


def append(rows: DataFrame, table: LakeTable, branch: str, properties: Mapping[str, str]) -> None:
    """Append to the branch in one commit whose snapshot summary holds ``properties``."""
    writer: Any = rows.writeTo(table.branch(branch))
    for key, value in properties.items():
        writer = writer.option(f"snapshot-property.{key}", value)
    writer.append()


def append_nothing(
    spark: SparkSession, table: LakeTable, branch: str, schema: TableSchema, properties: Mapping[str, str]
) -> None:
    """A commit without rows, to carry ``properties``."""
    nulls = ", ".join(f"cast(null as {kind}) as {quote(name)}" for name, kind in row_columns(schema))
    append(spark.sql(f"select {nulls} where false"), table, branch, properties)


def delete_all(spark: SparkSession, table: LakeTable, branch: str) -> None:
    """Empty the branch; files are only left out, nothing is rewritten."""
    spark.sql(f"delete from {table.branch(branch)} where true")


def parts(spark: SparkSession, table: LakeTable, branch: str, generation: int) -> dict[int, Part]:
    """The copy's partitions that are in the branch's own history, by number.

    Snapshots of a branch that was since replaced stay in the table for a while, so the line is followed.
    """
    head = spark.sql(f"select snapshot_id from {table.metadata('refs')} where name = {text(branch)}").collect()
    snapshots = spark.sql(f"select snapshot_id, parent_id, summary from {table.metadata('snapshots')}").collect()
    by_id = {row[0]: (row[1], row[2] or {}) for row in snapshots}
    found: dict[int, Part] = {}
    current = head[0][0] if head else None
    while current in by_id:
        current, summary = by_id[current]
        owner, _, number = summary.get(PART, "").partition("/")
        if number and int(owner) == generation:
            rows, size = summary.get("added-records", "0"), summary.get("added-files-size", "0")
            found[int(number)] = Part(int(rows), int(size))
    return found
