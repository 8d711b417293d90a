from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from airflow_provider_pgetl.cli import bench, query
from airflow_provider_pgetl.cli import test as test_command
from airflow_provider_pgetl.cli.main import main


@pytest.mark.parametrize("command", ["demo", "query", "ddl", "test", "bench"])
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert f"usage: pgetl {command}" in capsys.readouterr().out


def test_what_a_command_does_not_know_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["demo", "--nonsense"])
    assert ended.value.code == 2
    assert "unrecognized arguments: --nonsense" in capsys.readouterr().err


def test_the_test_command_passes_the_rest_on_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    monkeypatch.setattr(test_command, "run", lambda options: seen.append(options.rest) or 0)
    assert main(["test", "--no-lint", "-k", "restart", "-x", "tests/unit"]) == 0
    assert seen == [["-k", "restart", "-x", "tests/unit"]]


def test_query_without_a_demo_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["query", "--home", str(tmp_path), "select 1"]) == 1
    assert capsys.readouterr().err.startswith("pgetl: no demo runs in")


def test_rows_are_printed_in_columns() -> None:
    text = query.table(["name", "total"], [("a", Decimal("10.50")), (None, Decimal(7))], widest=10)
    assert text.splitlines() == ["name  total", "----  -----", "a     10.50", "NULL      7"]


def test_long_values_are_cut_and_line_ends_shown() -> None:
    assert query.table(["c"], [("line\n" + "x" * 20,)], widest=8).splitlines()[-1] == "line\\nx…"


def report(path: Path, cases: str) -> Path:
    path.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    return path


def test_skipped_tests_did_not_run_and_expected_failures_did(tmp_path: Path) -> None:
    cases = (
        "<testcase name='a'/>"
        "<testcase name='b'><skipped type='pytest.skip'/></testcase>"
        "<testcase name='c'><skipped type='pytest.xfail'/></testcase>"
    )
    assert test_command.read_outcome(report(tmp_path / "r.xml", cases)) == test_command.Outcome(ran=2, skipped=1)


@pytest.mark.parametrize(
    ("cases", "ci", "expected"),
    [
        ("", "", ["no test ran"]),
        ("<testcase><skipped type='pytest.skip'/></testcase>", "", ["no test ran"]),
        ("<testcase/><testcase><skipped type='pytest.skip'/></testcase>", "", []),
        (
            "<testcase/><testcase><skipped type='pytest.skip'/></testcase>",
            "true",
            ["1 tests were skipped, which CI does not allow"],
        ),
    ],
)
def test_tests_that_did_not_run_fail_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cases: str, ci: str, expected: list[str]
) -> None:
    monkeypatch.setenv("CI", ci)
    assert test_command.missing_tests(report(tmp_path / "r.xml", cases)) == expected


def test_missing_report_fails_the_command(tmp_path: Path) -> None:
    assert test_command.missing_tests(tmp_path / "none.xml") == ["no test report"]


def test_benchmarks_are_found_and_must_end_with_a_result(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text('print(\'working\')\nprint(\'{"name": "good", "ratio": 1.2}\')\n')
    (tmp_path / "silent.py").write_text("print('done')\n")
    (tmp_path / "broken.py").write_text('print(\'{"name": "broken"}\')\nraise SystemExit(3)\n')
    (tmp_path / "_shared.py").write_text("")
    known = bench.benchmarks(tmp_path)
    assert list(known) == ["broken", "good", "silent"]
    assert {name: bench.run_one(path, []) for name, path in known.items()} == {
        "broken": False,
        "good": True,
        "silent": False,
    }
