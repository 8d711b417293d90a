"""Where spool files lie: a local folder or an object store, under one narrow contract.

    place.py     the contract, and which of the two a location is
    local.py     a folder: temporary name, fsync, rename, fsync of the folder
    objects.py   an object store through pyarrow: an object appears whole or not at all

A place speaks in *paths* as the ledger keeps them: ``/srv/spool/...`` or ``s3://bucket/...``, never with keys,
tokens or query strings. Errors of the driver become ``SpoolError``: whoever writes waits and repeats. Only
``check``, which is for the start, tells what won't pass by itself as ``ConfigError``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from airflow_provider_pgetl.replication.errors import ConfigError
from airflow_provider_pgetl.replication.spool.local import LocalPlace
from airflow_provider_pgetl.replication.spool.objects import ObjectPlace

# Early enough for a person to act: a tenth of the disk, or room for four full batches.
_LOW_SHARE = 0.10
_LOW_BATCHES = 4


@dataclass(frozen=True, slots=True)
class Space:
    """Room on the disk under the spool, in bytes."""

    total: int
    free: int

    def low(self, batch_bytes: int) -> bool:
        """Whether people should be told."""
        return self.free < self.total * _LOW_SHARE or self.tight(batch_bytes)

    def tight(self, batch_bytes: int) -> bool:
        """Whether the next few batches may not fit."""
        return self.free < _LOW_BATCHES * batch_bytes


class Place(Protocol):
    """Files by path. All of it is blocking; a place is used from several threads."""

    root: str

    def put(self, path: str, data: pa.Buffer) -> None:
        """Write a file; when this returns it survives a crash, when it raises nothing of it is left."""

    def get(self, path: str) -> pa.Buffer:
        """The whole file; ``FileNotFoundError`` if it is missing."""

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files; one that is gone already is no error."""

    def found(self, folder: str) -> set[str]:
        """Paths of all files under ``folder``, temporary ones too."""

    def missing(self, paths: Iterable[str]) -> set[str]:
        """Those of the paths that are not there."""

    def there(self, folder: str) -> bool:
        """Whether the folder is there; in an object store: the bucket."""

    def check(self, path: str) -> None:
        """Write, read and delete a file there; ``ConfigError`` for what waiting can't mend."""

    def remove_empty_folders(self, folder: str) -> None:
        """Remove folders under ``folder`` in which nothing lies, where folders exist at all."""

    def space(self) -> tuple[int, int] | None:
        """(total, free) bytes; None where nobody can say."""


def shown(root: str) -> str:
    """The location for people: without keys, passwords and options.

    >>> shown("s3://key:secret@bucket/prefix?endpoint_override=host")
    's3://bucket/prefix'
    >>> shown("/srv/spool")
    '/srv/spool'
    """
    if "://" not in root:
        return root
    scheme, _, rest = root.partition("://")
    authority, slash, path = rest.partition("?")[0].partition("#")[0].partition("/")
    user, at, host = authority.rpartition("@")
    if at and scheme.startswith("abfs"):
        # Azure writes the container where others write the user; what follows a colon is a key.
        host = f"{user.partition(':')[0]}@{host}"
    if ":" in host:
        # A bucket has no colon: this is the beginning of a key that holds an unquoted slash.
        return f"{scheme}://"
    return f"{scheme}://{host}{slash}{path}"


def place_at(root: str, options: Mapping[str, Any] | None = None) -> Place:
    """The place at ``root``; nothing is connected yet. ``options`` are the object store's, see ``objects.py``."""
    scheme = root.partition("://")[0] if "://" in root else ""
    if scheme in ("", "file"):
        if options:
            raise ConfigError("the spool is a local folder, which takes no options")
        folder = Path(unquote(urlsplit(root).path) if scheme else root)
        if scheme and not folder.is_absolute():
            raise ConfigError(
                f"the spool location {shown(root)!r} can't be used", hint="Write it as file:///absolute/folder."
            )
        return LocalPlace(folder.absolute())
    return ObjectPlace(root, shown(root).rstrip("/"), options or {})
