"""Connections to the source: one conninfo, fixed session settings, errors of one kind.

    connect               catalog work: bounded by time-outs, so that nobody waits for ever behind a lock
    connect_copy          reads rows: no time-outs; the server notices within seconds when we are gone
    connect_holder        holds a snapshot: no time-outs
    connect_replication   replication commands: no time-outs

Values must print the same on every path and server, so the session settings that shape text are fixed here.
TLS is libpq's: ``sslmode``, ``sslrootcert``, ``sslcert`` and ``sslkey`` of the conninfo.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import conninfo, sql
from psycopg.rows import TupleRow

from airflow_provider_pgetl.replication.errors import ConfigError, SourceError, SourceUnreachable
from airflow_provider_pgetl.replication.source.refusals import refusal

log = logging.getLogger(__name__)

Connection = psycopg.Connection[TupleRow]

STATEMENT_TIMEOUT = "30s"
LOCK_TIMEOUT = "10s"
# Of a copy: how often the server looks whether we are still there. A query that sends nothing for long (a filter
# that lets nothing pass) would else go on for a reader that is gone.
CHECK_INTERVAL = "5s"

_SETTINGS = {
    "TimeZone": "UTC",
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
}
# Not every version has them, so they can't be startup options.
_NEWER_SETTINGS = {"idle_session_timeout": "0", "transaction_timeout": "0"}
_BOUNDED = {"statement_timeout": STATEMENT_TIMEOUT, "lock_timeout": LOCK_TIMEOUT}
_DEFAULTS: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
}
# The connection is gone or the server is starting, stopping, recovering, full: it will be otherwise in a moment.
_PASSING_CLASSES = ("08", "53", "57P")
# The server is there, but something was in the way: statement and lock time-outs, deadlock, an object in use.
_BUSY_STATES = frozenset({"57014", "55P03", "40001", "40P01", "55006"})
_BUSY_HINT = "Something on the source was in the way (a lock, load); it is tried again by itself."


def conninfo_for(source: str, worker: str, *, replication: bool = False) -> str:
    """The conninfo of one worker: ours on top of the user's."""
    try:
        given = conninfo.conninfo_to_dict(source)
    except psycopg.ProgrammingError:
        # The driver's own message quotes what it could not read, which may be a piece of the password.
        raise ConfigError("the source's conninfo can't be read", hint="Check the connection's fields.") from None
    if "@" in str(given.get("host") or ""):
        raise ConfigError(
            "the host of the source holds an @",
            hint="Percent-encode user and password in the URL, or give the fields one by one.",
        )
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
    """A connection for catalog work: no statement takes longer than 30 s, none waits longer than 10 s for a lock."""
    return _open(source, worker, autocommit=autocommit, settings=_BOUNDED)


def connect_copy(source: str, worker: str = "copy") -> Connection:
    """A connection that reads rows for as long as it takes; cancelled, it leaves no backend behind."""
    connection = _open(source, worker)
    try:
        connection.execute(sql.SQL("set client_connection_check_interval = {}").format(sql.Literal(CHECK_INTERVAL)))
    except psycopg.errors.InvalidParameterValue:
        log.debug("the source's platform can't tell when a client is gone")
    except BaseException as error:
        connection.close()
        if isinstance(error, psycopg.Error):
            raise translate(error) from error
        raise
    return connection


def connect_holder(source: str, worker: str) -> Connection:
    """A connection that may hold a transaction for hours."""
    return _open(source, worker)


def connect_replication(source: str, worker: str) -> Connection:
    """A replication connection for commands; they take no parameters, so the client must do the quoting."""
    return _open(source, worker, replication=True)


def _open(
    source: str,
    worker: str,
    *,
    autocommit: bool = True,
    replication: bool = False,
    settings: Mapping[str, str] | None = None,
) -> Connection:
    """Connect without prepared statements, so that a pooler in between does no harm."""
    with source_errors():
        connection = psycopg.connect(
            conninfo_for(source, worker, replication=replication),
            autocommit=True,
            prepare_threshold=None,
            cursor_factory=psycopg.ClientCursor if replication else psycopg.Cursor,
        )
        try:
            _fix({**_SETTINGS, **_NEWER_SETTINGS, **(settings or {})}, connection)
            connection.autocommit = autocommit
        except BaseException:
            connection.close()
            raise
    return connection


def _fix(settings: Mapping[str, str], connection: Connection) -> None:
    """Set what this server knows; also over PGTZ and PGDATESTYLE, which libpq sends past the startup options."""
    rows = [sql.SQL("({}, {})").format(sql.Literal(name), sql.Literal(value)) for name, value in settings.items()]
    connection.execute(
        sql.SQL(
            "select set_config(name, value, false) from (values {}) s (name, value)"
            " where current_setting(name, true) is not null"
        ).format(sql.SQL(", ").join(rows))
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
    if error.sqlstate is None:
        return _unconnected(error)
    message = error.diag.message_primary or type(error).__name__
    if error.sqlstate in _BUSY_STATES:
        return SourceUnreachable(f"the source could not do it now: {message}", hint=_BUSY_HINT)
    if error.sqlstate.startswith(_PASSING_CLASSES):
        return SourceUnreachable(f"the source can't be reached: {message}")
    hint = "Grant the role what it lacks; the message names it." if error.sqlstate == "42501" else None
    return SourceError(f"the source refused: {message}", hint=hint)


def _unconnected(error: psycopg.Error) -> SourceError:
    found = refusal(str(error))
    if found.hint is None and isinstance(error, psycopg.OperationalError):
        return SourceUnreachable(f"the source can't be reached: {found.message}")
    return SourceError(f"the source refused: {found.message}", hint=found.hint)
