"""The destination that keeps nothing: for benchmarks and dry runs. It counts, and never looks at a row."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_provider_pgetl.replication.events import Events
from airflow_provider_pgetl.replication.schema import TableName, TableSchema


@dataclass(frozen=True, slots=True)
class Counted:
    """What came for a table; ``bytes`` are those of the Arrow batches."""

    rows: int = 0
    events: int = 0
    bytes: int = 0


class NullDestination:
    """A ``Destination`` that counts rows and events of each table; repetitions are counted again."""

    name = "null"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counted: dict[str, Counted] = {}

    def counted(self, table: str | None = None) -> Counted:
        """What came for a table such as ``public.orders``, or for all of them."""
        with self._lock:
            if table is not None:
                return self._counted.get(table, Counted())
            every = list(self._counted.values())
        return Counted(
            sum(one.rows for one in every), sum(one.events for one in every), sum(one.bytes for one in every)
        )

    def tables(self) -> list[str]:
        """The names of the tables of which something came."""
        with self._lock:
            return sorted(self._counted)

    def startup(self) -> None:
        """Nothing to reach."""

    def shutdown(self) -> None:
        """Nothing to let go of."""

    def drop_table_for_copy(self, schema: TableSchema) -> None:
        """Nothing to forget: counts go on."""

    def write_table_rows(self, schema: TableSchema, rows: pa.RecordBatch) -> None:
        self._add(schema.table, rows=rows.num_rows, size=rows.nbytes)

    def write_events(self, events: Events) -> None:
        self._add(events.table, events=events.rows, size=sum(part.batch.nbytes for part in events.batches))

    def _add(self, table: TableName, *, rows: int = 0, events: int = 0, size: int = 0) -> None:
        with self._lock:
            known = self._counted.get(str(table), Counted())
            self._counted[str(table)] = replace(
                known, rows=known.rows + rows, events=known.events + events, bytes=known.bytes + size
            )


if TYPE_CHECKING:
    from airflow_provider_pgetl.replication.destinations.base import Destination

    _keeps_the_contract: type[Destination] = NullDestination
