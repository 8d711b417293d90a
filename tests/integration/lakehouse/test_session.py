"""Sessions: clear errors at once, and a new session after the server was restarted."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgetl.lakehouse.destination import LakeDestination
from airflow_provider_pgetl.lakehouse.session import Sessions
from airflow_provider_pgetl.local.places import pgetl_home
from airflow_provider_pgetl.local.process import free_port
from airflow_provider_pgetl.local.spark import SparkServer
from airflow_provider_pgetl.replication.errors import DestinationError, DestinationUnreachable

if TYPE_CHECKING:
    from airflow_provider_pgetl.local.postgres import EmbeddedPostgres


def test_a_server_that_is_not_there_is_told_within_seconds() -> None:
    destination = LakeDestination(f"sc://127.0.0.1:{free_port()}", catalog="lake")
    started = time.monotonic()
    with pytest.raises(DestinationUnreachable):
        destination.startup()
    assert time.monotonic() - started < 15
    destination.shutdown()


def test_a_catalog_that_the_server_does_not_know_is_told_with_a_hint(spark: SparkServer) -> None:
    destination = LakeDestination(spark.url, catalog="nowhere")
    with pytest.raises(DestinationError, match=r"spark\.sql\.catalog\.nowhere"):
        destination.startup()
    destination.shutdown()


def test_sessions_are_used_again_and_calls_after_the_end_are_refused(spark: SparkServer) -> None:
    sessions = Sessions(spark.url, catalog="lake")
    with sessions.lend("one") as one:
        pass
    with sessions.lend("two") as two, sessions.lend("three") as three:
        assert two is one
        assert three is not one
    sessions.close()
    assert one.is_stopped
    assert three.is_stopped
    with pytest.raises(DestinationError, match="shut down"):
        sessions.run("four", lambda spark: spark.sql("select 1").collect())


def test_a_message_that_quotes_a_value_is_not_passed_on(spark: SparkServer, caplog: pytest.LogCaptureFixture) -> None:
    sessions = Sessions(spark.url, catalog="lake")
    # As whoever configures logging anew does.
    logging.getLogger("pyspark.sql.connect.logging").disabled = False
    with pytest.raises(DestinationError, match="CAST_INVALID_INPUT") as caught:
        sessions.run("casting", lambda spark: spark.sql("select cast(id || 'secret' as int) from range(1)").collect())
    sessions.close()
    assert "secret" not in str(caught.value)
    assert "secret" not in caplog.text


@pytest.mark.slow
def test_a_restarted_server_gets_a_new_session_at_the_next_call(postgres: EmbeddedPostgres, scratch: Path) -> None:
    server = SparkServer(
        scratch / "restarted",
        catalog=postgres.create_database("restarted_catalog"),
        warehouse=scratch / "restarted-warehouse",
        ivy=pgetl_home() / "ivy",
    )
    sessions = Sessions(server.url, catalog="lake")

    def count() -> int:
        return int(sessions.run("counting", lambda spark: spark.sql("select count(*) from range(7)").collect()[0][0]))

    with server:
        assert count() == 7
        server.stop()
        with pytest.raises(DestinationUnreachable):
            count()
        server.start()
        assert count() == 7
        # An idle session that has not noticed yet.
        server.stop()
        server.start()
        assert count() == 7
        sessions.close()
