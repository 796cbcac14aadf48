"""`import rollbook.aio`: what `rollbook.api.client.aio` offers, under the name that users write."""

from rollbook.api.client.aio import *  # noqa: F403  # Its `__all__`, and nothing else.
