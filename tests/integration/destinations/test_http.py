"""HTTP as a destination, against a real server: the contract, then retries, refusals and what is sent."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from email.utils import format_datetime
from typing import Any

import pytest

from airflow_provider_pgetl.replication.destinations import http_post
from airflow_provider_pgetl.replication.destinations.base import Destination
from airflow_provider_pgetl.replication.destinations.http import HttpDestination
from airflow_provider_pgetl.replication.errors import (
    ConfigError,
    DestinationError,
    DestinationUnreachable,
)
from airflow_provider_pgetl.replication.events import Row
from airflow_provider_pgetl.testing.destination import DestinationContract, DurabilityContract
from airflow_provider_pgetl.testing.destination_values import (
    committed_at,
    insert,
    make_events,
    make_relation,
    make_rows,
    make_table,
    order,
    truncate,
    update,
    with_column,
)
from tests.integration.destinations.receiver import Answer, Receiver, Request, serving

ORDERS = make_table()
SECRET = "s3cret-token"


class TestHttpDestination(DestinationContract, DurabilityContract):
    @pytest.fixture
    def receiver(self) -> Receiver:
        return Receiver()

    @pytest.fixture
    def url(self, receiver: Receiver) -> Iterator[str]:
        with serving(receiver) as url:
            yield url

    @pytest.fixture
    def destination(self, url: str, receiver: Receiver) -> Iterator[Destination]:
        made = HttpDestination(url)
        made.receiver = receiver  # type: ignore[attr-defined]
        made.startup()
        yield made
        made.shutdown()

    @pytest.fixture
    def reopen(self, url: str, receiver: Receiver) -> Iterator[Callable[[Destination], Destination]]:
        made = HttpDestination(url)
        made.receiver = receiver  # type: ignore[attr-defined]

        def start(before: Destination) -> Destination:
            made.startup()
            return made

        yield start
        made.shutdown()

    def rows_of(self, destination: Destination, table: str) -> list[Row] | None:
        receiver: Receiver = destination.receiver  # type: ignore[attr-defined]
        return receiver.rows(table)


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


@pytest.fixture
def url(receiver: Receiver) -> Iterator[str]:
    with serving(receiver) as url:
        yield url


@pytest.fixture
def make(url: str) -> Iterator[Callable[..., HttpDestination]]:
    """Makes destinations that are patient, but never for long."""
    made: list[HttpDestination] = []

    def make(url: str = url, **options: Any) -> HttpDestination:
        made.append(HttpDestination(url, **{"timeout_s": 10, "pause_s": 0.001, "max_pause_s": 0.002, **options}))
        return made[-1]

    yield make
    for one in made:
        one.shutdown()


def write(destination: HttpDestination, *numbers: int) -> None:
    destination.write_table_rows(ORDERS, make_rows(ORDERS, [order(n) for n in numbers]))


def test_the_body_is_as_documented(make: Callable[..., HttpDestination], receiver: Receiver) -> None:
    wider = with_column(ORDERS, "stock", "bigint", missing="7")
    destination = make(headers={"Authorization": f"Bearer {SECRET}"})
    destination.drop_table_for_copy(ORDERS)
    destination.write_table_rows(ORDERS, make_rows(ORDERS, [order(1, "é", Decimal("1.50"))]))
    destination.write_events(make_events(ORDERS, insert(2**33 + 10, 2, order(2, None, "NaN")), truncate(2**33 + 10, 3)))
    new = update(40, 1, {"id": 9, "price": None, "stock": 1}, {"id": 2}, ["item"])
    destination.write_events(make_events(wider, new, relation=make_relation(30, ORDERS, wider, stock=7)))

    head = {
        "table": {"schema": "public", "name": "orders", "relation_id": 16384},
        "schema_version": 1,
        "columns": [
            {"name": "id", "type": "bigint", "lake_type": "bigint", "key": 1, "nullable": False},
            {"name": "item", "type": "text", "lake_type": "string", "key": None, "nullable": True},
            {"name": "price", "type": "numeric(10,2)", "lake_type": "decimal(10,2)", "key": None, "nullable": True},
        ],
    }
    bodies = [request.body for request in receiver.requests]
    assert bodies[0] == {"kind": "drop", **head}
    assert bodies[1] == {"kind": "rows", **head, "rows": [{"id": 1, "item": "é", "price": "1.50"}]}
    place: dict[str, Any] = {"commit_lsn": "2/A"}
    at = committed_at(2**33 + 10).isoformat()
    assert bodies[2] == {
        "kind": "events",
        **head,
        "events": [
            {"op": "begin", **place, "committed_at": at},
            {"op": "insert", **place, "ordinal": 2, "row": {"id": 2, "item": None, "price": "NaN"}},
            {"op": "truncate", **place, "ordinal": 3},
            {"op": "commit", **place, "committed_at": at},
        ],
    }
    assert (bodies[3]["schema_version"], [one["name"] for one in bodies[3]["columns"]][-1]) == (2, "stock")
    relation, _, updated, _ = bodies[3]["events"]
    assert relation == {
        "op": "relation",
        "commit_lsn": "0/1E",
        "from_version": 1,
        "steps": [{"step": "add", "column": "stock", "default": 7}],
    }
    assert updated == {
        "op": "update",
        "commit_lsn": "0/28",
        "ordinal": 1,
        "row": {"id": 9, "price": None, "stock": 1},
        "old": {"id": 2},
        "unchanged": ["item"],
    }
    assert all(one.headers["Authorization"] == f"Bearer {SECRET}" for one in receiver.requests)
    assert all(one.headers["Content-Type"] == "application/json" for one in receiver.requests)
    keys = [one.headers["Idempotency-Key"] for one in receiver.requests]
    assert keys[2:] == ["public.orders:2/A-2:2/A-3", "public.orders:0/1E-v2:0/28-1"]


@pytest.mark.parametrize("status", [500, 502, 503, 429])
def test_a_busy_receiver_is_tried_again(make: Callable[..., HttpDestination], receiver: Receiver, status: int) -> None:
    receiver.answers = [(status, {}), (status, {})]
    write(make(), 1)
    assert receiver.rows("public.orders") == [order(1)]
    keys = {one.headers["Idempotency-Key"] for one in receiver.requests}
    assert (len(receiver.requests), len(keys)) == (3, 1)


def test_a_request_whose_answer_is_lost_can_be_told_by_its_key(
    make: Callable[..., HttpDestination], receiver: Receiver
) -> None:
    def take_and_fail(request: Request) -> Answer:
        receiver.keep(request)
        return 500, {}

    receiver.answers = [take_and_fail]
    write(make(), 1)
    assert len(receiver.requests) == 2
    assert receiver.rows("public.orders") == [order(1)]


def test_a_receiver_that_stays_busy_is_unreachable(make: Callable[..., HttpDestination], receiver: Receiver) -> None:
    receiver.answers = [(503, {})] * 3
    with pytest.raises(DestinationUnreachable, match="status 503"):
        write(make(max_attempts=3), 1)
    assert len(receiver.requests) == 3


@pytest.mark.parametrize("status", [301, 400, 401, 404, 413, 422])
def test_a_refusal_is_not_tried_again(make: Callable[..., HttpDestination], receiver: Receiver, status: int) -> None:
    receiver.answers = [(status, {"Location": "/elsewhere"})]
    with pytest.raises(DestinationError, match=f"refused rows of public.orders with status {status}") as caught:
        write(make(), 1)
    assert not isinstance(caught.value, DestinationUnreachable)
    assert len(receiver.requests) == 1


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_retry_after_is_honoured(
    make: Callable[..., HttpDestination], receiver: Receiver, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = datetime(2024, 2, 29, 12, tzinfo=UTC)
    monkeypatch.setattr(http_post.time, "time", lambda: now.timestamp() - 0.05)
    asked = {"seconds": "1", "date": format_datetime(now, usegmt=True)}[form]
    receiver.answers = [(429, {"Retry-After": asked})]
    pauses: list[float] = []
    destination = make(max_retry_after_s=0.1)
    wait = destination._poster._closed.wait
    monkeypatch.setattr(destination._poster._closed, "wait", lambda s: (pauses.append(s), wait(s))[1])
    write(destination, 1)
    assert pauses == pytest.approx([0.1 if form == "seconds" else 0.05])


def test_pauses_grow_and_spread() -> None:
    patience = http_post.Patience(pause_s=1, max_pause_s=10)
    pauses = [[patience.pause(attempt, None) for _ in range(200)] for attempt in (1, 2, 3, 9)]
    for full, found in zip((1, 2, 4, 10), pauses, strict=True):
        assert full / 2 <= min(found) < max(found) <= full


def test_a_time_out_is_tried_again(make: Callable[..., HttpDestination], receiver: Receiver) -> None:
    gone = threading.Event()

    def late(request: Request) -> Answer:
        gone.wait(30)
        return 503, {}

    receiver.answers = [late]
    try:
        write(make(timeout_s=0.2), 1)
    finally:
        gone.set()
    assert receiver.rows("public.orders") == [order(1)]


def test_a_receiver_that_never_answers_is_unreachable(make: Callable[..., HttpDestination], receiver: Receiver) -> None:
    gone = threading.Event()
    receiver.answers = [lambda request: (gone.wait(30), (503, {}))[1]] * 2
    try:
        with pytest.raises(DestinationUnreachable, match="TimeoutError"):
            write(make(timeout_s=0.1, max_attempts=2), 1)
    finally:
        gone.set()


def test_a_dead_receiver_is_unreachable_until_it_is_back() -> None:
    receiver = Receiver()
    with serving(receiver) as url:
        destination = HttpDestination(url, pause_s=0.001, max_pause_s=0.002, max_attempts=3)
        destination.startup()
        write(destination, 1)
    with pytest.raises(DestinationUnreachable, match="ConnectionRefusedError"):
        write(destination, 2)
    with pytest.raises(DestinationUnreachable, match="ConnectionRefusedError"):
        HttpDestination(url).startup()
    with serving(receiver, int(url.rsplit(":", 1)[1].split("/")[0])):
        write(destination, 2)
    destination.shutdown()
    assert receiver.rows("public.orders") == [order(1), order(2)]


def test_a_receiver_that_comes_back_in_time_is_not_noticed() -> None:
    receiver = Receiver()
    with serving(receiver) as url:
        destination = HttpDestination(url, pause_s=0.05, max_pause_s=0.1, max_attempts=200)
        destination.startup()
    thread = threading.Thread(target=write, args=(destination, 1))
    thread.start()
    with serving(receiver, int(url.rsplit(":", 1)[1].split("/")[0])):
        thread.join(20)
        assert not thread.is_alive()
    destination.shutdown()
    assert receiver.rows("public.orders") == [order(1)]


def test_a_connection_that_was_closed_while_idle_costs_no_attempt() -> None:
    receiver = Receiver()
    with serving(receiver) as url:
        destination = HttpDestination(url, max_attempts=1)
        write(destination, 1)
    with serving(receiver, int(url.rsplit(":", 1)[1].split("/")[0])):
        write(destination, 2)
    destination.shutdown()
    assert receiver.rows("public.orders") == [order(1), order(2)]


def test_shutdown_ends_the_wait_for_the_next_attempt(make: Callable[..., HttpDestination], receiver: Receiver) -> None:
    asked = threading.Event()
    receiver.answers = [lambda request: (asked.set(), (503, {}))[1]]
    destination = make(pause_s=600, max_pause_s=600)
    errors: list[Exception] = []

    def run() -> None:
        try:
            write(destination, 1)
        except DestinationUnreachable as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert asked.wait(20)
    destination.shutdown()
    thread.join(20)
    assert len(errors) == 1


def test_large_batches_are_split_by_rows(make: Callable[..., HttpDestination], receiver: Receiver) -> None:
    destination = make(max_request_rows=10)
    write(destination, *range(25))
    assert [len(one.body["rows"]) for one in receiver.requests] == [10, 10, 5]
    assert [row["id"] for row in receiver.rows("public.orders")] == list(range(25))
    assert len({one.headers["Idempotency-Key"] for one in receiver.requests}) == 3


def test_large_batches_are_split_by_bytes(make: Callable[..., HttpDestination], receiver: Receiver) -> None:
    destination = make(max_request_bytes=5000)
    rows = [order(n, "x" * (10_000 if n == 3 else 900)) for n in range(12)]
    destination.write_table_rows(ORDERS, make_rows(ORDERS, rows))
    sizes = [(len(one.body["rows"]), one.size) for one in receiver.requests]
    assert [rows for rows, _ in sizes] == [3, 1, 5, 3]
    assert all(size < 6000 for rows, size in sizes if rows > 1)
    assert receiver.rows("public.orders") == rows


def test_events_keep_their_order_over_requests(make: Callable[..., HttpDestination], receiver: Receiver) -> None:
    destination = make(max_request_rows=3)
    changes = [insert(10, n, order(n)) for n in range(1, 4)] + [insert(20, n, order(10 + n)) for n in range(1, 4)]
    destination.write_events(make_events(ORDERS, *changes))
    ops = [[event["op"] for event in one.body["events"]] for one in receiver.requests]
    assert ops == [["begin", *["insert"] * 3, "commit"], ["begin", *["insert"] * 3, "commit"]]
    keys = [one.headers["Idempotency-Key"] for one in receiver.requests]
    assert keys == ["public.orders:0/A-1:0/A-3", "public.orders:0/14-1:0/14-3"]


def test_a_request_has_one_shape(make: Callable[..., HttpDestination], receiver: Receiver) -> None:
    wider = with_column(ORDERS, "note", "text")
    destination = make()
    destination.write_events(make_events(ORDERS, insert(10, 1, order(1))))
    destination.write_events(make_events(wider, relation=make_relation(20, ORDERS, wider)))
    assert [one.body["schema_version"] for one in receiver.requests] == [1, 2]
    assert receiver.requests[1].headers["Idempotency-Key"] == "public.orders:0/14-v2:0/14-v2"


def test_secrets_are_never_shown(
    url: str, receiver: Receiver, caplog: pytest.LogCaptureFixture, make: Callable[..., HttpDestination]
) -> None:
    caplog.set_level(logging.DEBUG)
    receiver.answers = [(503, {}), (400, {})]
    destination = make(f"{url}/{SECRET}?key={SECRET}", headers={"X-Api-Key": SECRET}, max_attempts=2)
    with pytest.raises(DestinationError) as caught:
        write(destination, 1)
    assert receiver.requests[0].path == f"/hook/{SECRET}?key={SECRET}"
    shown = [repr(destination), str(destination), str(caught.value), caught.value.hint, caplog.text]
    assert "again in" in caplog.text
    assert not any(SECRET in text for text in shown)


@pytest.mark.parametrize(
    "options",
    [
        {"url": "ftp://host"},
        {"url": "nonsense"},
        {"url": "http://host:port/"},
        {"url": f"https://user:{SECRET}@host/"},
        {"headers": {"X-Key": f"{SECRET}\r\nX-Other: 1"}},
        {"headers": {"X-Key": f"{SECRET}\u4e2d"}},
        {"max_attempts": 0},
        {"timeout_s": 0},
        {"max_request_rows": 0},
    ],
    ids=lambda options: next(iter(options)),
)
def test_wrong_settings_are_refused_without_showing_them(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        HttpDestination(**{"url": "http://host", **options})
    assert SECRET not in str(caught.value)


def test_a_body_is_always_json(make: Callable[..., HttpDestination], receiver: Receiver) -> None:
    """Python would write NaN, which is none."""
    schema = make_table({"id": "bigint", "v": "double precision"})
    make().write_table_rows(schema, make_rows(schema, [{"id": n, "v": float(v)} for n, v in enumerate(["nan", "inf"])]))
    assert json.dumps(receiver.requests[0].body["rows"]) == '[{"id": 0, "v": "NaN"}, {"id": 1, "v": "Infinity"}]'
