"""Callbacks over a metadata store, with senders that are killed at any point."""

import asyncio
import hashlib
import hmac
import json
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from rollbook.proto.cluster.bookie_lifecycle_nodes import LifecycleNodes
from rollbook.proto.cluster.cluster_root import Cluster, initialise
from rollbook.proto.cluster.election import Election, Vote
from rollbook.proto.errors import Missing, Overloaded
from rollbook.proto.formats.lifecycle import Lifecycle, LifecycleState
from rollbook.proto.ids import BookieId
from rollbook.proto.metastore.memory import MemoryService
from rollbook.proto.ports import Create, MetadataStore, Set
from rollbook.proto.runtime.clock import SystemClock
from rollbook.recovery.callback_nodes import CallbackNodes, Seen
from rollbook.recovery.callback_sender import CallbackSender
from rollbook.recovery.cluster_event_log import ClusterEventLog
from rollbook.recovery.core import callback_queue as core
from rollbook.recovery.core.callback_queue import (
    CALLBACKS_MAX,
    DeliveryAnswer,
    RegisteredCallback,
    name_of,
    pack_cursor,
    pack_pending,
)
from rollbook.recovery.core.event_derivation import Event, EventKind, derive
from rollbook.recovery.operation_nodes import RUNNER
from tests.unit.proto.cluster.faulty import FaultyStore
from tests.unit.recovery.test_auditor import until
from tests.unit.recovery.test_cluster_event_log import log_of

DEADLINE_S = 30.0
ALL = RegisteredCallback("a" * 32, "https://all/x", "secret of all", created_ms=1)
SLOW = RegisteredCallback("b" * 32, "https://slow/x", "secret of slow", created_ms=2)
ACTIVE, DRAINING = LifecycleState.ACTIVE, LifecycleState.DRAINING


class Receivers:
    """Records what each URL was sent, and decides how it answers."""

    def __init__(self) -> None:
        self.sent: dict[str, list[Event]] = {}
        self.fails: dict[str, DeliveryAnswer] = {}
        self.hangs: dict[str, asyncio.Event] = {}
        self.accepts: EventKind | None = None  # If set, events of other kinds are refused.
        self.randomness: random.Random | None = (
            None  # If set, some requests fail, before or after they were received.
        )

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> DeliveryAnswer:
        if url in self.hangs:
            await self.hangs[url].wait()
        await asyncio.sleep(0)
        chance = self.randomness.random() if self.randomness else 1.0
        if chance < 0.2:
            return DeliveryAnswer(problem="nobody answers")
        secret = {ALL.url: ALL, SLOW.url: SLOW}[url].secret
        signed = headers["rollbook-time"].encode() + b"." + body
        expected = hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()
        assert headers["rollbook-signature"] == f"v1={expected}"
        fields = json.loads(body)
        event = Event(
            **{**fields, "kind": EventKind(fields["kind"]), "bookies": tuple(fields["bookies"])}
        )
        answer = self.fails.get(url, DeliveryAnswer(204))
        if self.accepts not in (None, event.kind):
            answer = DeliveryAnswer(500, "it answered 500")
        if answer.is_good:
            self.sent.setdefault(url, []).append(event)
        if chance < 0.4:
            return DeliveryAnswer(problem="the reply was lost")
        return answer

    def ids(self, callback: RegisteredCallback) -> list[str]:
        return [each.id for each in self.sent.get(callback.url, [])]


class Desk:
    def __init__(self, store: MetadataStore, cluster: Cluster) -> None:
        self.store = store
        self.cluster = cluster
        self.nodes = CallbackNodes(store, cluster)
        self.lifecycles = LifecycleNodes(store, cluster)
        self.receivers = Receivers()
        self._tokens = iter(range(1, 10_000))

    async def turn(self, bookie: str, state: LifecycleState) -> str:
        """Change the lifecycle; return the ID of the event."""
        found = await self.lifecycles.read(BookieId(bookie))
        number = next(self._tokens)
        lifecycle = Lifecycle(state, f"{number:x}", since_ms=number)
        await self.lifecycles.write(found, lifecycle)
        node = await self.store.get(self.lifecycles.path(BookieId(bookie)))
        assert node is not None
        return f"lifecycle/{bookie}@{node.stat.created_txn:x}.{node.stat.version}"

    @asynccontextmanager
    async def events(self, store: MetadataStore) -> AsyncIterator[ClusterEventLog]:
        events = ClusterEventLog(store, self.cluster, SystemClock(), log_of)
        task = asyncio.create_task(events.run())
        try:
            await events.refresh()
            yield events
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    @asynccontextmanager
    async def sender(
        self,
        store: MetadataStore,
        events: ClusterEventLog,
        kind: type[CallbackSender] = CallbackSender,
    ) -> AsyncIterator[None]:
        sender = kind(
            store, self.cluster, SystemClock(), random.Random(1), events, self.receivers.post
        )
        own_root = self.cluster.own_root
        election = Election(store, f"{own_root}/{RUNNER}", BookieId("r:1"), above=own_root)
        task = asyncio.create_task(election.serve(sender.lead))
        try:
            yield
            if task.done():
                task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def desk(service: MemoryService, rival: MetadataStore) -> AsyncIterator[Desk]:
    async with asyncio.timeout(DEADLINE_S):
        yield Desk(rival, await initialise(rival, "/ledgers", random.Random(1)))


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "_PAUSE_S", 0.01)
    monkeypatch.setattr(core, "PAUSE_S_MAX", 0.1)


