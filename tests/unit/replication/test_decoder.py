"""The decoder on messages made by hand: every kind, transactions over batches, and bytes that lie."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest

from airflow_provider_pgetl.replication.decode.decoder import Decoded, Decoder
from airflow_provider_pgetl.replication.decode.messages import Message
from airflow_provider_pgetl.replication.errors import DecodeError
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.schema import Identity
from tests.unit.replication import wire


def rows(decoded: Decoded) -> list[dict[str, Any]]:
    found = [row for changes in decoded.changes for row in changes.batch.to_pylist()]
    return sorted(found, key=lambda row: (row["_commit_lsn"], row["_ordinal"]))


def decode(*frames: bytes, identity: Identity = Identity.DEFAULT) -> Decoded:
    return Decoder(wire.resolve).decode([wire.begin(100), wire.relation(wire.schema(identity=identity)), *frames])


def test_a_transaction_carries_its_commit_lsn_and_time() -> None:
    decoder = Decoder(wire.resolve)
    decoded = decoder.decode(
        [
            wire.begin(100, at=1_000_000),
            wire.relation(wire.schema()),
            wire.insert(1, "x", None),
            wire.insert(2, "", "é"),
            wire.commit(100, 120, at=1_000_000),
            wire.begin(120),
            wire.insert(3, "z", "z"),
            wire.commit(120, 130),
        ]
    )
    first, second, third = rows(decoded)
    assert (first["_op"], first["id"], first["a"], first["b"]) == ("i", 1, "x", None)
    assert (second["a"], second["b"]) == ("", "é")
    assert [r["_commit_lsn"] for r in (first, second, third)] == [100, 100, 120]
    assert first["_ordinal"] < second["_ordinal"]
    assert first["_committed_at"].isoformat() == "2000-01-01T00:00:01+00:00"
    assert (decoded.first_lsn, decoded.end_lsn, decoded.transactions) == (Lsn(100), Lsn(130), 2)
    assert not decoder.in_transaction


def test_a_transaction_over_several_batches_keeps_its_order() -> None:
    decoder = Decoder(wire.resolve)
    one = decoder.decode([wire.begin(100), wire.relation(wire.schema()), wire.insert(1, "a", "a")])
    assert decoder.in_transaction
    assert one.end_lsn is None
    two = decoder.decode([wire.insert(2, "b", "b")])
    three = decoder.decode([wire.insert(3, "c", "c"), wire.commit(100, 110)])
    found = rows(one) + rows(two) + rows(three)
    assert [row["_commit_lsn"] for row in found] == [100] * 3
    assert [row["_ordinal"] for row in found] == sorted({row["_ordinal"] for row in found})
    assert three.end_lsn == 110


def test_unchanged_is_neither_null_nor_a_value() -> None:
    (row,) = rows(decode(wire.update(1, wire.UNCHANGED, None), wire.commit(100, 110)))
    assert (row["a"], row["b"], row["_unchanged"], row["_old"]) == (None, None, ["a"], None)


def test_a_key_change_brings_the_old_key() -> None:
    decoded = decode(wire.update(2, "x", "y", key=[1, None, None]), wire.insert(9, "p", "q"), wire.commit(100, 110))
    changed, inserted = rows(decoded)
    assert (changed["id"], changed["_old"]) == (2, {"id": 1, "_overflow": None})
    assert inserted["_old"] is None


def test_a_full_old_row_restores_what_did_not_travel() -> None:
    frames = [
        wire.update(1, wire.UNCHANGED, "new", old=[1, "kept", "old"]),
        wire.delete(1, "kept", "new", full=True),
        wire.insert(2, "x", "y"),
        wire.commit(100, 110),
    ]
    changed, deleted, inserted = rows(decode(*frames, identity=Identity.FULL))
    assert (changed["a"], changed["b"], changed["_unchanged"]) == ("kept", "new", None)
    assert changed["_old"] == {"id": 1, "a": "kept", "b": "old", "_overflow": None}
    assert (deleted["_op"], deleted["a"]) == ("d", "kept")
    assert (inserted["id"], inserted["_old"]) == (2, None)


def test_a_delete_holds_the_key() -> None:
    (row,) = rows(decode(wire.delete(1, None, None), wire.commit(100, 110)))
    assert (row["_op"], row["id"], row["a"], row["_unchanged"]) == ("d", 1, None, None)


def test_truncate_is_a_change_of_each_table() -> None:
    (row,) = rows(decode(wire.truncate(7), wire.commit(100, 110)))
    assert (row["_op"], row["id"], row["_commit_lsn"]) == ("t", None, 100)


def test_messages_are_handed_on() -> None:
    told: list[tuple[str, bytes]] = []

    def announce(message: Message, lsn: Lsn) -> None:
        told.append((message.prefix, message.content))

    decoder = Decoder(wire.resolve, announce)
    decoder.decode([wire.message("beat", b"", transactional=False), wire.begin(100), wire.message("pgetl", b"hello")])
    assert told == [("pgetl", b"hello")], "one outside of a transaction announces nothing"


def test_two_tables_in_one_batch_are_kept_apart() -> None:
    decoded = decode(
        wire.relation(wire.schema(relation_id=8)),
        wire.insert(1, "x", "x", relation_id=8),
        wire.insert(2, "y", "y"),
        wire.insert(3, "z", "z", relation_id=8),
        wire.commit(100, 110),
    )
    assert {c.schema.relation_id: c.batch["id"].to_pylist() for c in decoded.changes} == {7: [2], 8: [1, 3]}


def test_an_overflowing_value_is_kept_as_text() -> None:
    from airflow_provider_pgetl.replication.decode.casts import cast_text
    from airflow_provider_pgetl.replication.pg_types import Kind, LakeType

    import pyarrow as pa  # isort: skip

    cast = cast_text(pa.array(["1.50", "NaN", None]), LakeType(Kind.DECIMAL, 6, 2))
    assert [str(v) for v in cast.values.to_pylist()] == ["1.50", "None", "None"]
    assert cast.overflow.to_pylist() == [None, "NaN", None]


@pytest.mark.parametrize(
    "frames",
    [
        [wire.insert(1, "a", "b")],
        [wire.commit(100, 110)],
        [wire.begin(1), wire.begin(2)],
        [wire.begin(1), wire.insert(1, "a", "b")],
        [wire.begin(1), wire.frame(b"Z")],
        [wire.begin(1), wire.frame(b"S" + bytes(8))],
        [wire.begin(1), wire.relation(wire.schema()), wire.insert(1, "a")],
        [wire.begin(1), wire.relation(wire.schema()), wire.insert("x", "a", "b")],
        [wire.begin(1), wire.relation(wire.schema()), wire.insert(1, "a", "b") + b"!"],
        [wire.begin(1), wire.relation(wire.schema()), wire.insert(1, "a", "b")[:-1]],
        [wire.begin(1)[:30]],
        [b"w"],
    ],
)
def test_bytes_that_lie_are_one_typed_error(frames: list[bytes]) -> None:
    with pytest.raises(DecodeError):
        Decoder(wire.resolve).decode(frames)


@pytest.mark.parametrize("seed", range(300))
def test_damaged_bytes_give_that_error_or_a_result_and_nothing_else(seed: int) -> None:
    chance = random.Random(seed)
    frames = [
        wire.begin(100),
        wire.relation(wire.schema()),
        wire.insert(1, "abc", "x" * 40),
        wire.update(2, wire.UNCHANGED, "y", key=[1, None, None]),
        wire.delete(2, None, None),
        wire.truncate(7),
        wire.message("p", b"content"),
        wire.commit(100, 110),
    ]
    for _ in range(chance.randint(1, 3)):
        victim = chance.randrange(len(frames))
        frames[victim] = _damage(chance, frames[victim])
    with contextlib.suppress(DecodeError):
        Decoder(_lenient).decode(frames)


def _lenient(relation: Any, lsn: Lsn) -> Any:
    """A damaged relation may describe anything; what it is resolved to is not the decoder's matter."""
    return wire.schema(relation_id=relation.relation_id)


def _damage(chance: random.Random, data: bytes) -> bytes:
    kind = chance.randrange(4)
    if kind == 0:
        return data[: chance.randrange(len(data) + 1)]
    if kind == 1:
        return data + chance.randbytes(chance.randint(1, 9))
    at = chance.randrange(25, len(data)) if len(data) > 25 else 0
    if kind == 2:
        return data[:at] + chance.randbytes(4) + data[at + 4 :]
    return data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]
