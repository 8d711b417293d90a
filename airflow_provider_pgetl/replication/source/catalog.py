"""The source's catalog as schema values: what is published, and in which shape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from psycopg.rows import TupleRow, dict_row

from airflow_provider_pgetl.replication.errors import SourceError
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.schema import Column, Identity, TableName, TableSchema
from airflow_provider_pgetl.replication.source.connection import Connection, source_errors

_IDENTITIES = {"d": Identity.DEFAULT, "n": Identity.NOTHING, "f": Identity.FULL, "i": Identity.INDEX}
# Row filters and column lists came with 15; before, everything of a published table travels.
_FILTERS_SINCE = 150000
_GENERATED_SINCE = 180000


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
where p.pubname = %(publication)s and (%(relation)s::oid is null or c.oid = %(relation)s::oid)
order by n.nspname, c.relname
"""
# Names of types and in expressions print the same under every role, and as the DDL trigger prints them.
SEARCH_PATH = "pg_catalog, pg_temp"

_LISTED = """
select a.attname::text
from pg_publication p
join pg_publication_rel r on r.prpubid = p.oid
join pg_attribute a on a.attrelid = r.prrelid and a.attnum = any(r.prattrs::int2[])
where p.pubname = %s and r.prrelid = %s
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

_COLUMNS = """
{base}, key as (
    select i.indrelid, k.attnum, k.position
    from pg_index i
    join pg_class c on c.oid = i.indrelid
    cross join lateral unnest(i.indkey::int2[]) with ordinality as k (attnum, position)
    where i.indrelid = any({relations}::oid[]) and k.position <= i.indnkeyatts
      -- As Postgres sees it, a deferrable key is none: it may be hurt in the middle of a transaction.
      and case when c.relreplident = 'i' then i.indisreplident else i.indisprimary and i.indimmediate end
), part (root, relid) as (
    select c.oid, i.inhrelid from pg_class c join pg_inherits i on i.inhparent = c.oid
    where c.oid = any({relations}::oid[]) and c.relkind = 'p'
  union all
    select p.root, i.inhrelid from part p join pg_inherits i on i.inhparent = p.relid
)
select a.attrelid::int8 as relation_id, a.attname::text as name, a.attnum::int4 as attnum,
       a.atttypid::int8 as type_oid, b.typ::int8 as base_oid,
       case when b.typ <> a.atttypid then b.typmod else a.atttypmod end as typmod, a.atttypmod as typmod_sent,
       {element} as element_oid, format_type(a.atttypid, a.atttypmod) as type_name,
       not a.attnotnull as nullable, k.position::int4 as key,
       c.relreplident = 'f' or (c.relreplident <> 'n' and k.position is not null) as identity,
       a.attlen = -1 and a.attstorage <> 'p' as toastable,
       coalesce(pg_get_expr(d.adbin, d.adrelid), case when a.attidentity <> '' then 'identity' end) as "default",
       -- One element, printed as its type prints it. The root of partitions keeps none; its leaves do.
       case when a.atthasmissing then array_to_string(a.attmissingval, '')
            when c.relkind = 'p' then (
                select array_to_string(m.attmissingval, '')
                from part p join pg_attribute m on m.attrelid = p.relid
                where p.root = a.attrelid and m.attname = a.attname and m.atthasmissing and not m.attisdropped
                limit 1)
       end as missing
