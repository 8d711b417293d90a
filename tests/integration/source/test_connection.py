"""Connections: fixed settings, bounds, and what a refusal says."""

from __future__ import annotations

import socket
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from airflow_provider_pgetl.local import process
from airflow_provider_pgetl.local.postgres import EmbeddedPostgres
from airflow_provider_pgetl.replication.config import PgConnectionConfig
from airflow_provider_pgetl.replication.errors import ConfigError, Retry, SourceError, SourceUnreachable
from airflow_provider_pgetl.replication.schema import TableName
from airflow_provider_pgetl.replication.source import connection as connections
from airflow_provider_pgetl.replication.source.connection import (
    connect,
    connect_copy,
    connect_holder,
    connect_replication,
    conninfo_for,
    source_errors,
)
from airflow_provider_pgetl.replication.source.copy_out import copy_rows
from airflow_provider_pgetl.replication.source.snapshot import open_snapshot
from tests.integration.source.conftest import Place, Tls, debian_binaries

OPENERS = {
    "catalog": lambda source: connect(source, "w"),
    "copy": connect_copy,
    "holder": lambda source: connect_holder(source, "w"),
    "replication": lambda source: connect_replication(source, "w"),
}
TIMEOUTS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")


def shown(connection: connections.Connection, *names: str) -> dict[str, str]:
    return {name: connection.execute(f"show {name}").fetchone()[0] for name in names}  # type: ignore[index]


@pytest.mark.parametrize("kind", OPENERS)
def test_what_shapes_text_is_fixed_whatever_the_role_or_the_environment_say(
    place: Place, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.execute(
        f"alter database {place.name} set timezone = 'Asia/Tokyo'",
        f"alter database {place.name} set intervalstyle = 'iso_8601'",
        f"alter database {place.name} set extra_float_digits = -5",
        f"alter database {place.name} set bytea_output = 'escape'",
    )
    monkeypatch.setenv("PGTZ", "America/Lima")
    monkeypatch.setenv("PGDATESTYLE", "German")
    with OPENERS[kind](place.conninfo) as connection:
        found = shown(connection, "timezone", "datestyle", "intervalstyle", "extra_float_digits", "bytea_output")
        assert shown(connection, "client_encoding") == {"client_encoding": "UTF8"}
    assert found["datestyle"].startswith("ISO")
    assert {**found, "datestyle": ""} == {
        "timezone": "UTC",
        "datestyle": "",
        "intervalstyle": "postgres",
        "extra_float_digits": "3",
        "bytea_output": "hex",
    }


@pytest.mark.parametrize("kind", OPENERS)
def test_only_catalog_connections_are_bounded(place: Place, kind: str) -> None:
    wanted = dict.fromkeys(TIMEOUTS, "0")
    if kind == "catalog":
        wanted |= {"statement_timeout": "30s", "lock_timeout": "10s"}
    names = [*TIMEOUTS, "idle_session_timeout", *(["transaction_timeout"] if place.version >= 17 else [])]
    for name in names:
        place.execute(f"alter database {place.name} set {name} = '1234s'")
    with OPENERS[kind](place.conninfo) as connection:
        found = shown(connection, *names)
    assert found == {**dict.fromkeys(names, "0"), **wanted}


def test_a_catalog_statement_that_waits_for_a_lock_gives_up_and_may_be_tried_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connections._BOUNDED, "lock_timeout", "50ms")
    place.execute("create table t (id int)")
    with (
        place.transaction("lock table t"),
        connect(place.conninfo, "test") as connection,
        pytest.raises(SourceUnreachable, match=r"could not do it now: .* lock timeout") as caught,
        source_errors(),
    ):
        connection.execute("select * from public.t")
    assert caught.value.retry is Retry.TIMED


def test_each_worker_is_seen_by_its_name(place: Place) -> None:
    with (
        connect(place.conninfo, "relations"),
        connect_copy(place.conninfo),
        connect_replication(place.conninfo, "slot"),
    ):
        found = place.rows("select application_name from pg_stat_activity where datname = current_database()")
    assert {"pgetl:relations", "pgetl:copy", "pgetl:slot"} <= {row[0] for row in found}


def test_keepalives_are_set_and_the_users_own_win() -> None:
    assert psycopg.conninfo.conninfo_to_dict(conninfo_for("host=h", "w"))["keepalives_idle"] == "30"
    config = PgConnectionConfig(host="h", name="d", username="u", keepalive={"idle_secs": 7})  # type: ignore[arg-type]
    found = psycopg.conninfo.conninfo_to_dict(conninfo_for(config.conninfo(), "w"))
    assert (found["keepalives_idle"], found["keepalives_interval"], found["keepalives_count"]) == ("7", "10", "3")


