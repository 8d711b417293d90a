"""The keeper's rules over a store in memory and files in a folder: what goes, what stays, who is put aside."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_pgetl.replication import failpoints
from airflow_provider_pgetl.replication.config import BatchConfig, PipelineConfig
from airflow_provider_pgetl.replication.errors import Overtaken, Retry, SpoolError, StoreError
from airflow_provider_pgetl.replication.lsn import ZERO, Lsn
from airflow_provider_pgetl.replication.progress import Lease, Segment, SpoolFile, TableRecord
from airflow_provider_pgetl.replication.retention import PUT_ASIDE, SpoolKeeper, lost_files
from airflow_provider_pgetl.replication.spool.place import Space
from airflow_provider_pgetl.replication.spool.segments import Spool
from airflow_provider_pgetl.replication.state import READY, StateKind, TableState
from airflow_provider_pgetl.replication.store.memory import MemoryStore
from airflow_provider_pgetl.testing.store_values import make_pipeline, make_schema, walk_to_ready

A, B, C = 1, 2, 3
QUOTA = 100_000


@dataclass
class Scene:
    """A pipeline ``shop`` with the tables A, B and C in ``init``, and a clock that the test turns."""

    folder: Path
    seconds: float = 1000.0
    config: PipelineConfig = field(init=False)
    store: MemoryStore = field(init=False)
    spool: Spool = field(init=False)
    lease: Lease = field(init=False)

    def __post_init__(self) -> None:
        self.config = PipelineConfig(
            name="shop",
            publication="pub",
            spool_root=str(self.folder),
            batch=BatchConfig(max_bytes=1000),
            spool_retention_s=600,
            spool_quota_bytes=QUOTA,
        )
        self.store = MemoryStore(clock=lambda: self.seconds)
        self.store.register_pipeline(make_pipeline())
        for relation_id, name in ((A, "a"), (B, "b"), (C, "c")):
            self.store.register_table("shop", make_schema(relation_id, name), ZERO, by="test")
        self.spool = Spool(str(self.folder), "shop", 1)
        self.lease = self.take_lease()
        self.keeper = self.new_keeper()

    def take_lease(self) -> Lease:
        lease = self.store.acquire("shop", "stream", "test", 1e9)
        assert lease is not None
        return lease

    def new_keeper(self) -> SpoolKeeper:
        return SpoolKeeper(self.config, self.store, self.spool, self.lease, clock=lambda: self.seconds)

    def record(self, relation_id: int) -> TableRecord:
        record = self.store.table("shop", relation_id)
        assert record is not None
        return record

    def kind(self, relation_id: int) -> StateKind:
        return self.record(relation_id).state.kind

    def position(self) -> Lsn:
        pipeline = self.store.pipeline("shop")
        assert pipeline is not None
        return pipeline.spooled_lsn

    def add(self, *relations: int, size: int = 100) -> list[SpoolFile]:
        """One commit on each of the tables: a file of about ``size`` bytes for each, in one segment."""
        begin = self.position()
        commit = begin + 10
        batch = pa.RecordBatch.from_pydict(
            {"_commit_lsn": pa.array([commit], pa.int64()), "_op": ["i"], "v": [_bytes(size)]}
        )
        files = self.spool.write({(relation_id, 1): [batch] for relation_id in relations})
        size = sum(file.bytes for file in files)
        segment = Segment(begin, Lsn(commit + 10), files, len(files), size)
        self.store.add_segment("shop", self.lease, segment)
        return list(files)

    def ready(self, relation_id: int) -> None:
        walk_to_ready(self.store, self.record(relation_id), max(self.position(), 1))
        self.apply(relation_id)

    def apply(self, relation_id: int) -> None:
        self.store.applied(self.lease, self.record(relation_id), self.position(), None)

    def move(self, relation_id: int, kind: StateKind, lsn: Lsn | None = None) -> None:
        self.store.move(self.record(relation_id), TableState(kind, lsn), by="test")

    def fail(self, relation_id: int) -> None:
        state = TableState(StateKind.ERRORED, reason="broken", hint="mend it", retry=Retry.MANUAL)
        self.store.move(self.record(relation_id), state, by="test")

    def tidy(self) -> None:
        self.keeper.tidy(now=True)

    def left(self) -> set[str]:
        """The files on the disk, which are the registered ones."""
        there = {str(path) for path in self.folder.rglob("*") if path.is_file()}
        assert there == self.store.all_paths("shop")
        return there


def _bytes(size: int) -> bytes:
    import random

    return random.Random(size).randbytes(size)


def paths(*files: SpoolFile) -> set[str]:
    return {file.path for file in files}


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    yield Scene(tmp_path)
    failpoints.disarm()


def test_applied_files_go_after_the_retention_and_others_stay(scene: Scene) -> None:
    scene.ready(A)
    scene.ready(B)
    old_a, old_b = scene.add(A, B)
    scene.apply(A)
    scene.seconds += 590
    (young_a,) = scene.add(A)
    scene.apply(A)
    scene.tidy()
    assert scene.left() == paths(old_a, old_b, young_a), "the retention has not passed"
    scene.seconds += 20
    scene.tidy()
    assert scene.left() == paths(old_b, young_a)
    assert scene.keeper.stats.deleted == 1


def test_a_crash_between_the_file_and_the_ledger_is_repaired(scene: Scene) -> None:
    scene.ready(A)
    (old,) = scene.add(A)
    scene.apply(A)
    scene.seconds += 1000
    failpoints.arm("retention.deleted")
    with pytest.raises(failpoints.Failpoint):
        scene.tidy()
    failpoints.disarm()
    assert not Path(old.path).exists()
    assert scene.store.all_paths("shop") == paths(old)
    scene.new_keeper().tidy(now=True)
    assert scene.left() == set()


def test_files_of_a_table_in_init_go_at_once(scene: Scene) -> None:
    _, applied = scene.add(A, B)
    scene.ready(B)
    (needed,) = scene.add(B)
    scene.tidy()
    assert scene.left() == paths(applied, needed)


def test_a_file_that_comes_while_the_keeper_looks_is_kept(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its commit may be past the snapshot of a copy that has begun meanwhile."""
    scene.add(A)
    late: list[SpoolFile] = []
    tables = scene.store.tables

    def tables_and_a_commit(pipeline: str) -> list[TableRecord]:
        found = tables(pipeline)
        if not late:
            late.extend(scene.add(A))
            scene.move(A, StateKind.DATA_SYNC)
        return found

    monkeypatch.setattr(scene.store, "tables", tables_and_a_commit)
    scene.tidy()
    assert scene.left() == paths(*late)


