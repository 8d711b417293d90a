"""What Airflow's processes see of us: the provider's description, the DAGs, and how little that imports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_pgetl.builder import pipeline_dags
from airflow_provider_pgetl.get_provider_info import get_provider_info
from airflow_provider_pgetl.hooks.conninfo import Resolved, libpq_conninfo, spark_connect_url
from airflow_provider_pgetl.hooks.pgetl import Addresses, PgEtlHook
from airflow_provider_pgetl.hooks.settings import pipeline_config
from airflow_provider_pgetl.operators.base import who
from airflow_provider_pgetl.replication.errors import ConfigError
from tests.unit.airflow.fakes import FakeTaskInstance

ROOT = Path(__file__).resolve().parents[3]
HEAVY = ("pyspark", "pyarrow", "pandas", "grpc")
SURFACE = """
import importlib.util, json, sys
import airflow_provider_pgetl.builder
import airflow_provider_pgetl.db_manager
import airflow_provider_pgetl.get_provider_info
import airflow_provider_pgetl.hooks.pgetl
import airflow_provider_pgetl.operators.copy
import airflow_provider_pgetl.operators.discover
import airflow_provider_pgetl.operators.stream
import airflow_provider_pgetl.triggers.own_task
import airflow_provider_pgetl.triggers.stream
spec = importlib.util.spec_from_file_location("shop", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(json.dumps([name for name in sys.argv[2:] if name in sys.modules]))
"""


def test_parsing_a_dag_loads_neither_spark_nor_arrow() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SURFACE, str(ROOT / "dags" / "shop.py"), *HEAVY],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == []


def test_the_providers_description_fits_airflows_schema() -> None:
    import airflow
    import jsonschema

    schema = json.loads((Path(airflow.__file__).parent / "provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)


def test_everything_that_the_description_names_exists() -> None:
    import importlib

    info = get_provider_info()
    for kind in ("hooks", "operators", "triggers"):
        for module in info[kind][0]["python-modules"]:
            importlib.import_module(module)
    names = [*info["db-managers"], *(entry["hook-class-name"] for entry in info["connection-types"])]
    for name in names:
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute)


def test_the_pair_of_dags() -> None:
    copy, stream = pipeline_dags("shop", publication="shop", default_args={"retries": 7})
    assert (copy.dag_id, stream.dag_id) == ("shop_copy", "shop_stream")
    assert copy.task_dict["copy"].upstream_task_ids == {"discover"}
    assert copy.task_dict["copy"].is_mapped
    assert set(stream.task_dict) == {"stream"}
    assert (copy.max_active_runs, stream.max_active_runs) == (1, 1)
    assert stream.task_dict["stream"].retries == 7
    assert stream.task_dict["stream"].execution_timeout is None


def test_the_dags_survive_airflows_serialisation() -> None:
    from airflow.serialization.serialized_objects import DagSerialization

    for dag in pipeline_dags("shop", publication="shop", options={"batch": {"max_fill_ms": 10}}):
        encoded = DagSerialization.to_dict(dag)
        json.dumps(encoded)
        decoded = DagSerialization.from_dict(encoded)
        assert set(decoded.task_dict) == set(dag.task_dict)
        assert "password" not in json.dumps(encoded).lower()


def _connection(**parts: Any) -> Resolved:
    return Resolved(**{"conn_id": "pgetl_source", "host": "db", **parts})


def test_a_connection_becomes_a_libpq_address() -> None:
    address = libpq_conninfo(
        _connection(
            port=5433,
            login="u ser",
            password="p'w \\",
            schema="shop",
            extra_dejson={"sslmode": "require", "sslrootcert": "/ca.pem", "cursor": "dictcursor", "connect_timeout": 5},
        )
    )
    assert conninfo_to_dict(address) == {
        "host": "db",
        "port": "5433",
        "user": "u ser",
        "password": "p'w \\",
        "dbname": "shop",
        "sslmode": "require",
        "sslrootcert": "/ca.pem",
        "connect_timeout": "5",
    }


def test_a_spark_connection_becomes_a_url() -> None:
    assert spark_connect_url(_connection(host="sc://spark", port=15002)) == "sc://spark:15002/"
    assert spark_connect_url(_connection(host="spark", login="me", password="to ken")) == (
        "sc://spark/;user_id=me;token=to%20ken"
    )
    with pytest.raises(ConfigError, match="no host"):
        spark_connect_url(_connection(host=None))


def test_addresses_and_connections_do_not_show_their_secrets() -> None:
    secret = Addresses(source="password=s3cret", state="password=s3cret", spark="sc://h/;token=s3cret")
    assert "s3cret" not in repr(secret)
    assert "s3cret" not in repr(_connection(password="s3cret", extra_dejson={"sslpassword": "s3cret"}))


async def test_the_hook_resolves_alike_in_tasks_and_triggers(monkeypatch: pytest.MonkeyPatch) -> None:
    postgres = {"conn_type": "postgres", "host": "db", "login": "me", "password": "pw", "schema": "shop"}
    monkeypatch.setenv("AIRFLOW_CONN_PGETL_SOURCE", json.dumps({**postgres, "extra": {"sslmode": "prefer"}}))
    monkeypatch.setenv("AIRFLOW_CONN_PGETL_STATE", json.dumps(postgres))
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "spark_connect", "host": "sc://s", "port": 1}))
    hook = PgEtlHook(spark_conn_id="lake")
    assert hook.addresses() == await hook.aaddresses()
    assert conninfo_to_dict(hook.source())["sslmode"] == "prefer"
    assert hook.addresses().spark == "sc://s:1/"


def test_settings_come_from_arguments_then_from_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__PGETL__SPOOL_ROOT", "/from/the/configuration")
    config = pipeline_config("shop", "pub", options={"batch": {"max_fill_ms": 10}, "apply_interval_ms": 5})
    assert (config.spool_root, config.batch.max_fill_ms, config.apply_interval_ms) == (
        "/from/the/configuration",
        10,
        5,
    )
    assert pipeline_config("shop", "pub", "/mine").spool_root == "/mine"
    for wrong in ({"nothing": 1}, {"batch": {"nothing": 1}}, {"name": "other"}):
        with pytest.raises(ConfigError):
            pipeline_config("shop", "pub", "/mine", wrong)


def test_the_history_names_the_mapped_task() -> None:
    named: Any = {"ti": FakeTaskInstance(map_index=0, try_number=2)}
    assert who(named) == "shop_copy.copy[0] try 2"
    named = {"ti": FakeTaskInstance(map_index=-1)}
    assert who(named) == "shop_copy.copy try 1"
