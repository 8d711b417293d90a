from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_pgetl.local.errors import LocalStackError
from airflow_provider_pgetl.local.places import Places
from airflow_provider_pgetl.local.stack import DemoLock, StackInfo, running_stack

INFO = StackInfo(
    pid=1,
    airflow_url="http://127.0.0.1:8080",
    airflow_user="admin",
    airflow_password="secret",
    source_conninfo="dbname=shop",
    state_conninfo="dbname=airflow",
    spark_url="sc://127.0.0.1:15002",
    catalog="lake",
    spool="/spool",
    warehouse="/warehouse",
    logs="/logs",
    ports={"postgres": 5001},
    processes={"postgres": 42},
)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "stack.json"
    INFO.write(path)
    assert StackInfo.read(path) == INFO
    assert path.stat().st_mode & 0o777 == 0o600


def test_missing_and_foreign_files_are_no_stack(tmp_path: Path) -> None:
    assert StackInfo.read(tmp_path / "missing.json") is None
    (tmp_path / "other.json").write_text('{"version": 7}')
    assert StackInfo.read(tmp_path / "other.json") is None


def test_file_of_an_ended_demo_is_not_believed(tmp_path: Path) -> None:
    places = Places(tmp_path)
    places.demo.mkdir()
    INFO.write(places.stack_file)
    with pytest.raises(LocalStackError, match="no demo runs in"):
        running_stack(tmp_path)
    lock = DemoLock(tmp_path)
    lock.take()
    assert running_stack(tmp_path) == INFO
    lock.release()