async def test_events_are_sent_in_order_and_recorded_as_deliveries(
    desk: Desk, store: FaultyStore
) -> None:
    """CL1, CL2, CL4: all events after the callback was created, however late the sender starts."""
    before = await desk.turn("bk-1", DRAINING)
    async with desk.events(store) as events:
        assert events.tracks is not None
        await desk.nodes.create(ALL, events.tracks)
        after = [await desk.turn("bk-1", ACTIVE), await desk.turn("bk-2", DRAINING)]
        async with desk.sender(store, events):
            await until_sent(desk, ALL, after)
            assert before not in desk.receivers.ids(ALL)

            async def is_kept() -> bool:
                rows, waiting = await desk.nodes.rows(ALL.id)
                return waiting == 0 and [row["event"] for row in rows] == after

            await until(is_kept)
            rows, _ = await desk.nodes.rows(ALL.id)
            assert {(row["outcome"], row["status"]) for row in rows} == {("delivered", 204)}


async def until_sent(desk: Desk, callback: RegisteredCallback, expected: list[str]) -> None:
    async def are_sent() -> bool:
        return len(desk.receivers.ids(callback)) >= len(expected)

    await until(are_sent)
    assert desk.receivers.ids(callback) == expected


async def test_hung_receiver_does_not_delay_other_callbacks(desk: Desk, store: FaultyStore) -> None:
    async with desk.events(store) as events:
        assert events.tracks is not None
        desk.receivers.hangs[SLOW.url] = asyncio.Event()
        await desk.nodes.create(SLOW, events.tracks)
        await desk.nodes.create(ALL, events.tracks)
        async with desk.sender(store, events):
            ids = [await desk.turn("bk-1", DRAINING)]
            await until_sent(desk, ALL, ids)
            ids.append(await desk.turn("bk-1", ACTIVE))
            await until_sent(desk, ALL, ids)
            assert desk.receivers.ids(SLOW) == []
            desk.receivers.hangs[SLOW.url].set()
            await until_sent(desk, SLOW, ids)


async def test_deleted_callback_is_sent_nothing_more(desk: Desk, store: FaultyStore) -> None:
    """Its queue is deleted, and a test event for it is refused."""
    async with desk.events(store) as events:
        assert events.tracks is not None
        desk.receivers.fails[ALL.url] = DeliveryAnswer(500, "it answered 500")
        await desk.nodes.create(ALL, events.tracks)
        async with desk.sender(store, events):
            await desk.turn("bk-1", DRAINING)

            async def is_refused() -> bool:
                rows, waiting = await desk.nodes.rows(ALL.id)
                return waiting == 1 and bool(rows) and rows[-1]["outcome"] == "retrying"

            await until(is_refused)
            assert await desk.nodes.delete(ALL.id) == ALL

            async def is_gone() -> bool:
                return await desk.store.children(desk.nodes.queues) == []

            await until(is_gone)
            event = Event("test@1", EventKind.TEST, 1, "")
            for refused in (
                desk.nodes.delete(ALL.id),
                desk.nodes.queue_test(ALL.id, event, "1", 1),
            ):
                with pytest.raises(Missing):
                    await refused
            desk.receivers.fails.clear()
            await desk.nodes.create(ALL, events.tracks)
            later = await desk.turn("bk-2", DRAINING)
            await until_sent(desk, ALL, [later])


async def test_test_event_overtakes_events_that_wait(desk: Desk, store: FaultyStore) -> None:
    """Also events about the same bookie, which are sent in order."""
    async with desk.events(store) as events:
        assert events.tracks is not None
        desk.receivers.accepts = EventKind.TEST
        await desk.nodes.create(ALL, events.tracks)
        async with desk.sender(store, events):
            waiting = [await desk.turn("bk-1", DRAINING)]
            await events.refresh()
            waiting.append(await desk.turn("bk-1", ACTIVE))

            async def are_queued() -> bool:
                rows, queued = await desk.nodes.rows(ALL.id)
                return queued == 2 and bool(rows) and rows[-1]["outcome"] == "retrying"

            await until(are_queued)
            test = Event("test@1", EventKind.TEST, 1, "", bookies=("bk-1",))
            await desk.nodes.queue_test(ALL.id, test, "1", 1)
            await until_sent(desk, ALL, ["test@1"])
            await until(are_queued)
            desk.receivers.accepts = None
            await until_sent(desk, ALL, ["test@1", *waiting])


