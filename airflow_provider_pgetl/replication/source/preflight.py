"""What must be right on the source before anything is made there: a list of findings, never a stack trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from psycopg.rows import dict_row

from airflow_provider_pgetl.replication.errors import Retry, SourceError
from airflow_provider_pgetl.replication.source import catalog
from airflow_provider_pgetl.replication.source.connection import Connection, source_errors
from airflow_provider_pgetl.replication.source.findings import Finding, Severity, quoted
from airflow_provider_pgetl.replication.source.snapshot import TEMPORARY_PREFIX
from airflow_provider_pgetl.replication.source.table_checks import check_tables

__all__ = ["Finding", "Severity", "preflight", "refuse"]

OLDEST_VERSION = 140000
# Logical decoding on a standby came with 16.
STANDBY_SINCE = 160000
# One slot and sender for the stream, one for the snapshot of a copy.
NEEDED_SLOTS = 2
LOW_WAL_KEEP_MB = 1024
LOW_IDLE_TIMEOUT_S = 3600

# Our own: state tables, and what the DDL trigger keeps on the source.
OWN_SCHEMAS = ("pgetl", "pgetl_source")
_ACTIONS = "insert, update, delete, truncate"

# The pipeline's own slot and sender are not counted, nor those of snapshots, which live for moments.
# Managed clouds grant the right to replicate by membership in a role of theirs.
_SERVER = """
with own as (
    select active_pid from pg_replication_slots
    where slot_name = %(slot)s or starts_with(slot_name, %(temporary)s)
)
select current_setting('wal_level') as wal_level, current_setting('server_version') as version, current_user as role,
       coalesce((select rolsuper or rolreplication from pg_roles where rolname = current_user), false)
       or exists (select from pg_roles
                  where rolname in ('rds_replication', 'cloudsqlsuperuser', 'azure_pg_admin')
                    and pg_has_role(oid, 'member')) as replication,
       current_setting('max_replication_slots')::int
       - (select count(*) from pg_replication_slots
          where slot_name <> %(slot)s and not starts_with(slot_name, %(temporary)s)) as slots,
       current_setting('max_wal_senders')::int
       - (select count(*) from pg_stat_replication
          where pid not in (select active_pid from own where active_pid is not null)) as senders,
       (select setting::int8 from pg_settings where name = 'max_slot_wal_keep_size') as wal_keep_mb,
       (select setting::int8 from pg_settings where name = 'idle_replication_slot_timeout') as idle_timeout_s,
       pg_is_in_recovery() as standby, current_setting('hot_standby_feedback')::bool as feedback,
       current_setting('server_version_num')::int as number
"""

# Tables that a publication of all tables or of schemas means, and leaves out without a word.
_UNLOGGED = """
select n.nspname || '.' || c.relname
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
join pg_publication p on p.pubname = %(name)s
where c.relkind = 'r' and c.relpersistence = 'u'
  and n.nspname not in ('pg_catalog', 'information_schema') and n.nspname <> all(%(own)s)
  and (p.puballtables{schemas})
