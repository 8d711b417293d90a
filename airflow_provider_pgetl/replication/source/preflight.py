"""What must be right on the source before anything is made there: a list of findings, never a stack trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from psycopg.rows import dict_row

from airflow_provider_pgetl.replication.errors import SourceError
from airflow_provider_pgetl.replication.pg_types import Kind, lake_type
from airflow_provider_pgetl.replication.schema import Identity
from airflow_provider_pgetl.replication.source import catalog
from airflow_provider_pgetl.replication.source.catalog import PublishedTable
from airflow_provider_pgetl.replication.source.connection import Connection, source_errors

OLDEST_VERSION = 140000
# One slot and sender for the stream, one for the snapshot of a copy.
NEEDED_SLOTS = 2
LOW_WAL_KEEP_MB = 1024
LOW_IDLE_TIMEOUT_S = 3600

_OVERFLOWING = frozenset({Kind.DECIMAL, Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMP_NTZ, Kind.ARRAY})


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


_SERVER = """
select current_setting('wal_level') as wal_level, current_setting('server_version') as version, current_user as role,
       coalesce((select rolsuper or rolreplication from pg_roles where rolname = current_user), false) as replication,
       coalesce((select rolsuper or rolbypassrls from pg_roles where rolname = current_user), false) as bypass,
       current_setting('max_replication_slots')::int - (select count(*) from pg_replication_slots) as slots,
       current_setting('max_wal_senders')::int - (select count(*) from pg_stat_replication) as senders,
       (select setting::int8 from pg_settings where name = 'max_slot_wal_keep_size') as wal_keep_mb,
       (select setting::int8 from pg_settings where name = 'idle_replication_slot_timeout') as idle_timeout_s,
       exists (select from pg_replication_slots where slot_name = %s) as has_slot
"""

_TABLES = """
select c.oid::int8 as oid, has_table_privilege(c.oid, 'select') as readable, c.relpersistence = 'u' as unlogged,
       c.relrowsecurity and (c.relforcerowsecurity or not pg_has_role(c.relowner, 'usage')) as row_security,
       array(select a.attname::text from pg_attribute a
             where a.attrelid = c.oid and a.attgenerated <> '' and not a.attisdropped) as generated
