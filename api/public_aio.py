"""`import rollbook.aio`: what `rollbook.api.client.aio` offers, under the name that users write."""

from rollbook.api.client.aio import *  # noqa: F403  # Re-exports exactly its `__all__`.
