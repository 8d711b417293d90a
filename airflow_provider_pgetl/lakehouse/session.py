"""Spark Connect sessions: opened with our settings, lent to one thread at a time, reopened, always stopped.

A session is a connection and a set of settings on the server; it dies with the server and never comes back, so a
lost one is dropped and a new one opened. One that is not stopped keeps the interpreter from ending.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import grpc
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql.connect.client.retries import DefaultPolicy
from pyspark.sql.connect.session import SparkSession

from airflow_provider_pgetl.lakehouse.failures import SessionLost, translate
from airflow_provider_pgetl.lakehouse.sql import quote, text
from airflow_provider_pgetl.replication.errors import DestinationError, DestinationUnreachable

log = logging.getLogger(__name__)

T = TypeVar("T")

# About three seconds in all; the client's own policy tries for ten minutes, and the applier retries anyway.
RETRIES = {"max_retries": 6, "initial_backoff": 50, "backoff_multiplier": 2.0, "max_backoff": 2000, "jitter": 50}

SETTINGS = {
    "spark.sql.caseSensitive": "true",  # "Id" beside "id"
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",  # a cast that loses something fails
    "spark.sql.variable.substitute": "false",  # "${...}" in a name or a key is text
    "spark.sql.parquet.mergeSchema": "false",
    # Above this many paths Spark lists them by a job of its own.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
    # Chains of key changes are walked by recursion.
    "spark.sql.cteRecursionLevelLimit": "10000",
    "spark.sql.cteRecursionRowLimit": "-1",
}


class _Session(SparkSession):  # type: ignore[misc]
    """A session that only ``stop`` ends.

    Spark's own ``__del__`` shuts a thread pool down that all sessions share. The garbage collector may run it inside
    that very pool's ``submit``, which then waits for itself while it holds the interpreter's lock on all pools: the
    whole process stands still. We stop every session, so there is nothing left to do.
    """

    def __del__(self) -> None:
        return


class Sessions:
    """A pool of sessions to one server.

    ``source`` is the source's conninfo: each session carries it to the Python workers as a file among its
    artifacts, so that it is in no plan, log or page of Spark.
    """

    def __init__(self, url: str, *, catalog: str, source: str | None = None) -> None:
        self.url = url
        self.catalog = catalog
        self.tag = f"pgetl-{secrets.token_hex(8)}"
        self.source_file = f"pgetl-{secrets.token_hex(8)}.conninfo"
        self._source = source
        self._lock = threading.Lock()
        self._idle: list[SparkSession] = []
        self._lent: set[SparkSession] = set()
        self._ended: set[SparkSession] = set()
        self._closed = False

    def run(self, doing: str, work: Callable[[SparkSession], T]) -> T:
        """Call ``work`` with a session. A lost session is replaced once, so ``work`` must bear a repetition."""
        try:
            with self.lend(doing) as spark:
                return work(spark)
        except SessionLost:
            log.info("spark session lost while %s, opening a new one", doing)
        with self.lend(doing) as spark:
            return work(spark)

    @contextlib.contextmanager
    def lend(self, doing: str) -> Iterator[SparkSession]:
        """Lend a session to this thread; Spark's errors come out as ours."""
        spark = self._take(doing)
        try:
            yield spark
        except (PySparkException, grpc.RpcError) as error:
            if spark in self._ended:
                raise DestinationError(f"cancelled while {doing}", hint="It was asked to stop.") from error
            failure = translate(error, doing)
            if isinstance(failure, DestinationUnreachable):
                self._drop(spark)
            raise failure from error
        finally:
            self._give_back(spark)

    def cancel(self) -> None:
        """Interrupt every call that has a session now: it raises. Later calls get new sessions."""
        with self._lock:
            running = self._lent - self._ended
            self._ended |= running
        for spark in running:
            with contextlib.suppress(PySparkException, grpc.RpcError):
                spark.interruptTag(self.tag)
            # A call may be between two statements: without its session the next one fails.
            with contextlib.suppress(PySparkException, grpc.RpcError):
                spark.client.release_session()

    def reopen(self) -> None:
        """Take calls again after ``close``."""
        with self._lock:
            self._closed = False

    def close(self) -> None:
        """Stop every session; one that is lent is interrupted, and stopped when it comes back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        self.cancel()
        for spark in idle:
            spark.stop()

    def _take(self, doing: str) -> SparkSession:
        with self._lock:
            if self._closed:
                raise DestinationError(f"shut down while {doing}", hint="It was asked to stop.")
            spark = self._idle.pop() if self._idle else None
        if spark is None:
            spark = self._open(doing)
        with self._lock:
            self._lent.add(spark)
        # Tags belong to the thread, not to the session.
        spark.addTag(self.tag)
        return spark

    def _give_back(self, spark: SparkSession) -> None:
        with self._lock:
            self._lent.discard(spark)
            keep = not (self._closed or spark in self._ended or spark.is_stopped)
            self._ended.discard(spark)
            if keep:
                self._idle.append(spark)
        if not keep:
            _abandon(spark)

    def _drop(self, spark: SparkSession) -> None:
        """Stop the session and the idle ones too: they talk to the same server."""
        with self._lock:
            idle, self._idle = self._idle, []
        for one in (spark, *idle):
            _abandon(one)

    def _open(self, doing: str) -> SparkSession:
        _silence()
        spark = SparkSession.builder.remote(self.url).create()
        spark.__class__ = _Session
        try:
            spark.client.set_retry_policies([DefaultPolicy(**RETRIES)])
            for key, value in self._settings().items():
                spark.conf.set(key, value)
            self._send_source(spark)
        except (PySparkException, grpc.RpcError) as error:
            _abandon(spark)
            raise translate(error, doing) from error
        log.debug("opened a spark session at %s", self.url)
        return spark

    def _settings(self) -> dict[str, str]:
        # Iceberg's cache is per session: with it, one session reads what another replaced long ago.
        return SETTINGS | {f"spark.sql.catalog.{self.catalog}.cache-enabled": "false"}

    def _send_source(self, spark: SparkSession) -> None:
        if self._source is None:
            return
        with tempfile.TemporaryDirectory(prefix="pgetl-") as folder:  # readable by this user only
            path = Path(folder) / self.source_file
            path.write_text(self._source)
            spark.addArtifacts(str(path), file=True)


def _abandon(spark: SparkSession) -> None:
    """Stop a session whose server may be gone, without waiting for it."""
    spark.client.set_retry_policies([DefaultPolicy(max_retries=0)])
    spark.stop()


def _silence() -> None:
    # These print the server's whole message, which may quote cells. By level: whoever configures logging anew
    # (Airflow does) switches disabled loggers on again.
    for name in ("SQLQueryContextLogger", "pyspark.sql.connect.logging"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)


def check_server(spark: SparkSession, catalog: str) -> None:
    """Raise with a hint unless the server has the catalog, as Iceberg's, with the SQL extensions."""
    implementation = spark.conf.get(f"spark.sql.catalog.{catalog}", "")
    if "iceberg" not in (implementation or ""):
        raise DestinationError(
            f"the Spark server has no Iceberg catalog named {catalog}",
            hint=f"Set spark.sql.catalog.{catalog} to Iceberg's SparkCatalog, with its settings, on the server.",
        )
    extensions = spark.conf.get("spark.sql.extensions", "") or ""
    if "IcebergSparkSessionExtensions" not in extensions:
        raise DestinationError(
            "the Spark server lacks Iceberg's SQL extensions",
            hint="Set spark.sql.extensions=org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions there.",
        )
    spark.sql(f"show namespaces in {quote(catalog)} like {text('pgetl_probe')}").collect()
