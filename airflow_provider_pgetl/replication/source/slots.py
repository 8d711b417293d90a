"""Replication slots: make, look at, drop."""

from __future__ import annotations

from dataclasses import dataclass

from psycopg import sql

from airflow_provider_pgetl.replication.errors import SlotError
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.source.connection import (
    Connection,
    connect_replication,
    source_errors,
)


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot as the server shows it."""

    name: str
    plugin: str
    active_pid: int | None
    confirmed: Lsn
    retained_bytes: int
    wal_status: str
    safe_wal_size: int | None

    @property
    def lost(self) -> bool:
        """The server has thrown away WAL that the slot needs."""
        return self.wal_status == "lost"


_INSPECT = """
select slot_name, coalesce(plugin, ''), active_pid, coalesce(confirmed_flush_lsn, '0/0')::text,
       coalesce(pg_wal_lsn_diff(
           case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_lsn() end,
           restart_lsn), 0)::int8,
       coalesce(wal_status, 'lost'), safe_wal_size
from pg_replication_slots where slot_name = %s
"""


def inspect(connection: Connection, name: str) -> Slot | None:
    """The slot, if it exists."""
    with source_errors():
        row = connection.execute(_INSPECT, (name,)).fetchone()
    if row is None:
        return None
    return Slot(row[0], row[1], row[2], Lsn.parse(row[3]), row[4], row[5], row[6])


def require(connection: Connection, name: str) -> Slot:
    """The slot in a usable state, or an error that says what to do."""
    slot = inspect(connection, name)
    if slot is None:
        raise SlotError(
            f"the replication slot {name!r} does not exist",
            hint="Run the copy DAG: discovery makes the slot. If it existed before, resync all tables.",
        )
    if slot.lost:
        raise SlotError(
            f"the replication slot {name!r} was invalidated: the server removed WAL that it needed",
            hint="Drop the slot, run discovery again and resync all tables; raise max_slot_wal_keep_size.",
        )
    if slot.plugin != "pgoutput":
        raise SlotError(f"the replication slot {name!r} uses the plugin {slot.plugin!r}, not pgoutput")
    return slot


def create(source: str, name: str) -> Lsn:
    """Make the slot and return its consistent point; waits for the transactions that run now."""
    with connect_replication(source, "slot") as connection, source_errors():
        row = connection.execute(
            sql.SQL("CREATE_REPLICATION_SLOT {} LOGICAL pgoutput NOEXPORT_SNAPSHOT").format(sql.Identifier(name))
        ).fetchone()
    assert row is not None
    return Lsn.parse(row[1])


def ensure(source: str, connection: Connection, name: str) -> Lsn:
    """Make the slot unless it exists and is usable; returns the position that it stands at."""
    if inspect(connection, name) is None:
        return create(source, name)
    return require(connection, name).confirmed


def drop(source: str, connection: Connection, name: str) -> bool:
    """Drop the slot, waiting for whoever uses it to let go; False if there was none."""
    if inspect(connection, name) is None:
        return False
    with connect_replication(source, "slot") as replication, source_errors():
        replication.execute(sql.SQL("DROP_REPLICATION_SLOT {} WAIT").format(sql.Identifier(name)))
    return True
