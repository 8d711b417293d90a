"""The overflow column: original text of values that a lake type can't hold, as a map for each row."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from airflow_provider_pgetl.replication.batch import OVERFLOW_TYPE
from airflow_provider_pgetl.replication.decode.vectors import mask, vector


def overflow_map(columns: Mapping[str, pa.Array], rows: int) -> pa.Array:
    """One map for each row, column -> text, from one array of texts for each column; null where there is none."""
    if not columns:
        return pa.nulls(rows, OVERFLOW_TYPE)
    there = np.stack([mask(texts.is_valid()) for texts in columns.values()], axis=1)
    counts = there.sum(axis=1)
    # Entries row by row; the texts stand column by column.
    column = np.nonzero(there)[1]
    of_column = there.sum(axis=0)
    rank = np.cumsum(there, axis=0) - 1 + (np.cumsum(of_column) - of_column)
    texts = pa.concat_arrays([texts.drop_null() for texts in columns.values()])
    keys = pa.array(list(columns), pa.string()).take(vector(column, pa.int64()))
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    # A null offset makes a null map; the last offset only closes the array.
    nothing = np.append(counts == 0, False)
    return pa.MapArray.from_arrays(
        vector(offsets, pa.int32(), nothing), keys, texts.take(vector(rank[there], pa.int64())), type=OVERFLOW_TYPE
    )
