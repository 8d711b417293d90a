"""What Airflow is told about this provider."""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """Return the provider's description; Airflow reads it through the entry point."""
    return {
        "package-name": "airflow-provider-pgetl",
        "name": "pgetl",
        "description": "Mirror PostgreSQL tables into Apache Iceberg in near real time.",
        "versions": ["0.1.0"],
    }
