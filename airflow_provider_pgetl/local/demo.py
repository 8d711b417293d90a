"""The demo as one object: which components there are, in which order they start, what is told.

Postgres → databases and the shop → Spark beside `airflow db migrate` → api-server, scheduler, dag-processor,
triggerer → the load. Stopped from the back, so that nobody loses a server that it still needs.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_pgetl.local import load, process, shop
from airflow_provider_pgetl.local.airflow import ADMIN, COMPONENTS, AirflowPorts, LocalAirflow, load_secrets
from airflow_provider_pgetl.local.airflow_process import AirflowProcess
from airflow_provider_pgetl.local.checks import failures
from airflow_provider_pgetl.local.errors import CheckFailed, LocalStackError
from airflow_provider_pgetl.local.places import Places
from airflow_provider_pgetl.local.postgres import STOP_TIMEOUT, EmbeddedPostgres
from airflow_provider_pgetl.local.spark import CATALOG, START_TIMEOUT, SparkServer
from airflow_provider_pgetl.local.stack import DemoLock, StackInfo
from airflow_provider_pgetl.local.supervisor import Component, StopRequested, Supervisor
from airflow_provider_pgetl.local.watch import StateReporter

DEFAULT_PORT = 8080
METADATA_DATABASE = "airflow"
CATALOG_DATABASE = "lake"
PRIVATE_PORTS = ("postgres", "spark", "scheduler_health", "worker_logs", "trigger_logs")
EXAMPLE_QUERY = "select status, count(*) from public.orders group by status"
# Lowest first. Tasks and triggers need the api-server, Spark and Postgres to end in peace.
RANK = {
    "load": 0,
    "triggerer": 1,
    "scheduler": 2,
    "dag-processor": 2,
    "api-server": 3,
    "spark": 3,
    "postgres": 4,
}
# A demo that was killed leaves its Postgres a moment to shut down.
LEFTOVER_TIMEOUT = 20.0

ReadStates = Callable[[StackInfo], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What the command line decides."""

    home: Path
    port: int = DEFAULT_PORT
    rate: float = load.DEFAULT_RATE
    reset: bool = False
    with_load: bool = True
    exit_when_ready: bool = False


