"""The spool in an object store: a real S3 server process, stopped, refusing, hanging."""

from __future__ import annotations

import logging
import pickle
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_pgetl.replication.errors import ConfigError, PgEtlError, Retry, SpoolCorrupt, SpoolError
from airflow_provider_pgetl.replication.spool.segments import Spool, TableVersion
from tests.integration.replication.conftest import Source
from tests.integration.spool.conftest import BUCKET, KEY, SECRET, S3Server

CELL = "cell-value"
QUICK = {"connect_timeout": 1, "request_timeout": 1}


def changes(*lsns: int, size: int = 1) -> list[pa.RecordBatch]:
    rows = {
        "_commit_lsn": pa.array(lsns, pa.int64()),
        "_op": ["i"] * len(lsns),
        "cell": [CELL * size] * len(lsns),
    }
    return [pa.RecordBatch.from_pydict(rows)]


def tables(*relations: int) -> dict[TableVersion, list[pa.RecordBatch]]:
    return {(relation, 1): changes(10, 20) for relation in relations}


def spool_in(s3: S3Server, root: str = f"s3://{BUCKET}/deep", **options: Any) -> Spool:
    return Spool(root, "shop", 7, {**s3.options, **s3.keys, **options})


def assert_tells_no_secret(error: BaseException | None) -> None:
    while error is not None:
        text = repr(error) + str(error)
        assert SECRET not in text
        assert "do%2Fnot" not in text
        assert CELL not in text
        error = error.__cause__ or error.__context__


def test_another_instance_reads_by_the_registered_path(s3: S3Server) -> None:
    (file,) = spool_in(s3).write(tables(1))
    assert file.path.startswith(f"s3://{BUCKET}/deep/shop/1/1/000000000000000A-")
    assert s3.keys_in() == {file.path.removeprefix("s3://")}
    assert spool_in(s3).read(file)["_commit_lsn"].to_pylist() == [10, 20]
    assert spool_in(s3, f"s3://{BUCKET}/elsewhere").read(file).num_rows == 2


def test_keys_in_the_url_reach_the_server_and_nothing_else(s3: S3Server) -> None:
    spool = Spool(s3.url, "shop", 7)
    (file,) = spool.write(tables(1))
    assert file.path.startswith(f"s3://{BUCKET}/deep/er/shop/")
    assert KEY not in file.path
    assert spool.read(file).num_rows == 2
    assert SECRET not in repr(vars(spool))


def test_keys_come_from_the_environment(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{s3.endpoint}")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    spool = Spool(f"s3a://{BUCKET}/by/environment", "shop", 7)
    (file,) = spool.write(tables(1))
    assert file.path.startswith(f"s3a://{BUCKET}/by/environment/shop/")
    assert Spool(f"s3a://{BUCKET}/by/environment", "shop", 7).read(file).num_rows == 2


def test_options_go_before_the_url(s3: S3Server) -> None:
    root = f"s3://{BUCKET}/a?endpoint_override=127.0.0.1:1&scheme=https"
    spool = Spool(root, "shop", 7, {**s3.options, **s3.keys, "endpoint_override": f"http://{s3.endpoint}/"})
    spool.check()
    assert s3.keys_in() == set()


def test_a_file_of_many_parts_arrives_whole(s3: S3Server) -> None:
    batch = pa.RecordBatch.from_pydict(
        {"_commit_lsn": pa.array([1, 2], pa.int64()), "_op": ["i"] * 2, "big": [random_bytes(1), random_bytes(2)]}
    )
    spool = spool_in(s3)
    (file,) = spool.write({(1, 1): [batch]})
    assert file.bytes > 20_000_000
    assert spool.read(file).equals(pa.Table.from_batches([batch]))


def random_bytes(seed: int) -> bytes:
    import random

    return random.Random(seed).randbytes(12_000_000)


@pytest.mark.parametrize("damage", ["truncated", "altered", "missing"])
def test_a_damaged_object_is_named_and_its_content_is_not(s3: S3Server, damage: str) -> None:
    spool = spool_in(s3)
    (file,) = spool.write(tables(1))
    key = file.path.removeprefix("s3://")
    with s3.files().open_input_stream(key) as stream:
        data = stream.read()
    if damage == "missing":
        s3.files().delete_file(key)
    else:
        with s3.files().open_output_stream(key) as stream:
            stream.write(data[:-10] if damage == "truncated" else data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(SpoolCorrupt) as caught:
        spool.read(file)
    assert file.path in caught.value.message
    assert_tells_no_secret(caught.value)


def test_missing_objects_are_found(s3: S3Server) -> None:
    spool = spool_in(s3)
    one, two = spool.write(tables(1, 2))
    spool.delete([one.path])
    spool.delete([one.path])
    assert spool.missing([one.path, two.path]) == {one.path}


@pytest.mark.slow
def test_a_sweep_among_two_thousand_files(s3: S3Server) -> None:
    spool = spool_in(s3)
    (other,) = spool_in(s3, f"s3://{BUCKET}/deep/shop_2").write(tables(1))
    with ThreadPoolExecutor(8) as pool:
        written = list(pool.map(lambda number: spool.write(tables(number % 20))[0], range(2000)))
    registered = {file.path for file in written[:1900]}
    assert spool.missing([file.path for file in written]) == set()
    assert spool.sweep(registered) == 100
    assert {f"s3://{key}" for key in s3.keys_in()} == registered | {other.path}


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (lambda spool, file: spool.write(tables(1, 2)), "the bucket does not exist"),
        (lambda spool, file: spool.read(file), "is gone"),
        (lambda spool, file: spool.missing([file.path]), "is gone"),
    ],
    ids=["write", "read", "missing"],
)
def test_a_bucket_that_is_gone_is_waited_for(s3: S3Server, step: Callable[[Spool, Any], Any], message: str) -> None:
    (file,) = spool_in(s3).write(tables(1))
    gone = spool_in(s3, "s3://no-such-bucket/deep")
    file = pickle.loads(pickle.dumps(file).replace(BUCKET.encode(), b"no-such-buck"))
    with pytest.raises(SpoolError, match=message) as caught:
        step(gone, file)
    assert caught.value.retry is Retry.TIMED
    assert_tells_no_secret(caught.value)


