"""Connections to the source: one conninfo, fixed session settings, errors of one kind.

Values must print the same on every path and server, so the session settings that shape text are fixed here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import conninfo
from psycopg.rows import TupleRow

from airflow_provider_pgetl.replication.errors import ConfigError, SourceError, SourceUnreachable

Connection = psycopg.Connection[TupleRow]

_SETTINGS = {
    "TimeZone": "UTC",
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
}
_DEFAULTS: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
}
# The server answered, and will answer otherwise in a moment: starting, stopping, recovering, full.
_PASSING_CLASSES = ("08", "53", "57")
_PASSING_WORDS = ("starting up", "shutting down", "recovery", "too many clients", "terminating")


def conninfo_for(source: str, worker: str, *, replication: bool = False) -> str:
    """The conninfo of one worker: ours on top of the user's."""
    try:
        given = conninfo.conninfo_to_dict(source)
    except psycopg.ProgrammingError as error:
        raise ConfigError("the source's conninfo can't be read", hint="Check the connection's fields.") from error
    options = [str(given.pop("options", "") or "")]
    options += [f"-c {name}={value}" for name, value in _SETTINGS.items()]
    merged: dict[str, Any] = {**_DEFAULTS, **given}
    merged["options"] = " ".join(filter(None, options))
    merged["client_encoding"] = "UTF8"
    merged["application_name"] = f"pgetl:{worker}"
    if replication:
        merged["replication"] = "database"
    return conninfo.make_conninfo(**merged)


def connect(source: str, worker: str, *, autocommit: bool = True) -> Connection:
    """A plain connection; without prepared statements, so that a pooler in between does no harm."""
    with source_errors():
        return psycopg.connect(conninfo_for(source, worker), autocommit=autocommit, prepare_threshold=None)


def connect_replication(source: str, worker: str) -> Connection:
    """A replication connection for commands; they take no parameters, so the client must do the quoting."""
    with source_errors():
        return psycopg.connect(
            conninfo_for(source, worker, replication=True),
            autocommit=True,
            prepare_threshold=None,
            cursor_factory=psycopg.ClientCursor,
        )


@contextmanager
def source_errors() -> Iterator[None]:
    """Translate the driver's errors, once, by SQLSTATE class."""
    try:
        yield
    except psycopg.Error as error:
        raise translate(error) from error


def translate(error: psycopg.Error) -> SourceError:
    """The same error in our words; the server's own message is kept, its detail (which may quote rows) is not."""
    message = (error.diag.message_primary or str(error).strip().split("\n")[0]) or type(error).__name__
    if error.sqlstate is not None:
        passing = error.sqlstate.startswith(_PASSING_CLASSES)
    else:
        # Before the session exists libpq gives only text; a refusal by the server says FATAL.
        passing = "FATAL" not in str(error) or any(word in str(error) for word in _PASSING_WORDS)
    if passing:
        return SourceUnreachable(f"the source can't be reached: {message}")
    return SourceError(f"the source refused: {message}", hint=_hint(error))


def _hint(error: psycopg.Error) -> str | None:
    if error.sqlstate is None:
        return "Check user, password, database and pg_hba.conf."
    if error.sqlstate == "42501":
        return "Grant the role what it lacks; the message names it."
    return None
