"""From spool files to events: order, windows, shapes, calls, and what goes wrong on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_provider_pgetl.replication import delivery
from airflow_provider_pgetl.replication.delivery import Delivery
from airflow_provider_pgetl.replication.destinations.base import (
    Applied,
    Changes,
    CopyPlan,
    Destination,
    Partition,
)
from airflow_provider_pgetl.replication.destinations.memory import MemoryDestination
from airflow_provider_pgetl.replication.errors import (
    DestinationError,
    DestinationFailed,
    DestinationUnreachable,
    NotSupported,
    Overtaken,
    PgEtlError,
    Retry,
    SourceUnreachable,
    SpoolCorrupt,
)
from airflow_provider_pgetl.replication.events import Events, Relation, Row, RowChange
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.progress import SpoolFile
from airflow_provider_pgetl.replication.schema import SchemaVersion, TableSchema
from airflow_provider_pgetl.replication.spool.segments import Spool
from airflow_provider_pgetl.testing.destination_values import (
    delete,
    insert,
    make_batch,
    make_rows,
    make_table,
    order,
    truncate,
    update,
    with_column,
    with_names,
    with_type,
)

ORDERS = make_table()
NAME = "public.orders"


class Recorder(MemoryDestination):
    """Remembers the calls; raises what it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Events] = []
        self.batches: list[tuple[TableSchema, int]] = []
        self.fail: list[Exception | None] = []
        self.before_write: Callable[[], None] = lambda: None

    def write_events(self, events: Events) -> None:
        self._step()
        self.calls.append(events)
        super().write_events(events)

    def write_table_rows(self, schema: TableSchema, rows: pa.RecordBatch) -> None:
        self._step()
        self.batches.append((schema, rows.num_rows))
        super().write_table_rows(schema, rows)

    def _step(self) -> None:
        self.before_write()
        if self.fail and (error := self.fail.pop(0)):
            raise error


class Scene:
    """A spool in a folder, and its delivery."""

    def __init__(self, folder: Path) -> None:
        self.spool = Spool(str(folder), "shop", 1)
        self.destination = Recorder()
        self.delivery = Delivery(self.destination, self.spool, "source")
        self.files: list[SpoolFile] = []

    def flush(self, schema: TableSchema, *changes: RowChange) -> None:
        self.files += self.spool.write({(schema.relation_id, schema.version): [make_batch(schema, changes)]})

    def apply(
        self, begin: int = 0, end: int = 1000, *, schema: TableSchema = ORDERS, versions: Sequence[SchemaVersion] = ()
    ) -> Applied:
        changes = Changes(schema, 1, 1, Lsn(begin), Lsn(end), tuple(self.files), tuple(versions))
        return self.delivery.apply(changes)

    def copy(self, *rows: Row, schema: TableSchema = ORDERS) -> None:
        MemoryDestination.drop_table_for_copy(self.destination, schema)
        MemoryDestination.write_table_rows(self.destination, schema, make_rows(schema, rows))

    @property
    def rows(self) -> list[Row]:
        return self.destination.rows(NAME)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


@pytest.fixture
def each_file_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "_CALL_BYTES", 1)


def test_changes_come_in_the_order_of_the_stream(scene: Scene) -> None:
    """The truncate stands at the end of its batch, as the decoder puts it."""
    scene.copy(order(1))
    scene.flush(
        ORDERS, insert(10, 1, order(2)), insert(10, 3, order(3)), update(20, 1, order(3, "milk")), truncate(10, 2)
    )
    scene.flush(ORDERS, insert(30, 1, order(1)), delete(30, 2, {"id": 3}))
    assert scene.apply() == Applied(None, upserts=4, deletes=1)
    assert scene.rows == [order(1)]


def test_only_changes_of_the_window_come(scene: Scene) -> None:
    scene.copy(order(1), order(2))
    scene.flush(ORDERS, insert(8, 1, order(2)))
    scene.flush(ORDERS, insert(9, 1, order(1)), insert(10, 1, order(3)), insert(19, 1, order(4)))
    scene.flush(ORDERS, insert(20, 1, order(5)))
    scene.apply(10, 20)
    assert scene.rows == [order(n) for n in (1, 2, 3, 4)]
    scene.apply(20, 21)
    assert scene.rows == [order(n) for n in (1, 2, 3, 4, 5)]


def test_nothing_to_apply_is_no_call(scene: Scene) -> None:
    scene.flush(ORDERS, insert(10, 1, order(1)))
    assert scene.apply(11, 20) == Applied(None)
    assert scene.destination.calls == []


