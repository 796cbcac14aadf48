"""The tree that Rollbook's and Java's auditors and replication workers share
(`formats/replication.py` has its layout).

- A mark says that copies of a ledger are missing on these bookies; a mark without bookies says that
  the ledger's copies are badly placed. Marking a ledger again adds what is new (MK1).
- Only the holder of a ledger's lock removes its mark. It removes only the version that it read
  before it began, and only in the session that holds the lock, so bookies that were added since
  then stay (MK2).
- A lock belongs to the session that created it. Every change that is safe only under the lock has
  `Lock.check` in its transaction, and can only be made in `Lock.session` (MK3).
- A node that cannot be read raises `BadMetadata`. Callers log the error and go on with the next node (MK4).

Drain tasks have the form of marks, but are in our own tree (`MarkTree`): Java's worker would
consider the copies of a draining bookie sound, and delete the marks.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from rollbook.proto.cluster.on_demand_parents import create_sparse, remove_empty_parents
from rollbook.proto.cluster.uncertain_writes import (
    children_surely,
    create_surely,
    delete_surely,
    ensure_node,
    ensure_path,
    put_surely,
    read_surely,
    set_surely,
    transact_surely,
)
from rollbook.proto.errors import (
    BadMetadata,
    ConnectionLost,
    MetadataConflict,
    MetadataUnavailable,
    NodeExists,
    NoSuchNode,
    SessionExpired,
)
from rollbook.proto.formats.replication import (
    CHECKED_ALL,
    CHECKED_PLACEMENT,
    CHECKED_REPLICAS,
    DISABLED,
    ELECTION,
    LAYOUT,
    LOCKS,
    LOST_BOOKIE_DELAY,
    MARKS,
    ROOT,
    UnderreplicatedMark,
    check_replication_layout,
    ledger_of_mark,
    mark_name,
    mark_path,
    pack_checked_at,
    pack_lock,
    pack_mark,
    pack_replication_layout,
    pack_seconds,
    unpack_checked_at,
    unpack_lock,
    unpack_mark,
    unpack_seconds,
)
from rollbook.proto.ids import BookieId, LedgerId
from rollbook.proto.ports import (
    NO_SESSION,
    Check,
    Create,
    CreateMode,
    Delete,
    MetadataStore,
    Op,
    SessionId,
    Watch,
)

# The maximum number of races that may be lost to other processes that mark the same ledger.
_RACES_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class StoredMark:
    ledger_id: LedgerId
    mark: UnderreplicatedMark
    version: int


@dataclass(frozen=True, slots=True)
class Lock:
    ledger_id: LedgerId
    path: str
    session: SessionId

    @property
    def check(self) -> Check:
        """An operation for transactions. In this session it succeeds only while the lock is held."""
        return Check(self.path)


class Checked(Enum):
    """The checks for which BookKeeper stores the time of completion."""

    ALL_LEDGERS = CHECKED_ALL
    PLACEMENT = CHECKED_PLACEMENT
    REPLICAS = CHECKED_REPLICAS


class MarkTree:
    """The marks below one existing folder."""

    def __init__(self, store: MetadataStore, folder: str) -> None:
        self._store = store
        self.folder = folder

    def path(self, ledger_id: LedgerId) -> str:
        return f"{self.folder}/{mark_path(ledger_id)}"

    async def mark(self, ledger_id: LedgerId, missing: Iterable[BookieId], now_ms: int) -> bool:
        """Marks a ledger, and returns whether anything was new (MK1). Raises `BadMetadata` if its
        mark is unreadable.
        """
        path, missing = self.path(ledger_id), tuple(missing)
        new = pack_mark(
            UnderreplicatedMark(()).with_missing(missing, now_ms)
            if missing
            else UnderreplicatedMark((), now_ms)
        )
        for _ in range(_RACES_MAX):
            try:
                await self._create(path, new)
                return True
            except NodeExists:
                found = await self.read(ledger_id)
            if found is None:
                continue
            changed = found.mark.with_missing(missing, now_ms)
            if changed == found.mark:
                return False
            try:
                await set_surely(self._store, path, pack_mark(changed), found.version)
                return True
            except (MetadataConflict, NoSuchNode):
                continue
        raise MetadataConflict("other processes keep changing the mark", path=path)

    async def mark_new(self, missing: Mapping[LedgerId, tuple[BookieId, ...]], now_ms: int) -> bool:
        """Marks several ledgers in one transaction. None of them may be marked yet.

        Returns False if one of them is marked, if a parent folder is missing, or if the reply was
        lost. The caller then calls `mark` for each ledger.
        """
        packed = {
            each: pack_mark(UnderreplicatedMark(each, now_ms))
            for each in dict.fromkeys(missing.values())
        }
        ops: list[Op] = []
        for ledger_id, bookies in missing.items():
            path = self.path(ledger_id)
            ops += (Create(path.rpartition("/")[0]), Create(path, packed[bookies]))
        try:
            await self._store.transaction(ops)
        except (NodeExists, NoSuchNode, ConnectionLost, SessionExpired):
            return False
        return True

    async def _create(self, path: str, new: bytes) -> None:
        """Creates a mark and its folder in one round trip, since a mark usually has a folder of its own."""

        async def was_made() -> bool:
            node = await read_surely(self._store, path)
            return node is not None and node.value == new

        ops = Create(path.rpartition("/")[0]), Create(path, new)
        try:
            await transact_surely(self._store, ops, was_made)
        except (NodeExists, NoSuchNode):  # The folder exists already, or its parents are missing.
            await create_sparse(self._store, self.folder, path, new, lambda node: node.value == new)

    async def read(self, ledger_id: LedgerId) -> StoredMark | None:
        """Returns a ledger's mark, or None if the ledger is not marked. Raises `BadMetadata` (MK4)."""
        path = self.path(ledger_id)
        node = await read_surely(self._store, path)
        if node is None:
            return None
        try:
            return StoredMark(ledger_id, unpack_mark(node.value), node.stat.version)
        except BadMetadata as error:
            raise BadMetadata(error.message, path=path) from None

    async def unmark(self, stored: StoredMark, lock: Lock) -> bool:
        """Removes a mark, and returns whether it is gone. It stays if the ledger was marked again (MK2).

        Raises `SessionExpired` or `NoSuchNode` if the lock is no longer held.
        """
        assert lock.ledger_id == stored.ledger_id
        path = self.path(stored.ledger_id)

        async def was_made() -> bool:
            return await read_surely(self._store, path) is None

        try:
            await transact_surely(
                self._store,
                (lock.check, Delete(path, stored.version)),
                was_made,
                session=lock.session,
            )
        except MetadataConflict:
            return False
        except NoSuchNode as error:
            if error.ids.get("op") == 0:
                raise
            return True  # A person, or another client without the lock, removed the mark.
        await remove_empty_parents(self._store, self.folder, path)
        return True

    async def ids(self) -> AsyncIterator[LedgerId]:
        """Returns all marked ledgers in the order of their ids. A ledger that is marked in the
        meantime may be missed.
        """
        # After a sync, reads see at least this state on any replica.
        await read_surely(self._store, self.folder)
        pending = [(0, self.folder)]
        while pending:
            depth, folder = pending.pop()
            if depth < _DEPTH:
                names = await self._names_in(folder)
                pending += [(depth + 1, f"{folder}/{name}") for name in reversed(names)]
                continue
            leaves = [folder]  # A folder usually has one mark, so several folders are read at once.
            while pending and pending[-1][0] == _DEPTH and len(leaves) < _LEAVES_AT_ONCE:
                leaves.append(pending.pop()[1])
            found = await asyncio.gather(*map(self._names_in, leaves), return_exceptions=True)
            for leaf, names_in_leaf in zip(leaves, found, strict=True):
                if isinstance(names_in_leaf, BaseException):
                    raise names_in_leaf
                for name in names_in_leaf:
                    ledger_id = ledger_of_mark(name)
                    if ledger_id is not None and self.path(ledger_id) == f"{leaf}/{name}":
                        yield ledger_id

    async def _names_in(self, folder: str) -> list[str]:
        try:
            return await children_surely(self._store, folder)
        except NoSuchNode:
            return []  # The last mark of this folder was removed after its parent was listed.

    def ledger_of(self, path: str) -> LedgerId | None:
        """Returns the ledger whose mark is at this path, which is from an event of `watch`, or None
        if the path is a folder.
        """
        ledger_id = ledger_of_mark(path.rpartition("/")[2])
        return ledger_id if ledger_id is not None and self.path(ledger_id) == path else None

    async def watch(self) -> Watch:
        return await self._store.watch(self.folder, recursive=True)


