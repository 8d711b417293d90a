"""Find the tables of a publication and register them."""

from __future__ import annotations

from airflow.sdk import Context

from airflow_provider_pgetl.operators.base import PgEtlOperator, who
from airflow_provider_pgetl.operators.failures import translated


class PgDiscoverTablesOperator(PgEtlOperator):
    """Check the source, make the slot, register the pipeline and its tables.

    Returns the tables' names (``schema.table``) for ``PgInitialCopyOperator.partial(…).expand(table=…)``.
    Repeatable: known tables keep their state.
    """

    def execute(self, context: Context) -> list[str]:
        """Discover."""
        from airflow_provider_pgetl.replication.discover import discover

        with translated():
            hook = self.hook()
            config, source, store = self.config, hook.source(), hook.store()
            try:
                records = discover(config, source, store, by=who(context), run_id=context["run_id"])
            finally:
                store.close()
        for record in records:
            self.log.info("%s: %s, generation %d", record.table, record.state.kind, record.generation)
        self.log.info("pipeline %s has %d tables, slot %s", config.name, len(records), config.slot)
        return [str(record.table) for record in records]
