"""Where the rows go: the contract (``base``) and the destinations that need no Spark."""
