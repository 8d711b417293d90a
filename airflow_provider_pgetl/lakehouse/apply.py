"""Pending changes of one table -> one new visible snapshot, exactly once.

The steps, on a branch of this writer's epoch that is made from the very snapshot whose marker is known:

    delete   rows of the keys that the changes touch, pruned by key range (all rows after a TRUNCATE)
    append   the folded rows, in a commit that carries the marker
    publish  fast-forward main to the branch: refused if main has moved since

Readers of main see the table before or after, nothing between. Killed anywhere, a replay starts over from main.
"""

from __future__ import annotations

import logging
import re
import threading

from pyspark.errors import PySparkException
from pyspark.sql.connect.session import SparkSession

from airflow_provider_pgetl.lakehouse import iceberg
from airflow_provider_pgetl.lakehouse.failures import Refused, translate
from airflow_provider_pgetl.lakehouse.fold import Fold, delete_statement, rows_query
from airflow_provider_pgetl.lakehouse.iceberg import Ref
from airflow_provider_pgetl.lakehouse.pending import Pending, inspect
from airflow_provider_pgetl.lakehouse.sql import LakeTable, change_ddl
from airflow_provider_pgetl.replication.batch import lake_column
from airflow_provider_pgetl.replication.destinations.base import Applied, Changes, Marker
from airflow_provider_pgetl.replication.errors import DestinationError, NotSupported, Overtaken
from airflow_provider_pgetl.replication.failpoints import hit
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.pg_types import lake_type
from airflow_provider_pgetl.replication.schema import TableSchema

log = logging.getLogger(__name__)

ATTEMPTS = 3

_VIEW = "pgetl_changes"
_WORK = re.compile(r"pgetl_(\d+)")
_COPY = re.compile(r"pgetl_copy_(\d+)")


def work_branch(epoch: int) -> str:
    """The branch that a writer of this epoch prepares a table on."""
    return f"pgetl_{epoch:d}"


def copy_branch(generation: int) -> str:
    """The branch that a copy fills."""
    return f"pgetl_copy_{generation:d}"


