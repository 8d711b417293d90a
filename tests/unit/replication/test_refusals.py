"""What libpq's text means where no server of ours can be made to say it."""

from __future__ import annotations

import psycopg
import pytest

from airflow_provider_pgetl.replication.errors import Retry
from airflow_provider_pgetl.replication.source.connection import translate

AT = 'connection failed: connection to server at "db" (10.0.0.1), port 5432 failed: '


@pytest.mark.parametrize(
    ("text", "retry"),
    [
        ("FATAL:  the database system is starting up", Retry.TIMED),
        ("FATAL:  the database system is in recovery mode", Retry.TIMED),
        ("FATAL:  das Datenbanksystem startet", Retry.TIMED),
        ("timeout expired", Retry.TIMED),
        ("server closed the connection unexpectedly\n\tThis probably means the server terminated", Retry.TIMED),
        ("SSL error: unexpected eof while reading", Retry.TIMED),
        ("fe_sendauth: no password supplied", Retry.MANUAL),
        ('FATAL:  no pg_hba.conf entry for host "10.0.0.2", user "u", database "d", no encryption', Retry.MANUAL),
        ("SSL error: certificate verify failed", Retry.MANUAL),
    ],
)
def test_only_what_needs_a_person_is_manual(text: str, retry: Retry) -> None:
    found = translate(psycopg.OperationalError(AT + text))
    assert found.retry is retry
    assert text.split("\n", maxsplit=1)[0].replace("  ", " ") in found.message
    assert "connection failed: connection" not in found.message


def test_a_mistake_of_ours_is_not_tried_for_ever() -> None:
    assert translate(psycopg.ProgrammingError("the query has 2 placeholders")).retry is Retry.MANUAL