from pg_attribute a
join pg_class c on c.oid = a.attrelid
join base b on b.oid = a.atttypid
join pg_type u on u.oid = b.typ
left join pg_type e on e.oid = u.typelem
left join key k on k.indrelid = a.attrelid and k.attnum = a.attnum
left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
where a.attrelid = any({relations}::oid[]) and a.attnum > 0 and not a.attisdropped {which}
order by a.attrelid, a.attnum
"""


def columns_query(relations: str, *, generated: bool = False) -> str:
    """The columns of the tables in the SQL expression ``relations``: their id, then the fields of ``Column``."""
    which = "" if generated else "and a.attgenerated = ''"
    return _COLUMNS.format(base=_BASE, element=_ELEMENT.strip(), relations=relations, which=which)


def server(connection: Connection) -> Server:
    """Identity, timeline and write position of the server."""
    with source_errors():
        row = connection.execute(
            # The control file names the timeline of the last checkpoint: after a promotion that is the old one.
            "select s.system_identifier::text,"
            " case when pg_is_in_recovery() then c.timeline_id"
            " else ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int end,"
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
    return _published_tables(connection, name, None)


def describe(connection: Connection, name: str, relation_id: int) -> PublishedTable | None:
    """One published table by its relation id; None if it is not published (any more)."""
    found = _published_tables(connection, name, relation_id)
    return found[0] if found else None


def columns(connection: Connection, relation_ids: Sequence[int], *, generated: bool = False) -> dict[int, list[Column]]:
    """The columns of these tables, published or not; generated ones only if asked for."""
    found: dict[int, list[Column]] = {}
    with source_errors(), _plain_names(connection), connection.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(
            columns_query("%(relations)s", generated=generated), {"relations": list(relation_ids)}
        ).fetchall()
    for row in rows:
        found.setdefault(row.pop("relation_id"), []).append(Column(**row))
    return found


def column_list(connection: Connection, name: str, relation_id: int) -> frozenset[str] | None:
    """The names of the columns that the publication lists for the table; None if it lists none and sends all."""
    if connection.info.server_version < _FILTERS_SINCE:
        return None
    with source_errors():
        rows = connection.execute(_LISTED, (name, relation_id)).fetchall()
    return frozenset(row[0] for row in rows) or None


def sends_generated(connection: Connection, name: str) -> bool:
    """Whether the publication sends stored generated columns without naming them; possible since 18."""
    if connection.info.server_version < _GENERATED_SINCE:
        return False
    with source_errors():
        row = connection.execute("select pubgencols = 's' from pg_publication where pubname = %s", (name,)).fetchone()
    return bool(row and row[0])


def types(connection: Connection, oids: Sequence[int]) -> dict[int, BaseType]:
    """What these types rest on; a dropped type is missing from the answer."""
    with source_errors():
        rows = connection.execute(_TYPES, (list(oids),)).fetchall()
    return {row[0]: BaseType(*row[1:]) for row in rows}


def _published_tables(connection: Connection, name: str, relation_id: int | None) -> list[PublishedTable]:
    filters = connection.info.server_version >= _FILTERS_SINCE
    query = _TABLES.format(
        attnames="p.attnames::text[]" if filters else "null::text[]",
        rowfilter="p.rowfilter" if filters else "null",
    )
    with source_errors():
        rows = connection.execute(query, {"publication": name, "relation": relation_id}).fetchall()
    # Since 18 a publication may send generated columns, and its list of names tells; before, it lists them in vain.
    generated = connection.info.server_version >= _GENERATED_SINCE
    found = columns(connection, [row[0] for row in rows], generated=generated) if rows else {}
    return [_published(row, found.get(row[0], [])) for row in rows]


@contextmanager
def _plain_names(connection: Connection) -> Iterator[None]:
    """The search path for a moment; in a transaction, so that nothing of it stays, whatever happens."""
    with connection.transaction():
        row = connection.execute("select current_setting('search_path')").fetchone()
        assert row is not None
        connection.execute("select set_config('search_path', %s, true)", (SEARCH_PATH,))
        yield
        connection.execute("select set_config('search_path', %s, true)", row)


def _published(row: TupleRow, columns: Sequence[Column]) -> PublishedTable:
    relation_id, schema, name, identity, kind, filenode, attnames, row_filter = row
    chosen = tuple(column for column in columns if attnames is None or column.name in attnames)
    schema_now = TableSchema(relation_id, TableName(schema, name), chosen, _IDENTITIES[identity])
    return PublishedTable(schema_now, row_filter, kind, filenode)
