"""What the operators share: which pipeline, and by which connections it is reached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import BaseOperator, Context

from airflow_provider_pgetl.hooks.pgetl import SOURCE_CONN_ID, SPARK_CONN_ID, PgEtlHook
from airflow_provider_pgetl.hooks.settings import pipeline_config
from airflow_provider_pgetl.replication.config import PipelineConfig


class PgEtlOperator(BaseOperator):
    """An operator of one pipeline.

    :param pipeline: its name, ``[a-z][a-z0-9_]{0,39}``; the slot is ``pgetl_<name>``.
    :param publication: the publication on the source.
    :param source_conn_id: the Postgres to mirror.
    :param state_conn_id: the Postgres with the schema ``pgetl``; default: ``[pgetl] state_conn_id``.
    :param spool_root: durable storage for changes on their way; default: ``[pgetl] spool_root``.
    :param options: further settings of the pipeline by name, such as ``max_copy_connections_per_table``.
    """

    template_fields: Sequence[str] = ("pipeline", "publication", "source_conn_id", "state_conn_id", "spool_root")

    def __init__(
        self,
        *,
        pipeline: str,
        publication: str,
        source_conn_id: str = SOURCE_CONN_ID,
        state_conn_id: str | None = None,
        spool_root: str | None = None,
        options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.pipeline = pipeline
        self.publication = publication
        self.source_conn_id = source_conn_id
        self.state_conn_id = state_conn_id
        self.spool_root = spool_root
        self.options = dict(options or {})

    @property
    def config(self) -> PipelineConfig:
        """The pipeline's settings."""
        return pipeline_config(self.pipeline, self.publication, self.spool_root, self.options)

    def hook(self, spark_conn_id: str = SPARK_CONN_ID) -> PgEtlHook:
        """The hook of this pipeline."""
        return PgEtlHook(self.source_conn_id, state_conn_id=self.state_conn_id, spark_conn_id=spark_conn_id)


def who(context: Context) -> str:
    """Who does something, for the history: DAG, task and try."""
    ti = context["ti"]
    mapped = "" if ti.map_index is None or ti.map_index < 0 else f"[{ti.map_index}]"
    return f"{ti.dag_id}.{ti.task_id}{mapped} try {ti.try_number}"
