"""The usual pair of DAGs for one pipeline, by one call.

``<name>_copy``    discover ▶ copy, mapped over the tables; clear one task to copy its table again
``<name>_stream``  one task in the triggerer, begun anew for ever

Two DAGs, because the stream must never be downstream of a copy: clearing a copy would clear the stream with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from airflow.sdk import DAG

from airflow_provider_pgetl.hooks.pgetl import CATALOG, SOURCE_CONN_ID, SPARK_CONN_ID
from airflow_provider_pgetl.operators.copy import PgInitialCopyOperator
from airflow_provider_pgetl.operators.discover import PgDiscoverTablesOperator
from airflow_provider_pgetl.operators.stream import PgStreamOperator

# Both schedules begin "since ever"; without a start date neither of them begins at all.
START_DATE = datetime(2026, 1, 1, tzinfo=UTC)
RETRIED: Mapping[str, Any] = {"retries": 3, "retry_delay": timedelta(seconds=15)}


class PipelineDags(NamedTuple):
    """Both DAGs; bind them to names at the top of a DAG file."""

    copy: DAG
    stream: DAG


def pipeline_dags(
    name: str,
    *,
    publication: str,
    source_conn_id: str = SOURCE_CONN_ID,
    state_conn_id: str | None = None,
    spark_conn_id: str = SPARK_CONN_ID,
    catalog: str = CATALOG,
    spool_root: str | None = None,
    options: Mapping[str, Any] | None = None,
    copy_schedule: str | None = "@once",
    tables_at_once: int = 4,
    wait_ready: bool = True,
    max_runtime: timedelta | float | None = None,
    default_args: Mapping[str, Any] | None = None,
    tags: Sequence[str] = ("pgetl",),
) -> PipelineDags:
    """Make ``<name>_copy`` and ``<name>_stream``.

    :param name: the pipeline's name; its slot is ``pgetl_<name>``.
    :param publication: the publication on the source.
    :param state_conn_id: default: ``[pgetl] state_conn_id``.
    :param spool_root: default: ``[pgetl] spool_root``.
    :param options: further settings of the pipeline by name.
    :param copy_schedule: when tables are discovered and copied; tables that are ready are skipped.
    :param tables_at_once: how many tables are copied side by side.
    :param wait_ready: a copy task ends when its table is ``ready``, not already at ``sync_wait``.
    :param max_runtime: how long one run of the stream lasts; default: until it is stopped.
    """
    common: dict[str, Any] = {
        "pipeline": name,
        "publication": publication,
        "source_conn_id": source_conn_id,
        "state_conn_id": state_conn_id,
        "spool_root": spool_root,
        "options": dict(options or {}),
    }
    lake: dict[str, Any] = {"spark_conn_id": spark_conn_id, "catalog": catalog}
    dag: dict[str, Any] = {
        "start_date": START_DATE,
        "catchup": False,
        "max_active_runs": 1,
        "tags": list(tags),
    }
    given = dict(default_args or {})
    with DAG(
        f"{name}_copy",
        schedule=copy_schedule,
        description=f"Copy the tables of {name}",
        default_args={**RETRIED, **given},
        **dag,
    ) as copy:
        tables = PgDiscoverTablesOperator(task_id="discover", **common)
        PgInitialCopyOperator.partial(
            task_id="copy",
            map_index_template="{{ task.table }}",
            max_active_tis_per_dagrun=tables_at_once,
            wait_ready=wait_ready,
            **common,
            **lake,
        ).expand(table=tables.output)
    with DAG(
        f"{name}_stream",
        schedule="@continuous",
        description=f"Stream the changes of {name}",
        default_args=given,
        **dag,
    ) as stream:
        PgStreamOperator(task_id="stream", max_runtime=max_runtime, **common, **lake)
    return PipelineDags(copy, stream)
