"""Mirror PostgreSQL tables into Apache Iceberg in near real time, from Apache Airflow."""

from __future__ import annotations

__version__ = "0.1.0"
