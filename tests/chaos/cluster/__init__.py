"""Recovery under faults: bookies that are lost, that come back and that are drained, and what makes their copies."""
