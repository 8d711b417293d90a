"""Spool files by hand, and an oracle that applies their events one by one to a dictionary."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_pgetl.replication.batch import change_schema
from airflow_provider_pgetl.replication.destinations.base import Changes, CopyPlan, Marker
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.progress import SpoolFile
from airflow_provider_pgetl.replication.schema import Column, Identity, TableName, TableSchema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_provider_pgetl.lakehouse.destination import LakeDestination

INT4, INT8, TEXT, NUMERIC, DATE = 23, 20, 25, 1700, 1082
START = 1000
UNCHANGED = object()

_numbers = itertools.count(1)

Row = dict[str, Any]


def column(name: str, oid: int, *, key: int | None = None, toastable: bool = False, **more: Any) -> Column:
    defaults: dict[str, Any] = {"typmod": -1, "typmod_sent": -1, "element_oid": 0, "nullable": key is None}
    defaults["identity"] = key is not None
    return Column(
        name=name, attnum=0, type_oid=oid, base_oid=oid, type_name="", key=key, toastable=toastable, **defaults | more
    )


def table_schema(columns: Sequence[Column], identity: Identity = Identity.DEFAULT) -> TableSchema:
    number = next(_numbers)
    numbered = tuple(replace(one, attnum=place) for place, one in enumerate(columns, 1))
    return TableSchema(70_000 + number, TableName("shop", f"items {number}"), numbered, identity)


PLAIN = (
    column("id", INT8, key=1),
    column("name", TEXT, toastable=True),
    column("note", TEXT, toastable=True),
    column("qty", INT4),
)


def decimal_typmod(precision: int, scale: int) -> int:
    return ((precision << 16) | scale) + 4


@dataclass(slots=True)
class Writer:
    """Events of one table: spooled to files, and applied one by one to ``rows``, which is what the lake must hold."""

    schema: TableSchema
    folder: Path
    rows: dict[tuple[Any, ...], Row] = field(default_factory=dict)
    lsn: int = START
    ordinal: int = 0
    events: list[Row] = field(default_factory=list)
    generation: int = 1
    from_lsn: int = START

    def commit(self) -> Writer:
        """End the transaction: what follows has the next commit LSN."""
        self.lsn += 8
        self.ordinal = 0
        return self

    def insert(self, *, overflow: Mapping[str, str] | None = None, **values: Any) -> Writer:
        self.rows[self._key(values)] = {**values, "_pgetl_overflow": dict(overflow or {})}
        return self._event("i", values, overflow=overflow)

    def update(self, *, old: Row | None = None, overflow: Mapping[str, str] | None = None, **values: Any) -> Writer:
        """``old`` is the old key (or row), given when Postgres would send it; UNCHANGED did not travel."""
        before = self.rows.pop(self._key(old) if old else self._key(values))
        texts = {**(overflow or {})}
        after = dict(values)
        for name, value in values.items():
            if value is UNCHANGED:
                after[name] = before[name]
                if name in before["_pgetl_overflow"]:
                    texts[name] = before["_pgetl_overflow"][name]
        self.rows[self._key(after)] = {**after, "_pgetl_overflow": texts}
        return self._event("u", values, old=old, overflow=overflow)

    def delete(self, **key: Any) -> Writer:
        del self.rows[self._key(key)]
        return self._event("d", key)

    def truncate(self) -> Writer:
        self.rows.clear()
        return self._event("t", {})

    def changes(self, *, epoch: int = 1, files: int = 1, to_lsn: int | None = None) -> Changes:
        """Spool what was written since the last call, in ``files`` files."""
        events, self.events = self.events, []
        size = max(1, -(-len(events) // files))
        written = [self._file(events[place : place + size]) for place in range(0, len(events), size)]
        end = Lsn(self.lsn if to_lsn is None else to_lsn)
        changes = Changes(self.schema, self.generation, epoch, Lsn(self.from_lsn), end, tuple(written))
        self.from_lsn = int(end)
        return changes

    def _event(self, operation: str, values: Row, **more: Any) -> Writer:
        unchanged = [name for name, value in values.items() if value is UNCHANGED]
        plain = {name: None if value is UNCHANGED else value for name, value in values.items()}
        self.ordinal += 1
        self.events.append(
            {
                "_op": operation,
                "_commit_lsn": self.lsn,
                "_ordinal": self.ordinal,
                "_committed_at": datetime(2026, 1, 1, tzinfo=UTC),
                "_unchanged": unchanged or None,
                "_old": more.get("old"),
                "_overflow": list((more.get("overflow") or {}).items()) or None,
                **plain,
            }
        )
        return self

    def _key(self, values: Row) -> tuple[Any, ...]:
        return tuple(values[one.name] for one in self.schema.key)

    def _file(self, events: list[Row]) -> SpoolFile:
        path = self.folder / f"{next(_numbers)}.parquet"
        table = pa.Table.from_pylist(events, schema=change_schema(self.schema))
        # Parquet has no struct without fields.
        pq.write_table(table if self.schema.identity_columns else table.drop_columns("_old"), path)
        lsns = [event["_commit_lsn"] for event in events]
        return SpoolFile(
            relation_id=self.schema.relation_id,
            schema_version=self.schema.version,
            path=str(path),
            rows=len(events),
            bytes=path.stat().st_size,
            checksum="",
            first_lsn=Lsn(min(lsns)),
            last_lsn=Lsn(max(lsns)),
        )


@dataclass(slots=True)
class Lake:
    """A destination, and the means to look at what it wrote."""

    destination: LakeDestination
    spark: SparkSession
    folder: Path

    def writer(self, columns: Sequence[Column] = PLAIN, identity: Identity = Identity.DEFAULT) -> Writer:
        """A table that was copied empty at START and is visible."""
        writer = Writer(table_schema(columns, identity), self.folder)
        self.copy_nothing(writer)
        self.destination.promote(writer.changes())
        return writer

    def copy_nothing(self, writer: Writer) -> None:
        plan = CopyPlan(writer.schema, writer.generation, "", Lsn(writer.lsn), ())
        self.destination.begin_copy(plan)
        self.destination.finish_copy(plan)

    def read(self, writer: Writer, version: str = "") -> dict[tuple[Any, ...], Row]:
        rows = self.spark.sql(f"select * from {self.name(writer)} {version}").collect()
        found = {}
        for row in rows:
            values = row.asDict()
            del values["_pgetl_lsn"], values["_pgetl_ordinal"]
            values["_pgetl_overflow"] = dict(values["_pgetl_overflow"] or {})
            key = tuple(values[one.name] for one in writer.schema.key)
            assert key not in found, f"{key} is there twice"
            found[key] = values
        return found

    def name(self, writer: Writer) -> str:
        table = writer.schema.table
        return f"lake.`{table.schema}`.`{table.name}`"

    def branches(self, writer: Writer) -> set[str]:
        return {row[0] for row in self.spark.sql(f"select name from {self.name(writer)}.refs").collect()}

    def snapshots(self, writer: Writer) -> int:
        return int(self.spark.sql(f"select count(*) from {self.name(writer)}.snapshots").collect()[0][0])

    def marker(self, writer: Writer) -> Marker:
        marker = self.destination.marker(writer.schema)
        assert marker is not None
        return marker
