"""The source's catalog as schema values: what is published, and in which shape."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_pgetl.replication.errors import SourceError
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.schema import Column, Identity, TableName, TableSchema
from airflow_provider_pgetl.replication.source.connection import Connection, source_errors

_IDENTITIES = {"d": Identity.DEFAULT, "n": Identity.NOTHING, "f": Identity.FULL, "i": Identity.INDEX}
# Row filters and column lists came with 15; before, everything of a published table travels.
_FILTERS_SINCE = 150000


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table of the publication, with what it shows of itself."""

    schema: TableSchema
    row_filter: str | None
    kind: str
    filenode: int | None


@dataclass(frozen=True, slots=True)
class Publication:
    """A publication: which actions it sends."""

    oid: int
    actions: frozenset[str]
    via_root: bool


@dataclass(frozen=True, slots=True)
class Server:
    """Who the source is, to tell a restart from a failover."""

    system_identifier: str
    timeline: int
    position: Lsn
    version: int


@dataclass(frozen=True, slots=True)
class BaseType:
    """What a type rests on."""

    oid: int
    typmod: int
    element_oid: int
    name: str
    toastable: bool


# A type that was dropped since: its values are kept as the text that they came as.
UNKNOWN_TYPE = BaseType(0, -1, 0, "unknown", True)

_PUBLICATION = """
select oid::int8, pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot from pg_publication where pubname = %s
"""

_TABLES = """
select c.oid::int8, n.nspname, c.relname, c.relreplident::text, c.relkind::text,
       pg_relation_filenode(c.oid)::int8, {attnames}, {rowfilter}
from pg_publication_tables p
join pg_namespace n on n.nspname = p.schemaname
join pg_class c on c.relnamespace = n.oid and c.relname = p.tablename
where p.pubname = %s
order by n.nspname, c.relname
"""

# A domain's type and modifier are those of what it rests on, however deep.
_BASE = """
with recursive base (oid, typ, typmod) as (
    select t.oid, t.oid, -1 from pg_type t where t.typtype <> 'd'
  union all
    select t.oid, b.typ, case when t.typtypmod >= 0 then t.typtypmod else b.typmod end
    from pg_type t join base b on b.oid = t.typbasetype where t.typtype = 'd'
)
"""
# int2vector and oidvector (22, 30) are arrays that print without braces; box[] separates by semicolons.
_ELEMENT = """
case when u.typcategory = 'A' and u.typlen = -1 and e.typdelim = ',' and u.oid not in (22, 30)
     then u.typelem else 0 end::int8
"""

_TYPES = f"""
{_BASE}
select b.oid::int8, b.typ::int8, b.typmod, {_ELEMENT}, format_type(b.oid, null), u.typlen = -1
from base b join pg_type u on u.oid = b.typ left join pg_type e on e.oid = u.typelem
where b.oid = any(%s::oid[])
"""  # noqa: S608 - put together from constants

_COLUMNS = f"""
{_BASE}, key as (
    select i.indrelid, k.attnum, k.position
    from pg_index i
    join pg_class c on c.oid = i.indrelid
    cross join lateral unnest(i.indkey::int2[]) with ordinality as k (attnum, position)
    where k.position <= i.indnkeyatts
      and case when c.relreplident = 'i' then i.indisreplident else i.indisprimary end
)
select a.attrelid::int8, a.attname, a.attnum::int4, a.atttypid::int8, b.typ::int8,
       case when b.typ <> a.atttypid then b.typmod else a.atttypmod end, a.atttypmod,
       {_ELEMENT},
       format_type(a.atttypid, a.atttypmod), not a.attnotnull, k.position::int4,
       a.attlen = -1 and a.attstorage <> 'p'
from pg_attribute a
join base b on b.oid = a.atttypid
join pg_type u on u.oid = b.typ
left join pg_type e on e.oid = u.typelem
left join key k on k.indrelid = a.attrelid and k.attnum = a.attnum
where a.attrelid = any(%s::oid[]) and a.attnum > 0 and not a.attisdropped and a.attgenerated = ''
order by a.attrelid, a.attnum
"""  # noqa: S608 - put together from constants


