"""Destinations by name: what is found, and what is said if it is not."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any

import pytest

from airflow_provider_pgetl.replication.destinations import load
from airflow_provider_pgetl.replication.destinations.http import HttpDestination
from airflow_provider_pgetl.replication.destinations.load import load_destination
from airflow_provider_pgetl.replication.destinations.memory import MemoryDestination
from airflow_provider_pgetl.replication.destinations.null import NullDestination
from airflow_provider_pgetl.replication.errors import ConfigError, DestinationError


class Folder(NullDestination):
    def __init__(self, folder: str, *, depth: int = 1) -> None:
        super().__init__()
        if depth < 0:
            raise ValueError(f"not {folder}")
        if depth > 9:
            raise DestinationError("too deep")
        self.place = (folder, depth)


class Half:
    name = "half"

    def startup(self) -> None: ...


class HalfWithFiles(Folder):
    takes_files = True


def make(**options: Any) -> Folder:
    return Folder(**options)


@pytest.fixture(autouse=True)
def my_pkg(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("my_pkg")
    module.Folder, module.Half, module.HalfWithFiles, module.number = Folder, Half, HalfWithFiles, 3  # type: ignore[attr-defined]
    module.make = make  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_pkg", module)


@pytest.mark.parametrize("path", ["my_pkg.Folder", "my_pkg:Folder", "my_pkg.make"])
def test_a_dotted_path_names_a_class_or_a_function(path: str) -> None:
    made = load_destination(path, {"folder": "/data", "depth": 2})
    assert isinstance(made, Folder)
    assert made.place == ("/data", 2)


@pytest.mark.parametrize(
    ("name", "options", "kind"),
    [
        ("memory", None, MemoryDestination),
        ("null", {}, NullDestination),
        ("http", {"url": "http://host/", "max_attempts": 1}, HttpDestination),
    ],
)
def test_ours_have_short_names(name: str, options: dict[str, Any] | None, kind: type) -> None:
    assert isinstance(load_destination(name, options), kind)


def test_an_entry_point_is_a_short_name(monkeypatch: pytest.MonkeyPatch) -> None:
    known = [EntryPoint("folder", "my_pkg:Folder", load.GROUP), EntryPoint("gone", "no_such_pkg:X", load.GROUP)]
    monkeypatch.setattr(
        load, "entry_points", lambda group, name=None: [one for one in known if name in (None, one.name)]
    )
    assert isinstance(load_destination("folder", {"folder": "/data"}), Folder)
    with pytest.raises(ConfigError, match=r"entry point 'gone' .* no_such_pkg:X"):
        load_destination("gone")
    with pytest.raises(ConfigError, match="folder, gone, http, memory, null"):
        load_destination("folders")


@pytest.mark.parametrize(
    ("path", "options", "reason"),
    [
        ("nothing", {}, "there is no destination 'nothing'"),
        ("no_such_pkg.X", {}, "No module named 'no_such_pkg'"),
        ("my_pkg.Folders", {}, "my_pkg has no Folders"),
        ("my_pkg.number", {}, "my_pkg.number is not a class"),
        ("my_pkg.Folder", {}, "needs folder"),
        (
            "my_pkg.Folder",
            {"folder": "s3cret", "deep": "s3cret"},
            r"does not know deep \(Its options are folder, depth",
        ),
        ("memory", {"folder": "s3cret"}, "does not know folder"),
        ("my_pkg.Folder", {"folder": "s3cret", "depth": -1}, "can't be made: ValueError"),
        ("my_pkg.Folder", {1: "s3cret"}, "options of my_pkg.Folder are not named"),
        (
            "my_pkg.Half",
            {},
            "is no Destination: it lacks shutdown, drop_table_for_copy, write_table_rows, write_events",
        ),
        ("my_pkg.HalfWithFiles", {"folder": ""}, "is no FileDestination: it lacks marker, apply"),
    ],
)
def test_what_is_wrong_is_said_without_values(path: str, options: dict[Any, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        load_destination(path, options)
    assert "s3cret" not in str(caught.value)
    assert caught.value.hint != ConfigError.default_hint


def test_an_error_of_ours_is_kept() -> None:
    with pytest.raises(DestinationError, match="too deep"):
        load_destination("my_pkg.Folder", {"folder": "", "depth": 10})
