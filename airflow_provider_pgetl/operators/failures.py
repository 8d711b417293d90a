"""Our errors as Airflow understands them, in one place.

| ours            | a task                                                                 |
|-----------------|------------------------------------------------------------------------|
| retry timed     | fails and is tried again                                               |
| retry manual    | fails without further tries: somebody has to do what the hint says     |
| retry never     | the same, except ``Overtaken``: a newer run does the work, so a skip   |
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_provider_pgetl.replication.errors import Overtaken, PgEtlError, Retry


@contextmanager
def translated() -> Iterator[None]:
    """Turn what a block raises into what Airflow should do about it."""
    try:
        yield
    except Overtaken as error:
        raise AirflowSkipException(error.message) from error
    except PgEtlError as error:
        if error.retry is Retry.TIMED:
            raise
        raise AirflowFailException(f"{error.message}\nwhat to do: {error.hint}") from error
