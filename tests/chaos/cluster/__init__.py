"""Recovery under faults: bookies that are lost, return or drain, and the re-replication of copies."""
