"""Stores in our own tree the ledgers of bookies that drain or may not be whole, failures of repairs, and a
person's requests to the auditor.

    <own root>/drain/hhhh/hhhh/hhhh/hhhh/urLdddd…      a drain task, in the form of a mark
    <own root>/failures/hhhh/hhhh/hhhh/hhhh/urLdddd…   `core/repair_failures.py`
    <own root>/bad/hhhh/hhhh/hhhh/hhhh/urLdddd…        `core/ledger_checks.py`: entries that a check found to be bad

Drain tasks have the form of BookKeeper's marks. A worker handles a drain task like a mark, under the same
lock (`Marks.take`). If the task names a draining bookie, that bookie is replaced although it is registered.
Every other bookie of the task is checked: entries missing from its list are restored there. The steward
publishes a bounded number of tasks at a time.
"""

import json
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

import structlog

from rollbook.proto.cluster.cluster_root import Cluster, ensure_own_root
from rollbook.proto.cluster.on_demand_parents import create_sparse, remove_empty_parents
from rollbook.proto.cluster.uncertain_writes import (
    delete_surely,
    ensure_node,
    put_surely,
    read_surely,
    set_surely,
)
from rollbook.proto.cluster.underreplication_marks import Checked, Marks, MarkTree
from rollbook.proto.errors import (
    BadMetadata,
    InvalidRequest,
    MetadataConflict,
    NodeExists,
    NoSuchNode,
    UnsupportedVersion,
)
from rollbook.proto.ids import BookieId, EntryId, LedgerId, parse_bookie_id
from rollbook.proto.ports import ANY_VERSION, MetadataStore, Node, Watch
from rollbook.recovery.core.entries_to_restore import EntrySpan
from rollbook.recovery.core.ledger_checks import CheckKind, merged_bad, pack_bad, unpack_bad
from rollbook.recovery.core.repair_failures import Failure, pack_failure, unpack_failure

logger = structlog.get_logger()

DRAIN: Final = "drain"
AUDIT: Final = "audit"
FAILURES: Final = "failures"
BAD: Final = "bad"  # The folder with the bad copies that checks found.
CHECKED: Final = "checked"
RATE: Final = "rate"
STEWARD: Final = "steward"  # The folder in which stewards are elected.
_RACES_MAX: Final = 20
_RATE_DIGITS_MAX: Final = 18
T = TypeVar("T")


class DrainTasks(MarkTree):
    def __init__(self, store: MetadataStore, cluster: Cluster) -> None:
        super().__init__(store, f"{cluster.own_root}/{DRAIN}")
        self._cluster = cluster

    async def prepare(self) -> None:
        await ensure_own_root(self._store, self._cluster)
        await ensure_node(self._store, self.folder)


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


@dataclass(frozen=True, slots=True)
class AuditOrder:
    approved: frozenset[BookieId] = frozenset()  # Bookies that may all be marked as lost together.
    checks_asked_ms: int | None = None  # The time when a person last requested all checks.


class AuditOrders:
    """A person's requests to the auditor for which BookKeeper's tree has no node.

    <own root>/audit    JSON `{"approved": ["b1:3181"], "checks_asked_ms": 17…, "token": "4e0c…", "version": 1}`
    """

    def __init__(self, store: MetadataStore, cluster: Cluster) -> None:
        self._store = store
        self._cluster = cluster
        self.path = f"{cluster.own_root}/{AUDIT}"

    async def ask_for_checks(
        self, now_ms: int, token: str, *, approved: Collection[BookieId] | None = None
    ) -> None:
        """Request all kinds of checks. `approved` has the bookies whose loss is approved, and replaces
        earlier approvals.
        """
        order = replace(await self.read(), checks_asked_ms=now_ms)
        if approved is not None:
            order = replace(order, approved=frozenset(approved))
        await ensure_own_root(self._store, self._cluster)
        fields: dict[str, object] = {
            "version": 1,
            "approved": sorted(order.approved),
            "checks_asked_ms": order.checks_asked_ms,
            "token": token,
        }
        data = json.dumps(fields, sort_keys=True).encode("ascii")
        await put_surely(self._store, self.path, data)

    async def read(self) -> AuditOrder:
        """Return the present request. An unreadable request counts as none made."""
        node = await read_surely(self._store, self.path)
        if node is None:
            return AuditOrder()
        try:
            fields = json.loads(node.value)
            approved = frozenset(map(parse_bookie_id, fields["approved"]))
            asked_ms = fields.get("checks_asked_ms")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, InvalidRequest):
            logger.warning("audit_order_unreadable", path=self.path)
            return AuditOrder()
        return AuditOrder(approved, asked_ms if type(asked_ms) is int else None)

    async def watch(self) -> Watch:
        return await self._store.watch(self.path)


class RateOrder:
    """The copy rate that a person has set for each worker. Running workers adopt a new rate at once.

    <own root>/rate    bytes a second in ASCII digits; 0 is unlimited
    """

    def __init__(self, store: MetadataStore, cluster: Cluster) -> None:
        self._store = store
        self._cluster = cluster
        self.path = f"{cluster.own_root}/{RATE}"

    async def write(self, bytes_per_s: int) -> None:
        await ensure_own_root(self._store, self._cluster)
        await put_surely(self._store, self.path, str(bytes_per_s).encode("ascii"))

    async def read(self) -> int | None:
        """Return the rate, or None if it is not set or cannot be read."""
        node = await read_surely(self._store, self.path)
        if node is None:
            return None
        if len(node.value) > _RATE_DIGITS_MAX or not node.value.isdigit():
            logger.warning("rate_unreadable", path=self.path)
            return None
        return int(node.value)

    async def watch(self) -> Watch:
        return await self._store.watch(self.path)


class CheckTimes:
    """The time when each check was last completed. The time is stored in BookKeeper's node if BookKeeper has
    this kind of check.

    <own root>/checked/bookies    JSON `{"completed_ms": 17…, "version": 1}`
    """

    def __init__(self, store: MetadataStore, cluster: Cluster, marks: Marks) -> None:
        self._store = store
        self._cluster = cluster
        self._marks = marks
        self._folder = f"{cluster.own_root}/{CHECKED}"

    async def completed_ms(self, kind: CheckKind) -> int | None:
        """Return the time when the check was last completed, or None if it never was or the time is
        unreadable.
        """
        if (check := _BOOKKEEPERS.get(kind)) is not None:
            return await self._marks.checked_at_ms(check)
        node = await read_surely(self._store, f"{self._folder}/{kind.value}")
        try:
            completed_ms = json.loads(node.value)["completed_ms"] if node else None
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        return completed_ms if type(completed_ms) is int else None

    async def write(self, kind: CheckKind, at_ms: int) -> None:
        if (check := _BOOKKEEPERS.get(kind)) is not None:
            await self._marks.set_checked_at(check, at_ms)
            return
        await ensure_own_root(self._store, self._cluster)
        await ensure_node(self._store, self._folder)
        data = json.dumps({"completed_ms": at_ms, "version": 1}, sort_keys=True).encode("ascii")
        await put_surely(self._store, f"{self._folder}/{kind.value}", data)


_BOOKKEEPERS: Final = {
    CheckKind.PLACEMENT: Checked.PLACEMENT,
    CheckKind.COPIES: Checked.REPLICAS,
    CheckKind.LEDGERS: Checked.ALL_LEDGERS,
}