def server(connection: Connection) -> Server:
    """Identity, timeline and write position of the server."""
    with source_errors():
        row = connection.execute(
            "select s.system_identifier::text, c.timeline_id,"
            " case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_lsn() end::text"
            " from pg_control_system() s, pg_control_checkpoint() c"
        ).fetchone()
    assert row is not None
    return Server(row[0], row[1], Lsn.parse(row[2]), connection.info.server_version)


def current_lsn(connection: Connection) -> Lsn:
    """Where the source writes now."""
    with source_errors():
        row = connection.execute(
            "select case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_lsn() end::text"
        ).fetchone()
    assert row is not None
    return Lsn.parse(row[0])


def publication(connection: Connection, name: str) -> Publication:
    """The publication, or a clear error."""
    with source_errors():
        row = connection.execute(_PUBLICATION, (name,)).fetchone()
    if row is None:
        raise SourceError(
            f"there is no publication {name!r} in database {connection.info.dbname!r}",
            hint=f'Create it: create publication "{name}" for table ...',
        )
    oid, *flags, via_root = row
    names = ("insert", "update", "delete", "truncate")
    return Publication(oid, frozenset(n for n, on in zip(names, flags, strict=True) if on), via_root)


def published_tables(connection: Connection, name: str) -> list[PublishedTable]:
    """Every table that the publication sends under its own name (the root, with publish_via_partition_root)."""
    filters = connection.info.server_version >= _FILTERS_SINCE
    query = _TABLES.format(
        attnames="p.attnames::text[]" if filters else "null::text[]",
        rowfilter="p.rowfilter" if filters else "null",
    )
    with source_errors():
        rows = connection.execute(query, (name,)).fetchall()
    columns = _columns(connection, [row[0] for row in rows])
    return [_published(row, columns.get(row[0], [])) for row in rows]


def describe(connection: Connection, name: str, relation_id: int) -> PublishedTable | None:
    """One published table by its relation id; None if it is not published (any more)."""
    for table in published_tables(connection, name):
        if table.schema.relation_id == relation_id:
            return table
    return None


def types(connection: Connection, oids: Sequence[int]) -> dict[int, BaseType]:
    """What these types rest on; a dropped type is missing from the answer."""
    with source_errors():
        rows = connection.execute(_TYPES, (list(oids),)).fetchall()
    return {row[0]: BaseType(*row[1:]) for row in rows}


def _columns(connection: Connection, relation_ids: Sequence[int]) -> dict[int, list[tuple[Any, ...]]]:
    found: dict[int, list[tuple[Any, ...]]] = {}
    with source_errors():
        for row in connection.execute(_COLUMNS, (list(relation_ids),)).fetchall():
            found.setdefault(row[0], []).append(row[1:])
    return found


def _published(row: tuple[Any, ...], columns: Iterable[tuple[Any, ...]]) -> PublishedTable:
    relation_id, schema, name, identity, kind, filenode, attnames, row_filter = row
    chosen = [column for column in columns if attnames is None or column[0] in attnames]
    replica_identity = _IDENTITIES[identity]
    return PublishedTable(
        TableSchema(
            relation_id,
            TableName(schema, name),
            tuple(_column(column, replica_identity) for column in chosen),
            replica_identity,
        ),
        row_filter,
        kind,
        filenode,
    )


def _column(row: tuple[Any, ...], identity: Identity) -> Column:
    name, attnum, type_oid, base_oid, typmod, sent, element, type_name, nullable, key, toastable = row
    return Column(
        name=name,
        attnum=attnum,
        type_oid=type_oid,
        base_oid=base_oid,
        typmod=typmod,
        typmod_sent=sent,
        element_oid=element,
        type_name=type_name,
        nullable=nullable,
        key=key,
        identity=identity is Identity.FULL or (identity is not Identity.NOTHING and key is not None),
        toastable=toastable,
    )
