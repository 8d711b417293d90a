"""Marks of publication on a real server: each way to change what is published without a word in the stream."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from airflow_provider_pgetl.local.postgres import Database
from airflow_provider_pgetl.replication.errors import SourceError
from airflow_provider_pgetl.replication.source.connection import connect
from airflow_provider_pgetl.replication.source.marks import changed, source_marks


@dataclass
class Marks:
    """A database, and its tables' marks by name."""

    database: Database

    def execute(self, *statements: str) -> None:
        with self.database.connect() as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def look(self) -> dict[str, str]:
        with connect(self.database.conninfo, "test") as connection:
            marks = source_marks(connection, "pub")
            rows = connection.execute("select oid::int8, relname from pg_class where oid = any(%s)", (list(marks),))
            return {name: marks[oid] for oid, name in rows.fetchall()}

    def reason(self, table: str, *statements: str) -> str | None:
        """What is said of the table after these statements, each a transaction of its own."""
        before = self.look()[table]
        self.execute(*statements)
        return changed(before, self.look()[table])


@pytest.fixture
def marks(database: Database) -> Marks:
    return Marks(database)


@pytest.fixture
def plain(marks: Marks) -> Marks:
    marks.execute("create table t (id int primary key, a int)", "create publication pub for table t")
    return marks


@pytest.fixture
def root(marks: Marks) -> Marks:
    """A root that is published as one table, with a leaf, and a leaf a level deeper."""
    marks.execute(
        "create table root (id int primary key, a int default 1) partition by range (id)",
        "create table p1 partition of root for values from (0) to (10)",
        "create table p2 partition of root for values from (10) to (20) partition by range (id)",
        "create table p2a partition of p2 for values from (10) to (15)",
        "insert into root values (1), (11)",
        "create publication pub for table root with (publish_via_partition_root)",
    )
    return marks


def test_a_publication_that_is_not_there_is_said_so(marks: Marks) -> None:
    with pytest.raises(SourceError, match="there is no publication 'pub'"):
        marks.look()
    marks.execute("create publication pub")
    assert marks.look() == {}


# Plain tables


@pytest.mark.parametrize(
    "statement",
    [
        "insert into t values (1, 1)",
        "truncate t",
        "vacuum full t",
        "alter table t add b int default random() * 100",
        "alter table t rename a to z",
        "alter publication pub rename to other; alter publication other rename to pub",
        "alter publication pub owner to current_user",
        "analyze t",
        "alter publication pub set table t",
    ],
)
def test_what_the_stream_tells_or_does_not_concern_it_changes_nothing(plain: Marks, statement: str) -> None:
    assert plain.reason("t", statement) is None


def test_a_table_that_was_taken_out_and_added_again_is_seen(plain: Marks) -> None:
    said = plain.reason("t", "alter publication pub drop table t", "alter publication pub add table t")
    assert said == "the table was taken out of the publication and added again"


def test_a_publication_that_was_made_again_is_seen(plain: Marks) -> None:
    said = plain.reason("t", "drop publication pub", "create publication pub for table t")
    assert said == "the publication was dropped and made again"


def test_other_actions_are_seen(plain: Marks) -> None:
    said = plain.reason("t", "alter publication pub set (publish = 'insert')")
    assert said == "the actions that are published were changed"


@pytest.mark.parametrize("how", ["t where (a > 1)", "t (id)"])
def test_filters_and_column_lists_are_seen(plain: Marks, how: str) -> None:
    said = plain.reason("t", f"alter publication pub set table {how}")
    assert said == "the table was taken out of the publication and added again"


def test_a_filter_survives_the_renaming_of_its_column(plain: Marks) -> None:
    plain.execute("alter publication pub set table t where (a > 1)")
    assert "filter" in plain.look()["t"]
    assert plain.reason("t", "alter table t rename a to z") is None


def test_a_table_may_be_held_by_two_entries(plain: Marks) -> None:
    assert plain.reason("t", "alter publication pub add tables in schema public") is None
    assert plain.reason("t", "alter publication pub drop table t") is None
    said = plain.reason(
        "t", "alter publication pub drop tables in schema public", "alter publication pub add tables in schema public"
    )
    assert said == "the table was taken out of the publication and added again"


