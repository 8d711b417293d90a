"""A table's new shape as the source itself tells it, in the stream, where the change happened.

The event trigger (``source.ddl``) writes it as a logical message; ``decode.ddl`` reads it. All columns of the table
are there, also those that a publication's column list leaves out.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_pgetl.replication.schema import Column, Identity, TableName

PREFIX = "pgetl_ddl"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class DdlMessage:
    """One table after one command.

    ``generated`` names the generated columns among ``columns``, which few publications send. ``rewritten``: values of
    the table (or of one of its partitions) may have been rewritten. ``using``: by an expression of somebody's own, as
    far as can be told; without it a rewrite is the type's plain conversion.
    """

    relation_id: int
    table: TableName
    identity: Identity
    columns: tuple[Column, ...]
    rewritten: bool
    using: bool
    generated: frozenset[str] = frozenset()
