"""What must be right on the source before anything is made there."""

from __future__ import annotations

from airflow_provider_pgetl.replication.errors import SourceError
from airflow_provider_pgetl.replication.source.connection import Connection, source_errors

OLDEST_VERSION = 140000

_SETTINGS = """
select current_setting('wal_level'), current_setting('server_version'),
       (select rolsuper or rolreplication from pg_roles where rolname = current_user),
       current_user, current_setting('max_replication_slots')::int - (select count(*) from pg_replication_slots),
       current_setting('max_wal_senders')::int - (select count(*) from pg_stat_replication)
"""


def check_server(connection: Connection) -> None:
    """Raise with a hint for the first thing that would stop a pipeline."""
    with source_errors():
        row = connection.execute(_SETTINGS).fetchone()
    assert row is not None
    level, version, replication, role, slots, senders = row
    if connection.info.server_version < OLDEST_VERSION:
        raise SourceError(f"the source is PostgreSQL {version}", hint="pgetl needs 14 or newer.")
    if level != "logical":
        raise SourceError(
            f"the source has wal_level={level}",
            hint="alter system set wal_level = 'logical', then restart the server.",
        )
    if not replication:
        raise SourceError(
            f"the role {role!r} may not replicate", hint=f'As a superuser: alter role "{role}" replication.'
        )
    # One for the stream, one for the snapshot of a copy.
    if slots < 2:
        raise SourceError("the source has too few free replication slots", hint="Raise max_replication_slots.")
    if senders < 2:
        raise SourceError("the source has too few free WAL senders", hint="Raise max_wal_senders.")