def test_a_filter_that_a_whole_schema_lifts_is_seen(plain: Marks) -> None:
    plain.execute("alter publication pub set table t where (a > 1)")
    said = plain.reason("t", "alter publication pub add tables in schema public")
    assert said == "the row filter or the column list was changed"


def test_publications_of_all_tables_have_marks(marks: Marks) -> None:
    marks.execute(
        "create table t (id int primary key)",
        "create unlogged table u (id int primary key)",
        "create publication pub for all tables",
    )
    assert list(marks.look()) == ["t"]
    assert marks.reason("t", "create table v (id int)") is None
    assert sorted(marks.look()) == ["t", "v"]


def test_via_root_and_not_via_root_name_other_tables(root: Marks) -> None:
    assert list(root.look()) == ["root"]
    root.execute("alter publication pub set (publish_via_partition_root = false)")
    assert sorted(root.look()) == ["p1", "p2a"]


@pytest.mark.parametrize("scope", ["all tables", "tables in schema public", "table root, p1, p2"])
def test_the_topmost_published_table_has_the_mark(root: Marks, scope: str) -> None:
    root.execute("drop publication pub", f"create publication pub for {scope} with (publish_via_partition_root)")
    assert list(root.look()) == ["root"]
    assert root.reason("root", "truncate p2a") == "a partition was truncated or rewritten"


# Leaves that are published as themselves


def test_a_leaf_that_was_away_for_a_while_is_seen(root: Marks) -> None:
    root.execute("alter publication pub set (publish_via_partition_root = false)")
    assert root.reason("p1", "create table p3 partition of root for values from (30) to (40)") is None
    said = root.reason(
        "p1", "alter table root detach partition p1", "alter table root attach partition p1 for values from (0) to (10)"
    )
    assert said == "the table was taken out of the publication and added again"


def test_a_leaf_with_an_entry_of_its_own_is_never_away(root: Marks) -> None:
    root.execute("drop publication pub", "create publication pub for all tables")
    assert (
        root.reason(
            "p1",
            "alter table root detach partition p1",
            "alter table root attach partition p1 for values from (0) to (10)",
        )
        is None
    )


# The partitions of a root


@pytest.mark.parametrize(
    "statements",
    [
        ["create table p3 partition of root for values from (30) to (40)"],
        ["create table p3 partition of root for values from (30) to (40)", "insert into root values (31)"],
        ["begin; create table p3 partition of root for values from (30) to (40); insert into root values (31); commit"],
        [
            "create table p3 partition of root for values from (30) to (40)",
            "insert into root values (31)",
            "alter table p3 owner to current_user",
            "grant select on p3 to public",
            "alter table p3 rename to p4",
            "alter table root add b text default 'x'",
            "vacuum freeze p4",
            "vacuum freeze pg_attribute",
            "vacuum full pg_attribute",
            "vacuum full pg_inherits",
        ],
        [
            "create table p3 partition of root (a default 7, check (a > 0)) for values from (30) to (40)",
            "insert into root values (31)",
        ],
        ["create table p3 partition of p2 for values from (15) to (20)", "insert into root values (16)"],
        [
            "create table p3 partition of root for values from (30) to (40) partition by range (id)",
            "create table p3a partition of p3 for values from (30) to (40)",
            "insert into root values (31)",
        ],
        ["do $$ begin create table p3 partition of root default; insert into root values (77); end $$"],
        ["create table p3 (like root)", "alter table root attach partition p3 for values from (30) to (40)"],
        ["create table p3 partition of p2 for values from (15) to (20) partition by range (id)", "drop table p3"],
        ["insert into root values (2)", "delete from root", "vacuum p1", "analyze root", "create index on root (a)"],
    ],
)
def test_partitions_whose_rows_all_come_through_the_stream_need_no_copy(root: Marks, statements: list[str]) -> None:
    assert root.reason("root", *statements) is None


ATTACH = "alter table root attach partition p3 for values from (30) to (40)"
MAY_HOLD = "a partition was attached that may hold rows"


