"""The state tables."""

from __future__ import annotations

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TABLES = (
    """
    create table pgetl.pipeline (
        name text primary key,
        publication text not null,
        slot text not null,
        system_identifier text not null,
        timeline integer not null,
        spooled_lsn pg_lsn not null,
        paused boolean not null default false,
        created_at timestamptz not null default clock_timestamp(),
        updated_at timestamptz not null default clock_timestamp()
    )
    """,
    """
    create table pgetl.table_state (
        pipeline text not null references pgetl.pipeline (name) on delete cascade,
        relation_id bigint not null,
        schema_name text not null,
        table_name text not null,
        generation integer not null,
        state text not null,
        lsn pg_lsn,
        reason text,
        hint text,
        retry text,
        retry_at timestamptz,
        paused boolean not null default false,
        run_id text,
        applied_lsn pg_lsn,
        snapshot_id bigint,
        copied_rows bigint,
        schema_version integer,
        updated_at timestamptz not null default clock_timestamp(),
        primary key (pipeline, relation_id)
    )
    """,
    """
    create table pgetl.table_state_history (
        id bigint generated always as identity primary key,
        pipeline text not null,
        relation_id bigint not null,
        generation integer not null,
        state text not null,
        lsn pg_lsn,
        reason text,
        hint text,
        retry text,
        retry_at timestamptz,
        moved_by text not null,
        run_id text,
        at timestamptz not null default clock_timestamp(),
        constraint table_state_history_pipeline_fkey foreign key (pipeline, relation_id)
            references pgetl.table_state (pipeline, relation_id) on delete cascade
    )
    """,
    """
    create table pgetl.table_schema (
        pipeline text not null references pgetl.pipeline (name) on delete cascade,
        relation_id bigint not null,
        version integer not null,
        lsn pg_lsn not null,
        definition jsonb not null,
        created_at timestamptz not null default clock_timestamp(),
        primary key (pipeline, relation_id, version)
    )
    """,
    """
    create table pgetl.segment (
        id bigint generated always as identity primary key,
        pipeline text not null references pgetl.pipeline (name) on delete cascade,
        from_lsn pg_lsn not null,
        to_lsn pg_lsn not null,
        rows bigint not null,
        bytes bigint not null,
        epoch bigint not null,
        last_committed_at timestamptz,
        created_at timestamptz not null default clock_timestamp()
    )
    """,
    """
    create table pgetl.segment_file (
        id bigint generated always as identity primary key,
        segment_id bigint not null references pgetl.segment (id) on delete cascade,
        pipeline text not null references pgetl.pipeline (name) on delete cascade,
        relation_id bigint not null,
        schema_version integer not null,
        path text not null,
        rows bigint not null,
        bytes bigint not null,
        checksum text not null,
        first_lsn pg_lsn not null,
        last_lsn pg_lsn not null,
        unique (pipeline, path)
    )
    """,
    """
    create table pgetl.cut (
        id bigint generated always as identity primary key,
        pipeline text not null references pgetl.pipeline (name) on delete cascade,
        lsn pg_lsn not null,
        created_at timestamptz not null default clock_timestamp()
    )
    """,
    """
    create table pgetl.cut_table (
        cut_id bigint not null references pgetl.cut (id) on delete cascade,
        relation_id bigint not null,
        snapshot_id bigint,
        primary key (cut_id, relation_id)
    )
    """,
    """
    create table pgetl.lease (
        pipeline text not null,
        name text not null,
        owner text,
        epoch bigint not null,
        expires_at timestamptz not null,
        primary key (pipeline, name)
    )
    """,
    """
    create table pgetl.outbox (
        id bigint generated always as identity primary key,
        pipeline text not null references pgetl.pipeline (name) on delete cascade,
        kind text not null,
        relation_id bigint,
        lsn pg_lsn,
        snapshot_id bigint,
        created_at timestamptz not null default clock_timestamp()
    )
    """,
    """
    create table pgetl.destination_table (
        pipeline text not null references pgetl.pipeline (name) on delete cascade,
        relation_id bigint not null,
        name text not null,
        schema_version integer not null,
        status text not null,
        updated_at timestamptz not null default clock_timestamp(),
        primary key (pipeline, relation_id)
    )
    """,
    """
    create table pgetl.name_map (
        pipeline text not null references pgetl.pipeline (name) on delete cascade,
        relation_id bigint not null,
        source_name text not null,
        lake_name text not null,
        primary key (pipeline, relation_id, source_name)
    )
    """,
    """
    create table pgetl.command (
        id bigint generated always as identity primary key,
        pipeline text not null references pgetl.pipeline (name) on delete cascade,
        kind text not null,
        payload jsonb not null,
        created_by text not null,
        created_at timestamptz not null default clock_timestamp(),
        result jsonb,
        answered_at timestamptz
    )
    """,
    """
    create table pgetl.sample (
        id bigint generated always as identity primary key,
        pipeline text not null references pgetl.pipeline (name) on delete cascade,
        figures jsonb not null,
        at timestamptz not null default clock_timestamp()
    )
    """,
)

INDEXES = (
    "create index on pgetl.table_state_history (pipeline, relation_id, id)",
    "create index on pgetl.segment (pipeline, from_lsn)",
    "create index on pgetl.segment_file (pipeline, relation_id, last_lsn)",
    "create index on pgetl.segment_file (segment_id)",
    "create index on pgetl.cut (pipeline, id)",
    "create index on pgetl.cut (pipeline, lsn)",
    "create index on pgetl.outbox (pipeline, id)",
    "create index command_open_idx on pgetl.command (pipeline, id) where answered_at is null",
    "create index on pgetl.sample (pipeline, id)",
)

NAMES = (
    "sample",
    "command",
    "name_map",
    "destination_table",
    "outbox",
    "lease",
    "cut_table",
    "cut",
    "segment_file",
    "segment",
    "table_schema",
    "table_state_history",
    "table_state",
    "pipeline",
)


def upgrade() -> None:
    """Make the schema and the tables."""
    op.execute("create schema if not exists pgetl")
    for statement in (*TABLES, *INDEXES):
        op.execute(statement)


def downgrade() -> None:
    """Drop the tables; the empty schema stays, for somebody may have granted rights on it."""
    for name in NAMES:
        op.execute(f"drop table pgetl.{name}")
