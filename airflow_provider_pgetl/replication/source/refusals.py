"""Why a connection was not made, read from libpq's text.

A failed connect has no SQLSTATE, only text; psycopg puts one line for each address that was tried. What is listed
here needs a person: who we are, where we are let in, whose certificate we trust. Everything else (refused ports,
names that don't resolve, a server that starts or is full, and a server's answer in another language) may pass.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Refusal:
    """A line of libpq that says no for good, and what to do about it; no hint: it may pass."""

    message: str
    hint: str | None


_PEOPLE_NEEDED: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), hint)
    for pattern, hint in (
        (
            r"authentication failed for user|no password supplied|empty password|role \"[^\"]*\" does not exist",
            "Check user and password of the connection; the server's log says more.",
        ),
        (r"is not permitted to log in", "As a superuser: alter role ... login."),
        (r"database \"[^\"]*\" does not exist", "Check the name of the database in the connection."),
        (r"permission denied for database", "As the database's owner: grant connect on database ... to the role."),
        (r"no pg_hba\.conf entry|pg_hba\.conf rejects", "Let the role in by a line in the server's pg_hba.conf."),
        (
            r"must be superuser or replication role|permission denied to start WAL sender",
            "As a superuser: alter role ... replication.",
        ),
        (
            r"requires a valid client certificate|alert certificate required|alert unknown ca",
            "Set sslcert and sslkey (tls.client_cert, tls.client_key) to a certificate that the server trusts.",
        ),
        (
            r"does not match host name",
            "Connect by a name that stands in the server's certificate (host; hostaddr may hold the address).",
        ),
        (
            r"certificate verify failed|SSL error: unregistered scheme",
            "Set sslrootcert (tls.trusted_root_certs) to the root certificate that signed the server's.",
        ),
        (
            r"does not support SSL|server is not configured for SSL",
            "Turn on ssl at the server, or choose an sslmode that does without.",
        ),
        (
            r"root certificate file|certificate file \"|private key file|certificate present, but not private key",
            "Check the paths of sslrootcert, sslcert and sslkey and their rights (a key: 0600).",
        ),
        (
            r"invalid \w+ value|weak sslmode|invalid port number|invalid integer value",
            "Correct this option of the connection.",
        ),
        (
            r"unrecognized configuration parameter|invalid value for parameter|permission denied to set parameter",
            "Correct the options of the connection.",
        ),
    )
)
# psycopg's own words in front of libpq's.
_PREFIX = re.compile(r"^(- host: .*?: )?connection (failed|is bad): ")


def refusal(text: str) -> Refusal:
    """The line that decides: one that needs a person wins over those that may pass."""
    lines = [_PREFIX.sub("", line) for line in text.splitlines() if line.strip() and not line.startswith("\t")]
    for line in lines:
        for pattern, hint in _PEOPLE_NEEDED:
            if pattern.search(line):
                return Refusal(_plain(line), hint)
    return Refusal(_plain(lines[0]) if lines else "no reason given", None)


def _plain(line: str) -> str:
    return re.sub(r"\s+", " ", line).strip()
