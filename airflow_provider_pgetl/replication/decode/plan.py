"""What decoding needs to know of a table version, worked out once: batches are many, and often small."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa

from airflow_provider_pgetl.replication.batch import change_schema, lake_column, row_schema
from airflow_provider_pgetl.replication.pg_types import LakeType, lake_type
from airflow_provider_pgetl.replication.schema import Column, TableSchema


@dataclass(frozen=True, slots=True)
class PlannedColumn:
    """A column with its names and types in the lake; ``wire`` is the type that a binary copy sends."""

    name: str
    lake: LakeType
    wire: int
    identity: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """A table version, ready to be decoded."""

    columns: tuple[PlannedColumn, ...]
    change_schema: pa.Schema
    row_schema: pa.Schema
    old_type: pa.StructType


@lru_cache(maxsize=4096)
def plan(schema: TableSchema) -> Plan:
    """The plan of a table version."""
    changes = change_schema(schema)
    columns = tuple(_column(column) for column in schema.columns)
    return Plan(columns, changes, row_schema(schema), changes.field("_old").type)


def _column(column: Column) -> PlannedColumn:
    wire = 0 if column.element_oid else column.base_oid
    return PlannedColumn(lake_column(column.name), lake_type(column), wire, column.identity)
