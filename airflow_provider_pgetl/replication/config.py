"""Settings of a pipeline, with the ancestor's names and ranges. Wrong ones are refused here, before anything starts.

Nested settings may be given as mappings and choices as strings, so that a DAG or a JSON file can hold them.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from airflow_provider_pgetl.replication.errors import ConfigError
from airflow_provider_pgetl.replication.schema import TableName

_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)


class InvalidatedSlotBehavior(StrEnum):
    """What happens when the slot is gone or has lost WAL that it needed."""

    ERROR = "error"
    RECREATE = "recreate"


class DdlCapture(StrEnum):
    """Whether the source tells of its DDL by an event trigger: if it may be installed, surely, or not at all."""

    AUTO = "auto"
    REQUIRED = "required"
    OFF = "off"


class TableSyncCopyMode(StrEnum):
    """Which tables are copied; the others begin empty and only follow the stream."""

    INCLUDE_ALL_TABLES = "include_all_tables"
    SKIP_ALL_TABLES = "skip_all_tables"
    INCLUDE_TABLES = "include_tables"
    SKIP_TABLES = "skip_tables"


@dataclass(frozen=True, slots=True)
class TableSyncCopy:
    """Which tables are copied; ``tables`` are names like ``public.orders``, for the modes that name some."""

    mode: TableSyncCopyMode = TableSyncCopyMode.INCLUDE_ALL_TABLES
    tables: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _set(self, "mode", _choice("table_sync_copy", TableSyncCopyMode, self.mode))
        _set(self, "tables", tuple(self.tables))
        names = self.mode in (TableSyncCopyMode.INCLUDE_TABLES, TableSyncCopyMode.SKIP_TABLES)
        if names != bool(self.tables):
            raise ConfigError(f"table_sync_copy {self.mode} {'names no tables' if names else 'takes no tables'}")

    def copies(self, table: TableName) -> bool:
        """Whether the table's rows are copied."""
        named = str(table) in self.tables
        return {
            TableSyncCopyMode.INCLUDE_ALL_TABLES: True,
            TableSyncCopyMode.SKIP_ALL_TABLES: False,
            TableSyncCopyMode.INCLUDE_TABLES: named,
            TableSyncCopyMode.SKIP_TABLES: not named,
        }[self.mode]


@dataclass(frozen=True, slots=True)
class BatchConfig:
    """When a batch of changes is flushed to the spool: by time, by bytes, by its share of the memory."""

    max_fill_ms: int = 1000
    max_bytes: int = 64 * 1024 * 1024
    memory_budget_ratio: float = 0.2

    def __post_init__(self) -> None:
        _above_zero(self, "batch.", "max_fill_ms", "max_bytes")
        _ratio("batch.memory_budget_ratio", self.memory_budget_ratio)


@dataclass(frozen=True, slots=True)
class MemoryBackpressureConfig:
    """Reading waits for the spool once memory is used past ``activate_threshold``, until ``resume_threshold``."""

    activate_threshold: float = 0.85
    resume_threshold: float = 0.75

    def __post_init__(self) -> None:
        _ratio("memory_backpressure.activate_threshold", self.activate_threshold)
        _ratio("memory_backpressure.resume_threshold", self.resume_threshold)
        if self.resume_threshold >= self.activate_threshold:
            raise ConfigError("memory_backpressure.resume_threshold must be below activate_threshold")


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """TLS to the source: on means that the server's certificate and name are verified (``verify-full``)."""

    enabled: bool = False
    trusted_root_certs: str | None = None  # path of a PEM file; None: the system's
    client_cert: str | None = None
    client_key: str | None = None

    def options(self) -> dict[str, Any]:
        """As libpq options."""
        if not self.enabled:
            return {}
        roots = self.trusted_root_certs or "system"
        found = {"sslmode": "verify-full", "sslrootcert": roots, "sslcert": self.client_cert, "sslkey": self.client_key}
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True, slots=True)
class KeepaliveConfig:
    """TCP keepalives of connections to the source."""

    idle_secs: int = 30
    interval_secs: int = 10
    retries: int = 3

    def __post_init__(self) -> None:
        _above_zero(self, "keepalive.", "idle_secs", "interval_secs", "retries")

    def options(self) -> dict[str, Any]:
        """As libpq options."""
        return {
            "keepalives_idle": self.idle_secs,
            "keepalives_interval": self.interval_secs,
            "keepalives_count": self.retries,
        }


@dataclass(frozen=True, slots=True)
class PgConnectionConfig:
    """How to reach the source; a libpq conninfo or URL does just as well."""

    host: str
    name: str
    username: str
    port: int = 5432
    hostaddr: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: TlsConfig = field(default_factory=TlsConfig)
    keepalive: KeepaliveConfig = field(default_factory=KeepaliveConfig)

    def __post_init__(self) -> None:
        _set(self, "tls", _nested("tls", TlsConfig, self.tls))
        _set(self, "keepalive", _nested("keepalive", KeepaliveConfig, self.keepalive))

    def conninfo(self) -> str:
        """As a libpq conninfo, which holds the password."""
        from psycopg.conninfo import make_conninfo

        own = {
            "host": self.host,
            "hostaddr": self.hostaddr,
            "port": self.port,
            "dbname": self.name,
            "user": self.username,
            "password": self.password,
        }
        given: dict[str, Any] = {name: value for name, value in own.items() if value is not None}
        return make_conninfo(**given, **self.tls.options(), **self.keepalive.options())


