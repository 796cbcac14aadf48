"""Requests to a bookie over the simulator's network and disk."""

import asyncio
import gc
import weakref
from collections.abc import Sequence
from dataclasses import replace

import pytest

from rollbook.bookie import request_handlers as answers
from rollbook.bookie.config import ServerConfig
from rollbook.bookie.connection import Connection
from rollbook.bookie.request_handlers import Answers
from rollbook.proto.errors import (
    BookieFailed,
    ConnectionLost,
    InvalidRequest,
    NoSuchEntry,
    NoSuchLedger,
    Overloaded,
    Unauthorized,
)
from rollbook.proto.ids import NO_ENTRY, EntryId, LedgerId
from rollbook.proto.ports import Buffer
from rollbook.proto.wire import v2
from rollbook.proto.wire.add_columns import AddReplies
from rollbook.proto.wire.digest import ledger_key
from rollbook.proto.wire.entry_batches import join_bodies
from rollbook.proto.wire.messages import (
    BatchRead,
    BatchReadReply,
    BookieInfoReply,
    EntryRead,
    ForceLedger,
    ForceLedgerReply,
    GetBookieInfo,
    ListEntries,
    ListEntriesReply,
    ReadReply,
    ReceivedRequest,
    Reply,
    Request,
    WriteLac,
    WriteLacReply,
)
from tests.golden.bookkeeper import V2_FRAMES, V3_FRAMES
from tests.simulation.kernel.disk import SimulatedFile
from tests.support.bookie_client import KEY, BookieClient
from tests.support.entries import pack_entry
from tests.unit.bookie.serving import STORAGE, Scene, add_entries, digest_of, entry, tell

L7 = LedgerId(7)
GOLDEN_KEY = ledger_key(b"testPasswd")
TIGHT = ServerConfig(
    frame_bytes_max=64 * 1024,
    held_bytes_max=64 * 1024,
    connection_bytes_max=64 * 1024,
    connection_bytes_floor=4 * 1024,
)


class Tally:
    """Counts the responses to the adds of one client."""

    def __init__(self, client: BookieClient) -> None:
        self.acked = 0
        self.refused: dict[str, int] = {}
        client.on_adds = self._on_adds

    @property
    def answered(self) -> int:
        return self.acked + sum(self.refused.values())

    def _on_adds(self, replies: AddReplies) -> None:
        if replies.error is None:
            self.acked += len(replies.entry_ids)
        else:
            name = replies.error.__name__
            self.refused[name] = self.refused.get(name, 0) + len(replies.entry_ids)


async def until(is_so: object, seconds: float = 100.0) -> None:
    assert callable(is_so)
    async with asyncio.timeout(seconds):
        while not is_so():
            await asyncio.sleep(0.01)


def pack(client: BookieClient, ledger_id: int, entry_ids: Sequence[int], size: int = 7) -> bytes:
    ledger = client.ledger(ledger_id)
    return b"".join(ledger.pack(entry_id, entry_id - 1, bytes(size)) for entry_id in entry_ids)


def connections_of(scene: Scene) -> "dict[Connection, None]":
    return scene.server._shared.connections


# --- As recorded ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frames", "conversation"),
    [
        (
            V2_FRAMES,
            [
                ("ADD request", "ADD response EOK"),
                ("READ request, entry 0", "READ response EOK, entry 0"),
                ("READ request, entry -1, DO_FENCING", "READ response EOK to the -1 request"),
                ("ADD request", "ADD response EFENCED"),
                ("ADD request, RECOVERY_ADD + HIGH_PRIORITY", "ADD response EOK"),
            ],
        ),
        (
            V3_FRAMES,
            [
                ("ADD request", "ADD response EOK"),
                ("FORCE_LEDGER request", "FORCE_LEDGER response"),
                ("WRITE_LAC request", None),
                ("READ request, entry 0", "READ response EOK, maxLAC 0"),
                ("READ_LAC request", "READ_LAC response, both bodies"),
                ("START_TLS request", "START_TLS refused (EBADREQ)"),
                ("READ fence, entry -1, 4.17 order", None),
                ("READ fence, entry -1, 4.18 order", None),
                ("ADD request", "ADD response EFENCED"),
                ("ADD recovery, priority 100, 4.17 order", "ADD response EOK"),
                ("ADD recovery, priority 100, 4.18 order", "ADD response EOK"),
            ],
        ),
    ],
)
def test_recorded_requests_get_the_recorded_replies(
    frames: dict[str, bytes], conversation: list[tuple[str, str | None]]
) -> None:
    async def story(scene: Scene) -> None:
        raw = await scene.raw()
        for asked, answered in conversation:
            raw.send(frames[asked])
            if answered is not None:
                assert await raw.receive(len(frames[answered])) == frames[answered], asked
            else:
                size = int.from_bytes(await raw.receive(4), "big")
                assert await raw.receive(size)
        assert raw.received == b""
        assert not raw.is_closed

    tell(story)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("version", [2, 3])
def test_entries_are_read_as_added_in_any_fragmentation(version: int, seed: int) -> None:
    async def story(scene: Scene) -> None:
        client = await scene.connect(version)
        tally = Tally(client)
        client.send(pack(client, 7, range(200)))
        await until(lambda: tally.acked == 200)
        replies = await asyncio.gather(
            *(client.call(EntryRead(L7, EntryId(e))) for e in range(200))
        )
        for entry_id, reply in enumerate(replies):
            assert isinstance(reply, ReadReply)
            assert reply.body == pack_entry(
                digest_of(7), EntryId(entry_id), EntryId(entry_id - 1), 0, bytes(7)
            )
            assert reply.last_add_confirmed == (None if version == 2 else 198)
        last = await client.call(EntryRead(L7, NO_ENTRY))
        assert isinstance(last, ReadReply)
        assert last.entry_id == NO_ENTRY  # The response echoes the requested id.
        assert last.body == scene.storage.peek(7, 199)

    tell(story, seed)


