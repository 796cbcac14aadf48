"""Work in our own tree: ledgers of bookies that drain or may not be whole, failures of repairs, and
what a person asks of the auditor.

    <own root>/drain/hhhh/hhhh/hhhh/hhhh/urLdddd…      a mark: those of its bookies
    <own root>/failures/hhhh/hhhh/hhhh/hhhh/urLdddd…   `core/failures.py`

Both have the form of BookKeeper's marks. A worker treats a drain task as it treats a mark, under the
same lock (`Marks.take`). Of the bookies that it names, one that is draining is to be replaced, though it
is registered; any other is to be looked at: what its entry list lacks is restored there. The steward
publishes the tasks, a bounded number at a time.
"""

import json
from collections.abc import AsyncIterator, Collection
from typing import Final

import structlog

from rollbook.proto.cluster.cluster import Cluster, ensure_own_root
from rollbook.proto.cluster.lost_replies import (
    delete_surely,
    ensure_node,
    put_surely,
    read_surely,
    set_surely,
)
from rollbook.proto.cluster.marks import MarkTree
from rollbook.proto.cluster.sparse_nodes import create_sparse, remove_empty_parents
from rollbook.proto.errors import InvalidRequest, MetadataConflict, NodeExists, NoSuchNode
from rollbook.proto.ids import BookieId, LedgerId, parse_bookie_id
from rollbook.proto.ports import MetadataStore, Watch
from rollbook.recovery.core.failures import Failure, pack_failure, unpack_failure

logger = structlog.get_logger()

DRAIN: Final = "drain"
AUDIT: Final = "audit"
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


class AuditOrders:
    """What a person asks of the auditor that BookKeeper's tree has no place for.

    <own root>/audit    JSON `{"approved": ["b1:3181"], "token": "4e0c…", "version": 1}`
    """

    def __init__(self, store: MetadataStore, cluster: Cluster) -> None:
        self._store = store
        self._cluster = cluster
        self.path = f"{cluster.own_root}/{AUDIT}"

    async def approve(self, bookies: Collection[BookieId], token: str) -> None:
        """These may be lost all at once; replaces what was approved before."""
        await ensure_own_root(self._store, self._cluster)
        fields = {"version": 1, "approved": sorted(bookies), "token": token}
        data = json.dumps(fields, sort_keys=True).encode("ascii")
        await put_surely(self._store, self.path, data)

    async def approved(self) -> frozenset[BookieId]:
        """What cannot be read approves nothing."""
        node = await read_surely(self._store, self.path)
        if node is None:
            return frozenset()
        try:
            fields = json.loads(node.value)
            return frozenset(map(parse_bookie_id, fields["approved"]))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, InvalidRequest):
            logger.warning("audit_order_unreadable", path=self.path)
            return frozenset()

    async def watch(self) -> Watch:
        return await self._store.watch(self.path)
