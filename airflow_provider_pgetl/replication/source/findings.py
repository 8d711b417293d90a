"""What preflight says: findings with a severity and a hint."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from psycopg import sql

from airflow_provider_pgetl.replication.schema import TableName


class Severity(StrEnum):
    """Whether a pipeline can run in spite of it."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found, and what to do about it."""

    severity: Severity
    what: str
    hint: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.what} ({self.hint})"


def quoted(name: str | TableName) -> str:
    """A name as SQL takes it, for hints that people paste."""
    parts = (name,) if isinstance(name, str) else (name.schema, name.name)
    return sql.Identifier(*parts).as_string(None)
