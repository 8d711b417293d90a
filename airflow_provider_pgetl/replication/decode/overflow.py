"""The overflow column: original text of values that a lake type can't hold. Rare, so row by row."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from airflow_provider_pgetl.replication.batch import OVERFLOW_TYPE


def overflow_map(columns: Mapping[str, pa.Array], rows: int) -> pa.Array:
    """One map for each row, column -> text, from one array of texts for each column; null where there is none."""
    if not columns:
        return pa.nulls(rows, OVERFLOW_TYPE)
    entries: list[list[tuple[str, str]] | None] = [None] * rows
    for name, texts in columns.items():
        for row in texts.is_valid().to_numpy(zero_copy_only=False).nonzero()[0]:
            found = entries[row] or []
            found.append((name, texts[int(row)].as_py()))
            entries[row] = found
    return pa.array(entries, OVERFLOW_TYPE)