class Applier:
    """Applies changes; remembers each table's marker, and relies on the fast-forward to learn that main moved."""

    def __init__(self, catalog: str) -> None:
        self._catalog = catalog
        # By table: the epoch that looked, and what it found.
        self._known: dict[LakeTable, tuple[int, Marker]] = {}
        self._lock = threading.Lock()

    def apply(self, spark: SparkSession, changes: Changes) -> Applied:
        """Make the visible table hold every commit before ``to_lsn``."""
        table = LakeTable.of(self._catalog, changes.schema.table)
        for _ in range(ATTEMPTS):
            marker = self._marker(spark, table, changes)
            pending = _pending(changes, marker)
            if not pending.rows:
                return Applied(marker.snapshot_id)
            try:
                prepare(spark, table, changes, pending, marker.snapshot_id)
                return self._publish(spark, table, changes, pending)
            except Refused:
                log.info("%s moved while changes up to %s were applied, looking again", table, changes.to_lsn)
                self.forget(table)
        raise DestinationError(
            f"{table} was changed by somebody else {ATTEMPTS} times in a row while changes were applied",
            hint="Only pgetl may write to the table: stop the other writer, then retry.",
        )

    def promote(self, spark: SparkSession, changes: Changes) -> Applied:
        """Apply ``changes`` to the complete copy of their generation, then make that the visible table."""
        table = LakeTable.of(self._catalog, changes.schema.table)
        refs = _refs(spark, table)
        visible = refs[iceberg.MAIN].marker if iceberg.MAIN in refs else None
        if visible is not None:
            _refuse_overtaken(visible, changes)
            if visible.generation == changes.generation:
                return self._promoted(spark, table, changes, refs)
        copied = _copied(refs, table, changes.generation)
        pending = _pending(changes, copied)
        prepare(spark, table, changes, pending, copied.snapshot_id)
        hit("promote.prepared")
        applied = self._swap(spark, table, changes, pending)
        hit("promote.swapped")
        _drop_leftovers(spark, table, refs, changes)
        iceberg.drop_branch(spark, table, copy_branch(changes.generation))
        return applied

    def forget(self, table: LakeTable) -> None:
        """Read the table's marker anew next time."""
        with self._lock:
            self._known.pop(table, None)

    def _promoted(self, spark: SparkSession, table: LakeTable, changes: Changes, refs: dict[str, Ref]) -> Applied:
        """The generation is visible already: what is left is to bring it up to ``to_lsn`` and to tidy up."""
        if copy_branch(changes.generation) in refs:
            iceberg.drop_branch(spark, table, copy_branch(changes.generation))
        self.forget(table)
        return self.apply(spark, changes)

    def _marker(self, spark: SparkSession, table: LakeTable, changes: Changes) -> Marker:
        with self._lock:
            epoch, known = self._known.get(table, (None, None))
        marker = known if known and epoch == changes.epoch else self._first_touch(spark, table, changes)
        _refuse_overtaken(marker, changes)
        if marker.generation < changes.generation:
            raise DestinationError(
                f"{table} holds generation {marker.generation}, changes are for {changes.generation}",
                hint="The copy of the table was not promoted: resync the table.",
            )
        return marker

    def _first_touch(self, spark: SparkSession, table: LakeTable, changes: Changes) -> Marker:
        refs = _refs(spark, table)
        marker = refs[iceberg.MAIN].marker if iceberg.MAIN in refs else None
        if marker is None:
            raise DestinationError(
                f"{table} carries no mark of pgetl",
                hint="It was never copied, or somebody else wrote to it: resync the table.",
            )
        _refuse_overtaken(marker, changes)
        _drop_leftovers(spark, table, refs, changes)
        self._remember(table, changes.epoch, marker)
        return marker

    def _remember(self, table: LakeTable, epoch: int, marker: Marker) -> None:
        with self._lock:
            self._known[table] = (epoch, marker)

    def _publish(self, spark: SparkSession, table: LakeTable, changes: Changes, pending: Pending) -> Applied:
        try:
            snapshot_id = iceberg.fast_forward(spark, table, work_branch(changes.epoch))
        except PySparkException as error:
            raise translate(error, f"publishing {table}") from error
        hit("apply.published")
        self._remember(table, changes.epoch, _marker(changes, snapshot_id))
        return Applied(snapshot_id, pending.inserts + pending.updates, pending.deletes)

    def _swap(self, spark: SparkSession, table: LakeTable, changes: Changes, pending: Pending) -> Applied:
        """The copy grew from what was visible when it began, so this is a fast-forward, unless that has moved."""
        try:
            return self._publish(spark, table, changes, pending)
        except Refused:
            log.info("%s moved since its copy began, replacing it", table)
        refs = _refs(spark, table)
        visible = refs[iceberg.MAIN].marker if iceberg.MAIN in refs else None
        if visible is not None:
            _refuse_overtaken(visible, changes)
        snapshot_id = iceberg.set_current(spark, table, work_branch(changes.epoch))
        self._remember(table, changes.epoch, _marker(changes, snapshot_id))
        return Applied(snapshot_id, pending.inserts + pending.updates, pending.deletes)


def prepare(spark: SparkSession, table: LakeTable, changes: Changes, pending: Pending, base: int) -> None:
    """Bring the writer's branch to the state after the changes, its last commit carrying the marker."""
    branch = work_branch(changes.epoch)
    properties = iceberg.marker_properties(
        lsn=changes.to_lsn, from_lsn=pending.from_lsn, generation=changes.generation, epoch=changes.epoch
    )
    iceberg.create_branch(spark, table, branch, base)
    hit("apply.branched")
    if pending.truncated is not None:
        iceberg.delete_all(spark, table, branch)
    if not (pending.inserts or pending.updates or pending.deletes):
        iceberg.append_nothing(spark, table, branch, changes.schema, properties)
        return
    _open_view(spark, changes)
    fold = Fold(changes.schema, pending, _VIEW, table, base)
    if pending.truncated is None and (statement := delete_statement(fold, table.branch(branch))):
        spark.sql(statement)
    hit("apply.deleted")
    iceberg.append(spark.sql(rows_query(fold)), table, branch, properties)
    hit("apply.appended")


