"""Settings of a pipeline from arguments and the section ``[pgetl]``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from airflow.sdk.configuration import conf

from airflow_provider_pgetl.replication.config import PipelineConfig
from airflow_provider_pgetl.replication.errors import ConfigError

SECTION = "pgetl"
_GIVEN_BY_NAME = frozenset({"name", "publication", "spool_root", "pg_connection"})


def state_conn_id() -> str:
    """The connection of the state database."""
    return str(conf.get(SECTION, "state_conn_id", fallback="pgetl_state"))


def seconds(name: str, default: float) -> float:
    """A duration of the section."""
    return float(conf.getfloat(SECTION, name, fallback=default))


def pipeline_config(
    name: str, publication: str, spool_root: str | None = None, options: Mapping[str, Any] | None = None
) -> PipelineConfig:
    """The pipeline's settings; ``options`` are the other fields of ``PipelineConfig``, ``batch`` as a mapping."""
    given = dict(options or {})
    known = {field.name for field in dataclasses.fields(PipelineConfig)} - _GIVEN_BY_NAME
    if unknown := sorted(set(given) - known):
        raise ConfigError(
            f"unknown options of pipeline {name}: {', '.join(unknown)}",
            hint=f"Known are {', '.join(sorted(known))}.",
        )
    try:
        root = spool_root or str(conf.get(SECTION, "spool_root", fallback=""))
        _refuse_secrets(root)
        return PipelineConfig(name=name, publication=publication, spool_root=root, **given)
    except TypeError as error:
        raise ConfigError(f"an option of pipeline {name} can't be used: {error}") from error


def _refuse_secrets(root: str) -> None:
    """An argument of an operator is kept in clear: keys do not belong there."""
    parts = urlsplit(root)
    if "://" in root and (parts.username or parts.password or parts.query):
        raise ConfigError(
            "the spool's URL holds keys or options",
            hint="Give the bucket and path only; keys come from the environment (AWS_ACCESS_KEY_ID, a role, ...).",
        )
