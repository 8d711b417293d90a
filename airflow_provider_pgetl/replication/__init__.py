"""The replication engine: Postgres to Arrow to spool to destination. It imports no Airflow and no Spark."""
