"""A standby as source: possible from 16 on, with warnings; refused before."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from airflow_provider_pgetl.local import process
from airflow_provider_pgetl.local.binaries import service_user
from airflow_provider_pgetl.local.postgres import EmbeddedPostgres
from airflow_provider_pgetl.replication.schema import TableName
from airflow_provider_pgetl.replication.source import slots
from airflow_provider_pgetl.replication.source.connection import connect
from airflow_provider_pgetl.replication.source.preflight import Finding, Severity, preflight
from airflow_provider_pgetl.replication.source.snapshot import open_snapshot
from tests.integration.conftest import FAST
from tests.integration.source.conftest import Place, debian_binaries, in_background, own_server


@contextmanager
def pair(binaries: Path | None = None, **settings: str) -> Iterator[tuple[Place, Place]]:
    """A primary with a table and a publication, and its standby."""
    with own_server(binaries) as primary:
        database = primary.create_database("shop")
        first = Place(database.conninfo, "shop", primary.version)
        first.execute(
            "create table t (id int primary key)", "insert into t values (1)", "create publication pub for table t"
        )
        standby = EmbeddedPostgres(primary.home.parent / "standby", settings={**FAST, **settings}, binaries=binaries)
        _base_backup(primary, standby)
        with standby:
            yield first, Place(standby.database("shop").conninfo, "shop", standby.version)


def _base_backup(primary: EmbeddedPostgres, standby: EmbeddedPostgres) -> None:
    shutil.copy(primary.home / "password", standby.home / "password")
    user = service_user()
    user.own(standby.home)
    done = user.run(
        standby.program("pg_basebackup"),
        *("-d", primary.database("postgres").conninfo, "-D", standby.data, "-R", "-c", "fast", "--no-sync"),
    )
    assert done.returncode == 0, done.stderr


def findings(place: Place) -> list[Finding]:
    with connect(place.conninfo, "test") as connection:
        return preflight(connection, "pub", "pgetl_shop")


def said(found: list[Finding], severity: Severity) -> str:
    return "\n".join(finding.what for finding in found if finding.severity is severity)


def test_a_standby_is_a_source_with_warnings() -> None:
    """Slot and snapshot come as soon as something happens on the primary."""
    with pair(hot_standby_feedback="on") as (primary, standby):
        found = findings(standby)
        assert said(found, Severity.ERROR) == ""
        assert "the source is a standby: no publication can be created here" in said(found, Severity.WARNING)
        assert "hot_standby_feedback" not in said(found, Severity.WARNING)
        assert "standby" not in said(findings(primary), Severity.WARNING)
        with connect(standby.conninfo, "test") as connection:
            with in_background(lambda: slots.ensure(standby.conninfo, connection, "pgetl_shop")) as made:
                _stir(primary, made)
            assert slots.require(connection, "pgetl_shop").confirmed == made[0]
        with in_background(lambda: open_snapshot(standby.conninfo, [TableName("public", "t")])) as taken:
            _stir(primary, taken)
        with taken[0] as holder:
            assert holder.connection.execute("select id from t").fetchall() == [(1,)]


def _stir(primary: Place, results: list[object]) -> None:
    def happened() -> bool:
        primary.execute("select pg_log_standby_snapshot()")
        return bool(results)

    assert process.wait_until(happened, timeout=30)


def test_a_standby_without_feedback_is_warned_about() -> None:
    with pair(hot_standby_feedback="off") as (_, standby):
        assert "hot_standby_feedback off" in said(findings(standby), Severity.WARNING)


def test_a_standby_before_16_is_an_error() -> None:
    binaries = debian_binaries()
    if int(binaries.parent.name) >= 16:
        pytest.skip(f"Debian's Postgres here is {binaries.parent.name}")
    with pair(binaries) as (_, standby):
        found = findings(standby)
        assert "decodes only on the primary" in said(found, Severity.ERROR)
        assert "standby" not in said(found, Severity.WARNING)