def test_entries_evicted_from_memory_are_read_from_disk() -> None:
    async def story(scene: Scene) -> None:
        client = await scene.connect()
        for entry_id in range(300):
            await add_entries(scene.storage, 7, [entry_id], bytes(10_000))
        assert scene.storage.peek(7, 0) is None
        asked = [client.ask(EntryRead(L7, EntryId(e))) for e in range(300)]
        for entry_id, reply in enumerate(await asyncio.gather(*asked)):
            assert isinstance(reply, ReadReply)
            assert reply.body == entry(7, entry_id, bytes(10_000))

    tell(story, storage_config=replace(STORAGE, cache_bytes=200_000))


def test_disk_space_and_entry_ids_are_reported() -> None:
    async def story(scene: Scene) -> None:
        client = await scene.connect()
        await add_entries(scene.storage, 7, [0, 1, 2, 5])
        entries = await client.call(ListEntries(L7))
        assert isinstance(entries, ListEntriesReply)
        assert entries.entries
        assert list(entries.entries.ranges()) == [(0, 2), (5, 5)]
        space = await scene.node.disk.space("/store")
        assert await client.call(GetBookieInfo(total_bytes=True, free_bytes=False)) == (
            BookieInfoReply(None, space.total_bytes)
        )
        info = await client.call(GetBookieInfo(total_bytes=True, free_bytes=True))
        assert info == BookieInfoReply(None, space.total_bytes, space.free_bytes)

    tell(story)


def test_entry_list_too_large_for_a_frame_fails() -> None:
    """The request fails, which denies no entry. The list of a long ledger without gaps is short."""

    async def story(scene: Scene) -> None:
        client = await scene.connect()
        await add_entries(scene.storage, 7, range(0, 6000, 2))
        await add_entries(scene.storage, 8, range(6000))
        holed = await client.call(ListEntries(L7))
        assert isinstance(holed, ListEntriesReply)
        assert holed.error is BookieFailed
        whole = await client.call(ListEntries(LedgerId(8)))
        assert isinstance(whole, ListEntriesReply)
        assert whole.entries
        assert list(whole.entries.ranges()) == [(0, 5999)]

    tell(story, config=replace(TIGHT, frame_bytes_max=32 * 1024))


async def batch(client: BookieClient, request: BatchRead) -> list[bytes]:
    reply = await client.call(request)
    assert isinstance(reply, BatchReadReply)
    assert (reply.ledger_id, reply.first_entry) == (request.ledger_id, request.first_entry)
    assert reply.error is None
    return [bytes(body) for body in reply.bodies]


@pytest.mark.parametrize("version", [2, 3])
def test_batch_size_is_counted_as_in_java(version: int) -> None:
    """36 bytes before the first entry, 4 before each entry; the first entry is always returned."""

    async def story(scene: Scene) -> None:
        client = await scene.connect(version)
        await add_entries(scene.storage, 7, range(10))
        size = len(entry(7, 0)) + 4
        for count, bytes_max, expected in (
            (5, 1_000_000, 5),
            (0, 1_000_000, 8),  # The ledger has only eight entries from entry 2 on.
            (-1, 2**62, 8),
            (5, 36 + 3 * size, 3),
            (5, 36 + 3 * size - 1, 2),
            (5, 1, 1),
            (5, -1, 1),
            (1, 1_000_000, 1),
        ):
            found = await batch(client, BatchRead(L7, EntryId(2), 1, count, bytes_max))
            assert found == [entry(7, n) for n in range(2, 2 + expected)], (count, bytes_max)

    tell(story)


def test_entry_that_exceeds_the_batch_is_not_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    joined: list[int] = []

    def noted(bodies: Sequence[Buffer]) -> bytes:
        joined.append(sum(map(len, bodies)))
        return join_bodies(bodies)

    async def story(scene: Scene) -> None:
        client = await scene.connect(2)
        await add_entries(scene.storage, 7, [0])
        await add_entries(scene.storage, 7, [1], bytes(700_000))
        found = await batch(client, BatchRead(L7, EntryId(0), 1, 2, 500_000))
        assert found == [entry(7, 0)]
        assert joined == [len(entry(7, 0))]

    monkeypatch.setattr(answers, "join_bodies", noted)
    tell(story)


@pytest.mark.parametrize("version", [2, 3])
def test_batch_ends_at_a_gap_but_sparse_batch_skips_it(version: int) -> None:
    async def story(scene: Scene) -> None:
        client = await scene.connect(version)
        await add_entries(scene.storage, 7, [0, 1, 3, 4, 6, 7, 9])
        first_two = [entry(7, 0), entry(7, 1)]
        assert await batch(client, BatchRead(L7, EntryId(0), 1, 10, 10_000)) == first_two
        for first in (2, 10):
            missing = await client.call(BatchRead(L7, EntryId(first), 1, 10, 10_000))
            assert missing == BatchReadReply(NoSuchEntry, L7, EntryId(first), 1)
        for first, count, bytes_max, expected in (
            (0, 8, 10_000, [0, 1, 3, 4, 6, 7]),
            (2, 0, 10_000, [3, 4, 6, 7, 9]),
            (2, 2, 10_000, [3]),
            (0, 0, 36 + 4 * (len(entry(7, 0)) + 4), [0, 1, 3, 4]),
        ):
            sparse = BatchRead(L7, EntryId(first), 1, count, bytes_max, is_sparse=True)
            assert await batch(client, sparse) == [entry(7, n) for n in expected], sparse
        for first, count in ((2, 1), (10, 0)):
            none = await client.call(
                BatchRead(L7, EntryId(first), 1, count, 10_000, is_sparse=True)
            )
            assert none == BatchReadReply(NoSuchEntry, L7, EntryId(first), 1)

    tell(story)