def test_while_a_table_is_copied_its_files_stay_until_the_snapshot_is_known(scene: Scene) -> None:
    (before,) = scene.add(A)
    snapshot = scene.position()
    (after,) = scene.add(A)
    scene.move(A, StateKind.DATA_SYNC)
    scene.tidy()
    assert scene.left() == paths(before, after)
    scene.move(A, StateKind.FINISHED_COPY, snapshot)
    scene.tidy()
    assert scene.left() == paths(after)
    scene.move(A, StateKind.SYNC_WAIT, snapshot)
    scene.tidy()
    assert scene.left() == paths(after)


def test_a_commit_at_the_snapshot_itself_is_needed(scene: Scene) -> None:
    (at,) = scene.add(A)
    scene.move(A, StateKind.DATA_SYNC)
    scene.move(A, StateKind.FINISHED_COPY, at.last_lsn)
    scene.tidy()
    assert scene.left() == paths(at)


@pytest.mark.parametrize("begun", [False, True])
def test_an_errored_table_keeps_what_a_retry_needs(scene: Scene, begun: bool) -> None:
    if begun:
        scene.ready(A)
    (file,) = scene.add(A)
    scene.fail(A)
    scene.tidy()
    assert scene.left() == (paths(file) if begun else set())


def test_files_of_a_table_that_was_forgotten_go(scene: Scene) -> None:
    scene.store.delete_table("shop", A)
    scene.add(A)
    scene.tidy()
    assert scene.left() == set()


