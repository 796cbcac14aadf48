"""`rollbook dev`: runs a whole cluster in one process, for development."""
