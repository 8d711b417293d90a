"""The first pipeline: rows of a Postgres publication in memory, ten seconds long."""

from __future__ import annotations

import asyncio
import sys

from airflow_provider_pgetl.replication import MemoryDestination, MemoryStore, Pipeline, PipelineConfig


async def main(source: str, folder: str = "spool") -> MemoryDestination:
    destination = MemoryDestination()
    config = PipelineConfig(name="first", publication="shop_pub", spool_root=folder, pg_connection=source)
    pipeline = Pipeline(config, MemoryStore(), destination)
    await pipeline.start()
    await asyncio.wait([asyncio.ensure_future(pipeline.wait())], timeout=10)
    await pipeline.shutdown()
    return destination


if __name__ == "__main__":
    found = asyncio.run(main(*sys.argv[1:]))
    print({table: len(found.rows(table)) for table in found.tables()})
