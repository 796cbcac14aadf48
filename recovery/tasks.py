"""Work in our own tree: ledgers to copy away from draining bookies, and failures of repairs.

    <own root>/drain/hhhh/hhhh/hhhh/hhhh/urLdddd…      a mark: the draining bookies that the ledger names
    <own root>/failures/hhhh/hhhh/hhhh/hhhh/urLdddd…   `core/failures.py`

Both have the form of BookKeeper's marks. A worker treats a drain task as it treats a mark, under the
same lock (`Marks.take`): the bookies that it names are to be replaced, though they are registered. The
steward publishes them, a bounded number at a time.
"""

from collections.abc import AsyncIterator
from typing import Final

from rollbook.proto.cluster.cluster import Cluster, ensure_own_root
from rollbook.proto.cluster.lost_replies import delete_surely, ensure_node, read_surely, set_surely
from rollbook.proto.cluster.marks import MarkTree
from rollbook.proto.cluster.sparse_nodes import create_sparse, remove_empty_parents
from rollbook.proto.errors import MetadataConflict, NodeExists, NoSuchNode
from rollbook.proto.ids import LedgerId
from rollbook.proto.ports import MetadataStore
from rollbook.recovery.core.failures import Failure, pack_failure, unpack_failure

DRAIN: Final = "drain"
FAILURES: Final = "failures"
STEWARD: Final = "steward"  # Where stewards are elected.
_RACES_MAX: Final = 20


class DrainTasks(MarkTree):
    def __init__(self, store: MetadataStore, cluster: Cluster) -> None:
        super().__init__(store, f"{cluster.own_root}/{DRAIN}")
        self._cluster = cluster

    async def prepare(self) -> None:
        await ensure_own_root(self._store, self._cluster)
        await ensure_node(self._store, self.folder)


class Failures:
    """Written by the holder of a ledger's lock alone."""

    def __init__(self, store: MetadataStore, cluster: Cluster) -> None:
        self._store = store
        self._cluster = cluster
        self._tree = MarkTree(store, f"{cluster.own_root}/{FAILURES}")

    async def prepare(self) -> None:
        await ensure_own_root(self._store, self._cluster)
        await ensure_node(self._store, self._tree.folder)

    async def read(self, ledger_id: LedgerId) -> Failure | None:
        """Raises `BadMetadata`, `UnsupportedVersion`."""
        node = await read_surely(self._store, self._tree.path(ledger_id))
        return unpack_failure(node.value) if node else None

    async def write(self, ledger_id: LedgerId, failure: Failure) -> None:
        path, data = self._tree.path(ledger_id), pack_failure(failure)
        for _ in range(_RACES_MAX):
            node = await read_surely(self._store, path)
            try:
                if node is None:
                    await create_sparse(
                        self._store, self._tree.folder, path, data, lambda node: node.value == data
                    )
                else:
                    await set_surely(self._store, path, data, node.stat.version)
                return
            except (NodeExists, NoSuchNode, MetadataConflict):
                continue
        raise MetadataConflict("it is written again and again", path=path)

    async def clear(self, ledger_id: LedgerId) -> None:
        path = self._tree.path(ledger_id)
        try:
            await delete_surely(self._store, path)
        except NoSuchNode:
            return
        await remove_empty_parents(self._store, self._tree.folder, path)

    def ids(self) -> AsyncIterator[LedgerId]:
        """Ledgers whose last repair failed."""
        return self._tree.ids()
