# ruff: noqa: S608 - SQL text is what this module makes; names and literals pass through sql.py
"""SQL text that folds the pending changes of a table: the last operation per key wins.

    view      the spool files of the changes
    events    changes of the window, after its last TRUNCATE, by the key they touch: a key-changing update is a put
              of the new key and a delete ('d') of the old one. Columns are called c0, c1, ... from here on, so that
              no name of a user's column meets one of ours.
    rows      one row per key: its last event ``r``; for values that may not travel (TOAST), the last that did: w0, ...
    lake      the lake's rows at the base snapshot that have what never travelled

If a key change and values that did not travel meet in one change, the values belong to the row under its old key,
so lives are told apart: a life of a key begins with an insert or an arrival by key change; life 0 is the lake's row.
``chain`` walks from a life to the one it came from until each value is found, or life 0 is reached.

A value travels as ``struct(v, t)``, value and overflow text, so that "NULL" and "did not travel" differ.
Nothing here talks to Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from airflow_provider_pgetl.lakehouse.pending import Pending
from airflow_provider_pgetl.lakehouse.sql import LakeTable, column, literal, old, text
from airflow_provider_pgetl.replication.batch import lake_column
from airflow_provider_pgetl.replication.pg_types import Kind, lake_type
from airflow_provider_pgetl.replication.schema import Column, TableSchema

MISSING = "pgetl: a row that the changes refer to is not in the lake"

_POSITION = "struct(_commit_lsn, _ordinal)"
_OVERFLOWING = frozenset({Kind.DECIMAL, Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMP_NTZ, Kind.ARRAY})


@dataclass(frozen=True, slots=True)
class Fold:
    """What the text is written for: a table, its pending changes, and where the lake's rows are read.

    ``base`` is the snapshot that the changes go on top of; None for a table that has none.
    """

    schema: TableSchema
    pending: Pending
    view: str
    table: LakeTable
    base: int | None

    @property
    def key(self) -> list[str]:
        """The key columns, by their names here."""
        return [_c(self.schema.columns.index(one)) for one in self.schema.key]

    @property
    def late(self) -> list[tuple[int, Column]]:
        """The columns whose value may not travel, by place; the key always travels."""
        return [(at, one) for at, one in enumerate(self.schema.columns) if one.toastable and one.key is None]


def rows_query(fold: Fold) -> str:
    """The rows to insert, in the table's shape."""
    if fold.pending.insert_only:
        return _inserts(fold)
    if not (fold.pending.unchanged and fold.late):
        return _plain(fold)
    return _moving(fold) if fold.pending.moved_unchanged else _completed(fold)


def delete_statement(fold: Fold, target: str) -> str | None:
    """The statement that takes the rows of touched keys off ``target``; None if none can be there."""
    if fold.pending.insert_only:
        return None
    return f"delete from {target} where {_all([*_bounds(fold), _among(fold, _touched(fold))])}"


def _touched(fold: Fold) -> str:
    window = _window(fold.pending)
    names = ", ".join(_value(one) for one in fold.schema.key)
    query = f"select {names} from {fold.view} where {window} and _op <> 'i'"
    if fold.pending.moved:
        before = ", ".join(old(one) for one in fold.schema.key)
        query += f" union all select {before} from {fold.view} where {window} and {_moved(fold.schema)}"
    return query


def _among(fold: Fold, keys: str) -> str:
    """Whether a row of the lake has one of the keys."""
    names = [column(one) for one in fold.schema.key]
    left = names[0] if len(names) == 1 else f"({', '.join(names)})"
    return f"{left} in ({keys})"


def _bounds(fold: Fold) -> list[str]:
    """Key ranges: files of the lake that hold none of the keys are not read."""
    bounds = []
    for one, found in zip(fold.schema.key, fold.pending.ranges, strict=True):
        for operator, value in zip((">=", "<="), found or (), strict=False):
            bound = literal(value)
            if bound is not None:
                bounds.append(f"{column(one)} {operator} {bound}")
    return bounds


def _window(pending: Pending) -> str:
    window = [f"_commit_lsn >= {int(pending.from_lsn)}", f"_commit_lsn < {int(pending.to_lsn)}", "_op <> 't'"]
    if pending.truncated is not None:
        lsn, ordinal = pending.truncated
        window.append(f"(_commit_lsn > {lsn} or (_commit_lsn = {lsn} and _ordinal > {ordinal}))")
    return _all(window)


def _inserts(fold: Fold) -> str:
    names = ", ".join(column(one) for one in fold.schema.columns)
    ours = "_commit_lsn as _pgetl_lsn, _ordinal as _pgetl_ordinal, _overflow as _pgetl_overflow"
    return f"select {names}, {ours} from {fold.view} where {_window(fold.pending)}"


