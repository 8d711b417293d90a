"""The demo's shop, mirrored into the lake: `shop_copy` and `shop_stream`."""

from __future__ import annotations

from airflow_provider_pgetl.builder import pipeline_dags

copy, stream = pipeline_dags(
    "shop",
    publication="shop",
    source_conn_id="pgetl_source",
    state_conn_id="pgetl_state",
    spark_conn_id="spark_connect_default",
    catalog="lake",
)