@pytest.mark.parametrize("version", [2, 3])
def test_a_batch_of_large_entries_fits_its_frame(version: int) -> None:
    async def story(scene: Scene) -> None:
        client = await scene.connect(version)
        for entry_id in range(8):
            await add_entries(scene.storage, 7, [entry_id], bytes(700_000))
        found = await batch(client, BatchRead(L7, EntryId(0), 1, 0, 2**40))
        assert found == [entry(7, n, bytes(700_000)) for n in range(7)]

    tell(story, storage_config=replace(STORAGE, journal_file_bytes=16 * 1024 * 1024))


def test_batch_is_shortened_when_memory_is_short() -> None:
    """B7: further requests return the rest."""

    async def story(scene: Scene) -> None:
        client = await scene.connect(2)
        await add_entries(scene.storage, 7, range(60), bytes(9_000))
        asked = [client.ask(BatchRead(L7, EntryId(0), at, 60, 2**22)) for at in range(8)]
        replies = [await each for each in asked]
        taken = [len(reply.bodies) for reply in replies if isinstance(reply, BatchReadReply)]
        assert len(taken) == 8
        assert all(0 < each < 60 for each in taken)
        assert max(taken) * 9_000 < 400_000
        found: list[bytes] = []
        while len(found) < 60:
            found += await batch(client, BatchRead(L7, EntryId(len(found)), 9, 60, 2**22))
        assert found == [entry(7, n, bytes(9_000)) for n in range(60)]

    config = ServerConfig(held_bytes_max=256 * 1024)
    tell(story, config=config, storage_config=replace(STORAGE, journal_file_bytes=2**23))


@pytest.mark.parametrize("fails", [False, True])
def test_adds_with_deferred_sync_are_durable_once_force_is_answered(fails: bool) -> None:
    async def story(scene: Scene) -> None:
        client = await scene.connect()
        tally = Tally(client)
        scene.node.disk.hang()  # Only syncs hang.
        ledger = client.ledger(7)
        client.send(b"".join(ledger.pack(n, -1, b"x", is_sync_deferred=True) for n in range(3)))
        await until(lambda: tally.acked == 3)
        forced = client.ask(ForceLedger(L7))
        await asyncio.sleep(2)
        assert not forced.done()
        scene.node.disk.sync_error_odds = 1.0 if fails else 0.0
        scene.node.disk.unhang()
        if not fails:
            assert await forced == ForceLedgerReply(None, L7)
            return
        try:
            reply = await forced
        except ConnectionLost:
            return
        assert reply == ForceLedgerReply(BookieFailed, L7)

    tell(story, may_fail=fails)


# --- Fences -----------------------------------------------------------------------------------


def test_no_answer_to_a_fencing_request_before_the_fence_is_durable() -> None:
    """B4: this holds for every kind of response; adds are refused from the request on."""

    async def story(scene: Scene) -> None:
        recoverer, writer = await scene.connect(3), await scene.connect(2)
        tally = Tally(writer)
        writer.send(pack(writer, 7, range(3)))
        await until(lambda: tally.acked == 3)
        scene.node.disk.hang()
        asked = [
            recoverer.ask(EntryRead(L7, NO_ENTRY, KEY, fence=True)),
            recoverer.ask(EntryRead(L7, EntryId(1), KEY, fence=True)),
            recoverer.ask(EntryRead(L7, EntryId(77), KEY, fence=True)),
            recoverer.ask(EntryRead(LedgerId(99), EntryId(0), KEY, fence=True)),
        ]
        refused = await recoverer.call(EntryRead(L7, NO_ENTRY, ledger_key(b"other"), fence=True))
        assert isinstance(refused, ReadReply)
        assert refused.error is Unauthorized  # This response does not depend on the fence.
        writer.send(pack(writer, 7, [3]))
        await asyncio.sleep(5)
        assert not any(each.done() for each in asked)
        assert (tally.acked, tally.refused) == (3, {"LedgerFenced": 1})
        assert not scene.storage.is_fenced(7)
        scene.node.disk.unhang()
        replies = await asyncio.gather(*asked)
        assert [(r.error, r.last_add_confirmed) for r in replies if isinstance(r, ReadReply)] == [
            (None, None),
            (None, None),
            (NoSuchEntry, None),
            (NoSuchEntry, None),
        ]
        assert scene.storage.is_fenced(7)
        assert scene.storage.is_fenced(99)
        writer.send(pack(writer, 99, [0]))
        await until(lambda: tally.refused == {"LedgerFenced": 2})

    tell(story)


def test_fence_refuses_later_adds_on_its_own_connection() -> None:
    async def story(scene: Scene) -> None:
        client = await scene.connect(3)
        tally = Tally(client)
        client.send(pack(client, 7, range(3)))
        fenced = client.ask(EntryRead(L7, NO_ENTRY, KEY, fence=True))
        reply = await fenced
        assert isinstance(reply, ReadReply)
        assert reply.body == scene.storage.peek(7, 2)  # Adds accepted before the fence are kept.
        client.send(pack(client, 7, [3]))
        await until(lambda: tally.answered == 4)
        assert tally.refused == {"LedgerFenced": 1}

    tell(story)


