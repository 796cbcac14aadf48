"""`rollbook server`: runs bookies, log servers and recovery servers."""
