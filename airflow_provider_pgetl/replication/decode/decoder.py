"""Frames to changes: whole batches, transaction by transaction, grouped by table.

    Begin    int64 commit LSN, int64 commit time (µs since 2000), int32 xid
    Commit   byte flags, int64 commit LSN, int64 end LSN, int64 commit time
    Insert   int32 relation, 'N' tuple
    Update   int32 relation, ['K' old key tuple | 'O' old row tuple], 'N' tuple
    Delete   int32 relation, 'K' | 'O' tuple

Which transaction a change belongs to is the cumulative count of Begins before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_provider_pgetl.replication.batch import change_schema
from airflow_provider_pgetl.replication.decode import frames as wire
from airflow_provider_pgetl.replication.decode.changes import decode_changes, truncate_change
from airflow_provider_pgetl.replication.decode.frames import BODY, Frame, Frames, Positions
from airflow_provider_pgetl.replication.decode.messages import (
    Message,
    Relation,
    read_message,
    read_relation,
    read_truncate,
)
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.schema import TableSchema

# Postgres counts microseconds from 2000-01-01.
EPOCH_US = 946_684_800_000_000

Resolve = Callable[[Relation, Lsn], TableSchema]
Announce = Callable[[Message, Lsn], None]


@dataclass(frozen=True, slots=True)
class TableChanges:
    """Changes of one table version, in stream order."""

    schema: TableSchema
    batch: pa.RecordBatch


@dataclass(slots=True)
class Decoded:
    """What a batch of frames held.

    ``end_lsn``: end of the last commit, None if there was none. ``committed_at`` (µs since 1970) is its time.
    """

    changes: list[TableChanges] = field(default_factory=list)
    transactions: int = 0
    first_lsn: Lsn | None = None
    end_lsn: Lsn | None = None
    committed_at: int | None = None


@dataclass(slots=True, eq=False)
class Described:
    """A Relation message, the transaction that brought it and, once a change needs it, the schema behind it."""

    relation: Relation
    lsn: Lsn
    schema: TableSchema | None = None

    @property
    def resolved(self) -> TableSchema:
        """The schema, which a change has asked for."""
        assert self.schema is not None
        return self.schema


Spans = dict[int, list[tuple[int, Described]]]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where each message stands: its transaction's commit LSN and time, its ordinal there."""

    commit_lsn: npt.NDArray[np.int64]
    committed_at: npt.NDArray[np.int64]
    ordinal: npt.NDArray[np.int64]

    def truncate(self, index: int, schema: TableSchema) -> pa.RecordBatch:
        """The TRUNCATE at ``index`` as a change of one of its tables."""
        at = (int(self.commit_lsn[index]), int(self.ordinal[index]), int(self.committed_at[index]))
        return truncate_change(change_schema(schema), *at)