def test_urgent_reads_do_not_wait_for_ordinary_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk has stopped serving ordinary reads, and each client has more of them than may run."""

    async def story(scene: Scene) -> None:
        clients = [await scene.connect() for _ in range(3)]
        await add_entries(scene.storage, 7, range(20))
        may_read = asyncio.Event()
        read = scene.storage.read

        async def slow_read(ledger_id: int, entry_id: int) -> bytes:
            await may_read.wait()
            return await read(ledger_id, entry_id)

        monkeypatch.setattr(scene.storage, "peek", lambda ledger_id, entry_id: None)
        monkeypatch.setattr(scene.storage, "read", slow_read)
        slow = [client.ask(EntryRead(L7, EntryId(e))) for client in clients for e in range(20)]
        await asyncio.sleep(1)
        fenced = await clients[0].call(EntryRead(L7, NO_ENTRY, KEY, fence=True))
        assert isinstance(fenced, ReadReply)
        assert fenced.body == entry(7, 19)
        urgent = await clients[1].call(EntryRead(L7, NO_ENTRY), is_high_priority=True)
        assert isinstance(urgent, ReadReply)
        assert urgent.body == entry(7, 19)
        assert not any(each.done() for each in slow)
        may_read.set()
        await asyncio.gather(*slow)

    tell(story, config=ServerConfig(reads_max=4, connection_reads_max=2))


def test_fence_with_a_key_of_wrong_size_creates_no_ledger() -> None:
    async def story(scene: Scene) -> None:
        client = await scene.connect()
        for key in (None, b"", b"short", KEY + b"x"):
            reply = await client.call(EntryRead(L7, NO_ENTRY, key, fence=True))
            assert isinstance(reply, ReadReply)
            assert reply.error is Unauthorized
        assert not scene.storage.knows(7)

    tell(story)


@pytest.mark.parametrize(
    "packet",
    [
        b"",
        digest_of(7).pack_lac(EntryId(1))[:-1],
        digest_of(7).pack_lac(EntryId(1)) + b"x",
        digest_of(7).pack_lac(EntryId(1)) + bytes(5000),
        digest_of(7).pack_lac(EntryId(2)),
        digest_of(8).pack_lac(EntryId(1)),
    ],
)
def test_invalid_lac_packet_is_refused_and_not_kept(packet: bytes) -> None:
    async def story(scene: Scene) -> None:
        client = await scene.connect()
        await add_entries(scene.storage, 7, [0])
        assert await client.call(WriteLac(L7, EntryId(1), KEY, packet)) == WriteLacReply(
            InvalidRequest, L7
        )
        assert scene.storage.lac_packet(7) is None
        assert scene.storage.last_add_confirmed(7) == -1

    tell(story)


# --- Long polls -------------------------------------------------------------------------------


def poll(previous_lac: int, timeout_ms: int = 5000, entry_id: EntryId = NO_ENTRY) -> EntryRead:
    lac = EntryId(previous_lac)
    return EntryRead(L7, entry_id, previous_lac=lac, timeout_ms=timeout_ms, piggyback=True)


def test_a_long_poll_ends_when_the_lac_rises() -> None:
    async def story(scene: Scene) -> None:
        client = await scene.connect()
        await add_entries(scene.storage, 7, [0])
        waiting = client.ask(poll(-1))
        await asyncio.sleep(1)
        assert not waiting.done()
        await add_entries(scene.storage, 7, [1])
        reply = await waiting
        assert isinstance(reply, ReadReply)
        assert (reply.entry_id, reply.last_add_confirmed) == (0, 0)
        assert reply.body == entry(7, 0)
        assert reply.lac_updated_ms is not None
        assert abs(reply.lac_updated_ms - scene.node.clock.wall_us() // 1000) < 1000
        assert not scene.storage.lac_watchers

    tell(story)


def test_long_poll_returns_a_lac_before_the_add_that_carries_it_is_durable() -> None:
    """The LAC is true even if the add fails; a restart relies on the durable LAC only (B1)."""

    async def story(scene: Scene) -> None:
        client = await scene.connect()
        await add_entries(scene.storage, 7, [0])
        waiting = client.ask(poll(-1))
        await asyncio.sleep(1)
        scene.node.disk.sync_s = (20.0, 20.0)
        adding = asyncio.ensure_future(add_entries(scene.storage, 7, [1]))
        async with asyncio.timeout(10):
            reply = await waiting
        assert isinstance(reply, ReadReply)
        assert (reply.entry_id, reply.last_add_confirmed) == (0, 0)
        assert reply.body == entry(7, 0)
        assert not adding.done()
        assert scene.storage.last_add_confirmed(7) == -1
        async with asyncio.timeout(10):
            at_once = await client.call(poll(-1))
        assert isinstance(at_once, ReadReply)
        assert at_once.body == entry(7, 0)
        await adding
        assert scene.storage.last_add_confirmed(7) == 0

    tell(story)


def test_long_poll_returns_the_same_from_disk_as_from_memory() -> None:
    """The same rule applies wherever the first entry was found."""

    async def story(scene: Scene) -> None:
        client = await scene.connect()
        await add_entries(scene.storage, 7, range(4))
        wanted = poll(-1)._replace(following_bytes_max=10_000)
        in_memory = await client.call(wanted)
        as_ever = scene.storage.peek

        def forget_the_first(ledger_id: int, entry_id: int) -> bytes | None:
            return as_ever(ledger_id, entry_id) if entry_id else None

        scene.storage.peek = forget_the_first
        on_disk = await client.call(wanted)
        assert isinstance(on_disk, ReadReply)
        assert len(on_disk.following) == 2
        assert on_disk == in_memory

    tell(story)


def test_long_poll_returns_confirmed_entries_after_its_own() -> None:
    """It returns as many bytes as requested, but no unconfirmed entry and none after a gap."""

    async def story(scene: Scene) -> None:
        client = await scene.connect()
        await add_entries(scene.storage, 7, [0, 1, 2, 3, 5, 6])
        for previous, wanted, entries in (
            (-1, 10_000, [0, 1, 2, 3]),
            (-1, 0, [0]),
            (-1, 2 * len(entry(7, 0)), [0, 1]),
            (2, 10_000, [3]),
            (4, 10_000, [5]),
        ):
            reply = await client.call(poll(previous)._replace(following_bytes_max=wanted))
            assert isinstance(reply, ReadReply)
            assert [reply.body, *reply.following] == [entry(7, each) for each in entries]
            assert (reply.entry_id, reply.last_add_confirmed) == (entries[0], 5)

    tell(story)


def test_explicit_lac_ends_a_long_poll_without_an_entry() -> None:
    async def story(scene: Scene) -> None:
        client = await scene.connect()
        await add_entries(scene.storage, 7, [0, 2])
        waiting = client.ask(poll(2))
        packet = digest_of(7).pack_lac(EntryId(3))
        await client.call(WriteLac(L7, EntryId(3), KEY, packet))
        reply = await waiting
        assert isinstance(reply, ReadReply)
        assert reply == ReadReply(None, L7, NO_ENTRY, None, EntryId(3), reply.lac_updated_ms)

    tell(story)


def test_long_poll_ends_at_its_timeout_or_without_a_ledger() -> None:
    async def story(scene: Scene) -> None:
        client = await scene.connect()
        unknown = await client.call(poll(-1))
        assert isinstance(unknown, ReadReply)
        assert unknown.error is NoSuchLedger
        await add_entries(scene.storage, 7, [0, 1])
        loop = asyncio.get_running_loop()
        started = loop.time()
        at_once = await client.call(poll(-1))
        assert isinstance(at_once, ReadReply)
        assert at_once == ReadReply(None, L7, EntryId(0), entry(7, 0), EntryId(0))
        for timeout_ms in (0, -5):
            now = await client.call(poll(0, timeout_ms))
            assert now == ReadReply(None, L7, NO_ENTRY, None, EntryId(0))
        assert loop.time() - started < 1
        late = await client.call(poll(0, 500))
        assert late == ReadReply(None, L7, NO_ENTRY, None, EntryId(0))
        assert 0.5 <= loop.time() - started < 2
        bounded = await client.call(poll(0, 2**62), timeout_s=1000)
        assert bounded == late
        gone = client.ask(poll(0, 50_000))
        await asyncio.sleep(1)
        await scene.storage.delete(7)
        reply = await asyncio.wait_for(gone, 5)
        assert isinstance(reply, ReadReply)
        assert reply.error is NoSuchLedger

    tell(story)


def test_long_poll_returns_the_lac_of_a_ledger_in_doubt() -> None:
    """B1: a possible loss here does not matter to a reader that can ask other bookies."""

    async def story(scene: Scene) -> None:
        client = await scene.connect()
        await add_entries(scene.storage, 7, [0])
        await scene.storage.write_lac(7, KEY, 3, digest_of(7).pack_lac(EntryId(3)))
        await scene.storage.distrust([7])
        reply = await client.call(poll(1))
        assert reply == ReadReply(None, L7, NO_ENTRY, None, EntryId(3))

    tell(story)


def test_a_long_poll_for_one_entry_waits_and_then_reads_it() -> None:
    async def story(scene: Scene) -> None:
        client = await scene.connect()
        await add_entries(scene.storage, 7, [0])
        waiting = client.ask(EntryRead(L7, EntryId(1), previous_lac=NO_ENTRY, timeout_ms=5000))
        await asyncio.sleep(1)
        assert not waiting.done()
        await add_entries(scene.storage, 7, [1])
        reply = await waiting
        assert isinstance(reply, ReadReply)
        assert (reply.entry_id, reply.body) == (1, entry(7, 1))

    tell(story)


def test_invalid_long_polls_are_refused() -> None:
    async def story(scene: Scene) -> None:
        client = await scene.connect()
        await add_entries(scene.storage, 7, [0])
        for read in (poll(-1, entry_id=EntryId(3)), EntryRead(L7, NO_ENTRY, piggyback=True)):
            reply = await client.call(read)
            assert isinstance(reply, ReadReply)
            assert reply.error is not None
            assert reply.error.code.v3 == 404

    tell(story)


def test_long_polls_are_bounded_and_freed_on_disconnect() -> None:
    """B7."""

    async def story(scene: Scene) -> None:
        leaving, staying = await scene.connect(), await scene.connect()
        await add_entries(scene.storage, 7, [0])
        parked = [leaving.ask(poll(0, 50_000)) for _ in range(50)]
        await asyncio.sleep(0.5)
        refused = await staying.call(poll(0))
        assert isinstance(refused, ReadReply)
        assert refused.error is Overloaded
        assert scene.world.network.reset("client", "b1")
        await asyncio.gather(*parked, return_exceptions=True)
        await until(lambda: not scene.storage.lac_watchers, 5)
        staying = await scene.connect()
        accepted = staying.ask(poll(0, 1000))
        await asyncio.sleep(0.5)
        assert not accepted.done()
        await accepted

    tell(story, config=ServerConfig(long_polls_max=50))


def test_a_thousand_readers_of_one_ledger_are_woken_by_one_add() -> None:
    async def story(scene: Scene) -> None:
        clients = [await scene.connect() for _ in range(20)]
        await add_entries(scene.storage, 7, [0])
        waiting = [client.ask(poll(-1, 50_000)) for client in clients for _ in range(50)]
        await asyncio.sleep(1)
        await add_entries(scene.storage, 7, [1])
        for reply in await asyncio.gather(*waiting):
            assert isinstance(reply, ReadReply)
            assert reply.body == entry(7, 0)

    tell(story)


@pytest.mark.parametrize("is_added_through_the_server", [False, True])
def test_crash_of_a_long_poll_closes_only_its_own_connection(
    is_added_through_the_server: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash_once(answers: Answers, request: Request, news_ms: int | None = None) -> Reply | None:
        if news_ms is not None and not crashed:
            crashed.append(request)
            raise ZeroDivisionError
        return as_ever(answers, request, news_ms)

    async def story(scene: Scene) -> None:
        adder, *readers = [await scene.connect() for _ in range(7)]
        tally = Tally(adder)
        await add_entries(scene.storage, 7, [0])
        for entry_id in (1, 2):
            polls = [reader.ask(poll(entry_id - 2, 50_000)) for reader in readers]
            await asyncio.sleep(1)
            if is_added_through_the_server:
                adder.send(pack(adder, 7, [entry_id]))
                await until(lambda: tally.acked)
            else:
                await add_entries(scene.storage, 7, [entry_id])
            replies = await asyncio.gather(*polls, return_exceptions=True)
            lost = [each for each in replies if isinstance(each, ConnectionLost)]
            assert len(lost) == (entry_id == 1)
            for reader, reply in zip(tuple(readers), replies, strict=True):
                if reply in lost:
                    readers.remove(reader)
                else:
                    assert isinstance(reply, ReadReply)
                    assert reply.entry_id == entry_id - 1
        assert len(crashed) == 1
        assert scene.storage.stats.connections_closed["crashed"] == 1

    crashed: list[Request] = []
    as_ever = Answers.at_once
    monkeypatch.setattr(Answers, "at_once", crash_once)
    tell(story)


def test_a_few_long_polls_are_answered_before_their_add_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The write may block the loop for the time of a sync; the first few responses precede it."""
    steps: list[str] = []

    def answer(connection: Connection, call: ReceivedRequest, reply: Reply) -> int:
        steps.append("told")
        return told_as_ever(connection, call, reply)

    def write(file: SimulatedFile, position: int, buffers: Sequence[Buffer]) -> None:
        steps.append("written")
        written_as_ever(file, position, buffers)

    async def story(scene: Scene) -> None:
        adder, reader = await scene.connect(), await scene.connect()
        tally = Tally(adder)
        scene.node.disk.quick_odds = 1.0
        for entry_id in range(10):  # Until it is a lone writer, whose adds are written at once.
            adder.send(pack(adder, 7, [entry_id]))
            await until(lambda done=entry_id: tally.acked == done + 1)
        polls = [reader.ask(poll(8, 50_000)) for _ in range(5)]
        await asyncio.sleep(1)
        steps.clear()
        adder.send(pack(adder, 7, [10]))
        for reply in await asyncio.gather(*polls):
            assert isinstance(reply, ReadReply)
            assert reply.entry_id == 9
        assert steps == ["told"] * 4 + ["written", "told"]

    told_as_ever, written_as_ever = Connection._answer, SimulatedFile.write_and_sync_now
    monkeypatch.setattr(Connection, "_answer", answer)
    monkeypatch.setattr(SimulatedFile, "write_and_sync_now", write)
    tell(story)


