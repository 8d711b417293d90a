"""Settings of a pipeline, with the ancestor's names and ranges."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from airflow_provider_pgetl.replication.errors import ConfigError

_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")


@dataclass(frozen=True, slots=True)
class BatchConfig:
    """When a batch of changes is flushed to the spool."""

    max_fill_ms: int = 1000
    max_bytes: int = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class PipelineConfig:
    """One pipeline: one publication, one slot, one spool folder."""

    name: str
    publication: str
    spool_root: str
    batch: BatchConfig = field(default_factory=BatchConfig)
    max_copy_connections_per_table: int = 4
    max_parallel_applies: int = 4
    apply_interval_ms: int = 1000
    lease_ttl_s: float = 30.0
    spool_retention_s: float = 3600.0
    table_error_retry_delay_ms: int = 10_000
    table_error_retry_max_attempts: int = 5

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError(
                f"pipeline name {self.name!r} is not usable",
                hint="Use a lower-case letter, then letters, digits and underscores; 40 at most.",
            )
        if not self.publication:
            raise ConfigError("the pipeline names no publication", hint="Set publication to its name.")
        if not self.spool_root:
            raise ConfigError("the pipeline has no spool location", hint="Set spool_root to a durable folder or URL.")
        for name in ("max_copy_connections_per_table", "max_parallel_applies", "lease_ttl_s"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} must be above 0")
        if self.batch.max_fill_ms <= 0 or self.batch.max_bytes <= 0:
            raise ConfigError("batch.max_fill_ms and batch.max_bytes must be above 0")

    @property
    def slot(self) -> str:
        """The replication slot of the pipeline."""
        return f"pgetl_{self.name}"
