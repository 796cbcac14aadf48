"""`import rollbook.errors`: what `rollbook.proto.errors` defines, under the name that users write."""

from rollbook.proto.errors import *  # noqa: F403  # Each error, and what their fields hold.
