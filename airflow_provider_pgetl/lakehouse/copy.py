"""A table's copy: one Spark job per partition -> a branch that no reader sees.

The branch of a generation grows from what is visible now and begins with a commit that empties it, so the swap at
the end is a fast-forward. Each partition is one commit that names it; one whose commit is in the branch's history
is not brought again. The last commit carries the marker: the copy is complete at its snapshot's LSN.
"""

from __future__ import annotations

import logging
import re
import time

from pyspark.sql.connect.session import SparkSession

from airflow_provider_pgetl.lakehouse import iceberg
from airflow_provider_pgetl.lakehouse.apply import copy_branch
from airflow_provider_pgetl.lakehouse.copy_worker import reader
from airflow_provider_pgetl.lakehouse.sql import LakeTable, row_ddl
from airflow_provider_pgetl.replication.destinations.base import CopiedPartition, CopyPlan, Partition
from airflow_provider_pgetl.replication.errors import DestinationError, Overtaken
from airflow_provider_pgetl.replication.failpoints import hit

log = logging.getLogger(__name__)

_COPY = re.compile(r"pgetl_copy_(\d+)")


def begin(spark: SparkSession, table: LakeTable, plan: CopyPlan) -> None:
    """Make the generation's branch, empty; an earlier generation's goes, a later one's stops this one."""
    iceberg.create_table(spark, table, plan.schema)
    refs = iceberg.branches(spark, table) or {}
    for name in refs:
        found = _COPY.fullmatch(name)
        if found and int(found[1]) > plan.generation:
            raise Overtaken(f"generation {found[1]} of {table} is being copied (this is {plan.generation})")
        if found:
            iceberg.drop_branch(spark, table, name)
    branch, visible = copy_branch(plan.generation), refs.get(iceberg.MAIN)
    _refuse_known(table, plan, visible)
    iceberg.create_branch(spark, table, branch, visible.snapshot_id if visible else None)
    if visible:
        iceberg.delete_all(spark, table, branch)


def _refuse_known(table: LakeTable, plan: CopyPlan, visible: iceberg.Ref | None) -> None:
    """A generation is new when it begins: one that the lake has seen comes from a state that was lost."""
    marker = visible.marker if visible else None
    if marker is not None and marker.generation >= plan.generation:
        raise DestinationError(
            f"{table} holds generation {marker.generation} already, and generation {plan.generation} is to be copied",
            hint="The state of the pipeline was reset: drop the lake's table, then resync.",
        )


def bring(
    spark: SparkSession, table: LakeTable, plan: CopyPlan, partition: Partition, source_file: str
) -> CopiedPartition:
    """Copy one partition by one Spark job, unless it is in."""
    started = time.monotonic()
    branch = copy_branch(plan.generation)
    part = iceberg.parts(spark, table, branch, plan.generation).get(partition.number)
    if part is None:
        read = reader(
            source_file=source_file,
            snapshot=plan.snapshot,
            select=partition.select,
            schema=plan.schema.to_json(),
            lsn=int(plan.lsn),
        )
        one_row = spark.range(0, 1, 1, 1)
        properties = {iceberg.PART: f"{plan.generation}/{partition.number}"}
        tag = f"pgetl-copy-{plan.schema.relation_id}-{plan.generation}-{partition.number}"
        spark.addTag(tag)
        try:
            iceberg.append(one_row.mapInArrow(read, row_ddl(plan.schema)), table, branch, properties)
        finally:
            spark.removeTag(tag)
        hit("copy.appended")
        part = iceberg.parts(spark, table, branch, plan.generation)[partition.number]
    seconds = time.monotonic() - started
    log.info("copied partition %d of %s: %d rows in %.1f s", partition.number, table, part.rows, seconds)
    return CopiedPartition(partition.number, part.rows, part.bytes, seconds)


def finish(spark: SparkSession, table: LakeTable, plan: CopyPlan) -> None:
    """Check that every partition is in, and mark the branch as complete at the plan's LSN."""
    branch = copy_branch(plan.generation)
    found = iceberg.parts(spark, table, branch, plan.generation)
    missing = [one.number for one in plan.partitions if one.number not in found]
    if missing:
        raise DestinationError(
            f"{len(missing)} of {len(plan.partitions)} partitions of {table} are not in",
            hint="Copy them, then finish; or resync the table.",
        )
    properties = iceberg.marker_properties(lsn=plan.lsn, from_lsn=plan.lsn, generation=plan.generation, epoch=0)
    iceberg.append_nothing(spark, table, branch, plan.schema, properties)
