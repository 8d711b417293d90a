"""What Airflow is told about this provider. Read by every component at every start: imports nothing heavy."""

from __future__ import annotations

from typing import Any

from airflow_provider_pgetl import __version__

_SINCE = "0.1.0"


def _option(kind: str, default: str, description: str, example: str | None = None) -> dict[str, Any]:
    return {
        "description": description,
        "version_added": _SINCE,
        "type": kind,
        "example": example,
        "default": default,
    }


def _config() -> dict[str, Any]:
    return {
        "pgetl": {
            "description": "Mirroring Postgres tables into a lakehouse.",
            "options": {
                "state_conn_id": _option(
                    "string",
                    "pgetl_state",
                    "Connection to the Postgres database that holds the schema ``pgetl``: Airflow's metadata"
                    " database, or another one where ``PostgresStore.create_tables`` made the tables.",
                ),
                "spool_root": _option(
                    "string",
                    "",
                    "Where changes are kept until the lake has them: a folder or URL on durable storage that"
                    " the triggerer and Spark both reach. A pipeline may set its own.",
                    "/srv/pgetl/spool",
                ),
                "progress_interval": _option(
                    "float",
                    "15.0",
                    "Seconds between two summary lines of the stream in the log, and between two updates of"
                    " its progress XCom.",
                ),
                "watch_interval": _option(
                    "float",
                    "2.0",
                    "Seconds between two looks of the stream at the state of its own task.",
                ),
                "comms_timeout": _option(
                    "float",
                    "10.0",
                    "Seconds without an answer from the triggerer after which the stream stops by itself,"
                    " lest another triggerer has taken it over.",
                ),
            },
        }
    }


def get_provider_info() -> dict[str, Any]:
    """Return the provider's description; Airflow reads it through the entry point."""
    return {
        "package-name": "airflow-provider-pgetl",
        "name": "pgetl",
        "description": "Mirror PostgreSQL tables into Apache Iceberg in near real time.",
        "versions": [__version__],
        "integrations": [{"integration-name": "pgetl", "tags": ["software"]}],
        "hooks": [{"integration-name": "pgetl", "python-modules": ["airflow_provider_pgetl.hooks.pgetl"]}],
        "operators": [
            {
                "integration-name": "pgetl",
                "python-modules": [
                    "airflow_provider_pgetl.operators.discover",
                    "airflow_provider_pgetl.operators.copy",
                    "airflow_provider_pgetl.operators.stream",
                ],
            }
        ],
        "triggers": [{"integration-name": "pgetl", "python-modules": ["airflow_provider_pgetl.triggers.stream"]}],
        "connection-types": [
            {
                "connection-type": "pgetl",
                "hook-class-name": "airflow_provider_pgetl.hooks.pgetl.PgEtlHook",
                "hook-name": "pgetl (Postgres source)",
            }
        ],
        "db-managers": ["airflow_provider_pgetl.db_manager.PgEtlDBManager"],
        "config": _config(),
    }