def test_small_files_share_a_call(scene: Scene) -> None:
    scene.copy()
    for lsn in range(10, 20):
        scene.flush(ORDERS, insert(lsn, 1, order(lsn)))
    scene.apply()
    assert [call.rows for call in scene.destination.calls] == [10]


@pytest.mark.usefixtures("each_file_alone")
def test_large_files_have_a_call_each(scene: Scene) -> None:
    scene.copy()
    for lsn in range(10, 20):
        scene.flush(ORDERS, insert(lsn, 1, order(lsn)))
    scene.apply()
    assert [(call.rows, call.complete) for call in scene.destination.calls] == [(1, True)] * 10


@pytest.mark.usefixtures("each_file_alone")
def test_a_transaction_in_pieces_is_complete_with_its_last(scene: Scene) -> None:
    scene.copy()
    scene.flush(ORDERS, insert(10, 1, order(1)), insert(20, 1, order(2)))
    scene.flush(ORDERS, insert(20, 2, order(3)))
    scene.flush(ORDERS, insert(20, 3, order(4)), insert(30, 1, order(5)))
    scene.flush(ORDERS, insert(31, 1, order(6)))
    scene.apply()
    assert [call.complete for call in scene.destination.calls] == [False, False, True, True]


@pytest.mark.usefixtures("each_file_alone")
def test_one_file_at_a_time_is_in_memory(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    read, reads = Spool.read, []
    monkeypatch.setattr(Spool, "read", lambda spool, file: (reads.append(file), read(spool, file))[1])
    waiting: list[int] = []
    scene.destination.before_write = lambda: waiting.append(len(reads))
    scene.copy()
    for lsn in (10, 20, 30):
        scene.flush(ORDERS, insert(lsn, 1, order(lsn)))
    scene.apply()
    assert waiting == [1, 2, 3]


def test_files_out_of_order_are_refused(scene: Scene) -> None:
    scene.copy()
    scene.flush(ORDERS, insert(20, 1, order(2)))
    scene.flush(ORDERS, insert(10, 1, order(1)))
    with pytest.raises(SpoolCorrupt, match="from before the file before it"):
        scene.apply()
    assert scene.rows == []


def test_an_altered_file_is_refused(scene: Scene) -> None:
    scene.flush(ORDERS, insert(10, 1, order(1)))
    Path(scene.files[0].path).write_bytes(b"other")
    with pytest.raises(SpoolCorrupt, match="altered"):
        scene.apply()


# --- shapes

SECOND = with_column(ORDERS, "note", "text", missing="old")
THIRD = with_names(SECOND, {"note": "remark"})
FOURTH = with_column(THIRD, "due", "date", missing="infinity")
ALL = [SchemaVersion(Lsn(20), SECOND), SchemaVersion(Lsn(30), THIRD), SchemaVersion(Lsn(40), FOURTH)]


@pytest.mark.parametrize("alone", [True, False])
def test_shapes_are_walked_in_order(scene: Scene, alone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The third has no rows, the fourth comes after all rows."""
    if alone:
        monkeypatch.setattr(delivery, "_CALL_BYTES", 1)
    scene.copy(order(1))
    scene.flush(ORDERS, insert(10, 1, order(2)))
    scene.flush(SECOND, insert(20, 2, {**order(3), "note": "new"}))
    scene.flush(FOURTH, insert(40, 2, {**order(4), "remark": "last", "due": date(2024, 1, 1)}))
    fifth = with_column(FOURTH, "n", "bigint", missing="7")
    scene.apply(versions=[*ALL, SchemaVersion(Lsn(50), fifth)])
    relations = [event for event in scene.destination.events(NAME) if isinstance(event, Relation)]
    assert [one.place for one in relations] == [(20, 2), (30, 3), (40, 4), (50, 5)]
    assert [dict(one.defaults) for one in relations] == [{"note": "old"}, {}, {"due": "infinity"}, {"n": 7}]
    assert scene.rows == [
        {**order(1), "remark": "old", "due": "infinity", "n": 7},
        {**order(2), "remark": "old", "due": "infinity", "n": 7},
        {**order(3), "remark": "new", "due": "infinity", "n": 7},
        {**order(4), "remark": "last", "due": date(2024, 1, 1), "n": 7},
    ]


def test_shapes_without_any_row_come_alone(scene: Scene) -> None:
    scene.copy(order(1))
    scene.apply(versions=ALL)
    assert [(part.schema.version, part.batch.num_rows) for part in scene.destination.calls[0].batches] == [
        (2, 0),
        (3, 0),
        (4, 0),
    ]
    assert scene.rows == [{**order(1), "remark": "old", "due": "infinity"}]
    assert scene.destination.calls[0].table == FOURTH.table


@pytest.mark.usefixtures("each_file_alone")
def test_a_shape_that_changes_inside_a_transaction(scene: Scene) -> None:
    scene.copy()
    scene.flush(ORDERS, insert(20, 1, order(1)))
    scene.flush(SECOND, insert(20, 3, {**order(2), "note": "new"}))
    scene.apply(versions=ALL[:1])
    assert [call.complete for call in scene.destination.calls] == [False, True]
    assert scene.rows == [{**order(1), "note": "old"}, {**order(2), "note": "new"}]


def test_a_file_from_before_the_window_may_have_an_older_shape(scene: Scene) -> None:
    scene.copy({**order(1), "note": "a"}, schema=SECOND)
    scene.flush(ORDERS, insert(10, 1, order(1)))
    scene.flush(SECOND, insert(30, 1, {**order(2), "note": "b"}))
    scene.apply(20, schema=SECOND)
    assert scene.rows == [{**order(1), "note": "a"}, {**order(2), "note": "b"}]


def test_a_shape_that_nobody_announced_is_refused(scene: Scene) -> None:
    scene.copy()
    scene.flush(SECOND, insert(20, 1, {**order(1), "note": None}))
    with pytest.raises(SpoolCorrupt, match="in shape 2, unannounced"):
        scene.apply()


def test_a_step_that_is_refused_is_refused_before_anything_is_written(scene: Scene) -> None:
    scene.copy(order(1))
    scene.flush(ORDERS, insert(10, 1, order(2)))
    with pytest.raises(NotSupported):
        scene.apply(versions=[SchemaVersion(Lsn(20), with_type(ORDERS, "id", "text"))])
    assert scene.rows == [order(1)]


def test_a_repetition_over_shapes_changes_nothing(scene: Scene) -> None:
    scene.copy(order(1))
    scene.flush(ORDERS, insert(10, 1, order(2)))
    scene.flush(THIRD, update(35, 1, {**order(1), "remark": "new"}))
    for _ in range(3):
        scene.apply(versions=ALL[:2])
    assert sorted(map(str, scene.rows)) == [
        str({**order(1), "remark": "new"}),
        str({**order(2), "remark": "old"}),
    ]


# --- errors of the destination


def test_an_unknown_error_tells_its_type_and_place_only(scene: Scene) -> None:
    scene.copy()
    scene.flush(ORDERS, insert(10, 1, order(1)))
    scene.destination.fail = [KeyError("a secret value")]
    with pytest.raises(DestinationFailed, match=r"KeyError at test_delivery.py:\d+") as caught:
        scene.apply()
    assert "secret" not in str(caught.value)
    assert caught.value.__suppress_context__
    assert caught.value.retry is Retry.TIMED


@pytest.mark.parametrize("error", [DestinationUnreachable("gone"), DestinationError("no"), NotSupported("no")])
def test_errors_of_ours_pass(scene: Scene, error: PgEtlError) -> None:
    scene.copy()
    scene.flush(ORDERS, insert(10, 1, order(1)))
    scene.destination.fail = [error]
    with pytest.raises(PgEtlError) as caught:
        scene.apply()
    assert caught.value is error


def test_start_and_end_are_guarded_too(scene: Scene) -> None:
    def broken() -> None:
        raise OSError("a secret value")

    scene.destination.startup = broken  # type: ignore[method-assign]
    scene.destination.shutdown = broken  # type: ignore[method-assign]
    for call in (scene.delivery.startup, scene.delivery.shutdown):
        with pytest.raises(DestinationFailed, match="OSError"):
            call()


@pytest.mark.usefixtures("each_file_alone")
def test_cancel_ends_the_calls_that_run_and_no_later_ones(scene: Scene) -> None:
    scene.copy()
    for lsn in (10, 20, 30):
        scene.flush(ORDERS, insert(lsn, 1, order(lsn)))
    scene.destination.before_write = scene.delivery.cancel
    with pytest.raises(DestinationFailed, match="interrupted"):
        scene.apply()
    assert scene.rows == [order(10)]
    scene.destination.before_write = lambda: None
    scene.apply()
    assert scene.rows == [order(10), order(20), order(30)]


# --- copies

PLAN = CopyPlan(ORDERS, 1, "snapshot", Lsn(10), (Partition(0, "a", 1, 1), Partition(1, "b", 1, 1)))


@pytest.fixture
def partitions(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[list[Row] | Exception]]:
    """What the source gives for each select: batches, or an error."""
    found: dict[str, list[list[Row] | Exception]] = {"a": [], "b": []}

    def read(source: str, snapshot: str, select: str, schema: TableSchema, lsn: Lsn) -> Iterator[pa.RecordBatch]:
        assert (source, snapshot, lsn) == ("source", "snapshot", 10)
        for batch in found[select]:
            if isinstance(batch, Exception):
                raise batch
            yield make_rows(schema, batch)

    monkeypatch.setattr(delivery, "read_partition", read)
    return found


Parts = dict[str, list[list[Row] | Exception]]


def test_a_copy_forgets_the_table_and_brings_its_rows(scene: Scene, partitions: Parts) -> None:
    scene.copy(order(99))
    partitions |= {"a": [[order(1), order(2)], [order(3)]], "b": [[order(4)]]}
    scene.delivery.begin_copy(PLAN)
    assert scene.rows == []
    copied = [scene.delivery.copy_partition(PLAN, part) for part in PLAN.partitions]
    scene.delivery.finish_copy(PLAN)
    assert [(one.number, one.rows) for one in copied] == [(0, 3), (1, 1)]
    assert copied[0].bytes > copied[1].bytes > 0
    assert scene.rows == [order(n) for n in (1, 2, 3, 4)]
    assert [rows for _, rows in scene.destination.batches] == [2, 1, 1]


def test_an_empty_table_is_written_with_an_empty_batch(scene: Scene, partitions: Parts) -> None:
    scene.delivery.begin_copy(PLAN)
    for part in PLAN.partitions:
        assert scene.delivery.copy_partition(PLAN, part).rows == 0
    scene.delivery.finish_copy(PLAN)
    assert scene.destination.batches == [(ORDERS, 0)]
    assert scene.destination.tables() == [NAME]


@pytest.mark.parametrize("where", ["source", "destination"])
def test_a_partition_that_broke_off_is_not_brought_again_alone(scene: Scene, partitions: Parts, where: str) -> None:
    error: PgEtlError = SourceUnreachable("lost") if where == "source" else DestinationUnreachable("lost")
    partitions["a"] = [[order(1)], error] if where == "source" else [[order(1)], [order(2)]]
    scene.destination.fail = [] if where == "source" else [None, error]
    scene.delivery.begin_copy(PLAN)
    with pytest.raises(PgEtlError, match="lost"):
        scene.delivery.copy_partition(PLAN, PLAN.partitions[0])
    partitions["a"] = [[order(1)], [order(2)]]
    with pytest.raises(PgEtlError, match="lost") as caught:
        scene.delivery.copy_partition(PLAN, PLAN.partitions[0])
    assert (caught.value, caught.value.retry) == (error, Retry.TIMED)
    assert scene.rows == [order(1)]

    again = replace(PLAN, generation=2)
    scene.delivery.begin_copy(again)
    scene.delivery.copy_partition(again, PLAN.partitions[0])
    assert scene.rows == [order(1), order(2)]


def test_a_partition_that_broke_off_before_its_first_row_is_brought_again(scene: Scene, partitions: Parts) -> None:
    partitions["a"] = [SourceUnreachable("lost")]
    scene.delivery.begin_copy(PLAN)
    with pytest.raises(SourceUnreachable):
        scene.delivery.copy_partition(PLAN, PLAN.partitions[0])
    partitions["a"] = [[order(1)]]
    scene.delivery.copy_partition(PLAN, PLAN.partitions[0])
    assert scene.rows == [order(1)]


def test_a_copy_that_was_overtaken_writes_no_more(scene: Scene, partitions: Parts) -> None:
    partitions |= {"a": [[order(1)], [order(2)]], "b": [[order(7)]]}
    scene.delivery.begin_copy(PLAN)
    newer = replace(PLAN, generation=2)
    writes: list[int] = []

    def overtake() -> None:
        writes.append(1)
        if len(writes) == 1:
            scene.delivery.begin_copy(newer)

    scene.destination.before_write = overtake
    with pytest.raises(Overtaken):
        scene.delivery.copy_partition(PLAN, PLAN.partitions[0])
    with pytest.raises(Overtaken):
        scene.delivery.finish_copy(PLAN)


def test_cancel_ends_a_copy(scene: Scene, partitions: Parts) -> None:
    partitions["a"] = [[order(1)], [order(2)]]
    scene.delivery.begin_copy(PLAN)
    scene.destination.before_write = scene.delivery.cancel
    with pytest.raises(DestinationFailed, match="interrupted"):
        scene.delivery.copy_partition(PLAN, PLAN.partitions[0])


def test_it_takes_files_and_keeps_no_markers(scene: Scene) -> None:
    destination: Destination = scene.destination
    assert (scene.delivery.takes_files, scene.delivery.keeps_markers) == (True, False)
    assert scene.delivery.name == destination.name
    assert scene.delivery.marker(ORDERS) is None
