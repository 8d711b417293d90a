"""The half of a copy that runs in Spark's Python worker: reads one partition and yields it as Arrow.

The worker's Python must have this package. The source's conninfo comes as a file among the session's artifacts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa


def reader(
    *, source_file: str, snapshot: str, select: str, schema: str, lsn: int
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function that Spark calls for its one input row. Only plain values go with it into the plan."""

    def read(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # Spark may hand over an empty partition; without an input row there is nothing to read.
        wanted = sum(batch.num_rows for batch in rows)
        if not wanted:
            return
        from airflow_provider_pgetl.lakehouse.copy_worker import read_rows

        yield from read_rows(source_file, snapshot, select, schema, lsn)

    return read


def read_rows(source_file: str, snapshot: str, select: str, schema: str, lsn: int) -> Iterator[pa.RecordBatch]:
    """Read one partition under the snapshot."""
    from pyspark import SparkFiles

    from airflow_provider_pgetl.replication.lsn import Lsn
    from airflow_provider_pgetl.replication.schema import TableSchema
    from airflow_provider_pgetl.replication.table_copy import read_partition

    source = Path(SparkFiles.get(source_file)).read_text()
    yield from read_partition(source, snapshot, select, TableSchema.from_json(schema), Lsn(lsn))
