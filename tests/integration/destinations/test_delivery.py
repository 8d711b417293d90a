"""A real source, its spool, and the strict destination in memory at the end: both must agree."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from airflow_provider_pgetl.replication.delivery import Delivery
from airflow_provider_pgetl.replication.destinations.base import Changes
from airflow_provider_pgetl.replication.destinations.memory import MemoryDestination
from airflow_provider_pgetl.replication.errors import DestinationUnreachable
from airflow_provider_pgetl.replication.events import Events
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.progress import TableRecord
from airflow_provider_pgetl.replication.schema import SchemaVersion, TableSchema
from airflow_provider_pgetl.replication.spool.segments import Spool
from airflow_provider_pgetl.replication.table_copy import copy_table
from tests.integration.replication.conftest import Source

END = Lsn(2**62)


class Scene:
    """A source and a destination in memory behind its delivery."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.destination = MemoryDestination()
        spool = Spool(source.config.spool_root, source.config.name, 0)
        self.delivery = Delivery(self.destination, spool, source.conninfo)
        self.at: dict[str, tuple[Lsn, TableSchema]] = {}

    def record(self, table: str) -> TableRecord:
        tables = self.source.store.tables(self.source.config.name)
        return next(record for record in tables if str(record.table) == table)

    def copy(self, table: str) -> None:
        record, store = self.record(table), self.source.store
        result = copy_table(self.source.config, self.source.conninfo, store, self.delivery, record, by="test")
        schema = store.latest_schema(record.pipeline, record.relation_id)
        assert schema is not None
        self.at[table] = (result.lsn, schema)

    def catch_up(self, table: str) -> None:
        """Apply all that is spooled, as the applier would."""
        self.source.spool_all()
        begin, schema = self.at[table]
        pipeline = self.source.store.pipeline(self.source.config.name)
        assert pipeline is not None
        changes = self.changes(table, schema, begin, pipeline.spooled_lsn)
        self.delivery.apply(changes)
        self.at[table] = (pipeline.spooled_lsn, changes.last_schema)

    def changes(self, table: str, schema: TableSchema, begin: Lsn, end: Lsn) -> Changes:
        record, store = self.record(table), self.source.store
        files = store.files(record.pipeline, record.relation_id, begin, end)
        first = {file.schema_version: file.first_lsn for file in reversed(files)}
        versions = []
        for version in sorted(version for version in first if version > schema.version):
            shape = store.schema_version(record.pipeline, record.relation_id, version)
            assert shape is not None
            versions.append(SchemaVersion(first[version], shape))
        return Changes(schema, 1, 1, begin, end, tuple(files), tuple(versions))

    def assert_equal(self, table: str) -> None:
        with psycopg.connect(self.source.conninfo, autocommit=True, options="-c timezone=utc") as connection:
            cursor = connection.execute(f"select * from {table}")
            assert cursor.description is not None
            names = [column.name for column in cursor.description]
            expected = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        found = self.destination.rows(table)
        assert Counter(map(repr, map(sorted_items, found))) == Counter(map(repr, map(sorted_items, expected)))


def sorted_items(row: dict[str, Any]) -> list[tuple[str, Any]]:
    return sorted(row.items())


def prepare(source: Source, *tables: str, extra: Sequence[str] = ()) -> Scene:
    # Discovery refuses tables without key that send updates, because a lake can't take them; rows and events can.
    source.execute(*tables, *extra, "create publication pub for all tables with (publish = insert)")
    source.discover()
    source.execute("alter publication pub set (publish = 'insert, update, delete, truncate')")
    return Scene(source)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_lively_table_with_a_key_stays_equal(source: Source, seed: int) -> None:
    scene = prepare(
        source,
        "create table t (id int primary key, n bigint, body text, at timestamp default '2024-02-29 12:00')",
        extra=["alter table t alter column body set storage external"],
    )
    dice = random.Random(seed)
    source.execute("insert into t select i, i, repeat(md5(i::text), 200) from generate_series(1, 50) i")
    scene.copy("public.t")
    for _ in range(4):
        statements = []
        for _ in range(30):
            one, other = dice.randrange(1, 80), dice.randrange(1, 80)
            statements.append(
                dice.choice(
                    [
                        f"insert into t values ({one}, 0, repeat(md5('{other}'), 300)) on conflict do nothing",
                        f"update t set n = n + 1 where id = {one}",
                        f"update t set n = n + 1 where id between {one} and {one + 5}",
                        f"update t set body = null where id = {one}",
                        f"delete from t where id = {one}",
                        # A key that moves, while its long value does not travel.
                        f"update t set id = {other} where id = {one} and not exists (select from t where id = {other})",
                        f"begin; delete from t where id = {one}; insert into t values ({one}, 5, 'x'); commit",
                    ]
                )
            )
        statements.insert(dice.randrange(30), "truncate t" if dice.random() < 0.4 else "select 1")
        source.execute(*statements)
        scene.catch_up("public.t")
        scene.assert_equal("public.t")