# --- Too much -----------------------------------------------------------------------------------


def test_overloaded_bookie_stops_reading_and_loses_no_add() -> None:
    """B7: requests that exceed the buffers wait on the client's machine and are answered later."""

    async def story(scene: Scene) -> None:
        clients = [await scene.connect(version) for version in (2, 3) * 5]
        tallies = [Tally(client) for client in clients]
        scene.node.disk.hang()
        for number, client in enumerate(clients):
            client.send(pack(client, 100 + number, range(500), size=1000))
        for _ in range(100):
            await asyncio.sleep(0.1)
            # The floors, the pool, and the chunk that each connection read before it was stopped.
            assert scene.storage.stats.buffered_bytes() <= 10 * 4096 + 65536 + 10 * 4096
        assert not any(tally.answered for tally in tallies)
        scene.node.disk.unhang()
        await until(lambda: all(tally.acked == 500 for tally in tallies))
        assert scene.storage.stats.buffered_bytes() == 0

    tell(story, config=TIGHT, storage_config=replace(STORAGE, journal_file_bytes=16 * 1024 * 1024))


def test_reads_are_answered_while_writers_hold_all_memory() -> None:
    """B7: otherwise clients whose responses would free memory could not get them."""

    async def story(scene: Scene) -> None:
        await add_entries(scene.storage, 7, [0])
        writers = [await scene.connect() for _ in range(20)]
        scene.node.disk.hang()
        for number, writer in enumerate(writers):
            writer.send(pack(writer, 100 + number, range(100), size=1000))
        await asyncio.sleep(5)
        reader = await scene.connect()
        asked = [reader.ask(EntryRead(L7, NO_ENTRY)) for _ in range(50)]
        for reply in await asyncio.wait_for(asyncio.gather(*asked), 5):
            assert isinstance(reply, ReadReply)
            assert reply.body == entry(7, 0)
        scene.node.disk.unhang()

    tell(story, config=TIGHT)