def test_at_the_start_a_missing_bucket_is_a_setting_to_correct(s3: S3Server) -> None:
    with pytest.raises(ConfigError, match="the bucket does not exist") as caught:
        spool_in(s3, "s3://no-such-bucket/deep").check()
    assert "Create the bucket" in caught.value.hint
    assert_tells_no_secret(caught.value)


def test_wrong_keys_are_told_without_telling_them(own_s3: S3Server) -> None:
    spool = spool_in(own_s3)
    (file,) = spool.write(tables(1))
    own_s3.refuse_everybody()
    steps: list[Callable[[], Any]] = [
        lambda: spool.write(tables(1)),
        lambda: spool.read(file),
        lambda: spool.delete([file.path]),
        lambda: spool.sweep(set()),
        lambda: spool.missing([file.path]),
    ]
    for step in steps:
        with pytest.raises(SpoolError, match="refuses the credentials") as caught:
            step()
        assert not isinstance(caught.value, SpoolCorrupt)
        assert caught.value.retry is Retry.TIMED, "keys are renewed now and then"
        assert_tells_no_secret(caught.value)
    with pytest.raises(ConfigError, match="refuses the credentials") as refused:
        spool.check()
    assert_tells_no_secret(refused.value)


def test_an_endpoint_that_is_down_is_waited_for(own_s3: S3Server) -> None:
    spool = spool_in(own_s3, **QUICK)
    (file,) = spool.write(tables(1))
    own_s3.stop()
    steps: list[Callable[[], Any]] = [
        lambda: spool.write(tables(1)),
        lambda: spool.read(file),
        lambda: spool.delete([file.path]),
        lambda: spool.sweep(set()),
        lambda: spool.missing([file.path]),
        spool.check,
    ]
    for step in steps:
        with pytest.raises(SpoolError, match="can't be reached") as caught:
            step()
        assert not isinstance(caught.value, SpoolCorrupt), "what can't be reached is not lost"
        assert_tells_no_secret(caught.value)
    own_s3.start()
    (again,) = spool.write(tables(1))
    assert spool.read(again).num_rows == 2


@pytest.mark.slow
@pytest.mark.timeout(90)
def test_an_endpoint_that_never_answers_is_given_up(s3: S3Server) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(100)
        endpoint = f"127.0.0.1:{listener.getsockname()[1]}"
        spool = spool_in(s3, endpoint_override=endpoint, **QUICK)
        with pytest.raises(SpoolError, match="can't be reached"):
            spool.write(tables(1))


def test_making_a_spool_connects_to_nothing(s3: S3Server) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        listener.setblocking(False)
        spool_in(s3, endpoint_override=f"127.0.0.1:{listener.getsockname()[1]}")
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_there_is_no_free_space_to_tell_of(s3: S3Server) -> None:
    assert spool_in(s3).free() is None


def test_a_stream_spools_into_a_bucket(s3: S3Server, source: Source, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    object.__setattr__(source.config, "spool_root", s3.url)
    source.execute("create table t (id int primary key, v text)", "create publication pub for table t")
    record = source.discover()["public.t"]
    source.execute(
        "insert into t select i, 'n' || i from generate_series(1, 500) i", "update t set v = 'x' where id = 1"
    )
    source.spool_all()
    found = source.changes(record)
    assert len(found) == 501
    assert (found[-1]["_op"], found[-1]["v"]) == ("u", "x")
    paths = source.store.all_paths(source.config.name)
    assert {path.removeprefix("s3://") for path in paths} == s3.keys_in()
    told = caplog.text + repr(source.config) + " ".join(paths)
    assert SECRET not in told
    assert "do%2Fnot" not in told


def test_errors_survive_a_trip_between_processes(s3: S3Server) -> None:
    with pytest.raises(PgEtlError) as caught:
        spool_in(s3, "s3://no-such-bucket/deep").write(tables(1))
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), again.message, again.hint) == (SpoolError, caught.value.message, caught.value.hint)
