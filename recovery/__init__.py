"""Repair: healing of bookies, re-replication, drains."""
