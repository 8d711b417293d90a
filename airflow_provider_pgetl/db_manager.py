"""The state tables in Airflow's metadata database: made, upgraded and dropped by ``airflow db …``.

Only on Postgres. Elsewhere (SQLite is what ``airflow standalone`` begins with) every step is a no-op with one
line in the log, for a failure here would end the whole ``airflow db migrate``.
"""
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.utils.db_manager import BaseDBManager
from airflow.utils.sqlalchemy import get_dialect_name

from airflow_provider_pgetl.models import metadata

MIGRATIONS = Path(__file__).parent / "migrations"


class PgEtlDBManager(BaseDBManager):
    """What Airflow calls for the schema ``pgetl``."""

    metadata = metadata
    version_table_name = "alembic_version_pgetl"
    migration_dir = str(MIGRATIONS)
    alembic_file = str(MIGRATIONS / "alembic.ini")
    supports_table_dropping = True
    revision_heads_map = {"0.1.0": "0002"}  # noqa: RUF012

    @property
    def usable(self) -> bool:
        """Whether the metadata database is a Postgres."""
        return get_dialect_name(self.session) == "postgresql"

    def initdb(self, use_migration_files: bool = False) -> None:
        """Make the tables."""
        if self._goes_on("create"):
            super().initdb(use_migration_files=use_migration_files)

    def upgradedb(self, *args: Any, **kwargs: Any) -> None:
        """Bring the tables up to date."""
        if self._goes_on("upgrade"):
            super().upgradedb(*args, **kwargs)

    def downgrade(self, to_revision: str, from_revision: str | None = None, show_sql_only: bool = False) -> None:
        """Go back to a revision, ``base`` for none."""
        if not self._goes_on("downgrade"):
            return
        from alembic import command

        if show_sql_only:
            start = from_revision or self.get_current_revision() or "head"
            command.downgrade(self.get_alembic_config(), f"{start}:{to_revision}", sql=True)
        else:
            command.downgrade(self.get_alembic_config(), to_revision)
        self.log.info("the pgetl state tables are at revision %s", to_revision)

    def check_migration(self) -> bool:
        """Whether the tables are up to date; where there are none, nothing is missing."""
        return bool(super().check_migration()) if self.usable else True

    def create_db_from_orm(self) -> None:
        """Make the tables without running migrations."""
        if self._goes_on("create"):
            super().create_db_from_orm()

    def drop_tables(self, connection: Any) -> None:
        """Drop the tables; the empty schema stays."""
        if self._goes_on("drop"):
            super().drop_tables(connection)

    def resetdb(self, *args: Any, **kwargs: Any) -> None:
        """Drop the tables and make them again."""
        if self._goes_on("reset"):
            super().resetdb(*args, **kwargs)

    def _goes_on(self, step: str) -> bool:
        if not self.usable:
            self.log.warning(
                "pgetl keeps its state in Postgres, and the metadata database is %s: nothing to %s here;"
                " let the connection pgetl_state point to a Postgres",
                get_dialect_name(self.session),
                step,
            )
        return self.usable