@pytest.mark.parametrize(
    ("said", "statements"),
    [
        (MAY_HOLD, ["create table p3 (like root)", "insert into p3 values (31)", ATTACH]),
        (MAY_HOLD, [f"begin; create table p3 (like root); insert into p3 values (31); {ATTACH}; commit"]),
        (MAY_HOLD, [f"begin; create table p3 as select 31 as id, 1 as a; alter p3; {ATTACH}; commit"]),
        (MAY_HOLD, [f"do $$ begin create table p3 (like root); insert into p3 values (31); {ATTACH}; end $$"]),
        (
            MAY_HOLD,
            [
                "create table p3 (like root including all) partition by range (id)",
                "create table p3a partition of p3 for values from (30) to (40)",
                "insert into p3 values (31)",
                ATTACH,
            ],
        ),
        ("a partition was detached or dropped", ["alter table root detach partition p1"]),
        ("a partition was detached or dropped", ["alter table root detach partition p1 concurrently"]),
        ("a partition was detached or dropped", ["alter table root detach partition p2"]),
        ("a partition was detached or dropped", ["drop table p1"]),
        ("a partition was detached or dropped", ["drop table p2"]),
        ("a partition was truncated or rewritten", ["truncate p1"]),
        ("a partition was truncated or rewritten", ["truncate p2"]),
        ("a partition was truncated or rewritten", ["alter table root add b float default random()"]),
        (
            "a partition was detached and attached again",
            [
                "alter table root detach partition p1",
                "update p1 set a = 5",
                "alter table root attach partition p1 for values from (0) to (10)",
            ],
        ),
        (
            "a partition was detached and attached again",
            [
                "alter table root detach partition p2",
                "update p2 set a = 5",
                "alter table root attach partition p2 for values from (10) to (20)",
            ],
        ),
        (
            "a new partition was truncated or rewritten",
            [
                "create table p3 partition of root for values from (30) to (40)",
                "insert into root values (31)",
                "truncate p3",
                "insert into root values (32)",
            ],
        ),
        (
            "a new partition was truncated or rewritten",
            ["create table p3 (like root)", ATTACH, "insert into root values (31)", "truncate p3"],
        ),
    ],
)
def test_partitions_that_change_unseen_need_a_copy(root: Marks, said: str, statements: list[str]) -> None:
    statements = [one.replace("alter p3", "alter table p3 alter id set not null") for one in statements]
    assert root.reason("root", *statements) == said


def test_the_smallest_table_that_is_filled_and_attached_in_one_transaction_is_seen(marks: Marks) -> None:
    marks.execute(
        "create table root (id int) partition by list (id)",
        "create publication pub for table root with (publish_via_partition_root)",
    )
    fill = "create table {0} (id int); insert into {0} values ({1})"
    attach = "alter table root attach partition {0} for values in ({1})"
    assert marks.reason("root", f"begin; {fill}; {attach}; commit".format("p1", 1)) == MAY_HOLD
    create = "create table p2 as select 2 as id; " + attach.format("p2", 2)
    assert marks.reason("root", f"begin; {create}; commit") == MAY_HOLD
    # An ALTER that was rolled back writes its command's number over the column's.
    statements = [
        f"begin; {fill}; {attach}; commit".format("p3", 3),
        "begin; alter table root alter id set default 1; rollback",
    ]
    assert marks.reason("root", *statements) == MAY_HOLD


def test_a_table_that_was_attached_before_anything_was_written_is_as_good_as_new(marks: Marks) -> None:
    marks.execute(
        "create table root (id int) partition by list (id)",
        "create publication pub for table root with (publish_via_partition_root)",
    )
    create = "begin; create table p1 (id int); alter table root attach partition p1 for values in (1); commit"
    assert marks.reason("root", create, "insert into root values (1)") is None


def test_a_new_leaf_below_a_branch_that_was_attached_long_ago_is_new(root: Marks) -> None:
    root.execute(
        "create table p3 (like root including all) partition by range (id)",
        "alter table root attach partition p3 for values from (30) to (40)",
    )
    statements = ["create table p3a partition of p3 for values from (30) to (40)", "insert into root values (31)"]
    assert root.reason("root", *statements) is None


def test_a_locked_partition_does_not_stop_the_look(root: Marks) -> None:
    root.execute("create table p3 (like root)", "insert into p3 values (31)", ATTACH)
    before = root.look()["root"]
    with root.database.connect(autocommit=False) as other:
        other.execute("lock table p3, root in access exclusive mode")
        with connect(root.database.conninfo, "test") as connection:
            connection.execute("set lock_timeout = '5s'")
            (after,) = source_marks(connection, "pub").values()
    assert after != before
    assert changed(before, after) is None
