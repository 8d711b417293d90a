"""Preflight on a real server: what is said, with which severity, and that nothing is made meanwhile."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_pgetl.local.postgres import EmbeddedPostgres
from airflow_provider_pgetl.replication.errors import SourceError
from airflow_provider_pgetl.replication.source.connection import connect
from airflow_provider_pgetl.replication.source.preflight import Finding, Severity, preflight, refuse
from tests.integration.replication.conftest import Source


def findings(source: Source, conninfo: str | None = None) -> list[Finding]:
    with connect(conninfo or source.conninfo, "test") as connection:
        return preflight(connection, "pub", source.config.slot)


def said(found: list[Finding], severity: Severity) -> str:
    return "\n".join(finding.what for finding in found if finding.severity is severity)


@pytest.fixture
def role(source: Source) -> Iterator[str]:
    name = f"poor_{source.config.name}"
    source.execute(f"create role {name} login password 'poor'")
    yield (
        source.conninfo.replace("user=postgres", f"user={name}").split(" password=")[0]
        + " password=poor dbname="
        + (source.conninfo.split("dbname=")[1])
    )
    source.execute(f"drop owned by {name}", f"drop role {name}")


def test_a_good_source_has_no_errors(source: Source) -> None:
    source.execute("create table t (id int primary key, at timestamptz)", "create publication pub for table t")
    found = findings(source)
    assert said(found, Severity.ERROR) == ""
    assert "unlimited" in said(found, Severity.WARNING)
    assert "_pgetl_overflow: at" in said(found, Severity.INFO)
    assert all(finding.hint for finding in found)


def test_every_error_is_named_at_once(source: Source) -> None:
    source.execute(
        "create table no_key (i int)",
        "create table nothing (i int primary key)",
        "alter table nothing replica identity nothing",
        "create table empty ()",
        "create publication pub for all tables",
    )
    found = findings(source)
    errors = said(found, Severity.ERROR)
    assert "no_key has no key" in errors
    assert "NOTHING" in errors
    assert "empty publishes no columns" in errors
    with pytest.raises(SourceError, match="3 things stand in the way"):
        refuse(found)


def test_what_the_publication_leaves_out_is_a_warning(source: Source) -> None:
    source.execute(
        "create table t (id int primary key, twice int generated always as (id * 2) stored)",
        "create publication pub for table t with (publish = 'insert')",
    )
    warnings = said(findings(source), Severity.WARNING)
    assert "delete, truncate, update" in warnings
    assert "generated columns of public.t are not mirrored: twice" in warnings


def test_a_role_without_rights_is_told_which(source: Source, role: str) -> None:
    source.execute("create table t (id int primary key)", "create publication pub for table t")
    errors = said(findings(source, role), Severity.ERROR)
    assert "may not replicate" in errors
    assert "may not read public.t" in errors


def test_row_security_is_a_warning_for_a_role_that_it_binds(source: Source, role: str) -> None:
    source.execute(
        "create table t (id int primary key)",
        "alter table t enable row level security",
        "create publication pub for table t",
    )
    assert "row-level security" in said(findings(source, role), Severity.WARNING)
    assert "row-level security" not in said(findings(source), Severity.WARNING)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"wal_level": "replica"}, "wal_level=replica"),
        ({"max_replication_slots": "1"}, "too few free replication slots"),
        ({"max_slot_wal_keep_size": "0"}, "max_slot_wal_keep_size is 0"),
    ],
)
def test_a_server_that_is_set_up_wrongly_is_refused(settings: dict[str, str], message: str) -> None:
    with tempfile.TemporaryDirectory(prefix="pgetl-") as folder:
        Path(folder).chmod(0o755)
        with EmbeddedPostgres(Path(folder) / "postgres", settings=settings) as server:
            database = server.create_database("shop")
            with database.connect() as connection:
                connection.execute("create table t (id int primary key)")
                connection.execute("create publication pub for table t")
            with connect(database.conninfo, "test") as connection:
                assert message in said(preflight(connection, "pub", "pgetl_shop"), Severity.ERROR)
