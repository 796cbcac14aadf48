"""Creates, reads, updates, deletes and lists the nodes with the metadata of ledgers. Updates are
made by compare-and-swap. Parents are created and removed with the nodes below them
(`on_demand_parents.py`). Every change by this process is logged here, so that the events of one
`ledger_id` show its life: created, fragments changed, recovery started, closed, deleted. Bookies
log when they fence a ledger and when they delete their copy.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Self

import structlog

from rollbook.proto.cluster.ledger_ids import LedgerIds
from rollbook.proto.cluster.on_demand_parents import create_sparse, remove_empty_parents
from rollbook.proto.cluster.uncertain_writes import (
    children_surely,
    delete_surely,
    read_surely,
    set_surely,
    transact_surely,
)
from rollbook.proto.errors import (
    BadMetadata,
    InvalidRequest,
    MetadataConflict,
    NodeExists,
    NoSuchCluster,
    NoSuchLedger,
    NoSuchNode,
)
from rollbook.proto.formats.layout import Layout
from rollbook.proto.formats.ledger_metadata import pack_ledger_metadata, unpack_ledger_metadata
from rollbook.proto.formats.paths import (
    Split,
    children_of,
    directory_path,
    highest_id,
    is_whole_id,
    ledger_path,
    splits_of,
)
from rollbook.proto.ids import LedgerId
from rollbook.proto.metadata import LedgerMetadata, LedgerState
from rollbook.proto.ports import (
    ANY_VERSION,
    Check,
    MetadataStore,
    Node,
    Op,
    SessionId,
    Set,
    Watch,
)

logger = structlog.get_logger()

_LOWEST: Final = LedgerId(0)
# The maximum number of drawn ids in a row that other clients may have taken by choosing ids themselves.
_ID_RACES_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class StoredLedger:
    metadata: LedgerMetadata
    version: int  # The version of the node; a change that is based on this metadata must name it.
    created_ms: int


class LedgerNodes:
    def __init__(self, store: MetadataStore, root: str, layout: Layout) -> None:
        self._store = store
        self._root = root
        self._layout = layout
        self._ids = LedgerIds(store, root)

    def path(self, ledger_id: LedgerId) -> str:
        return f"{self._root}/{ledger_path(self._layout, ledger_id)}"

    async def create_new(self, make: Callable[[LedgerId], LedgerMetadata]) -> StoredLedger:
        """Creates a ledger under an id that was never in use."""
        for _ in range(_ID_RACES_MAX):
            metadata = make(await self._ids.draw())
            try:
                return await self.create(metadata)
            except NodeExists:
                continue  # Another client chose this very id.
        raise MetadataConflict("all ids that were drawn are taken", path=self._root)

    async def create(self, metadata: LedgerMetadata) -> StoredLedger:
        """Creates a ledger under an id that the caller chose. Raises `NodeExists` if the id is taken."""
        assert metadata.creation_token is not None
        # The time is stored in the metadata, since restoring a backup would change that of the node.
        assert metadata.created_ms is not None
        if not self._layout.takes_new_ledgers:
            raise InvalidRequest(
                f"the {self._layout.value} layout accepts no new ledgers", path=self._root
            )
        path = self.path(metadata.ledger_id)

        def is_ours(node: Node) -> bool:
            try:
                found = unpack_ledger_metadata(metadata.ledger_id, node.value)
            except BadMetadata:
                return False
            return found.creation_token == metadata.creation_token

        data = pack_ledger_metadata(metadata)
        try:
            await create_sparse(self._store, self._root, path, data, is_ours)
        except NoSuchNode:
            raise NoSuchCluster(path=self._root) from None
        logger.info(
            "ledger_created", ledger_id=metadata.ledger_id, ensemble=metadata.fragments[0].ensemble
        )
        return StoredLedger(metadata, 0, metadata.created_ms)

    async def read(self, ledger_id: LedgerId, *, fresh: bool = False) -> StoredLedger:
        """Reads a ledger. Raises `NoSuchLedger`, but never only because a replica of the store lags."""
        path = self.path(ledger_id)
        node = await read_surely(self._store, path, fresh=fresh)
        if node is None and not fresh:
            node = await read_surely(self._store, path)
        if node is None:
            raise NoSuchLedger(ledger_id=ledger_id)
        metadata = unpack_ledger_metadata(ledger_id, node.value)
        created_ms = node.stat.created_ms if metadata.created_ms is None else metadata.created_ms
        return StoredLedger(metadata, node.stat.version, created_ms)

    async def exists(self, ledger_id: LedgerId) -> bool:
        return await read_surely(self._store, self.path(ledger_id)) is not None

    async def watch(self, ledger_id: LedgerId) -> Watch:
        """Watches a ledger. The watch reports every change from now on."""
        return await self._store.watch(self.path(ledger_id))

    async def update(self, stored: StoredLedger, metadata: LedgerMetadata) -> StoredLedger:
        """Writes new metadata. Raises `NoSuchLedger`, or `MetadataConflict` if the ledger has changed
        since it was read."""
        ledger_id = metadata.ledger_id
        assert ledger_id == stored.metadata.ledger_id
        if metadata == stored.metadata:
            return stored
        data = pack_ledger_metadata(metadata)
        try:
            version = await set_surely(self._store, self.path(ledger_id), data, stored.version)
        except NoSuchNode:
            raise NoSuchLedger(ledger_id=ledger_id) from None
        _log_change(stored.metadata, metadata)
        return StoredLedger(metadata, version, stored.created_ms)

    async def swap(
        self,
        stored: StoredLedger,
        metadata: LedgerMetadata,
        checks: Sequence[Check],
        session: SessionId,
    ) -> StoredLedger:
        """Updates a ledger in this session and only while all `checks` hold.

        Raises `SessionExpired`. Raises `MetadataConflict` or `NoSuchNode` if the ledger or a
        checked node has changed, with `op=INDEX` in its ids, where the ledger comes after the
        checks.
        """
        path = self.path(metadata.ledger_id)
        data = pack_ledger_metadata(metadata)

        async def was_made() -> bool:
            node = await read_surely(self._store, path)
            return node is not None and (node.stat.version, node.value) == (
                stored.version + 1,
                data,
            )

        ops: tuple[Op, ...] = (*checks, Set(path, data, stored.version))
        await transact_surely(self._store, ops, was_made, session=session)
        _log_change(stored.metadata, metadata)
        return StoredLedger(metadata, stored.version + 1, stored.created_ms)

    async def delete(self, ledger_id: LedgerId, version: int | None = ANY_VERSION) -> None:
        """Deletes a ledger. Raises `NoSuchLedger`, and `MetadataConflict` if it has another version."""
        path = self.path(ledger_id)
        try:
            await delete_surely(self._store, path, version)
        except NoSuchNode:
            raise NoSuchLedger(ledger_id=ledger_id) from None
        logger.info("ledger_deleted", ledger_id=ledger_id)
        await remove_empty_parents(self._store, self._root, path)

    def ids(self, start: LedgerId = _LOWEST) -> "LedgerWalk":
        """Returns the ids of all ledgers from `start` on, in ascending order."""
        return LedgerWalk(self._store, self._root, self._layout, start)


def _log_change(before: LedgerMetadata, after: LedgerMetadata) -> None:
    ledger_id = after.ledger_id
    if after.fragments != before.fragments:
        changed = [each for each in after.fragments if each not in before.fragments]
        logger.info(
            "ledger_fragments_changed",
            ledger_id=ledger_id,
            fragments=[f"{each.first_entry}: {', '.join(each.ensemble)}" for each in changed],
        )
    if after.state is before.state:
        return
    if after.state is LedgerState.CLOSED:
        logger.info(
            "ledger_closed", ledger_id=ledger_id, last_entry=after.last_entry, bytes=after.length
        )
    elif after.state is LedgerState.IN_RECOVERY:
        logger.info("ledger_recovery_started", ledger_id=ledger_id)


class LedgerWalk:
    """Walks through the ids of all ledgers. Only one directory is in memory at a time.

    A ledger that is created or deleted in the meantime may or may not be seen; a ledger that exists
    during the whole walk is seen. A walk that ends without an error was complete, since a directory
    that cannot be read raises an error.
    """

    def __init__(
        self, store: MetadataStore, root: str, layout: Layout, start: LedgerId = _LOWEST
    ) -> None:
        self._store = store
        self._root = root
        self._layout = layout
        self._start = start
        # The directories to open, each with its tree and its digits; the next one is at the end.
        self._pending: list[tuple[Split, str]] = [(s, "") for s in reversed(splits_of(layout))]
        self._found: deque[LedgerId] = deque()
        self._is_fresh = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> LedgerId:
        if not self._is_fresh:
            # After a sync, reads see at least this state on any replica.
            await read_surely(self._store, self._root)
            self._is_fresh = True
        while not self._found:
            if not self._pending:
                raise StopAsyncIteration
            await self._open(*self._pending.pop())
        return self._found.popleft()

    async def _open(self, split: Split, digits: str) -> None:
        directory = directory_path(split, digits)
        try:
            names = await children_surely(self._store, f"{self._root}/{directory}".rstrip("/"))
        except NoSuchNode:
            if not directory:
                raise NoSuchCluster(path=self._root) from None
            return  # The last ledger of this directory was deleted after its parent was listed.
        children = children_of(self._layout, split, digits, names)
        if children and is_whole_id(split, children[0]):
            self._found.extend(id_ for id_ in map(_as_id, children) if id_ >= self._start)
        else:
            deeper = [each for each in children if highest_id(split, each) >= self._start]
            self._pending += [(split, each) for each in reversed(deeper)]


def _as_id(digits: str) -> LedgerId:
    return LedgerId(int(digits))