def _plain(fold: Fold) -> str:
    """Every value travelled: the last event is the row."""
    rows = f"rows as (select {_last_event(fold)} from events group by {_list(fold.key)})"
    return f"with {_events(fold)}, {rows} select {_finished(fold, {}, 'r._overflow')} from rows where r._op <> 'd'"


def _completed(fold: Fold) -> str:
    """Some values did not travel: the last one that did, else the lake's."""
    folded = _list([*fold.key, _last_event(fold), *_last_values(fold)])
    rows = f"rows as (select * from (select {folded} from events group by {_list(fold.key)}) where r._op <> 'd')"
    return (
        f"with {_events(fold)}, {rows}, {_lake(fold, fold.key)} "
        f"select {_finished(fold, _found(fold), _overflow(fold))} "
        f"from rows left join lake on {_equal('rows', fold.key, 'lake', fold.key)}"
    )


def _moving(fold: Fold) -> str:
    """As ``_completed``, but a row may have lived under other keys before."""
    homes = [f"h{place}" for place in range(len(fold.key))]
    return (
        f"with recursive {_events(fold)}, {_lives(fold)}, {_chain(fold, homes)}, "
        f"{_lake(fold, homes, 'home_life = 0')} "
        f"select {_finished(fold, _found(fold), _overflow(fold))} "
        f"from rows left join lake on {_equal('rows', homes, 'lake', fold.key)} and rows.home_life = 0"
    )


def _lives(fold: Fold) -> str:
    """Lives of keys with what travelled in each; where each began and, if by key change, ended."""
    key = _list(fold.key)
    life = (
        f"sum(if(_op = 'i' or arrived, 1, 0)) over (partition by {key} order by _commit_lsn, _ordinal "
        "rows between unbounded preceding and current row)"
    )
    folded = _list([key, "life", _last_event(fold), *_last_values(fold)])
    newest = f"life = max(life) over (partition by {key})"
    return (
        f"timeline as (select *, {life} as life from events), "
        f"lives as (select {folded}, max({_POSITION}) filter (where arrived) as born "
        f"from timeline group by {key}, life), "
        # The end of one life stands at the very position where the next began, under another key.
        f"departures as (select {key}, life, {_POSITION} as place from timeline where departed), "
        f"living as (select * from (select *, {newest} as newest from lives) where newest and r._op <> 'd')"
    )


def _chain(fold: Fold, homes: Sequence[str]) -> str:
    key, values = fold.key, _w(fold)
    unfound = " or ".join(f"c.{value} is null" for value in values)
    home = [f"{name} as {there}" for name, there in zip(key, homes, strict=True)]
    first = _list([*key, *values, *home, "life as home_life", "born", "0 as depth"])
    step = _list(
        [
            *(f"c.{name}" for name in key),
            *(f"coalesce(c.{value}, p.{value})" for value in values),
            *(f"p.{name}" for name in key),
            "p.life, p.born, c.depth + 1",
        ]
    )
    reached = [*homes, "home_life", *values]
    return (
        f"chain as (select {first} from living union all select {step} from chain c "
        f"join departures d on d.place = c.born "
        f"join lives p on {_equal('p', key, 'd', key)} and p.life = d.life where {unfound}), "
        f"ends as (select {_list(key)}, max_by(struct({_list(reached)}), depth) as e "
        f"from chain group by {_list(key)}), "
        f"rows as (select living.r, {_list(f'ends.e.{name} as {name}' for name in reached)} "
        f"from living join ends on {_equal('living', key, 'ends', key)})"
    )


def _events(fold: Fold) -> str:
    """Changes by the key that they touch."""
    window, columns = _window(fold.pending), fold.schema.columns
    values = [f"{_value(one)} as {_c(at)}" for at, one in enumerate(columns)]
    place = "_commit_lsn, _ordinal"
    arrived = _moved(fold.schema) if fold.pending.moved else "false"
    query = (
        f"events as (select _op, {place}, _unchanged, _overflow, {_list(values)}, "
        f"{arrived} as arrived, false as departed from {fold.view} where {window}"
    )
    if fold.pending.moved:
        before = [old(one) if one.key else f"cast(null as {lake_type(one).sql})" for one in columns]
        query += (
            f" union all select 'd', {place}, null, null, {_list(before)}, false, true "
            f"from {fold.view} where {window} and {_moved(fold.schema)}"
        )
    return query + ")"


