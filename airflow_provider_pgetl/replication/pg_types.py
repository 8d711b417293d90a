"""The one table of types: what a Postgres type becomes in the lake, and in which form a copy fetches it.

``python -m airflow_provider_pgetl.replication.pg_types`` prints it as Markdown, for README.md and docs/types.md.
Strings hold exactly what the type's output function prints under the fixed session settings (UTC, ISO).
Copy and stream go through the same casts, so that a row copied and the same row streamed are identical.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import Enum, StrEnum, auto

import pyarrow as pa

from airflow_provider_pgetl.replication.schema import Column

BOOL, BYTEA, CHAR, NAME, INT8, INT2, INT4, TEXT, OID = 16, 17, 18, 19, 20, 21, 23, 25, 26
JSON, FLOAT4, FLOAT8, INET, BPCHAR, VARCHAR = 114, 700, 701, 869, 1042, 1043
DATE, TIMESTAMP, TIMESTAMPTZ, NUMERIC = 1082, 1114, 1184, 1700
XML = 142

MAX_DECIMAL_PRECISION = 38
# Types from here on were made by users and extensions.
_FIRST_OWN_OID = 16_384


class Kind(StrEnum):
    """The lake types in use."""

    BOOLEAN = "boolean"
    INT = "int"
    BIGINT = "bigint"
    FLOAT = "float"
    DOUBLE = "double"
    DECIMAL = "decimal"
    BINARY = "binary"
    DATE = "date"
    TIMESTAMP_NTZ = "timestamp_ntz"
    TIMESTAMP = "timestamp"
    STRING = "string"
    ARRAY = "array"


_ARROW: dict[Kind, pa.DataType] = {
    Kind.BOOLEAN: pa.bool_(),
    Kind.INT: pa.int32(),
    Kind.BIGINT: pa.int64(),
    Kind.FLOAT: pa.float32(),
    Kind.DOUBLE: pa.float64(),
    Kind.BINARY: pa.binary(),
    Kind.DATE: pa.date32(),
    Kind.TIMESTAMP_NTZ: pa.timestamp("us"),
    Kind.TIMESTAMP: pa.timestamp("us", "UTC"),
    Kind.STRING: pa.string(),
}


@dataclass(frozen=True, slots=True)
class _Entry:
    """A line of the table; ``oids`` decide, the words are for people."""

    postgres: str
    lake: str
    overflow: str = ""
    kind: Kind = Kind.STRING
    oids: tuple[int, ...] = ()


_BEYOND = "infinity, -infinity, BC, years past 9999"
_TABLE = (
    _Entry("bool", "boolean", "", Kind.BOOLEAN, (BOOL,)),
    _Entry("int2, int4", "int", "", Kind.INT, (INT2, INT4)),
    _Entry("int8, oid", "bigint", "", Kind.BIGINT, (INT8, OID)),
    _Entry("float4", "float", "", Kind.FLOAT, (FLOAT4,)),
    _Entry("float8", "double", "", Kind.DOUBLE, (FLOAT8,)),
    _Entry(f"numeric(p, s) with 0 ≤ s ≤ p ≤ {MAX_DECIMAL_PRECISION}", "decimal(p, s)", "NaN", Kind.DECIMAL),
    _Entry("other numeric", "string"),
    _Entry("bytea", "binary", "", Kind.BINARY, (BYTEA,)),
    _Entry("date", "date", _BEYOND, Kind.DATE, (DATE,)),
    _Entry("timestamp", "timestamp_ntz", _BEYOND, Kind.TIMESTAMP_NTZ, (TIMESTAMP,)),
    _Entry("timestamptz", "timestamp", _BEYOND, Kind.TIMESTAMP, (TIMESTAMPTZ,)),
    _Entry("domains", "what the type below becomes", "what overflows there"),
    _Entry(
        "arrays",
        "array<…> of what the element becomes",
        "several dimensions, lower bounds other than 1, arrays with an element that overflows",
        Kind.ARRAY,
    ),
    _Entry("arrays of domains", "array<string>", "several dimensions, lower bounds other than 1"),
    _Entry("box[], int2vector, oidvector", "string"),
    _Entry("text, varchar, char(n) with its padding, name, enums", "string"),
    _Entry("uuid, json, jsonb, xml, time, timetz, interval, money", "string"),
    _Entry("everything else: ranges, network, bits, geometry, composites, extensions, …", "string"),
)
_BY_OID: dict[int, Kind] = {oid: entry.kind for entry in _TABLE for oid in entry.oids}


def type_table() -> str:
    """The table as Markdown."""
    lines = ["| Postgres | lake | kept as text in `_pgetl_overflow` |", "|---|---|---|"]
    lines += [f"| {entry.postgres} | {entry.lake} | {entry.overflow} |".replace("|  |", "| |") for entry in _TABLE]
    return "\n".join(lines)


class CopyForm(Enum):
    """How a copy fetches a column.

    BINARY  in its binary form, which is its text or easily read
    CAST    cast to text
    PRINT   by the output function: the type has a cast to text that prints otherwise, or may have one
    """

    BINARY = auto()
    CAST = auto()
    PRINT = auto()


_BINARY = frozenset((*_BY_OID, TEXT, VARCHAR, BPCHAR, JSON))
_CAST_DIFFERS = frozenset((INET, CHAR, XML))


def copy_form(column: Column) -> CopyForm:
    """How a copy fetches ``column``: always the very text that the stream brings, or what reads as the same."""
    if column.base_oid in _BINARY and not column.element_oid:
        return CopyForm.BINARY
    if column.base_oid in _CAST_DIFFERS or column.base_oid >= _FIRST_OWN_OID:
        return CopyForm.PRINT
    return CopyForm.CAST


@dataclass(frozen=True, slots=True)
class LakeType:
    """A lake type with its Arrow and its Spark SQL form."""

    kind: Kind
    precision: int = 0
    scale: int = 0
    element: LakeType | None = None

    @property
    def arrow(self) -> pa.DataType:
        if self.kind is Kind.DECIMAL:
            return pa.decimal128(self.precision, self.scale)
        if self.element is not None:
            return pa.list_(pa.field("element", self.element.arrow))
        return _ARROW[self.kind]

    @property
    def sql(self) -> str:
        if self.kind is Kind.DECIMAL:
            return f"decimal({self.precision},{self.scale})"
        if self.element is not None:
            return f"array<{self.element.sql}>"
        return self.kind.value


STRING = LakeType(Kind.STRING)


def lake_type(column: Column) -> LakeType:
    """What ``column`` becomes in the lake."""
    if column.element_oid:
        return LakeType(Kind.ARRAY, element=_scalar(column.element_oid, column.typmod))
    return _scalar(column.base_oid, column.typmod)


def _scalar(oid: int, typmod: int) -> LakeType:
    if oid == NUMERIC:
        return _numeric(typmod)
    kind = _BY_OID.get(oid)
    return STRING if kind is None else LakeType(kind)


def _numeric(typmod: int) -> LakeType:
    if typmod < 0:
        return STRING
    precision, scale = ((typmod - 4) >> 16) & 0xFFFF, (typmod - 4) & 0x7FF
    scale = (scale ^ 1024) - 1024  # eleven bits, signed: numeric(3, -2) is legal
    if 0 <= scale <= precision <= MAX_DECIMAL_PRECISION:
        return LakeType(Kind.DECIMAL, precision, scale)
    return STRING


if __name__ == "__main__":
    sys.stdout.write(type_table() + "\n")
