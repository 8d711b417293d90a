"""What survives a restart: the contract (``base``), in memory (``memory``), in Postgres (``postgres``)."""
