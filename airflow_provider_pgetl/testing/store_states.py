"""The store's contract: pipelines, tables and their states."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

from airflow_provider_pgetl.replication.errors import (
    IllegalTransition,
    Overtaken,
    Retry,
    StoreError,
)
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.progress import (
    CutTable,
    PipelineRecord,
    TableRecord,
)
from airflow_provider_pgetl.replication.schema import TableName
from airflow_provider_pgetl.replication.state import INIT, READY, StateKind, TableState
from airflow_provider_pgetl.replication.store.base import Store
from airflow_provider_pgetl.testing.store_values import (
    ERROR,
    ITEMS,
    ORDERS,
    Given,
    make_file,
    make_pipeline,
    make_schema,
    make_segment,
    stored,
    taken,
    walk_to_ready,
)


class StateContract(Given):
    """``StateStore``."""

    def test_registering_again_renews_the_names_and_keeps_the_progress(self, store: Store) -> None:
        first = store.register_pipeline(make_pipeline())
        assert first == make_pipeline()
        store.advance("shop", taken(store), Lsn(500))
        again = store.register_pipeline(PipelineRecord("shop", "other_pub", "other_slot", "1", 2, Lsn(100)))
        assert again == dataclasses.replace(first, publication="other_pub", slot="other_slot", spooled_lsn=Lsn(500))
        assert store.pipeline("shop") == again

    def test_pipelines_come_by_name(self, store: Store) -> None:
        for name in ("b", "a_2", "a1"):
            store.register_pipeline(make_pipeline(name))
        assert [pipeline.name for pipeline in store.pipelines()] == ["a1", "a_2", "b"]
        assert store.pipeline("c") is None

    def test_a_new_table_starts_at_init_with_its_schema(self, store: Store, orders: TableRecord) -> None:
        assert (orders.generation, orders.state.kind) == (1, StateKind.INIT)
        assert (orders.applied_lsn, orders.snapshot_id, orders.copied_rows, orders.run_id) == (None,) * 4
        assert orders.updated_at is not None
        assert orders.updated_at.tzinfo is not None
        assert store.table("shop", ORDERS) == orders
        assert store.latest_schema("shop", ORDERS) == make_schema()

    def test_a_known_table_is_left_as_it_is(self, store: Store, orders: TableRecord) -> None:
        moved = store.move(orders, TableState(StateKind.DATA_SYNC), by="copy")
        assert store.register_table("shop", make_schema(columns=3), Lsn(20), by="discover") == moved
        assert len(store.history("shop", ORDERS)) == 2

    def test_a_renamed_table_keeps_its_state(self, store: Store, orders: TableRecord) -> None:
        store.move(orders, TableState(StateKind.DATA_SYNC), by="copy")
        renamed = store.register_table("shop", make_schema(table="sales"), Lsn(20), by="discover")
        assert renamed.table == TableName("public", "sales")
        assert renamed.state.kind is StateKind.DATA_SYNC
        assert store.table("shop", ORDERS) == renamed

    def test_tables_come_by_name(self, store: Store, orders: TableRecord) -> None:
        items = store.register_table("shop", make_schema(ITEMS, "items"), Lsn(10), by="discover")
        assert store.tables("shop") == [items, orders]
        assert store.tables("nobody") == []
        assert store.table("shop", 1) is None

    def test_moves_are_kept_in_the_history(self, store: Store, orders: TableRecord) -> None:
        ready = walk_to_ready(store, orders)
        assert ready.state == READY
        again = store.new_generation("shop", ORDERS, by="someone")
        history = store.history("shop", ORDERS)
        assert [(generation, state.kind) for generation, state, _ in history] == [
            (1, StateKind.INIT),
            (1, StateKind.DATA_SYNC),
            (1, StateKind.FINISHED_COPY),
            (1, StateKind.SYNC_WAIT),
            (1, StateKind.CATCHUP),
            (1, StateKind.SYNC_DONE),
            (1, StateKind.READY),
            (2, StateKind.INIT),
        ]
        assert history[2][1].lsn == Lsn(100)
        assert [by for _, _, by in history] == ["discover", *["test"] * 6, "someone"]
        assert again.generation == 2

    def test_an_error_is_kept_with_all_that_belongs_to_it(self, store: Store, orders: TableRecord) -> None:
        error = TableState(
            StateKind.ERRORED,
            reason="the lake refused",
            hint="look at it",
            retry=Retry.TIMED,
            retry_at=datetime(2026, 5, 6, 7, 8, 9, 123456, UTC),
        )
        assert store.move(orders, error, by="applier").state == error
        stored = store.table("shop", ORDERS)
        assert stored is not None
        assert stored.state == error
        assert store.history("shop", ORDERS)[-1] == (1, error, "applier")

    def test_an_illegal_move_changes_nothing(self, store: Store, orders: TableRecord) -> None:
        with pytest.raises(IllegalTransition):
            store.move(orders, READY, by="test")
        assert store.table("shop", ORDERS) == orders
        assert len(store.history("shop", ORDERS)) == 1

    def test_a_move_keeps_what_it_does_not_name(self, store: Store, orders: TableRecord) -> None:
        moved = store.move(
            orders,
            TableState(StateKind.DATA_SYNC),
            by="copy",
            run_id="run 1",
            copied_rows=7,
            schema_version=2,
        )
        moved = store.move(moved, TableState(StateKind.FINISHED_COPY, Lsn(9)), by="copy")
        assert (moved.run_id, moved.copied_rows, moved.schema_version) == ("run 1", 7, 2)

    def test_of_two_that_begin_a_copy_one_wins(self, store: Store, orders: TableRecord) -> None:
        def begin(_: int) -> bool:
            try:
                store.move(orders, TableState(StateKind.DATA_SYNC), by="copy")
            except IllegalTransition:
                return False
            return True

        with ThreadPoolExecutor(4) as threads:
            assert sum(threads.map(begin, range(4))) == 1

    def test_a_new_generation_begins_again_and_keeps_what_readers_see(self, store: Store, orders: TableRecord) -> None:
        ready = store.applied(taken(store), walk_to_ready(store, orders), Lsn(300), 42)
        begun = store.new_generation("shop", ORDERS, by="someone", run_id="run 2")
        assert (begun.generation, begun.state.kind, begun.run_id) == (2, StateKind.INIT, "run 2")
        assert (begun.applied_lsn, begun.snapshot_id) == (ready.applied_lsn, ready.snapshot_id) == (Lsn(300), 42)

    def test_an_older_generation_can_not_write(self, store: Store, orders: TableRecord) -> None:
        begun = store.new_generation("shop", ORDERS, by="someone")
        with pytest.raises(Overtaken):
            store.move(orders, TableState(StateKind.DATA_SYNC), by="copy")
        with pytest.raises(Overtaken):
            store.applied(taken(store), orders, Lsn(300), 1)
        assert store.table("shop", ORDERS) == begun

    def test_an_unknown_table_is_an_error(self, store: Store, orders: TableRecord) -> None:
        stranger = dataclasses.replace(orders, relation_id=1)
        with pytest.raises(StoreError, match="no table"):
            store.move(stranger, TableState(StateKind.DATA_SYNC), by="copy")
        with pytest.raises(StoreError, match="no table"):
            store.new_generation("shop", 1, by="someone")
        with pytest.raises(StoreError, match="not registered"):
            store.register_table("nobody", make_schema(), Lsn(1), by="discover")

    def test_a_new_generation_begins_again_from_any_state(self, store: Store, orders: TableRecord) -> None:
        store.move(orders, ERROR, by="copy")
        begun = store.new_generation("shop", ORDERS, by="someone")
        assert (begun.state, begun.copied_rows, begun.schema_version) == (INIT, None, None)

    def test_a_new_table_and_a_new_generation_announce_a_copy(self, store: Store, orders: TableRecord) -> None:
        [registered] = store.announcements("shop")
        assert (registered.kind, registered.relation_id) == ("copy", ORDERS)
        store.register_table("shop", make_schema(table="sales"), Lsn(20), by="discover")
        assert store.announcements("shop") == [registered]
        store.new_generation("shop", ORDERS, by="someone")
        [begun] = store.announcements("shop")
        assert (begun.kind, begun.relation_id, begun.lsn, begun.snapshot_id) == ("copy", ORDERS, None, None)
        assert begun.id > registered.id

    def test_the_mark_of_the_source_is_kept_by_a_new_generation(self, store: Store, orders: TableRecord) -> None:
        assert orders.source_mark is None
        assert store.mark_source("shop", ORDERS, "id, c2 where id > 7").source_mark == "id, c2 where id > 7"
        assert store.new_generation("shop", ORDERS, by="someone").source_mark == "id, c2 where id > 7"
        assert stored(store).source_mark == "id, c2 where id > 7"
        with pytest.raises(StoreError, match="no table"):
            store.mark_source("shop", 1, "all of it")

    def test_applied_only_moves_forward(self, store: Store, orders: TableRecord) -> None:
        lease = taken(store)
        assert store.applied(lease, orders, Lsn(300), 42).applied_lsn == Lsn(300)
        older = store.applied(lease, orders, Lsn(200), 41)
        assert (older.applied_lsn, older.snapshot_id) == (Lsn(300), 42)
        quiet = store.applied(lease, orders, Lsn(400), None)
        assert (quiet.applied_lsn, quiet.snapshot_id) == (Lsn(400), 42)
        same = store.applied(lease, orders, Lsn(400), 43)
        assert (same.applied_lsn, same.snapshot_id) == (Lsn(400), 43)

    def test_large_positions_and_snapshots_fit(self, store: Store, orders: TableRecord) -> None:
        lsn, snapshot = Lsn(2**63 - 1), 2**63 - 1
        stored = store.applied(taken(store), orders, lsn, snapshot)
        assert (stored.applied_lsn, stored.snapshot_id) == (lsn, snapshot)
        assert isinstance(stored.applied_lsn, Lsn)

    def test_a_deleted_pipeline_is_gone_and_its_writers_are_overtaken(self, store: Store, orders: TableRecord) -> None:
        lease = taken(store)
        store.add_segment("shop", lease, make_segment(0, 100, make_file(10, 20)))
        store.record_cut("shop", lease, Lsn(100), [CutTable(ORDERS, 1)])
        store.add_sample("shop", {"lag": 1})
        store.register_pipeline(make_pipeline("other"))
        store.delete_pipeline("shop")
        store.delete_pipeline("shop")
        assert [pipeline.name for pipeline in store.pipelines()] == ["other"]
        assert (store.tables("shop"), store.history("shop", ORDERS)) == ([], [])
        assert (store.latest_cut("shop"), store.all_paths("shop")) == (None, set())
        assert (store.latest_sample("shop"), store.latest_schema("shop", ORDERS)) == (None, None)
        store.register_pipeline(make_pipeline())
        with pytest.raises(Overtaken):
            store.advance("shop", lease, Lsn(500))
        assert taken(store).epoch > lease.epoch


class RollbackContract(Given):
    """``StateStore.rollback``."""

    def test_a_rollback_returns_to_the_state_before(self, store: Store, orders: TableRecord) -> None:
        back = store.rollback(walk_to_ready(store, orders, lsn=70), by="someone")
        assert back.state == TableState(StateKind.SYNC_DONE, Lsn(70))
        assert stored(store) == back

    def test_one_rollback_after_the_other_walks_back_to_the_first_state(
        self, store: Store, orders: TableRecord
    ) -> None:
        record = walk_to_ready(store, orders)
        seen = []
        for _ in range(6):
            record = store.rollback(record, by="someone")
            seen.append(record.state.kind)
        assert seen == [
            StateKind.SYNC_DONE,
            StateKind.CATCHUP,
            StateKind.SYNC_WAIT,
            StateKind.FINISHED_COPY,
            StateKind.DATA_SYNC,
            StateKind.INIT,
        ]
        with pytest.raises(IllegalTransition):
            store.rollback(record, by="someone")
        assert stored(store) == record

    def test_the_history_keeps_who_rolled_back(self, store: Store, orders: TableRecord) -> None:
        store.rollback(store.move(orders, TableState(StateKind.DATA_SYNC), by="copy"), by="someone")
        assert store.history("shop", ORDERS) == [
            (1, INIT, "discover"),
            (1, TableState(StateKind.DATA_SYNC), "copy"),
            (1, INIT, "someone"),
        ]

    def test_the_first_state_of_a_generation_has_none_before(self, store: Store, orders: TableRecord) -> None:
        with pytest.raises(IllegalTransition):
            store.rollback(orders, by="someone")
        walk_to_ready(store, orders)
        begun = store.new_generation("shop", ORDERS, by="someone")
        with pytest.raises(IllegalTransition):
            store.rollback(begun, by="someone")
        assert stored(store) == begun

    def test_from_an_error_it_returns_to_the_state_before_the_error(self, store: Store, orders: TableRecord) -> None:
        ready = walk_to_ready(store, orders)
        back = store.rollback(store.move(ready, ERROR, by="applier"), by="someone")
        assert back.state == READY
        assert store.rollback(back, by="someone").state.kind is StateKind.SYNC_DONE

    def test_it_never_returns_to_an_error(self, store: Store, orders: TableRecord) -> None:
        record = walk_to_ready(store, orders)
        for reason in ("the first", "the second"):
            record = store.move(record, dataclasses.replace(ERROR, reason=reason), by="applier")
        assert store.rollback(record, by="someone").state == READY

    def test_it_never_stays_where_it_is(self, store: Store, orders: TableRecord) -> None:
        """A retry that led back to the state before the error is not a state of its own."""
        record = walk_to_ready(store, orders)
        record = store.move(record, ERROR, by="applier")
        record = store.move(record, READY, by="retry")
        assert store.rollback(record, by="someone").state.kind is StateKind.SYNC_DONE

    def test_after_going_on_it_returns_to_where_it_went_on_from(self, store: Store, orders: TableRecord) -> None:
        record = walk_to_ready(store, orders)
        for _ in range(2):
            record = store.rollback(record, by="someone")
        record = store.move(record, TableState(StateKind.CATCHUP, Lsn(200)), by="applier")
        record = store.move(record, TableState(StateKind.SYNC_DONE, Lsn(200)), by="applier")
        seen = []
        for _ in range(3):
            record = store.rollback(record, by="someone")
            seen.append(record.state)
        assert seen == [
            TableState(StateKind.CATCHUP, Lsn(200)),
            TableState(StateKind.CATCHUP, Lsn(100)),
            TableState(StateKind.SYNC_WAIT, Lsn(100)),
        ]

    def test_what_the_destination_holds_is_not_rolled_back(self, store: Store, orders: TableRecord) -> None:
        ready = store.applied(taken(store), walk_to_ready(store, orders), Lsn(300), 42)
        back = store.rollback(ready, by="someone")
        assert (back.applied_lsn, back.snapshot_id, back.generation) == (Lsn(300), 42, 1)

    def test_an_older_generation_can_not_be_rolled_back(self, store: Store, orders: TableRecord) -> None:
        ready = walk_to_ready(store, orders)
        begun = store.new_generation("shop", ORDERS, by="someone")
        with pytest.raises(Overtaken):
            store.rollback(ready, by="someone")
        assert stored(store) == begun
        with pytest.raises(StoreError, match="no table"):
            store.rollback(dataclasses.replace(orders, relation_id=1), by="someone")
