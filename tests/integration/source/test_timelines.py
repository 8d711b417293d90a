"""The branch point of a timeline, asked from a server that was really promoted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_pgetl.local.postgres import Database, EmbeddedPostgres
from airflow_provider_pgetl.replication.config import DdlCapture
from airflow_provider_pgetl.replication.errors import SourceError
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.source import catalog, ddl
from airflow_provider_pgetl.replication.source.connection import connect
from airflow_provider_pgetl.replication.source.timelines import branch_point
from tests.integration.conftest import FAST


@pytest.fixture(scope="module")
def server(scratch: Path) -> Iterator[EmbeddedPostgres]:
    """A server of one's own."""
    with EmbeddedPostgres(scratch / "promoted", settings=FAST) as server:
        yield server


def lsn(database: Database) -> Lsn:
    with connect(database.conninfo, "test") as connection:
        return catalog.current_lsn(connection)


def make_standby(server: EmbeddedPostgres) -> None:
    server.stop()
    (server.data / "standby.signal").touch()
    (server.data / "standby.signal").chmod(0o644)
    server.start()


def promote(database: Database) -> int:
    """Promote and return the timeline at once, before any checkpoint."""
    with connect(database.conninfo, "test") as connection:
        connection.execute("select pg_promote()")
        return catalog.server(connection).timeline


def test_the_branch_point_is_where_the_timeline_was_left(server: EmbeddedPostgres) -> None:
    database = server.create_database("shop")
    with pytest.raises(SourceError, match="timeline 1 of the source does not descend from timeline 1"):
        branch_point(database.conninfo, 1, 1)
    points = []
    for timeline in (2, 3):
        with database.connect() as connection:
            connection.execute(f"create table t{timeline} (id int)".encode())
        before = lsn(database)
        make_standby(server)
        with connect(database.conninfo, "test") as connection:
            skipped = ddl.ensure(connection, DdlCapture.AUTO)
            assert (skipped.active, "standby" in skipped.what) == (False, True)
        assert promote(database) == timeline
        point = branch_point(database.conninfo, timeline - 1, timeline)
        assert before <= point <= lsn(database)
        points.append(point)
    assert branch_point(database.conninfo, 1, 3) == points[0] < points[1]
    assert not (server.data / "standby.signal").exists()


def test_a_timeline_that_is_no_ancestor_is_said_so(server: EmbeddedPostgres) -> None:
    database = server.database("shop")
    with pytest.raises(SourceError, match="timeline 2 of the source does not descend from timeline 3") as caught:
        branch_point(database.conninfo, 3, 2)
    assert "resync all tables" in caught.value.hint
    with pytest.raises(SourceError):
        branch_point(database.conninfo, 1, 9)  # there is no such file
