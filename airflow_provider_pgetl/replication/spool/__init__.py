"""Durable changes: Parquet files, registered in the store's ledger."""
