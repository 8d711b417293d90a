"""The lakehouse: Spark copies, folds and applies; Iceberg keeps.

    destination.py   LakeDestination: what the engine's paths call
    apply.py         pending changes of one table -> one new visible snapshot
      pending.py       looks at the spooled changes: operations, key ranges, what did not travel
      fold.py          SQL text: the last operation per key, completed where values did not travel
    copy.py          one Spark job per partition -> an invisible branch of the table
      copy_worker.py   the half of it that runs in Spark's Python worker
    iceberg.py       everything that is Iceberg's own: tables, branches, snapshots, markers
    session.py       Spark Connect sessions: opened, lent, reopened, stopped
    failures.py      Spark's errors -> ours
    sql.py           names and literals as SQL text
    verify.py        source = lake at one LSN; hashing.py, the one hash of both sides

Importing this package is light; its modules load pyspark, which takes seconds and belongs in a worker thread,
never on an event loop.
"""

from __future__ import annotations
