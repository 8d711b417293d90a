"""The hook: connection ids in, a source address, a store and a destination out.

``addresses`` is for tasks, ``aaddresses`` for triggers (a child task of a trigger may only use the async form).
What they return holds passwords: it is never logged, never an XCom and never an argument of a trigger.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook

from airflow_provider_pgetl.hooks.conninfo import Resolved, libpq_conninfo, spark_connect_url
from airflow_provider_pgetl.hooks.settings import state_conn_id as configured_state_conn_id

if TYPE_CHECKING:
    from airflow_provider_pgetl.lakehouse.destination import LakeDestination
    from airflow_provider_pgetl.replication.store.postgres import PostgresStore

SOURCE_CONN_ID = "pgetl_source"
SPARK_CONN_ID = "spark_connect_default"
CATALOG = "lake"


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where things are; secret."""

    source: str = field(repr=False)
    state: str = field(repr=False)
    spark: str = field(repr=False)

    def store(self) -> PostgresStore:
        """The state store; connects when first used."""
        from airflow_provider_pgetl.replication.store.postgres import PostgresStore

        return PostgresStore(self.state)

    def destination(self, catalog: str) -> LakeDestination:
        """The lake; imports Spark, so call it where that may take a second."""
        from airflow_provider_pgetl.lakehouse.destination import LakeDestination

        return LakeDestination(self.spark, catalog=catalog, source=self.source)


class PgEtlHook(BaseHook):
    """Resolves the connections of a pipeline.

    :param source_conn_id: the Postgres to mirror (types ``pgetl`` and ``postgres`` are read alike).
    :param state_conn_id: the Postgres with the schema ``pgetl``; default: ``[pgetl] state_conn_id``.
    :param spark_conn_id: the Spark Connect server.
    """

    conn_name_attr = "source_conn_id"
    default_conn_name = SOURCE_CONN_ID
    conn_type = "pgetl"
    hook_name = "pgetl (Postgres source)"

    def __init__(
        self,
        source_conn_id: str = SOURCE_CONN_ID,
        *,
        state_conn_id: str | None = None,
        spark_conn_id: str = SPARK_CONN_ID,
    ) -> None:
        super().__init__()
        self.source_conn_id = source_conn_id
        self.state_conn_id = state_conn_id
        self.spark_conn_id = spark_conn_id

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        """What the connection form shows."""
        return {
            "hidden_fields": [],
            "relabeling": {"schema": "Database", "login": "User"},
            "placeholders": {"extra": '{"sslmode": "verify-full", "sslrootcert": "/path/ca.pem"}'},
        }

    def source(self) -> str:
        """The source's libpq connection string."""
        return libpq_conninfo(self._read(self.source_conn_id))

    def store(self) -> PostgresStore:
        """The state store."""
        from airflow_provider_pgetl.replication.store.postgres import PostgresStore

        return PostgresStore(libpq_conninfo(self._read(self._state())))

    def addresses(self) -> Addresses:
        """All three, for a task."""
        return Addresses(
            source=self.source(),
            state=libpq_conninfo(self._read(self._state())),
            spark=spark_connect_url(self._read(self.spark_conn_id)),
        )

    async def aaddresses(self) -> Addresses:
        """All three, for a trigger."""
        return Addresses(
            source=libpq_conninfo(await self._aread(self.source_conn_id)),
            state=libpq_conninfo(await self._aread(self._state())),
            spark=spark_connect_url(await self._aread(self.spark_conn_id)),
        )

    def test_connection(self) -> tuple[bool, str]:
        """For the button of the connection form."""
        import psycopg

        try:
            with psycopg.connect(self.source(), connect_timeout=10) as connection:
                row = connection.execute("select current_setting('wal_level')").fetchone()
        except psycopg.Error as error:
            return False, str(error).strip()
        level = row[0] if row else "unknown"
        return level == "logical", f"connected; wal_level is {level}"

    def _state(self) -> str:
        return self.state_conn_id or configured_state_conn_id()

    def _read(self, conn_id: str) -> Resolved:
        return Resolved.of(self.get_connection(conn_id))

    async def _aread(self, conn_id: str) -> Resolved:
        return await Resolved.aof(await self.aget_connection(conn_id))