def test_a_reader_that_is_gone_leaves_no_backend_behind(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The query sends nothing, so that only the server's look at the socket can end it."""
    monkeypatch.setattr(connections, "CHECK_INTERVAL", "100ms")
    with closing(connect_copy(place.conninfo)) as connection:
        pid = connection.info.backend_pid
        connection.pgconn.send_query(b"copy (select pg_sleep(600)) to stdout (format binary)")
        active = f"select 1 from pg_stat_activity where pid = {pid} and state = 'active'"
        assert process.wait_until(lambda: place.rows(active) == [(1,)], timeout=30)
        # As a killed process would: without a word to the server.
        with socket.socket(fileno=socket.dup(connection.pgconn.socket)) as handle:
            handle.shutdown(socket.SHUT_RDWR)
        gone = f"select 1 from pg_stat_activity where pid = {pid}"
        assert process.wait_until(lambda: place.rows(gone) == [], timeout=30)


def test_a_copy_that_is_given_up_leaves_no_backend_behind(place: Place) -> None:
    place.execute("create table t (id int)", "insert into t select generate_series(1, 500000)")
    with open_snapshot(place.conninfo, [TableName("public", "t")]) as holder:
        frames = copy_rows(place.conninfo, holder.snapshot, "select id from public.t")
        assert next(frames)
        frames.close()  # type: ignore[attr-defined]
        left = "select 1 from pg_stat_activity where application_name = 'pgetl:copy' and datname = current_database()"
        assert process.wait_until(lambda: place.rows(left) == [], timeout=30)


# What a refusal says


@pytest.mark.parametrize("opener", OPENERS.values(), ids=OPENERS)
@pytest.mark.parametrize(
    ("changes", "message", "hint"),
    [
        ({"password": "hunter2"}, 'password authentication failed for user "postgres"', "user and password"),
        ({"user": "nobody_here"}, 'password authentication failed for user "nobody_here"', "user and password"),
        ({"dbname": "no_such_db"}, 'database "no_such_db" does not exist', "name of the database"),
        ({"sslmode": "sometimes"}, 'invalid sslmode value: "sometimes"', "option"),
        ({"options": "-c no_such=1"}, 'unrecognized configuration parameter "no_such"', "options"),
    ],
)
def test_a_refusal_needs_a_person_and_says_why(
    place: Place, opener: object, changes: dict[str, str], message: str, hint: str
) -> None:
    with pytest.raises(SourceError) as caught:
        opener(place.with_(**changes))  # type: ignore[operator]
    assert caught.value.retry is Retry.MANUAL
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert "hunter2" not in repr(caught.value) + str(caught.value)


def test_a_role_that_may_not_connect_or_replicate_is_told_so(place: Place) -> None:
    role = f"poor_{place.name}"
    place.execute(f"create role {role} login password 'p'")
    try:
        with pytest.raises(SourceError, match=r"WAL ?sender|walsender") as caught:
            connect_replication(place.with_(user=role, password="p"), "w")
        assert "replication" in caught.value.hint
        assert caught.value.retry is Retry.MANUAL
        place.execute(f"revoke connect on database {place.name} from public")
        with pytest.raises(SourceError, match="permission denied for database") as caught:
            connect(place.with_(user=role, password="p"), "w")
        assert "grant connect" in caught.value.hint
        place.execute(f"alter role {role} nologin")
        with pytest.raises(SourceError, match="not permitted to log in"):
            connect(place.with_(user=role, password="p"), "w")
    finally:
        place.execute(f"drop role {role}")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"port": 1}, "Connection refused"),
        ({"host": "no-such-host.invalid", "hostaddr": ""}, "resolve host"),
        ({"host": "/nowhere"}, "No such file or directory"),
    ],
)
def test_a_network_problem_may_pass(place: Place, changes: dict[str, str], message: str) -> None:
    with pytest.raises(SourceUnreachable, match=message) as caught:
        connect(place.with_(**changes), "w")
    assert caught.value.retry is Retry.TIMED


def test_a_full_server_may_pass_and_so_may_one_that_stops(scratch: Path) -> None:
    with EmbeddedPostgres(scratch / "full", settings={"fsync": "off", "max_connections": "5"}) as server:
        database = server.database("postgres")
        held = []
        with pytest.raises(SourceUnreachable, match=r"connection slots|too many clients") as caught:
            for _ in range(10):
                held.append(connect(database.conninfo, "w"))  # noqa: PERF401
        assert caught.value.retry is Retry.TIMED
        server.stop()
        with pytest.raises(SourceUnreachable), source_errors():
            held[0].execute("select 1")
        for connection in held:
            connection.close()


def test_several_hosts_name_the_one_that_refused(place: Place) -> None:
    good = psycopg.conninfo.conninfo_to_dict(place.conninfo)
    both = place.with_(host="127.0.0.1,127.0.0.1", port=f"1,{good['port']}", password="wrong")
    with pytest.raises(SourceError, match="password authentication failed") as caught:
        connect(both, "w")
    assert caught.value.retry is Retry.MANUAL


