from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_pgetl.local import java
from airflow_provider_pgetl.local.errors import CheckFailed
from airflow_provider_pgetl.local.java import Java, find_java, major_version


@pytest.mark.parametrize(
    ("output", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "25-ea" 2025-09-16', 25),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "21.0.8" 2025-07-15', 21),
        ("command not found", None),
    ],
)
def test_major_version_is_read(output: str, major: int | None) -> None:
    assert major_version(output) == major


def of_versions(versions: dict[str, int]) -> Callable[[Path], Java | None]:
    return lambda path: Java(path, versions[str(path)]) if str(path) in versions else None


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a Java of its own and one of the wheel."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("PGETL_JAVA", raising=False)
    monkeypatch.setattr(java.shutil, "which", lambda name: "/bin/java")
    monkeypatch.setattr(java, "_wheel_java", lambda: Path("/wheel/java"))


def test_own_java_is_taken_first() -> None:
    assert find_java(of_versions({"/bin/java": 17, "/wheel/java": 21})).path == Path("/bin/java")


def test_java_home_comes_before_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/jdk")
    assert find_java(of_versions({"/jdk/bin/java": 21, "/bin/java": 17})).path == Path("/jdk/bin/java")


def test_too_new_java_is_passed_over_for_the_wheel() -> None:
    assert find_java(of_versions({"/bin/java": 25, "/wheel/java": 21})) == Java(Path("/wheel/java"), 21)


def test_only_a_too_new_java_is_refused_by_name() -> None:
    with pytest.raises(CheckFailed, match="needs Java 17 or 21: /bin/java is Java 25"):
        find_java(of_versions({"/bin/java": 25}))


def test_wanted_java_is_the_only_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGETL_JAVA", "/mine")
    with pytest.raises(CheckFailed, match="/mine does not run"):
        find_java(of_versions({"/bin/java": 17}))


def test_program_that_is_no_java_is_no_java(tmp_path: Path) -> None:
    assert java.run_java(Path("/bin/true")) is None
    assert java.run_java(tmp_path / "missing") is None
