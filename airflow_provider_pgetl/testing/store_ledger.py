"""The store's contract: the spool's ledger."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from airflow_provider_pgetl.replication.errors import (
    Overtaken,
    StoreError,
)
from airflow_provider_pgetl.replication.lsn import ZERO, Lsn
from airflow_provider_pgetl.replication.progress import (
    Lease,
    SpoolFile,
    TableBacklog,
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
    spooled_lsn,
    taken,
    walk_to_ready,
)


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
        assert spooled_lsn(store) == Lsn(100)

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
        assert spooled_lsn(store) == Lsn(100)

    def test_advance_only_moves_forward(self, store: Store, lease: Lease) -> None:
        store.advance("shop", lease, Lsn(500))
        store.advance("shop", lease, Lsn(400))
        assert spooled_lsn(store) == Lsn(500)

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

    def test_backlogs_of_tables_come_with_the_one_furthest_behind_first(
        self, store: Store, orders: TableRecord, lease: Lease
    ) -> None:
        assert store.table_backlogs("shop") == []
        store.add_segment("shop", lease, make_segment(0, 25, make_file(10, 20)))
        store.add_segment("shop", lease, make_segment(25, 50, make_file(30, 40), make_file(28, 48, relation_id=ITEMS)))
        items = TableBacklog(ITEMS, files=1, bytes=100, first_lsn=Lsn(28))
        assert store.table_backlogs("shop") == [TableBacklog(ORDERS, 2, 200, Lsn(10)), items]
        store.applied(lease, orders, Lsn(21), 1)
        assert store.table_backlogs("shop") == [items, TableBacklog(ORDERS, 1, 100, Lsn(30))]
        store.applied(lease, orders, Lsn(41), 1)
        assert store.table_backlogs("shop") == [items]

    def test_of_a_file_applied_in_part_the_rest_counts(self, store: Store, orders: TableRecord, lease: Lease) -> None:
        store.add_segment("shop", lease, make_segment(0, 50, make_file(10, 40), make_file(15, 20, relation_id=ITEMS)))
        store.applied(lease, orders, Lsn(30), 1)
        assert store.table_backlogs("shop") == [
            TableBacklog(ITEMS, 1, 100, Lsn(15)),
            TableBacklog(ORDERS, 1, 100, Lsn(30)),
        ]

    def test_the_spool_is_as_large_as_all_that_is_registered(
        self, store: Store, orders: TableRecord, lease: Lease
    ) -> None:
        assert store.spool_size("shop") == (0, 0)
        early = make_file(10, 20)
        store.add_segment("shop", lease, make_segment(0, 25, early, make_file(10, 20, relation_id=ITEMS)))
        store.applied(lease, walk_to_ready(store, orders), Lsn(100), 1)
        assert store.spool_size("shop") == (2, 200)
        store.forget_files("shop", [early.path])
        assert store.spool_size("shop") == (1, 100)

    def test_a_rewind_forgets_segments_that_reach_past_it(self, store: Store, lease: Lease) -> None:
        early, late, last = make_file(10, 20), make_file(30, 40), make_file(50, 60, relation_id=ITEMS)
        store.add_segment("shop", lease, make_segment(0, 25, early))
        store.add_segment("shop", lease, make_segment(25, 50, late))
        store.add_segment("shop", lease, make_segment(50, 75, last))
        assert store.rewind("shop", lease, Lsn(25)) == [late, last]
        assert spooled_lsn(store) == Lsn(25)
        assert store.all_paths("shop") == {early.path}
        assert store.rewind("shop", lease, Lsn(25)) == []

    def test_after_a_rewind_the_same_wal_can_be_spooled_again(self, store: Store, lease: Lease) -> None:
        segment = make_segment(25, 50, make_file(30, 40))
        store.advance("shop", lease, Lsn(25))
        first = store.add_segment("shop", lease, segment)
        store.rewind("shop", lease, Lsn(25))
        assert store.add_segment("shop", lease, segment) != first
        assert spooled_lsn(store) == Lsn(50)
        assert store.spool_size("shop") == (1, 100)

    def test_a_rewind_leaves_no_commit_out(self, store: Store, lease: Lease) -> None:
        """The file goes as a whole, so its commits before the position have to be sent again, too."""
        store.add_segment("shop", lease, make_segment(0, 25, make_file(10, 20)))
        store.add_segment("shop", lease, make_segment(25, 75, make_file(30, 70), make_file(40, 45, relation_id=ITEMS)))
        store.rewind("shop", lease, Lsn(50))
        assert spooled_lsn(store) == Lsn(30)
        assert store.all_paths("shop") == {make_file(10, 20).path}

    def test_a_rewind_never_moves_forward(self, store: Store, lease: Lease) -> None:
        store.add_segment("shop", lease, make_segment(0, 25, make_file(10, 20)))
        assert store.rewind("shop", lease, Lsn(100)) == []
        assert spooled_lsn(store) == Lsn(25)
        store.advance("shop", lease, Lsn(90))
        assert store.rewind("shop", lease, Lsn(60)) == []
        assert spooled_lsn(store) == Lsn(60)

    def test_a_new_timeline_is_remembered(self, store: Store, lease: Lease) -> None:
        followed = store.follow_timeline("shop", lease, 2)
        assert followed == dataclasses.replace(make_pipeline(), timeline=2)
        assert store.pipeline("shop") == followed
        assert store.register_pipeline(make_pipeline()).timeline == 2

    def test_the_ledger_of_an_unknown_pipeline_is_an_error(self, store: Store) -> None:
        lease = store.acquire("nobody", "stream", "one", TTL_S)
        assert lease is not None
        writes: list[Callable[[], object]] = [
            lambda: store.add_segment("nobody", lease, make_segment(0, 25)),
            lambda: store.advance("nobody", lease, Lsn(1)),
            lambda: store.rewind("nobody", lease, Lsn(1)),
            lambda: store.follow_timeline("nobody", lease, 2),
        ]
        for write in writes:
            with pytest.raises(StoreError, match="not registered"):
                write()
        assert (store.table_backlogs("nobody"), store.spool_size("nobody")) == ([], (0, 0))

    def test_racing_repeats_of_a_segment_register_it_once(self, store: Store, lease: Lease) -> None:
        segment = make_segment(0, 100, make_file(10, 90))
        with ThreadPoolExecutor(8) as threads:
            ids = set(threads.map(lambda _: store.add_segment("shop", lease, segment), range(16)))
        assert len(ids) == 1
        assert store.spool_size("shop") == (1, 100)

    def test_of_racing_segments_from_one_position_one_is_registered(self, store: Store, lease: Lease) -> None:
        def spool(number: int) -> bool:
            segment = make_segment(0, 100 + number, make_file(10, 90, path=f"attempt-{number}"))
            try:
                store.add_segment("shop", lease, segment)
            except Overtaken:
                return False
            return True

        with ThreadPoolExecutor(8) as threads:
            assert sum(threads.map(spool, range(16))) == 1
        assert store.spool_size("shop") == (1, 100)