_DEPTH: Final = 4  # The number of folders above a mark.
_LEAVES_AT_ONCE: Final = 32


class Marks(MarkTree):
    """BookKeeper's own marks, and the locks for them. Each session has one such object, which knows
    all locks that the session holds.
    """

    def __init__(self, store: MetadataStore, root: str) -> None:
        super().__init__(store, f"{root}/{ROOT}/{MARKS}")
        self._root = root
        self._top = f"{root}/{ROOT}"
        self._held: dict[LedgerId, Lock] = {}
        # The locks that the session may hold and no caller uses.
        self._strays: dict[LedgerId, Lock] = {}

    async def prepare(self) -> None:
        """Creates the folders. Raises `BadMetadata` if the marks of this cluster have another format."""
        await ensure_node(self._store, self._top)
        path, layout = f"{self._top}/{LAYOUT}", pack_replication_layout()
        await ensure_node(self._store, path, layout)
        node = await read_surely(self._store, path)
        if node is not None:
            check_replication_layout(node.value)
        for name in (MARKS, LOCKS, ELECTION):
            await ensure_node(self._store, f"{self._top}/{name}")

    @property
    def election_folder(self) -> str:
        return f"{self._top}/{ELECTION}"

    # --- Locks --------------------------------------------------------------------------------

    async def take(self, ledger_id: LedgerId, holder: str) -> Lock | None:
        """Takes a ledger's lock, or returns None if another caller holds it, perhaps in this session.

        `holder` is only shown to people. Raises `SessionExpired`, `Unavailable`. If the call is
        cancelled or its outcome is unknown, the session may hold the lock: the next `take` for this
        ledger then returns it, or `release_strays` releases it.
        """
        session = self._store.session
        if session == NO_SESSION:
            raise MetadataUnavailable(ledger_id=ledger_id)
        await self.release_strays(but=ledger_id)
        held = self._held.get(ledger_id)
        if held is not None and held.session == session:
            return None
        lock = Lock(ledger_id, f"{self._top}/{LOCKS}/{mark_name(ledger_id)}", session)
        self._held[ledger_id] = lock
        try:
            await create_surely(
                self._store,
                lock.path,
                pack_lock(holder),
                lambda node: node.stat.owner == session,
                CreateMode.EPHEMERAL,
                # Unless the outcome of an earlier call is unknown, an existing lock of this session
                # belongs to another caller.
                only_if_lost=ledger_id not in self._strays,
                session=session,
            )
        except NodeExists:
            self._forget(lock)
            self._strays.pop(ledger_id, None)
            return None
        except BaseException:
            self._forget(lock)
            self._strays[ledger_id] = lock
            raise
        self._strays.pop(ledger_id, None)
        return lock

    async def release(self, lock: Lock) -> None:
        """Releases a lock. No work that was begun under the lock may still be running.

        If it raises `Unavailable` or `OutcomeUnknown`, a later `take` or `release_strays` tries again.
        """
        self._strays[lock.ledger_id] = lock
        try:
            await delete_surely(
                self._store,
                lock.path,
                is_ours=lambda node: node.stat.owner == lock.session,
                session=lock.session,
            )
        except (NoSuchNode, SessionExpired):
            pass  # The lock ended with its session.
        finally:
            self._forget(lock)
        self._strays.pop(lock.ledger_id, None)

    async def release_strays(self, but: LedgerId | None = None) -> None:
        """Releases the locks that no caller uses and that may still exist.

        While the session has such a lock, no other process works on its ledger (MK5).
        """
        for ledger_id, lock in list(self._strays.items()):
            if ledger_id != but and ledger_id not in self._held:
                # This prevents callers from taking the lock before it is released.
                self._held[ledger_id] = lock
                await self.release(lock)

    def _forget(self, lock: Lock) -> None:
        if self._held.get(lock.ledger_id) is lock:
            del self._held[lock.ledger_id]

    async def locked(self) -> set[LedgerId]:
        """Returns the ids of the locked ledgers."""
        try:
            names = await children_surely(self._store, f"{self._top}/{LOCKS}")
        except NoSuchNode:
            return set()
        return {ledger_id for name in names if (ledger_id := ledger_of_mark(name)) is not None}

    async def holder(self, ledger_id: LedgerId) -> str | None:
        """Returns the `holder` of the ledger's lock, or None if the ledger is not locked."""
        path = f"{self._top}/{LOCKS}/{mark_name(ledger_id)}"
        node = await read_surely(self._store, path)
        try:
            return unpack_lock(node.value) if node else None
        except BadMetadata:
            return "?"

    # --- The switch ---------------------------------------------------------------------------

    async def is_enabled(self) -> bool:
        return await read_surely(self._store, self._switch) is None

    async def disable(self) -> None:
        """Disables repair: no repair begins from now on. The call is idempotent."""
        await ensure_path(self._store, self._switch, self._root)

    async def enable(self) -> None:
        try:
            await delete_surely(self._store, self._switch)
        except NoSuchNode:
            pass

    async def watch_switch(self) -> Watch:
        return await self._store.watch(self._switch)

    @property
    def _switch(self) -> str:
        return f"{self._top}/{DISABLED}"

    # --- Settings and times -------------------------------------------------------------------

    async def delay(self) -> tuple[int, int] | None:
        """Returns the delay in seconds and how often it was written, or None if it is not set.
        Raises `BadMetadata`.
        """
        node = await read_surely(self._store, self._delay)
        return (unpack_seconds(node.value), node.stat.version) if node else None

    async def set_delay(self, seconds: int) -> None:
        """Sets the delay. If it is written again unchanged, the auditor audits at once."""
        await self._put(self._delay, pack_seconds(seconds))

    async def watch_delay(self) -> Watch:
        return await self._store.watch(self._delay)

    @property
    def _delay(self) -> str:
        return f"{self._top}/{LOST_BOOKIE_DELAY}"

    async def checked_at_ms(self, check: Checked) -> int | None:
        """Returns when the check was last completed, or None if it never was or the stored time is invalid."""
        node = await read_surely(self._store, f"{self._top}/{check.value}")
        try:
            return unpack_checked_at(node.value) if node else None
        except BadMetadata:
            return None

    async def set_checked_at(self, check: Checked, at_ms: int) -> None:
        await self._put(f"{self._top}/{check.value}", pack_checked_at(at_ms))

    async def _put(self, path: str, value: bytes) -> None:
        await ensure_path(self._store, self._top, self._root)
        await put_surely(self._store, path, value)
