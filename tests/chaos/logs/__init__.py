"""Chaos of named logs: their owners, readers and writers, through the public API."""
