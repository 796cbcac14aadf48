"""The repair of ledgers and bookies: healing, re-replication and drains."""