@dataclass(frozen=True, slots=True)
class PipelineConfig:
    """One pipeline: one publication, one slot, one spool folder.

    ``pg_connection`` is the source, as a conninfo or a ``PgConnectionConfig``; where a connection is resolved by
    somebody else (an Airflow hook), it may stay empty until then. ``spool_durable=False`` says that the spool may
    be lost with the machine: the slot is then confirmed only to what was applied. ``spool_options`` are for an
    object store (endpoint, region, keys; by default the environment's). ``spool_quota_bytes`` bounds the spool:
    past it the table that is furthest behind must be copied again. ``heartbeat_interval_ms`` 0 is off.
    """

    name: str
    publication: str
    spool_root: str = field(repr=False)  # a URL may hold keys
    batch: BatchConfig = field(default_factory=BatchConfig)
    pg_connection: str | PgConnectionConfig = field(default="", repr=False)
    max_table_sync_workers: int = 4
    max_copy_connections_per_table: int = 4
    max_parallel_applies: int = 4
    apply_interval_ms: int = 1000
    lease_ttl_s: float = 30.0
    spool_retention_s: float = 3600.0
    spool_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    spool_quota_bytes: int | None = None
    spool_durable: bool = True
    table_error_retry_delay_ms: int = 10_000
    table_error_retry_max_attempts: int = 5
    memory_refresh_interval_ms: int = 100
    memory_backpressure: MemoryBackpressureConfig | None = field(default_factory=MemoryBackpressureConfig)
    table_sync_copy: TableSyncCopy = field(default_factory=TableSyncCopy)
    invalidated_slot_behavior: InvalidatedSlotBehavior = InvalidatedSlotBehavior.ERROR
    slot_failover: bool = False
    ddl_capture: DdlCapture = DdlCapture.AUTO
    watch_interval_ms: int = 2000
    heartbeat_interval_ms: int = 0

    def __post_init__(self) -> None:
        self._coerce()
        if not _NAME.fullmatch(self.name):
            raise ConfigError(
                f"pipeline name {self.name!r} is not usable",
                hint="Use a lower-case letter, then letters, digits and underscores; 40 at most.",
            )
        if not self.publication:
            raise ConfigError("the pipeline names no publication", hint="Set publication to its name.")
        if not self.spool_root:
            raise ConfigError("the pipeline has no spool location", hint="Set spool_root to a durable folder or URL.")
        _above_zero(
            self,
            "",
            "max_table_sync_workers",
            "max_copy_connections_per_table",
            "max_parallel_applies",
            "apply_interval_ms",
            "lease_ttl_s",
            "table_error_retry_delay_ms",
            "memory_refresh_interval_ms",
            "watch_interval_ms",
        )
        _not_negative(self, "spool_retention_s", "table_error_retry_max_attempts", "heartbeat_interval_ms")
        if self.spool_quota_bytes is not None and self.spool_quota_bytes < 2 * self.batch.max_bytes:
            raise ConfigError(
                "spool_quota_bytes is too small",
                hint="Give the spool room for two batches (batch.max_bytes) at least.",
            )

    def _coerce(self) -> None:
        _set(self, "batch", _nested("batch", BatchConfig, self.batch))
        copies: Any = self.table_sync_copy
        copies = {"mode": copies} if isinstance(copies, str) else copies
        _set(self, "table_sync_copy", _nested("table_sync_copy", TableSyncCopy, copies))
        if self.memory_backpressure is not None:
            pressure = _nested("memory_backpressure", MemoryBackpressureConfig, self.memory_backpressure)
            _set(self, "memory_backpressure", pressure)
        behavior = _choice("invalidated_slot_behavior", InvalidatedSlotBehavior, self.invalidated_slot_behavior)
        _set(self, "invalidated_slot_behavior", behavior)
        _set(self, "ddl_capture", _choice("ddl_capture", DdlCapture, self.ddl_capture))
        if isinstance(self.pg_connection, Mapping):
            _set(self, "pg_connection", _nested("pg_connection", PgConnectionConfig, self.pg_connection))

    @property
    def slot(self) -> str:
        """The replication slot of the pipeline."""
        return f"pgetl_{self.name}"

    @property
    def source(self) -> str:
        """The source's conninfo; an error if there is none."""
        connection = self.pg_connection
        conninfo = connection.conninfo() if isinstance(connection, PgConnectionConfig) else connection
        if not conninfo:
            raise ConfigError("the pipeline has no source", hint="Set pg_connection to the source's conninfo.")
        return conninfo


def _set(owner: object, name: str, value: object) -> None:
    """A frozen value may still be completed while it is made."""
    object.__setattr__(owner, name, value)


def _nested(name: str, kind: type[T], given: T | Mapping[str, Any]) -> T:
    if not isinstance(given, Mapping):
        return given
    known = [one.name for one in dataclasses.fields(kind)]  # type: ignore[arg-type]
    if unknown := sorted(set(given) - set(known)):
        raise ConfigError(f"unknown settings in {name}: {', '.join(unknown)}", hint=f"Known are {', '.join(known)}.")
    return kind(**given)


def _choice(name: str, kind: type[E], given: E | str) -> E:
    try:
        return kind(given)
    except ValueError:
        raise ConfigError(f"{name} can't be {given!r}", hint=f"Choose one of {', '.join(kind)}.") from None


def _above_zero(owner: object, prefix: str, *names: str) -> None:
    for name in names:
        if not getattr(owner, name) > 0:
            raise ConfigError(f"{prefix}{name} must be above 0")


def _not_negative(owner: object, *names: str) -> None:
    for name in names:
        if not getattr(owner, name) >= 0:
            raise ConfigError(f"{name} must not be negative")


def _ratio(name: str, value: float) -> None:
    if not 0 < value <= 1:
        raise ConfigError(f"{name} must be above 0 and at most 1")
