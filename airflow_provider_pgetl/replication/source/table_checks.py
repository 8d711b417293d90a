"""Preflight of single tables: rights, persistence, replica identity, columns.

Postgres checks updates and deletes on the leaf that they change, with the leaf's own replica identity, and a copy
reads the leaves. So each leaf of a table that is published by its root is checked as a table; leaves with the same
fault make one finding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg.rows import dict_row

from airflow_provider_pgetl.replication.pg_types import Kind, lake_type
from airflow_provider_pgetl.replication.schema import Identity, TableName
from airflow_provider_pgetl.replication.source.catalog import Publication, PublishedTable
from airflow_provider_pgetl.replication.source.connection import Connection, source_errors
from airflow_provider_pgetl.replication.source.findings import Finding, Severity, quoted

_OVERFLOWING = frozenset({Kind.DECIMAL, Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMP_NTZ, Kind.ARRAY})
_LISTS_SINCE = 150000
# From here on Postgres refuses updates under REPLICA IDENTITY FULL if a generated column is not published.
_GENERATED_CHECKED_SINCE = 180000

# Postgres uses an index as replica identity only if it is valid and not deferrable.
_RELATIONS = """
with recursive tree (root, oid) as (
    select o, o from unnest(%s::oid[]) o
  union all
    select t.root, i.inhrelid
    from tree t
    join pg_inherits i on i.inhparent = t.oid
    join pg_class c on c.oid = i.inhrelid and c.relispartition
)
select t.root::int8 as root, c.oid::int8 as oid, n.nspname as schema, c.relname as name, c.relkind::text as kind,
       c.relreplident::text as identity, c.relpersistence = 'u' as unlogged,
       has_table_privilege(c.oid, 'select') as readable, has_schema_privilege(n.oid, 'usage') as reachable,
       row_security_active(c.oid) as row_security,
       exists (select from pg_index i where i.indrelid = c.oid and i.indisprimary) as has_primary_key,
       array(select a.attname::text
             from pg_index i
             cross join lateral unnest(i.indkey::int2[]) with ordinality k (attnum, position)
             join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum
             where i.indrelid = c.oid and i.indisvalid and i.indimmediate and k.position <= i.indnkeyatts
               and case c.relreplident when 'i' then i.indisreplident when 'd' then i.indisprimary else false end
             order by k.position) as identity_columns,
       array(select a.attname::text from pg_attribute a
             where a.attrelid = c.oid and a.attgenerated <> '' and not a.attisdropped
             order by a.attnum) as generated
from tree t
join pg_class c on c.oid = t.oid
join pg_namespace n on n.oid = c.relnamespace
where c.relkind <> 'p' or t.oid = t.root
order by t.root, t.oid <> t.root, n.nspname, c.relname
"""

# Whether a table has a column list, and which columns its row filter reads (attribute numbers in the stored tree).
_ENTRIES = """
select r.prrelid::int8 as oid, r.prattrs is not null as listed,
       array(select a.attname::text from pg_attribute a
             where a.attrelid = r.prrelid
               and a.attnum in (select m[1]::int from regexp_matches(r.prqual::text, ':varattno (\\d+)', 'g') m)
             order by a.attnum) as filtered
