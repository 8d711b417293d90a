"""Airflow connections as addresses: a libpq connection string, a Spark Connect url. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from airflow_provider_pgetl.replication.errors import ConfigError

# Extras are read by name, never passed through: each of these is a libpq option that a deployment may need.
LIBPQ_EXTRAS = (
    "application_name",
    "channel_binding",
    "connect_timeout",
    "gssencmode",
    "hostaddr",
    "keepalives",
    "keepalives_count",
    "keepalives_idle",
    "keepalives_interval",
    "krbsrvname",
    "options",
    "passfile",
    "require_auth",
    "service",
    "sslcert",
    "sslcrl",
    "sslkey",
    "sslmode",
    "sslpassword",
    "sslrootcert",
    "target_session_attrs",
    "tcp_user_timeout",
)


@dataclass(frozen=True, slots=True)
class Resolved:
    """An Airflow connection, read; secret.

    Reading the extras of Airflow's own object also tells the supervisor to mask them, which a child task of a
    trigger may only do by the async form. So they are read once, and everything here takes this value.
    """

    conn_id: str
    host: str | None = None
    port: int | None = None
    login: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    schema: str | None = None
    extra_dejson: dict[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, connection: Any) -> Resolved:
        """Read a connection in a task."""
        return cls._with(connection, connection.extra_dejson)

    @classmethod
    async def aof(cls, connection: Any) -> Resolved:
        """Read a connection in a trigger."""
        read = getattr(connection, "aextra_dejson", None)
        return cls._with(connection, await read() if read is not None else connection.extra_dejson)

    @classmethod
    def _with(cls, connection: Any, extra: dict[str, Any]) -> Resolved:
        return cls(
            conn_id=connection.conn_id,
            host=connection.host,
            port=connection.port,
            login=connection.login,
            password=connection.password,
            schema=connection.schema,
            extra_dejson=extra,
        )


def preload() -> None:
    """Import what the functions below need; for a thread, so that a trigger's event loop does not wait for it."""
    import psycopg.conninfo
    from airflow.providers.apache.spark.hooks import spark_connect

    _ = psycopg.conninfo, spark_connect


def libpq_conninfo(connection: Resolved) -> str:
    """``host=… port=… …`` of a Postgres connection; holds the password, so it is never logged."""
    import psycopg
    from psycopg.conninfo import make_conninfo

    parts: dict[str, Any] = {
        "host": connection.host,
        "port": connection.port,
        "user": connection.login,
        "password": connection.password,
        "dbname": connection.schema,
    }
    extras = connection.extra_dejson
    parts |= {name: extras.get(name) for name in LIBPQ_EXTRAS}
    try:
        return make_conninfo(**{name: value for name, value in parts.items() if value not in (None, "")})
    except psycopg.Error as error:
        raise ConfigError(
            f"connection {connection.conn_id} can't be turned into a Postgres address",
            hint="Look at its host, port, schema (the database) and extras.",
        ) from error


def spark_connect_url(connection: Resolved) -> str:
    """``sc://host:port/…`` of a Spark Connect connection, as the Spark provider's hook builds it."""
    from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook

    if not connection.host:
        raise ConfigError(
            f"connection {connection.conn_id} has no host", hint="Set it to sc://host of the Spark Connect server."
        )

    class Hook(SparkConnectHook):
        """The Spark provider's hook over a connection that is already there."""

        def get_connection(self, conn_id: str) -> Any:  # type: ignore[override]
            """Return what was resolved."""
            return connection

    try:
        return Hook(connection.conn_id).get_connection_url()
    except ValueError as error:
        raise ConfigError(f"connection {connection.conn_id} is not a Spark Connect address: {error}") from error
