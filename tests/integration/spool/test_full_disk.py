"""A disk that is really full or read-only under the stream: nothing is confirmed, nothing half-written stays, the
walsender lives, and all arrives once there is room again."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from airflow_provider_pgetl.replication.config import BatchConfig
from airflow_provider_pgetl.replication.errors import ConfigError, Retry, SpoolError
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.spool.segments import Spool
from airflow_provider_pgetl.replication.stream import StreamPath
from tests.integration.replication.conftest import Source
from tests.unit.replication.test_spool import tables

SENDER_TIMEOUT_S = 1


@dataclass
class Disk:
    """A small file system of its own."""

    folder: Path

    @property
    def spool(self) -> Path:
        return self.folder / "spool"

    def fill(self, *, but: int = 0) -> None:
        """Leave no more than ``but`` bytes."""
        with (self.folder / "ballast").open("ab", buffering=0) as file:
            while (room := shutil.disk_usage(self.folder).free) > but:
                file.write(b"x" * min(room - but, 65_536))

    def empty(self) -> None:
        (self.folder / "ballast").unlink()

    def read_only(self, *, on: bool) -> None:
        _mount("-o", f"remount,{'ro' if on else 'rw'}", str(self.folder))

    def files(self) -> set[str]:
        return {str(path) for path in self.spool.rglob("*") if path.is_file()}


def _mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    reason = f"a file system can't be mounted here: {done.stderr.strip()}"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    _mount("-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder))
    yield Disk(folder)
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def stream(source: Source, disk: Disk) -> Source:
    """Two tables, spooled onto the small disk; the server gives up on a silent reader after a second."""
    object.__setattr__(source.config, "spool_root", str(disk.spool))
    object.__setattr__(source.config, "batch", BatchConfig(max_fill_ms=50, max_bytes=40_000))
    database = source.rows("select current_database()")[0][0]
    source.execute(
        "create table a (id int primary key, v text)",
        "create table b (id int primary key, v text)",
        "create publication pub for table a, b",
        f"alter database {database} set wal_sender_timeout = '{SENDER_TIMEOUT_S}s'",
    )
    source.discover()
    return source


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 40) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.02)


def insert(source: Source, table: str, first: int, last: int) -> None:
    """Rows of some 90 bytes that no compression makes small."""
    source.execute(
        f"insert into {table} select i, md5(i::text) || md5((-i)::text) from generate_series({first}, {last}) i"
    )


def confirmed(source: Source) -> Lsn:
    query = f"select confirmed_flush_lsn::text from pg_replication_slots where slot_name = '{source.config.slot}'"
    return Lsn.parse(source.rows(query)[0][0])


def walsender(source: Source) -> int | None:
    query = f"select active_pid from pg_replication_slots where slot_name = '{source.config.slot}'"
    pid: int | None = source.rows(query)[0][0]
    return pid


def answered(source: Source, pid: int | None, start: str) -> float | None:
    """Seconds from ``start`` to the reader's last sign of life; None if the walsender is gone."""
    query = f"select extract(epoch from reply_time - '{start}') from pg_stat_replication where pid = {pid or 0}"
    found = source.rows(query)
    return float(found[0][0] or 0) if found else None


def assert_waits(source: Source, path: StreamPath, disk: Disk, reason: str) -> None:
    """It waits for the disk: longer than the server would wait for it, with nothing confirmed or left behind."""
    wait_for(lambda: reason in (path.stats.waiting_for or ""), reason)
    before, sender, reconnects = confirmed(source), walsender(source), path.stats.reconnects
    assert sender is not None
    start = str(source.rows("select clock_timestamp()")[0][0])

    def gone_or_long_alive() -> bool:
        seconds = answered(source, sender, start)
        return seconds is None or seconds > 3 * SENDER_TIMEOUT_S

    wait_for(gone_or_long_alive, "a sign of life past the time-out")
    assert answered(source, sender, start) is not None, "the server gave up on the stream"
    assert (walsender(source), path.stats.reconnects) == (sender, reconnects)
    assert confirmed(source) == before
    wait_for(lambda: not any(file.endswith(".tmp") for file in disk.files()), "nothing half-written between attempts")


def assert_all_arrived(source: Source) -> None:
    for table in ("a", "b"):
        record = next(r for r in source.store.tables(source.config.name) if r.table.name == table)
        found = [(row["id"], row["v"]) for row in source.changes(record)]
        assert found == source.rows(f"select id, v from {table} order by id")


def test_a_full_disk_is_waited_for_and_everything_arrives(stream: Source, disk: Disk) -> None:
    insert(stream, "a", 1, 10)
    with stream.streaming() as path:
        stream.wait_spooled(stream.lsn())
        disk.fill()
        insert(stream, "a", 11, 400)
        insert(stream, "b", 1, 400)
        assert_waits(stream, path, disk, "the disk is full")
        wait_for(lambda: disk.files() <= stream.store.all_paths(stream.config.name), "only what is registered")
        insert(stream, "b", 401, 500)
        disk.empty()
        stream.wait_spooled(stream.lsn(), 60)
        wait_for(lambda: confirmed(stream) >= stream.store.pipeline(stream.config.name).spooled_lsn, "a confirmation")  # type: ignore[union-attr]
        wait_for(lambda: path.stats.waiting_for is None, "the end of waiting")
    assert_all_arrived(stream)
    assert disk.files() == stream.store.all_paths(stream.config.name)


