"""A spool in a local folder, or in one that is mounted: a file is durable when its folder and their parents are."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from airflow_provider_pgetl.replication.errors import ConfigError, SpoolError

log = logging.getLogger(__name__)

T = TypeVar("T")

TEMPORARY = ".tmp"
# Somebody may remove an empty folder just as we write into it.
_ATTEMPTS = 3
_REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "the rights are missing",
    errno.EPERM: "the rights are missing",
    errno.ESTALE: "the mounted folder is gone",
}
_LASTING = frozenset({errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR})
# What a file system says that can't sync a folder: it does so by itself, or never.
_NO_FOLDER_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EBADF})


class LocalPlace:
    """A folder; see ``place.Place``."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        # Folders whose way up to the root this object has synced.
        self._durable: set[Path] = set()

    def put(self, path: str, data: pa.Buffer) -> None:
        final = Path(path)
        with _errors("the spool can't be written"):
            try:
                _again(lambda: self._write(final, data))
            except OSError:
                _discard(final.with_suffix(TEMPORARY), final)
                raise

    def get(self, path: str) -> pa.Buffer:
        try:
            return pa.py_buffer(Path(path).read_bytes())
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _translated("a spool file can't be read", error) from error

    def delete(self, paths: Iterable[str]) -> None:
        with _errors("a spool file can't be deleted"):
            for path in paths:
                Path(path).unlink(missing_ok=True)

    def found(self, folder: str) -> set[str]:
        with _errors("the spool can't be listed"):
            return {
                str(Path(parent) / name) for parent, _, names in os.walk(folder, onerror=_unless_gone) for name in names
            }

    def missing(self, paths: Iterable[str]) -> set[str]:
        with _errors("the spool can't be listed"):
            return {path for path in paths if not Path(path).exists()}

    def there(self, folder: str) -> bool:
        return Path(folder).is_dir()

    def check(self, path: str) -> None:
        try:
            self._write(Path(path), pa.py_buffer(b"pgetl"))
            Path(path).read_bytes()
            Path(path).unlink()
        except OSError as error:
            _discard(Path(path).with_suffix(TEMPORARY), Path(path))
            found = _translated("the spool can't be used", error)
            if error.errno not in _LASTING:
                raise found from error
            raise ConfigError(f"{found.message} ({self.root})", hint="Give pgetl the right to write there.") from error

    def remove_empty_folders(self, folder: str) -> None:
        # From the leaves up. A folder that is not empty refuses, so that a file written meanwhile is safe.
        for parent, _, _ in os.walk(folder, topdown=False):
            with contextlib.suppress(OSError):
                if parent != folder:
                    Path(parent).rmdir()

    def space(self) -> tuple[int, int] | None:
        folder = Path(self.root)
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        try:
            found = os.statvfs(folder)
        except OSError:
            return None
        return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize

    def _write(self, final: Path, data: pa.Buffer) -> None:
        temporary = final.with_suffix(TEMPORARY)
        self._ready(final.parent)
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(final)
        _sync_folder(final.parent)

    def _ready(self, folder: Path) -> None:
        """The folder exists, and so it does after a crash."""
        if folder in self._durable and folder.is_dir():
            return
        way = [folder, *folder.parents]
        existed = next(number for number, parent in enumerate(way) if parent.exists())
        folder.mkdir(parents=True, exist_ok=True)
        # Also what was there before, up to the root: whoever made it may have died before it was synced.
        for parent in way[: max(existed, way.index(Path(self.root).parent)) + 1]:
            _sync_folder(parent)
        self._durable.add(folder)


def _again(step: Callable[[], T]) -> T:
    for attempt in range(1, _ATTEMPTS):
        try:
            return step()
        except FileNotFoundError:
            log.debug("a spool folder was removed while it was written to, attempt %d", attempt)
    return step()


def _discard(*files: Path) -> None:
    """Leave nothing half-written; what can't be removed now is swept later."""
    for file in files:
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """A renamed file is durable only when its folder is."""
    try:
        handle = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    except PermissionError:
        # A parent that we may pass but not read: whoever made it has to answer for it.
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(handle)


def _unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


@contextmanager
def _errors(doing: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _translated(doing, error) from error


def _translated(doing: str, error: OSError) -> SpoolError:
    reason = _REASONS.get(error.errno or 0) or error.strerror or type(error).__name__
    return SpoolError(f"{doing}: {reason}")