from pg_publication_rel r where r.prpubid = %s
"""


@dataclass(frozen=True, slots=True)
class _Fault:
    """What is wrong with a relation; ``{table}`` in the hint is its quoted name."""

    severity: Severity
    what: str
    hint: str


@dataclass(frozen=True, slots=True)
class _Scene:
    """A published table with what its checks need to know."""

    table: PublishedTable
    publication: str
    changing: tuple[str, ...]
    listed: bool
    filtered: frozenset[str]
    generated_checked: bool

    @property
    def name(self) -> TableName:
        return self.table.schema.table

    @property
    def columns(self) -> frozenset[str]:
        return frozenset(column.name for column in self.table.schema.columns)


def check_tables(
    connection: Connection, name: str, publication: Publication, tables: Sequence[PublishedTable]
) -> Iterator[Finding]:
    """All that is worth saying about each table."""
    relations = _relations(connection, [table.schema.relation_id for table in tables])
    entries = _entries(connection, publication)
    changing = tuple(sorted(publication.actions & {"update", "delete"}))
    for table in tables:
        entry = entries.get(table.schema.relation_id, {})
        scene = _Scene(
            table=table,
            publication=name,
            changing=changing,
            listed=entry.get("listed", False),
            filtered=frozenset(entry.get("filtered", ())),
            generated_checked=connection.info.server_version >= _GENERATED_CHECKED_SINCE,
        )
        yield from _table(scene, relations.get(table.schema.relation_id, []))


def _relations(connection: Connection, oids: list[int]) -> dict[int, list[dict[str, Any]]]:
    found: dict[int, list[dict[str, Any]]] = {}
    with source_errors(), connection.cursor(row_factory=dict_row) as cursor:
        for row in cursor.execute(_RELATIONS, (oids,)).fetchall():
            found.setdefault(row["root"], []).append(row)
    return found


def _entries(connection: Connection, publication: Publication) -> dict[int, dict[str, Any]]:
    if connection.info.server_version < _LISTS_SINCE:
        return {}
    with source_errors(), connection.cursor(row_factory=dict_row) as cursor:
        return {row["oid"]: row for row in cursor.execute(_ENTRIES, (publication.oid,)).fetchall()}


def _table(scene: _Scene, relations: list[dict[str, Any]]) -> Iterator[Finding]:
    if not scene.columns:
        yield Finding(
            Severity.ERROR,
            f"{scene.name} publishes no columns",
            f"alter publication {quoted(scene.publication)} drop table {quoted(scene.name)}",
        )
        return
    yield from _grouped(scene, relations)
    generated = [name for name in (relations[0]["generated"] if relations else ()) if name not in scene.columns]
    if generated:
        yield Finding(
            Severity.WARNING,
            f"generated columns of {scene.name} are not mirrored: {', '.join(generated)}",
            "Compute them from the others where you read.",
        )
    schema = scene.table.schema
    if scene.changing and schema.identity is Identity.FULL and not schema.key:
        yield Finding(
            Severity.INFO,
            f"{scene.name} has no key: its updates and deletes are matched by the whole row",
            "Nothing to do; a primary key would make it cheaper.",
        )
    overflowing = [column.name for column in schema.columns if lake_type(column).kind in _OVERFLOWING]
    if overflowing:
        yield Finding(
            Severity.INFO,
            f"{scene.name}: values past the lake's range would go to _pgetl_overflow: {', '.join(overflowing)}",
            "Nothing to do.",
        )


def _grouped(scene: _Scene, relations: list[dict[str, Any]]) -> Iterator[Finding]:
    """One finding for each kind of fault, however many leaves have it."""
    found: dict[_Fault, list[TableName]] = {}
    for relation in relations:
        for fault in _faults(scene, relation, relations[0]):
            found.setdefault(fault, []).append(TableName(relation["schema"], relation["name"]))
    for fault, (first, *others) in found.items():
        more = f" (like {len(others)} more of {scene.name})" if others else ""
        hint = fault.hint.replace("{table}", quoted(first))
        yield Finding(fault.severity, f"{first}{more} {fault.what}", hint)


def _faults(scene: _Scene, relation: dict[str, Any], root: dict[str, Any]) -> Iterator[_Fault]:
    if not relation["reachable"]:
        schema = quoted(relation["schema"])
        yield _Fault(
            Severity.ERROR, "is in a schema that the role may not use", f"grant usage on schema {schema} to ..."
        )
    if not relation["readable"]:
        yield _Fault(Severity.ERROR, "may not be read by the role", "grant select on {table} to ...")
    if relation["kind"] == "f":
        yield _Fault(
            Severity.ERROR,
            "is a foreign table: its rows are elsewhere, its changes in no WAL",
            "Detach it, or publish the other partitions one by one.",
        )
        return
    if relation["unlogged"]:
        yield _Fault(Severity.ERROR, "is unlogged: its changes are in no WAL", "alter table {table} set logged")
    if relation["row_security"]:
        yield _Fault(
            Severity.WARNING,
            "has row-level security: a copy sees only the role's rows, the stream sees all",
            "Give the role BYPASSRLS.",
        )
    if scene.changing:
        own = list(_identity(scene, relation))
        yield from own or _promise(scene, relation, root)


def _identity(scene: _Scene, relation: dict[str, Any]) -> Iterator[_Fault]:
    """Postgres refuses updates and deletes of a table that is published without a usable replica identity."""
    sent = " and ".join(f"{action}s" for action in scene.changing)
    if relation["identity"] == "n":
        yield _Fault(
            Severity.ERROR,
            f"has REPLICA IDENTITY NOTHING: Postgres refuses its {sent}",
            "alter table {table} replica identity default",
        )
    elif relation["identity"] == "f":
        yield from _full(scene, relation)
    elif not relation["identity_columns"]:
        yield _Fault(Severity.ERROR, f"{_lacking(relation)}, and the publication sends its {sent}", _KEY_HINT)
    else:
        yield from _left_out(scene, relation)


_KEY_HINT = "Give it a primary key, or: alter table {table} replica identity full; or take it out of the publication."


def _lacking(relation: dict[str, Any]) -> str:
    if relation["identity"] == "i":
        return "has REPLICA IDENTITY USING INDEX, but that index is gone"
    if relation["has_primary_key"]:
        return "has a deferrable primary key, which is no replica identity"
    return "has no key"


def _full(scene: _Scene, relation: dict[str, Any]) -> Iterator[_Fault]:
    unpublished = [name for name in relation["generated"] if name not in scene.columns]
    if scene.listed:
        yield _Fault(
            Severity.ERROR,
            "has REPLICA IDENTITY FULL and a column list: Postgres refuses its updates",
            "Publish all columns, or: alter table {table} replica identity default",
        )
    elif unpublished and scene.generated_checked:
        yield _Fault(
            Severity.ERROR,
            f"has REPLICA IDENTITY FULL and unpublished generated columns ({', '.join(unpublished)}):"
            " Postgres refuses its updates",
            "alter table {table} replica identity default",
        )


def _left_out(scene: _Scene, relation: dict[str, Any]) -> Iterator[_Fault]:
    identity = relation["identity_columns"]
    missing = [name for name in identity if name not in scene.columns]
    if generated := [name for name in missing if name in relation["generated"]]:
        yield _Fault(
            Severity.ERROR,
            f"has generated columns in its replica identity, which are not sent: {', '.join(generated)}",
            "Choose another replica identity: alter table {table} replica identity using index ...",
        )
    elif missing:
        yield _Fault(
            Severity.ERROR,
            f"has columns in its replica identity that the column list leaves out: {', '.join(missing)};"
            " Postgres refuses its updates",
            f"Add them to the list: alter publication {quoted(scene.publication)} set table ...",
        )
    if unknown := sorted(scene.filtered - set(identity)):
        yield _Fault(
            Severity.ERROR,
            f"has a row filter on columns that are not in its replica identity: {', '.join(unknown)};"
            " Postgres refuses its updates",
            "Filter by columns of the key, or: alter table {table} replica identity full",
        )


def _promise(scene: _Scene, relation: dict[str, Any], root: dict[str, Any]) -> Iterator[_Fault]:
    """A leaf sends its own replica identity under the name of the root, which may promise more."""
    if relation["identity"] == "f":
        return
    schema = scene.table.schema
    needed = {column.name for column in schema.key} or scene.columns
    missing = sorted(needed - set(relation["identity_columns"]))
    if missing:
        yield _Fault(
            Severity.ERROR,
            f"does not send the key of {scene.name} with its updates: {', '.join(missing)}",
            "alter table {table} replica identity full, or the same as that of the root",
        )
    elif root["identity"] == "f":
        yield _Fault(
            Severity.WARNING,
            f"sends only its key as the old row, while {scene.name} has REPLICA IDENTITY FULL",
            "alter table {table} replica identity full",
        )
