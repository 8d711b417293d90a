"""A destination by its name: one of ours, an entry point, or a dotted path.

    load_destination("memory", {})
    load_destination("http", {"url": "https://host/path"})
    load_destination("my_pkg.MyDestination", {"folder": "/data"})

A package makes its destination known under a short name by an entry point of the group
``airflow_provider_pgetl.destinations``. Whatever is named must be a class or a function that takes the options by
keyword. Errors name options, never their values: those may be secrets.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, cast

from airflow_provider_pgetl.replication.destinations.base import Destination, FileDestination
from airflow_provider_pgetl.replication.errors import ConfigError, PgEtlError

GROUP = "airflow_provider_pgetl.destinations"

_HERE = "airflow_provider_pgetl.replication.destinations"
_OURS = {
    "memory": f"{_HERE}.memory.MemoryDestination",
    "null": f"{_HERE}.null.NullDestination",
    "http": f"{_HERE}.http.HttpDestination",
}


def load_destination(path: str, options: Mapping[str, Any] | None = None) -> Destination | FileDestination:
    """Make the destination that ``path`` names with ``options``; it is not started."""
    factory = _find(path)
    given = dict(options or {})
    _check_options(path, factory, given)
    try:
        made = factory(**given)
    except PgEtlError:
        raise
    except Exception as error:  # noqa: BLE001 - anybody's code
        raise ConfigError(
            f"the destination {path} can't be made: {type(error).__name__}",
            hint="Check its options against what its class expects.",
        ) from None  # its message may quote an option
    _check_contract(path, made)
    return cast("Destination | FileDestination", made)


def _find(path: str) -> Callable[..., object]:
    found = _attribute(_OURS[path]) if path in _OURS else _entry_point(path) or _attribute(path)
    if not callable(found):
        raise ConfigError(f"{path} is not a class", hint="Name a class that keeps the contract of a destination.")
    return found


def _entry_point(name: str) -> object | None:
    found: list[EntryPoint] = list(entry_points(group=GROUP, name=name))
    if not found:
        return None
    try:
        loaded: object = found[0].load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"the entry point {name!r} of the group {GROUP} can't be loaded: {found[0].value}",
            hint="Check the package that defines it.",
        ) from error
    return loaded


def _attribute(path: str) -> object:
    module_name, _, name = path.replace(":", ".").rpartition(".")
    if not module_name:
        raise ConfigError(f"there is no destination {path!r}", hint=f"Known names are {', '.join(_known())}.")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(
            f"the destination {path} can't be imported: {error.msg}",
            hint="Install its package where this runs, and check the spelling.",
        ) from error
    if not hasattr(module, name):
        raise ConfigError(f"the module {module_name} has no {name}", hint="Check the spelling of the class.")
    found: object = getattr(module, name)
    return found


def _known() -> list[str]:
    return sorted({*_OURS, *(one.name for one in entry_points(group=GROUP))})


def _check_options(path: str, factory: Callable[..., object], options: dict[str, Any]) -> None:
    if not all(isinstance(name, str) for name in options):
        raise ConfigError(f"the options of {path} are not named", hint="Give them as a mapping of names to values.")
    parameters = inspect.signature(factory).parameters.values()
    named = [one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    names = {one.name for one in named}
    hint = f"Its options are {', '.join(one.name for one in named)}." if named else "It takes no options."
    unknown = sorted(set(options) - names)
    if unknown and not any(one.kind is one.VAR_KEYWORD for one in parameters):
        raise ConfigError(f"the destination {path} does not know {', '.join(unknown)}", hint=hint)
    missing = [one.name for one in named if one.default is one.empty and one.name not in options]
    if missing:
        raise ConfigError(f"the destination {path} needs {', '.join(missing)}", hint=hint)


def _check_contract(path: str, made: object) -> None:
    contract = FileDestination if getattr(made, "takes_files", False) else Destination
    wanted = [name for name, member in vars(contract).items() if inspect.isfunction(member) and name[0] != "_"]
    missing = [name for name in wanted if not callable(getattr(made, name, None))]
    missing += [] if isinstance(getattr(made, "name", None), str) else ["name"]
    if missing:
        raise ConfigError(
            f"{path} is no {contract.__name__}: it lacks {', '.join(missing)}",
            hint="Implement the contract in replication/destinations/base.py; the suite in testing checks it.",
        )
