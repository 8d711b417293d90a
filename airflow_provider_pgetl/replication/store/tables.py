"""The state tables, defined once: for the Alembic migrations and for ``PostgresStore.create_tables``.

    pipeline ──┬── table_state ── table_state_history      where each table stands, and how it came there
               ├── table_schema                            its shapes, each from an LSN on
               ├── segment ── segment_file                 the spool's ledger
               ├── cut ── cut_table                        one LSN over all ready tables
               ├── outbox                                  what is to be announced, the newest of each kind
               ├── destination_table, name_map             what the destination calls it, and its shape there
               └── command, sample                         questions to the stream, figures over time
    lease                                                  outlives its pipeline: an epoch never goes back

Only names and types here; the statements are with the store that runs them.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    ForeignKey,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.types import UserDefinedType

SCHEMA = "pgetl"

metadata = MetaData(
    schema=SCHEMA,
    naming_convention={
        "pk": "%(table_name)s_pkey",
        "fk": "%(table_name)s_%(column_0_name)s_fkey",
        "ix": "%(table_name)s_%(column_0_N_name)s_idx",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
    },
)


class PgLsn(UserDefinedType[str]):
    """``pg_lsn``."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        """The type's name in SQL."""
        return "PG_LSN"


def _id() -> Column[int]:
    return Column("id", BigInteger, Identity(always=True), primary_key=True)


def _pipeline(*, primary_key: bool = False) -> Column[str]:
    reference = ForeignKey(f"{SCHEMA}.pipeline.name", ondelete="CASCADE")
    return Column("pipeline", Text, reference, primary_key=primary_key, nullable=False)


def _at(name: str) -> Column[Any]:
    return Column(name, DateTime(timezone=True), nullable=False, server_default=text("clock_timestamp()"))


def _state() -> list[Column[Any]]:
    return [
        Column("state", Text, nullable=False),
        Column("lsn", PgLsn),
        Column("reason", Text),
        Column("hint", Text),
        Column("retry", Text),
        Column("retry_at", DateTime(timezone=True)),
    ]


pipeline = Table(
    "pipeline",
    metadata,
    Column("name", Text, primary_key=True),
    Column("publication", Text, nullable=False),
    Column("slot", Text, nullable=False),
    Column("system_identifier", Text, nullable=False),
    Column("timeline", Integer, nullable=False),
    Column("spooled_lsn", PgLsn, nullable=False),
    Column("paused", Boolean, nullable=False, server_default=text("false")),
    _at("created_at"),
    _at("updated_at"),
)

table_state = Table(
    "table_state",
    metadata,
    _pipeline(primary_key=True),
    Column("relation_id", BigInteger, primary_key=True, autoincrement=False),
    Column("schema_name", Text, nullable=False),
    Column("table_name", Text, nullable=False),
    Column("generation", Integer, nullable=False),
    *_state(),
    Column("paused", Boolean, nullable=False, server_default=text("false")),
    Column("run_id", Text),
    Column("applied_lsn", PgLsn),
    Column("snapshot_id", BigInteger),
    Column("copied_rows", BigInteger),
    Column("schema_version", Integer),
    Column("source_mark", Text),
    _at("updated_at"),
)

table_state_history = Table(
    "table_state_history",
    metadata,
    _id(),
    Column("pipeline", Text, nullable=False),
    Column("relation_id", BigInteger, nullable=False),
    Column("generation", Integer, nullable=False),
    *_state(),
    Column("moved_by", Text, nullable=False),
    Column("run_id", Text),
    Column("rolled_back", Boolean, nullable=False, server_default=text("false")),
    _at("at"),
    ForeignKeyConstraint(
        ["pipeline", "relation_id"],
        [f"{SCHEMA}.table_state.pipeline", f"{SCHEMA}.table_state.relation_id"],
        ondelete="CASCADE",
    ),
    Index(None, "pipeline", "relation_id", "id"),
)

table_schema = Table(
    "table_schema",
    metadata,
    _pipeline(primary_key=True),
    Column("relation_id", BigInteger, primary_key=True, autoincrement=False),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("lsn", PgLsn, nullable=False),
    Column("definition", JSONB, nullable=False),
    _at("created_at"),
)

segment = Table(
    "segment",
    metadata,
    _id(),
    _pipeline(),
    Column("from_lsn", PgLsn, nullable=False),
    Column("to_lsn", PgLsn, nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("last_committed_at", DateTime(timezone=True)),
    _at("created_at"),
    Index(None, "pipeline", "from_lsn"),
)

segment_file = Table(
    "segment_file",
    metadata,
    _id(),
    Column("segment_id", BigInteger, ForeignKey(f"{SCHEMA}.segment.id", ondelete="CASCADE"), nullable=False),
    _pipeline(),
    Column("relation_id", BigInteger, nullable=False),
    Column("schema_version", Integer, nullable=False),
    Column("path", Text, nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("checksum", Text, nullable=False),
    Column("first_lsn", PgLsn, nullable=False),
    Column("last_lsn", PgLsn, nullable=False),
    UniqueConstraint("pipeline", "path"),
    Index(None, "pipeline", "relation_id", "last_lsn"),
    Index(None, "segment_id"),
)

cut = Table(
    "cut",
    metadata,
    _id(),
    _pipeline(),
    Column("lsn", PgLsn, nullable=False),
    _at("created_at"),
    Index(None, "pipeline", "id"),
    Index(None, "pipeline", "lsn"),
)

cut_table = Table(
    "cut_table",
    metadata,
    Column("cut_id", BigInteger, ForeignKey(f"{SCHEMA}.cut.id", ondelete="CASCADE"), primary_key=True),
    Column("relation_id", BigInteger, primary_key=True, autoincrement=False),
    Column("snapshot_id", BigInteger),
)

lease = Table(
    "lease",
    metadata,
    Column("pipeline", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("owner", Text),
    Column("epoch", BigInteger, nullable=False),
    Column("expires_at", DateTime(timezone=True), nullable=False),
    PrimaryKeyConstraint("pipeline", "name"),
)

outbox = Table(
    "outbox",
    metadata,
    _id(),
    _pipeline(),
    Column("kind", Text, nullable=False),
    Column("relation_id", BigInteger),
    Column("lsn", PgLsn),
    Column("snapshot_id", BigInteger),
    _at("created_at"),
    Index(None, "pipeline", "id"),
)

destination_table = Table(
    "destination_table",
    metadata,
    _pipeline(primary_key=True),
    Column("relation_id", BigInteger, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False),
    Column("schema_version", Integer, nullable=False),
    Column("previous_version", Integer),
    Column("status", Text, nullable=False),
    _at("updated_at"),
)

name_map = Table(
    "name_map",
    metadata,
    _pipeline(primary_key=True),
    Column("relation_id", BigInteger, primary_key=True, autoincrement=False),
    Column("source_name", Text, primary_key=True),
    Column("lake_name", Text, nullable=False),
)

command = Table(
    "command",
    metadata,
    _id(),
    _pipeline(),
    Column("kind", Text, nullable=False),
    Column("payload", JSONB, nullable=False),
    Column("created_by", Text, nullable=False),
    _at("created_at"),
    Column("result", JSONB),
    Column("answered_at", DateTime(timezone=True)),
    Index("command_open_idx", "pipeline", "id", postgresql_where=text("answered_at IS NULL")),
)

sample = Table(
    "sample",
    metadata,
    _id(),
    _pipeline(),
    Column("figures", JSONB, nullable=False),
    _at("at"),
    Index(None, "pipeline", "id"),
)
