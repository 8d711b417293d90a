"""The folding SQL: which form is chosen, and what each must contain. What it computes is tested on Spark."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_pgetl.lakehouse.fold import Fold, delete_statement, rows_query
from airflow_provider_pgetl.lakehouse.pending import Pending
from airflow_provider_pgetl.lakehouse.sql import LakeTable, change_ddl, row_ddl
from airflow_provider_pgetl.replication.lsn import Lsn
from airflow_provider_pgetl.replication.schema import Column, Identity, TableName, TableSchema

KEY = Column("id", 1, 20, 20, -1, -1, 0, "bigint", nullable=False, key=1, identity=True)
NAME = Column("na`me", 2, 25, 25, -1, -1, 0, "text", nullable=True, toastable=True)
SCHEMA = TableSchema(1, TableName("public", "t"), (KEY, NAME), Identity.DEFAULT)
TABLE = LakeTable("lake", "public", "t")
PENDING = Pending(Lsn(100), Lsn(200), rows=3, updates=2, deletes=1, ranges=((5, 9),))


def _fold(pending: Pending = PENDING, base: int | None = 42) -> Fold:
    return Fold(SCHEMA, pending, "changes", TABLE, base)


def test_the_window_is_half_open() -> None:
    assert "_commit_lsn >= 100 and _commit_lsn < 200" in rows_query(_fold())


def test_inserts_alone_are_not_folded_and_delete_nothing() -> None:
    fold = _fold(Pending(Lsn(100), Lsn(200), rows=3, inserts=3, ranges=(None,)))
    assert "max_by" not in rows_query(fold)
    assert delete_statement(fold, "target") is None


def test_a_batch_whose_values_all_travelled_does_not_read_the_lake() -> None:
    assert "version as of" not in rows_query(_fold())


def test_values_that_did_not_travel_are_read_at_the_base_snapshot() -> None:
    query = rows_query(_fold(replace(PENDING, unchanged=True)))
    assert "`lake`.`public`.`t` version as of 42" in query
    assert "raise_error" in query
    assert "recursive" not in query


def test_chains_are_walked_only_if_a_moved_row_lacks_values() -> None:
    assert "recursive" in rows_query(_fold(replace(PENDING, unchanged=True, moved=True, moved_unchanged=True)))
    assert "recursive" not in rows_query(_fold(replace(PENDING, unchanged=True, moved=True)))


def test_a_truncate_cuts_off_what_precedes_it_and_the_lake() -> None:
    query = rows_query(_fold(replace(PENDING, unchanged=True, truncated=(150, 7))))
    assert "(_commit_lsn > 150 or (_commit_lsn = 150 and _ordinal > 7))" in query
    assert "version as of" not in query


def test_deletes_are_pruned_by_the_key_range() -> None:
    statement = delete_statement(_fold(), "target")
    assert statement is not None
    assert statement.startswith("delete from target where `id` >= 5 and `id` <= 9 and `id` in (select `id`")
    assert "_old" not in statement


def test_a_key_change_deletes_the_old_key_too() -> None:
    statement = delete_statement(_fold(replace(PENDING, moved=True)), "target")
    assert statement is not None
    assert "union all select _old.`id`" in statement


def test_names_are_quoted_in_ddl() -> None:
    assert row_ddl(SCHEMA).startswith("`id` bigint, `na``me` string, `_pgetl_lsn` bigint")
    assert "_old struct<`id`: bigint>" in change_ddl(SCHEMA)


def test_a_table_without_identity_has_no_old_rows() -> None:
    keyless = replace(SCHEMA, columns=(NAME,))
    assert "_old" not in change_ddl(keyless)
