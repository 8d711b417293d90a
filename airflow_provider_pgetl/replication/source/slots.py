"""Replication slots: make, look at, drop."""

from __future__ import annotations

import logging
import time
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from airflow_provider_pgetl.replication.errors import ConfigError, SlotError, SlotLost, SourceUnreachable
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.source.connection import (
    Connection,
    connect,
    connect_replication,
    source_errors,
)
from airflow_provider_pgetl.replication.source.waiting import OnWait, run_waiting

log = logging.getLogger(__name__)

# Slots that follow a failover came with 17.
FAILOVER_SINCE = 170000
DROP_TIMEOUT_S = 30.0
_DROP_POLL_S = 0.1
_ALTER_TIMEOUT_S = 10.0
_OBJECT_IN_USE = "55006"
_UNDEFINED_OBJECT = "42704"


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot as the server shows it.

    ``lag_bytes`` is what was written and not confirmed yet, ``retained_bytes`` the WAL that is kept for the slot,
    ``safe_wal_size`` how much may be written until it is lost (None: no limit). ``ready`` is False while the slot
    is still being made. ``invalidation_reason`` is told by 17 and newer.
    """

    name: str
    plugin: str
    active_pid: int | None
    confirmed: Lsn
    retained_bytes: int
    wal_status: str
    safe_wal_size: int | None
    lag_bytes: int = 0
    invalidation_reason: str | None = None
    failover: bool = False
    ready: bool = True
    database: str = ""

    @property
    def lost(self) -> bool:
        """The server has thrown away WAL that the slot needs, or will not serve it any more."""
        return self.wal_status == "lost" or self.invalidation_reason is not None


# Columns that only newer servers have are read by name from the row as json.
_INSPECT = """
select s.slot_name, coalesce(s.plugin, ''), s.active_pid, coalesce(s.confirmed_flush_lsn, '0/0')::text,
       coalesce(pg_wal_lsn_diff(now.lsn, s.restart_lsn), 0)::int8,
       coalesce(s.wal_status, 'lost'), s.safe_wal_size,
       greatest(coalesce(pg_wal_lsn_diff(now.lsn, s.confirmed_flush_lsn), 0), 0)::int8,
       to_jsonb(s) ->> 'invalidation_reason', coalesce((to_jsonb(s) ->> 'failover')::bool, false),
       s.confirmed_flush_lsn is not null or s.plugin is null, coalesce(s.database, '')
from pg_replication_slots s,
     (select case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_lsn() end as lsn) now
