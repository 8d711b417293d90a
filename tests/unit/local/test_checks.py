from __future__ import annotations

import socket
from pathlib import Path

import pytest

from airflow_provider_pgetl.local import checks
from airflow_provider_pgetl.local.checks import GIGABYTE
from airflow_provider_pgetl.local.errors import CheckFailed
from airflow_provider_pgetl.local.process import free_port
from airflow_provider_pgetl.local.stack import DemoLock


def test_port_in_use_is_named_with_the_way_out() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(CheckFailed, match=rf"port {port} \(Airflow\) is in use; choose another with --port"):
            checks.check_ports({"Airflow": port})


def test_free_port_passes() -> None:
    checks.check_ports({"Airflow": free_port()})


def test_number_that_is_no_port_is_refused() -> None:
    with pytest.raises(CheckFailed, match="70000 is no port"):
        checks.check_ports({"Airflow": 70000})


def test_too_little_memory_tells_both_numbers() -> None:
    with pytest.raises(CheckFailed, match=r"too little free memory: 2\.0 GB, the demo needs 3\.5 GB"):
        checks.check_memory(available=lambda: 2 * GIGABYTE)


def test_enough_memory_passes() -> None:
    checks.check_memory(available=lambda: 4 * GIGABYTE)


def test_memory_limit_of_a_container_counts(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text(f"{3 * GIGABYTE}\n")
    (tmp_path / "memory.current").write_text(f"{2 * GIGABYTE}\n")
    (tmp_path / "memory.stat").write_text(f"anon 5\ninactive_file {GIGABYTE // 2}\n")
    assert list(checks.container_memory(tmp_path)) == [GIGABYTE + GIGABYTE // 2]


def test_container_without_a_limit_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("max\n")
    assert list(checks.container_memory(tmp_path)) == []


def test_too_little_disk_is_told(tmp_path: Path) -> None:
    with pytest.raises(CheckFailed, match="too little free disk"):
        checks.check_disk(tmp_path, free=lambda _: GIGABYTE)


def test_home_below_a_file_is_not_writable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckFailed, match=r"no write permission in .*; choose another folder with --home"):
        checks.check_writable(tmp_path / "file" / "home")


def test_running_demo_is_told_with_its_pid(tmp_path: Path) -> None:
    lock = DemoLock(tmp_path)
    lock.take()
    with pytest.raises(CheckFailed, match=r"a demo already runs in .* \(pid \d+\)"):
        checks.check_not_running(tmp_path)
    lock.release()
    checks.check_not_running(tmp_path)


def test_missing_dags_are_told(tmp_path: Path) -> None:
    with pytest.raises(CheckFailed, match="no example DAGs"):
        checks.check_dags(tmp_path / "dags")


def test_all_problems_are_told_one_line_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "available_memory", lambda: GIGABYTE)
    monkeypatch.setenv("PGETL_JAVA", str(tmp_path / "no-java"))
    found = checks.failures(tmp_path, {"Airflow": free_port()})
    assert [line.partition(":")[0] for line in found][:2] == [
        "too little free memory",
        "Spark 4.1 needs Java 17 or 21",
    ]
    assert all("\n" not in line for line in found)
