"""The destination that posts JSON, one request after the other for each table.

    {"kind": "drop" | "rows" | "events",
     "table": {"schema": "public", "name": "orders", "relation_id": 16384},
     "schema_version": 3,
     "columns": [{"name": "id", "type": "bigint", "lake_type": "bigint", "key": 1, "nullable": false}, ...],
     "rows":   [{"id": 1, ...}, ...]                                                     of kind rows
     "events": [{"op": "begin" | "commit", "commit_lsn": "16/B374D848", "committed_at": "2024-02-29T12:00:00+00:00"},
                {"op": "insert", "commit_lsn": "16/B374D848", "ordinal": 2, "row": {...}},
                {"op": "update", ..., "row": {...}, "old": {...} or null, "unchanged": ["body"]},
                {"op": "delete", ..., "old": {...}},
                {"op": "truncate", ...},
                {"op": "relation", "commit_lsn": ..., "from_version": 2, "steps": [
                    {"step": "drop", "column": "a"}, {"step": "rename", "column": "b", "to": "c"},
                    {"step": "widen", "column": "d", "type": ...}, {"step": "add", "column": "e", "default": 0}]}, ...]}

How values look is said in ``json_values``; what the events mean, in ``events``. All rows and changes of a request
have the shape of its ``columns``; a relation is the first event of its request and leads to that shape.

A request is done when it is answered with 2xx, and then the receiver must have kept it. 5xx, 429 (``Retry-After`` is
honoured), lost connections and time-outs are tried again; after the last attempt the destination counts as
unreachable, and the spool keeps the changes. Any other status is an error of that table.

Repetition: an attempt whose answer was lost is made again, so a receiver drops a request whose ``Idempotency-Key`` it
has taken. That of events is the table and the places of its first and last event, any other is unique. After a crash
events come again, perhaps in requests that are divided in another way: a receiver also drops every event whose
``(commit_lsn, ordinal)`` is not after the table's last one, and every relation whose ``(commit_lsn,
schema_version)`` is not.
"""

from __future__ import annotations

import ssl
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa

from airflow_provider_pgetl.replication.destinations.http_post import Patience, Poster
from airflow_provider_pgetl.replication.destinations.json_values import encode
from airflow_provider_pgetl.replication.errors import ConfigError
from airflow_provider_pgetl.replication.events import (
    Begin,
    Commit,
    Delete,
    Event,
    Events,
    Insert,
    Relation,
    Truncate,
    Update,
    plain_rows,
)
from airflow_provider_pgetl.replication.evolution import Added, Dropped, Renamed, Step
from airflow_provider_pgetl.replication.pg_types import lake_type
from airflow_provider_pgetl.replication.schema import Column, TableSchema


class HttpDestination:
    """A ``Destination`` that posts rows and events as JSON to one URL.

    ``headers`` go with each request and are never shown. A request holds at most ``max_request_rows`` rows or changes
    and about ``max_request_bytes``; a single larger row goes alone. ``timeout_s`` is for connecting, and for each
    wait for the receiver. Proxies of the environment are not used.
    """

    name = "http"

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 30.0,
        max_attempts: int = 5,
        pause_s: float = 0.5,
        max_pause_s: float = 30.0,
        max_retry_after_s: float = 60.0,
        max_request_rows: int = 5000,
        max_request_bytes: int = 4 * 1024 * 1024,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        if max_request_rows < 1 or max_request_bytes < 1:
            raise ConfigError("max_request_rows and max_request_bytes must be above 0")
        self._limits = (max_request_rows, max_request_bytes)
        patience = Patience(timeout_s, max_attempts, pause_s, max_pause_s, max_retry_after_s)
        self._poster = Poster(url, headers or {}, patience, tls)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._poster.where!r})"

    def startup(self) -> None:
        """Reach the receiver."""
        self._poster.open()

    def shutdown(self) -> None:
        """Let connections go; a request that waits for its next attempt gives up."""
        self._poster.close()

    def drop_table_for_copy(self, schema: TableSchema) -> None:
        self._post(_Request("drop", schema))

    def write_table_rows(self, schema: TableSchema, rows: pa.RecordBatch) -> None:
        request = _Request("rows", schema)
        for row in plain_rows(schema, rows):
            item = encode(row)
            if request.is_full(item, self._limits):
                self._post(request)
                request = _Request("rows", schema)
            request.add(item)
        if request.items or not rows.num_rows:
            self._post(request)

    def write_events(self, events: Events) -> None:
        for request in self._requests(events):
            self._post(request)

    def _requests(self, events: Events) -> Iterator[_Request]:
        request = _Request("events", events.first_schema)
        for event in events:
            item = encode(_event(event))
            shape = event.after if isinstance(event, Relation) else request.schema
            # A commit stays with what it commits.
            ends = isinstance(event, Relation) or (
                not isinstance(event, Commit) and request.is_full(item, self._limits)
            )
            if ends and request.items:
                yield request
                request = _Request("events", shape)
            request.schema = shape
            request.add(item, _place(event))
        if request.items:
            yield request

    def _post(self, request: _Request) -> None:
        headers = {"Content-Type": "application/json", "Idempotency-Key": request.key}
        self._poster.post(request.body(), headers, f"{request.kind} of {request.schema.table}")


