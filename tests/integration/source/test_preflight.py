"""Preflight on real servers: what is said, with which severity, and that nothing is made meanwhile.

Postgres itself is the oracle of the rules for replica identities: what preflight calls an error because the
application's updates would be refused, is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import psycopg
import pytest

from airflow_provider_pgetl.replication.errors import SourceError, SourceUnreachable
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.source import slots
from airflow_provider_pgetl.replication.source.connection import connect, connect_replication
from airflow_provider_pgetl.replication.source.preflight import Finding, Severity, preflight, refuse
from airflow_provider_pgetl.replication.source.stream import ReplicationStream
from tests.integration.source.conftest import Place, debian_binaries, own_server

ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO
GOOD = ("create table t (id int primary key, v text)", "create publication pub for table t")


def findings(place: Place, conninfo: str | None = None, publication: str = "pub") -> list[Finding]:
    with connect(conninfo or place.conninfo, "test") as connection:
        return preflight(connection, publication, f"pgetl_{place.name}")


def said(found: list[Finding], severity: Severity) -> str:
    return "\n".join(finding.what for finding in found if finding.severity is severity)


def hint(found: list[Finding], what: str) -> str:
    return next(finding.hint for finding in found if what in finding.what)


@pytest.fixture
def role(place: Place) -> Iterator[str]:
    name = f"poor_{place.name}"
    place.execute(f"create role {name} login password 'poor'")
    yield name
    place.execute(f"drop owned by {name}", f"drop role {name}")


def as_role(place: Place, role: str) -> str:
    return place.with_(user=role, password="poor")


def test_a_good_source_has_no_errors_and_nothing_is_made(place: Place) -> None:
    place.execute(
        "create table t (id int primary key, at timestamptz, n numeric(5, 2), a int[], plain text)",
        "create publication pub for table t",
    )
    found = findings(place)
    assert said(found, ERROR) == ""
    assert said(found, WARNING) == "max_slot_wal_keep_size is unlimited: a stopped stream fills the disk"
    assert said(found, INFO) == "public.t: values past the lake's range would go to _pgetl_overflow: at, n, a"
    assert all(finding.hint for finding in found)
    assert place.rows("select 1 from pg_replication_slots where database = current_database()") == []
    refuse(found)


def test_every_error_is_named_at_once(place: Place) -> None:
    place.execute(
        "create table no_key (i int)",
        "create table nothing (i int primary key)",
        "alter table nothing replica identity nothing",
        "create table empty ()",
        "create publication pub for all tables",
    )
    found = findings(place)
    errors = said(found, ERROR)
    assert "no_key has no key" in errors
    assert "NOTHING" in errors
    assert "empty publishes no columns" in errors
    with pytest.raises(SourceError, match="3 things stand in the way"):
        refuse(found)


# The publication


def test_a_missing_publication_is_an_error(place: Place) -> None:
    found = findings(place)
    assert "no publication 'pub'" in said(found, ERROR)
    with pytest.raises(SourceError, match="no publication"):
        refuse(found)


def test_an_empty_publication_is_an_error_with_a_quoted_hint(place: Place) -> None:
    place.execute('create publication "odd ""pub"')
    found = findings(place, publication='odd "pub')
    assert "has no tables" in said(found, ERROR)
    assert hint(found, "has no tables") == 'Add some: alter publication "odd ""pub" add table ...'


def test_what_the_publication_leaves_out_is_a_warning(place: Place) -> None:
    place.execute(GOOD[0], "create publication pub for table t with (publish = 'insert')")
    found = findings(place)
    assert "does not publish delete, truncate, update" in said(found, WARNING)
    place.execute(hint(found, "does not publish"))
    assert "does not publish" not in said(findings(place), WARNING)


def test_a_publication_without_inserts_is_an_error(place: Place) -> None:
    place.execute(GOOD[0], "create publication pub for table t with (publish = 'update, delete')")
    assert "does not publish inserts" in said(findings(place), ERROR)


@pytest.mark.parametrize("schema", ["pgetl", "pgetl_source"])
def test_our_own_state_in_the_publication_is_a_warning(place: Place, schema: str) -> None:
    place.execute(*GOOD, f"create schema {schema}", f"create table {schema}.segment (id int primary key)")
    assert "own state" not in said(findings(place), WARNING)
    place.execute(f"alter publication pub add table {schema}.segment")
    assert f"own state (schema {schema})" in said(findings(place), WARNING)


def test_unlogged_tables_that_all_tables_leaves_out_are_a_warning(place: Place) -> None:
    place.execute("create table t (id int primary key)", "create unlogged table u (id int primary key)")
    place.execute("create publication pub for table t")
    assert "unlogged" not in said(findings(place), WARNING)
    place.execute("drop publication pub", "create publication pub for all tables")
    assert "unlogged tables are not published: public.u" in said(findings(place), WARNING)
    place.execute("drop publication pub", "create publication pub for tables in schema public")
    assert "unlogged tables are not published: public.u" in said(findings(place), WARNING)


# The tables


@pytest.mark.parametrize(
    ("statements", "publication", "what"),
    [
        (["alter table t replica identity default"], "table t", None),
        (["alter table t drop constraint t_pkey"], "table t", "has no key"),
        (
            ["alter table t drop constraint t_pkey", "alter table t add primary key (id) deferrable"],
            "table t",
            "deferrable primary key",
        ),
        (["alter table t replica identity nothing"], "table t", "REPLICA IDENTITY NOTHING"),
        (["create unique index i on t (k)", "alter table t replica identity using index i"], "table t", None),
        (
            ["create unique index i on t (k)", "alter table t replica identity using index i", "drop index i"],
            "table t",
            "that index is gone",
        ),
        (["alter table t replica identity full"], "table t", None),
        (["alter table t drop constraint t_pkey", "alter table t replica identity full"], "table t", None),
        ([], "table t (id, v)", None),
        ([], "table t (k, v)", "the column list leaves out: id"),
        (
            ["create unique index i on t (k)", "alter table t replica identity using index i"],
            "table t (id, v)",
            "the column list leaves out: k",
        ),
        (["alter table t replica identity full"], "table t (id, k, v)", "REPLICA IDENTITY FULL and a column list"),
        ([], "table t where (id > 0)", None),
        ([], "table t where (id > 0 and k < 5 and v is not null)", "row filter on columns"),
        (["alter table t replica identity full"], "table t where (k < 5)", None),
        ([], "table t (id, v) where (k < 5)", "not in its replica identity: k"),
    ],
)
def test_preflight_refuses_a_replica_identity_exactly_where_postgres_refuses_the_update(
    place: Place, statements: Sequence[str], publication: str, what: str | None
) -> None:
    place.execute("create table t (id int primary key, k int not null, v text)", "insert into t values (1, 1, 'x')")
    place.execute(*statements, f"create publication pub for {publication}")
    errors = said(findings(place), ERROR)
    if what is None:
        assert errors == ""
        place.execute("update t set v = 'y'")
    else:
        assert what in errors
        with pytest.raises(psycopg.Error, match=r"cannot update table") as caught:
            place.execute("update t set v = 'y'")
        assert caught.value.sqlstate in ("55000", "42P10")
    place.execute("alter publication pub set (publish = 'insert')")
    assert said(findings(place), ERROR) == "", "with inserts only, any identity will do"


@pytest.mark.parametrize(
    ("statements", "what"),
    [
        (["create table n (id int)"], "n has no key"),
        (["create table n (id int primary key)", "alter table n replica identity nothing"], "NOTHING"),
    ],
)
def test_the_hint_for_an_identity_can_be_pasted(place: Place, statements: Sequence[str], what: str) -> None:
    place.execute(*statements, 'alter table n rename to "odd ""N"', "create publication pub for all tables")
    found = findings(place)
    pasted = hint(found, what.replace("n has", "has"))
    assert 'alter table "public"."odd ""N" replica identity' in pasted
    start = pasted.index("alter table")
    place.execute(pasted[start:].split(";")[0])
    assert said(findings(place), ERROR) == ""


def test_a_table_without_key_is_matched_by_its_whole_row(place: Place) -> None:
    place.execute(
        "create table t (id int)", "alter table t replica identity full", "create publication pub for table t"
    )
    found = findings(place)
    assert said(found, ERROR) == ""
    assert "public.t has no key: its updates and deletes are matched by the whole row" in said(found, INFO)
    place.execute("alter table t add primary key (id)")
    assert "whole row" not in said(findings(place), INFO)


def test_generated_columns_are_named(place: Place) -> None:
    place.execute(
        "create table t (id int primary key, twice int generated always as (id * 2) stored)",
        "create publication pub for table t",
    )
    found = findings(place)
    assert "generated columns of public.t are not mirrored: twice" in said(found, WARNING)
    assert said(found, ERROR) == ""


def test_a_generated_key_is_an_error(place: Place) -> None:
    place.execute(
        "create table t (id int, twice int generated always as (id * 2) stored primary key)",
        "create publication pub for table t",
    )
    assert "generated columns in its replica identity, which are not sent: twice" in said(findings(place), ERROR)


def test_a_generated_column_under_identity_full_is_an_error_where_postgres_checks_it(place: Place) -> None:
    place.execute(
        "create table t (id int primary key, twice int generated always as (id * 2) stored)",
        "insert into t values (1)",
        "alter table t replica identity full",
        "create publication pub for table t",
    )
    errors = said(findings(place), ERROR)
    if place.version >= 18:
        assert "unpublished generated columns (twice)" in errors
        with pytest.raises(psycopg.Error, match="cannot update table"):
            place.execute("update t set id = 2")
    else:
        assert errors == ""
        place.execute("update t set id = 2")


# Partitioned tables

TREE = (
    "create table t (id int, day int, v text, primary key (id, day)) partition by list (day)",
    "create table t1 partition of t for values in (1)",
    "create table t2 partition of t for values in (2) partition by list (id)",
    'create table "T 21" partition of t2 default',
    "insert into t values (1, 1), (2, 2)",
    "create publication pub for table t with (publish_via_partition_root)",
)


def test_a_partitioned_table_with_a_key_is_fine_both_ways(place: Place) -> None:
    place.execute(*TREE)
    assert said(findings(place), ERROR) == ""
    place.execute("alter publication pub set (publish_via_partition_root = false)")
    assert said(findings(place), ERROR) == ""


def test_each_leaf_needs_a_replica_identity_of_its_own(place: Place) -> None:
    place.execute(*TREE, 'alter table "T 21" replica identity nothing')
    found = findings(place)
    assert said(found, ERROR).startswith("public.T 21 has REPLICA IDENTITY NOTHING")
    assert '"public"."T 21"' in hint(found, "NOTHING")
    with pytest.raises(psycopg.Error, match="cannot update table"):
        place.execute("update t set v = 'x'")
    place.execute("alter table t1 replica identity nothing")
    assert "(like 1 more of public.t)" in said(findings(place), ERROR)


def test_a_leaf_must_send_what_its_root_promises(place: Place) -> None:
    """Postgres does not check it: the old row comes under the root's name with the leaf's columns."""
    place.execute(*TREE, "alter table t replica identity full")
    found = findings(place)
    assert said(found, ERROR) == ""
    assert "sends only its key as the old row, while public.t has REPLICA IDENTITY FULL" in said(found, WARNING)
    place.execute("alter table t drop constraint t_pkey", "alter table t1 add primary key (id)")
    errors = said(findings(place), ERROR)
    assert "public.t1 does not send the key of public.t with its updates: day, v" in errors
    assert "public.T 21 has no key" in errors
    place.execute("alter table t1 replica identity full", 'alter table "T 21" replica identity full')
    found = findings(place)
    assert said(found, ERROR) == ""
    assert "sends only" not in said(found, WARNING)


def test_an_unlogged_leaf_is_an_error(place: Place) -> None:
    place.execute(*TREE, "create unlogged table t3 partition of t for values in (3)")
    assert "public.t3 is unlogged: its changes are in no WAL" in said(findings(place), ERROR)


def test_a_foreign_leaf_is_an_error(place: Place) -> None:
    place.execute(
        "create foreign data wrapper nowhere",
        "create server nowhere foreign data wrapper nowhere",
        "create table t (id int, day int) partition by list (day)",
        "create foreign table t4 partition of t for values in (4) server nowhere",
        "create publication pub for table t with (publish = 'insert', publish_via_partition_root)",
    )
    assert "public.t4 is a foreign table" in said(findings(place), ERROR)


# The role


def test_a_role_without_rights_is_told_which(place: Place, role: str) -> None:
    place.execute(
        *GOOD,
        'create schema "Closed"',
        'create table "Closed".u (id int primary key)',
        f'grant select on "Closed".u to {role}',
        'alter publication pub add table "Closed".u',
    )
    found = findings(place, as_role(place, role))
    errors = said(found, ERROR)
    assert f"the role {role!r} may not replicate" in errors
    assert "public.t may not be read by the role" in errors
    assert "Closed.u is in a schema that the role may not use" in errors
    assert "u may not be read" not in errors
    assert 'grant usage on schema "Closed"' in hint(found, "Closed.u is in")
    assert f'alter role "{role}" replication' in hint(found, "may not replicate")
    place.execute(
        f'grant usage on schema "Closed" to {role}', f"grant select on t to {role}", f"alter role {role} replication"
    )
    assert said(findings(place, as_role(place, role)), ERROR) == ""


def test_a_copy_reads_the_leaves_so_their_rights_count(place: Place, role: str) -> None:
    place.execute(*TREE, f"grant select on t, t1 to {role}", f"alter role {role} replication")
    assert said(findings(place, as_role(place, role)), ERROR) == "public.T 21 may not be read by the role"


@pytest.mark.parametrize("granted", ["rds_replication", "cloudsqlsuperuser", "azure_pg_admin", "pg_read_all_data"])
def test_managed_clouds_grant_replication_by_a_role(place: Place, role: str, granted: str) -> None:
    place.execute(*GOOD, f"grant select on t to {role}")
    own = not granted.startswith("pg_")
    if own:
        place.execute(f"create role {granted}")
    try:
        assert "may not replicate" in said(findings(place, as_role(place, role)), ERROR)
        place.execute(f"grant {granted} to {role}")
        assert ("may not replicate" in said(findings(place, as_role(place, role)), ERROR)) is not own
    finally:
        place.execute(f"revoke {granted} from {role}")
        if own:
            place.execute(f"drop role {granted}")


def test_row_security_is_a_warning_for_a_role_that_it_binds(place: Place, role: str) -> None:
    place.execute(*GOOD, "alter table t enable row level security", "alter table t force row level security")
    assert "row-level security" in said(findings(place, as_role(place, role)), WARNING)
    assert "row-level security" not in said(findings(place), WARNING), "a superuser is above it"
    place.execute(f"alter role {role} bypassrls")
    assert "row-level security" not in said(findings(place, as_role(place, role)), WARNING)


# The server


@pytest.mark.parametrize("binaries", [None, "debian"], ids=["postgres", "debian"])
@pytest.mark.parametrize(
    ("settings", "severity", "message"),
    [
        ({"wal_level": "replica"}, ERROR, "wal_level=replica"),
        ({"max_replication_slots": "1"}, ERROR, "too few free replication slots (1)"),
        ({"max_wal_senders": "1"}, ERROR, "too few free WAL senders (1)"),
        ({"max_slot_wal_keep_size": "0"}, ERROR, "max_slot_wal_keep_size is 0"),
        ({"max_slot_wal_keep_size": "64MB"}, WARNING, "only 64 MB"),
    ],
)
def test_a_server_that_is_set_up_wrongly_is_told(
    binaries: str | None, settings: dict[str, str], severity: Severity, message: str
) -> None:
    with own_server(debian_binaries() if binaries else None, settings) as server:
        database = server.create_database("shop")
        place = Place(database.conninfo, "shop", server.version)
        place.execute(*GOOD)
        found = findings(place)
    assert message in said(found, severity)
    if severity is ERROR:
        assert len(said(found, ERROR).splitlines()) == 1


def test_an_idle_timeout_of_slots_is_a_warning() -> None:
    with own_server(settings={"idle_replication_slot_timeout": "5min", "max_slot_wal_keep_size": "10GB"}) as server:
        place = Place(server.create_database("shop").conninfo, "shop", server.version)
        place.execute(*GOOD)
        assert said(findings(place), WARNING).startswith("idle_replication_slot_timeout is 300 s")


def test_the_pipelines_own_slot_and_sender_are_not_counted() -> None:
    """Two of each are enough for one pipeline, also while it runs; those of others count."""
    with own_server(settings={"max_replication_slots": "2", "max_wal_senders": "2"}) as server:
        place = Place(server.create_database("shop").conninfo, "shop", server.version)
        place.execute(*GOOD)
        slots.create(place.conninfo, "pgetl_shop")
        stream = ReplicationStream(place.conninfo, "pgetl_shop", "pub", Lsn(0))
        with connect_replication(place.conninfo, "snapshot-slot") as replication:
            replication.execute("CREATE_REPLICATION_SLOT pgetl_tmp_1_ab TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT")
            assert said(findings(place), ERROR) == ""
        stream.close()
        place.execute("select pg_create_physical_replication_slot('other')")
        assert "too few free replication slots (1)" in said(findings(place), ERROR)
        with connect_replication(place.conninfo, "other"):
            assert "too few free WAL senders (1)" in said(findings(place), ERROR)


def test_an_older_server_is_an_error(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_provider_pgetl.replication.source.preflight.OLDEST_VERSION", 990000)
    place.execute(*GOOD)
    assert f"the source is PostgreSQL {place.version}" in said(findings(place), ERROR)


def test_a_server_that_goes_away_is_no_finding(place: Place) -> None:
    place.execute(*GOOD)
    with connect(place.conninfo, "test") as connection:
        place.execute(f"select pg_terminate_backend({connection.info.backend_pid}, 10000)")
        with pytest.raises(SourceUnreachable):
            preflight(connection, "pub", "pgetl_x")
