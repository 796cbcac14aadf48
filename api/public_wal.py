"""`import rollbook.wal`: what `rollbook.api.wal` offers, under the name that users write."""

from rollbook.api.wal import *  # noqa: F403  # Re-exports exactly its `__all__`.