order by 1
"""
_OF_SCHEMA = " or exists (select from pg_publication_namespace s where s.pnpubid = p.oid and s.pnnspid = n.oid)"
_SCHEMAS_SINCE = 150000


def preflight(connection: Connection, publication: str, slot: str) -> list[Finding]:
    """Everything worth saying about the server, the role, the publication and its tables."""
    findings: list[Finding] = []
    try:
        findings += _server(connection, slot)
        findings += _published(connection, publication)
    except SourceError as error:
        # A source that can't be reached is for the caller to try again; all else is a finding.
        if error.retry is Retry.TIMED:
            raise
        findings.append(Finding(Severity.ERROR, error.message, error.hint))
    return findings


def refuse(findings: list[Finding]) -> None:
    """Raise one error that names all that stands in the way; nothing was made yet."""
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    if len(errors) == 1:
        raise SourceError(errors[0].what, hint=errors[0].hint)
    if errors:
        lines = "".join(f"\n- {finding.what}: {finding.hint}" for finding in errors)
        raise SourceError(f"{len(errors)} things stand in the way:{lines}", hint="Correct them, then try again.")


def _server(connection: Connection, slot: str) -> list[Finding]:
    with source_errors(), connection.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(_SERVER, {"slot": slot, "temporary": TEMPORARY_PREFIX}).fetchone()
    assert row is not None
    return list(_server_findings(row))


def _server_findings(row: dict[str, Any]) -> Iterator[Finding]:
    row = {**row, "quoted_role": quoted(row["role"])}
    for wrong, severity, what, hint in _SERVER_RULES:
        if wrong(row):
            yield Finding(severity, what.format(**row), hint.format(**row))


Rule = tuple[Callable[[dict[str, Any]], bool], Severity, str, str]

_SERVER_RULES: tuple[Rule, ...] = (
    (
        lambda row: row["number"] < OLDEST_VERSION,
        Severity.ERROR,
        "the source is PostgreSQL {version}",
        "pgetl needs 14 or newer.",
    ),
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
        "As a superuser: alter role {quoted_role} replication; on managed clouds grant it their role for that.",
    ),
    (
        lambda row: row["slots"] < NEEDED_SLOTS,
        Severity.ERROR,
        "the source has too few free replication slots ({slots})",
        "Raise max_replication_slots, or drop slots that nobody uses.",
    ),
    (
        lambda row: row["senders"] < NEEDED_SLOTS,
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
    (
        lambda row: row["standby"] and row["number"] < STANDBY_SINCE,
        Severity.ERROR,
        "the source is a standby, and PostgreSQL {version} decodes only on the primary",
        "Connect to the primary, or upgrade to 16 or newer.",
    ),
    (
        lambda row: row["standby"] and row["number"] >= STANDBY_SINCE,
        Severity.WARNING,
        "the source is a standby: no publication can be created here, and snapshots need activity on the primary",
        "Make publications on the primary; on a quiet one run there: select pg_log_standby_snapshot().",
    ),
    (
        lambda row: row["standby"] and row["number"] >= STANDBY_SINCE and not row["feedback"],
        Severity.WARNING,
        "the source is a standby with hot_standby_feedback off: a vacuum on the primary can invalidate the slot",
        "alter system set hot_standby_feedback = on, and give the standby a physical slot.",
    ),
)


def _published(connection: Connection, name: str) -> Iterator[Finding]:
    found = catalog.publication(connection, name)
    tables = catalog.published_tables(connection, name)
    yield from _publication(name, found, len(tables))
    yield from _own_state(name, tables)
    yield from _left_out(connection, name)
    yield from check_tables(connection, name, found, tables)


def _publication(name: str, found: catalog.Publication, tables: int) -> Iterator[Finding]:
    if not tables:
        yield Finding(
            Severity.ERROR,
            f"the publication {name!r} has no tables",
            f"Add some: alter publication {quoted(name)} add table ...",
        )
    missing = set(_ACTIONS.split(", ")) - found.actions
    hint = f"alter publication {quoted(name)} set (publish = '{_ACTIONS}')"
    if "insert" in missing:
        yield Finding(Severity.ERROR, f"the publication {name!r} does not publish inserts", hint)
    elif missing:
        said = ", ".join(sorted(missing))
        yield Finding(
            Severity.WARNING, f"the publication {name!r} does not publish {said}: the lake will not see them", hint
        )


def _own_state(name: str, tables: list[catalog.PublishedTable]) -> Iterator[Finding]:
    schemas = sorted({table.schema.table.schema for table in tables} & set(OWN_SCHEMAS))
    if schemas:
        yield Finding(
            Severity.WARNING,
            f"the publication {name!r} sends pgetl's own state (schema {', '.join(schemas)}): each batch makes more",
            f"Take it out: alter publication {quoted(name)} drop table ...; instead of all tables name the others,"
            " or their schemas.",
        )


def _left_out(connection: Connection, name: str) -> Iterator[Finding]:
    of_schema = _OF_SCHEMA if connection.info.server_version >= _SCHEMAS_SINCE else ""
    with source_errors():
        query = _UNLOGGED.format(schemas=of_schema)
        rows = connection.execute(query, {"name": name, "own": list(OWN_SCHEMAS)}).fetchall()
    if rows:
        yield Finding(
            Severity.WARNING,
            f"unlogged tables are not published: {', '.join(row[0] for row in rows)}",
            "alter table ... set logged, if they are to be mirrored.",
        )
