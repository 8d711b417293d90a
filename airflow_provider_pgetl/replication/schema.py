"""Tables as values: names, columns, versions. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from airflow_provider_pgetl.replication.lsn import Lsn


@dataclass(frozen=True, slots=True, order=True)
class TableName:
    """A qualified Postgres name, unquoted."""

    schema: str
    name: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


class Identity(StrEnum):
    """REPLICA IDENTITY: what Postgres sends of the old row."""

    DEFAULT = "default"
    INDEX = "index"
    FULL = "full"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Column:
    """One published column.

    ``base_oid`` is the type behind a domain (else ``type_oid``) and ``typmod`` its modifier (``typmod_sent`` is
    the column's own, which the stream repeats); ``element_oid`` is the element type of an array, 0 otherwise.
    ``key`` is the 1-based position in the table's key (primary key, or the replica identity index), ``identity``
    whether the column is part of what Postgres sends as the old row. ``attnum`` survives a rename; it is 0 where
    the catalog could not be asked any more. ``default`` is the expression, ``missing`` the text of the value that
    rows older than the column show (Postgres computes it once, when the column is added).
    """

    name: str
    attnum: int
    type_oid: int
    base_oid: int
    typmod: int
    typmod_sent: int
    element_oid: int
    type_name: str
    nullable: bool
    key: int | None = None
    identity: bool = False
    toastable: bool = False
    default: str | None = None
    missing: str | None = None


@dataclass(frozen=True, slots=True)
class TableSchema:
    """The shape of a table from some LSN on.

    ``version`` names it among the shapes of its relation (their order is by LSN, not by version). ``rewrite`` says
    why rows of earlier shapes can't be carried over: their values were rewritten on the source, unseen.
    """

    relation_id: int
    table: TableName
    columns: tuple[Column, ...]
    identity: Identity
    version: int = 1
    rewrite: str | None = None

    @property
    def key(self) -> tuple[Column, ...]:
        """The key columns in key order; empty for a table without key."""
        keyed = [column for column in self.columns if column.key is not None]
        return tuple(sorted(keyed, key=lambda column: column.key or 0))

    @property
    def identity_columns(self) -> tuple[Column, ...]:
        """The columns of ``_old``, in table order."""
        return tuple(column for column in self.columns if column.identity)

    def to_json(self) -> str:
        """The form kept in the store."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | bytes | Mapping[str, Any]) -> TableSchema:
        """The inverse of ``to_json``; takes what a jsonb column gives, too."""
        raw: Mapping[str, Any] = text if isinstance(text, Mapping) else json.loads(text)
        return cls(
            relation_id=raw["relation_id"],
            table=TableName(**raw["table"]),
            columns=tuple(Column(**column) for column in raw["columns"]),
            identity=Identity(raw["identity"]),
            version=raw["version"],
            rewrite=raw.get("rewrite"),
        )


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """A shape and the LSN of the commit from which on it holds."""

    lsn: Lsn
    schema: TableSchema
