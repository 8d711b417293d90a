"""The store's contract: cuts, announcements, commands and samples."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

from airflow_provider_pgetl.replication.errors import (
    StoreError,
)
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.progress import (
    Announcement,
    CutTable,
    PipelineRecord,
    TableRecord,
)
from airflow_provider_pgetl.replication.store.base import Store
from airflow_provider_pgetl.testing.store_values import (
    ITEMS,
    ORDERS,
    Given,
    make_pipeline,
    make_schema,
    taken,
)


class CutContract(Given):
    """``CutStore``."""

    def test_a_cut_is_found_again(self, store: Store, orders: TableRecord) -> None:
        assert store.latest_cut("shop") is None
        lease = taken(store)
        first = store.record_cut("shop", lease, Lsn(100), [CutTable(ITEMS, None), CutTable(ORDERS, 2**62)])
        assert first.tables == (CutTable(ORDERS, 2**62), CutTable(ITEMS, None))
        assert first.created_at is not None
        assert store.latest_cut("shop") == first
        second = store.record_cut("shop", lease, Lsn(100), [CutTable(ORDERS, 2)])
        third = store.record_cut("shop", lease, Lsn(200), [])
        assert (store.latest_cut("shop"), store.cut_at("shop", Lsn(100))) == (third, second)
        assert store.cut_at("shop", Lsn(150)) is None
        assert store.latest_cut("nobody") is None

    def test_a_cut_announces_its_tables(self, store: Store, shop: PipelineRecord) -> None:
        lease = taken(store)
        assert store.announcements("shop") == store.announcements("nobody") == []
        store.record_cut("shop", lease, Lsn(100), [CutTable(ITEMS, 2), CutTable(ORDERS, 1)])
        first = store.announcements("shop")
        assert [(known.kind, known.relation_id, known.lsn, known.snapshot_id) for known in first] == [
            ("cut", ORDERS, Lsn(100), 1),
            ("cut", ITEMS, Lsn(100), 2),
        ]
        assert [known.id for known in first] == sorted({known.id for known in first})

    def test_of_each_kind_and_table_the_newest_is_announced(self, store: Store, orders: TableRecord) -> None:
        lease = taken(store)
        store.record_cut("shop", lease, Lsn(100), [CutTable(ORDERS, 1), CutTable(ITEMS, 2)])
        store.record_cut("shop", lease, Lsn(200), [CutTable(ORDERS, None)])
        announced = store.announcements("shop")
        assert [(known.kind, known.relation_id, known.lsn, known.snapshot_id) for known in announced] == [
            ("copy", ORDERS, None, None),
            ("cut", ITEMS, Lsn(100), 2),
            ("cut", ORDERS, Lsn(200), None),
        ]

    def test_announcements_go_on_from_the_last_id_seen(self, store: Store, orders: TableRecord) -> None:
        copy = store.announcements("shop")[-1]
        assert store.announcements("shop", after=copy.id) == []
        assert store.announcements("shop", after=copy.id - 1) == [copy]
        store.record_cut("shop", taken(store), Lsn(100), [CutTable(ORDERS, 1)])
        [cut] = store.announcements("shop", after=copy.id)
        assert (cut.kind, store.announcements("shop", after=cut.id)) == ("cut", [])

    def test_a_reader_that_goes_on_from_the_last_id_misses_nothing(self, store: Store, shop: PipelineRecord) -> None:
        """An id that became visible after a larger one would never be read."""
        lease, relations, rounds = taken(store), range(1, 7), range(10)
        for relation_id in relations:
            store.register_table("shop", make_schema(relation_id, f"t{relation_id}"), Lsn(1), by="discover")
        seen: dict[tuple[str, int | None], Announcement] = {}
        last = 0

        def write(relation_id: int) -> None:
            for number in rounds:
                store.new_generation("shop", relation_id, by="someone")
                store.record_cut("shop", lease, Lsn(number), [CutTable(relation_id, number)])

        def read() -> None:
            nonlocal last
            for announcement in store.announcements("shop", after=last):
                seen[announcement.kind, announcement.relation_id] = announcement
                last = announcement.id

        with ThreadPoolExecutor(len(relations)) as threads:
            writing = [threads.submit(write, relation_id) for relation_id in relations]
            while not all(future.done() for future in writing):
                read()
        for future in writing:
            future.result()
        read()
        assert sorted(seen.values(), key=lambda known: known.id) == store.announcements("shop")

    def test_a_command_is_open_until_it_is_answered(self, store: Store, shop: PipelineRecord) -> None:
        assert store.open_commands("shop") == []
        first = store.ask("shop", "cut", {"lsn": Lsn(16)}, by="check")
        second = store.ask("shop", "pause", {}, by="someone")
        commands = store.open_commands("shop")
        assert [(c.id, c.kind, c.payload, c.created_by) for c in commands] == [
            (first, "cut", {"lsn": 16}, "check"),
            (second, "pause", {}, "someone"),
        ]
        assert store.command_result("shop", first) is None
        store.answer("shop", first, {"cut": 7})
        store.answer("shop", first, {"cut": 8})
        assert store.command_result("shop", first) == {"cut": 7}
        assert [command.id for command in store.open_commands("shop")] == [second]

    def test_a_command_belongs_to_its_pipeline(self, store: Store, shop: PipelineRecord) -> None:
        asked = store.ask("shop", "cut", {}, by="check")
        store.register_pipeline(make_pipeline("other"))
        store.answer("other", asked, {"cut": 7})
        assert store.command_result("shop", asked) is None
        assert store.open_commands("other") == []
        with pytest.raises(StoreError, match="not registered"):
            store.ask("nobody", "cut", {}, by="check")


class SampleContract(Given):
    """``SampleStore``."""

    def test_the_newest_sample_comes_with_its_time(self, store: Store, shop: PipelineRecord) -> None:
        assert store.latest_sample("shop") is None
        before = datetime.now(UTC)
        store.add_sample("shop", {"lag_bytes": 1})
        store.add_sample("shop", {"lag_bytes": 2, "tables": {"ready": 8}, "seconds": 0.5})
        sample = store.latest_sample("shop")
        assert sample is not None
        at = sample.pop("at")
        assert sample == {"lag_bytes": 2, "tables": {"ready": 8}, "seconds": 0.5}
        assert abs((at - before).total_seconds()) < 60
