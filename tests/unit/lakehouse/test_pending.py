"""What is seen of spooled changes before SQL is written for them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_pgetl.lakehouse.pending import Pending, inspect
from airflow_provider_pgetl.replication.batch import change_schema
from airflow_provider_pgetl.replication.errors import NotSupported, SpoolCorrupt
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.progress import SpoolFile
from airflow_provider_pgetl.replication.schema import Column, Identity, TableName, TableSchema

KEY = Column("id", 1, 20, 20, -1, -1, 0, "bigint", nullable=False, key=1, identity=True)
NAME = Column("name", 2, 25, 25, -1, -1, 0, "text", nullable=True, toastable=True)
SCHEMA = TableSchema(1, TableName("public", "t"), (KEY, NAME), Identity.DEFAULT)


def _event(operation: str, lsn: int, ordinal: int, key: int | None = None, **more: Any) -> dict[str, Any]:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    return {"_op": operation, "_commit_lsn": lsn, "_ordinal": ordinal, "_committed_at": at, "id": key, **more}


def _file(path: Path, *events: dict[str, Any]) -> SpoolFile:
    pq.write_table(pa.Table.from_pylist(list(events), schema=change_schema(SCHEMA)), path)
    return SpoolFile(1, 1, str(path), len(events), 0, "", Lsn(0), Lsn(0))


def _look(folder: Path, *events: dict[str, Any]) -> Pending:
    half = len(events) // 2
    files = [_file(folder / "1.parquet", *events[:half]), _file(folder / "2.parquet", *events[half:])]
    return inspect(SCHEMA, files, Lsn(100), Lsn(200))


def test_operations_are_counted_within_the_half_open_range(tmp_path: Path) -> None:
    pending = _look(
        tmp_path,
        _event("i", 99, 1, 1),
        _event("i", 100, 1, 2),
        _event("u", 150, 1, 3),
        _event("d", 199, 1, 4),
        _event("d", 200, 1, 5),
    )
    assert (pending.rows, pending.inserts, pending.updates, pending.deletes) == (3, 1, 1, 1)
    assert pending.ranges == ((3, 4),)
    assert not pending.insert_only


def test_inserts_widen_no_range(tmp_path: Path) -> None:
    pending = _look(tmp_path, _event("i", 100, 1, 7), _event("i", 100, 2, 8))
    assert pending.ranges == (None,)
    assert pending.insert_only


def test_a_key_change_is_seen_and_widens_the_range_by_the_old_key(tmp_path: Path) -> None:
    pending = _look(tmp_path, _event("u", 100, 1, 50, _old={"id": 3}), _event("u", 100, 2, 60, _old={"id": 60}))
    assert pending.moved
    assert not pending.moved_unchanged
    assert pending.ranges == ((3, 60),)


def test_an_old_image_of_the_same_key_is_no_key_change(tmp_path: Path) -> None:
    assert not _look(tmp_path, _event("u", 100, 1, 50, _old={"id": 50}), _event("u", 100, 2, 51)).moved


def test_values_that_did_not_travel_are_seen(tmp_path: Path) -> None:
    apart = _look(
        tmp_path, _event("u", 100, 1, 5, _unchanged=["name"]), _event("u", 100, 2, 6, _old={"id": 3}, _unchanged=None)
    )
    assert (apart.unchanged, apart.moved, apart.moved_unchanged) == (True, True, False)
    both = _look(tmp_path, _event("u", 100, 1, 5), _event("u", 100, 2, 6, _old={"id": 3}, _unchanged=["name"]))
    assert both.moved_unchanged


def test_what_precedes_the_last_truncate_does_not_count(tmp_path: Path) -> None:
    pending = _look(
        tmp_path,
        _event("d", 110, 1, 1),
        _event("t", 110, 2),
        _event("u", 110, 3, 2),
        _event("t", 120, 1),
        _event("i", 120, 2, 3),
    )
    assert pending.rows == 5
    assert pending.truncated == (120, 1)
    assert (pending.inserts, pending.updates, pending.deletes) == (1, 0, 0)


def test_a_key_that_became_null_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotSupported, match="key"):
        _look(tmp_path, _event("i", 100, 1, 1), _event("i", 100, 2, None))
    with pytest.raises(NotSupported, match="key"):
        _look(tmp_path, _event("i", 100, 1, 1), _event("u", 100, 2, 2, _old={"id": None}))


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    gone = SpoolFile(1, 1, str(tmp_path / "gone.parquet"), 1, 1, "", Lsn(1), Lsn(1))
    with pytest.raises(SpoolCorrupt):
        inspect(SCHEMA, [gone], Lsn(100), Lsn(200))


def test_no_changes_are_nothing_to_do(tmp_path: Path) -> None:
    assert _look(tmp_path, _event("i", 1, 1, 1), _event("i", 2, 1, 1)) == Pending(Lsn(100), Lsn(200))
