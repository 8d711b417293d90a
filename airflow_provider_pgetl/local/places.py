"""Where the local stack keeps its things."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


def project_root() -> Path:
    """Return the folder that holds the package: the repository, when installed from it."""
    return Path(__file__).resolve().parents[2]


def pgetl_home() -> Path:
    """Return PGETL_HOME, by default `.pgetl` in the project."""
    return Path(os.environ.get("PGETL_HOME") or project_root() / ".pgetl").absolute()


@dataclass(frozen=True, slots=True)
class Places:
    """The folders of one demo; `reset` removes `demo` and keeps what is only expensive to download."""

    home: Path

    @property
    def demo(self) -> Path:
        """Everything that belongs to the demo's state."""
        return self.home / "demo"

    @property
    def ivy(self) -> Path:
        """Downloaded jars."""
        return self.home / "ivy"

    @property
    def postgres(self) -> Path:
        """The Postgres server's own folder."""
        return self.demo / "postgres"

    @property
    def spark(self) -> Path:
        """The Spark server's own folder."""
        return self.demo / "spark"

    @property
    def warehouse(self) -> Path:
        """The lake."""
        return self.demo / "warehouse"

    @property
    def spool(self) -> Path:
        """Changes on their way to the lake."""
        return self.demo / "spool"

    @property
    def airflow(self) -> Path:
        """AIRFLOW_HOME."""
        return self.demo / "airflow"

    @property
    def logs(self) -> Path:
        """One log per component."""
        return self.demo / "logs"

    @property
    def stack_file(self) -> Path:
        """What a running demo tells the other commands."""
        return self.demo / "stack.json"

    @property
    def dags(self) -> Path:
        """The example DAGs."""
        return project_root() / "dags"
