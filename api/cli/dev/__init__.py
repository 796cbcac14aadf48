"""`rollbook dev`: a whole cluster in one process, for developing against."""
