"""How the suite looks at a destination: what an implementation overrides, and how rows are compared."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest

from airflow_provider_pgetl.replication.destinations.base import Destination
from airflow_provider_pgetl.replication.events import Row
from airflow_provider_pgetl.replication.schema import TableSchema
from airflow_provider_pgetl.testing.destination_values import make_rows


class RowsRead:
    """What the parts of the suite build on; override ``destination`` and ``rows_of``."""

    @pytest.fixture
    def destination(self) -> Destination:
        """A fresh destination, started."""
        raise NotImplementedError("give the suite a fixture 'destination'")

    def rows_of(self, destination: Destination, table: str) -> list[Row] | None:
        """The present rows of a table such as ``public.orders``; None if the destination can't be read."""
        raise NotImplementedError("say how rows are read: rows_of")

    def copy(self, destination: Destination, schema: TableSchema, *rows: Row) -> None:
        """A copy in one batch."""
        destination.drop_table_for_copy(schema)
        destination.write_table_rows(schema, make_rows(schema, rows))

    def assert_rows(self, destination: Destination, schema: TableSchema, *expected: Row) -> None:
        """The table has exactly these rows, in whatever order."""
        found = self.rows_of(destination, str(schema.table))
        if found is None:
            return
        names = [column.name for column in schema.columns]
        assert all(list(row) == names or set(row) == set(names) for row in found)
        assert Counter(map(_comparable, found)) == Counter(map(_comparable, expected))


def _comparable(row: Row) -> tuple[Any, ...]:
    return tuple((name, _exact(row[name])) for name in sorted(row))


def _exact(value: Any) -> Any:
    """The value with its type: 1 is not "1", every NaN is the same, and a moment is itself in every zone."""
    if isinstance(value, list):
        return tuple(map(_exact, value))
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = value.astimezone(UTC)
    return type(value).__name__, repr(value)