def test_room_for_one_table_only_is_not_eaten_by_repeating(stream: Source, disk: Disk) -> None:
    """The first table's file fits, the second's does not: each attempt gives back what it took."""
    insert(stream, "a", 1, 1)
    insert(stream, "b", 1, 1)
    with stream.streaming() as path:
        stream.wait_spooled(stream.lsn())
        disk.fill(but=24_000)
        before = disk.files()
        stream.execute(
            "begin; insert into a values (2, 'small');"
            " insert into b select i, md5(i::text) || md5((-i)::text) from generate_series(2, 600) i; commit"
        )
        assert_waits(stream, path, disk, "the disk is full")
        wait_for(lambda: disk.files() == before, "a moment between two attempts")
        disk.empty()
        stream.wait_spooled(stream.lsn(), 60)
    assert_all_arrived(stream)


def test_a_large_transaction_in_pieces_waits_in_the_middle(stream: Source, disk: Disk) -> None:
    with stream.streaming() as path:
        insert(stream, "b", 1, 1)
        stream.wait_spooled(stream.lsn())
        disk.fill(but=150_000)
        insert(stream, "a", 1, 60_000)
        assert_waits(stream, path, disk, "the disk is full")
        assert {file.relation_id for file in registered(stream)} == {relation(stream, "b")}
        # 60,000 rows of this kind need more room than the whole disk has.
        disk.empty()
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk.folder)], check=True)
        stream.wait_spooled(stream.lsn(), 60)
    assert_all_arrived(stream)
    assert disk.files() == stream.store.all_paths(stream.config.name)


def relation(source: Source, table: str) -> int:
    return next(r.relation_id for r in source.store.tables(source.config.name) if r.table.name == table)


def registered(source: Source) -> list[object]:
    return [
        file
        for table in ("a", "b")
        for file in source.store.files(source.config.name, relation(source, table), Lsn(0), Lsn(2**62))
    ]


def test_a_read_only_disk_is_waited_for_and_everything_arrives(stream: Source, disk: Disk) -> None:
    insert(stream, "a", 1, 10)
    with stream.streaming() as path:
        stream.wait_spooled(stream.lsn())
        disk.read_only(on=True)
        try:
            insert(stream, "a", 11, 100)
            insert(stream, "b", 1, 100)
            assert_waits(stream, path, disk, "the file system is read-only")
        finally:
            disk.read_only(on=False)
        stream.wait_spooled(stream.lsn(), 60)
    assert_all_arrived(stream)
    assert disk.files() == stream.store.all_paths(stream.config.name)


def test_a_stop_while_the_disk_is_full_loses_nothing(stream: Source, disk: Disk) -> None:
    with stream.streaming() as path:
        insert(stream, "a", 1, 10)
        stream.wait_spooled(stream.lsn())
        disk.fill()
        insert(stream, "a", 11, 400)
        wait_for(lambda: "the disk is full" in (path.stats.waiting_for or ""), "the full disk")
    assert stream.thread is not None
    assert not stream.thread.is_alive()
    disk.empty()
    stream.spool_all()
    assert_all_arrived(stream)
    assert disk.files() == stream.store.all_paths(stream.config.name)


def test_a_stream_that_starts_on_a_read_only_disk_waits(stream: Source, disk: Disk) -> None:
    """With something to sweep: the start itself needs to write."""
    disk.spool.mkdir()
    orphan = disk.spool / stream.config.name / "1" / "1" / "left.tmp"
    orphan.parent.mkdir(parents=True)
    orphan.write_bytes(b"left")
    disk.read_only(on=True)
    try:
        insert(stream, "a", 1, 10)
        with stream.streaming() as path:
            wait_for(lambda: "read-only" in (path.stats.waiting_for or ""), "the read-only disk")
            disk.read_only(on=False)
            stream.wait_spooled(stream.lsn(), 60)
    finally:
        disk.read_only(on=False)
    assert_all_arrived(stream)
    assert not orphan.exists()


def test_the_errors_say_what_is_wrong(disk: Disk) -> None:
    spool = Spool(str(disk.spool), "shop", 1)
    (file,) = spool.write(tables(1))
    disk.fill()
    space = spool.free()
    assert space is not None
    assert space.tight(1_000)
    with pytest.raises(SpoolError, match="the disk is full") as full:
        spool.write(tables(1, 2))
    assert full.value.retry is Retry.TIMED
    with pytest.raises(SpoolError, match="the disk is full"):
        spool.check()
    disk.empty()
    disk.read_only(on=True)
    try:
        with pytest.raises(SpoolError, match="read-only"):
            spool.write(tables(1))
        with pytest.raises(SpoolError, match="read-only"):
            spool.delete([file.path])
        with pytest.raises(ConfigError, match="read-only"):
            spool.check()
        assert spool.read(file).num_rows == 2
    finally:
        disk.read_only(on=False)
    assert disk.files() == {file.path}
