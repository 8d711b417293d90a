"""The store's contract: tables as a whole, and the destination's tables."""

from __future__ import annotations

import dataclasses

import pytest

from airflow_provider_pgetl.replication.errors import (
    Overtaken,
    Retry,
    SchemaChangeUnderWay,
    StoreError,
)
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.progress import (
    CutTable,
    DestinationStatus,
    DestinationTable,
    PipelineRecord,
    TableRecord,
)
from airflow_provider_pgetl.replication.state import INIT, StateKind, TableState
from airflow_provider_pgetl.replication.store.base import Store
from airflow_provider_pgetl.testing.store_values import (
    ERROR,
    ITEMS,
    ORDERS,
    TTL_S,
    Given,
    make_file,
    make_pipeline,
    make_schema,
    make_segment,
    spooled_lsn,
    stored,
    taken,
    walk_to_ready,
)


class TableLifecycleContract(Given):
    """``TableLifecycleStore``."""

    @pytest.fixture
    def items(self, store: Store, shop: PipelineRecord) -> TableRecord:
        """``public.items`` in ``init``."""
        return store.register_table(shop.name, make_schema(ITEMS, "items"), Lsn(10), by="discover")

    def test_before_a_copy_the_state_stays_and_the_destination_is_forgotten(
        self, store: Store, orders: TableRecord, items: TableRecord
    ) -> None:
        for record in (orders, items):
            store.applied_schema(record, f"lake.{record.table.name}", 1)
        before, history = stored(store), store.history("shop", ORDERS)
        store.prepare_for_copy(before)
        store.prepare_for_copy(before)
        assert store.destination_status("shop", ORDERS) is None
        assert stored(store) == before
        assert store.history("shop", ORDERS) == history
        assert store.latest_schema("shop", ORDERS) == make_schema()
        assert store.destination_table("shop", ITEMS) is not None

    def test_before_a_copy_a_schema_change_under_way_is_forgotten_too(self, store: Store, orders: TableRecord) -> None:
        store.applying(orders, "lake.orders", 1)
        store.prepare_for_copy(orders)
        assert store.destination_table("shop", ORDERS) is None

    def test_only_the_present_generation_prepares_its_copy(self, store: Store, orders: TableRecord) -> None:
        store.applied_schema(orders, "lake.orders", 1)
        store.new_generation("shop", ORDERS, by="someone")
        with pytest.raises(Overtaken):
            store.prepare_for_copy(orders)
        assert store.destination_table("shop", ORDERS) is not None

    def test_after_a_reset_every_table_begins_again(
        self, store: Store, orders: TableRecord, items: TableRecord
    ) -> None:
        lease = taken(store)
        store.mark_source("shop", ORDERS, "all of it")
        store.applied(lease, walk_to_ready(store, orders), Lsn(300), 42)
        store.move(items, ERROR, by="copy")
        store.reset_all("shop", lease, Lsn(400), by="someone")
        for record in store.tables("shop"):
            assert (record.generation, record.state, record.run_id) == (2, INIT, None)
            assert (record.applied_lsn, record.snapshot_id, record.copied_rows) == (None, None, None)
            assert store.history("shop", record.relation_id)[-1] == (2, INIT, "someone")
        assert stored(store).source_mark == "all of it"
        with pytest.raises(Overtaken):
            store.move(orders, TableState(StateKind.DATA_SYNC), by="copy")

    def test_a_reset_empties_the_ledger_and_names_its_files(
        self, store: Store, orders: TableRecord, items: TableRecord
    ) -> None:
        lease = taken(store)
        files = [make_file(10, 20), make_file(10, 15, relation_id=ITEMS), make_file(30, 40)]
        store.add_segment("shop", lease, make_segment(0, 25, *files[:2]))
        store.add_segment("shop", lease, make_segment(25, 50, files[2]))
        assert store.reset_all("shop", lease, Lsn(400), by="someone") == files
        assert (store.all_paths("shop"), store.spool_size("shop")) == (set(), (0, 0))
        assert spooled_lsn(store) == Lsn(400)
        assert store.reset_all("shop", lease, Lsn(400), by="someone") == []

    def test_a_reset_may_go_back(self, store: Store, orders: TableRecord) -> None:
        lease = taken(store)
        store.add_segment("shop", lease, make_segment(0, 500, make_file(10, 490)))
        store.reset_all("shop", lease, Lsn(40), by="someone")
        assert spooled_lsn(store) == Lsn(40)
        store.add_segment("shop", lease, make_segment(40, 500, make_file(50, 490)))
        assert spooled_lsn(store) == Lsn(500)

    def test_after_a_reset_no_shape_lies_ahead(self, store: Store, orders: TableRecord) -> None:
        store.add_schema("shop", make_schema(columns=3), Lsn(100))
        store.reset_all("shop", taken(store), Lsn(40), by="someone")
        assert [known.lsn for known in store.schemas("shop", ORDERS)] == [Lsn(10), Lsn(40)]
        added = store.add_schema("shop", make_schema(columns=4), Lsn(60))
        assert store.latest_schema("shop", ORDERS) == added

    def test_a_reset_announces_a_copy_of_every_table(
        self, store: Store, orders: TableRecord, items: TableRecord
    ) -> None:
        seen = store.announcements("shop")[-1].id
        store.reset_all("shop", taken(store), Lsn(40), by="someone")
        announced = store.announcements("shop", after=seen)
        assert sorted((known.kind, known.relation_id) for known in announced) == [("copy", ORDERS), ("copy", ITEMS)]
        assert store.announcements("shop") == announced

    def test_a_reset_leaves_other_pipelines_alone(self, store: Store, orders: TableRecord) -> None:
        store.register_pipeline(make_pipeline("other"))
        other = store.register_table("other", make_schema(), Lsn(10), by="discover")
        store.reset_all("shop", taken(store), Lsn(40), by="someone")
        assert store.table("other", ORDERS) == other
        assert store.pipeline("other") == make_pipeline("other")

    def test_a_reset_of_an_unknown_pipeline_is_an_error(self, store: Store) -> None:
        lease = store.acquire("nobody", "stream", "one", TTL_S)
        assert lease is not None
        with pytest.raises(StoreError, match="not registered"):
            store.reset_all("nobody", lease, Lsn(1), by="someone")

    def test_a_deleted_table_is_gone_with_all_that_belongs_to_it(
        self, store: Store, orders: TableRecord, items: TableRecord
    ) -> None:
        lease = taken(store)
        mine, other = [make_file(10, 20), make_file(30, 40)], make_file(30, 40, relation_id=ITEMS)
        store.add_segment("shop", lease, make_segment(0, 25, mine[0]))
        store.add_segment("shop", lease, make_segment(25, 50, mine[1], other))
        store.applied_schema(orders, "lake.orders", 1)
        store.record_cut("shop", lease, Lsn(50), [CutTable(ORDERS, 1), CutTable(ITEMS, 2)])
        assert store.delete_table("shop", ORDERS) == mine
        assert store.tables("shop") == [items]
        assert (store.table("shop", ORDERS), store.history("shop", ORDERS)) == (None, [])
        assert (store.schemas("shop", ORDERS), store.destination_status("shop", ORDERS)) == ([], None)
        assert store.all_paths("shop") == {other.path}
        assert {known.relation_id for known in store.announcements("shop")} == {ITEMS}
        assert store.latest_schema("shop", ITEMS) is not None
        assert spooled_lsn(store) == Lsn(50)
        with pytest.raises(StoreError, match="no table"):
            store.move(orders, TableState(StateKind.DATA_SYNC), by="copy")

    def test_an_unknown_table_can_be_deleted(self, store: Store, orders: TableRecord) -> None:
        assert store.delete_table("shop", ITEMS) == []
        assert store.delete_table("nobody", ORDERS) == []
        assert stored(store) == orders

    def test_a_deleted_table_may_come_back_as_a_new_one(self, store: Store, orders: TableRecord) -> None:
        walk_to_ready(store, orders)
        store.delete_table("shop", ORDERS)
        again = store.register_table("shop", make_schema(columns=3), Lsn(500), by="discover")
        assert (again.generation, again.state) == (1, INIT)
        assert store.history("shop", ORDERS) == [(1, INIT, "discover")]
        assert [known.lsn for known in store.schemas("shop", ORDERS)] == [Lsn(500)]


