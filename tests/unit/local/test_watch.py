from __future__ import annotations

from airflow_provider_pgetl.local.watch import StateReporter


def test_each_change_is_told_once_and_the_end_too() -> None:
    said: list[str] = []
    reporter = StateReporter(read=dict, say=said.append)
    reporter.tell({})
    reporter.tell({"a": "init", "b": "init"})
    reporter.tell({"a": "ready", "b": "init"})
    reporter.tell({"a": "ready", "b": "init"})
    assert said == ["a: init", "b: init", "a: ready"]
    reporter.tell({"a": "ready", "b": "ready"})
    reporter.tell({"a": "ready", "b": "ready"})
    assert said[3] == "b: ready"
    assert said[4].startswith("all 2 tables are ready")
    assert len(said) == 5
