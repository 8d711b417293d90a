"""The one table of types: what a Postgres type becomes in the lake.

| Postgres                                    | lake             | what it can't hold goes to the overflow column |
|---------------------------------------------|------------------|------------------------------------------------|
| bool                                        | boolean          |                                                |
| int2, int4                                  | int              |                                                |
| int8, oid                                   | bigint           |                                                |
| float4 / float8                             | float / double   |                                                |
| numeric(p, s), 0 <= s <= p <= 38            | decimal(p, s)    | NaN                                            |
| other numeric                               | string           |                                                |
| bytea                                       | binary           |                                                |
| date                                        | date             | infinity, BC, years past 9999                  |
| timestamp                                   | timestamp_ntz    | infinity, BC, years past 9999                  |
| timestamptz                                 | timestamp        | infinity, BC, years past 9999                  |
| arrays of the above and of text types       | array<...>       | several dimensions, own lower bounds           |
| everything else                             | string           |                                                |

Strings hold exactly what the type's output function prints under the fixed session settings (UTC, ISO).
Copy and stream go through the same casts, so that a row copied and the same row streamed are identical.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa

from airflow_provider_pgetl.replication.schema import Column

BOOL, BYTEA, CHAR, NAME, INT8, INT2, INT4, TEXT, OID = 16, 17, 18, 19, 20, 21, 23, 25, 26
JSON, FLOAT4, FLOAT8, INET, BPCHAR, VARCHAR = 114, 700, 701, 869, 1042, 1043
DATE, TIMESTAMP, TIMESTAMPTZ, NUMERIC = 1082, 1114, 1184, 1700

MAX_DECIMAL_PRECISION = 38


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

_BY_OID: dict[int, Kind] = {
    BOOL: Kind.BOOLEAN,
    INT2: Kind.INT,
    INT4: Kind.INT,
    INT8: Kind.BIGINT,
    OID: Kind.BIGINT,
    FLOAT4: Kind.FLOAT,
    FLOAT8: Kind.DOUBLE,
    BYTEA: Kind.BINARY,
    DATE: Kind.DATE,
    TIMESTAMP: Kind.TIMESTAMP_NTZ,
    TIMESTAMPTZ: Kind.TIMESTAMP,
}


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
