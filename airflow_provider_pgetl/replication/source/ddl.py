"""DDL capture: event triggers on the source that write a table's new shape into the stream (``replication.ddl``).

They live in a schema of their own, are shared by all pipelines of the database, and never make the user's DDL fail.

    table_rewrite     remembers, until the end of the command, which tables get new values
    ddl_command_end   writes one message for each published table that the command may have changed:
                      the table itself, its partitions and children, its ancestors
    sql_drop          the same for columns and identity indexes that fall with something else (DROP TYPE ... CASCADE)

``set pgetl.skip_ddl_log = 'on'`` silences them. They look into catalogs only and take no locks: two sessions that
change two tables must not wait for each other because of us.
"""

# ruff: noqa: S608 - all SQL here is put together from constants

from __future__ import annotations

from dataclasses import dataclass

import psycopg

from airflow_provider_pgetl.replication.config import DdlCapture
from airflow_provider_pgetl.replication.ddl import FORMAT, PREFIX
from airflow_provider_pgetl.replication.errors import SourceError
from airflow_provider_pgetl.replication.source.catalog import SEARCH_PATH, columns_query
from airflow_provider_pgetl.replication.source.connection import Connection, source_errors

__all__ = ["PREFIX", "SCHEMA", "VERSION", "Captured", "ensure", "install", "installed", "script", "uninstall"]

SCHEMA = "pgetl_source"
# To be raised with every change below; a newer one that somebody else installed is left alone.
VERSION = 1
_COMMENT = "pgetl: DDL capture, version "
_TRIGGERS = ("pgetl_ddl_rewrite", "pgetl_ddl_end", "pgetl_ddl_drop")

_HINT = (
    "Event triggers need a superuser (or the cloud's equivalent). Let one run `pgetl ddl install` once, "
    "or set ddl_capture to 'off': schema changes are then found by the Relation messages and the catalog."
)


@dataclass(frozen=True, slots=True)
class Captured:
    """Whether the source tells of its DDL, and what to say about it."""

    active: bool
    what: str
    hint: str = "Nothing to do."


# Text of values must not depend on who runs the DDL.
_FUNCTION = f"""
language plpgsql security definer
set search_path = {SEARCH_PATH}
set datestyle = 'ISO' set intervalstyle = 'postgres' set timezone = 'UTC'
set extra_float_digits = '3' set bytea_output = 'hex'
"""

# Which publications hold what by name. The branch is parsed when it is first run: 14 lacks the catalog.
_ENTRIES = f"""
create or replace function {SCHEMA}.entries()
returns table (publication oid, via_root bool, everything bool, relid oid, namespace oid) {_FUNCTION} as $body$
begin
    return query select p.oid, p.pubviaroot, p.puballtables, r.prrelid, null::oid
        from pg_publication p left join pg_publication_rel r on r.prpubid = p.oid;
    if current_setting('server_version_num')::int >= 150000 then
        return query select p.oid, p.pubviaroot, false, null::oid, n.pnnspid
            from pg_publication p join pg_publication_namespace n on n.pnpubid = p.oid;
    end if;
end
$body$
"""

# As pgoutput does: a table is sent as its topmost published ancestor, or as itself.
_SENT = f"""
create or replace function {SCHEMA}.sent(altered oid[]) returns setof oid {_FUNCTION} as $body$
begin
    return query
    with recursive down (relid) as (
        select unnest(altered)
      union
        select i.inhrelid from pg_inherits i join down d on d.relid = i.inhparent
    ), up (relid) as (
        select d.relid from down d
      union
        select i.inhparent from pg_inherits i join up u on u.relid = i.inhrelid
    ), member as (
        select c.oid as relid, c.relkind, c.relnamespace
        from up u join pg_class c on c.oid = u.relid
        where c.relkind in ('r', 'p') and c.relpersistence = 'p'
    ), above (relid, ancestor) as (
        select m.relid, m.relid from member m
      union
        select a.relid, i.inhparent
        from above a join pg_class c on c.oid = a.ancestor join pg_inherits i on i.inhrelid = c.oid
        where c.relispartition
    ), held as (
        select distinct e.publication, e.via_root, m.relid
        from member m join {SCHEMA}.entries() e
          on e.everything or e.relid = m.relid or e.namespace = m.relnamespace
    )
    select distinct m.relid
    from held h join above a on a.ancestor = h.relid join member m on m.relid = a.relid
    where case when h.via_root
        then m.relid = h.relid and not exists (
            select from above o join held g on g.relid = o.ancestor
            where o.relid = m.relid and o.ancestor <> m.relid and g.publication = h.publication)
        else m.relkind = 'r' end
    order by m.relid;
end
$body$
"""

