"""The store's contract.

Every method is blocking, thread-safe and one transaction. Progress only moves forward: a write of an older
position keeps the stored one (all but ``reset_all`` and ``rewind``). A write under a lease that was overtaken
raises ``Overtaken`` and writes nothing; so does a write for a generation that is no longer the table's. A store
that can't be reached raises ``StoreError``; the caller may repeat the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.progress import (
    Announcement,
    Command,
    Cut,
    CutTable,
    DestinationTable,
    Lease,
    PipelineRecord,
    Segment,
    SpoolFile,
    TableBacklog,
    TableRecord,
)
from airflow_provider_pgetl.replication.schema import SchemaVersion, TableSchema
from airflow_provider_pgetl.replication.state import TableState


class SchemaStore(Protocol):
    """Versioned schemas: a version holds from its LSN on. Their order is by LSN, then by version."""

    def add_schema(self, pipeline: str, schema: TableSchema, lsn: Lsn) -> TableSchema:
        """Keep ``schema`` from ``lsn`` on and return it with its version, a number that was never used before.

        Nothing is added if the version that holds at ``lsn`` has the same shape (``rules.same_shape``): that one is
        returned. If the first version after ``lsn`` has the same shape, it holds from ``lsn`` on and is returned: a
        copy may see a shape before the stream gets there. (Not if a version with a larger number begins at ``lsn``:
        it would come before that one.) A schema with ``rewrite`` is the same as another only at the very same LSN,
        and a version with ``rewrite`` stays where it is; one without is the same as a version that holds, rewritten
        or not.
        """

    def latest_schema(self, pipeline: str, relation_id: int) -> TableSchema | None:
        """The newest version: the last by LSN."""

    def schema_at(self, pipeline: str, relation_id: int, lsn: Lsn) -> TableSchema | None:
        """The version that holds at ``lsn``: the newest from that LSN or an earlier one; None if there is none."""

    def schemas(self, pipeline: str, relation_id: int) -> list[SchemaVersion]:
        """All versions, oldest first."""

    def prune_schemas(self, pipeline: str, relation_id: int, before: Lsn) -> int:
        """Forget versions that nobody at ``before`` or later needs; returns how many.

        The newest at or before ``before`` is kept, and so are those that a spool file still uses and those in which
        the destination's table is or may be; the largest number, too, so that none is used twice.
        """

    def schema_version(self, pipeline: str, relation_id: int, version: int) -> TableSchema | None:
        """That version."""


class StateStore(Protocol):
    """Pipelines and the states of their tables."""

    def register_pipeline(self, pipeline: PipelineRecord) -> PipelineRecord:
        """Add the pipeline or, if it is known, return what is stored with publication and slot renewed.

        ``spooled_lsn`` of a known pipeline is kept.
        """

    def pipeline(self, name: str) -> PipelineRecord | None:
        """The pipeline, if registered."""

    def pipelines(self) -> list[PipelineRecord]:
        """All pipelines by name."""

    def register_table(self, pipeline: str, schema: TableSchema, lsn: Lsn, *, by: str) -> TableRecord:
        """Add the table in ``init``, generation 1, with its schema from ``lsn`` on; the outbox gets a ``copy``.

        A known table is returned as is, with its new name if that changed.
        """

    def table(self, pipeline: str, relation_id: int) -> TableRecord | None:
        """One table."""

    def tables(self, pipeline: str) -> list[TableRecord]:
        """All tables of the pipeline, by name."""

    def move(
        self,
        record: TableRecord,
        to: TableState,
        *,
        by: str,
        run_id: str | None = None,
        copied_rows: int | None = None,
        schema_version: int | None = None,
    ) -> TableRecord:
        """Move the table of ``record``'s generation by ``transition()``; the history keeps who and when."""

    def new_generation(self, pipeline: str, relation_id: int, *, by: str, run_id: str | None = None) -> TableRecord:
        """Begin again at ``init`` with the next generation, from any state; the outbox gets a ``copy``.

        ``applied_lsn`` and ``snapshot_id`` are kept: the old rows stay readable until the swap.
        """

    def rollback(self, record: TableRecord, *, by: str) -> TableRecord:
        """Return to the state before the present one in this generation; ``IllegalTransition`` if there is none.

        A rollback undoes the last move that is not undone yet: a table that goes back again and again moves back
        through its history and never forward. It does not go back into an error, nor to the state in which it is.
        The history keeps who did it.
        """

    def mark_source(self, pipeline: str, relation_id: int, mark: str) -> TableRecord:
        """Remember how the source publishes the table; a new generation keeps it."""

    def applied(self, lease: Lease, record: TableRecord, lsn: Lsn, snapshot_id: int | None) -> TableRecord:
        """Record that the lake's table of this generation holds every commit before ``lsn``."""

    def history(self, pipeline: str, relation_id: int) -> list[tuple[int, TableState, str]]:
        """(generation, state, by) of every move, oldest first."""

    def delete_pipeline(self, name: str) -> None:
        """Forget the pipeline and all that belongs to it."""


