"""From shape to shape as the changes go on: which relation comes before which rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from airflow_provider_pgetl.replication.decode.casts import cast_text
from airflow_provider_pgetl.replication.errors import SpoolCorrupt
from airflow_provider_pgetl.replication.events import Relation
from airflow_provider_pgetl.replication.evolution import Added, Step, steps
from airflow_provider_pgetl.replication.pg_types import lake_type
from airflow_provider_pgetl.replication.schema import Column, SchemaVersion, TableSchema


class Shapes:
    """The way from the table's present shape through ``versions``; a step that is refused is refused at once."""

    def __init__(self, present: TableSchema, versions: Sequence[SchemaVersion]) -> None:
        self.present = present
        self._ahead: list[Relation] = []
        for version in versions:
            self._ahead.append(relation(present, version))
            present = version.schema

    def lead_to(self, version: int) -> list[Relation]:
        """The relations that lead to ``version``, which is the present shape then; none if it is already."""
        passed: list[Relation] = []
        while self.present.version != version:
            if not self._ahead:
                raise SpoolCorrupt(f"the spool has changes of {self.present.table} in shape {version}, unannounced")
            passed.append(self._ahead.pop(0))
            self.present = passed[-1].after
        return passed

    def rest(self) -> list[Relation]:
        """What is left at the end, which no rows follow."""
        rest, self._ahead = self._ahead, []
        return rest


def relation(before: TableSchema, version: SchemaVersion) -> Relation:
    """The change from one shape to the next, with what the rows that are there show in added columns."""
    found: tuple[Step, ...] = steps(before, version.schema)
    defaults = {step.column.name: missing_value(step.column) for step in found if isinstance(step, Added)}
    return Relation(version.lsn, before, version.schema, found, defaults)


def missing_value(column: Column) -> Any:
    """What older rows show in the column, in the form of plain rows: text where the lake type can't hold it."""
    if column.missing is None:
        return None
    cast = cast_text(pa.array([column.missing], pa.string()), lake_type(column))
    overflow = None if cast.overflow is None else cast.overflow[0].as_py()
    return cast.values[0].as_py() if overflow is None else overflow
