"""Timelines: where the history of a promoted server left the one that was followed before."""

from __future__ import annotations

from psycopg import sql

from airflow_provider_pgetl.replication.errors import SourceError
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.source.connection import connect_replication, source_errors


def branch_point(source: str, timeline_before: int, timeline_now: int) -> Lsn:
    """The LSN at which the history of ``timeline_now`` left ``timeline_before``: what was written there from this
    position on is not part of it."""
    if timeline_before < timeline_now:
        for timeline, left_at in _history(source, timeline_now):
            if timeline == timeline_before:
                return left_at
    raise SourceError(
        f"timeline {timeline_now} of the source does not descend from timeline {timeline_before}",
        hint="The source is another history of the same cluster: resync all tables.",
    )


def _history(source: str, timeline: int) -> list[tuple[int, Lsn]]:
    """The ancestors of a timeline, oldest first, with the LSN at which each was left."""
    with connect_replication(source, "timeline") as connection, source_errors():
        cursor = connection.execute(sql.SQL("TIMELINE_HISTORY {}").format(sql.Literal(timeline)))
        # Typed as bytea by some versions, but sent as it is, without the escapes: so not through the driver's types.
        content = cursor.pgresult.get_value(0, 1) if cursor.pgresult is not None else None
    return _read(content or b"")


def _read(content: bytes) -> list[tuple[int, Lsn]]:
    """Lines of ``timeline <tab> LSN <tab> reason``; comments begin with #."""
    found = []
    for line in content.decode(errors="replace").splitlines():
        fields = line.split(None, 2)
        if fields and not fields[0].startswith("#"):
            found.append((int(fields[0]), Lsn.parse(fields[1])))
    return found
