"""Spool files in a local folder: whole or not there, durable, verified, swept."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_pgetl.replication import failpoints
from airflow_provider_pgetl.replication.config import PipelineConfig
from airflow_provider_pgetl.replication.errors import ConfigError, SpoolCorrupt, SpoolError
from airflow_provider_pgetl.replication.progress import SpoolFile
from airflow_provider_pgetl.replication.spool import local
from airflow_provider_pgetl.replication.spool.place import Space, shown
from airflow_provider_pgetl.replication.spool.segments import Spool, TableVersion

SECRET = "do-not-tell"


def changes(*lsns: int) -> list[pa.RecordBatch]:
    rows = {"_commit_lsn": pa.array(lsns, pa.int64()), "_op": ["i"] * len(lsns), "cell": [SECRET] * len(lsns)}
    return [pa.RecordBatch.from_pydict(rows)]


def tables(*relations: int) -> dict[TableVersion, list[pa.RecordBatch]]:
    return {(relation, 1): changes(10, 20) for relation in relations}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "made" / "on" / "the way"


@pytest.fixture
def spool(root: Path) -> Spool:
    return Spool(str(root), "shop", 7)


def files_under(root: Path) -> set[str]:
    return {str(path) for path in root.rglob("*") if path.is_file()}


def test_another_instance_reads_what_was_written(spool: Spool, root: Path) -> None:
    one, two = spool.write({(1, 1): changes(10, 30, 20), (2, 3): changes(40)})
    assert (one.rows, one.first_lsn, one.last_lsn) == (3, 10, 30)
    assert one.path.startswith(f"{root}/shop/1/1/000000000000000A-000000000000001E-7-")
    assert (two.relation_id, two.schema_version, two.bytes) == (2, 3, Path(two.path).stat().st_size)
    assert Spool(str(root), "shop", 8).read(one)["_commit_lsn"].to_pylist() == [10, 30, 20]


def test_a_file_url_is_the_folder(spool: Spool, root: Path) -> None:
    (file,) = spool.write(tables(1))
    url = root.as_uri()
    assert "%20" in url
    assert Spool(url, "shop", 8).read(file).num_rows == 2
    (second,) = Spool(url, "shop", 8).write(tables(1))
    assert second.path.startswith(f"{root}/shop/")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "bytes, not"),
        (lambda path: path.write_bytes(b""), "0 bytes, not"),
        (lambda path: path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:]), "was altered"),
        (lambda path: path.unlink(), "is missing"),
    ],
    ids=["truncated", "empty", "altered", "missing"],
)
def test_a_damaged_file_is_named_and_its_content_is_not(
    spool: Spool, damage: Callable[[Path], object], message: str
) -> None:
    (file,) = spool.write(tables(1))
    damage(Path(file.path))
    with pytest.raises(SpoolCorrupt, match=message) as caught:
        spool.read(file)
    assert file.path in str(caught.value)
    assert SECRET not in repr(caught.value)


def test_a_location_that_is_not_mounted_is_waited_for(spool: Spool, root: Path) -> None:
    (file,) = spool.write(tables(1))
    (root / "shop").rename(root / "elsewhere")
    for step in (
        lambda: spool.read(file),
        lambda: spool.missing([file.path]),
        lambda: spool.sweep({file.path}, durable=True),
    ):
        with pytest.raises(SpoolError, match="is gone") as caught:
            step()
        assert not isinstance(caught.value, SpoolCorrupt)
    assert spool.sweep({file.path}) == 0, "a spool that may be lost begins anew"
    (root / "elsewhere").rename(root / "shop")
    assert spool.read(file).num_rows == 2


def test_missing_files_are_found(spool: Spool) -> None:
    one, two = spool.write(tables(1, 2))
    assert spool.missing([one.path, two.path]) == set()
    Path(one.path).unlink()
    assert spool.missing([one.path, two.path]) == {one.path}


def test_a_sweep_takes_what_nobody_registered_and_touches_no_other_pipeline(spool: Spool, root: Path) -> None:
    (kept,) = spool.write(tables(1))
    spool.write(tables(1, 2, 3))
    half = Path(kept.path).with_suffix(".tmp")
    half.write_bytes(b"half")
    (other,) = Spool(str(root), "shop_2", 1).write(tables(1))
    (root / "README").write_text("not ours")
    assert spool.sweep({kept.path}) == 4
    assert files_under(root) == {kept.path, other.path, str(root / "README")}
    assert {path.name for path in (root / "shop").iterdir()} == {"1"}, "empty folders stayed"
    assert spool.sweep({kept.path}) == 0


def test_a_sweep_of_nothing_makes_nothing(spool: Spool, root: Path) -> None:
    assert spool.sweep(set()) == 0
    assert not root.exists()


def test_an_overtaken_writer_may_write_while_the_new_owner_sweeps(
    spool: Spool, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zombie = Spool(str(root), "shop", 6)
    (registered,) = spool.write(tables(1))
    original = local.LocalPlace.found

    def found_and_written(place: local.LocalPlace, folder: str) -> set[str]:
        found = original(place, folder)
        late.extend(zombie.write(tables(1)))
        return found

    late: list[SpoolFile] = []
    monkeypatch.setattr(local.LocalPlace, "found", found_and_written)
    assert spool.sweep({registered.path}) == 0
    monkeypatch.undo()
    assert Path(late[0].path).exists()
    assert spool.sweep({registered.path}) == 1
    assert files_under(root) == {registered.path}


def test_a_folder_that_vanishes_while_it_is_written_to_is_made_again(spool: Spool, root: Path) -> None:
    """Removing empty folders and writing may meet: between making the folder and the file."""
    (first,) = spool.write(tables(1))
    spool.delete([first.path])
    original, removed = local._sync_folder, []

    def sync_and_remove(folder: Path) -> None:
        original(folder)
        if not removed and folder.parent == root / "shop":
            removed.append(folder)
            spool.remove_empty_folders()

    with pytest.MonkeyPatch.context() as patch:
        spool.remove_empty_folders()
        patch.setattr(local, "_sync_folder", sync_and_remove)
        (second,) = spool.write(tables(1))
    assert removed
    assert spool.read(second).num_rows == 2


def test_deleting_twice_is_no_error(spool: Spool) -> None:
    (file,) = spool.write(tables(1))
    spool.delete([file.path])
    spool.delete([file.path])
    assert not Path(file.path).exists()


def test_a_file_is_synced_before_it_gets_its_name_and_its_folders_after(
    spool: Spool, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def noted_fsync(handle: int) -> None:
        fsync(handle)
        steps.append(f"sync {Path(f'/proc/self/fd/{handle}').readlink()}")

    def noted_rename(self: Path, target: Path) -> Path:
        steps.append(f"rename {target}")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "rename", noted_rename)
    (file,) = spool.write(tables(1))
    final = Path(file.path)
    made = steps[: steps.index(f"sync {final.with_suffix('.tmp')}")]
    assert steps[len(made) :] == [f"sync {final.with_suffix('.tmp')}", f"rename {final}", f"sync {final.parent}"]
    for folder in [final.parent, *final.parent.parents]:
        assert f"sync {folder}" in made, "a new folder is durable when the one above it is synced"
        if folder == tmp_path:
            break
    steps.clear()
    spool.write(tables(1))
    assert len(steps) == 3, "what is durable is not synced again"


@pytest.mark.parametrize("step", ["fsync", "rename"])
def test_a_write_that_fails_leaves_nothing_of_any_table(
    spool: Spool, root: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    (kept,) = spool.write(tables(2))
    owner: Any = os if step == "fsync" else Path
    original, calls = getattr(owner, step), []

    def full(*arguments: Any) -> Any:
        calls.append(step)
        if len(calls) > 3:
            raise OSError(28, "No space left on device")
        return original(*arguments)

    monkeypatch.setattr(owner, step, full)
    with pytest.raises(SpoolError, match="the spool can't be written: the disk is full"):
        spool.write(tables(1, 2, 3, 4, 5, 6))
    monkeypatch.undo()
    assert files_under(root) == {kept.path}


def test_a_crash_after_a_write_leaves_only_what_is_swept(spool: Spool, root: Path) -> None:
    failpoints.arm("spool.written")
    try:
        with pytest.raises(failpoints.Failpoint):
            spool.write(tables(1, 2))
    finally:
        failpoints.disarm()
    assert len(files_under(root)) == 1
    assert Spool(str(root), "shop", 8).sweep(set()) == 1


def test_the_check_leaves_nothing_behind(spool: Spool, root: Path) -> None:
    spool.check()
    assert files_under(root) == set()


def test_a_file_in_the_way_is_a_setting_to_correct(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="can't be used"):
        Spool(str(tmp_path / "file"), "shop", 1).check()


def test_free_space_is_told_before_the_folder_exists(spool: Spool, root: Path) -> None:
    space = spool.free()
    assert space is not None
    assert 0 <= space.free <= space.total
    assert not root.exists()


@pytest.mark.parametrize(
    ("free", "batch", "low", "tight"),
    [(500, 10, False, False), (99, 10, True, False), (100, 25, False, False), (399, 100, True, True)],
)
def test_people_are_told_at_a_tenth_or_four_batches(free: int, batch: int, low: bool, tight: bool) -> None:
    space = Space(total=1000, free=free)
    assert (space.low(batch), space.tight(batch)) == (low, tight)


@pytest.mark.parametrize(
    ("root", "wanted"),
    [
        ("s3://key:do-not-tell@bucket/a/b?endpoint_override=host:1&scheme=http", "s3://bucket/a/b"),
        ("s3a://bucket", "s3a://bucket"),
        ("gs://anonymous@bucket/a?token=do-not-tell", "gs://bucket/a"),
        ("abfs://box:do-not-tell@name.dfs.core.windows.net/a", "abfs://box@name.dfs.core.windows.net/a"),
        ("abfs://box@name.dfs.core.windows.net/a?x=do-not-tell", "abfs://box@name.dfs.core.windows.net/a"),
        ("foo://u:p@do-not-tell@host/a#do-not-tell", "foo://host/a"),
        ("s3://key:do-not-tell/x@bucket/a", "s3://"),
        ("s3://key:do-not-tell?x@bucket/a", "s3://"),
        ("/srv/spool", "/srv/spool"),
    ],
)
def test_a_location_is_shown_without_secrets(root: str, wanted: str) -> None:
    assert shown(root) == wanted


@pytest.mark.parametrize(
    ("root", "options"),
    [
        ("foo://user:do-not-tell@host/a", {}),
        ("s3:///a?secret=do-not-tell", {}),
        ("s3://key:do-not-tell@bucket/a?conect_timeout=3", {}),
        ("s3://key@bucket/a?region=do-not-tell", {}),
        ("s3://key:do-not-tell/x@bucket/a", {}),
        ("s3://bucket/a", {"secret": "do-not-tell"}),
        ("s3://bucket/a", {"secret_key": "do-not-tell"}),
        ("gs://bucket/a", {"secret_key": "do-not-tell"}),
        ("/srv/spool", {"secret_key": "do-not-tell"}),
        ("file://host/do-not-tell-is-in-the-path", {"region": "x"}),
    ],
)
def test_a_wrong_location_is_refused_without_telling_secrets(root: str, options: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        Spool(root, "shop", 1, options)
    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET not in repr(error) + str(error)
        error = error.__cause__


def test_a_shown_config_tells_no_keys() -> None:
    config = PipelineConfig(name="p", publication="pub", spool_root=f"s3://key:{SECRET}@bucket/a")
    assert SECRET not in repr(config)
