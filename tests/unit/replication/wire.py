"""pgoutput messages made by hand, for tests of the decoder."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from airflow_provider_pgetl.replication.decode.messages import Relation
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.schema import Column, Identity, TableName, TableSchema

UNCHANGED = object()


def schema(*, identity: Identity = Identity.DEFAULT, relation_id: int = 7) -> TableSchema:
    """A table of int4 id (key), text a, text b."""
    full = identity is Identity.FULL
    columns = (
        Column("id", 1, 23, 23, -1, -1, 0, "integer", False, key=1, identity=True),
        Column("a", 2, 25, 25, -1, -1, 0, "text", True, identity=full, toastable=True),
        Column("b", 3, 25, 25, -1, -1, 0, "text", True, identity=full, toastable=True),
    )
    return TableSchema(relation_id, TableName("public", "t"), columns, identity)


def resolve(relation: Relation, lsn: Lsn) -> TableSchema:
    found = schema(identity=relation.identity, relation_id=relation.relation_id)
    assert relation.describes(found)
    return found


def frame(payload: bytes) -> bytes:
    return b"w" + struct.pack(">QQQ", 1, 2, 3) + payload


def begin(lsn: int, at: int = 0) -> bytes:
    return frame(b"B" + struct.pack(">QqI", lsn, at, 99))


def commit(lsn: int, end: int, at: int = 0) -> bytes:
    return frame(b"C" + struct.pack(">BQQq", 0, lsn, end, at))


def relation(of: TableSchema) -> bytes:
    code = {Identity.DEFAULT: b"d", Identity.FULL: b"f"}[of.identity]
    body = struct.pack(">I", of.relation_id) + b"public\0t\0" + code + struct.pack(">H", len(of.columns))
    for column in of.columns:
        body += struct.pack(">B", column.identity) + column.name.encode() + b"\0"
        body += struct.pack(">Ii", column.type_oid, column.typmod_sent)
    return frame(b"R" + body)


def row(values: Sequence[object]) -> bytes:
    out = struct.pack(">H", len(values))
    for value in values:
        if value is None:
            out += b"n"
        elif value is UNCHANGED:
            out += b"u"
        else:
            data = str(value).encode()
            out += b"t" + struct.pack(">I", len(data)) + data
    return out


def insert(*values: object, relation_id: int = 7) -> bytes:
    return frame(b"I" + struct.pack(">I", relation_id) + b"N" + row(values))


def update(*values: object, key: Sequence[object] | None = None, old: Sequence[object] | None = None) -> bytes:
    before = b"K" + row(key) if key is not None else b"O" + row(old) if old is not None else b""
    return frame(b"U" + struct.pack(">I", 7) + before + b"N" + row(values))


def delete(*values: object, full: bool = False) -> bytes:
    return frame(b"D" + struct.pack(">I", 7) + (b"O" if full else b"K") + row(values))


def truncate(*relation_ids: int) -> bytes:
    return frame(b"T" + struct.pack(f">IB{len(relation_ids)}I", len(relation_ids), 0, *relation_ids))


def message(prefix: str, content: bytes, *, transactional: bool = True) -> bytes:
    body = struct.pack(">BQ", transactional, 5) + prefix.encode() + b"\0" + struct.pack(">I", len(content)) + content
    return frame(b"M" + body)
