"""Positions, states, types, names, settings and errors."""

from __future__ import annotations

import pickle

import pytest

from airflow_provider_pgetl.replication import batch, errors
from airflow_provider_pgetl.replication.config import BatchConfig, PipelineConfig
from airflow_provider_pgetl.replication.errors import ConfigError, IllegalTransition, Retry
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.pg_types import lake_type
from airflow_provider_pgetl.replication.schema import Column
from airflow_provider_pgetl.replication.state import INIT, READY, StateKind, TableState, transition


def test_an_lsn_is_text_for_people_and_a_number_for_markers() -> None:
    lsn = Lsn.parse("16/B374D848")
    assert str(lsn) == "16/B374D848"
    assert int(lsn) == 0x16B374D848
    assert Lsn.parse(str(Lsn(0))) == 0


@pytest.mark.parametrize("text", ["", "1", "1/", "g/1", "1/123456789", "-1/0"])
def test_what_is_no_lsn_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not an LSN"):
        Lsn.parse(text)


def test_the_way_of_a_table_is_legal_step_by_step() -> None:
    state = INIT
    for kind in ("data_sync", "finished_copy", "sync_wait", "catchup", "catchup", "sync_done", "ready"):
        state = transition(state, TableState(StateKind(kind), lsn=Lsn(1)))
    assert state.kind is StateKind.READY


@pytest.mark.parametrize(
    ("current", "to"),
    [
        (INIT, READY),
        (READY, INIT),
        (READY, TableState(StateKind.DATA_SYNC)),
        (INIT, TableState(StateKind.ERRORED)),
        (TableState(StateKind.DATA_SYNC), TableState(StateKind.FINISHED_COPY)),
    ],
)
def test_other_moves_are_illegal(current: TableState, to: TableState) -> None:
    with pytest.raises(IllegalTransition):
        transition(current, to)


def test_any_state_may_fail_and_return() -> None:
    broken = TableState(StateKind.ERRORED, reason="r", hint="h", retry=Retry.MANUAL)
    assert transition(READY, broken) is broken
    assert transition(broken, READY) is READY


@pytest.mark.parametrize(
    ("oid", "typmod", "element", "expected"),
    [
        (23, -1, 0, "int"),
        (21, -1, 0, "int"),
        (1700, -1, 0, "string"),
        (1700, ((12 << 16) | 2) + 4, 0, "decimal(12,2)"),
        (1700, ((39 << 16) | 2) + 4, 0, "string"),
        (1700, ((3 << 16) | (2048 - 2)) + 4, 0, "string"),
        (1184, -1, 0, "timestamp"),
        (3802, -1, 0, "string"),
        (1007, -1, 23, "array<int>"),
        (1231, ((6 << 16) | 1) + 4, 1700, "array<decimal(6,1)>"),
    ],
)
def test_types_become_lake_types(oid: int, typmod: int, element: int, expected: str) -> None:
    column = Column("c", 1, oid, oid, typmod, typmod, element, "", True)
    assert lake_type(column).sql == expected


def test_column_names_like_ours_are_escaped_reversibly() -> None:
    names = ["_op", "x__op", "x_x__op", "_OP", "_pgetl_lsn", "_row_id", "id", "x_", "x_id", "select"]
    escaped = [batch.lake_column(name) for name in names]
    assert len(set(escaped)) == len(names)
    assert not set(escaped) & {*batch.CHANGE_COLUMNS, *batch.LAKE_COLUMNS}
    assert escaped[6:] == names[6:]


@pytest.mark.parametrize("name", ["", "Shop", "1shop", "shop-eu", "a" * 41])
def test_a_bad_pipeline_name_says_what_is_good(name: str) -> None:
    with pytest.raises(ConfigError, match="lower-case"):
        PipelineConfig(name, "pub", "/spool")


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigError):
        PipelineConfig("p", "pub", "/spool", max_parallel_applies=0)
    with pytest.raises(ConfigError):
        PipelineConfig("p", "pub", "/spool", batch=BatchConfig(max_fill_ms=0))
    with pytest.raises(ConfigError):
        PipelineConfig("p", "", "/spool")


def test_errors_survive_a_pickle_with_their_hint() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.PgEtlError)]
    assert len(kinds) > 10
    for kind in kinds:
        back = pickle.loads(pickle.dumps(kind("what", hint="do this")))
        assert (type(back), back.message, back.hint, back.retry) == (kind, "what", "do this", kind.retry)