class TableLifecycleStore(Protocol):
    """What happens to all that is kept of a table at once."""

    def prepare_for_copy(self, record: TableRecord) -> None:
        """Keep the state and the history, forget what the destination's table was (metadata, name map)."""

    def reset_all(self, pipeline: str, lease: Lease, lsn: Lsn, *, by: str) -> list[SpoolFile]:
        """Every table begins again at ``init`` with a new generation and no ``applied_lsn``, the ledger at ``lsn``
        (also backwards) without segments; returns the files that were registered, for deletion.

        The outbox gets a ``copy`` of each table. Schema versions from after ``lsn`` hold from ``lsn`` on: nothing
        that was seen lies ahead of what will be sent."""

    def delete_table(self, pipeline: str, relation_id: int) -> list[SpoolFile]:
        """Forget the table, its history, schemas, metadata and registered files; returns those files, for deletion.
        No error if it is unknown."""


class DestinationStore(Protocol):
    """What the destination calls the tables, and in which shape they are."""

    def applying(self, record: TableRecord, name: str, version: int) -> DestinationTable:
        """A schema change to ``version`` begins: the present version becomes the previous one. Repeatable.

        A change that was begun and not finished may be begun again, also to a later version; the previous one stays."""

    def applied_schema(self, record: TableRecord, name: str, version: int) -> DestinationTable:
        """The destination's table is in shape ``version``, which the table's record says from now on, too.

        No change is under way any more, and there is no previous version."""

    def destination_table(self, pipeline: str, relation_id: int) -> DestinationTable | None:
        """The destination's table; ``SchemaChangeUnderWay`` (manual) while a schema change is under way."""

    def destination_status(self, pipeline: str, relation_id: int) -> DestinationTable | None:
        """The same for recovery: also while a schema change is under way."""


class LeaseStore(Protocol):
    """Leases: one writer at a time, fenced by an epoch that only grows."""

    def acquire(self, pipeline: str, name: str, owner: str, ttl_s: float) -> Lease | None:
        """Take the lease if it is free, expired (by the store's clock) or already ``owner``'s; epoch + 1 each time."""

    def renew(self, lease: Lease, ttl_s: float) -> None:
        """Prolong it; ``Overtaken`` if another epoch holds it."""

    def release(self, lease: Lease) -> None:
        """Give it back so that the next owner need not wait; no error if it was overtaken."""