where s.slot_name = %s
"""


def inspect(connection: Connection, name: str) -> Slot | None:
    """The slot, if it exists."""
    with source_errors():
        row = connection.execute(_INSPECT, (name,)).fetchone()
    if row is None:
        return None
    given: list[Any] = list(row)
    given[3] = Lsn.parse(given[3])
    return Slot(*given)


def require(connection: Connection, name: str) -> Slot:
    """The slot in a usable state, or an error that says what to do."""
    slot = inspect(connection, name)
    if slot is None:
        raise SlotLost(
            f"the replication slot {name!r} does not exist",
            hint="If it existed before, changes are lost: set invalidated_slot_behavior to 'recreate', which makes it"
            " anew and copies all tables again. Else run the copy DAG: discovery makes the slot.",
        )
    if slot.plugin != "pgoutput":
        raise SlotError(f"the replication slot {name!r} uses the plugin {slot.plugin!r}, not pgoutput")
    if slot.database != connection.info.dbname:
        raise SlotError(
            f"the replication slot {name!r} belongs to the database {slot.database!r}",
            hint="Slot names are shared by all databases of a server: give the pipeline another name.",
        )
    if not slot.ready:
        raise SourceUnreachable(
            f"the replication slot {name!r} is still being made by process {slot.active_pid}",
            hint="It waits for old transactions; end them, or wait.",
        )
    if slot.lost:
        reason = f" ({slot.invalidation_reason})" if slot.invalidation_reason else ""
        raise SlotLost(
            f"the replication slot {name!r} was invalidated{reason}: the server removed what it needed",
            hint="Drop the slot, run discovery again and resync all tables, or set invalidated_slot_behavior to"
            " 'recreate'; raise max_slot_wal_keep_size.",
        )
    return slot


def create(source: str, name: str, *, failover: bool = False, on_wait: OnWait | None = None) -> Lsn:
    """Make the slot and return its consistent point; waits for the transactions that run now.

    While it waits, ``on_wait`` is told how many they are; what it raises ends the wait, and no slot is made.
    """
    with closing(connect_replication(source, "slot")) as replication:
        if failover:
            _refuse_failover_below_17(replication)
            options = sql.SQL("(SNAPSHOT 'nothing', FAILOVER true)")
        else:
            options = sql.SQL("NOEXPORT_SNAPSHOT")
        command = sql.SQL("CREATE_REPLICATION_SLOT {} LOGICAL pgoutput {}").format(sql.Identifier(name), options)
        row = run_waiting(source, replication, command, on_wait)
    return Lsn.parse(row[1])


def ensure(
    source: str, connection: Connection, name: str, *, failover: bool = False, on_wait: OnWait | None = None
) -> Lsn:
    """Make the slot unless it exists and is usable; returns the position that it stands at.

    A slot that exists is made to follow failovers if that is asked for; it is never taken back.
    """
    if failover:
        _refuse_failover_below_17(connection)
    if inspect(connection, name) is None:
        return create(source, name, failover=failover, on_wait=on_wait)
    slot = require(connection, name)
    if failover and not slot.failover:
        _set_failover(source, slot)
    return slot.confirmed


def drop(
    source: str,
    connection: Connection,
    name: str,
    *,
    timeout_s: float = DROP_TIMEOUT_S,
    terminate: bool = False,
) -> bool:
    """Drop the slot, waiting for whoever uses it to let go; False if there was none.

    ``terminate`` ends the walsender that uses it, however often it comes back within the time.
    """
    slot = inspect(connection, name)
    if slot is None:
        return False
    deadline = time.monotonic() + timeout_s
    # On a connection of its own: a refused try must not break the caller's transaction.
    with closing(connect(source, "slot")) as own:
        while not _dropped(own, name):
            slot = inspect(own, name)
            if slot is not None and terminate and slot.active_pid is not None:
                with source_errors():
                    own.execute("select pg_terminate_backend(%s)", (slot.active_pid,))
            if time.monotonic() >= deadline:
                pid = slot.active_pid if slot else None
                raise SlotError(
                    f"the replication slot {name!r} is still in use by process {pid} after {timeout_s:.0f} s",
                    hint=f"Stop the stream, or end it: select pg_terminate_backend({pid}).",
                )
            time.sleep(_DROP_POLL_S)
    return True


def _dropped(connection: Connection, name: str) -> bool:
    with source_errors():
        try:
            connection.execute("select pg_drop_replication_slot(%s)", (name,))
        except psycopg.Error as error:
            if error.sqlstate == _OBJECT_IN_USE:
                return False
            if error.sqlstate != _UNDEFINED_OBJECT:
                raise
    return True


def _refuse_failover_below_17(connection: Connection) -> None:
    version = connection.info.server_version
    if version < FAILOVER_SINCE:
        raise ConfigError(
            f"slot_failover needs PostgreSQL 17 or newer, the source is {version // 10000}",
            hint="Set slot_failover to False.",
        )


def _set_failover(source: str, slot: Slot) -> None:
    """The command waits for whoever uses the slot, and a stream never lets go: look first, and don't wait long."""
    deadline = time.monotonic() + _ALTER_TIMEOUT_S

    def give_up(_: int) -> None:
        if time.monotonic() >= deadline:
            raise _in_use(slot.name)

    if slot.active_pid is not None:
        raise _in_use(slot.name)
    command = sql.SQL("ALTER_REPLICATION_SLOT {} (FAILOVER true)").format(sql.Identifier(slot.name))
    with closing(connect_replication(source, "slot")) as replication:
        run_waiting(source, replication, command, give_up)
    log.info("the slot %s follows failovers from now on", slot.name)


def _in_use(name: str) -> SlotError:
    return SlotError(
        f"the replication slot {name!r} can't be set to follow failovers while it is in use",
        hint="Stop the stream, run discovery, and start the stream again.",
    )