def test_fence_does_not_wait_for_reads_when_memory_is_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Besides one ordinary response at a time, one urgent response may be prepared."""

    async def story(scene: Scene) -> None:
        client = await scene.connect()
        await add_entries(scene.storage, 7, [0])
        never = asyncio.Event()

        async def hung_read(ledger_id: int, entry_id: int) -> bytes:
            await never.wait()
            raise AssertionError

        monkeypatch.setattr(scene.storage, "peek", lambda ledger_id, entry_id: None)
        monkeypatch.setattr(scene.storage, "read", hung_read)
        others = [await scene.connect() for _ in range(4)]
        hung = [each.ask(EntryRead(L7, EntryId(0))) for each in (client, *others) for _ in range(5)]
        await asyncio.sleep(1)
        assert scene.storage.stats.buffered_bytes() > 64 * 1024
        fenced = await client.call(EntryRead(L7, NO_ENTRY, KEY, fence=True), timeout_s=5)
        assert isinstance(fenced, ReadReply)
        assert fenced.body == entry(7, 0)
        assert not any(each.done() for each in hung)
        for each in (client, *others):
            each.abort()
        await asyncio.gather(*hung, return_exceptions=True)

    tell(story, config=TIGHT)


def test_memory_of_a_disconnected_client_is_reused() -> None:
    """B7: its adds are still in the journal's queue and use memory until they are written."""

    async def story(scene: Scene) -> None:
        gone = [await scene.connect() for _ in range(4)]
        scene.node.disk.hang()
        for number, client in enumerate(gone):
            client.send(pack(client, 100 + number, range(200), size=1000))
        await asyncio.sleep(2)
        scene.world.network.reset("client", "b1")
        late = await scene.connect(2)
        tally = Tally(late)
        late.send(pack(late, 8, range(200), size=1000))
        await asyncio.sleep(2)
        assert not tally.answered
        scene.node.disk.unhang()
        await until(lambda: tally.acked == 200)

    tell(story, config=TIGHT)


