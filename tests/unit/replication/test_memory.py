"""The memory monitor over trees of /proc and /sys that the tests write, and once over the machine's own."""

from __future__ import annotations

import logging
import sys
import threading
from pathlib import Path

import pytest

from airflow_provider_pgetl.replication.config import BatchConfig, MemoryBackpressureConfig, PipelineConfig
from airflow_provider_pgetl.replication.memory import MemoryMonitor, Reading

MB = 1_048_576
V1_UNLIMITED = 9_223_372_036_854_771_712


class Machine:
    """Fake trees; figures in MB."""

    def __init__(self, folder: Path) -> None:
        self.proc = folder / "proc"
        self.cgroups = folder / "cgroup"
        (self.proc / "self").mkdir(parents=True)
        self.cgroups.mkdir()
        self.host(1000, 600)

    def host(self, total: int, available: int) -> None:
        text = f"MemTotal:  {total * 1024} kB\nMemFree:   1 kB\nMemAvailable:   {available * 1024} kB\nBuffers: 2 kB\n"
        (self.proc / "meminfo").write_text(text)

    def member_of(self, *lines: str) -> None:
        (self.proc / "self" / "cgroup").write_text("\n".join(lines) + "\n")

    def v2(self, path: str, limit: int | None, current: int = 0, cache: int = 0) -> None:
        text = f"anon 1\ninactive_anon 5\ninactive_file {cache * MB}\nactive_file 7\n"
        self._write(self.cgroups / path.strip("/"), "max", limit, "current", current, text)

    def v1(self, path: str, limit: int | None, current: int = 0, cache: int = 0) -> None:
        text = f"cache 1\ninactive_file 3\ntotal_inactive_file {cache * MB}\n"
        folder = self.cgroups / "memory" / path.strip("/")
        self._write(folder, "limit_in_bytes", limit, "usage_in_bytes", current, text)
        if limit is None:
            (folder / "memory.limit_in_bytes").write_text(f"{V1_UNLIMITED}\n")

    def _write(self, folder: Path, limit_name: str, limit: int | None, usage: str, current: int, stat: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"memory.{limit_name}").write_text("max\n" if limit is None else f"{limit * MB}\n")
        (folder / f"memory.{usage}").write_text(f"{current * MB}\n")
        (folder / "memory.stat").write_text(stat)

    def monitor(self, **settings: object) -> MemoryMonitor:
        given = {"batch": BatchConfig(max_bytes=64 * MB), "memory_refresh_interval_ms": 1, **settings}
        config = PipelineConfig(name="p", publication="p", spool_root="/x", **given)  # type: ignore[arg-type]
        return MemoryMonitor(config, proc=self.proc, cgroups=self.cgroups)

    def read(self) -> tuple[int, int]:
        """(total, used) in MB."""
        monitor = self.monitor()
        monitor.refresh()
        assert monitor.reading is not None
        return monitor.reading.total // MB, monitor.reading.used // MB


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_without_cgroups_the_host_counts(machine: Machine) -> None:
    assert machine.read() == (1000, 400)


def test_a_limit_of_cgroup_v2_counts_without_idle_file_cache(machine: Machine) -> None:
    machine.member_of("0::/pod/box")
    machine.v2("/pod/box", 500, 450, cache=150)
    assert machine.read() == (500, 300)


def test_a_limit_above_ours_binds_us_too(machine: Machine) -> None:
    machine.member_of("0::/pod/box")
    machine.v2("/pod/box", None, 100)
    machine.v2("/pod", 200, 190, cache=10)
    assert machine.read() == (200, 180)


def test_the_lowest_of_several_limits_counts(machine: Machine) -> None:
    machine.member_of("0::/pod/box")
    machine.v2("/pod/box", 300, 280, cache=80)
    machine.v2("/pod", 400, 350)
    assert machine.read() == (300, 200)


def test_in_a_container_our_cgroup_is_at_the_root(machine: Machine) -> None:
    machine.member_of("0::/")
    machine.v2("/", 256, 200, cache=50)
    assert machine.read() == (256, 150)


def test_a_path_of_the_host_that_is_not_mounted_here_falls_back_to_the_root(machine: Machine) -> None:
    machine.member_of("4:memory:/docker/0123", "0::/docker/0123")
    machine.v1("/", 256, 200, cache=50)
    assert machine.read() == (256, 150)


def test_a_limit_of_cgroup_v1_counts(machine: Machine) -> None:
    machine.member_of("5:cpu,cpuacct:/x", "4:hugetlb,memory:/box", "0::/")
    machine.v1("/box", 500, 450, cache=150)
    assert machine.read() == (500, 300)


@pytest.mark.parametrize("limit", [None, 2000])
def test_a_limit_above_the_host_is_none(machine: Machine, limit: int | None) -> None:
    machine.member_of("4:memory:/box", "0::/box")
    machine.v1("/box", limit, 50)
    machine.v2("/box", limit, 50)
    assert machine.read() == (1000, 400)


