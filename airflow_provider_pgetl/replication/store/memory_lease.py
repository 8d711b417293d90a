"""Leases in memory, by the store's clock."""

from __future__ import annotations

from airflow_provider_pgetl.replication.progress import Lease
from airflow_provider_pgetl.replication.store.memory_data import KeptLease, MemoryData


class MemoryLeases(MemoryData):
    """``LeaseStore``."""

    def acquire(self, pipeline: str, name: str, owner: str, ttl_s: float) -> Lease | None:
        with self._lock:
            now = self._clock()
            held = self._leases.setdefault((pipeline, name), KeptLease(None, 0, now))
            if held.owner not in (None, owner) and held.expires > now:
                return None
            held.owner, held.epoch, held.expires = owner, held.epoch + 1, now + ttl_s
            return Lease(pipeline, name, owner, held.epoch)

    def renew(self, lease: Lease, ttl_s: float) -> None:
        with self._lock:
            self._hold(lease).expires = self._clock() + ttl_s

    def release(self, lease: Lease) -> None:
        with self._lock:
            held = self._leases.get((lease.pipeline, lease.name))
            if held is not None and (held.owner, held.epoch) == (lease.owner, lease.epoch):
                held.owner = None
