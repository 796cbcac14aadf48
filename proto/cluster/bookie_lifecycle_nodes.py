"""The nodes that say whether a bookie stays in the cluster or leaves it (`formats/lifecycle.py`).

    <own root>/lifecycle/<bookie id>    if there is no node, the bookie is Active

When a bookie becomes Active again, its node is kept, so that the version only grows. Therefore a
change that is based on an older state is refused. `bookie remove` deletes the node together with
the cookie.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from rollbook.proto.cluster.cluster_root import Cluster, ensure_own_root
from rollbook.proto.cluster.uncertain_writes import (
    children_surely,
    ensure_node,
    read_surely,
    transact_surely,
)
from rollbook.proto.errors import (
    BadMetadata,
    InvalidRequest,
    NoSuchNode,
    UnsupportedVersion,
)
from rollbook.proto.formats.lifecycle import Lifecycle, pack_lifecycle, unpack_lifecycle
from rollbook.proto.formats.paths import LIFECYCLE
from rollbook.proto.ids import BookieId, parse_bookie_id
from rollbook.proto.ports import Check, Create, MetadataStore, Op, SessionId, Set, Watch

logger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class StoredLifecycle:
    bookie: BookieId
    lifecycle: Lifecycle
    version: int | None  # None if the node does not exist.


class LifecycleNodes:
    def __init__(self, store: MetadataStore, cluster: Cluster) -> None:
        self._store = store
        self._cluster = cluster
        self.folder = f"{cluster.own_root}/{LIFECYCLE}"

    def path(self, bookie: BookieId) -> str:
        return f"{self.folder}/{bookie}"

    async def read(self, bookie: BookieId) -> StoredLifecycle:
        """Reads a bookie's state. If that is not possible it raises `BadMetadata` or
        `UnsupportedVersion`, since a state is never guessed.
        """
        node = await read_surely(self._store, self.path(bookie))
        if node is None:
            return StoredLifecycle(bookie, Lifecycle(), None)
        return StoredLifecycle(bookie, unpack_lifecycle(node.value), node.stat.version)

    async def list(self) -> list[StoredLifecycle]:
        """Returns the states of all bookies that have a node. An invalid node is logged and left out."""
        try:
            names = await children_surely(self._store, self.folder)
        except NoSuchNode:
            return []
        found = []
        for name in names:
            try:
                found.append(await self.read(parse_bookie_id(name)))
            except (BadMetadata, UnsupportedVersion, InvalidRequest) as error:
                logger.warning("lifecycle_unreadable", bookie=name, reason=error.message)
        return [each for each in found if each.version is not None]

    async def write(
        self,
        found: StoredLifecycle,
        lifecycle: Lifecycle,
        *,
        checks: Sequence[Check] = (),
        session: SessionId | None = None,
    ) -> StoredLifecycle:
        """Writes a state if the present one is still exactly the one that was read, and all `checks` hold.

        With `session`, the write can only be made in this session. `lifecycle` must have a token
        that was drawn for this write. Raises `MetadataConflict`, `NodeExists` or `NoSuchNode` if
        something has changed, `SessionExpired`.
        """
        assert lifecycle.token
        assert lifecycle.token != found.lifecycle.token
        await ensure_own_root(self._store, self._cluster)
        await ensure_node(self._store, self.folder)
        path, data = self.path(found.bookie), pack_lifecycle(lifecycle)
        change: Op = Create(path, data) if found.version is None else Set(path, data, found.version)
        version = 0 if found.version is None else found.version + 1

        async def was_made() -> bool:
            node = await read_surely(self._store, path)
            return node is not None and (node.stat.version, node.value) == (version, data)

        await transact_surely(self._store, (*checks, change), was_made, session=session)
        return StoredLifecycle(found.bookie, lifecycle, version)

    async def watch(self, bookie: BookieId | None = None) -> Watch:
        """Watches the node of one bookie, or all nodes."""
        if bookie is not None:
            return await self._store.watch(self.path(bookie))
        return await self._store.watch(self.folder, recursive=True)
