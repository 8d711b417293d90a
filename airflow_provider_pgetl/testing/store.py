"""The store's contract as tests: inherit ``StoreContract`` and give it a fixture ``store`` (empty).

    store_schemas   versions of schemas, by LSN
    store_states    pipelines, tables and their states, rollbacks
    store_tables    copies again, resets, deletions; the destination's tables
    store_leases    one writer at a time
    store_ledger    the spool's ledger
    store_cuts      cuts, announcements, commands, samples

Whoever implements only a part of the contract inherits the class of that part; ``store_values`` holds the small
values and steps that the tests are written with.
"""

from __future__ import annotations

from airflow_provider_pgetl.testing.store_cuts import CutContract, SampleContract
from airflow_provider_pgetl.testing.store_leases import LeaseContract
from airflow_provider_pgetl.testing.store_ledger import LedgerContract
from airflow_provider_pgetl.testing.store_schemas import SchemaContract
from airflow_provider_pgetl.testing.store_states import RollbackContract, StateContract
from airflow_provider_pgetl.testing.store_tables import DestinationContract, TableLifecycleContract


class StoreContract(
    SchemaContract,
    StateContract,
    RollbackContract,
    TableLifecycleContract,
    DestinationContract,
    LeaseContract,
    LedgerContract,
    CutContract,
    SampleContract,
):
    """All of it; inherit this one."""
