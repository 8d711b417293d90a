"""The destination that keeps nothing keeps the contract, too."""

from __future__ import annotations

import pytest

from airflow_provider_pgetl.replication.destinations.base import Destination
from airflow_provider_pgetl.replication.destinations.null import Counted, NullDestination
from airflow_provider_pgetl.replication.events import Events, Row
from airflow_provider_pgetl.testing.destination import DestinationContract
from airflow_provider_pgetl.testing.destination_values import insert, make_events, make_rows, make_table, order


class TestNullDestination(DestinationContract):
    @pytest.fixture
    def destination(self) -> Destination:
        return NullDestination()

    def rows_of(self, destination: Destination, table: str) -> list[Row] | None:
        return None


def test_rows_and_events_are_counted_by_table(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(events: Events) -> None:
        raise AssertionError("the events were looked at")

    monkeypatch.setattr(Events, "__iter__", never)
    one, other = make_table(), make_table(table="other", relation_id=1)
    rows, events = make_rows(one, [order(1), order(2)]), make_events(one, insert(10, 1, order(3)))
    destination = NullDestination()
    destination.drop_table_for_copy(one)
    destination.write_table_rows(one, rows)
    destination.write_events(events)
    destination.write_events(events)
    destination.write_table_rows(other, make_rows(other, []))
    assert destination.tables() == ["public.orders", "public.other"]
    assert destination.counted("public.orders") == Counted(2, 2, rows.nbytes + 2 * events.batches[0].batch.nbytes)
    assert destination.counted("public.other").rows == 0
    assert destination.counted().rows == 2
    assert destination.counted("no.such") == Counted()
