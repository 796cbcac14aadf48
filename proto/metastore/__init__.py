"""Rollbook's own metadata store: its rules, its client, and its forms in memory and on a socket."""
