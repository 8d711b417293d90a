"""The store's contract: versions of schemas."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from airflow_provider_pgetl.replication.errors import (
    StoreError,
)
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.progress import (
    PipelineRecord,
    TableRecord,
)
from airflow_provider_pgetl.replication.schema import Identity, SchemaVersion, TableName, TableSchema
from airflow_provider_pgetl.replication.state import StateKind, TableState
from airflow_provider_pgetl.replication.store.base import Store
from airflow_provider_pgetl.testing.store_values import (
    ITEMS,
    ORDERS,
    Given,
    make_file,
    make_pipeline,
    make_schema,
    make_segment,
    taken,
)

WIDE, WIDER = make_schema(columns=3), make_schema(columns=4)


def changed(schema: TableSchema, **column: Any) -> TableSchema:
    """The schema with another last column."""
    *others, last = schema.columns
    return dataclasses.replace(schema, columns=(*others, dataclasses.replace(last, **column)))


def listed(store: Store) -> list[tuple[int, int]]:
    """(LSN, version) of every version, in the store's order."""
    return [(int(known.lsn), known.schema.version) for known in store.schemas("shop", ORDERS)]


class SchemaContract(Given):
    """``SchemaStore``."""

    def test_a_new_shape_gets_a_new_version(self, store: Store, shop: PipelineRecord) -> None:
        assert store.latest_schema("shop", ORDERS) is None
        first = store.add_schema("shop", make_schema(), Lsn(1))
        second = store.add_schema("shop", WIDE, Lsn(2))
        assert (first.version, second.version) == (1, 2)
        assert second.columns == WIDE.columns
        assert store.latest_schema("shop", ORDERS) == second
        assert store.schema_version("shop", ORDERS, 1) == first
        assert store.schema_version("shop", ORDERS, 3) is None

    def test_the_version_that_comes_with_a_schema_does_not_count(self, store: Store, shop: PipelineRecord) -> None:
        assert store.add_schema("shop", dataclasses.replace(make_schema(), version=9), Lsn(1)).version == 1

    def test_the_same_shape_adds_nothing(self, store: Store, shop: PipelineRecord) -> None:
        first = store.add_schema("shop", make_schema(), Lsn(1))
        assert store.add_schema("shop", dataclasses.replace(make_schema(), version=9), Lsn(2)) == first
        assert store.add_schema("shop", make_schema(), Lsn(1)) == first
        assert listed(store) == [(1, 1)]

    def test_another_name_is_another_shape(self, store: Store, shop: PipelineRecord) -> None:
        store.add_schema("shop", make_schema(), Lsn(1))
        assert store.add_schema("shop", make_schema(table="renamed"), Lsn(3)).version == 2

    def test_another_replica_identity_is_another_shape(self, store: Store, shop: PipelineRecord) -> None:
        store.add_schema("shop", make_schema(), Lsn(1))
        other = dataclasses.replace(make_schema(), identity=Identity.FULL)
        assert store.add_schema("shop", other, Lsn(3)).version == 2

    def test_another_default_is_another_shape(self, store: Store, shop: PipelineRecord) -> None:
        store.add_schema("shop", make_schema(), Lsn(1))
        assert store.add_schema("shop", changed(make_schema(), default="7"), Lsn(2)).version == 2

    def test_a_missing_value_that_is_gone_makes_no_other_shape(self, store: Store, shop: PipelineRecord) -> None:
        first = store.add_schema("shop", changed(make_schema(), default="7", missing="7"), Lsn(1))
        assert store.add_schema("shop", changed(make_schema(), default="7"), Lsn(2)) == first
        assert store.latest_schema("shop", ORDERS) == first
        assert first.columns[-1].missing == "7"

    def test_a_shape_that_comes_back_is_a_new_version(self, store: Store, shop: PipelineRecord) -> None:
        for lsn, columns in enumerate((2, 3, 2), 1):
            added = store.add_schema("shop", make_schema(columns=columns), Lsn(lsn))
        assert added.version == 3

    def test_a_version_holds_from_its_lsn_on(self, store: Store, shop: PipelineRecord) -> None:
        first = store.add_schema("shop", make_schema(), Lsn(10))
        second = store.add_schema("shop", WIDE, Lsn(20))
        found = [store.schema_at("shop", ORDERS, Lsn(lsn)) for lsn in (9, 10, 19, 20, 999)]
        assert found == [None, first, first, second, second]
        assert store.schema_at("shop", ITEMS, Lsn(999)) is None
        assert store.schema_at("nobody", ORDERS, Lsn(999)) is None

    def test_a_version_may_come_in_between(self, store: Store, shop: PipelineRecord) -> None:
        first = store.add_schema("shop", make_schema(), Lsn(10))
        last = store.add_schema("shop", WIDER, Lsn(100))
        between = store.add_schema("shop", WIDE, Lsn(50))
        assert store.schemas("shop", ORDERS) == [
            SchemaVersion(Lsn(10), first),
            SchemaVersion(Lsn(50), between),
            SchemaVersion(Lsn(100), last),
        ]
        assert (between.version, last.version) == (3, 2)
        assert store.latest_schema("shop", ORDERS) == last
        assert store.schema_at("shop", ORDERS, Lsn(99)) == between

    def test_a_version_may_come_before_all_others(self, store: Store, shop: PipelineRecord) -> None:
        store.add_schema("shop", make_schema(), Lsn(10))
        store.add_schema("shop", WIDE, Lsn(5))
        assert listed(store) == [(5, 2), (10, 1)]

    def test_a_shape_seen_ahead_of_the_stream_holds_from_where_the_stream_says(
        self, store: Store, shop: PipelineRecord
    ) -> None:
        store.add_schema("shop", make_schema(), Lsn(10))
        copied = store.add_schema("shop", WIDE, Lsn(100))
        assert store.add_schema("shop", WIDE, Lsn(50)) == copied
        assert listed(store) == [(10, 1), (50, 2)]
        assert store.schema_at("shop", ORDERS, Lsn(50)) == copied

    def test_only_the_first_version_after_it_can_hold_from_earlier_on(self, store: Store, shop: PipelineRecord) -> None:
        for lsn, columns in ((10, 2), (100, 3), (200, 4)):
            store.add_schema("shop", make_schema(columns=columns), Lsn(lsn))
        assert store.add_schema("shop", WIDER, Lsn(50)).version == 4
        assert listed(store) == [(10, 1), (50, 4), (100, 2), (200, 3)]

    def test_versions_of_one_commit_come_in_the_order_of_their_numbers(
        self, store: Store, shop: PipelineRecord
    ) -> None:
        store.add_schema("shop", make_schema(), Lsn(10))
        store.add_schema("shop", WIDE, Lsn(20))
        last = store.add_schema("shop", WIDER, Lsn(20))
        assert listed(store) == [(10, 1), (20, 2), (20, 3)]
        assert store.schema_at("shop", ORDERS, Lsn(20)) == store.latest_schema("shop", ORDERS) == last
        back = store.add_schema("shop", make_schema(), Lsn(20))
        assert (back.version, store.schema_at("shop", ORDERS, Lsn(25))) == (4, back)

    def test_what_was_seen_ahead_never_slips_before_a_version_of_the_same_commit(
        self, store: Store, shop: PipelineRecord
    ) -> None:
        store.add_schema("shop", make_schema(), Lsn(10))
        store.add_schema("shop", WIDER, Lsn(100))
        store.add_schema("shop", WIDE, Lsn(50))
        added = store.add_schema("shop", WIDER, Lsn(50))
        assert listed(store) == [(10, 1), (50, 3), (50, 4), (100, 2)]
        assert store.schema_at("shop", ORDERS, Lsn(50)) == added
        assert added.columns == WIDER.columns

    def test_a_rewrite_is_a_version_of_its_own_with_the_same_columns(self, store: Store, shop: PipelineRecord) -> None:
        rewritten = dataclasses.replace(make_schema(), rewrite="alter type")
        store.add_schema("shop", make_schema(), Lsn(10))
        added = store.add_schema("shop", rewritten, Lsn(20))
        assert (added.version, added.rewrite) == (2, "alter type")
        assert store.add_schema("shop", rewritten, Lsn(20)) == added
        assert store.add_schema("shop", rewritten, Lsn(30)).version == 3
        other = dataclasses.replace(make_schema(), rewrite="set default")
        assert store.add_schema("shop", other, Lsn(30)).version == 4
        assert [known.schema.rewrite for known in store.schemas("shop", ORDERS)] == [
            None,
            "alter type",
            "alter type",
            "set default",
        ]

    def test_the_shape_after_a_rewrite_is_the_rewritten_one(self, store: Store, shop: PipelineRecord) -> None:
        rewritten = store.add_schema("shop", dataclasses.replace(WIDE, rewrite="alter type"), Lsn(20))
        assert store.add_schema("shop", WIDE, Lsn(20)) == rewritten
        assert store.add_schema("shop", WIDE, Lsn(30)) == rewritten
        assert listed(store) == [(20, 1)]

    def test_a_rewrite_stays_where_it_is(self, store: Store, shop: PipelineRecord) -> None:
        store.add_schema("shop", make_schema(), Lsn(10))
        store.add_schema("shop", dataclasses.replace(WIDE, rewrite="alter type"), Lsn(100))
        assert store.add_schema("shop", WIDE, Lsn(50)).version == 3
        assert store.add_schema("shop", dataclasses.replace(WIDE, rewrite="alter type"), Lsn(60)).version == 4
        assert listed(store) == [(10, 1), (50, 3), (60, 4), (100, 2)]

    def test_a_rewrite_is_not_what_a_copy_saw_ahead(self, store: Store, shop: PipelineRecord) -> None:
        store.add_schema("shop", make_schema(), Lsn(10))
        store.add_schema("shop", WIDE, Lsn(100))
        store.add_schema("shop", dataclasses.replace(WIDE, rewrite="alter type"), Lsn(50))
        assert listed(store) == [(10, 1), (50, 3), (100, 2)]

    def test_schemas_of_tables_and_pipelines_are_apart(self, store: Store, shop: PipelineRecord) -> None:
        store.register_pipeline(make_pipeline("other"))
        store.add_schema("shop", make_schema(), Lsn(1))
        assert store.add_schema("shop", make_schema(ITEMS, "items"), Lsn(1)).version == 1
        assert store.add_schema("other", WIDE, Lsn(1)).version == 1
        assert store.schemas("nobody", ORDERS) == []
        assert store.latest_schema("other", ORDERS) == WIDE

    def test_names_are_kept_as_they_are(self, store: Store, shop: PipelineRecord) -> None:
        odd = dataclasses.replace(make_schema(), table=TableName('we"ird', "na me; drop — ünïcode"))
        record = store.register_table("shop", odd, Lsn(1), by="discover")
        assert record.table == odd.table
        assert store.latest_schema("shop", ORDERS) == odd

    def test_racing_writers_make_each_version_once(self, store: Store, shop: PipelineRecord) -> None:
        with ThreadPoolExecutor(8) as threads:
            added = list(
                threads.map(lambda n: store.add_schema("shop", make_schema(columns=2 + n % 5), Lsn(n)), range(64))
            )
        versions = {schema.version: schema.columns for schema in added}
        assert set(versions) == set(range(1, len(versions) + 1))
        assert all(versions[schema.version] == schema.columns for schema in added)
        assert {known.schema.version for known in store.schemas("shop", ORDERS)} == set(versions)

    def test_racing_writers_of_one_shape_make_one_version(self, store: Store, shop: PipelineRecord) -> None:
        with ThreadPoolExecutor(8) as threads:
            added = list(threads.map(lambda _: store.add_schema("shop", WIDE, Lsn(5)), range(16)))
        assert {schema.version for schema in added} == {1}
        assert listed(store) == [(5, 1)]

    def test_an_unknown_pipeline_is_an_error(self, store: Store) -> None:
        with pytest.raises(StoreError, match="not registered"):
            store.add_schema("nobody", make_schema(), Lsn(1))

    def test_pruning_keeps_what_holds_at_the_position_and_after(self, store: Store, shop: PipelineRecord) -> None:
        for number in range(1, 5):
            store.add_schema("shop", make_schema(columns=number), Lsn(10 * number))
        assert store.prune_schemas("shop", ORDERS, Lsn(9)) == 0
        assert store.prune_schemas("shop", ORDERS, Lsn(19)) == 0
        assert store.prune_schemas("shop", ORDERS, Lsn(30)) == 2
        assert listed(store) == [(30, 3), (40, 4)]
        assert store.prune_schemas("shop", ORDERS, Lsn(30)) == 0
        assert store.prune_schemas("shop", ITEMS, Lsn(30)) == 0
        assert store.prune_schemas("nobody", ORDERS, Lsn(30)) == 0

    def test_pruning_keeps_what_a_spool_file_uses(self, store: Store, orders: TableRecord) -> None:
        for number in range(3, 6):
            store.add_schema("shop", make_schema(columns=number), Lsn(10 * number))
        spooled = make_file(30, 39, version=2)
        store.add_segment("shop", taken(store), make_segment(0, 40, spooled))
        assert store.prune_schemas("shop", ORDERS, Lsn(50)) == 2
        assert listed(store) == [(30, 2), (50, 4)]
        store.forget_files("shop", [spooled.path])
        assert store.prune_schemas("shop", ORDERS, Lsn(50)) == 1

    def test_pruning_keeps_the_shape_of_the_destination(self, store: Store, orders: TableRecord) -> None:
        for number in range(3, 8):
            store.add_schema("shop", make_schema(columns=number), Lsn(10 * number))
        store.applied_schema(orders, "lake.orders", 2)
        store.applying(orders, "lake.orders", 4)
        assert store.prune_schemas("shop", ORDERS, Lsn(999)) == 3
        assert listed(store) == [(30, 2), (50, 4), (70, 6)]
        store.applied_schema(orders, "lake.orders", 4)
        assert store.prune_schemas("shop", ORDERS, Lsn(999)) == 1
        assert listed(store) == [(50, 4), (70, 6)]

    def test_pruning_keeps_the_shape_of_the_copy(self, store: Store, orders: TableRecord) -> None:
        for number in range(3, 6):
            store.add_schema("shop", make_schema(columns=number), Lsn(10 * number))
        store.move(orders, TableState(StateKind.DATA_SYNC), by="copy", schema_version=3)
        store.prune_schemas("shop", ORDERS, Lsn(999))
        assert listed(store) == [(40, 3), (50, 4)]

    def test_a_pruned_number_is_never_used_again(self, store: Store, shop: PipelineRecord) -> None:
        store.add_schema("shop", make_schema(), Lsn(10))
        store.add_schema("shop", WIDER, Lsn(100))
        store.add_schema("shop", WIDE, Lsn(50))
        store.prune_schemas("shop", ORDERS, Lsn(100))
        assert store.add_schema("shop", make_schema(), Lsn(200)).version == 4