@pytest.mark.parametrize(
    "source", ["host=h password=se cret", "postgresql://u:p@se cret@h/d", "postgresql://u:p@secret@h"]
)
def test_an_unreadable_conninfo_keeps_its_secret(source: str) -> None:
    with pytest.raises(ConfigError) as caught:
        conninfo_for(source, "w")
    assert "cret" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


# TLS


def test_a_missing_server_fails_the_checks_and_skips_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="apt-get install postgresql"):
        debian_binaries(tmp_path)
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception, match="apt-get install postgresql"):
        debian_binaries(tmp_path)


def answer(conninfo: str) -> bool:
    with connect(conninfo, "test") as connection:
        row = connection.execute("select ssl from pg_stat_ssl where pid = pg_backend_pid()").fetchone()
    assert row is not None
    return bool(row[0])


@pytest.mark.parametrize("mode", ["require", "verify-ca", "verify-full"])
def test_a_server_with_the_right_certificate_is_trusted(tls: Tls, mode: str) -> None:
    assert answer(tls.conninfo(sslmode=mode, sslrootcert=tls.authority.certificate))


def test_the_settings_for_tls_verify_the_server(tls: Tls) -> None:
    config = PgConnectionConfig(
        host="localhost",
        hostaddr="127.0.0.1",
        port=tls.port,
        name="postgres",
        username="postgres",
        password=tls.password,
        tls={"enabled": True, "trusted_root_certs": str(tls.authority.certificate)},  # type: ignore[arg-type]
    )
    assert answer(config.conninfo())
    with connect_replication(config.conninfo(), "test") as connection:
        assert connection.execute("IDENTIFY_SYSTEM").fetchone()


def test_a_client_certificate_lets_a_role_in_without_password(tls: Tls) -> None:
    certificate, key = tls.authority.issue("certified")
    options = {"user": "certified", "password": "", "sslmode": "verify-full", "sslrootcert": tls.authority.certificate}
    assert answer(tls.conninfo(**options, sslcert=certificate, sslkey=key))


def refusals(tls: Tls, tmp_path: Path) -> dict[str, tuple[dict[str, object], str, str]]:
    """What is wrong -> options, message, hint."""
    root = tls.authority.certificate
    wrong = tls.stranger.issue("certified")
    mine = tls.authority.issue("certified")
    loose = tmp_path / "loose.key"
    loose.write_bytes(mine[1].read_bytes())
    loose.chmod(0o644)
    full = {"sslmode": "verify-full", "sslrootcert": root}
    certified = {**full, "user": "certified", "password": ""}
    return {
        "authority": ({**full, "sslrootcert": tls.stranger.certificate}, "certificate verify failed", "sslrootcert"),
        "name": ({**full, "host": "elsewhere.example"}, "does not match host name", "name that stands in"),
        "no client certificate": (certified, "requires a valid client certificate", "sslcert"),
        "foreign client certificate": ({**certified, "sslcert": wrong[0], "sslkey": wrong[1]}, "unknown ca", "sslcert"),
        "root file": ({**full, "sslrootcert": "/no/such.crt"}, "root certificate file", "paths"),
        "key file": ({**certified, "sslcert": mine[0], "sslkey": "/no/such.key"}, "private key file", "paths"),
        "loose key": ({**certified, "sslcert": mine[0], "sslkey": loose}, "private key file", "0600"),
        "no tls": ({"sslmode": "disable", "user": "certified"}, "no pg_hba.conf entry", "pg_hba.conf"),
        "password": ({**full, "password": "hunter2"}, "password authentication failed", "password"),
    }


@pytest.mark.parametrize(
    "what",
    [
        "authority",
        "name",
        "no client certificate",
        "foreign client certificate",
        "root file",
        "key file",
        "loose key",
        "no tls",
        "password",
    ],
)
@pytest.mark.parametrize("opener", [OPENERS["catalog"], OPENERS["replication"]], ids=["catalog", "replication"])
def test_tls_that_is_refused_needs_a_person_and_says_why(tls: Tls, tmp_path: Path, what: str, opener: object) -> None:
    options, message, hint = refusals(tls, tmp_path)[what]
    with pytest.raises(SourceError) as caught:
        opener(tls.conninfo(**options))  # type: ignore[operator]
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.retry is Retry.MANUAL
    assert tls.password not in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_server_without_tls_is_refused_where_tls_is_asked_for(newest: Place) -> None:
    with pytest.raises(SourceError, match="does not support SSL") as caught:
        connect(newest.with_(sslmode="require"), "w")
    assert caught.value.retry is Retry.MANUAL
    assert "ssl" in caught.value.hint
