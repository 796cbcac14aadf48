"""Rollbook: durable, replicated, append-only logs for people who work in Python."""

from typing import Final

__version__: Final = "0.1.0.dev0"
