"""What can go wrong, as one tree.

    PgEtlError
    ├── ConfigError               a setting is wrong                        manual
    ├── SourceError               Postgres refused or is gone               manual
    │   ├── SourceUnreachable     connection lost, restart, failover        timed
    │   ├── SlotError             slot of another kind, refused             manual
    │   │   └── SlotLost          slot missing or invalidated               manual
    │   └── SnapshotLost          the exported snapshot's holder is gone    timed
    ├── DecodeError               bytes that are not what they claim        manual
    ├── SpoolError                spool location full, read-only or gone    timed
    │   └── SpoolCorrupt          a registered file is missing or altered   manual
    ├── StoreError                state store refused or is gone            timed
    │   ├── Overtaken             a newer epoch or generation owns this     never
    │   ├── IllegalTransition     a move that the state table forbids       never
    │   └── SchemaChangeUnderWay  the destination may be in either shape    manual
    ├── DestinationError          the lake refused                          manual
    │   ├── DestinationUnreachable                                          timed
    │   └── DestinationFailed     it broke off for no reason that we know   timed
    └── NotSupported              not built, said clearly                   manual

Each class says what a retry can do (``retry``) and what a person should do (``hint``). A driver's error is
wrapped once, in the room that talks to the driver, with the cause kept. Messages hold no cell values.
"""

from __future__ import annotations

import traceback
from enum import StrEnum
from pathlib import PurePath


class Retry(StrEnum):
    """What happens after an error without anybody's help."""

    NEVER = "never"
    MANUAL = "manual"
    TIMED = "timed"


class PgEtlError(Exception):
    """The root: a message, a hint for the person who reads it, and a retry policy."""

    retry: Retry = Retry.MANUAL
    default_hint = "Look at the cause above; then retry the task or resync the table."

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint or self.default_hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})"

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.hint))


def _rebuild(kind: type[PgEtlError], message: str, hint: str) -> PgEtlError:
    return kind(message, hint=hint)


class ConfigError(PgEtlError):
    default_hint = "Correct the setting."


class SourceError(PgEtlError):
    default_hint = "Check the source server and the rights of the role."


class SourceUnreachable(SourceError):
    retry = Retry.TIMED
    default_hint = "Check that the source server runs and can be reached; pgetl reconnects by itself."


class SlotError(SourceError):
    default_hint = "Look at pg_replication_slots on the source."


class SlotLost(SlotError):
    """Changes since the last confirmed one can't be had any more."""

    default_hint = "Resync all tables: run discovery again, or set invalidated_slot_behavior to 'recreate'."


class SnapshotLost(SourceError):
    retry = Retry.TIMED
    default_hint = "The table is copied again under a new snapshot."


class DecodeError(PgEtlError):
    """Bytes that are not what they claim: names the message kind and the offset, never the bytes."""

    default_hint = "The stream is damaged or of an unknown protocol version: report it with the server version."

    def __init__(self, message: str, *, kind: str = "?", offset: int = 0, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.kind = kind
        self.offset = offset


class SpoolError(PgEtlError):
    retry = Retry.TIMED
    default_hint = "Check free space and rights of the spool location; nothing was confirmed to Postgres."


class SpoolCorrupt(SpoolError):
    retry = Retry.MANUAL
    default_hint = "Resync the table: a registered spool file is missing or was altered."


class StoreError(PgEtlError):
    retry = Retry.TIMED
    default_hint = "Check the state database (connection pgetl_state)."


class Overtaken(StoreError):
    """Somebody with a newer epoch or generation owns this now; stop quietly."""

    retry = Retry.NEVER
    default_hint = "A newer run owns this; nothing to do."


class IllegalTransition(StoreError):
    retry = Retry.NEVER
    default_hint = "The table is not in a state from which this can be done."


class SchemaChangeUnderWay(StoreError):
    """A schema change of the destination's table was begun and not finished."""

    retry = Retry.MANUAL
    default_hint = "Start the stream: it finishes the schema change. If that fails, resync the table."


class DestinationError(PgEtlError):
    default_hint = "Check the lake: catalog, rights, location."


class DestinationUnreachable(DestinationError):
    retry = Retry.TIMED
    default_hint = "Check that the Spark Connect server runs; the spool keeps the changes until it is back."


class DestinationFailed(DestinationError):
    retry = Retry.TIMED
    default_hint = "It is tried again by itself; if it stays, look at the Spark server's log."


def unexpected(error: BaseException) -> DestinationFailed:
    """What nobody foresaw: its type and place in the code, never its message, which may hold values of cells."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return DestinationFailed(
        f"an unexpected error: {type(error).__name__} at {PurePath(frame.filename).name}:{frame.lineno}",
        hint="It is tried again by itself; if it stays, look at the code there.",
    )


class NotSupported(PgEtlError):
    default_hint = "Take the table out of the publication, or change it."
