"""One process of a local Airflow, and whether it is healthy since its own start."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow_provider_pgetl.local import process
from airflow_provider_pgetl.local.airflow import LocalAirflow


@dataclass(slots=True)
class AirflowProcess:
    """Starts `airflow <name>` and asks Airflow's monitor about it."""

    airflow: LocalAirflow
    name: str
    log: Path
    _started: datetime = field(default_factory=lambda: datetime.now(UTC))

    def launch(self) -> subprocess.Popen[bytes]:
        """Start the process."""
        self._started = datetime.now(UTC)
        return process.spawn(self.airflow.command(self.name), log=self.log, env=self.airflow.environment())

    def is_healthy(self) -> bool:
        """Tell whether it has reported since its start; an older heartbeat is that of its predecessor."""
        return tells_healthy(ask(self.airflow.health_url), self.name, since=self._started)


def ask(url: str) -> dict[str, Any]:
    """Return what the monitor tells; nothing while nobody answers."""
    # Straight to the server: a proxy of the environment knows nothing of this machine's own address.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=5) as answer:
            told = json.load(answer)
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def tells_healthy(told: dict[str, Any], name: str, *, since: datetime) -> bool:
    """Read one process's health from the monitor's answer; the api-server is the one that answers."""
    if name == "api-server":
        return bool(told)
    key = name.replace("-", "_")
    part = told.get(key) or {}
    heartbeat = part.get(f"latest_{key}_heartbeat")
    return part.get("status") == "healthy" and heartbeat is not None and _moment(heartbeat) >= since


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