def test_people_are_told_once_at_four_fifths_of_the_quota(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.ready(A)
    scene.add(A, size=int(QUOTA * 0.7))
    scene.tidy()
    assert scene.keeper.stats.warning is None
    scene.add(A, size=int(QUOTA * 0.12))
    caplog.clear()
    for _ in range(3):
        scene.tidy()
    told = [message for message in caplog.messages if "of its quota" in message]
    assert len(told) == 1
    assert "8" in told[0]
    assert scene.keeper.stats.warning is not None
    assert scene.kind(A) is StateKind.READY
    scene.apply(A)
    scene.seconds += 1000
    scene.tidy()
    assert scene.keeper.stats.warning is None


def test_at_the_quota_applied_files_go_first_without_their_retention(scene: Scene) -> None:
    scene.ready(A)
    scene.ready(B)
    scene.add(A, size=int(QUOTA * 0.6))
    scene.apply(A)
    (waiting,) = scene.add(B, size=int(QUOTA * 0.4))
    scene.tidy()
    assert scene.left() == paths(waiting)
    assert (scene.kind(A), scene.kind(B), scene.keeper.stats.put_aside) == (StateKind.READY, StateKind.READY, 0)


def full_of(scene: Scene) -> list[SpoolFile]:
    """A is furthest behind, B and C are behind, too."""
    for relation_id in (A, B, C):
        scene.ready(relation_id)
    scene.add(A, size=int(QUOTA * 0.5))
    kept = scene.add(B, size=int(QUOTA * 0.2))
    scene.add(A, C, size=int(QUOTA * 0.15))
    return [*kept, *scene.store.files("shop", C, ZERO, scene.position())]


def test_at_the_quota_the_table_furthest_behind_is_put_aside_and_no_other(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    kept = full_of(scene)
    others = [scene.record(B), scene.record(C)]
    scene.tidy()
    found = scene.record(A)
    assert (found.generation, found.state) == (2, PUT_ASIDE)
    assert found.state.retry is Retry.MANUAL
    assert "resync" in (found.state.hint or "")
    assert scene.left() == paths(*kept)
    assert [scene.record(B), scene.record(C)] == others
    assert "public.a is put aside" in caplog.text


def test_more_than_one_is_put_aside_only_if_one_is_not_enough(scene: Scene) -> None:
    for relation_id in (A, B, C):
        scene.ready(relation_id)
    scene.add(A, size=100)
    scene.add(B, size=int(QUOTA * 0.5))
    (kept,) = scene.add(C, size=int(QUOTA * 0.5))
    scene.tidy()
    assert [scene.kind(one) for one in (A, B, C)] == [StateKind.ERRORED, StateKind.ERRORED, StateKind.READY]
    assert scene.left() == paths(kept)


def test_what_was_put_aside_can_only_be_copied_again(scene: Scene) -> None:
    full_of(scene)
    before = scene.record(A)
    scene.tidy()
    for write in (
        lambda: scene.store.applied(scene.lease, before, scene.position(), None),
        lambda: scene.store.move(before, READY, by="applier"),
        lambda: scene.store.rollback(before, by="somebody"),
    ):
        with pytest.raises(Overtaken):
            write()
    back = scene.store.rollback(scene.record(A), by="somebody")
    assert (back.generation, back.state.kind) == (2, StateKind.INIT)
    assert back.applied_lsn == before.applied_lsn, "the old rows stay readable where they are"


def test_what_the_stream_goes_on_to_spool_for_it_goes_too(scene: Scene) -> None:
    full_of(scene)
    scene.tidy()
    before = scene.left()
    scene.add(A, size=1000)
    scene.tidy()
    assert scene.left() == before
    record = scene.store.new_generation("shop", A, by="resync")
    scene.store.move(record, TableState(StateKind.DATA_SYNC), by="resync")
    (needed,) = scene.add(A)
    scene.tidy()
    assert scene.left() == before | paths(needed)


@pytest.mark.parametrize("point", ["retention.new_generation", "retention.put_aside", "retention.deleted"])
def test_a_crash_while_a_table_is_put_aside_loses_nothing_silently(scene: Scene, point: str) -> None:
    kept = full_of(scene)
    failpoints.arm(point)
    with pytest.raises(failpoints.Failpoint):
        scene.tidy()
    failpoints.disarm()
    scene.new_keeper().tidy(now=True)
    assert scene.left() == paths(*kept)
    found = scene.record(A)
    assert found.generation == 2, "the old generation would go on without its changes"
    assert found.state.kind in (StateKind.INIT, StateKind.ERRORED)
    assert scene.kind(B) is scene.kind(C) is StateKind.READY


def test_a_copy_that_begins_at_that_very_moment_is_overtaken(scene: Scene) -> None:
    kept = full_of(scene)
    copies: list[TableRecord] = []

    def begin_to_copy() -> None:
        if not copies:
            copies.append(scene.store.move(scene.record(A), TableState(StateKind.DATA_SYNC), by="copier"))

    failpoints.arm("retention.new_generation", begin_to_copy)
    scene.tidy()
    assert (scene.record(A).generation, scene.record(A).state) == (3, PUT_ASIDE)
    assert scene.left() == paths(*kept)
    with pytest.raises(Overtaken):
        scene.store.move(copies[0], TableState(StateKind.FINISHED_COPY, scene.position()), by="copier")


def test_an_overtaken_keeper_puts_nobody_aside(scene: Scene) -> None:
    full_of(scene)
    before = scene.left()
    scene.take_lease()
    with pytest.raises(Overtaken):
        scene.tidy()
    assert scene.kind(A) is StateKind.READY
    assert scene.left() == before


def test_without_a_quota_nobody_is_put_aside(scene: Scene) -> None:
    object.__setattr__(scene.config, "spool_quota_bytes", None)
    full_of(scene)
    before = scene.left()
    scene.tidy()
    assert scene.left() == before
    assert scene.keeper.stats.bytes == sum(Path(path).stat().st_size for path in before)


@pytest.mark.parametrize(
    ("free", "warned", "deleted"), [(500_000, False, False), (90_000, True, False), (3_999, True, True)]
)
def test_a_disk_that_fills_is_told_and_relieved_of_applied_files(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, free: int, warned: bool, deleted: bool
) -> None:
    scene.ready(A)
    scene.ready(B)
    scene.add(A)
    scene.apply(A)
    (needed,) = scene.add(B)
    monkeypatch.setattr(scene.spool, "free", lambda: Space(1_000_000, free))
    scene.tidy()
    assert (scene.keeper.stats.warning is not None) == warned
    assert (scene.left() == paths(needed)) == deleted
    assert scene.kind(B) is StateKind.READY


def test_a_spool_that_refuses_to_delete_stops_nothing_and_is_not_forgotten(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scene.add(A)

    def refuse(files: object) -> None:
        raise SpoolError("the file system is read-only")

    monkeypatch.setattr(scene.spool, "delete", refuse)
    scene.tidy()
    assert "is not tidied: the file system is read-only" in caplog.text
    assert len(scene.left()) == 1
    monkeypatch.undo()
    scene.tidy()
    assert scene.left() == set()


def test_being_called_often_costs_little(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def counted(name: str) -> None:
        original: Callable[..., Any] = getattr(scene.store, name)

        def call(*arguments: Any) -> Any:
            calls.append(name)
            return original(*arguments)

        monkeypatch.setattr(scene.store, name, call)

    for name in ("expired_files", "spool_size", "tables"):
        counted(name)
    scene.keeper.tidy()
    assert calls == ["expired_files", "tables", "spool_size"]
    calls.clear()
    for _ in range(10):
        scene.keeper.tidy()
    assert calls == []
    scene.seconds += 2.5
    scene.keeper.tidy()
    assert calls == ["spool_size"]
    scene.seconds += 30
    scene.keeper.tidy()
    assert calls[1:] == ["expired_files", "tables", "spool_size"]


def test_a_thread_tidies_until_it_is_stopped_or_overtaken(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_provider_pgetl.replication.retention._POLL_S", 0.01)
    outcomes: list[Exception | None] = [StoreError("gone"), None, Overtaken("another epoch")]
    calls: list[str] = []

    def tidy() -> None:
        calls.append("tidy")
        if (error := outcomes[len(calls) - 1]) is not None:
            raise error

    monkeypatch.setattr(scene.keeper, "tidy", tidy)
    with pytest.raises(Overtaken):
        scene.keeper.run(threading.Event())
    assert len(calls) == 3
    stopped = threading.Event()
    stopped.set()
    scene.keeper.run(stopped)
    assert len(calls) == 3


def test_empty_folders_go_now_and_then(scene: Scene) -> None:
    scene.add(A)
    scene.keeper.tidy()
    assert (scene.folder / "shop" / str(A)).exists()
    scene.seconds += 601
    scene.keeper.tidy()
    assert list((scene.folder / "shop").iterdir()) == []


def test_only_files_that_somebody_needs_can_be_lost(scene: Scene) -> None:
    scene.ready(A)
    applied, useless = scene.add(A, B)
    scene.apply(A)
    needed, _ = scene.add(A, B)
    assert lost_files(scene.config, scene.store, scene.spool) == []
    for file in (applied, useless, needed):
        Path(file.path).unlink()
    assert lost_files(scene.config, scene.store, scene.spool) == [needed]
