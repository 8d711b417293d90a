"""The lakehouse as a destination that takes files: Spark reads the spool and the source by itself."""

from __future__ import annotations

from typing import Literal

from airflow_provider_pgetl.lakehouse import copy, iceberg
from airflow_provider_pgetl.lakehouse.apply import Applier
from airflow_provider_pgetl.lakehouse.session import Sessions, check_server
from airflow_provider_pgetl.lakehouse.sql import LakeTable
from airflow_provider_pgetl.replication.destinations.base import (
    Applied,
    Changes,
    CopiedPartition,
    CopyPlan,
    Marker,
    Partition,
)
from airflow_provider_pgetl.replication.errors import ConfigError
from airflow_provider_pgetl.replication.schema import TableSchema


class LakeDestination:
    """Iceberg tables through a Spark Connect server; implements ``FileDestination``.

    ``url`` is ``sc://host:port``, ``catalog`` an Iceberg catalog that the server is configured with. ``source`` is
    the source's conninfo, needed for copies only; it goes to Spark's workers as a file, never into a plan.
    """

    name = "lake"
    takes_files: Literal[True] = True
    keeps_markers = True

    def __init__(self, url: str, *, catalog: str, source: str | None = None) -> None:
        self.catalog = catalog
        self._has_source = source is not None
        self._sessions = Sessions(url, catalog=catalog, source=source)
        self._applier = Applier(catalog)

    def startup(self) -> None:
        """Reach the server and check catalog and extensions."""
        self._sessions.reopen()
        self._sessions.run("checking the Spark server", lambda spark: check_server(spark, self.catalog))

    def shutdown(self) -> None:
        """Stop every session; what still runs is interrupted."""
        self._sessions.close()

    def marker(self, schema: TableSchema) -> Marker | None:
        """What main's snapshot says of the table."""
        table = self._table(schema)
        refs = self._sessions.run(f"reading the marker of {table}", lambda spark: iceberg.branches(spark, table))
        main = (refs or {}).get(iceberg.MAIN)
        return main.marker if main else None

    def apply(self, changes: Changes) -> Applied:
        """Fold and apply on a branch, then fast-forward."""
        doing = f"applying changes to {changes.schema.table}"
        return self._sessions.run(doing, lambda spark: self._applier.apply(spark, changes))

    def begin_copy(self, plan: CopyPlan) -> None:
        """Make the generation's invisible branch."""
        table = self._table(plan.schema)
        self._sessions.run(f"beginning the copy of {table}", lambda spark: copy.begin(spark, table, plan))

    def copy_partition(self, plan: CopyPlan, partition: Partition) -> CopiedPartition:
        """Run one Spark job that reads the partition and appends it to the branch."""
        if not self._has_source:
            raise ConfigError("a copy needs the source's conninfo", hint="Pass source= to LakeDestination.")
        table, file = self._table(plan.schema), self._sessions.source_file
        return self._sessions.run(
            f"copying partition {partition.number} of {table}",
            lambda spark: copy.bring(spark, table, plan, partition, file),
        )

    def finish_copy(self, plan: CopyPlan) -> None:
        """Mark the branch as complete."""
        table = self._table(plan.schema)
        self._sessions.run(f"finishing the copy of {table}", lambda spark: copy.finish(spark, table, plan))

    def promote(self, changes: Changes) -> Applied:
        """Apply to the copy, then swap it in."""
        doing = f"promoting the copy of {changes.schema.table}"
        return self._sessions.run(doing, lambda spark: self._applier.promote(spark, changes))

    def cancel(self) -> None:
        """Interrupt every call that runs now, from any thread: it raises. Later calls are taken."""
        self._sessions.cancel()

    def _table(self, schema: TableSchema) -> LakeTable:
        return LakeTable.of(self.catalog, schema.table)