def test_a_limit_that_is_changed_is_noticed(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_provider_pgetl.replication.memory._READINGS_PER_LOOKUP", 2)
    machine.member_of("0::/box")
    machine.v2("/box", 500, 100)
    monitor = machine.monitor()
    monitor.refresh()
    machine.v2("/box", 200, 100)
    for _ in range(2):
        monitor.refresh()
    assert monitor.reading == Reading(200 * MB, 100 * MB)


def test_pressure_begins_at_one_threshold_and_ends_below_the_other(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monitor = machine.monitor()
    seen = []
    for available in (160, 150, 200, 249, 250, 251, 200, 151, 150):
        machine.host(1000, available)
        monitor.refresh()
        seen.append(monitor.pressed)
    assert seen == [False, True, True, True, True, False, False, False, True]
    assert (monitor.transitions, monitor.activations) == (3, 2)
    assert [record.getMessage() for record in caplog.records] == [
        "memory is short, batches are written early: 891 of 1049 MB are used",
        "there is memory again: 785 of 1049 MB are used",
        "memory is short, batches are written early: 891 of 1049 MB are used",
    ]


def test_other_thresholds_hold(machine: Machine) -> None:
    monitor = machine.monitor(memory_backpressure=MemoryBackpressureConfig(0.5, 0.4))
    machine.host(1000, 500)
    monitor.refresh()
    assert monitor.pressed
    machine.host(1000, 601)
    monitor.refresh()
    assert not monitor.pressed


def test_idle_cache_presses_nobody_whatever_the_threshold(machine: Machine) -> None:
    machine.member_of("0::/box")
    machine.v2("/box", 500, 240, cache=200)
    monitor = machine.monitor(memory_backpressure=MemoryBackpressureConfig(0.4, 0.3))
    monitor.refresh()
    assert (monitor.reading, monitor.pressed) == (Reading(500 * MB, 40 * MB), False)


def test_without_backpressure_nobody_is_pressed_and_the_budget_holds(machine: Machine) -> None:
    machine.host(100, 0)
    monitor = machine.monitor(memory_backpressure=None)
    monitor.refresh()
    assert not monitor.pressed
    assert monitor.budget(1) == 20 * MB


@pytest.mark.parametrize(("streams", "wanted"), [(1, 64), (3, 64), (4, 50), (20, 10), (0, 64)])
def test_the_budget_is_a_share_of_the_memory_and_never_above_the_batch(
    machine: Machine, streams: int, wanted: int
) -> None:
    monitor = machine.monitor()
    monitor.refresh()
    assert monitor.budget(streams) == wanted * MB


def test_where_there_is_no_proc_nobody_is_pressed(tmp_path: Path) -> None:
    config = PipelineConfig(name="p", publication="p", spool_root="/x", memory_refresh_interval_ms=1)
    with MemoryMonitor(config, proc=tmp_path / "none", cgroups=tmp_path / "none") as monitor:
        assert monitor.reading is None
        assert not monitor.pressed
        assert monitor.budget(1000) == config.batch.max_bytes


@pytest.mark.parametrize("text", ["", "MemTotal: 1 kB\n", "MemTotal: x kB\nMemAvailable: 1 kB\n"])
def test_figures_that_nobody_understands_are_none(machine: Machine, text: str) -> None:
    (machine.proc / "meminfo").write_text(text)
    monitor = machine.monitor()
    monitor.refresh()
    assert (monitor.reading, monitor.pressed) == (None, False)


def test_a_cgroup_that_vanishes_gives_way_to_the_host(machine: Machine) -> None:
    machine.member_of("0::/box")
    machine.v2("/box", 100, 99)
    monitor = machine.monitor()
    monitor.refresh()
    assert monitor.pressed
    for file in (machine.cgroups / "box").iterdir():
        file.unlink()
    monitor.refresh()
    assert not monitor.pressed
    monitor.refresh()
    assert monitor.reading == Reading(1000 * MB, 400 * MB)


def test_a_thread_follows_until_it_is_stopped(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    pressed = threading.Event()
    with machine.monitor() as monitor:
        monitor.start()
        assert [thread.name for thread in threading.enumerate()].count("pgetl-memory") == 1
        original = monitor.refresh

        def noted() -> None:
            original()
            if monitor.pressed:
                pressed.set()

        monkeypatch.setattr(monitor, "refresh", noted)
        machine.host(1000, 10)
        assert pressed.wait(30)
    assert not monitor.pressed
    assert "pgetl-memory" not in [thread.name for thread in threading.enumerate()]
    monitor.stop()
    with monitor:
        assert monitor.pressed, "it can be started again"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")
def test_the_machine_itself_is_read() -> None:
    config = PipelineConfig(name="p", publication="p", spool_root="/x")
    with MemoryMonitor(config) as monitor:
        assert monitor.reading is not None
        assert 0 < monitor.reading.used < monitor.reading.total
        assert monitor.budget(1) > 0