from pg_class c where c.oid = any(%s::oid[])
"""


def preflight(connection: Connection, publication: str, slot: str) -> list[Finding]:
    """Everything worth saying about the server, the role, the publication and its tables."""
    findings = list(_server(connection, slot))
    try:
        found = catalog.publication(connection, publication)
    except SourceError as error:
        return [*findings, Finding(Severity.ERROR, error.message, error.hint)]
    tables = catalog.published_tables(connection, publication)
    findings += _publication(publication, found, len(tables))
    details = _details(connection, tables)
    for table in tables:
        findings += _table(table, found, details.get(table.schema.relation_id, {}))
    return findings


def refuse(findings: list[Finding]) -> None:
    """Raise one error that names all that stands in the way; nothing was made yet."""
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    if len(errors) == 1:
        raise SourceError(errors[0].what, hint=errors[0].hint)
    if errors:
        lines = "".join(f"\n- {finding.what}: {finding.hint}" for finding in errors)
        raise SourceError(f"{len(errors)} things stand in the way:{lines}", hint="Correct them, then try again.")


def _server(connection: Connection, slot: str) -> Iterator[Finding]:
    with source_errors(), connection.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(_SERVER, (slot,)).fetchone()
    assert row is not None
    if connection.info.server_version < OLDEST_VERSION:
        yield Finding(Severity.ERROR, f"the source is PostgreSQL {row['version']}", "pgetl needs 14 or newer.")
    for wrong, severity, what, hint in _SERVER_RULES:
        if wrong(row):
            yield Finding(severity, what.format(**row), hint.format(**row))


Rule = tuple[Callable[[dict[str, Any]], bool], Severity, str, str]

_SERVER_RULES: tuple[Rule, ...] = (
    (
        lambda row: row["wal_level"] != "logical",
        Severity.ERROR,
        "the source has wal_level={wal_level}",
        "alter system set wal_level = 'logical', then restart the server.",
    ),
    (
        lambda row: not row["replication"],
        Severity.ERROR,
        "the role {role!r} may not replicate",
        'As a superuser: alter role "{role}" replication.',
    ),
    (
        lambda row: row["slots"] < NEEDED_SLOTS - row["has_slot"],
        Severity.ERROR,
        "the source has too few free replication slots ({slots})",
        "Raise max_replication_slots, or drop slots that nobody uses.",
    ),
    (
        lambda row: row["senders"] < NEEDED_SLOTS - row["has_slot"],
        Severity.ERROR,
        "the source has too few free WAL senders ({senders})",
        "Raise max_wal_senders.",
    ),
    (
        lambda row: row["wal_keep_mb"] == 0,
        Severity.ERROR,
        "max_slot_wal_keep_size is 0: a slot is lost at the first checkpoint",
        "Set it to -1 or to what the disk can spare.",
    ),
    (
        lambda row: row["wal_keep_mb"] == -1,
        Severity.WARNING,
        "max_slot_wal_keep_size is unlimited: a stopped stream fills the disk",
        "Set it to what the disk can spare.",
    ),
    (
        lambda row: 0 < row["wal_keep_mb"] < LOW_WAL_KEEP_MB,
        Severity.WARNING,
        "max_slot_wal_keep_size is only {wal_keep_mb} MB: a short stop of the stream loses the slot",
        "Raise it to 1 GB or more.",
    ),
    (
        lambda row: 0 < (row["idle_timeout_s"] or 0) < LOW_IDLE_TIMEOUT_S,
        Severity.WARNING,
        "idle_replication_slot_timeout is {idle_timeout_s} s: a stopped stream soon loses its slot",
        "Raise it above the longest stop that you plan for, or set it to 0.",
    ),
)


def _publication(name: str, found: catalog.Publication, tables: int) -> Iterator[Finding]:
    if not tables:
        yield Finding(
            Severity.ERROR,
            f"the publication {name!r} has no tables",
            f'Add some: alter publication "{name}" add table ...',
        )
    missing = {"insert", "update", "delete", "truncate"} - found.actions
    if "insert" in missing:
        yield Finding(Severity.ERROR, f"the publication {name!r} does not publish inserts", "Publish all actions.")
    elif missing:
        yield Finding(
            Severity.WARNING,
            f"the publication {name!r} does not publish {', '.join(sorted(missing))}: the lake will not see them",
            f"alter publication \"{name}\" set (publish = 'insert, update, delete, truncate')",
        )


def _details(connection: Connection, tables: list[PublishedTable]) -> dict[int, dict[str, Any]]:
    oids = [table.schema.relation_id for table in tables]
    with source_errors(), connection.cursor(row_factory=dict_row) as cursor:
        return {row["oid"]: row for row in cursor.execute(_TABLES, (oids,)).fetchall()}


def _table(table: PublishedTable, publication: catalog.Publication, details: dict[str, Any]) -> Iterator[Finding]:
    name, schema = table.schema.table, table.schema
    if not schema.columns:
        yield Finding(Severity.ERROR, f"{name} publishes no columns", "Take it out of the publication.")
    yield from _identity(table, publication)
    if details.get("readable") is False:
        yield Finding(Severity.ERROR, f"the role may not read {name}", f"grant select on {name} to the role.")
    if details.get("unlogged"):
        yield Finding(
            Severity.ERROR, f"{name} is unlogged: its changes are in no WAL", f"alter table {name} set logged"
        )
    if details.get("row_security"):
        yield Finding(
            Severity.WARNING,
            f"{name} has row-level security: a copy sees only the role's rows, the stream sees all",
            "Give the role BYPASSRLS.",
        )
    if details.get("generated"):
        columns = ", ".join(details["generated"])
        yield Finding(
            Severity.WARNING, f"generated columns of {name} are not mirrored: {columns}", "Compute them later."
        )
    overflowing = [column.name for column in schema.columns if lake_type(column).kind in _OVERFLOWING]
    if overflowing:
        yield Finding(
            Severity.INFO,
            f"{name}: values past the lake's range would go to _pgetl_overflow: {', '.join(overflowing)}",
            "Nothing to do.",
        )


def _identity(table: PublishedTable, publication: catalog.Publication) -> Iterator[Finding]:
    changing = sorted(publication.actions & {"update", "delete"})
    schema = table.schema
    if not changing or not schema.columns:
        return
    if schema.identity is Identity.NOTHING:
        yield Finding(
            Severity.ERROR,
            f"{schema.table} has REPLICA IDENTITY NOTHING: Postgres refuses its updates and deletes",
            f"alter table {schema.table} replica identity default",
        )
    elif not schema.key:
        yield Finding(
            Severity.ERROR,
            f"{schema.table} has no key, and the publication sends its {' and '.join(changing)}s",
            "Give it a primary key or a replica identity index, or take it out of the publication.",
        )