async def test_callbacks_are_limited_and_unreadable_ones_are_skipped(
    desk: Desk, store: FaultyStore
) -> None:
    async with desk.events(store) as events:
        assert events.tracks is not None
        await desk.nodes.create(ALL, events.tracks)
        await desk.store.create(desk.nodes.path("c" * 32), b"nonsense")
        await desk.store.set(desk.nodes.cursor, b"nonsense")
        assert await desk.nodes.list() == [ALL]
        async with desk.sender(store, events):
            await desk.nodes.queue_test(ALL.id, Event("test@1", EventKind.TEST, 1, ""), "1", 1)
            await until_sent(desk, ALL, ["test@1"])
            later = await desk.turn("bk-1", DRAINING)
            await until_sent(desk, ALL, ["test@1", later])
        for number in range(CALLBACKS_MAX - 2):
            more = RegisteredCallback(f"{number:032x}", ALL.url, "s")
            await desk.nodes.create(more, events.tracks)
        with pytest.raises(Overloaded):
            await desk.nodes.create(SLOW, events.tracks)


# --- Killed anywhere --------------------------------------------------------------------------


class Careless(CallbackSender):
    """Moves the cursor before it queues events, so a death in between loses them."""

    async def _queue_some(self, vote: Vote, seen: Seen) -> bool:
        events, marks = derive(self._cursor.fingerprints, seen, 1)
        if marks == self._cursor.fingerprints:
            return False
        version = self._cursor_version
        assert version is not None
        after = self._cursor.with_events(marks, len(events))
        await self._store.transaction([Set(self._nodes.cursor, pack_cursor(after), version)])
        await asyncio.sleep(0.003)
        number = self._cursor.next_number
        self._cursor, self._cursor_version = after, version + 1
        for receiver in self._receivers.values():
            for offset, event in enumerate(events):
                pending = core.PendingDelivery(name_of(number + offset), event, self._now_ms())
                path = f"{self._nodes.queue(receiver.callback.id)}/{pending.name}"
                await self._store.transaction([Create(path, pack_pending(pending))])
                receiver.queue.add(pending)
        return True


async def run_with_kills(
    desk: Desk, service: MemoryService, seed: int, kind: type[CallbackSender] = CallbackSender
) -> str:
    """Kill senders at random; return a description of wrong deliveries, or an empty string."""
    randomness = random.Random(seed)
    callback = replace(ALL, id=f"{seed:032x}")
    desk.receivers.randomness = randomness
    expected: dict[str, list[str]] = {"bk-1": [], "bk-2": [], "bk-3": []}
    async with desk.events(desk.store) as events:
        assert events.tracks is not None
        await desk.nodes.create(callback, events.tracks)

        async def change() -> None:
            for number in range(12):
                bookie = randomness.choice(sorted(expected))
                state = ACTIVE if number % 2 else DRAINING
                expected[bookie].append(await desk.turn(bookie, state))
                await events.refresh()
                await asyncio.sleep(randomness.random() * 0.02)

        changing = asyncio.create_task(change())
        while not changing.done():
            async with desk.sender(desk.store, events, kind):
                await asyncio.sleep(randomness.random() * 0.06)
        await changing
        desk.receivers.randomness = None

        async def is_empty() -> bool:
            waiting = await desk.store.children(desk.nodes.queue(callback.id))
            found, _ = await desk.nodes.read_cursor()
            assert events.tracks is not None
            return (
                not waiting
                and found is not None
                and not derive(found.fingerprints, events.tracks, 1)[0]
            )

        async with desk.sender(desk.store, events, kind):
            await until(is_empty)
    sent = desk.receivers.sent.get(ALL.url, [])
    for bookie, ids in expected.items():
        first = list(dict.fromkeys(each.id for each in sent if bookie in each.bookies))
        if first != ids:
            return f"{bookie}: {first} in place of {ids}"
    return ""


@pytest.mark.parametrize("seed", range(6))
async def test_events_arrive_in_order_despite_killed_senders(
    desk: Desk, service: MemoryService, seed: int
) -> None:
    """CL1, CL2, CL5: at least once, in order for each bookie, signed, with failing receivers."""
    assert await run_with_kills(desk, service, seed) == ""


async def test_delivery_check_detects_a_cursor_moved_too_early(
    desk: Desk, service: MemoryService
) -> None:
    """Shows that `run_with_kills` detects lost events."""
    for seed in range(20):
        if await run_with_kills(desk, service, seed, Careless):
            return
        desk.receivers.sent.clear()
        await desk.nodes.delete(f"{seed:032x}")
    raise AssertionError("nothing was lost")