class Decoder:
    """Decodes the batches of one connection; knows its relations and the transaction that is open.

    ``resolve`` is asked for the schema behind a Relation message when a change first refers to it, ``announce`` is
    told of logical messages inside of transactions, in the order of the stream.
    """

    def __init__(self, resolve: Resolve, announce: Announce = lambda message, lsn: None) -> None:
        self._resolve = resolve
        self._announce = announce
        self._relations: dict[int, Described] = {}
        # Of the transaction that an earlier batch left open: commit LSN, commit time, messages so far.
        self._open: tuple[int, int, int] | None = None

    @property
    def in_transaction(self) -> bool:
        """Whether the last batch ended inside a transaction."""
        return self._open is not None

    def decode(self, raw: Sequence[Frame]) -> Decoded:
        """Decode one batch; it may begin and end inside a transaction."""
        decoded = Decoded()
        if not raw:
            return decoded
        frames = Frames(raw)
        _check_kinds(frames)
        place = self._place(frames, decoded)
        spans = self._read_relations(frames, place)
        groups = list(_group(frames, spans))
        truncates = list(_truncates(frames, spans))
        self._resolve_in_order(frames, place, [(int(rows[0]), one) for one, rows in groups] + truncates)
        found: list[tuple[int, TableChanges]] = []
        for described, rows in groups:
            batch = decode_changes(
                frames, described.resolved, rows, place.commit_lsn[rows], place.ordinal[rows], place.committed_at[rows]
            )
            found.append((int(rows[0]), TableChanges(described.resolved, batch)))
        for index, described in truncates:
            found.append((index, TableChanges(described.resolved, place.truncate(index, described.resolved))))
        # The versions of a table in their order, also if all that one of them has is a TRUNCATE.
        decoded.changes = [changes for _, changes in sorted(found, key=lambda one: one[0])]
        return decoded

    def _place(self, frames: Frames, decoded: Decoded) -> _Place:
        begins = np.flatnonzero(frames.kind == wire.BEGIN)
        commits = np.flatnonzero(frames.kind == wire.COMMIT)
        frames.require(begins, 20)
        frames.require(commits, 25)
        self._check_order(frames, begins, commits)
        lsn = frames.i64[frames.start[begins] + BODY].astype(np.int64)
        time = frames.i64[frames.start[begins] + BODY + 8].astype(np.int64) + EPOCH_US
        carried = self._open or (0, 0, 0)
        # Transaction 0 is the one that was open before this batch.
        number = np.cumsum(frames.kind == wire.BEGIN)
        first = np.concatenate([[-carried[2]], begins])
        place = _Place(
            np.concatenate([[carried[0]], lsn])[number],
            np.concatenate([[carried[1]], time])[number],
            np.arange(len(frames)) - first[number],
        )
        if len(commits):
            last = frames.start[commits[-1]] + BODY
            decoded.end_lsn = Lsn(frames.i64[last + 9])
            decoded.committed_at = int(frames.i64[last + 17]) + EPOCH_US
            decoded.first_lsn = Lsn(place.commit_lsn[commits[0]])
        decoded.transactions = len(commits)
        self._carry(frames, begins, commits, place)
        return place

    def _check_order(self, frames: Frames, begins: Positions, commits: Positions) -> None:
        """Begin and Commit alternate; a change outside of a transaction is a damaged stream."""
        steps = np.zeros(len(frames), np.int64)
        steps[begins] = 1
        steps[commits] = -1
        depth = np.cumsum(steps) + (1 if self._open else 0)
        if ((depth < 0) | (depth > 1)).any():
            frames.fail(int(((depth < 0) | (depth > 1)).argmax()), "begin and commit do not alternate")
        outside = (depth == 0) & wire.IS_CHANGE[frames.kind]
        if outside.any():
            frames.fail(int(outside.argmax()), "a change outside of a transaction")

    def _carry(self, frames: Frames, begins: Positions, commits: Positions, place: _Place) -> None:
        opened = bool(self._open) + len(begins) > len(commits)
        last = len(frames) - 1
        self._open = (
            (int(place.commit_lsn[last]), int(place.committed_at[last]), int(place.ordinal[last]) + 1)
            if opened
            else None
        )

    def _read_relations(self, frames: Frames, place: _Place) -> Spans:
        """For each table its descriptions with the index from which they hold; most have one.

        Postgres describes a table again after each change of it, also if the description is the same: a column
        that was dropped and added again under its name looks as before.
        """
        spans: Spans = {relation_id: [(0, known)] for relation_id, known in self._relations.items()}
        for index in np.flatnonzero(frames.kind == wire.RELATION):
            relation = read_relation(frames.body(int(index)))
            described = Described(relation, Lsn(place.commit_lsn[index]))
            spans.setdefault(relation.relation_id, []).append((int(index), described))
            self._relations[relation.relation_id] = described
        return spans

    def _resolve_in_order(self, frames: Frames, place: _Place, references: list[tuple[int, Described]]) -> None:
        """Look up the schemas that changes refer to, and tell of messages, in the order of the stream.

        Only what a change refers to: with publish_via_partition_root Postgres also describes the leaves.
        """
        steps: list[tuple[int, Described | None]] = [(at, one) for at, one in references if one.schema is None]
        steps += [(int(at), None) for at in np.flatnonzero(frames.kind == wire.MESSAGE)]
        for index, described in sorted(steps, key=lambda step: step[0]):
            if described is None:
                self._on_message(read_message(frames.body(index)), Lsn(place.commit_lsn[index]))
            elif described.schema is None:
                described.schema = self._resolve(described.relation, described.lsn)

    def _on_message(self, message: Message, lsn: Lsn) -> None:
        if message.transactional:
            self._announce(message, lsn)


def _group(frames: Frames, spans: Spans) -> Iterator[tuple[Described, Positions]]:
    """The changes of each table under each of its descriptions."""
    rows = np.flatnonzero(wire.IS_ROW[frames.kind])
    if not len(rows):
        return
    frames.require(rows, 7)
    relation = frames.i32[frames.start[rows] + BODY].astype(np.uint32)
    order = np.argsort(relation, kind="stable")
    rows, relation = rows[order], relation[order]
    edges = np.flatnonzero(np.diff(relation)) + 1
    for part in np.split(rows, edges):
        relation_id = int(np.uint32(frames.i32[frames.start[part[0]] + BODY].astype(np.uint32)))
        yield from _by_description(frames, part, spans.get(relation_id))


def _truncates(frames: Frames, spans: Spans) -> Iterator[tuple[int, Described]]:
    for index in map(int, np.flatnonzero(frames.kind == wire.TRUNCATE)):
        for relation_id in read_truncate(frames.body(index)).relation_ids:
            yield index, _description_at(frames, index, spans.get(relation_id))


def _check_kinds(frames: Frames) -> None:
    known = wire.IS_KNOWN[frames.kind]
    if not known.all():
        frames.fail(int(known.argmin()), "a message of an unknown kind")


def _by_description(
    frames: Frames, rows: Positions, versions: list[tuple[int, Described]] | None
) -> Iterator[tuple[Described, Positions]]:
    """Split a table's rows where its description changes inside the batch."""
    _description_at(frames, int(rows[0]), versions)
    assert versions is not None
    bounds = np.searchsorted(rows, [at for at, _ in versions[1:]])
    for (_, described), part in zip(versions, np.split(rows, bounds), strict=True):
        if len(part):
            yield described, part


def _description_at(frames: Frames, index: int, versions: list[tuple[int, Described]] | None) -> Described:
    for at, described in reversed(versions or []):
        if at <= index:
            return described
    return frames.fail(index, "a change of a relation that was never described")
