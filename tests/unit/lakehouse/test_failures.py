"""Spark's errors as ours."""

from __future__ import annotations

import pytest
from pyspark.errors.exceptions.connect import (
    AnalysisException,
    IllegalArgumentException,
    PythonException,
    SparkException,
)

from airflow_provider_pgetl.lakehouse.failures import Refused, SessionLost, translate
from airflow_provider_pgetl.replication.errors import (
    DestinationFailed,
    NotSupported,
    PgEtlError,
    SnapshotLost,
    SpoolCorrupt,
)

TRACE = "\n\nJVM stacktrace:\norg.apache.iceberg.exceptions.ValidationException"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (SparkException("[INVALID_HANDLE.SESSION_NOT_FOUND] the handle is invalid"), SessionLost),
        (IllegalArgumentException("Cannot fast-forward: main is not an ancestor of pgetl_7" + TRACE), Refused),
        (SparkException("CommitFailedException: Base metadata location is not same" + TRACE), Refused),
        (AnalysisException("[PATH_NOT_FOUND] Path does not exist: file:/x"), SpoolCorrupt),
        (NotSupported("ours"), NotSupported),
        (RuntimeError("anything"), DestinationFailed),
    ],
)
def test_each_error_has_its_kind(error: BaseException, kind: type[PgEtlError]) -> None:
    assert type(translate(error, "testing")) is kind


def test_an_error_of_ours_from_the_worker_comes_out_as_itself() -> None:
    line = "airflow_provider_pgetl.replication.errors.SnapshotLost: the snapshot is lost (Copied again.)"
    for error in (PythonException(f"Traceback ...\n{line}\n"), SparkException(f"Job aborted: {line}\n\tat x")):
        found = translate(error, "copying")
        assert type(found) is SnapshotLost
        assert (found.message, found.hint) == ("the snapshot is lost", "Copied again.")


def test_values_in_messages_of_the_worker_and_of_tasks_are_left_out() -> None:
    worker = translate(PythonException("Traceback ...\nValueError: secret\n"), "copying")
    task = translate(SparkException("Job aborted due to stage failure: the value 'secret' of type STRING"), "applying")
    assert "ValueError" in worker.message
    assert "secret" not in str(worker) + str(task)
