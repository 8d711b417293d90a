"""DDL messages: what is read, and that anything else is one typed error."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from airflow_provider_pgetl.replication.decode.ddl import read_ddl
from airflow_provider_pgetl.replication.errors import DecodeError
from airflow_provider_pgetl.replication.schema import Column, Identity, TableName

COLUMN = Column("id", 1, 23, 23, -1, -1, 0, "integer", False, key=1, identity=True, default="1", missing="1")


def raw(**changes: Any) -> dict[str, Any]:
    return {
        "format": 1,
        "relation_id": 16384,
        "schema": "public",
        "table": "größe",
        "identity": "full",
        "columns": [dataclasses.asdict(COLUMN)],
        "generated": [],
        "rewritten": True,
        "using": False,
        **changes,
    }


def test_a_message_is_read() -> None:
    message = read_ddl(json.dumps(raw(), ensure_ascii=False).encode())
    assert message.relation_id == 16384
    assert message.table == TableName("public", "größe")
    assert message.identity is Identity.FULL
    assert message.columns == (COLUMN,)
    assert (message.rewritten, message.using) == (True, False)


def test_what_a_later_version_adds_is_skipped() -> None:
    column = {**dataclasses.asdict(COLUMN), "collation": "C"}
    assert read_ddl(json.dumps(raw(columns=[column], command="ALTER TABLE")).encode()).columns == (COLUMN,)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"1", b"\xff\xfe", b"{}", b"null"])
def test_what_is_no_message_is_refused(content: bytes) -> None:
    with pytest.raises(DecodeError) as caught:
        read_ddl(content)
    assert caught.value.kind == "M"


@pytest.mark.parametrize(
    "changes",
    [
        {"format": 2},
        {"relation_id": "16384"},
        {"relation_id": True},
        {"table": None},
        {"identity": "some"},
        {"columns": {}},
        {"columns": [1]},
        {"columns": [{"name": "id"}]},
        {"columns": [{**dataclasses.asdict(COLUMN), "key": "1"}]},
        {"columns": [{**dataclasses.asdict(COLUMN), "nullable": None}]},
        {"rewritten": 1},
        {"using": None},
    ],
)
def test_a_field_that_is_wrong_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(DecodeError):
        read_ddl(json.dumps(raw(**changes)).encode())