def test_client_with_waiting_requests_is_not_read_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """B7: this holds for small requests too."""

    async def story(scene: Scene) -> None:
        client = await scene.connect()
        may_read = asyncio.Event()
        read_last = scene.storage.read_last

        async def slow_read(ledger_id: int) -> bytes:
            await may_read.wait()
            return await read_last(ledger_id)

        monkeypatch.setattr(scene.storage, "read_last", slow_read)
        await add_entries(scene.storage, 7, [0])
        asked = [client.ask(EntryRead(L7, NO_ENTRY)) for _ in range(5000)]
        await asyncio.sleep(5)
        running = 16 * 64 * 1024
        assert scene.storage.stats.buffered_bytes() < running + 256 * 1024
        may_read.set()
        await asyncio.gather(*asked)

    tell(story)


def test_adds_above_the_queue_limit_are_refused_as_overloaded() -> None:
    """B7: adds of a recovery are still accepted."""

    async def story(scene: Scene) -> None:
        clients = [await scene.connect(version) for version in (2, 3) * 20]
        tallies = [Tally(client) for client in clients]
        scene.node.disk.hang()
        for number, client in enumerate(clients):
            client.send(pack(client, 100 + number, range(50), size=1000))
        await asyncio.sleep(5)
        busy = sum(tally.refused.get("Overloaded", 0) for tally in tallies)
        assert busy
        recoverer = await scene.connect()
        recovered = Tally(recoverer)
        ledger = recoverer.ledger(99)
        recoverer.send(ledger.pack(0, -1, b"x", is_recovery=True, is_high_priority=True))
        await asyncio.sleep(1)
        assert not recovered.answered  # It was not refused, but waits for the disk.
        scene.node.disk.unhang()
        await until(lambda: all(tally.answered == 50 for tally in tallies))
        await until(lambda: recovered.acked == 1)
        assert all(set(tally.refused) <= {"Overloaded"} for tally in tallies)

    tell(story, config=TIGHT, storage_config=replace(STORAGE, queued_bytes_max=40_000))


@pytest.mark.parametrize("is_cached", [True, False])
def test_responses_for_a_slow_reader_are_not_prepared_ahead(is_cached: bool) -> None:
    """B7: this holds for reads from memory and from disk."""

    async def story(scene: Scene) -> None:
        slow, quick = await scene.connect(), await scene.connect(2)
        for entry_id in range(200):
            await add_entries(scene.storage, 7, [entry_id], bytes(10_000))
        slow.pause()
        asked = [slow.ask(EntryRead(L7, EntryId(e))) for _ in range(10) for e in range(200)]
        for _ in range(50):
            await asyncio.sleep(0.1)
            reply = await quick.call(EntryRead(L7, EntryId(0)))
            assert isinstance(reply, ReadReply)
            assert reply.error is None
            assert scene.storage.stats.buffered_bytes() < 300_000
        assert not all(each.done() for each in asked)
        slow.resume()
        for number, each in enumerate(await asyncio.gather(*asked)):
            assert isinstance(each, ReadReply)
            assert each.body == entry(7, number % 200, bytes(10_000))

    cache_bytes = 10_000_000 if is_cached else 100_000
    config = replace(STORAGE, cache_bytes=cache_bytes, journal_file_bytes=16 * 1024 * 1024)
    tell(story, config=replace(TIGHT, unread_timeout_s=1000), storage_config=config)


def test_client_that_reads_nothing_is_cut_off_and_a_slow_one_is_not() -> None:
    async def story(scene: Scene) -> None:
        never, slowly = await scene.connect(), await scene.connect()
        await add_entries(scene.storage, 7, [0], bytes(60_000))
        for client in (never, slowly):
            client.pause()
            for _ in range(20):
                client.ask(EntryRead(L7, EntryId(0)))
        for _ in range(120):
            await asyncio.sleep(1)
            slowly.resume()
            await asyncio.sleep(0.001)
            slowly.pause()
        assert scene.storage.stats.connections() == 1
        assert scene.storage.stats.connections_closed == {"unread_answers": 1}

    tell(story)


def test_large_response_over_a_slow_link_is_completed() -> None:
    async def story(scene: Scene) -> None:
        client = await scene.connect()
        await add_entries(scene.storage, 7, [0], bytes(4_000_000))
        scene.world.network.link("b1", "client").bytes_per_s = 40_000
        reply = await client.call(EntryRead(L7, EntryId(0)), timeout_s=1000)
        assert isinstance(reply, ReadReply)
        assert reply.body == entry(7, 0, bytes(4_000_000))

    tell(story, storage_config=replace(STORAGE, journal_file_bytes=16 * 1024 * 1024))


@pytest.mark.parametrize("version", [2, 3])
def test_large_response_is_written_as_the_client_reads_it(version: int) -> None:
    """B7: all of it counts as buffered, and the transport gets only one piece at a time."""

    async def story(scene: Scene) -> None:
        await add_entries(scene.storage, 7, range(200), bytes(20_000))
        slow, other = await scene.connect(version), await scene.connect()
        connection = next(iter(scene.server._connections))
        slow.pause()
        asked = slow.ask(BatchRead(L7, EntryId(0), 1, 200, 4_000_000))
        await asyncio.sleep(1)
        buffered = scene.storage.stats.buffered_bytes()
        assert buffered > 3_000_000
        assert 0 < connection._transport.get_write_buffer_size() < 200_000
        assert isinstance(await other.call(EntryRead(L7, EntryId(0)), timeout_s=1), ReadReply)
        slow.resume()
        reply = await asked
        assert isinstance(reply, BatchReadReply)
        assert list(reply.bodies) == [
            entry(7, number, bytes(20_000)) for number in range(len(reply.bodies))
        ]
        assert len(reply.bodies) > 190
        await until(lambda: scene.storage.stats.buffered_bytes() == 0)

    tell(story, storage_config=replace(STORAGE, journal_file_bytes=16 * 1024 * 1024))


