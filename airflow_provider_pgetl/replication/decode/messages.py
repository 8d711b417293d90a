"""The pgoutput messages that are read one by one, because they are rare: Relation, Truncate, Message.

Relation   int32 id, cstring schema, cstring name, byte replica identity (d n f i), int16 columns,
           then for each: byte flags (1 = part of the identity), cstring name, int32 type, int32 modifier
Truncate   int32 relations, byte options (1 CASCADE, 2 RESTART IDENTITY), int32 id ...
Message    byte flags (1 = transactional), int64 lsn, cstring prefix, int32 length, bytes
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from airflow_provider_pgetl.replication.errors import DecodeError
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.schema import Identity, TableName, TableSchema

_IDENTITIES = {"d": Identity.DEFAULT, "n": Identity.NOTHING, "f": Identity.FULL, "i": Identity.INDEX}


@dataclass(frozen=True, slots=True)
class RelationColumn:
    name: str
    type_oid: int
    typmod: int
    identity: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """A table as the stream describes it before its first change."""

    relation_id: int
    table: TableName
    identity: Identity
    columns: tuple[RelationColumn, ...]

    def describes(self, schema: TableSchema) -> bool:
        """Whether ``schema`` is this very shape, under this name."""
        return (self.table, self.identity) == (schema.table, schema.identity) and self.columns == tuple(
            RelationColumn(column.name, column.type_oid, column.typmod_sent, column.identity)
            for column in schema.columns
        )


@dataclass(frozen=True, slots=True)
class Truncate:
    relation_ids: tuple[int, ...]
    cascade: bool
    restart_identity: bool


@dataclass(frozen=True, slots=True)
class Message:
    """What ``pg_logical_emit_message`` wrote."""

    lsn: Lsn
    transactional: bool
    prefix: str
    content: bytes


class _Reader:
    """A bounds-checked cursor over one body."""

    def __init__(self, body: bytes, kind: str) -> None:
        self._body = body
        self._kind = kind
        self._at = 0

    def numbers(self, layout: str) -> tuple[int, ...]:
        size = struct.calcsize(layout)
        if self._at + size > len(self._body):
            self.fail("the message is cut short")
        values = struct.unpack_from(layout, self._body, self._at)
        self._at += size
        return values

    def text(self) -> str:
        end = self._body.find(b"\0", self._at)
        if end < 0:
            self.fail("a name has no end")
        raw, self._at = self._body[self._at : end], end + 1
        try:
            return raw.decode()
        except UnicodeDecodeError:
            self.fail("a name is not UTF-8")
            raise

    def bytes(self, size: int) -> bytes:
        if size < 0 or self._at + size > len(self._body):
            self.fail("the message is cut short")
        self._at += size
        return self._body[self._at - size : self._at]

    def end(self) -> None:
        if self._at != len(self._body):
            self.fail("the message is longer than it says")

    def fail(self, what: str) -> None:
        raise DecodeError(f"{what} (kind {self._kind!r}, offset {self._at})", kind=self._kind, offset=self._at)


def read_relation(body: bytes) -> Relation:
    """A Relation message."""
    reader = _Reader(body, "R")
    (relation_id,) = reader.numbers(">I")
    table = TableName(reader.text(), reader.text())
    code, count = reader.numbers(">BH")
    identity = _IDENTITIES.get(chr(code))
    if identity is None:
        reader.fail("an unknown replica identity")
    columns = []
    for _ in range(count):
        (flags,) = reader.numbers(">B")
        name = reader.text()
        type_oid, typmod = reader.numbers(">Ii")
        columns.append(RelationColumn(name, type_oid, typmod, bool(flags & 1)))
    reader.end()
    # An empty name is how pgoutput says pg_catalog.
    table = TableName(table.schema or "pg_catalog", table.name)
    assert identity is not None
    return Relation(relation_id, table, identity, tuple(columns))


def read_truncate(body: bytes) -> Truncate:
    """A Truncate message."""
    reader = _Reader(body, "T")
    count, options = reader.numbers(">IB")
    if count * 4 > len(body):
        reader.fail("the message is cut short")
    relation_ids = reader.numbers(f">{count}I")
    reader.end()
    return Truncate(relation_ids, bool(options & 1), bool(options & 2))


def read_message(body: bytes) -> Message:
    """A logical decoding message."""
    reader = _Reader(body, "M")
    flags, lsn = reader.numbers(">BQ")
    prefix = reader.text()
    (size,) = reader.numbers(">I")
    content = reader.bytes(size)
    reader.end()
    return Message(Lsn(lsn), bool(flags & 1), prefix, content)
