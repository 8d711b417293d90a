"""A spool in an object store: S3 and what speaks its protocol; GCS and Azure as far as pyarrow's own URLs go.

    s3://bucket/prefix                        keys from the environment, AWS's files or the machine's role
    s3://key:secret@bucket/prefix?region=…    for a quick try; the ledger, logs and errors never see the keys

``options`` go before the URL's: ``endpoint_override``, ``region``, ``scheme``, ``access_key``, ``secret_key``,
``session_token``, ``role_arn``, ``tls_ca_file_path``, ``force_virtual_addressing``, ``connect_timeout`` and
``request_timeout`` (seconds). Nothing is connected before the first use, which may be slow: not in an event loop.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pyarrow as pa
import pyarrow.fs as pafs

from airflow_provider_pgetl.replication.errors import ConfigError, SpoolError
from airflow_provider_pgetl.replication.threads import Threads

log = logging.getLogger(__name__)

_S3 = ("s3", "s3a")
_QUERY = frozenset({"endpoint_override", "region", "scheme", "tls_ca_file_path"})
_OPTIONS = _QUERY | {
    "access_key",
    "secret_key",
    "session_token",
    "role_arn",
    "force_virtual_addressing",
    "connect_timeout",
    "request_timeout",
}
# Measured: a write to an endpoint that takes the connection and never answers is given up after twice
# request_timeout + 6 s, other requests after twice request_timeout. The writer then waits and repeats.
_DEFAULTS = {"connect_timeout": 5.0, "request_timeout": 10.0}
_ATTEMPTS = 2
# A deletion is three requests of some 20 ms each, and pyarrow has no bulk deletion of single objects.
_DELETERS = 16
_REGION_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION")
_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_CODE = re.compile(r"AWS Error (\w+)(?: \(HTTP status (\d+)\))?")
_FORBIDDEN = ("the object store refuses the credentials", "Check the keys, and the role's rights to the bucket.")
# What a person has to mend, by AWS's code or HTTP status. Everything else may pass.
_LASTING = {
    "NO_SUCH_BUCKET": ("the bucket does not exist", "Create the bucket, or correct spool_root."),
    "ACCESS_DENIED": _FORBIDDEN,
    "INVALID_ACCESS_KEY_ID": _FORBIDDEN,
    "INVALID_CLIENT_TOKEN_ID": _FORBIDDEN,
    "SIGNATURE_DOES_NOT_MATCH": _FORBIDDEN,
    "MISSING_AUTHENTICATION_TOKEN": _FORBIDDEN,
    "UNRECOGNIZED_CLIENT": _FORBIDDEN,
    "403": _FORBIDDEN,
    "301": ("the bucket is in another region", "Set the region."),
}
_PASSING = {
    "NETWORK_CONNECTION": ("the object store can't be reached", "Check its address; the spool waits for it."),
    "SLOW_DOWN": ("the object store asks to slow down", "The spool waits and repeats."),
    "SERVICE_UNAVAILABLE": ("the object store is not available", "The spool waits and repeats."),
}
_REASONS = {**_PASSING, **_LASTING}


class ObjectPlace:
    """An object store; see ``place.Place``."""

    def __init__(self, url: str, root: str, options: Mapping[str, Any]) -> None:
        self.root = root
        self._scheme = urlsplit(root).scheme
        self._bucket = urlsplit(root).netloc
        self._lock = threading.Lock()
        self._files: pafs.FileSystem | None = None
        if not self._bucket:
            raise ConfigError(
                f"the spool location {root!r} names no bucket",
                hint="Write it as s3://bucket/path; quote keys in it (a slash is %2F), or give them as options.",
            )
        self._url = url
        self._s3 = _s3_options(url, options) if self._scheme in _S3 else None
        if self._s3 is None and options:
            raise ConfigError(f"a spool at {self._scheme}:// takes no options", hint="Put them into its URL.")
        # What the ledger writes before pyarrow's own paths, which begin with the bucket.
        self._prefix, self._cut = f"{self._scheme}://", ""
        if self._scheme.startswith("abfs"):
            container = self._bucket.partition("@")[0]
            self._prefix, self._cut = f"{self._scheme}://{self._bucket}/", f"{container}/"
        if self._s3 is None:
            # These connect to nothing yet, but say whether pyarrow knows the scheme.
            self._filesystem()

    def put(self, path: str, data: pa.Buffer) -> None:
        with self._errors("the spool can't be written"), self._filesystem().open_output_stream(self._own(path)) as file:
            file.write(data)

    def get(self, path: str) -> pa.Buffer:
        try:
            with self._filesystem().open_input_file(self._own(path)) as file:
                return file.read_buffer()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self._translated("a spool file can't be read", error) from error

    def delete(self, paths: Iterable[str]) -> None:
        own = [self._own(path) for path in paths]
        if not own:
            return
        with (
            self._errors("a spool file can't be deleted"),
            Threads(min(_DELETERS, len(own)), thread_name_prefix="pgetl-delete") as pool,
        ):
            for _ in pool.map(self._delete, own):
                pass

    def found(self, folder: str) -> set[str]:
        selector = pafs.FileSelector(self._own(folder), recursive=True, allow_not_found=True)
        with self._errors("the spool can't be listed"):
            found = self._filesystem().get_file_info(selector)
        return {self._ledger(info.path) for info in found if info.is_file}

    def missing(self, paths: Iterable[str]) -> set[str]:
        wanted = list(paths)
        # A listing answers for a thousand objects at once; a look at each one is a request of its own.
        folders = {path.rpartition("/")[0] for path in wanted}
        return set(wanted) - {path for folder in folders for path in self.found(folder)}

    def there(self, folder: str) -> bool:
        with self._errors("the spool can't be listed"):
            bucket = self._own(folder).partition("/")[0]
            return bool(self._filesystem().get_file_info(bucket).type is not pafs.FileType.NotFound)

    def check(self, path: str) -> None:
        own, files = self._own(path), self._filesystem()
        try:
            with files.open_output_stream(own) as file:
                file.write(b"pgetl")
            with files.open_input_file(own) as file:
                file.read_buffer()
            files.delete_file(own)
        except OSError as error:
            found = self._translated("the spool can't be used", error)
            if not _codes(error) & _LASTING.keys():
                raise found from error
            raise ConfigError(found.message, hint=found.hint) from error

    def remove_empty_folders(self, folder: str) -> None:
        """An object store has no folders. pyarrow's removal of one would take a new file with it."""

    def space(self) -> tuple[int, int] | None:
        return None

    def _delete(self, own: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._filesystem().delete_file(own)

    def _own(self, path: str) -> str:
        return self._cut + path.removeprefix(self._prefix)

    def _ledger(self, own: str) -> str:
        return self._prefix + own.removeprefix(self._cut)

    def _filesystem(self) -> pafs.FileSystem:
        with self._lock:
            if self._files is None:
                self._files = _other(self._url, self.root) if self._s3 is None else _connected(self._bucket, self._s3)
            return self._files

    @contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._translated(doing, error) from error

    def _translated(self, doing: str, error: OSError) -> SpoolError:
        """The store's own text may quote what it was sent: only its code is told."""
        codes = _codes(error)
        for code in codes & _REASONS.keys():
            reason, hint = _REASONS[code]
            return SpoolError(f"{doing}: {reason} ({self.root})", hint=hint)
        named = " ".join(sorted(codes)) or error.strerror or type(error).__name__
        return SpoolError(f"{doing}: the object store says {named} ({self.root})")


def _codes(error: OSError) -> set[str]:
    """AWS's code and the HTTP status, as far as the driver tells them."""
    found = _CODE.search(str(error))
    return {code for code in found.groups() if code} if found else set()


def _s3_options(url: str, given: Mapping[str, Any]) -> dict[str, Any]:
    if unknown := sorted(set(given) - _OPTIONS):
        raise ConfigError(
            f"unknown options of the spool: {', '.join(unknown)}", hint=f"Known are {', '.join(sorted(_OPTIONS))}."
        )
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    if unknown := sorted(set(query) - _QUERY):
        raise ConfigError(
            f"unknown parameters in the spool's URL: {', '.join(unknown)}",
            hint=f"Known are {', '.join(sorted(_QUERY))}.",
        )
    user, _, secret = parts.netloc.rpartition("@")[0].partition(":")
    keys = {"access_key": unquote(user), "secret_key": unquote(secret)} if user else {}
    options = {**_DEFAULTS, **keys, **query, **{name: value for name, value in given.items() if value is not None}}
    if bool(options.get("access_key")) != bool(options.get("secret_key")):
        raise ConfigError("the spool has one half of a key only", hint="Give access_key and secret_key, or none.")
    return options


def _connected(bucket: str, options: Mapping[str, Any]) -> pafs.FileSystem:
    given = {**options, **_endpoint(options)}
    placed = (given.get("region"), given.get("endpoint_override"), *map(os.environ.get, _REGION_VARIABLES))
    if not any(placed):
        with contextlib.suppress(OSError):
            given["region"] = pafs.resolve_s3_region(bucket)
    try:
        return pafs.S3FileSystem(
            **given,
            retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
            # A small object is one request then, and no half of an upload is left in the bucket.
            allow_delayed_open=True,
        )
    except (pa.ArrowInvalid, ValueError, TypeError):
        # The cause may quote what was given.
        raise ConfigError(
            f"the options of the spool's bucket {bucket!r} can't be used",
            hint="Look at endpoint_override (host:port), scheme (http or https) and the time-outs (seconds).",
        ) from None


def _endpoint(options: Mapping[str, Any]) -> dict[str, str]:
    """Where the store answers: as given, else by AWS's variables, which pyarrow does not read; both may be a URL."""
    found = options.get("endpoint_override") or next(filter(None, map(os.environ.get, _ENDPOINT_VARIABLES)), None)
    if not found:
        return {}
    scheme, separator, host = str(found).rpartition("://")
    return {"endpoint_override": host.rstrip("/"), **({"scheme": scheme} if separator else {})}


def _other(url: str, root: str) -> pafs.FileSystem:
    try:
        return pafs.FileSystem.from_uri(url)[0]
    except (pa.ArrowInvalid, ValueError, NotImplementedError):
        # The cause quotes the URL, which may hold a key.
        raise ConfigError(
            f"the spool location {root!r} can't be used",
            hint="Use an absolute folder or a URL such as s3://bucket/path.",
        ) from None
