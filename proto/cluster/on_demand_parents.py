"""Creates and removes nodes deep in a tree whose inner nodes exist only while they have children.

All clients of the cluster, including Java's, create parents on demand and remove empty parents. If
a parent is removed while a node below it is being created, it is created again.
"""

from typing import Final

from rollbook.proto.cluster.uncertain_writes import (
    IsOurs,
    create_surely,
    delete_surely,
)
from rollbook.proto.errors import (
    MetadataConflict,
    NodeNotEmpty,
    NoSuchNode,
    OutcomeUnknown,
    Unavailable,
)
from rollbook.proto.ports import MetadataStore

_RACES_MAX: Final = 20


async def create_sparse(
    store: MetadataStore, top: str, path: str, value: bytes, is_ours: IsOurs
) -> None:
    """Creates a node and its missing parents. Raises `NodeExists`, and `NoSuchNode` if `top` is
    missing. Usually the parents exist, so the node itself is tried first, then its parents from the
    lowest on.
    """
    for _ in range(_RACES_MAX):
        try:
            return await create_surely(store, path, value, is_ours)
        except NoSuchNode:
            parent = path.rpartition("/")[0]
            if parent == top:
                raise
            await create_sparse(store, top, parent, b"", lambda _: True)
    raise MetadataConflict("other processes keep removing its parents", path=path)


async def remove_empty_parents(store: MetadataStore, top: str, path: str) -> None:
    """Removes the empty parents of a deleted node below `top`. Empty parents that remain do no harm."""
    parent = path.rpartition("/")[0]
    while parent != top:
        try:
            await delete_surely(store, parent)
        except (NodeNotEmpty, NoSuchNode, Unavailable, OutcomeUnknown):
            return
        parent = parent.rpartition("/")[0]