# A message is ordered by the end of its record, a row by the start of its own. Where the two are one position and one
# of them is in a subtransaction, Postgres may send the row first; a record in between, which nobody decodes, helps.
_LOG = f"""
create or replace function {SCHEMA}.log(altered oid[], own_expression bool) returns void {_FUNCTION} as $body$
declare
    rewritten oid[] := string_to_array(nullif(current_setting('pgetl.rewritten', true), ''), ',')::oid[];
    one record;
    fields json;
begin
    for one in
        select c.oid, n.nspname, c.relname, c.relreplident from {SCHEMA}.sent(altered) s (relid)
        join pg_class c on c.oid = s.relid join pg_namespace n on n.oid = c.relnamespace
        order by c.oid
    loop
        select json_agg(to_jsonb(f) - 'relation_id' order by f.attnum) into fields
        from ({columns_query("array[one.oid]", generated=True)}) f;
        perform pg_logical_emit_message(true, '{PREFIX}', convert_to(json_build_object(
            'format', {FORMAT},
            'relation_id', one.oid::int8,
            'schema', one.nspname,
            'table', one.relname,
            'identity', case one.relreplident
                when 'd' then 'default' when 'i' then 'index' when 'f' then 'full' else 'nothing' end,
            'columns', coalesce(fields, '[]'),
            'generated', array(select a.attname::text from pg_attribute a
                where a.attrelid = one.oid and a.attgenerated <> '' and not a.attisdropped order by a.attnum),
            'rewritten', exists (
                with recursive down (relid) as (
                    select one.oid
                  union
                    select i.inhrelid from pg_inherits i join down d on d.relid = i.inhparent
                    join pg_class c on c.oid = i.inhrelid where c.relispartition
                )
                select from down where relid = any(rewritten)),
            'using', own_expression
        )::text, 'UTF8'));
        perform setval('{SCHEMA}.record', 1);
    end loop;
end
$body$
"""

_WANTED = f"""
create or replace function {SCHEMA}.wanted() returns bool {_FUNCTION} as $body$
begin
    return current_setting('wal_level') = 'logical'
        and coalesce(current_setting('pgetl.skip_ddl_log', true), '') not in ('on', 'true', 'yes', '1')
        and exists (select from pg_publication);
end
$body$
"""

# 2: a default that differs by row, 4: a column's type. Others (persistence, access method) change no value.
_REWRITE = f"""
create or replace function {SCHEMA}.on_rewrite() returns event_trigger {_FUNCTION} as $body$
begin
    if pg_event_trigger_table_rewrite_reason() & 6 <> 0 and {SCHEMA}.wanted() then
        perform set_config('pgetl.rewritten', concat_ws(',',
            nullif(current_setting('pgetl.rewritten', true), ''), pg_event_trigger_table_rewrite_oid()), true);
    end if;
exception when others then
    raise warning 'pgetl could not note a rewrite: %', sqlerrm;
end
$body$
"""

# Whether there is a USING clause only the text of the command tells. Inside a function or a DO block that is in the
# context; where even there no ALTER is to be seen, it can't be told, and the answer is yes.
_END = f"""
create or replace function {SCHEMA}.on_end() returns event_trigger {_FUNCTION} as $body$
declare
    altered oid[];
    context text;
    own_expression bool;
begin
    if not {SCHEMA}.wanted() then
        return;
    end if;
    get diagnostics context = pg_context;
    context := substr(context, nullif(strpos(context, E'\\n'), 0) + 1);
    own_expression := coalesce(current_query(), 'using') ~* '\\yusing\\y'
        or coalesce(context ~* '\\yusing\\y' or context !~* '\\yalter\\y', false);
    with command as (
        select classid, objid from pg_event_trigger_ddl_commands()
    ), touched as (
        select d.objid as relid from command d where d.classid = 'pg_class'::regclass
      union
        select c.oid from command d join pg_class t on t.oid = d.objid and t.relkind = 'c'
        join pg_class c on c.reloftype = t.reltype where d.classid = 'pg_class'::regclass
      union
        select c.oid from command d join pg_class c on c.relnamespace = d.objid
        where d.classid = 'pg_namespace'::regclass
    )
    select array_agg(relid) into altered from touched;
    perform {SCHEMA}.log(altered, own_expression);
    perform set_config('pgetl.rewritten', '', true);
exception when others then
    raise warning 'pgetl could not log a change of a table: %', sqlerrm;
end
$body$
"""