def _last_event(fold: Fold) -> str:
    columns = [_c(at) for at in range(len(fold.schema.columns))]
    return f"max_by(struct({_list(['_op', '_commit_lsn', '_ordinal', '_overflow', *columns])}), {_POSITION}) as r"


def _last_values(fold: Fold) -> list[str]:
    """For each column that may not travel, the last value that did."""
    found = []
    for name, (at, one) in zip(_w(fold), fold.late, strict=True):
        overflow = f"_overflow[{_name(one)}]" if _overflows(one) else "cast(null as string)"
        value = f"max_by(named_struct('v', {_c(at)}, 't', {overflow}), {_POSITION})"
        found.append(f"{value} filter (where _op <> 'd' and not {_stayed(one)}) as {name}")
    return found


def _value(one: Column) -> str:
    """The column's value; of a key so long that it is TOASTed, only the old one travelled, and it is the same."""
    if one.key is None or not (one.toastable and one.identity):
        return column(one)
    return f"if({_stayed(one)}, {old(one)}, {column(one)})"


def _moved(schema: TableSchema) -> str:
    same = _all(f"{old(one)} <=> {_value(one)}" for one in schema.key)
    return f"(_op = 'u' and _old is not null and not ({same}))"


def _stayed(one: Column) -> str:
    """Whether the value did not travel."""
    return f"coalesce(array_contains(_unchanged, {_name(one)}), false)"


def _lake(fold: Fold, key: Sequence[str], *conditions: str) -> str:
    """The lake's rows that are needed, read at the base snapshot: on the branch they are deleted by then."""
    unfound = " or ".join(f"{value} is null" for value in _w(fold))
    wanted = f"select {_list(key)} from rows where {_all([f'({unfound})', *conditions])}"
    names = [f"{column(one)} as {name}" for one, name in zip(fold.schema.key, fold.key, strict=True)]
    names += [f"{column(one)} as {_c(at)}" for at, one in fold.late]
    source, where = fold.table.sql, "false"
    if fold.base is not None and fold.pending.truncated is None:
        source, where = fold.table.at(fold.base), _all([*_bounds(fold), _among(fold, wanted)])
    return f"lake as (select {_list(names)}, _pgetl_overflow, true as present from {source} where {where})"


def _found(fold: Fold) -> dict[int, str]:
    """For each column that may not travel: what did, else the lake's, else an error. Never a silent NULL."""
    return {
        at: (
            f"case when rows.{name} is not null then rows.{name}.v "
            f"when lake.present then lake.{_c(at)} else raise_error({text(MISSING)}) end"
        )
        for name, (at, _) in zip(_w(fold), fold.late, strict=True)
    }


def _overflow(fold: Fold) -> str:
    """The overflow texts: the last event's; of values that did not travel with it, their own."""
    late = [(name, _name(one)) for name, (_, one) in zip(_w(fold), fold.late, strict=True) if _overflows(one)]
    if not late:
        return "r._overflow"
    names = _list(name for _, name in late)
    event = f"map_filter(r._overflow, (k, v) -> k not in ({names}))"
    entries = _list(
        f"struct({name} as k, if(rows.{value} is null, lake._pgetl_overflow[{name}], rows.{value}.t) as v)"
        for value, name in late
    )
    own = f"map_from_entries(filter(array({entries}), e -> e.v is not null))"
    both = f"map_concat(coalesce({event}, cast(map() as map<string,string>)), {own})"
    return f"if(cardinality({both}) = 0, null, {both})"


def _finished(fold: Fold, found: dict[int, str], overflow: str) -> str:
    """The columns under their own names again, then ours."""
    values = [f"{found.get(at, f'r.{_c(at)}')} as {column(one)}" for at, one in enumerate(fold.schema.columns)]
    ours = ["r._commit_lsn as _pgetl_lsn", "r._ordinal as _pgetl_ordinal", f"{overflow} as _pgetl_overflow"]
    return _list([*values, *ours])


def _overflows(one: Column) -> bool:
    return lake_type(one).kind in _OVERFLOWING


def _name(one: Column) -> str:
    return text(lake_column(one.name))


def _c(place: int) -> str:
    return f"c{place}"


def _w(fold: Fold) -> list[str]:
    return [f"w{place}" for place in range(len(fold.late))]


def _equal(one: str, names: Sequence[str], other: str, others: Sequence[str]) -> str:
    return _all(f"{one}.{left} = {other}.{right}" for left, right in zip(names, others, strict=True))


def _list(parts: Iterable[str]) -> str:
    return ", ".join(parts)


def _all(conditions: Iterable[str]) -> str:
    return " and ".join(conditions)
