"""An S3 server of the tests' own (moto, as a process), and the pipeline that is driven by hand."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow.fs as pafs
import pytest
import requests

from tests.integration.replication.conftest import source  # noqa: F401

BUCKET = "spool-bucket"
KEY, SECRET = "test-key", "do/not+tell"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@dataclass
class S3Server:
    """moto behind HTTP; stopped, it forgets everything, as a new disk would."""

    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def options(self) -> dict[str, object]:
        return {"endpoint_override": self.endpoint, "scheme": "http", "region": "us-east-1"}

    @property
    def keys(self) -> dict[str, object]:
        return {"access_key": KEY, "secret_key": SECRET}

    @property
    def url(self) -> str:
        """With keys inside, as people write it for a quick try."""
        return f"s3://{KEY}:do%2Fnot%2Btell@{BUCKET}/deep/er?endpoint_override={self.endpoint}&scheme=http&region=us-east-1"

    def start(self) -> None:
        # moto answers nobody's proxy, and its access log is of no use here.
        environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/"
        )
        deadline = time.monotonic() + 60
        while True:
            with contextlib.suppress(requests.ConnectionError):
                requests.get(f"http://{self.endpoint}/moto-api/", timeout=10)
                break
            assert self.process.poll() is None, "the S3 server ended"
            assert time.monotonic() < deadline, "the S3 server does not answer"
            time.sleep(0.05)
        self.files(allow_bucket_creation=True).create_dir(BUCKET)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(30)
            self.process = None

    def files(self, **more: object) -> pafs.FileSystem:
        return pafs.S3FileSystem(**self.options, **self.keys, **more)

    def keys_in(self, folder: str = "") -> set[str]:
        selector = pafs.FileSelector(f"{BUCKET}/{folder}".rstrip("/"), recursive=True, allow_not_found=True)
        return {info.path for info in self.files().get_file_info(selector) if info.is_file}

    def refuse_everybody(self) -> None:
        """From now on every key is unknown."""
        requests.post(f"http://{self.endpoint}/moto-api/reset-auth", data=b"0", timeout=10)


@pytest.fixture(autouse=True)
def no_aws_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")


@pytest.fixture(scope="module")
def s3_shared() -> Iterator[S3Server]:
    server = S3Server()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def s3(s3_shared: S3Server) -> S3Server:
    """A server with one empty bucket, shared by the tests of a file."""
    s3_shared.files().delete_dir_contents(BUCKET)
    return s3_shared


@pytest.fixture
def own_s3() -> Iterator[S3Server]:
    """A server that the test may stop or break."""
    server = S3Server()
    server.start()
    yield server
    server.stop()