@pytest.mark.parametrize("seed", [1, 2])
def test_a_lively_table_without_key_stays_equal(source: Source, seed: int) -> None:
    scene = prepare(
        source,
        "create table t (n int, ratio float8, tags int[], body text)",
        extra=["alter table t replica identity full", "alter table t alter column body set storage external"],
    )
    dice = random.Random(seed)
    source.execute("insert into t select i % 5, 'nan', array[i % 3], 'x' from generate_series(1, 40) i")
    scene.copy("public.t")
    for _ in range(3):
        statements = []
        for _ in range(25):
            n = dice.randrange(8)
            one = f"ctid = (select min(ctid) from t where n = {n})"
            statements.append(
                dice.choice(
                    [
                        f"insert into t values ({n}, '-0', '{{1,null}}', repeat('{n}', 9000)), ({n}, 0, null, null)",
                        f"update t set ratio = 'infinity' where {one}",
                        f"update t set n = {dice.randrange(8)} where {one}",
                        f"delete from t where {one}",
                        f"delete from t where n = {n}",
                    ]
                )
            )
        source.execute(*statements)
        scene.catch_up("public.t")
        scene.assert_equal("public.t")


def test_a_large_transaction_comes_in_pieces(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    object.__setattr__(source.config.batch, "max_bytes", 200_000)
    scene = prepare(source, "create table t (id int primary key, body text)")
    scene.copy("public.t")
    source.execute(
        "insert into t select i, repeat('x', 100) from generate_series(1, 20000) i", "delete from t where id > 5"
    )
    calls: list[Events] = []
    write = scene.destination.write_events
    monkeypatch.setattr("airflow_provider_pgetl.replication.delivery._CALL_BYTES", 1)
    monkeypatch.setattr(scene.destination, "write_events", lambda events: (calls.append(events), write(events))[1])
    scene.catch_up("public.t")
    scene.assert_equal("public.t")
    assert len(calls) > 2
    assert not calls[0].complete
    assert calls[-1].complete


def test_an_empty_table_is_copied(source: Source) -> None:
    scene = prepare(source, "create table t (id int primary key)")
    scene.copy("public.t")
    assert scene.destination.tables() == ["public.t"]
    assert scene.destination.rows("public.t") == []


def test_a_table_is_copied_by_several_partitions(source: Source) -> None:
    scene = prepare(
        source,
        "create table t (id int primary key, body text)",
        extra=["insert into t select i, repeat('x', 400) from generate_series(1, 30000) i", "analyze t"],
    )
    scene.copy("public.t")
    scene.assert_equal("public.t")


def test_delivery_begins_again_after_an_error_without_a_trace(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = prepare(source, "create table t (id int primary key, n int)")
    source.execute("insert into t select i, 0 from generate_series(1, 10) i")
    scene.copy("public.t")
    for n in range(6):
        source.execute(f"update t set n = n + 1 where id > {n}", f"insert into t values ({20 + n}, {n})")
        source.spool_all()
    source.execute("delete from t where id = 20", "update t set id = 100 where id = 21")
    monkeypatch.setattr("airflow_provider_pgetl.replication.delivery._CALL_BYTES", 1)
    write, failures = scene.destination.write_events, iter([False, True, False, False, True, False, True])

    def flaky(events: Events) -> None:
        failing = next(failures, False)
        write(events)
        if failing:  # after it has written
            raise DestinationUnreachable("lost")

    monkeypatch.setattr(scene.destination, "write_events", flaky)
    for _ in range(3):
        with pytest.raises(DestinationUnreachable):
            scene.catch_up("public.t")
    scene.catch_up("public.t")
    scene.assert_equal("public.t")
    assert scene.destination.repetitions("public.t") > 0


def test_schema_changes_are_followed_in_order(source: Source) -> None:
    scene = prepare(source, "create table t (id int primary key, a text, b numeric(10,2))")
    source.execute("insert into t values (1, 'one', 1.50), (2, 'two', null)")
    scene.copy("public.t")
    with source.streaming():
        steps = [
            "alter table t add column c text",
            "alter table t rename column a to name",
            "alter table t alter column b type numeric(12,2)",
            "alter table t drop column name",
            "alter table t rename column c to a",
        ]
        for number, step in enumerate(steps, 3):
            source.execute(step, f"insert into t (id, b) values ({number}, {number}.25)", "update t set b = b + 1")
            # Without the DDL trigger the catalog must not run ahead of the stream.
            source.wait_spooled(source.lsn())
        source.execute("update t set a = 'last' where id = 2")
    scene.catch_up("public.t")
    scene.assert_equal("public.t")
    kinds = [type(event).__name__ for event in scene.destination.events("public.t")]
    assert kinds.count("Relation") == len(steps)


def test_long_keys_that_do_not_travel_are_followed(source: Source) -> None:
    scene = prepare(source, "create table t (id text primary key, body text, n int)")
    for column in ("id", "body"):
        source.execute(f"alter table t alter column {column} set storage external")
    source.execute("insert into t select repeat(i::text, 2500), repeat('b', 9000), 0 from generate_series(1, 9) i")
    scene.copy("public.t")
    source.execute("update t set n = 1", "update t set id = repeat('z', 2400) where id like '1%'", "update t set n = 2")
    scene.catch_up("public.t")
    scene.assert_equal("public.t")
