"""A store in a SQLite file and a destination that posts to a webhook, both of one's own, and a pipeline with them.

python own_store_and_destination.py "host=localhost dbname=shop user=me" https://example.com/hook
"""

from __future__ import annotations

import asyncio
import functools
import json
import pickle
import sqlite3
import sys
import threading
import time
import urllib.error
import urllib.request
from typing import Any

import pyarrow as pa

from airflow_provider_pgetl.replication import events as ev
from airflow_provider_pgetl.replication.config import PipelineConfig
from airflow_provider_pgetl.replication.errors import DestinationError, DestinationUnreachable, StoreError
from airflow_provider_pgetl.replication.pipeline import Pipeline
from airflow_provider_pgetl.replication.schema import TableSchema
from airflow_provider_pgetl.replication.store.memory import MemoryStore


class SqliteStore(MemoryStore):
    """A store in memory, whose whole state is in a SQLite file before a call that changes it returns.

    Enough for some dozen tables and one process, which holds the file alone. A store for more implements the verbs
    of ``replication/store/base.py`` one by one, each as a transaction of its database.
    """

    def __init__(self, path: str) -> None:
        super().__init__(clock=time.time)  # a lease must mean the same to the next process
        self._guard = threading.RLock()
        self._saved = b""
        try:
            self._db = sqlite3.connect(path, timeout=1, check_same_thread=False, isolation_level=None)
            self._db.execute("pragma locking_mode = exclusive")
            self._db.execute("create table if not exists state (id integer primary key, data blob)")
            self._load()
            self._save()
        except sqlite3.Error as error:
            raise StoreError(f"the store {path} can't be opened", hint="Does another process have it?") from error

    def close(self) -> None:
        self._db.close()

    def _load(self) -> None:
        for (data,) in self._db.execute("select data from state").fetchall():
            vars(self).update(pickle.loads(data))

    def _save(self) -> None:
        tools = ("_lock", "_clock", "_guard", "_db", "_saved")
        data = pickle.dumps({name: value for name, value in vars(self).items() if name not in tools})
        if data != self._saved:
            self._db.execute("insert or replace into state values (1, ?)", (data,))
            self._saved = data


def _kept(verb: str) -> Any:
    call = getattr(MemoryStore, verb)

    @functools.wraps(call)
    def kept(self: SqliteStore, *args: Any, **kwargs: Any) -> Any:
        with self._guard:
            result = call(self, *args, **kwargs)
            try:
                self._save()
            except sqlite3.Error as error:
                self._load()  # not kept, so not done
                raise StoreError("the store can't be written") from error
            return result

    return kept


for _verb in dir(MemoryStore):
    if not _verb.startswith("_") and _verb != "close":
        setattr(SqliteStore, _verb, _kept(_verb))


class WebhookDestination:
    """Posts rows and changes as JSON; the receiver drops what is not after the table's last ``place``."""

    name = "webhook"

    def __init__(self, url: str) -> None:
        self._url = url

    def startup(self) -> None:
        self._post({"hello": self.name})

    def shutdown(self) -> None: ...

    def drop_table_for_copy(self, schema: TableSchema) -> None:
        self._post({"table": str(schema.table), "drop": True})

    def write_table_rows(self, schema: TableSchema, rows: pa.RecordBatch) -> None:
        self._post({"table": str(schema.table), "rows": list(ev.plain_rows(schema, rows))})

    def write_events(self, events: ev.Events) -> None:
        changes = []
        for event in (one for one in events if not isinstance(one, ev.Begin | ev.Commit)):
            change: dict[str, Any] = {"op": type(event).__name__.lower(), "place": event.place}
            match event:
                case ev.Insert(row=row):
                    change |= {"row": row}
                case ev.Update(row=row, old=old, unchanged=unchanged):
                    change |= {"row": row, "old": old, "unchanged": sorted(unchanged)}
                case ev.Delete(old=old):
                    change |= {"old": old}
                case ev.Relation(after=after):
                    change |= {"columns": [column.name for column in after.columns]}
            changes.append(change)
        self._post({"table": str(events.table), "changes": changes})

    def _post(self, body: dict[str, Any]) -> None:
        data = json.dumps(body, default=str).encode()
        request = urllib.request.Request(self._url, data, {"Content-Type": "application/json"})
        try:
            urllib.request.urlopen(request, timeout=30).close()
        except urllib.error.HTTPError as error:
            error.close()
            # A refusal concerns this table, anything else all of them.
            kind = DestinationError if error.code < 500 else DestinationUnreachable
            raise kind(f"the webhook answered {error.code}") from None
        except OSError as error:
            raise DestinationUnreachable(f"the webhook can't be reached: {type(error).__name__}") from None


async def main(source: str, url: str, folder: str = ".") -> None:
    config = PipelineConfig(name="shop", publication="shop_pub", spool_root=f"{folder}/spool", pg_connection=source)
    store = SqliteStore(f"{folder}/shop.db")
    pipeline = Pipeline(config, store, WebhookDestination(url))
    try:
        await pipeline.start()
        await pipeline.wait()
    finally:
        await pipeline.shutdown()
        store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
