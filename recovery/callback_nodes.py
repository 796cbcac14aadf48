"""Stores callbacks, their queues of events, and the last queued event in metadata.

<own root>/callbacks/<id>              one callback, JSON, with its secret
<own root>/callback-queues/<id>        the last attempts, JSON
<own root>/callback-queues/<id>/<n>    an event to send to it, JSON; `t…`: a test that a person requested
<own root>/callback-cursor             the last event that was queued
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import structlog

from rollbook.proto.cluster.cluster_root import Cluster, ensure_own_root
from rollbook.proto.cluster.uncertain_writes import (
    children_surely,
    delete_surely,
    ensure_node,
    read_surely,
    transact_surely,
)
from rollbook.proto.errors import (
    BadMetadata,
    MetadataConflict,
    Missing,
    NodeExists,
    NoSuchNode,
    Overloaded,
    UnsupportedVersion,
)
from rollbook.proto.ports import Create, MetadataStore, Op, Set
from rollbook.recovery.core.callback_queue import (
    CALLBACKS_MAX,
    EventCursor,
    PendingDelivery,
    RegisteredCallback,
    is_callback_id,
    pack_callback,
    pack_cursor,
    pack_pending,
    unpack_callback,
    unpack_cursor,
    unpack_rows,
)
from rollbook.recovery.core.event_derivation import Event, ObservedState

logger = structlog.get_logger()

Rows = list[dict[str, Any]]

CALLBACKS: Final = "callbacks"
QUEUES: Final = "callback-queues"
CURSOR: Final = "callback-cursor"
TEST_PREFIX: Final = "t"  # The prefix of the names of test events.
_NUMBER_BITS: Final = 20
_RACES_MAX: Final = 20
UNREADABLE: Final = (BadMetadata, UnsupportedVersion)

Seen = Mapping[str, Sequence[ObservedState]]
"""The states that this process has seen: `ClusterEventLog.tracks`."""


def cursor_at(tracks: Seen, now_ms: int) -> EventCursor:
    """Return a first cursor: the present state counts as sent, and its event numbers are above all earlier
    ones.
    """
    fingerprints = {subject: states[-1].fingerprint for subject, states in tracks.items()}
    return EventCursor(fingerprints, now_ms << _NUMBER_BITS)


class CallbackNodes:
    def __init__(self, store: MetadataStore, cluster: Cluster) -> None:
        self._store = store
        self._cluster = cluster
        self.folder = f"{cluster.own_root}/{CALLBACKS}"
        self.queues = f"{cluster.own_root}/{QUEUES}"
        self.cursor = f"{cluster.own_root}/{CURSOR}"

    async def prepare(self) -> None:
        await ensure_own_root(self._store, self._cluster)
        await ensure_node(self._store, self.folder)
        await ensure_node(self._store, self.queues)

    def path(self, callback_id: str) -> str:
        return f"{self.folder}/{callback_id}"

    def queue(self, callback_id: str) -> str:
        return f"{self.queues}/{callback_id}"

    async def list(self) -> list[RegisteredCallback]:
        """Return all callbacks, the oldest first. An unreadable callback is logged and left out."""
        try:
            names = await children_surely(self._store, self.folder)
        except NoSuchNode:
            return []
        found = []
        for name in filter(is_callback_id, names):
            with contextlib.suppress(Missing):
                try:
                    found.append(await self.read(name))
                except UNREADABLE as error:
                    logger.warning("callback_unreadable", callback=name, reason=error.message)
        return sorted(found, key=lambda each: (each.created_ms, each.id))

    async def read(self, callback_id: str) -> RegisteredCallback:
        """Return the callback. Raises `Missing`, `BadMetadata`, `UnsupportedVersion`."""
        is_id = is_callback_id(callback_id)
        node = await read_surely(self._store, self.path(callback_id)) if is_id else None
        if node is None:
            raise Missing(f"there is no callback {callback_id[:80]}", callback=callback_id[:80])
        return unpack_callback(node.value)

    async def create(self, callback: RegisteredCallback, tracks: Seen) -> None:
        """Create a callback that is sent the events after `tracks`. Raises `Overloaded` if the maximum number
        of callbacks exists already.
        """
        await self.prepare()
        data = pack_callback(callback)

        async def was_made() -> bool:
            node = await read_surely(self._store, self.path(callback.id))
            return node is not None and node.value == data

        for _ in range(_RACES_MAX):
            names = await children_surely(self._store, self.folder)
            if len(names) >= CALLBACKS_MAX:
                raise Overloaded(
                    f"there are {len(names)} callbacks; at most {CALLBACKS_MAX} are allowed",
                    next_step="delete one first: DELETE /api/v1/callbacks/{id}",
                )
            ops: list[Op] = [
                Create(self.path(callback.id), data),
                Create(self.queue(callback.id)),
            ]
            # The sender does not move the cursor without a callback, so it is moved here.
            if not names:
                ops.append(await self._begun_cursor(cursor_at(tracks, callback.created_ms)))
            try:
                await transact_surely(self._store, ops, was_made)
            except (MetadataConflict, NodeExists, NoSuchNode):
                continue
            return
        raise MetadataConflict("other processes keep writing it", path=self.cursor)

    async def _begun_cursor(self, begun: EventCursor) -> Op:
        found, version = await self.read_cursor()
        if found is not None:
            begun = replace(begun, next_number=found.next_number)
        data = pack_cursor(begun)
        return Create(self.cursor, data) if version is None else Set(self.cursor, data, version)

    async def read_cursor(self) -> tuple[EventCursor | None, int | None]:
        """Return the cursor and its version. Both are None if there is no cursor; only the cursor is None if
        it is unreadable.
        """
        node = await read_surely(self._store, self.cursor)
        if node is None:
            return None, None
        try:
            return unpack_cursor(node.value), node.stat.version
        except UNREADABLE as error:
            logger.error("callback_cursor_unreadable", reason=error.message)
            return None, node.stat.version

    async def delete(self, callback_id: str) -> RegisteredCallback:
        """Delete a callback. No more events are sent to it; the sender removes its queue later. Raises
        `Missing`.
        """
        callback = await self.read(callback_id)
        try:
            await delete_surely(self._store, self.path(callback_id))
        except NoSuchNode:
            raise Missing(f"there is no callback {callback_id}", callback=callback_id) from None
        return callback

    async def rows(self, callback_id: str) -> tuple[Rows, int]:
        """Return the callback's last attempts, the oldest first, and the number of queued events. Raises
        `Missing`.
        """
        await self.read(callback_id)
        node = await read_surely(self._store, self.queue(callback_id), fresh=False)
        if node is None:
            return [], 0
        return unpack_rows(node.value), node.stat.children

    async def queue_test(self, callback_id: str, event: Event, token: str, now_ms: int) -> None:
        """Queue a test event for the callback. Raises `Missing`."""
        await self.read(callback_id)
        pending = PendingDelivery(f"{TEST_PREFIX}{token}", event, now_ms)
        path, data = f"{self.queue(callback_id)}/{pending.name}", pack_pending(pending)

        async def was_made() -> bool:
            return await read_surely(self._store, path) is not None

        try:
            await transact_surely(self._store, [Create(path, data)], was_made)
        except NoSuchNode:
            raise Missing(f"there is no callback {callback_id}", callback=callback_id) from None