# An ALTER TABLE is logged at its end. An identity index has no table any more: those that miss theirs are logged.
_DROP = f"""
create or replace function {SCHEMA}.on_drop() returns event_trigger {_FUNCTION} as $body$
declare
    altered oid[];
    index_fell bool;
begin
    if tg_tag = 'ALTER TABLE' or not {SCHEMA}.wanted() then
        return;
    end if;
    select array_agg(distinct objid) filter (where object_type = 'table column'),
           coalesce(bool_or(object_type = 'index'), false) and tg_tag <> 'DROP TABLE'
    into altered, index_fell from pg_event_trigger_dropped_objects();
    if index_fell then
        select altered || array_agg(c.oid) into altered from pg_class c
        where c.relreplident = 'i'
          and not exists (select from pg_index i where i.indrelid = c.oid and i.indisreplident);
    end if;
    if altered is null then
        return;
    end if;
    perform {SCHEMA}.log(altered, false);
exception when others then
    raise warning 'pgetl could not log a change of a table: %', sqlerrm;
end
$body$
"""

_TAGS = "'ALTER TABLE', 'ALTER TYPE', 'ALTER SCHEMA', 'ALTER INDEX'"  # ALTER INDEX renames tables, too

_INSTALL = (
    f"create schema if not exists {SCHEMA}",
    f"create sequence if not exists {SCHEMA}.record",
    _ENTRIES,
    _SENT,
    _LOG,
    _WANTED,
    _REWRITE,
    _END,
    _DROP,
    f"revoke all on all functions in schema {SCHEMA} from public",
    *(f"drop event trigger if exists {trigger}" for trigger in _TRIGGERS),
    f"create event trigger pgetl_ddl_rewrite on table_rewrite execute function {SCHEMA}.on_rewrite()",
    f"create event trigger pgetl_ddl_end on ddl_command_end when tag in ({_TAGS}) execute function {SCHEMA}.on_end()",
    f"create event trigger pgetl_ddl_drop on sql_drop execute function {SCHEMA}.on_drop()",
    # Also for a session that applies somebody's changes (session_replication_role).
    *(f"alter event trigger {trigger} enable always" for trigger in _TRIGGERS),
    f"comment on schema {SCHEMA} is '{_COMMENT}{VERSION}'",
)

_STATE = """
select pg_is_in_recovery(),
       (select obj_description(oid, 'pg_namespace') from pg_namespace where nspname = %s),
       (select count(*) from pg_event_trigger where evtname = any(%s) and evtenabled = 'A')
"""


def installed(connection: Connection) -> bool:
    """Whether the triggers are there, in this version or a newer one, and on."""
    with source_errors():
        return _version(connection) >= VERSION


def install(connection: Connection) -> None:
    """Make the triggers, or bring them up to date, in one transaction."""
    with source_errors():
        _install(connection)


def script() -> str:
    """What ``install`` runs, for people who want to read it or to run it by hand."""
    return ";\n".join(("begin", *(statement.strip() for statement in _INSTALL), "commit")) + ";"


def uninstall(connection: Connection) -> None:
    """Remove the triggers and their schema, for all pipelines of the database."""
    with source_errors(), connection.transaction():
        _lock(connection)
        for trigger in _TRIGGERS:
            connection.execute(f"drop event trigger if exists {trigger}".encode())
        connection.execute(f"drop schema if exists {SCHEMA} cascade".encode())


def ensure(connection: Connection, wanted: DdlCapture) -> Captured:
    """Have the triggers as the pipeline wants them; a role that may not make them is an ordinary answer."""
    if wanted is DdlCapture.OFF:
        return Captured(False, "DDL capture is off: schema changes are found by Relation messages and the catalog")
    if installed(connection):
        return Captured(True, "the source tells of its DDL")
    found = _try(connection)
    if not found.active and wanted is DdlCapture.REQUIRED:
        raise SourceError(found.what, hint=found.hint)
    return found


def _try(connection: Connection) -> Captured:
    with source_errors():
        if _state(connection)[0]:
            return Captured(
                False, "the source is a standby: DDL capture can't be installed there", "Install it on the primary."
            )
        try:
            _install(connection)
        except psycopg.errors.InsufficientPrivilege as error:
            said = error.diag.message_primary or "permission denied"
            return Captured(False, f"DDL capture can't be installed: {said}", _HINT)
    return Captured(True, "DDL capture was installed on the source")


def _install(connection: Connection) -> None:
    with connection.transaction():
        _lock(connection)
        if _version(connection) >= VERSION:
            return
        for statement in _INSTALL:
            connection.execute(statement.encode())


def _lock(connection: Connection) -> None:
    """Several pipelines may start at once."""
    connection.execute("select pg_advisory_xact_lock(hashtext(%s))", (SCHEMA,))


def _version(connection: Connection) -> int:
    """The version that is installed and on; 0 if none is."""
    _, comment, triggers = _state(connection)
    number = (comment or "").removeprefix(_COMMENT)
    return int(number) if number.isdigit() and triggers == len(_TRIGGERS) else 0


def _state(connection: Connection) -> tuple[bool, str | None, int]:
    row = connection.execute(_STATE, (SCHEMA, list(_TRIGGERS))).fetchone()
    assert row is not None
    return row[0], row[1], row[2]
