"""Schema changes under way, moves that were rollbacks, and how the source publishes a table."""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

COLUMNS = (
    ("table_state", "source_mark", "text"),
    ("table_state_history", "rolled_back", "boolean not null default false"),
    ("destination_table", "previous_version", "integer"),
)


def upgrade() -> None:
    """Add the columns; ``PostgresStore.create_tables`` may have done so before."""
    for table, column, definition in COLUMNS:
        op.execute(f"alter table pgetl.{table} add column if not exists {column} {definition}")


def downgrade() -> None:
    """Drop the columns."""
    for table, column, _ in COLUMNS:
        op.execute(f"alter table pgetl.{table} drop column {column}")
