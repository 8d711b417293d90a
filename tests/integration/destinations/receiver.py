"""A receiver of what ``HttpDestination`` posts: a real server that keeps rows, written from the documentation only."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, dict[str, str]]


@dataclass
class Request:
    """One request as it came."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    size: int


@dataclass
class Table:
    columns: list[dict[str, Any]]
    rows: list[dict[str, Any]] = field(default_factory=list)
    last: tuple[int, int] = (0, -1)
    shaped: tuple[int, int] = (0, -1)


class Receiver:
    """Keeps tables by relation id; ``answers`` are given, one for each request, instead of taking it.

    An answer may be a function, which may take the request all the same.
    """

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.answers: list[Answer | Callable[[Request], Answer]] = []
        self.lock = threading.Lock()
        self.tables: dict[int, Table] = {}
        self.names: dict[str, int] = {}
        self.keys: set[str] = set()

    def take(self, request: Request) -> Answer:
        with self.lock:
            self.requests.append(request)
            answer = self.answers.pop(0) if self.answers else None
        if answer is not None:
            return answer(request) if callable(answer) else answer
        self.keep(request)
        return 204, {}

    def keep(self, request: Request) -> None:
        with self.lock:
            key = request.headers["Idempotency-Key"]
            if key not in self.keys:
                self.keys.add(key)
                self._keep(request.body)

    def rows(self, table: str) -> list[dict[str, Any]]:
        found = self.tables[self.names[table]]
        kinds = {column["name"]: column["lake_type"] for column in found.columns}
        return [{name: read(value, kinds[name]) for name, value in row.items()} for row in found.rows]

    def kinds(self) -> list[str]:
        return [request.body["kind"] for request in self.requests]

    def _keep(self, body: dict[str, Any]) -> None:
        relation_id = body["table"]["relation_id"]
        self.names[f"{body['table']['schema']}.{body['table']['name']}"] = relation_id
        if body["kind"] == "drop":
            self.tables.pop(relation_id, None)
            return
        table = self.tables.setdefault(relation_id, Table(body["columns"]))
        table.rows += body.get("rows", [])
        for event in body.get("events", []):
            self._apply(table, event, body)

    def _apply(self, table: Table, event: dict[str, Any], body: dict[str, Any]) -> None:
        lsn = position(event["commit_lsn"])
        if event["op"] == "relation":
            if (lsn, body["schema_version"]) > table.shaped:
                table.shaped = (lsn, body["schema_version"])
                reshape(table, event["steps"], body["columns"])
        elif "ordinal" in event and (lsn, event["ordinal"]) > table.last:
            table.last = (lsn, event["ordinal"])
            change(table, event)


def change(table: Table, event: dict[str, Any]) -> None:
    key = [column["name"] for column in table.columns if column["key"]]
    if event["op"] == "truncate":
        table.rows.clear()
        return
    before: dict[str, Any] = {}
    if event["op"] in ("update", "delete"):
        old = event["row"] if event.get("old") is None else event["old"]
        names = key or list(old)
        before = next(row for row in table.rows if all(same(row[name], old[name]) for name in names))
        # The very row: equal ones are others.
        table.rows.pop(next(at for at, row in enumerate(table.rows) if row is before))
    if event["op"] != "delete":
        table.rows.append({**{name: before[name] for name in event.get("unchanged", [])}, **event["row"]})


def same(one: Any, other: Any) -> bool:
    return bool(one == other and json.dumps(one) == json.dumps(other))


def reshape(table: Table, steps: list[dict[str, Any]], columns: list[dict[str, Any]]) -> None:
    for row in table.rows:
        for step in steps:
            if step["step"] == "drop":
                del row[step["column"]]
            elif step["step"] == "rename":
                row[step["to"]] = row.pop(step["column"])
            elif step["step"] == "add":
                row[step["column"]] = step["default"]
            else:
                assert step["step"] == "widen"
                assert step["column"] in row
    table.columns = columns


def position(lsn: str) -> int:
    high, low = lsn.split("/")
    return int(high, 16) << 32 | int(low, 16)


def read(value: Any, kind: str) -> Any:
    """From JSON back to the value, by the column's lake type; what that can't hold stays text."""
    if value is None:
        return None
    if kind == "binary":
        return base64.b64decode(value)
    if kind in ("float", "double"):
        return float(value)
    if not isinstance(value, str) or kind == "string":
        return value
    try:
        return READERS[kind.split("(", 1)[0]](value)
    except (KeyError, ValueError):
        return value


def read_decimal(text: str) -> Any:
    return text if text == "NaN" else Decimal(text)


READERS: dict[str, Callable[[str], Any]] = {
    "decimal": read_decimal,
    "date": date.fromisoformat,
    "timestamp": datetime.fromisoformat,
    "timestamp_ntz": datetime.fromisoformat,
}


@contextmanager
def serving(receiver: Receiver, port: int = 0) -> Iterator[str]:
    """The receiver behind a real server; gives its URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"]))
            request = Request(self.path, dict(self.headers), json.loads(data), len(data))
            status, headers = receiver.take(request)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if status != 204:
                self.send_header("Content-Length", "2")
            self.end_headers()
            if status != 204:
                self.wfile.write(b"{}")

        def log_message(self, *args: Any) -> None: ...

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *args: Any) -> None: ...

        def shutdown_request(self, request: Any) -> None:
            connections.discard(request)
            super().shutdown_request(request)

        def process_request(self, request: Any, client_address: Any) -> None:
            connections.add(request)
            super().process_request(request, client_address)

    connections: set[Any] = set()
    server = Server(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        for connection in list(connections):
            # A dead server reads no more of the connections that clients keep.
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
