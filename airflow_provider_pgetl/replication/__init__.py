"""The replication engine: Postgres to Arrow to spool to destination. It imports no Airflow and no Spark.

    Postgres ─▶ source/stream ─▶ decode ─▶ spool ─▶ apply ─▶ destination       the stream path: stream.py, apply.py
     (slot)  ◀─ confirm ◀─ ledger in the store ◀┘
    Postgres ─▶ source/snapshot ─▶ partitions ─▶ destination ─▶ apply          the copy path: table_copy.py, copier.py

| step                                                        | where                                       |
|-------------------------------------------------------------|---------------------------------------------|
| what is published, may it be, the slot                      | ``discover``, ``source/``                   |
| where to begin: slot, ledger, timeline                      | ``origin``                                  |
| frames to Arrow, thousands of messages at once              | ``decode/``                                 |
| which shape a table has where                               | ``relations``, ``evolution``                |
| durable files and their ledger                              | ``spool/``, ``store/``                      |
| every table to one LSN                                      | ``apply``, ``delivery`` for rows and events |
| what Postgres does not send: publication, partitions, slot  | ``watch``                                   |
| all of it as one object                                     | ``pipeline``                                |

The names below are the library; they are loaded when first used, since some of them bring Arrow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_pgetl.replication.config import BatchConfig, PgConnectionConfig, PipelineConfig
    from airflow_provider_pgetl.replication.destinations.http import HttpDestination
    from airflow_provider_pgetl.replication.destinations.memory import MemoryDestination
    from airflow_provider_pgetl.replication.destinations.null import NullDestination
    from airflow_provider_pgetl.replication.pipeline import Pipeline
    from airflow_provider_pgetl.replication.store.memory import MemoryStore
    from airflow_provider_pgetl.replication.store.postgres import PostgresStore

__all__ = [
    "BatchConfig",
    "HttpDestination",
    "MemoryDestination",
    "MemoryStore",
    "NullDestination",
    "PgConnectionConfig",
    "Pipeline",
    "PipelineConfig",
    "PostgresStore",
]

_ROOMS = {
    "BatchConfig": "config",
    "HttpDestination": "destinations.http",
    "MemoryDestination": "destinations.memory",
    "MemoryStore": "store.memory",
    "NullDestination": "destinations.null",
    "PgConnectionConfig": "config",
    "Pipeline": "pipeline",
    "PipelineConfig": "config",
    "PostgresStore": "store.postgres",
}


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_ROOMS[name]}"), name)