def _marker(changes: Changes, snapshot_id: int) -> Marker:
    return Marker(changes.to_lsn, changes.generation, changes.epoch, snapshot_id)


def _open_view(spark: SparkSession, changes: Changes) -> None:
    paths = [file.path for file in changes.files]
    spark.read.schema(change_ddl(changes.schema)).parquet(*paths).createOrReplaceTempView(_VIEW)


def _pending(changes: Changes, marker: Marker) -> Pending:
    """What is not in yet of the changes, looked at and found to be applicable."""
    from_lsn = Lsn(max(changes.from_lsn, marker.lsn))
    known = {changes.schema.version, *(version.schema.version for version in changes.versions)}
    unknown = any(file.schema_version not in known for file in changes.files)
    if unknown or any(_shape(version.schema) != _shape(changes.schema) for version in changes.versions):
        raise NotSupported(
            f"the columns or the name of {changes.schema.table} changed",
            hint="Such changes are not followed yet: drop the lake's table, then resync.",
        )
    if from_lsn >= changes.to_lsn or not changes.files:
        return Pending(from_lsn, changes.to_lsn)
    pending = inspect(changes.schema, changes.files, from_lsn, changes.to_lsn)
    if not changes.schema.key and not pending.insert_only:
        raise NotSupported(
            f"{changes.schema.table} has no key, and rows of it were updated or deleted",
            hint="Add a primary key, or a unique index as replica identity, then resync the table.",
        )
    return pending


def _shape(schema: TableSchema) -> tuple[object, ...]:
    """What the lake sees of a schema: a default or NOT NULL may change without it."""
    columns = [(lake_column(one.name), lake_type(one), one.attnum, one.key, one.identity) for one in schema.columns]
    return schema.table, schema.identity, columns


def _refs(spark: SparkSession, table: LakeTable) -> dict[str, Ref]:
    refs = iceberg.branches(spark, table)
    if refs is None:
        raise DestinationError(f"{table} does not exist", hint="It was dropped, or never copied: resync the table.")
    return refs


def _copied(refs: dict[str, Ref], table: LakeTable, generation: int) -> Marker:
    ref = refs.get(copy_branch(generation))
    marker = ref.marker if ref else None
    if marker is None:
        raise DestinationError(
            f"the copy of {table}, generation {generation}, is not complete", hint="Resync the table."
        )
    return marker


def _refuse_overtaken(marker: Marker, changes: Changes) -> None:
    table = changes.schema.table
    if marker.epoch > changes.epoch:
        raise Overtaken(
            f"{table} was written by epoch {marker.epoch} (this is {changes.epoch})",
            hint="A newer run owns the table. If the state was reset, drop the lake's table and resync.",
        )
    if marker.generation > changes.generation:
        raise DestinationError(
            f"{table} holds generation {marker.generation} already (this is {changes.generation})",
            hint="Resync the table. If the state was reset, drop the lake's table first.",
        )


def _drop_leftovers(spark: SparkSession, table: LakeTable, refs: dict[str, Ref], changes: Changes) -> None:
    """Remove branches of writers and copies that this one has overtaken; a newer writer's branch stops this one."""
    for name in refs:
        work, copy = _WORK.fullmatch(name), _COPY.fullmatch(name)
        if work and int(work[1]) > changes.epoch:
            raise Overtaken(f"epoch {work[1]} is at work on {table} (this is {changes.epoch})")
        if (work and int(work[1]) < changes.epoch) or (copy and int(copy[1]) < changes.generation):
            log.info("dropping the leftover branch %s of %s", name, table)
            iceberg.drop_branch(spark, table, name)
