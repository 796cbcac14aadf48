"""Sends the events of callbacks from one elected process (the rules are in `core/callback_queue.py`, the nodes in
`callback_nodes.py`).

    cluster_event_log.py ──► derive(cursor) ──► one transaction: the events queued, the cursor moved
                                             │
                              a request for each that is due ──► one transaction: what was delivered leaves, attempts

Events are queued in the transaction that moves the cursor past them, so the next sender finds all events that
are still to be sent (CL1). Each write names the vote of the operations' runner, and is made only in its
session (CL5).
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import structlog

from rollbook.proto.cluster.cluster_root import Cluster
from rollbook.proto.cluster.election import Vote
from rollbook.proto.cluster.uncertain_writes import (
    children_surely,
    delete_surely,
    read_surely,
    transact_surely,
)
from rollbook.proto.errors import (
    MetadataConflict,
    MetadataUnavailable,
    NodeExists,
    NodeNotEmpty,
    NoSuchNode,
)
from rollbook.proto.ports import (
    Clock,
    Create,
    Delete,
    MetadataStore,
    Op,
    Randomness,
    Set,
    Watch,
    WatchEventKind,
)
from rollbook.proto.tasks import TaskGroup
from rollbook.recovery.callback_nodes import TEST_PREFIX, UNREADABLE, CallbackNodes, Seen, cursor_at
from rollbook.recovery.cluster_event_log import ClusterEventLog
from rollbook.recovery.core.callback_queue import (
    CallbackQueue,
    DeliveryAnswer,
    DeliveryOutcome,
    EventCursor,
    PendingDelivery,
    RegisteredCallback,
    attempt_row,
    body_of,
    name_of,
    pack_cursor,
    pack_pending,
    pack_rows,
    unpack_pending,
    unpack_rows,
)
from rollbook.recovery.core.event_derivation import derive
from rollbook.recovery.metastore_outage_retries import patiently

logger = structlog.get_logger()

Post = Callable[[str, Mapping[str, str], bytes], Awaitable[DeliveryAnswer]]
"""Sends one request to a URL within a time limit, and never raises."""

# The maximum number of changed things whose events are queued in one transaction.
_THINGS_AT_ONCE: Final = 16
_DELETES_AT_ONCE: Final = 64
_READS_AT_ONCE: Final = 32
_LOOK_AGAIN_S: Final = 60.0
_RETRY_PAUSE_S: Final = 5.0


class _Receiver:
    """A callback and its queue in the memory of the sender."""

    def __init__(self, callback: RegisteredCallback, randomness: Randomness) -> None:
        self.callback = callback
        self.queue = CallbackQueue(randomness)
        self.rows: list[dict[str, Any]] = []
        self.attempts: dict[str, asyncio.Task[None]] = {}
        # Names of events that left the queue in memory, and are still in the metadata.
        self.done: list[str] = []
        self.has_new_rows = False

    def add_row(self, row: dict[str, Any]) -> None:
        self.rows = [*self.rows[-99:], row]
        self.has_new_rows = True


class CallbackSender:
    """Queues events and sends them while its process is the leader."""

    def __init__(
        self,
        store: MetadataStore,
        cluster: Cluster,
        clock: Clock,
        randomness: Randomness,
        events: ClusterEventLog,
        post: Post,
    ) -> None:
        self._store = store
        self._clock = clock
        self._randomness = randomness
        self._events = events
        self._post = post
        self._nodes = CallbackNodes(store, cluster)
        self._receivers: dict[str, _Receiver] = {}
        self._cursor = EventCursor({})
        self._cursor_version: int | None = None
        self._has_config_changed = True
        # Paths of requested test events that have not been read yet.
        self._tests: dict[str, None] = {}
        self._news = asyncio.Event()

    async def lead(self, vote: Vote) -> None:
        """Send until cancelled. A failure here does not end the operations that run in the same process."""
        while True:
            try:
                await patiently("callbacks", lambda: self._serve(vote))
            except Exception as error:
                logger.error("callback_sender_failed", exc_info=error)
                await asyncio.sleep(_RETRY_PAUSE_S)

    async def _serve(self, vote: Vote) -> None:
        await self._nodes.prepare()
        self._receivers, self._cursor_version = {}, None
        self._has_config_changed, self._tests = True, {}
        failure: BaseException | None = None
        async with contextlib.AsyncExitStack() as stack:
            watches = []
            for folder in (self._nodes.folder, self._nodes.queues):
                watches.append(await self._store.watch(folder, recursive=True))
                stack.push_async_callback(watches[-1].close)
            try:
                async with TaskGroup() as group:
                    group.create_task(self._follow_callbacks(watches[0]))
                    group.create_task(self._follow_tests(watches[1]))
                    group.create_task(self._follow_events())
                    group.create_task(self._run(vote, group))
            except BaseExceptionGroup as errors:
                failure = errors.exceptions[0]
        if failure is not None:
            raise failure

    # --- News ---------------------------------------------------------------------------------

    async def _follow_callbacks(self, watch: Watch) -> None:
        async for _ in watch:
            self._has_config_changed = True
            self._news.set()
        raise MetadataUnavailable("the metadata store was closed")

    async def _follow_tests(self, watch: Watch) -> None:
        async for event in watch:
            name = event.path.rpartition("/")[2]
            if event.kind is WatchEventKind.RESYNC:
                self._has_config_changed = True
            elif event.kind is WatchEventKind.CREATED and name.startswith(TEST_PREFIX):
                self._tests[event.path] = None
            else:
                continue
            self._news.set()
        raise MetadataUnavailable("the metadata store was closed")

    async def _follow_events(self) -> None:
        while True:
            self._news.set()
            await self._events.changed()

    # --- Rounds -------------------------------------------------------------------------------

    async def _run(self, vote: Vote, group: TaskGroup) -> None:
        loop = asyncio.get_running_loop()
        look_again_at = loop.time()
        while True:
            self._news.clear()
            if self._has_config_changed or loop.time() >= look_again_at:
                look_again_at = loop.time() + _LOOK_AGAIN_S
                await self._read_callbacks(vote)
            await self._read_tests()
            await self._queue_events(vote)
            await self._keep_outcomes(vote)
            now_ns = self._clock.monotonic_ns()
            for receiver in self._receivers.values():
                for pending, number in receiver.queue.take_due(now_ns):
                    attempt = self._attempt(receiver, pending, number)
                    receiver.attempts[pending.name] = group.create_task(attempt)
            waits = [each.queue.wait_ns(now_ns) for each in self._receivers.values()]
            due_s = min([each / 1e9 for each in waits if each is not None], default=_LOOK_AGAIN_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(due_s, _LOOK_AGAIN_S)):
                    await self._news.wait()

    async def _attempt(self, receiver: _Receiver, pending: PendingDelivery, number: int) -> None:
        callback, event = receiver.callback, pending.event
        at_ms, began_ns = self._now_ms(), self._clock.monotonic_ns()
        body = body_of(event)
        try:
            answer = await self._post(callback.url, callback.headers(event, body, at_ms), body)
        finally:
            receiver.attempts.pop(pending.name, None)
        now_ns = self._clock.monotonic_ns()
        took_ms = (now_ns - began_ns) // 1_000_000
        outcome = receiver.queue.on_answer(pending.name, answer, now_ns, self._now_ms())
        receiver.add_row(attempt_row(pending, number, answer, outcome, at_ms, took_ms))
        if outcome is not DeliveryOutcome.RETRYING:
            receiver.done.append(pending.name)
        if outcome is DeliveryOutcome.GIVEN_UP:
            logger.warning("callback_given_up", callback=callback.id, event_id=event.id)
        self._news.set()

    # --- Reading ------------------------------------------------------------------------------

    async def _read_callbacks(self, vote: Vote) -> None:
        """Read the queues, and then the callbacks: a queue is made together with its callback, so a queue
        without a callback is an orphan.
        """
        self._has_config_changed = False
        try:
            await self._store.sync()
            queues = await children_surely(self._store, self._nodes.queues)
            names = dict.fromkeys(await children_surely(self._store, self._nodes.folder))
            callbacks = {each.id: each for each in await self._nodes.list()}
            for gone in [each for each in self._receivers if each not in names]:
                self._forget(gone)
            for queue in queues:
                if queue not in names:
                    await self._delete_queue(vote, queue)
            for callback_id, callback in callbacks.items():
                if callback_id not in self._receivers:
                    self._receivers[callback_id] = await self._read_queue(callback)
        except BaseException:
            self._has_config_changed = True
            raise

    def _forget(self, callback_id: str) -> None:
        receiver = self._receivers.pop(callback_id)
        for attempt in list(receiver.attempts.values()):
            attempt.cancel()

    async def _delete_queue(self, vote: Vote, callback_id: str) -> None:
        folder = self._nodes.queue(callback_id)
        try:
            names = await children_surely(self._store, folder)
            for start in range(0, len(names), _DELETES_AT_ONCE):
                chunk = names[start : start + _DELETES_AT_ONCE]
                ops: list[Op] = [vote.check, *(Delete(f"{folder}/{name}") for name in chunk)]
                await transact_surely(self._store, ops, _no_doubt, session=vote.session)
            await delete_surely(self._store, folder)
        except (NoSuchNode, NodeNotEmpty):
            self._has_config_changed = True  # The next round checks the callbacks again.
            self._news.set()

    async def _read_queue(self, callback: RegisteredCallback) -> _Receiver:
        receiver = _Receiver(callback, self._randomness)
        folder = self._nodes.queue(callback.id)
        node = await read_surely(self._store, folder)
        receiver.rows = unpack_rows(node.value) if node else []
        names = sorted(await children_surely(self._store, folder)) if node else []
        for start in range(0, len(names), _READS_AT_ONCE):
            chunk = names[start : start + _READS_AT_ONCE]
            reads = (self._read_pending(folder, name) for name in chunk)
            for pending in await asyncio.gather(*reads):
                if pending is not None:
                    receiver.queue.add(pending)
        return receiver

    async def _read_pending(self, folder: str, name: str) -> PendingDelivery | None:
        node = await read_surely(self._store, f"{folder}/{name}", fresh=False)
        try:
            return unpack_pending(name, node.value) if node else None
        except UNREADABLE as error:
            logger.warning("callback_event_unreadable", name=name, reason=error.message)
            return None

    async def _read_tests(self) -> None:
        while self._tests:
            path = next(iter(self._tests))
            folder, _, name = path.rpartition("/")
            receiver = self._receivers.get(folder.rpartition("/")[2])
            pending = await self._read_pending(folder, name) if receiver else None
            if receiver and pending and name not in receiver.queue and name not in receiver.done:
                receiver.queue.add(pending)
            del self._tests[path]

    # --- Writing ------------------------------------------------------------------------------

    async def _queue_events(self, vote: Vote) -> None:
        seen = self._events.tracks
        if seen is None or not self._receivers:
            self._cursor_version = None  # The cursor is moved when the first callback is created.
            return
        try:
            if self._cursor_version is None:
                await self._read_cursor(vote, seen)
                await self._events.refresh()
            while await self._queue_some(vote, seen):
                pass
        except MetadataConflict:
            self._cursor_version = None
            self._news.set()
        # A callback was deleted concurrently, or this process is no longer the leader.
        except (NoSuchNode, NodeExists):
            self._cursor_version, self._has_config_changed = None, True
            self._news.set()
            await asyncio.sleep(0.05)

    async def _read_cursor(self, vote: Vote, seen: Seen) -> None:
        """Read the cursor. If there is no readable cursor, the present state counts as sent. The process that
        moved the cursor last may have seen more than this process, so everything is read again: otherwise a
        state older than the cursor would be sent as news.
        """
        found, version = await self._nodes.read_cursor()
        if found is None:
            found = cursor_at(seen, self._now_ms())
            path, data = self._nodes.cursor, pack_cursor(found)
            change: Op = Create(path, data) if version is None else Set(path, data, version)
            ops = [vote.check, change]
            await transact_surely(self._store, ops, _no_doubt, session=vote.session)
            version = 0 if version is None else version + 1
        self._cursor, self._cursor_version = found, version

    async def _queue_some(self, vote: Vote, seen: Seen) -> bool:
        """Queue some new events; returns whether there were any."""
        cursor, version = self._cursor, self._cursor_version
        assert version is not None
        now_ms = self._now_ms()
        events, fingerprints = derive(cursor.fingerprints, seen, now_ms, _THINGS_AT_ONCE)
        if fingerprints == cursor.fingerprints:
            return False
        queued = [
            (receiver, PendingDelivery(name_of(cursor.next_number + number), event, now_ms))
            for number, event in enumerate(events)
            for receiver in self._receivers.values()
            if receiver.callback.takes(event)
        ]
        full = [each for each in queued if each[0].queue.is_full]
        queued = [each for each in queued if not each[0].queue.is_full]
        after = cursor.with_events(fingerprints, len(events))
        data = pack_cursor(after)
        ops: list[Op] = [vote.check, Set(self._nodes.cursor, data, version)]
        for receiver, pending in queued:
            folder = self._nodes.queue(receiver.callback.id)
            ops.append(Create(f"{folder}/{pending.name}", pack_pending(pending)))

        async def was_made() -> bool:
            node = await read_surely(self._store, self._nodes.cursor)
            return node is not None and (node.stat.version, node.value) == (version + 1, data)

        await transact_surely(self._store, ops, was_made, session=vote.session)
        self._cursor, self._cursor_version = after, version + 1
        for receiver, pending in queued:
            receiver.queue.add(pending)
        for receiver, pending in full:
            answer = DeliveryAnswer(problem="as many events wait as can be")
            row = attempt_row(pending, 0, answer, DeliveryOutcome.GIVEN_UP, now_ms, 0)
            receiver.add_row(row)
        return True

    async def _keep_outcomes(self, vote: Vote) -> None:
        for receiver in list(self._receivers.values()):
            while receiver.done or receiver.has_new_rows:
                await self._keep_outcomes_of(vote, receiver)

    async def _keep_outcomes_of(self, vote: Vote, receiver: _Receiver) -> None:
        folder = self._nodes.queue(receiver.callback.id)
        done, data = receiver.done[:_DELETES_AT_ONCE], pack_rows(receiver.rows)
        receiver.has_new_rows = False
        ops: list[Op] = [vote.check, *(Delete(f"{folder}/{name}") for name in done)]
        ops.append(Set(folder, data))

        async def was_made() -> bool:
            node = await read_surely(self._store, folder)
            return node is None or node.value == data

        try:
            await transact_surely(self._store, ops, was_made, session=vote.session)
        except NoSuchNode as error:
            if error.ids.get("op") == 0:
                raise MetadataUnavailable("another process leads") from None
            receiver.done.clear()  # The callback was deleted.
            self._has_config_changed = True
            self._news.set()
            return
        except BaseException:
            receiver.has_new_rows = True
            raise
        del receiver.done[: len(done)]

    def _now_ms(self) -> int:
        return self._clock.wall_us() // 1000


async def _no_doubt() -> bool:
    """Return False, as if the write was not made: its outcome may stay unknown, since the caller checks
    again.
    """
    return False