@dataclass(slots=True)
class _Request:
    """One request as it is filled."""

    kind: str
    schema: TableSchema
    items: list[str] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    size: int = 0
    rows: int = 0

    def is_full(self, item: str, limits: tuple[int, int]) -> bool:
        """Whether it has something and no room for ``item``."""
        rows, size = limits
        return self.rows > 0 and (self.rows >= rows or self.size + len(item) > size)

    def add(self, item: str, place: str | None = "") -> None:
        """``place`` is None where the item is neither a row nor a change."""
        self.items.append(item)
        self.size += len(item) + 1
        if place is not None:
            self.rows += 1
            self.places = [*self.places[:1], place]

    @property
    def key(self) -> str:
        """Printable ASCII, whatever the table is called."""
        table = f"{quote(self.schema.table.schema, safe='')}.{quote(self.schema.table.name, safe='')}"
        if self.kind == "events":
            return f"{table}:{self.places[0]}:{self.places[-1]}"
        return f"{table}:{self.kind}:{uuid.uuid4().hex}"

    def body(self) -> bytes:
        table = self.schema.table
        head = {
            "kind": self.kind,
            "table": {"schema": table.schema, "name": table.name, "relation_id": self.schema.relation_id},
            "schema_version": self.schema.version,
            "columns": [_column(column) for column in self.schema.columns],
        }
        text = encode(head)
        if self.kind != "drop":
            text = f'{text[:-1]},"{self.kind}":[{",".join(self.items)}]}}'
        return text.encode()


def _column(column: Column) -> dict[str, Any]:
    return {
        "name": column.name,
        "type": column.type_name,
        "lake_type": lake_type(column).sql,
        "key": column.key,
        "nullable": column.nullable,
    }


def _place(event: Event) -> str | None:
    if isinstance(event, Begin | Commit):
        return None
    lsn, number = event.place
    return f"{lsn}-v{number}" if isinstance(event, Relation) else f"{lsn}-{number}"


def _event(event: Event) -> dict[str, Any]:
    op = {"op": type(event).__name__.lower(), "commit_lsn": str(event.commit_lsn)}
    match event:
        case Begin() | Commit():
            return {**op, "committed_at": event.committed_at}
        case Relation():
            steps = [_step(step, event) for step in event.steps]
            return {**op, "from_version": event.before.version, "steps": steps}
        case Insert():
            return {**op, "ordinal": event.ordinal, "row": event.row}
        case Update():
            unchanged = sorted(event.unchanged)
            return {**op, "ordinal": event.ordinal, "row": event.row, "old": event.old, "unchanged": unchanged}
        case Delete():
            return {**op, "ordinal": event.ordinal, "old": event.old}
        case Truncate():
            return {**op, "ordinal": event.ordinal}


def _step(step: Step, relation: Relation) -> dict[str, Any]:
    match step:
        case Added(column=column):
            return {"step": "add", "column": column.name, "default": relation.defaults[column.name]}
        case Dropped(column=column):
            return {"step": "drop", "column": column.name}
        case Renamed(before=before, after=after):
            return {"step": "rename", "column": before.name, "to": after.name}
        case _:
            return {"step": "widen", "column": step.after.name, "type": step.after.type_name}


if TYPE_CHECKING:
    from airflow_provider_pgetl.replication.destinations.base import Destination

    _keeps_the_contract: type[Destination] = HttpDestination
