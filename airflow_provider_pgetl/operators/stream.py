"""Stream the changes of a pipeline, in the triggerer."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NoReturn

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException
from airflow.triggers.base import StartTriggerArgs

from airflow_provider_pgetl.hooks.pgetl import CATALOG, SPARK_CONN_ID
from airflow_provider_pgetl.operators.base import PgEtlOperator

TRIGGER = "airflow_provider_pgetl.triggers.stream.PgStreamTrigger"
# Enough to ride out a broken deployment of some minutes; each run of the DAG has them anew.
RETRIES = 5
RETRY_DELAY = timedelta(seconds=15)


class PgStreamOperator(PgEtlOperator):
    """Mirror the changes until it is stopped, or for ``max_runtime``; holds no worker slot.

    It begins and ends in the triggerer (``PgStreamTrigger``) and never has an execution timeout, whatever the
    deployment's default is. Clearing it resumes from the ledger. Never put it downstream of a copy.

    :param spark_conn_id: the Spark Connect server.
    :param catalog: the Iceberg catalog that the server knows.
    :param max_runtime: end with success after this time; with ``@continuous`` the next run takes over.
    """

    template_fields: Sequence[str] = (*PgEtlOperator.template_fields, "spark_conn_id", "catalog")
    start_from_trigger = True

    def __init__(
        self,
        *,
        spark_conn_id: str = SPARK_CONN_ID,
        catalog: str = CATALOG,
        max_runtime: timedelta | float | None = None,
        retries: int | None = RETRIES,
        retry_delay: timedelta | float = RETRY_DELAY,
        **kwargs: Any,
    ) -> None:
        super().__init__(retries=retries, retry_delay=retry_delay, **kwargs)
        self.spark_conn_id = spark_conn_id
        self.catalog = catalog
        self.max_runtime = max_runtime.total_seconds() if isinstance(max_runtime, timedelta) else max_runtime
        self.execution_timeout = None
        self.start_trigger_args = StartTriggerArgs(
            trigger_cls=TRIGGER, trigger_kwargs=self.trigger_arguments(), next_method="execute_complete", timeout=None
        )

    def trigger_arguments(self) -> dict[str, Any]:
        """The trigger's arguments; they are stored in clear, so they are names, never secrets."""
        return {
            "pipeline": self.pipeline,
            "publication": self.publication,
            "source_conn_id": self.source_conn_id,
            "state_conn_id": self.state_conn_id,
            "spark_conn_id": self.spark_conn_id,
            "catalog": self.catalog,
            "spool_root": self.spool_root,
            "options": self.options,
            "max_runtime": self.max_runtime,
        }

    def execute(self, context: Context) -> NoReturn:
        """Go to the triggerer; only where the task did not begin there."""
        from airflow_provider_pgetl.triggers.stream import PgStreamTrigger

        self.defer(trigger=PgStreamTrigger(**self.trigger_arguments()), method_name="execute_complete")

    def execute_complete(self, context: Context, event: Any = None) -> Any:
        """End as the trigger ended, where its last event came to a worker."""
        if event not in (None, "success"):
            raise AirflowFailException(f"the stream ended with {event}; its log has the reason and what to do")
        return event
