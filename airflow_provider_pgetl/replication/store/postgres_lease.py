"""Leases in Postgres: a row with owner, epoch and expiry by the server's clock.

A writer proves its lease inside its own transaction by ``hold``: the row is locked and must still carry the
writer's epoch. Expired is not overtaken: nobody has taken the lease, so its epoch may still write.
"""

from __future__ import annotations

from psycopg import Cursor
from psycopg.rows import DictRow

from airflow_provider_pgetl.replication.progress import Lease
from airflow_provider_pgetl.replication.store.postgres_pool import Pool
from airflow_provider_pgetl.replication.store.rules import overtaken_lease


class PostgresLeases:
    """``LeaseStore``."""

    _pool: Pool

    def acquire(self, pipeline: str, name: str, owner: str, ttl_s: float) -> Lease | None:
        with self._pool.transaction() as cursor:
            row = cursor.execute(
                "insert into pgetl.lease as l (pipeline, name, owner, epoch, expires_at)"
                " values (%(pipeline)s, %(name)s, %(owner)s, 1,"
                "  clock_timestamp() + make_interval(secs => %(ttl_s)s))"
                " on conflict (pipeline, name) do update set owner = excluded.owner, epoch = l.epoch + 1,"
                "  expires_at = clock_timestamp() + make_interval(secs => %(ttl_s)s)"
                " where l.owner is null or l.owner = excluded.owner or l.expires_at <= clock_timestamp()"
                " returning epoch",
                {"pipeline": pipeline, "name": name, "owner": owner, "ttl_s": ttl_s},
            ).fetchone()
        return Lease(pipeline, name, owner, row["epoch"]) if row else None

    def renew(self, lease: Lease, ttl_s: float) -> None:
        with self._pool.transaction() as cursor:
            renewed = cursor.execute(
                "update pgetl.lease set expires_at = clock_timestamp() + make_interval(secs => %s)"
                " where pipeline = %s and name = %s and owner = %s and epoch = %s",
                (ttl_s, lease.pipeline, lease.name, lease.owner, lease.epoch),
            ).rowcount
            if not renewed:
                raise overtaken_lease(lease)

    def release(self, lease: Lease) -> None:
        with self._pool.transaction() as cursor:
            cursor.execute(
                "update pgetl.lease set owner = null, expires_at = clock_timestamp()"
                " where pipeline = %s and name = %s and owner = %s and epoch = %s",
                (lease.pipeline, lease.name, lease.owner, lease.epoch),
            )


def hold(cursor: Cursor[DictRow], lease: Lease) -> None:
    """Make sure, until the end of the transaction, that nobody has taken the lease."""
    held = cursor.execute(
        "select from pgetl.lease where pipeline = %s and name = %s and owner = %s and epoch = %s for share",
        (lease.pipeline, lease.name, lease.owner, lease.epoch),
    ).rowcount
    if not held:
        raise overtaken_lease(lease)