class LedgerStore(Protocol):
    """The spool's ledger: the moment of durability."""

    def add_segment(self, pipeline: str, lease: Lease, segment: Segment) -> int:
        """Register the files and move ``spooled_lsn`` to ``to_lsn`` in one transaction; returns the segment's id.

        A segment that begins before ``spooled_lsn`` is a replay and raises ``Overtaken``: its commits are in.
        """

    def advance(self, pipeline: str, lease: Lease, lsn: Lsn) -> None:
        """Nothing was committed before ``lsn`` that is not spooled: move ``spooled_lsn`` forward."""

    def files(self, pipeline: str, relation_id: int, from_lsn: Lsn, to_lsn: Lsn) -> list[SpoolFile]:
        """The table's files that may hold a commit in ``[from_lsn, to_lsn)``, oldest first."""

    def all_paths(self, pipeline: str) -> set[str]:
        """Paths of all registered files."""

    def expired_files(self, pipeline: str, older_than_s: float) -> list[SpoolFile]:
        """Files that their table has applied wholly (``last_lsn < applied_lsn`` in a state that the applier
        looks after) and whose segment is older than that."""

    def forget_files(self, pipeline: str, paths: Sequence[str]) -> None:
        """Remove files from the ledger, after they were deleted; segments left empty go too."""

    def backlog(self, pipeline: str) -> tuple[int, int]:
        """(files, bytes) registered and not yet applied by their table."""

    def table_backlogs(self, pipeline: str) -> list[TableBacklog]:
        """The same by table, the one furthest behind (oldest commit) first; of a file applied in part, the rest."""

    def spool_size(self, pipeline: str) -> tuple[int, int]:
        """(files, bytes) registered in all."""

    def rewind(self, pipeline: str, lease: Lease, lsn: Lsn) -> list[SpoolFile]:
        """Set ``spooled_lsn`` back to ``lsn``: segments that reach past it are forgotten; returns their files.

        If such a file also holds commits before ``lsn``, ``spooled_lsn`` goes back to the first of them: they are
        in the spool no more. A later ``lsn`` than ``spooled_lsn`` moves nothing.
        For WAL that will be sent again, or that is not the source's any more (a failover)."""

    def follow_timeline(self, pipeline: str, lease: Lease, timeline: int) -> PipelineRecord:
        """The source was promoted: remember its timeline."""


class CutStore(Protocol):
    """Cuts, and what people ask of the stream."""

    def record_cut(self, pipeline: str, lease: Lease, lsn: Lsn, tables: Sequence[CutTable]) -> Cut:
        """Record the cut and its outbox rows."""

    def latest_cut(self, pipeline: str) -> Cut | None:
        """The newest cut."""

    def cut_at(self, pipeline: str, lsn: Lsn) -> Cut | None:
        """The newest cut at exactly ``lsn``."""

    def announcements(self, pipeline: str, after: int = 0) -> list[Announcement]:
        """Rows of the outbox with a larger id than ``after``, oldest first; of each kind and table the newest only.

        Ids become visible in their order: who goes on from the last id seen misses nothing."""

    def ask(self, pipeline: str, kind: str, payload: dict[str, Any], *, by: str) -> int:
        """Ask the running stream for something; returns the command's id."""

    def open_commands(self, pipeline: str) -> list[Command]:
        """What was asked and not yet answered, oldest first."""

    def answer(self, pipeline: str, command_id: int, result: dict[str, Any]) -> None:
        """Close a command with its result."""

    def command_result(self, pipeline: str, command_id: int) -> dict[str, Any] | None:
        """The result, once there is one."""


class SampleStore(Protocol):
    """Figures over time, for charts and for people."""

    def add_sample(self, pipeline: str, values: dict[str, Any]) -> None:
        """Keep one sample (lag, rows, spool, seconds)."""

    def latest_sample(self, pipeline: str) -> dict[str, Any] | None:
        """The newest sample, with ``at``."""


class Store(
    SchemaStore,
    StateStore,
    TableLifecycleStore,
    DestinationStore,
    LeaseStore,
    LedgerStore,
    CutStore,
    SampleStore,
    Protocol,
):
    """All of it; a type usually implements all."""

    def close(self) -> None:
        """Let go of connections."""
