"""Requests that arrive: connections that are kept, retries that spread out, errors without secrets.

The standard library does it: httpx comes with Airflow, but it logs the URL of every request, and a webhook's URL is
often its secret; and the engine should not need more than it has.
"""

from __future__ import annotations

import contextlib
import email.utils
import http.client
import logging
import random
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from airflow_provider_pgetl.replication.errors import ConfigError, DestinationError, DestinationUnreachable

log = logging.getLogger(__name__)

_ANSWER_BYTES = 64 * 1024
_TOO_MANY = 429


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a request is tried: the pause doubles from ``pause_s`` up to ``max_pause_s``, less up to half."""

    timeout_s: float = 30.0
    max_attempts: int = 5
    pause_s: float = 0.5
    max_pause_s: float = 30.0
    max_retry_after_s: float = 60.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be above 0")

    def pause(self, attempt: int, retry_after: float | None) -> float:
        """Seconds until the next attempt: what the receiver asks for, within limits, else our own."""
        if retry_after is not None:
            return min(retry_after, self.max_retry_after_s)
        full = min(self.max_pause_s, self.pause_s * 2.0 ** (attempt - 1))
        return full * random.uniform(0.5, 1.0)  # noqa: S311 - spreads retries, hides nothing


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    retry_after: float | None


class Poster:
    """Posts to one URL from any number of threads; ``where`` is its host, the rest of a URL may be secret."""

    def __init__(
        self, url: str, headers: Mapping[str, str], patience: Patience, tls: ssl.SSLContext | None = None
    ) -> None:
        parts = _parse(url)
        self._host, self._port = parts.hostname or "", parts.port
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._tls = (tls or ssl.create_default_context()) if parts.scheme == "https" else None
        self._headers = _checked(headers)
        self._patience = patience
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []
        self.where = f"{parts.scheme}://{parts.netloc}"

    def open(self) -> None:
        """Reach the receiver once, without a request."""
        self._closed.clear()
        connection = self._connection()
        try:
            connection.connect()
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(type(error).__name__) from error
        self._keep(connection)

    def close(self) -> None:
        """Let connections go; requests that wait for their next attempt give up."""
        self._closed.set()
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def post(self, body: bytes, headers: Mapping[str, str], what: str) -> None:
        """Return when the receiver took it (2xx); ``what`` completes "refused ..."."""
        reason = "it was shut down"
        for attempt in range(1, self._patience.max_attempts + 1):
            retry_after = None
            try:
                answer = self._send(body, {**self._headers, **headers})
            except (OSError, http.client.HTTPException) as error:
                reason = type(error).__name__
            else:
                if 200 <= answer.status < 300:
                    return
                self._refuse(answer.status, what)
                reason, retry_after = f"status {answer.status}", answer.retry_after
            if attempt < self._patience.max_attempts:
                pause = self._patience.pause(attempt, retry_after)
                log.debug("%s did not take %s (%s), again in %.1f s", self.where, what, reason, pause)
                if self._closed.wait(pause):
                    break
        raise self._unreachable(reason)

    def _refuse(self, status: int, what: str) -> None:
        """Raise if another attempt would get the same answer."""
        if status < 500 and status != _TOO_MANY:
            raise DestinationError(
                f"{self.where} refused {what} with status {status}",
                hint="Look at the receiver's log; check its URL and the headers that it expects.",
            )

    def _unreachable(self, reason: str) -> DestinationUnreachable:
        return DestinationUnreachable(
            f"{self.where} can't be reached: {reason}",
            hint="Check that the receiver runs; the spool keeps the changes until it is back.",
        )

    def _send(self, body: bytes, headers: Mapping[str, str]) -> _Answer:
        connection = self._take()
        if connection is not None:
            # The receiver may have closed it while it lay idle: that is no failed attempt.
            with contextlib.suppress(ConnectionError, http.client.HTTPException):
                return self._exchange(connection, body, headers)
        return self._exchange(self._connection(), body, headers)

    def _exchange(self, connection: http.client.HTTPConnection, body: bytes, headers: Mapping[str, str]) -> _Answer:
        try:
            # A receiver that refuses early (413, 401) answers before it has read all, and closes.
            with contextlib.suppress(BrokenPipeError):
                connection.request("POST", self._target, body, dict(headers))
            response = connection.getresponse()
            response.read(_ANSWER_BYTES)
            answer = _Answer(response.status, _retry_after(response.headers.get("Retry-After")))
        except BaseException:
            connection.close()
            raise
        if response.isclosed() and not response.will_close:
            self._keep(connection)
        else:
            connection.close()
        return answer

    def _connection(self) -> http.client.HTTPConnection:
        timeout = self._patience.timeout_s
        if self._tls is not None:
            return http.client.HTTPSConnection(self._host, self._port, timeout=timeout, context=self._tls)
        return http.client.HTTPConnection(self._host, self._port, timeout=timeout)

    def _take(self) -> http.client.HTTPConnection | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _keep(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if not self._closed.is_set():
                self._idle.append(connection)
                return
        connection.close()


def _parse(url: str) -> SplitResult:
    wrong = ConfigError("the URL of the receiver can't be used", hint="Give one such as https://host/path.")
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise wrong from None
    if not usable:
        raise wrong
    if parts.username or parts.password:
        raise ConfigError("the URL of the receiver holds a password", hint="Send it as a header: Authorization.")
    return parts


def _checked(headers: Mapping[str, str]) -> dict[str, str]:
    """Refused here, because the error of the standard library quotes the value."""
    for name, value in headers.items():
        if not _sendable(name) or not _sendable(value):
            raise ConfigError(f"the header {name!r} can't be sent", hint="Name and value are one line of Latin-1 text.")
    return dict(headers)


def _sendable(text: object) -> bool:
    return isinstance(text, str) and text.isprintable() and all(ord(character) < 256 for character in text)


def _retry_after(value: str | None) -> float | None:
    """Seconds, from a number or a date; None if there is none that can be read."""
    if value is None:
        return None
    if value.isascii() and value.strip().isdigit():
        return float(value)
    try:
        at = email.utils.parsedate_to_datetime(value)
    except ValueError:
        return None
    return max(0.0, at.timestamp() - time.time())