class DestinationContract(Given):
    """``DestinationStore``."""

    def test_nothing_is_known_before_the_first_change(self, store: Store, orders: TableRecord) -> None:
        assert store.destination_table("shop", ORDERS) is None
        assert store.destination_status("shop", ORDERS) is None
        assert store.destination_status("nobody", ORDERS) is None

    def test_a_change_is_applied_after_it_was_begun(self, store: Store, orders: TableRecord) -> None:
        begun = store.applying(orders, "lake.orders", 1)
        assert begun == DestinationTable(ORDERS, "lake.orders", 1, None, DestinationStatus.APPLYING)
        done = store.applied_schema(orders, "lake.orders", 1)
        assert done == DestinationTable(ORDERS, "lake.orders", 1, None, DestinationStatus.APPLIED)
        assert store.destination_table("shop", ORDERS) == store.destination_status("shop", ORDERS) == done

    def test_the_present_version_becomes_the_previous_one(self, store: Store, orders: TableRecord) -> None:
        store.applied_schema(orders, "lake.orders", 1)
        begun = store.applying(orders, "lake.orders", 3)
        assert (begun.schema_version, begun.previous_version) == (3, 1)
        done = store.applied_schema(orders, "lake.orders", 3)
        assert (done.schema_version, done.previous_version) == (3, None)

    def test_beginning_may_be_repeated(self, store: Store, orders: TableRecord) -> None:
        store.applied_schema(orders, "lake.orders", 1)
        begun = store.applying(orders, "lake.orders", 2)
        assert store.applying(orders, "lake.orders", 2) == begun
        assert begun.previous_version == 1

    def test_a_change_that_was_not_finished_may_be_begun_again_to_a_later_version(
        self, store: Store, orders: TableRecord
    ) -> None:
        store.applied_schema(orders, "lake.orders", 1)
        store.applying(orders, "lake.orders", 2)
        again = store.applying(orders, "lake.orders", 3)
        assert (again.schema_version, again.previous_version) == (3, 1)
        assert store.destination_status("shop", ORDERS) == again

    def test_while_a_change_is_under_way_only_recovery_may_ask(self, store: Store, orders: TableRecord) -> None:
        begun = store.applying(orders, "lake.orders", 1)
        with pytest.raises(SchemaChangeUnderWay) as caught:
            store.destination_table("shop", ORDERS)
        assert isinstance(caught.value, StoreError)
        assert caught.value.retry is Retry.MANUAL
        assert store.destination_status("shop", ORDERS) == begun

    def test_the_record_says_which_shape_was_applied(self, store: Store, orders: TableRecord) -> None:
        store.applying(orders, "lake.orders", 7)
        assert stored(store).schema_version is None
        store.applied_schema(orders, "lake.orders", 7)
        assert stored(store) == dataclasses.replace(orders, schema_version=7, updated_at=stored(store).updated_at)

    def test_a_table_may_get_another_name(self, store: Store, orders: TableRecord) -> None:
        store.applied_schema(orders, "lake.orders", 1)
        assert store.applied_schema(orders, "lake.sales", 1).name == "lake.sales"
        assert store.applying(orders, 'lake."or ders"', 2).name == 'lake."or ders"'

    def test_a_new_generation_keeps_the_old_table_until_it_is_replaced(self, store: Store, orders: TableRecord) -> None:
        done = store.applied_schema(orders, "lake.orders", 1)
        begun = store.new_generation("shop", ORDERS, by="someone")
        assert begun.schema_version is None
        assert store.destination_table("shop", ORDERS) == done

    def test_an_older_generation_can_not_change_the_shape(self, store: Store, orders: TableRecord) -> None:
        done = store.applied_schema(orders, "lake.orders", 1)
        begun = store.new_generation("shop", ORDERS, by="someone")
        with pytest.raises(Overtaken):
            store.applying(orders, "lake.orders", 2)
        with pytest.raises(Overtaken):
            store.applied_schema(orders, "lake.orders", 2)
        assert store.destination_table("shop", ORDERS) == done
        assert stored(store) == begun

    def test_the_destination_of_an_unknown_table_is_an_error(self, store: Store, orders: TableRecord) -> None:
        stranger = dataclasses.replace(orders, relation_id=1)
        with pytest.raises(StoreError, match="no table"):
            store.applying(stranger, "lake.stranger", 1)
        with pytest.raises(StoreError, match="no table"):
            store.applied_schema(stranger, "lake.stranger", 1)
