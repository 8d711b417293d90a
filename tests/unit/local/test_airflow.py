from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from airflow_provider_pgetl.local.airflow import AirflowPorts, AirflowSecrets, LocalAirflow, load_secrets
from airflow_provider_pgetl.local.airflow_process import tells_healthy
from airflow_provider_pgetl.local.postgres import Database


@pytest.fixture
def airflow(tmp_path: Path) -> LocalAirflow:
    return LocalAirflow(
        home=tmp_path / "airflow",
        dags=tmp_path / "dags",
        metadata=Database("airflow", 5001, "p@ss/word"),
        source=Database("shop", 5001, "p@ss/word"),
        spark_url="sc://127.0.0.1:15002",
        spool=tmp_path / "spool",
        ports=AirflowPorts(api=8191, scheduler_health=1, worker_logs=2, trigger_logs=3),
        keys=AirflowSecrets.generate(),
    )


def test_port_address_and_execution_api_belong_together(airflow: LocalAirflow) -> None:
    environment = airflow.environment({})
    assert environment["AIRFLOW__API__PORT"] == "8191"
    assert environment["AIRFLOW__API__BASE_URL"] == "http://127.0.0.1:8191"
    assert environment["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"] == "http://127.0.0.1:8191/execution/"


def test_settings_of_the_shell_do_not_leak_in(airflow: LocalAirflow) -> None:
    inherited = {"AIRFLOW__CORE__EXECUTOR": "CeleryExecutor", "AIRFLOW_CONN_X": "x", "SPARK_REMOTE": "sc://x", "A": "b"}
    environment = airflow.environment(inherited)
    assert environment["AIRFLOW__CORE__EXECUTOR"] == "LocalExecutor"
    assert "AIRFLOW_CONN_X" not in environment
    assert "SPARK_REMOTE" not in environment
    assert environment["A"] == "b"


def test_connections_are_complete(airflow: LocalAirflow) -> None:
    environment = airflow.environment({})
    assert json.loads(environment["AIRFLOW_CONN_PGETL_SOURCE"]) == {
        "conn_type": "postgres",
        "host": "127.0.0.1",
        "port": 5001,
        "login": "postgres",
        "password": "p@ss/word",
        "schema": "shop",
    }
    assert json.loads(environment["AIRFLOW_CONN_PGETL_STATE"])["schema"] == "airflow"
    spark = json.loads(environment["AIRFLOW_CONN_SPARK_CONNECT_DEFAULT"])
    assert (spark["conn_type"], spark["host"], spark["port"]) == ("spark_connect", "sc://127.0.0.1", 15002)


def test_password_is_quoted_in_the_database_address(airflow: LocalAirflow) -> None:
    address = airflow.environment({})["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"]
    assert address == "postgresql+psycopg2://postgres:p%40ss%2Fword@127.0.0.1:5001/airflow"


def test_proxies_are_kept_and_not_used_for_this_machine(airflow: LocalAirflow) -> None:
    environment = airflow.environment({"no_proxy": "intranet"})
    assert environment["NO_PROXY"] == environment["no_proxy"] == "intranet,127.0.0.1,localhost"


def test_secrets_are_made_once_and_private(tmp_path: Path) -> None:
    first = load_secrets(tmp_path)
    assert load_secrets(tmp_path) == first
    assert json.loads((tmp_path / "passwords.json").read_text()) == {"admin": first.admin_password}
    assert {(tmp_path / name).stat().st_mode & 0o777 for name in ("secrets.json", "passwords.json")} == {0o600}


START = datetime(2026, 11, 18, 6, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("status", "heartbeat", "healthy"),
    [
        ("healthy", "2026-11-18T06:00:01+00:00", True),
        ("healthy", "2026-11-18T05:59:59+00:00", False),  # of the process before
        ("healthy", None, False),
        ("unhealthy", "2026-11-18T06:00:01+00:00", False),
    ],
)
def test_health_counts_only_heartbeats_since_the_start(status: str, heartbeat: str | None, healthy: bool) -> None:
    told = {"dag_processor": {"status": status, "latest_dag_processor_heartbeat": heartbeat}}
    assert tells_healthy(told, "dag-processor", since=START) is healthy


def test_api_server_is_healthy_when_it_answers() -> None:
    assert tells_healthy({"metadatabase": {"status": "healthy"}}, "api-server", since=START)
    assert not tells_healthy({}, "api-server", since=START)