def test_half_closed_client_gets_all_of_a_large_response() -> None:
    async def story(scene: Scene) -> None:
        await add_entries(scene.storage, 7, [0], bytes(4_000_000))
        raw = await scene.raw()
        raw.send(v2.pack_request(EntryRead(L7, EntryId(0))))
        raw.transport.write_eof()
        await raw.closed()
        assert len(raw.received) > 4_000_000

    tell(story, storage_config=replace(STORAGE, journal_file_bytes=16 * 1024 * 1024))


def test_reader_with_unread_responses_is_closed_when_memory_is_short() -> None:
    """B7: unread responses would make every other client wait. Those that have waited the longest
    are closed first, and a client that reads is not closed."""

    async def story(scene: Scene) -> None:
        readers = [await scene.connect() for _ in range(20)]
        reading = await scene.connect()
        await add_entries(scene.storage, 7, [0], bytes(60_000))
        for reader in readers:
            reader.pause()
            for _ in range(10):
                reader.ask(EntryRead(L7, EntryId(0)))
            await asyncio.sleep(0.05)
        for _ in range(12):
            reply = await reading.call(EntryRead(L7, EntryId(0)))
            assert isinstance(reply, ReadReply)
            await asyncio.sleep(1)
        closed = scene.storage.stats.connections_closed
        assert set(closed) == {"unread_answers"}
        count = closed["unread_answers"]
        assert 1 <= count < 20
        assert scene.storage.stats.buffered_bytes() < 300_000
        for reader in readers:
            reader.resume()  # A paused client does not see that its connection was closed.
        await asyncio.sleep(1)
        assert [each.lost.done() for each in readers] == [True] * count + [False] * (20 - count)
        assert not reading.lost.done()
        quick = await scene.connect()
        reply = await quick.call(EntryRead(L7, EntryId(0)))
        assert isinstance(reply, ReadReply)
        assert reply.body is not None

    tell(story, config=TIGHT)


def test_partial_requests_do_not_block_each_other() -> None:
    """They exceed the memory, but complete one after the other."""

    async def story(scene: Scene) -> None:
        clients = [await scene.connect(version) for version in (2, 3) * 4]
        tallies = [Tally(client) for client in clients]
        frames = [pack(client, 7, [n], size=50_000) for n, client in enumerate(clients)]
        for piece in range(10):
            for client, frame in zip(clients, frames, strict=True):
                client.send(frame[piece * 6000 : (piece + 1) * 6000])
            await asyncio.sleep(0.1)
        await until(lambda: all(tally.acked == 1 for tally in tallies))

    tell(story, config=TIGHT)


def test_connections_are_bounded() -> None:
    async def story(scene: Scene) -> None:
        first = [await scene.connect() for _ in range(3)]
        late = await scene.connect()
        with pytest.raises(ConnectionLost):
            await late.call(EntryRead(L7, EntryId(0)))
        await first[0].close()
        await asyncio.sleep(1)
        reply = await (await scene.connect()).call(EntryRead(L7, EntryId(0)))
        assert isinstance(reply, ReadReply)
        assert reply.error is NoSuchLedger
        assert scene.storage.stats.connections_closed == {"too_many": 1}

    tell(story, config=ServerConfig(connections_max=3))


def test_no_add_passes_a_fence_that_was_answered() -> None:
    """A fence applies to adds in every queue once it is answered."""

    async def story(scene: Scene) -> None:
        writer, recoverer = await scene.connect(2), await scene.connect(3)
        tally = Tally(writer)
        writer.send(pack(writer, 7, range(100)))
        reply = await recoverer.call(EntryRead(L7, NO_ENTRY, KEY, fence=True))
        assert isinstance(reply, ReadReply)
        acked_then = tally.acked
        last = -1 if reply.error else int.from_bytes(bytes(reply.body or b"")[8:16], "big")
        await until(lambda: tally.answered == 100)
        assert acked_then <= tally.acked == last + 1
        assert tally.refused == ({"LedgerFenced": 99 - last} if last < 99 else {})

    for seed in range(20):
        tell(story, seed)


def test_adds_are_written_even_if_their_step_raises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise these adds would stay in the journal's queue, since later adds do not wake it."""

    async def story(scene: Scene) -> None:
        client = await scene.connect(2)
        await client.call(EntryRead(L7, EntryId(0)))
        (connection,) = connections_of(scene)
        monkeypatch.delattr(Connection, "_on_call")
        adds = pack(client, 7, range(3))
        asked = adds + v2.pack_request(EntryRead(L7, EntryId(0)))
        connection.get_buffer(-1)[: len(asked)] = asked
        with pytest.raises(AttributeError):
            connection.buffer_updated(len(asked))
        await until(lambda: scene.storage.peek(7, 2) is not None, 1.0)

    tell(story)


def test_closed_connection_is_garbage_collected() -> None:
    async def visit(scene: Scene) -> "list[weakref.ref[Connection]]":
        client = await scene.connect(2)
        tally = Tally(client)
        client.send(pack(client, 7, range(3)))
        await until(lambda: tally.acked == 3)
        here = [weakref.ref(connection) for connection in connections_of(scene)]
        await client.close()
        await until(lambda: not connections_of(scene))
        return here

    async def story(scene: Scene) -> None:
        (gone,) = await visit(scene)
        gc.collect()
        assert gone() is None

    tell(story)
