"""The examples of docs/library.md: their parts keep the contracts, and as a whole they run."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import psycopg
import pytest

from airflow_provider_pgetl.local.postgres import Database
from airflow_provider_pgetl.replication.destinations.base import Destination
from airflow_provider_pgetl.replication.errors import DestinationError, DestinationUnreachable, StoreError
from airflow_provider_pgetl.replication.events import Row
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.store.base import Store
from airflow_provider_pgetl.testing.destination import DestinationContract
from airflow_provider_pgetl.testing.destination_values import insert, make_events, make_table, order
from airflow_provider_pgetl.testing.store import StoreContract
from airflow_provider_pgetl.testing.store_values import make_file, make_pipeline, make_schema, make_segment, taken

DOCS = Path(__file__).parents[3] / "docs"
SECONDS = 60


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"docs_example_{name}", DOCS / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def example() -> ModuleType:
    return load("own_store_and_destination")


class Hook:
    """The other end of the webhook: what came, and the answer that it gives."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.status = 204
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                hook.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(hook.status)
                self.end_headers()

            def log_message(self, *args: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/"

    def rows(self) -> list[Row]:
        return [row for body in list(self.bodies) for row in body.get("rows", [])]

    def changes(self) -> list[dict[str, Any]]:
        return [change for body in list(self.bodies) for change in body.get("changes", [])]


@pytest.fixture
def hook() -> Iterator[Hook]:
    hook = Hook()
    thread = threading.Thread(target=hook.server.serve_forever, args=(0.01,))
    thread.start()
    yield hook
    hook.server.shutdown()
    thread.join()
    hook.server.server_close()


class TestWebhookDestination(DestinationContract):
    @pytest.fixture
    def destination(self, example: ModuleType, hook: Hook) -> Destination:
        made: Destination = example.WebhookDestination(hook.url)
        made.startup()
        return made

    def rows_of(self, destination: Destination, table: str) -> list[Row] | None:
        return None


class TestSqliteStore(StoreContract):
    @pytest.fixture
    def store(self, example: ModuleType, tmp_path: Path) -> Iterator[Store]:
        made: Store = example.SqliteStore(str(tmp_path / "state.db"))
        yield made
        made.close()


def test_the_store_survives(example: ModuleType, tmp_path: Path) -> None:
    first = example.SqliteStore(str(tmp_path / "state.db"))
    first.register_pipeline(make_pipeline())
    first.register_table("shop", make_schema(), Lsn(10), by="test")
    lease = taken(first)
    first.add_segment("shop", lease, make_segment(0, 100, make_file(10, 90)))
    first.close()
    second = example.SqliteStore(str(tmp_path / "state.db"))
    assert second.pipeline("shop").spooled_lsn == 100
    assert [str(table.table) for table in second.tables("shop")] == ["public.orders"]
    assert second.acquire("shop", "stream", "somebody else", 60) is None
    again = second.acquire("shop", "stream", lease.owner, 60)
    assert again.epoch == lease.epoch + 1
    second.close()


def test_one_process_has_the_store(example: ModuleType, tmp_path: Path) -> None:
    first = example.SqliteStore(str(tmp_path / "state.db"))
    with pytest.raises(StoreError, match="can't be opened"):
        example.SqliteStore(str(tmp_path / "state.db"))
    first.close()


def test_a_write_that_is_not_kept_is_not_done(example: ModuleType, tmp_path: Path) -> None:
    store = example.SqliteStore(str(tmp_path / "state.db"))
    store.register_pipeline(make_pipeline())
    store._db.execute("create trigger full before insert on state begin select raise(abort, 'disk full'); end")
    with pytest.raises(StoreError, match="can't be written"):
        store.register_pipeline(make_pipeline("other"))
    assert [pipeline.name for pipeline in store.pipelines()] == ["shop"]
    store.close()


def test_the_webhook_tells_a_refusal_from_an_outage(example: ModuleType, hook: Hook) -> None:
    destination = example.WebhookDestination(hook.url)
    schema = make_table()
    events = make_events(schema, insert(10, 1, order(1)))
    destination.write_events(events)
    assert hook.changes() == [{"op": "insert", "place": [10, 1], "row": order(1)}]
    hook.status = 422
    with pytest.raises(DestinationError) as caught:
        destination.write_events(events)
    assert not isinstance(caught.value, DestinationUnreachable)
    hook.status = 503
    with pytest.raises(DestinationUnreachable):
        destination.write_events(events)


def test_the_examples_are_short() -> None:
    assert len((DOCS / "examples" / "own_store_and_destination.py").read_text().splitlines()) < 150


@pytest.fixture
def shop(database: Database) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database.conninfo, autocommit=True) as connection:
        connection.execute("create table orders (id int primary key, item text)")
        connection.execute("insert into orders select i, 'tea' from generate_series(1, 100) i")
        connection.execute("create publication shop_pub for table orders")
        yield connection


async def until(found: Callable[[], bool], running: asyncio.Task[Any]) -> None:
    async with asyncio.timeout(SECONDS):
        while not found():
            if running.done():
                running.result()
            await asyncio.sleep(0.02)


async def stop(running: asyncio.Task[Any]) -> None:
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_the_example_runs_and_goes_on_after_a_restart(
    example: ModuleType, hook: Hook, database: Database, shop: psycopg.Connection[Any], tmp_path: Path
) -> None:
    running = asyncio.ensure_future(example.main(database.conninfo, hook.url, str(tmp_path)))
    await until(lambda: len(hook.rows()) == 100, running)
    shop.execute("update orders set item = 'milk' where id = 1")
    await until(lambda: len(hook.changes()) >= 1, running)
    await stop(running)

    shop.execute("delete from orders where id = 2")
    before = len(hook.bodies)
    running = asyncio.ensure_future(example.main(database.conninfo, hook.url, str(tmp_path)))
    await until(lambda: any(change["op"] == "delete" for change in hook.changes()), running)
    await stop(running)
    assert not any("drop" in body or "rows" in body for body in hook.bodies[before:])
    ops = {(tuple(change["place"]), change["op"]) for change in hook.changes()}
    assert [op for _, op in sorted(ops)] == ["update", "delete"]


async def test_the_first_pipeline_runs(database: Database, shop: psycopg.Connection[Any], tmp_path: Path) -> None:
    destination = await load("first_pipeline").main(database.conninfo, str(tmp_path))
    assert destination.tables() == ["public.orders"]
    assert len(destination.rows("public.orders")) == 100
