"""What the source's event trigger wrote: JSON in UTF-8, read as it is checked.

{"format": 1, "relation_id": 16384, "schema": "public", "table": "orders", "identity": "default",
 "columns": [fields of ``Column``, ...], "generated": [names], "rewritten": false, "using": false}
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

from airflow_provider_pgetl.replication.ddl import FORMAT, PREFIX, DdlMessage
from airflow_provider_pgetl.replication.errors import DecodeError
from airflow_provider_pgetl.replication.schema import Column, Identity, TableName

__all__ = ["PREFIX", "DdlMessage", "read_ddl"]

_MESSAGE: dict[str, tuple[type, ...]] = {
    "relation_id": (int,),
    "schema": (str,),
    "table": (str,),
    "identity": (str,),
    "columns": (list,),
    "generated": (list,),
    "rewritten": (bool,),
    "using": (bool,),
}
_COLUMN: dict[str, tuple[type, ...]] = {
    "name": (str,),
    "attnum": (int,),
    "type_oid": (int,),
    "base_oid": (int,),
    "typmod": (int,),
    "typmod_sent": (int,),
    "element_oid": (int,),
    "type_name": (str,),
    "nullable": (bool,),
    "key": (int, type(None)),
    "identity": (bool,),
    "toastable": (bool,),
    "default": (str, type(None)),
    "missing": (str, type(None)),
}


def read_ddl(content: bytes) -> DdlMessage:
    """The content of a logical message with our prefix."""
    try:
        raw = json.loads(content.decode())
    except ValueError:
        _fail("is not JSON")
    if not isinstance(raw, dict):
        _fail("is not an object")
    if raw.get("format") != FORMAT:
        _fail("has an unknown format", hint="The trigger on the source is newer than this pgetl: upgrade pgetl.")
    _check(raw, _MESSAGE)
    if raw["identity"] not in tuple(Identity):
        _fail("has an unknown replica identity")
    return DdlMessage(
        relation_id=raw["relation_id"],
        table=TableName(raw["schema"], raw["table"]),
        identity=Identity(raw["identity"]),
        columns=tuple(_column(entry) for entry in raw["columns"]),
        rewritten=raw["rewritten"],
        using=raw["using"],
        generated=frozenset(map(str, raw["generated"])),
    )


def _column(entry: Any) -> Column:
    if not isinstance(entry, dict):
        _fail("has a column that is not an object")
    _check(entry, _COLUMN)
    return Column(**{name: entry[name] for name in _COLUMN})


def _check(raw: dict[str, Any], fields: dict[str, tuple[type, ...]]) -> None:
    for name, kinds in fields.items():
        # Not isinstance: True is an int.
        if name not in raw or type(raw[name]) not in kinds:
            _fail(f"has no valid {name!r}")


def _fail(what: str, hint: str | None = None) -> NoReturn:
    raise DecodeError(f"a message with the prefix {PREFIX!r} {what}", kind="M", hint=hint)
