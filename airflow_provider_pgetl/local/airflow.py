"""A local Airflow: its environment variables and the commands of its four processes.

Everything is set by environment variables, so no configuration file of the machine's own Airflow is read or
written, and a variable that the user's shell happens to hold does not leak in.
"""

from __future__ import annotations

import base64
import json
import os
import platform
import secrets
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from airflow_provider_pgetl.local.postgres import Database

HOST = "127.0.0.1"
ADMIN = "admin"
COMPONENTS = ("api-server", "scheduler", "dag-processor", "triggerer")


@dataclass(frozen=True, slots=True)
class AirflowPorts:
    """The ports of one Airflow, chosen together."""

    api: int
    scheduler_health: int
    worker_logs: int
    trigger_logs: int


@dataclass(frozen=True, slots=True)
class AirflowSecrets:
    """Keys that all processes share, and the login; kept from one start to the next."""

    fernet_key: str
    jwt_secret: str
    api_secret_key: str
    admin_password: str

    @classmethod
    def generate(cls) -> AirflowSecrets:
        """Return new random ones."""
        return cls(
            fernet_key=base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
            jwt_secret=secrets.token_urlsafe(48),
            api_secret_key=secrets.token_urlsafe(24),
            admin_password=secrets.token_urlsafe(9),
        )


def load_secrets(home: Path) -> AirflowSecrets:
    """Return the secrets kept in `home`, made at the first call; only their owner can read them."""
    path = home / "secrets.json"
    if not path.exists():
        home.mkdir(parents=True, exist_ok=True)
        fresh = AirflowSecrets.generate()
        _write_private(home / "passwords.json", json.dumps({ADMIN: fresh.admin_password}) + "\n")
        _write_private(path, json.dumps(asdict(fresh)))
    return AirflowSecrets(**json.loads(path.read_text()))


def _write_private(path: Path, text: str) -> None:
    scratch = path.with_suffix(".new")
    scratch.unlink(missing_ok=True)
    scratch.touch(mode=0o600)
    scratch.write_text(text)
    scratch.rename(path)


@dataclass(frozen=True, slots=True)
class LocalAirflow:
    """One Airflow below `home`: its settings and commands, without any process."""

    home: Path
    dags: Path
    metadata: Database
    source: Database
    spark_url: str
    spool: Path
    ports: AirflowPorts
    keys: AirflowSecrets

    @property
    def url(self) -> str:
        """Return the address for the browser."""
        return f"http://{HOST}:{self.ports.api}"

    @property
    def health_url(self) -> str:
        """Return the address that tells the health of all processes."""
        return f"{self.url}/api/v2/monitor/health"

    def command(self, *arguments: str) -> list[str]:
        """Return the command line of an `airflow …` call in our own environment."""
        return [sys.executable, "-P", "-m", "airflow", *arguments]

    def environment(self, inherited: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the whole environment of an Airflow process."""
        kept = os.environ if inherited is None else inherited
        clean = {name: value for name, value in kept.items() if not name.startswith(("AIRFLOW", "SPARK_"))}
        return {
            **clean,
            **_path(clean),
            **_no_proxy(clean),
            **_platform(),
            "AIRFLOW_HOME": str(self.home),
            **{f"AIRFLOW__{name}": value for name, value in self._settings().items()},
            **{f"AIRFLOW_CONN_{name}": json.dumps(value) for name, value in self._connections().items()},
        }

    def _settings(self) -> dict[str, str]:
        return {
            "CORE__AUTH_MANAGER": ("airflow.api_fastapi.auth.managers.simple.simple_auth_manager.SimpleAuthManager"),
            "CORE__SIMPLE_AUTH_MANAGER_USERS": f"{ADMIN}:admin",
            "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(self.home / "passwords.json"),
            "CORE__DAGS_FOLDER": str(self.dags),
            "CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "CORE__LOAD_EXAMPLES": "False",
            "CORE__EXECUTOR": "LocalExecutor",
            "CORE__PARALLELISM": "4",
            "CORE__FERNET_KEY": self.keys.fernet_key,
            "CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "CORE__HOSTNAME_CALLABLE": "socket.gethostname",  # the default asks DNS, which may be slow
            "DATABASE__SQL_ALCHEMY_CONN": self.metadata.uri("postgresql+psycopg2"),
            "API__HOST": HOST,
            "API__PORT": str(self.ports.api),
            "API__BASE_URL": self.url,
            "API__WORKERS": "1",
            "API__SECRET_KEY": self.keys.api_secret_key,
            "API_AUTH__JWT_SECRET": self.keys.jwt_secret,
            "SCHEDULER__ENABLE_HEALTH_CHECK": "True",
            "SCHEDULER__SCHEDULER_HEALTH_CHECK_SERVER_HOST": HOST,
            "SCHEDULER__SCHEDULER_HEALTH_CHECK_SERVER_PORT": str(self.ports.scheduler_health),
            # One of each runs here, so a missing heartbeat means a dead process: be quick to take over its work.
            "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "60",
            "TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "15",
            "LOGGING__WORKER_LOG_SERVER_PORT": str(self.ports.worker_logs),
            "LOGGING__TRIGGER_LOG_SERVER_PORT": str(self.ports.trigger_logs),
            "USAGE_DATA_COLLECTION__ENABLED": "False",
            "PGETL__SPOOL_ROOT": str(self.spool),
            "PGETL__STATE_CONN_ID": "pgetl_state",
        }

    def _connections(self) -> dict[str, dict[str, Any]]:
        host, port = self.spark_url.removeprefix("sc://").rsplit(":", 1)
        return {
            "PGETL_SOURCE": _postgres(self.source),
            "PGETL_STATE": _postgres(self.metadata),
            "SPARK_CONNECT_DEFAULT": {
                "conn_type": "spark_connect",
                "host": f"sc://{host}",
                "port": int(port),
            },
        }


def _postgres(database: Database) -> dict[str, Any]:
    return {
        "conn_type": "postgres",
        "host": database.host,
        "port": database.port,
        "login": database.user,
        "password": database.password,
        "schema": database.name,
    }


def _path(inherited: Mapping[str, str]) -> dict[str, str]:
    """Put our environment first: Airflow starts some of its parts by name."""
    scripts = str(Path(sys.executable).parent)
    return {"PATH": os.pathsep.join(part for part in (scripts, inherited.get("PATH", "")) if part)}


def _no_proxy(inherited: Mapping[str, str]) -> dict[str, str]:
    """Tasks call the API server and Spark by HTTP and gRPC; a proxy must not stand between them."""
    known = inherited.get("no_proxy") or inherited.get("NO_PROXY") or ""
    value = ",".join(part for part in (known, HOST, "localhost") if part)
    return {"no_proxy": value, "NO_PROXY": value}


def _platform() -> dict[str, str]:
    if platform.system() != "Darwin":
        return {}
    # Tasks are forked, which Apple's Objective-C runtime forbids once it was touched.
    return {"OBJC_DISABLE_INITIALIZE_FORK_SAFETY": "YES"}
