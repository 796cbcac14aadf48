"""Stores in our own tree failures of repairs, and bad copies that checks found.

<own root>/failures/hhhh/hhhh/hhhh/hhhh/urLdddd…   `core/repair_failures.py`
<own root>/bad/hhhh/hhhh/hhhh/hhhh/urLdddd…        `core/ledger_checks.py`: entries that a check found to be bad
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Final, Generic, TypeVar

import structlog

from rollbook.proto.cluster.cluster_root import Cluster, ensure_own_root
from rollbook.proto.cluster.on_demand_parents import create_sparse, remove_empty_parents
from rollbook.proto.cluster.uncertain_writes import (
    delete_surely,
    ensure_node,
    read_surely,
    set_surely,
)
from rollbook.proto.cluster.underreplication_marks import MarkTree
from rollbook.proto.errors import (
    BadMetadata,
    MetadataConflict,
    NodeExists,
    NoSuchNode,
    UnsupportedVersion,
)
from rollbook.proto.ids import BookieId, EntryId, LedgerId
from rollbook.proto.ports import ANY_VERSION, MetadataStore, Node
from rollbook.recovery.core.entry_spans import EntrySpan
from rollbook.recovery.core.ledger_checks import merged_bad, pack_bad, unpack_bad
from rollbook.recovery.core.repair_failures import Failure, pack_failure, unpack_failure

logger = structlog.get_logger()

FAILURES: Final = "failures"
BAD: Final = "bad"  # The folder with the bad copies that checks found.
_RACES_MAX: Final = 20
T = TypeVar("T")


class _Notes(Generic[T]):
    """A tree with one node for each ledger, shaped like the tree of marks."""

    def __init__(
        self,
        store: MetadataStore,
        cluster: Cluster,
        folder: str,
        pack: Callable[[T], bytes],
        unpack: Callable[[bytes], T],
    ) -> None:
        self._store = store
        self._cluster = cluster
        self._pack = pack
        self._unpack = unpack
        self._tree = MarkTree(store, f"{cluster.own_root}/{folder}")

    async def prepare(self) -> None:
        await ensure_own_root(self._store, self._cluster)
        await ensure_node(self._store, self._tree.folder)

    async def read(self, ledger_id: LedgerId) -> T | None:
        """Return the ledger's value, or None if it has no node. Raises `BadMetadata`, `UnsupportedVersion`."""
        node = await read_surely(self._store, self._tree.path(ledger_id))
        return self._unpack(node.value) if node else None

    async def write(self, ledger_id: LedgerId, note: T) -> None:
        await self._change(ledger_id, lambda _: self._pack(note))

    async def _change(self, ledger_id: LedgerId, change: Callable[[bytes | None], bytes]) -> None:
        path = self._tree.path(ledger_id)
        for _ in range(_RACES_MAX):
            node = await read_surely(self._store, path)
            try:
                await self._put(path, node, change(node.value if node else None))
                return
            except (NodeExists, NoSuchNode, MetadataConflict):
                continue
        raise MetadataConflict("other processes keep writing it", path=path)

    async def _put(self, path: str, node: Node | None, data: bytes) -> None:
        if node is None:
            await create_sparse(
                self._store, self._tree.folder, path, data, lambda found: found.value == data
            )
        elif node.value != data:
            await set_surely(self._store, path, data, node.stat.version)

    async def clear(self, ledger_id: LedgerId, version: int | None = ANY_VERSION) -> None:
        """Remove the ledger's node. If a version is given, the node is removed only if it still has that
        version.
        """
        path = self._tree.path(ledger_id)
        try:
            await delete_surely(self._store, path, version)
        except (NoSuchNode, MetadataConflict):
            return
        await remove_empty_parents(self._store, self._tree.folder, path)

    def ids(self) -> AsyncIterator[LedgerId]:
        return self._tree.ids()


class Failures(_Notes[Failure]):
    """Ledgers whose last repair failed. Only the holder of a ledger's lock writes its failure."""

    def __init__(self, store: MetadataStore, cluster: Cluster) -> None:
        super().__init__(store, cluster, FAILURES, pack_failure, unpack_failure)


class BadCopies(_Notes[dict[BookieId, tuple[EntrySpan, ...]]]):
    """Bad entries that checks found in marked ledgers. Bad entries are recorded here because entry lists show
    them as present. The auditor records them before it marks the ledger. A worker that has written the
    entries again removes the node in the version that it read.
    """

    def __init__(self, store: MetadataStore, cluster: Cluster) -> None:
        super().__init__(store, cluster, BAD, pack_bad, unpack_bad)

    async def add(self, ledger_id: LedgerId, found: Mapping[BookieId, Sequence[EntryId]]) -> None:
        def change(data: bytes | None) -> bytes:
            try:
                known = unpack_bad(data) if data is not None else {}
            except BadMetadata:
                known = {}
            return pack_bad(merged_bad(known, found))

        await self._change(ledger_id, change)

    async def read_stored(
        self, ledger_id: LedgerId
    ) -> tuple[dict[BookieId, tuple[EntrySpan, ...]], int] | None:
        """Return the bad ranges, and the version of the node. An unreadable node counts as empty: the next
        check finds the bad copies again.
        """
        node = await read_surely(self._store, self._tree.path(ledger_id))
        if node is None:
            return None
        try:
            return unpack_bad(node.value), node.stat.version
        except (BadMetadata, UnsupportedVersion) as error:
            logger.warning("bad_copies_unreadable", ledger_id=ledger_id, reason=error.message)
            return None
