"""The store's contract: leases, and what they keep out."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from airflow_provider_pgetl.replication.errors import (
    Overtaken,
)
from airflow_provider_pgetl.replication.lsn import ZERO, Lsn
from airflow_provider_pgetl.replication.progress import (
    CutTable,
    PipelineRecord,
    TableRecord,
)
from airflow_provider_pgetl.replication.store.base import Store
from airflow_provider_pgetl.testing.store_values import (
    ORDERS,
    TTL_S,
    Given,
    make_file,
    make_segment,
    spooled_lsn,
    taken,
    wait_for,
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
        store.add_segment("shop", old, make_segment(0, 50, make_file(10, 20)))
        taken(store, "two")
        writes: list[Callable[[], object]] = [
            lambda: store.add_segment("shop", old, make_segment(50, 100, make_file(60, 70))),
            lambda: store.advance("shop", old, Lsn(100)),
            lambda: store.applied(old, orders, Lsn(100), 1),
            lambda: store.record_cut("shop", old, Lsn(100), [CutTable(ORDERS, 1)]),
            lambda: store.reset_all("shop", old, Lsn(100), by="zombie"),
            lambda: store.rewind("shop", old, ZERO),
            lambda: store.follow_timeline("shop", old, 2),
            lambda: store.renew(old, TTL_S),
        ]
        before = store.pipeline("shop"), store.all_paths("shop"), store.announcements("shop")
        for write in writes:
            with pytest.raises(Overtaken):
                write()
        assert (store.pipeline("shop"), store.all_paths("shop"), store.announcements("shop")) == before
        assert store.table("shop", ORDERS) == orders
        assert len(store.history("shop", ORDERS)) == 1
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

    def test_of_racing_writers_and_owners_none_writes_after_its_successor(
        self, store: Store, orders: TableRecord
    ) -> None:
        """Each owner takes the lease over and spools one segment; what is in the ledger is in the order of epochs."""

        def take_over(number: int) -> int | None:
            lease = store.acquire("shop", "stream", f"owner {number}", 0.0)
            assert lease is not None
            start = int(spooled_lsn(store))
            file = make_file(start, start + 9, path=f"{lease.epoch:04}")
            try:
                store.add_segment("shop", lease, make_segment(start, start + 10, file))
            except Overtaken:
                return None
            return lease.epoch

        with ThreadPoolExecutor(4) as threads:
            written = [epoch for epoch in threads.map(take_over, range(24)) if epoch is not None]
        paths = [file.path for file in store.files("shop", ORDERS, ZERO, Lsn(10_000))]
        assert paths == sorted(f"{epoch:04}" for epoch in written)
        assert spooled_lsn(store) == Lsn(10 * len(written))