class Demo:
    """One run of the demo, from the checks to the last process that ends."""

    def __init__(self, options: DemoOptions, *, read_states: ReadStates | None = None) -> None:
        """Prepare a run; `read_states` tells the tables' states of the running pipeline."""
        self._options = options
        self._places = Places(options.home)
        self._read_states = read_states
        self._begun = time.monotonic()
        self._supervisor = Supervisor(self.say)
        self._info: StackInfo | None = None

    def say(self, line: str) -> None:
        """Print a line with the seconds since the start."""
        print(f"[{time.monotonic() - self._begun:6.1f} s] {line}", flush=True)

    def run(self) -> int:
        """Start everything, keep it running until asked to end, end it; return the exit code."""
        found = failures(self._options.home, {"Airflow": self._options.port})
        if found:
            return _refuse(found)
        lock = DemoLock(self._options.home)
        try:
            lock.take()
            return self._run_locked()
        except CheckFailed as problem:
            return _refuse([str(problem)])
        finally:
            lock.release()

    def _run_locked(self) -> int:
        self._supervisor.handle_signals()
        code = 0
        try:
            self._start()
            if not self._options.exit_when_ready:
                self._supervisor.watch(tick=self._ticker())
        except StopRequested:
            pass
        except CheckFailed:
            raise
        except LocalStackError as problem:
            self.say(f"pgetl: {problem}")
            code = 1
        finally:
            self._stop()
        return code

    # Start

    def _start(self) -> None:
        self.say(f"the demo lives in {self._places.demo}")
        ports = self._choose_ports()
        postgres = self._prepare_postgres(ports["postgres"])
        self._supervisor.start(self._postgres_component(postgres))
        source = postgres.create_database(shop.DATABASE)
        metadata = postgres.create_database(METADATA_DATABASE)
        rows = shop.create_shop(source.conninfo)
        self.say(f"the shop has {len(shop.TABLES)} tables with {rows} rows")
        spark = SparkServer(
            self._places.spark,
            catalog=postgres.create_database(CATALOG_DATABASE),
            warehouse=self._places.warehouse,
            ivy=self._places.ivy,
            port=ports["spark"],
            master=f"local[{min(4, max(2, os.cpu_count() or 2))}]",
            log=self._places.logs / "spark.log",
        )
        airflow = LocalAirflow(
            home=self._places.airflow,
            dags=self._places.dags,
            metadata=metadata,
            source=source,
            spark_url=spark.url,
            spool=self._places.spool,
            ports=AirflowPorts(
                api=self._options.port,
                scheduler_health=ports["scheduler_health"],
                worker_logs=ports["worker_logs"],
                trigger_logs=ports["trigger_logs"],
            ),
            keys=load_secrets(self._places.airflow),
        )
        self._start_servers(spark, airflow)
        self._info = StackInfo(
            pid=os.getpid(),
            airflow_url=airflow.url,
            airflow_user=ADMIN,
            airflow_password=airflow.keys.admin_password,
            source_conninfo=source.conninfo,
            state_conninfo=metadata.conninfo,
            spark_url=spark.url,
            catalog=CATALOG,
            spool=str(self._places.spool),
            warehouse=str(self._places.warehouse),
            logs=str(self._places.logs),
            ports={**ports, "api": self._options.port},
            processes=self._supervisor.pids(),
        )
        self._info.write(self._places.stack_file)
        self._tell_where_to_look(self._info)

    def _start_servers(self, spark: SparkServer, airflow: LocalAirflow) -> None:
        if not any((self._places.ivy / "jars").glob("*.jar")):
            self.say("spark: the first start downloads its jars, this may take a minute")
        spark_component = self._spark_component(spark)
        self._supervisor.launch(spark_component)
        started = time.monotonic()
        self._places.spool.mkdir(parents=True, exist_ok=True)
        self._supervisor.run_to_end(
            "airflow db migrate",
            airflow.command("db", "migrate"),
            log=self._places.logs / "db-migrate.log",
            env=airflow.environment(),
        )
        self.say(f"airflow's database is up to date ({time.monotonic() - started:.1f} s)")
        components = [self._airflow_component(airflow, name) for name in COMPONENTS]
        self._supervisor.launch(*components)
        self._supervisor.wait(spark_component, *components)
        if self._options.with_load:
            self._supervisor.start(self._load_component(airflow))

    def _prepare_postgres(self, port: int) -> EmbeddedPostgres:
        postgres = EmbeddedPostgres(self._places.postgres, port=port, log=self._places.logs / "postgres.log")
        if postgres.leftover_pid() is not None:
            self.say("waiting for the Postgres of an earlier demo to end")
            process.wait_until(lambda: postgres.leftover_pid() is None, timeout=LEFTOVER_TIMEOUT)
        if pid := postgres.leftover_pid():
            raise CheckFailed(f"a Postgres of an earlier demo still runs on {postgres.data} (pid {pid}); end it first")
        if self._options.reset:
            self.say("starting over: removing what earlier runs left")
            postgres.erase()
            shutil.rmtree(self._places.demo, ignore_errors=True)
            return EmbeddedPostgres(self._places.postgres, port=port, log=self._places.logs / "postgres.log")
        return postgres

    def _choose_ports(self) -> dict[str, int]:
        """Take the ports of the last run where they are still free: a psql history stays true."""
        last = StackInfo.read(self._places.stack_file)
        known = last.ports if last else {}
        fresh = iter(process.free_ports(len(PRIVATE_PORTS)))
        return {
            name: known[name] if name in known and process.port_is_free(known[name]) else next(fresh)
            for name in PRIVATE_PORTS
        }

    # Components

    def _postgres_component(self, postgres: EmbeddedPostgres) -> Component:
        return Component(
            name="postgres",
            launch=postgres.launch,
            healthy=postgres.is_ready,
            log=postgres.log,
            stop_rank=RANK["postgres"],
            stop_signal=signal.SIGINT,
            stop_timeout=STOP_TIMEOUT,
            start_timeout=60,
        )

    def _spark_component(self, spark: SparkServer) -> Component:
        return Component(
            name="spark",
            launch=spark.launch,
            healthy=spark.is_ready,
            log=spark.log,
            stop_rank=RANK["spark"],
            start_timeout=START_TIMEOUT,
        )

    def _airflow_component(self, airflow: LocalAirflow, name: str) -> Component:
        log = self._places.logs / f"{name}.log"
        one = AirflowProcess(airflow, name, log)
        return Component(
            name=name,
            launch=one.launch,
            healthy=one.is_healthy,
            log=log,
            stop_rank=RANK[name],
            # The scheduler would wait for running tasks, which may take hours; Airflow retries what was killed.
            stop_timeout=10 if name == "scheduler" else 30,
        )

    def _load_component(self, airflow: LocalAirflow) -> Component:
        log = self._places.logs / "load.log"
        command = [sys.executable, "-P", "-m", load.__name__, "--rate", str(self._options.rate)]
        environment = {**os.environ, load.CONNINFO_VARIABLE: airflow.source.conninfo}
        return Component(
            name="load",
            launch=lambda: process.spawn(command, log=log, env=environment),
            healthy=lambda: True,
            log=log,
            stop_rank=RANK["load"],
        )

    # While running

    def _tell_where_to_look(self, info: StackInfo) -> None:
        self.say("ready")
        lines = (
            f"Airflow   {info.airflow_url}   login {info.airflow_user} / {info.airflow_password}",
            f"lake      ./pgetl query '{EXAMPLE_QUERY}'",
            "compare   ./pgetl check        source = lake, at one LSN",
            "states    ./pgetl status",
            f"logs      {info.logs}",
            "stop      Ctrl-C; the next start goes on where this one stopped, --reset starts over",
        )
        print("", *(f"  {line}" for line in lines), "", sep="\n", flush=True)

    def _ticker(self) -> Callable[[], None]:
        reporter = None
        info, read = self._info, self._read_states
        if info is not None and read is not None:
            reporter = StateReporter(read=lambda: read(info), say=self.say)

        def tick() -> None:
            self._note_restarts()
            if reporter is not None:
                reporter.tick()

        return tick

    def _note_restarts(self) -> None:
        pids = self._supervisor.pids()
        if self._info is not None and self._info.processes != pids:
            self._info = dataclasses.replace(self._info, processes=pids)
            self._info.write(self._places.stack_file)

    def _stop(self) -> None:
        self.say("stopping ...")
        begun = time.monotonic()
        self._supervisor.stop_all()
        self.say(f"stopped, nothing is left running ({time.monotonic() - begun:.1f} s)")


def _refuse(problems: list[str]) -> int:
    for problem in problems:
        print(f"pgetl: {problem}", file=sys.stderr)
    return 2
