"""The store's contract, second half: leases, the spool's ledger, cuts, commands and samples."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

from airflow_provider_pgetl.replication.errors import Overtaken, StoreError
from airflow_provider_pgetl.replication.lsn import ZERO, Lsn
from airflow_provider_pgetl.replication.progress import (
    CutTable,
    Lease,
    PipelineRecord,
    SpoolFile,
    TableRecord,
)
from airflow_provider_pgetl.replication.store.base import Store
from airflow_provider_pgetl.testing.store_values import (
    ITEMS,
    ORDERS,
    TTL_S,
    Given,
    make_file,
    make_pipeline,
    make_segment,
    taken,
    wait_for,
    walk_to_ready,
)


class LeaseContract(Given):
    """``LeaseStore``."""

    def test_one_owner_at_a_time(self, store: Store) -> None:
        one = taken(store, "one")
        assert store.acquire("shop", "stream", "two", TTL_S) is None
        assert store.acquire("shop", "copy/1", "two", TTL_S) is not None
        assert store.acquire("other", "stream", "two", TTL_S) is not None
        store.release(one)
        assert taken(store, "two").epoch > one.epoch

    def test_an_owner_that_comes_back_gets_a_new_epoch(self, store: Store, shop: PipelineRecord) -> None:
        before = taken(store, "one")
        after = taken(store, "one")
        assert after.epoch == before.epoch + 1
        with pytest.raises(Overtaken):
            store.advance("shop", before, Lsn(5))
        store.advance("shop", after, Lsn(6))

    def test_an_expired_lease_can_be_taken(self, store: Store) -> None:
        one = taken(store, "one", ttl_s=0.05)
        two = wait_for(lambda: store.acquire("shop", "stream", "two", TTL_S), "the lease to expire")
        assert two.epoch == one.epoch + 1
        with pytest.raises(Overtaken):
            store.renew(one, TTL_S)

    def test_an_expired_lease_that_nobody_took_may_still_write(self, store: Store, orders: TableRecord) -> None:
        lease = taken(store, ttl_s=0.0)
        store.advance("shop", lease, Lsn(7))
        store.renew(lease, TTL_S)
        assert store.acquire("shop", "stream", "two", TTL_S) is None

    def test_a_renewed_lease_is_kept(self, store: Store) -> None:
        lease = taken(store, ttl_s=0.0)
        store.renew(lease, TTL_S)
        assert store.acquire("shop", "stream", "two", TTL_S) is None

    def test_release_of_an_overtaken_lease_changes_nothing(self, store: Store) -> None:
        one = taken(store, "one", ttl_s=0.0)
        two = taken(store, "two")
        store.release(one)
        store.renew(two, TTL_S)
        assert store.acquire("shop", "stream", "one", TTL_S) is None

    def test_a_released_lease_can_not_write(self, store: Store, shop: PipelineRecord) -> None:
        lease = taken(store)
        store.release(lease)
        with pytest.raises(Overtaken):
            store.advance("shop", lease, Lsn(5))

    def test_an_overtaken_epoch_writes_nothing(self, store: Store, orders: TableRecord) -> None:
        old = taken(store, "one", ttl_s=0.0)
        taken(store, "two")
        writes: list[Callable[[], object]] = [
            lambda: store.add_segment("shop", old, make_segment(0, 100, make_file(10, 20))),
            lambda: store.advance("shop", old, Lsn(100)),
            lambda: store.applied(old, orders, Lsn(100), 1),
            lambda: store.record_cut("shop", old, Lsn(100), [CutTable(ORDERS, 1)]),
        ]
        for write in writes:
            with pytest.raises(Overtaken):
                write()
        assert store.pipeline("shop") == make_pipeline()
        assert store.all_paths("shop") == set()
        assert store.table("shop", ORDERS) == orders
        assert store.latest_cut("shop") is None

    def test_of_many_at_once_one_gets_it(self, store: Store) -> None:
        with ThreadPoolExecutor(8) as threads:
            leases = list(threads.map(lambda n: store.acquire("shop", "stream", f"owner {n}", TTL_S), range(8)))
        assert len([lease for lease in leases if lease is not None]) == 1

    def test_epochs_of_racing_owners_never_repeat(self, store: Store) -> None:
        with ThreadPoolExecutor(8) as threads:
            leases = list(threads.map(lambda n: store.acquire("shop", "stream", f"owner {n}", 0.0), range(32)))
        epochs = [lease.epoch for lease in leases if lease is not None]
        assert len(epochs) == len(set(epochs))
        assert max(epochs) == len(epochs)


class LedgerContract(Given):
    """``LedgerStore``."""

    @pytest.fixture
    def lease(self, store: Store, orders: TableRecord) -> Lease:
        """The stream's lease."""
        return taken(store)

    def test_a_segment_moves_the_spooled_position(self, store: Store, lease: Lease) -> None:
        first = store.add_segment("shop", lease, make_segment(0, 100, make_file(10, 90)))
        second = store.add_segment("shop", lease, make_segment(100, 200, make_file(100, 190)))
        assert second > first
        assert store.pipeline("shop") == dataclasses.replace(make_pipeline(), spooled_lsn=Lsn(200))

    def test_a_replayed_segment_is_refused(self, store: Store, lease: Lease) -> None:
        store.add_segment("shop", lease, make_segment(0, 100, make_file(10, 90)))
        with pytest.raises(Overtaken):
            store.add_segment("shop", lease, make_segment(50, 150, make_file(60, 140)))
        assert store.all_paths("shop") == {make_file(10, 90).path}
        pipeline = store.pipeline("shop")
        assert pipeline is not None
        assert pipeline.spooled_lsn == Lsn(100)

    def test_the_same_call_again_returns_the_same_segment(self, store: Store, lease: Lease) -> None:
        segment = make_segment(0, 100, make_file(10, 90))
        assert store.add_segment("shop", lease, segment) == store.add_segment("shop", lease, segment)
        assert store.files("shop", ORDERS, ZERO, Lsn(1000)) == [make_file(10, 90)]
        store.release(lease)
        with pytest.raises(Overtaken):
            store.add_segment("shop", taken(store, "two"), segment)

    def test_a_segment_enters_whole_or_not_at_all(self, store: Store, lease: Lease) -> None:
        taken_path = make_file(10, 20)
        store.add_segment("shop", lease, make_segment(0, 100, taken_path))
        with pytest.raises(StoreError):
            store.add_segment("shop", lease, make_segment(100, 200, make_file(110, 120), taken_path))
        assert store.all_paths("shop") == {taken_path.path}
        pipeline = store.pipeline("shop")
        assert pipeline is not None
        assert pipeline.spooled_lsn == Lsn(100)

    def test_advance_only_moves_forward(self, store: Store, lease: Lease) -> None:
        store.advance("shop", lease, Lsn(500))
        store.advance("shop", lease, Lsn(400))
        pipeline = store.pipeline("shop")
        assert pipeline is not None
        assert pipeline.spooled_lsn == Lsn(500)

    def test_advance_of_an_unknown_pipeline_is_an_error(self, store: Store) -> None:
        lease = store.acquire("nobody", "stream", "one", TTL_S)
        assert lease is not None
        with pytest.raises(StoreError, match="not registered"):
            store.advance("nobody", lease, Lsn(1))

    def test_files_are_found_half_open_at_both_ends(self, store: Store, lease: Lease) -> None:
        early, late = make_file(10, 20), make_file(30, 40)
        store.add_segment("shop", lease, make_segment(0, 25, early))
        store.add_segment("shop", lease, make_segment(25, 50, late))

        def found(start: int, end: int) -> list[SpoolFile]:
            return store.files("shop", ORDERS, Lsn(start), Lsn(end))

        assert found(0, 100) == [early, late]
        assert found(20, 30) == [early]  # a commit at 20 is in [20, 30); one at 30 is not
        assert found(21, 31) == [late]
        assert found(0, 10) == []
        assert found(41, 100) == []
        assert store.files("shop", ITEMS, ZERO, Lsn(100)) == []

    def test_files_come_in_the_order_of_the_stream(self, store: Store, lease: Lease) -> None:
        pieces = [make_file(10, 10, path=f"piece-{number}") for number in (3, 1, 2)]
        store.add_segment("shop", lease, make_segment(0, 25, *pieces))
        later = make_file(25, 30, path="a")
        store.add_segment("shop", lease, make_segment(25, 50, later, make_file(26, 26, relation_id=ITEMS)))
        assert store.files("shop", ORDERS, ZERO, Lsn(50)) == [*pieces, later]

    def test_expired_are_files_that_their_table_has_applied_wholly(
        self, store: Store, orders: TableRecord, lease: Lease
    ) -> None:
        early, late = make_file(10, 20), make_file(30, 40)
        store.add_segment("shop", lease, make_segment(0, 25, early))
        store.add_segment("shop", lease, make_segment(25, 50, late))
        assert store.expired_files("shop", 0) == []
        ready = walk_to_ready(store, orders)
        store.applied(lease, ready, Lsn(40), 1)
        assert store.expired_files("shop", 0) == [early]  # the commit at 40 is not in yet
        store.applied(lease, ready, Lsn(41), 2)
        assert store.expired_files("shop", 0) == [early, late]
        assert store.expired_files("shop", 3600) == []

    def test_nothing_expires_while_the_applier_does_not_look_after_the_table(
        self, store: Store, orders: TableRecord, lease: Lease
    ) -> None:
        store.add_segment("shop", lease, make_segment(0, 25, make_file(10, 20)))
        store.applied(lease, walk_to_ready(store, orders), Lsn(100), 1)
        store.new_generation("shop", ORDERS, by="someone")
        assert store.expired_files("shop", 0) == []

    def test_forgotten_files_are_gone(self, store: Store, lease: Lease) -> None:
        one, two = make_file(10, 20), make_file(10, 20, relation_id=ITEMS)
        store.add_segment("shop", lease, make_segment(0, 25, one, two))
        store.forget_files("shop", [one.path, "unknown"])
        assert store.all_paths("shop") == {two.path}
        store.forget_files("shop", [two.path])
        store.forget_files("shop", [])
        assert store.all_paths("shop") == set()

    def test_backlog_counts_what_is_not_applied(self, store: Store, orders: TableRecord, lease: Lease) -> None:
        assert store.backlog("shop") == (0, 0)
        store.add_segment("shop", lease, make_segment(0, 25, make_file(10, 20)))
        store.add_segment("shop", lease, make_segment(25, 50, make_file(30, 40), make_file(30, 40, relation_id=ITEMS)))
        assert store.backlog("shop") == (3, 300)
        store.applied(lease, orders, Lsn(40), 1)
        assert store.backlog("shop") == (2, 200)
        store.applied(lease, orders, Lsn(41), 1)
        assert store.backlog("shop") == (1, 100)


class CutContract(Given):
    """``CutStore`` and ``SampleStore``."""

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
