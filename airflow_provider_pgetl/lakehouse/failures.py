"""Spark's errors as ours, in one place.

A message of Spark may quote a cell ("the value '...' of type STRING cannot be cast"), so only what is known to
hold names and no values is passed on: the first line of analysis errors and of Iceberg's own exceptions, and the
text of our own errors from the Python worker. Of everything else the error class must do.
"""

from __future__ import annotations

import re

import grpc
from pyspark.errors import AnalysisException, PySparkException
from pyspark.errors.exceptions.connect import PythonException, SparkConnectGrpcException

from airflow_provider_pgetl.lakehouse.fold import MISSING
from airflow_provider_pgetl.replication import errors
from airflow_provider_pgetl.replication.errors import (
    DestinationError,
    DestinationFailed,
    DestinationUnreachable,
    PgEtlError,
    SpoolCorrupt,
)

_UNREACHABLE = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})
_LOST = ("NO_ACTIVE_SESSION", "INVALID_HANDLE.SESSION", "SESSION_NOT_SAME", "RESPONSE_ALREADY_RECEIVED")
_OURS = re.compile(r"airflow_provider_pgetl\.replication\.errors\.(\w+): (.+?)(?: \((.*)\))?\s*$", re.MULTILINE)
_ICEBERG = re.compile(r"org\.apache\.iceberg\.|java\.lang\.IllegalArgumentException|IllegalStateException")

# Error classes of Spark that a person can act on.
_HINTS = {
    "REQUIRES_SINGLE_PART_NAMESPACE": "The Spark server does not know the catalog: set spark.sql.catalog.<name>.",
    "MISSING_CATALOG_ABILITY": "The catalog is not Iceberg's: set spark.sql.catalog.<name> to its SparkCatalog.",
    "CATALOG_NOT_FOUND": "The Spark server does not know the catalog: set spark.sql.catalog.<name>.",
    "PARSE_SYNTAX_ERROR": "Iceberg's SQL extensions are missing: set spark.sql.extensions on the Spark server.",
    "CANNOT_LOAD_CATALOG_CLASS": "The Iceberg runtime jar is missing on the Spark server.",
}


class SessionLost(DestinationUnreachable):
    """The server does not know our session any more (it was restarted): a new one will do."""


class Refused(DestinationError):
    """The table moved under us: fast-forward or commit was refused; look again and redo."""


_NO_CATALOG = (
    DestinationUnreachable,
    "the lake's catalog can't be reached",
    "Check the database of the Iceberg catalog; the spool keeps the changes until it is back.",
)
_MOVED = (Refused, "the lake's table was changed by somebody else", None)
# What a message holds -> the error it means, in that order.
_SIGNS: dict[str, tuple[type[PgEtlError], str, str | None]] = {
    "[OPERATION_CANCELED": (DestinationError, "interrupted", "It was cancelled; start it again if that was not meant."),
    "Cannot fast-forward": _MOVED,
    "CommitFailedException": _MOVED,
    "CommitStateUnknownException": _MOVED,
    "UncheckedSQLException": _NO_CATALOG,
    "PSQLException": _NO_CATALOG,
    MISSING: (DestinationError, "a row that the changes refer to is not in the lake", "Resync the table."),
    "[PATH_NOT_FOUND": (SpoolCorrupt, "Spark can't find a spool file", None),
    "[FAILED_READ_FILE": (SpoolCorrupt, "Spark can't read a spool file", None),
}


def translate(error: BaseException, doing: str) -> PgEtlError:
    """The error of ours that says the same; ``doing`` completes "while ..."."""
    if isinstance(error, PgEtlError):
        return error
    if isinstance(error, grpc.RpcError):
        return DestinationUnreachable(f"the Spark Connect server did not answer while {doing}")
    if isinstance(error, PythonException):
        return _from_worker(str(error), doing)
    if isinstance(error, PySparkException):
        return _from_spark(error, doing)
    return DestinationFailed(f"{type(error).__name__} while {doing}")


def _from_spark(error: PySparkException, doing: str) -> PgEtlError:
    message, condition = str(error), error.getCondition() or ""
    if ours := _OURS.search(message):
        return _ours(ours)
    known = _known(error, message, condition)
    if known is not None:
        kind, what, hint = known
        return kind(f"{what} while {doing}", hint=hint)
    if not condition and not _ICEBERG.search(message):
        return DestinationFailed(f"Spark failed while {doing}: {type(error).__name__}")
    hint = next((text for prefix, text in _HINTS.items() if condition.startswith(prefix)), None)
    return DestinationError(f"Spark refused while {doing}: {_safe(error, message, condition)}", hint=hint)


def _known(error: PySparkException, message: str, condition: str) -> tuple[type[PgEtlError], str, str | None] | None:
    if any(condition.startswith(lost) or f"[{lost}" in message for lost in _LOST):
        return SessionLost, "the Spark session was lost", None
    if isinstance(error, SparkConnectGrpcException) and error.getGrpcStatusCode() in _UNREACHABLE:
        return DestinationUnreachable, "the Spark Connect server can't be reached", None
    for sign, failure in _SIGNS.items():
        if sign in message:
            return failure
    return None


def _safe(error: PySparkException, message: str, condition: str) -> str:
    first = message.strip().split("\n", 1)[0][:300]
    if isinstance(error, AnalysisException) or (not condition and _ICEBERG.search(message)):
        return first
    return condition or type(error).__name__


def _from_worker(message: str, doing: str) -> PgEtlError:
    ours = _OURS.search(message)
    if ours is not None:
        return _ours(ours)
    last = message.split("JVM stacktrace", 1)[0].strip().splitlines()[-1]
    kind = last.split(":", 1)[0].strip()[:100]
    return DestinationError(
        f"the Python worker failed while {doing} ({kind})",
        hint="Look at the Spark server's log; its Python needs this package, pyarrow and psycopg.",
    )


def _ours(match: re.Match[str]) -> PgEtlError:
    kind = getattr(errors, match[1], DestinationError)
    if not (isinstance(kind, type) and issubclass(kind, PgEtlError)):
        kind = DestinationError
    return kind(match[2], hint=match[3])
