"""The connection pool, with well-behaved and misbehaving bookies."""

import asyncio
from dataclasses import replace
from functools import partial

import pytest

from rollbook.ledger.bookie_client import BookieClient
from rollbook.ledger.bookie_pool import AddChannel, Bookies
from rollbook.ledger.config import ClientConfig
from rollbook.proto.errors import (
    BookieFailed,
    BookieTimeout,
    BookieUnreachable,
    ConnectionLost,
    LedgerFenced,
    NoSuchEntry,
    Overloaded,
    RollbookError,
    Unauthorized,
)
from rollbook.proto.formats.service_info import BATCH_READ, IDENTITY, describe_bookie
from rollbook.proto.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from rollbook.proto.ports import Address
from rollbook.proto.wire.add_columns import Adds
from rollbook.proto.wire.frames import pack_frame
from rollbook.proto.wire.messages import (
    BatchRead,
    EntryRead,
    ForceLedger,
    GetBookieInfo,
    ListEntries,
    ReadLac,
    ReadReply,
    ReceivedRequest,
    Refusal,
    Reply,
    Request,
    WriteLac,
    refusal_of,
)
from rollbook.proto.wire.v2 import V2ReplyHeader as V2Origin
from tests.unit.ledger.scripted_bookie import (
    KEY,
    PORT,
    Listening,
    Peer,
    Scene,
    acknowledge,
    find_nothing,
    ignore,
    play,
)

B1 = BookieId("b1")
L7 = LedgerId(7)
V3 = ClientConfig()
V2 = ClientConfig(protocol_version=2)
BOTH = pytest.mark.parametrize("config", [V3, V2], ids=["v3", "v2"])
MIB = 1024 * 1024


def read(entry_id: int, ledger_id: int = 7) -> EntryRead:
    return EntryRead(LedgerId(ledger_id), EntryId(entry_id))


def fence(entry_id: int) -> EntryRead:
    return EntryRead(L7, EntryId(entry_id), KEY, fence=True)


def batch(*, is_sparse: bool = False) -> BatchRead:
    return BatchRead(L7, EntryId(0), 1, 10, 1000, is_sparse=is_sparse)


async def outcome(bookies: Bookies, request: Request, deadline_s: float = 5.0) -> Reply | Exception:
    try:
        return await bookies.call(B1, request, deadline_s=deadline_s)
    except RollbookError as error:
        return error


def frames_of(scene: Scene, count: int, size: int = 100, first: int = 0) -> list[bytes]:
    packer = scene.packer(7)
    entries = range(first, first + count)
    return [packer.pack(EntryId(e), NO_ENTRY, 0, bytes(size)) for e in entries]


def is_open(channel: AddChannel) -> bool:
    return channel.is_open


async def closed_while_stuck(scene: Scene) -> Peer:
    """Write 30 adds to a bookie that does not read for now, then close the channel."""
    bookie = scene.bookie("b1")
    channel = scene.bookies.add_channel(B1, L7, Listening())
    await scene.until(lambda: channel.is_open)
    (peer,) = bookie.peers
    peer.transport.pause_reading()
    channel.write(frames_of(scene, 30, 50_000), 30)
    channel.close()
    return peer


def refuse(error: type[RollbookError], peer: Peer, call: ReceivedRequest) -> None:
    peer.send(call.answer(refusal_of(call.request, error)))


# --- Calls ------------------------------------------------------------------------------------


@BOTH
def test_calls_get_their_replies_over_one_connection(config: ClientConfig) -> None:
    async def story(scene: Scene) -> None:
        calls = [scene.bookies.call(B1, read(e), deadline_s=5) for e in range(100)]
        replies = await asyncio.gather(*calls)
        assert replies == [ReadReply(NoSuchEntry, L7, EntryId(e)) for e in range(100)]
        await scene.bookies.call(B1, read(4), deadline_s=5, is_high_priority=True)
        assert len(scene.bookie("b1").peers) == 1

    play(story, config=config)


@BOTH
def test_replies_in_reverse_order_reach_their_calls(config: ClientConfig) -> None:
    def answer_backwards(peer: Peer, _: ReceivedRequest) -> None:
        if len(peer.calls) == 10:
            for call in reversed(peer.calls):
                find_nothing(peer, call)

    async def story(scene: Scene) -> None:
        scene.bookie("b1").on_call = answer_backwards
        calls = [scene.bookies.call(B1, read(e), deadline_s=5) for e in range(10)]
        replies = await asyncio.gather(*calls)
        assert [r.entry_id for r in replies if isinstance(r, ReadReply)] == list(range(10))

    play(story, config=config)


def test_large_burst_is_partly_sent_before_the_loop_turn_ends() -> None:
    """The bookie can start while later requests are packed; unsent cancelled ones are dropped."""

    async def story(scene: Scene) -> None:
        await scene.bookies.call(B1, read(0), deadline_s=5)
        (peer,) = scene.bookie("b1").peers
        del peer.calls[:]
        start = partial(scene.bookies.start, B1, deadline_s=5, is_high_priority=False)
        for reply in [start(read(entry_id)) for entry_id in range(80)]:
            assert reply is not None
            reply.cancel()
        await scene.bookies.call(B1, read(80), deadline_s=5)
        asked = [
            each.request.entry_id for each in peer.calls if isinstance(each.request, EntryRead)
        ]
        assert asked == [*range(64), 80]

    play(story)


def test_requests_unknown_to_v2_use_a_v3_connection() -> None:
    async def story(scene: Scene) -> None:
        for request in (
            WriteLac(L7, EntryId(0), KEY, b"packet"),
            ReadLac(L7),
            ForceLedger(L7),
            ListEntries(L7),
            GetBookieInfo(total_bytes=True, free_bytes=True),
            EntryRead(L7, NO_ENTRY, previous_lac=EntryId(3), timeout_ms=10),
        ):
            reply = await scene.bookies.call(B1, request, deadline_s=5)
            assert reply == refusal_of(request, NoSuchEntry)
        await scene.bookies.call(B1, read(1), deadline_s=5)
        beside, plain = scene.bookie("b1").peers
        assert (len(beside.calls), len(plain.calls)) == (6, 1)

    play(story, config=V2)


def test_v3_batch_reads_are_sent_only_to_announcing_bookies() -> None:
    async def story(scene: Scene) -> None:
        await scene.bookies.call(B1, batch(), deadline_s=5)
        assert not scene.bookies.has_extension(B1, BATCH_READ)
        scene.infos[B1] = describe_bookie(Address("b1", PORT), extensions=(BATCH_READ,))
        assert scene.bookies.has_extension(B1, BATCH_READ)
        await scene.bookies.call(B1, batch(is_sparse=True), deadline_s=5)
        old, new = scene.bookie("b1").peers
        assert isinstance(old.calls[0].origin, V2Origin)
        assert not isinstance(new.calls[0].origin, V2Origin)

    play(story)


@BOTH
def test_bookie_closing_on_batch_reads_is_not_quarantined(config: ClientConfig) -> None:
    """Bookies before 4.17 close the connection; this must not be the writer's connection."""

    def hang_up_on_batches(peer: Peer, call: ReceivedRequest) -> None:
        if isinstance(call.request, BatchRead):
            peer.transport.abort()
        else:
            find_nothing(peer, call)

    async def story(scene: Scene) -> None:
        bookies = scene.bookies
        scene.bookie("b1").on_call = hang_up_on_batches
        sink = Listening()
        channel = bookies.add_channel(B1, L7, sink)
        await scene.until(lambda: channel.is_open)
        assert bookies.has_batches(B1)
        assert isinstance(await outcome(bookies, batch()), ConnectionLost)
        assert not bookies.has_batches(B1)
        assert isinstance(await outcome(bookies, read(1)), ReadReply)
        assert channel.is_open
        assert not scene.health.is_quarantined(B1, scene.client_node.clock.monotonic_ns())
        await asyncio.sleep(601)
        assert bookies.has_batches(B1)

        scene.bookie("b1").on_call = find_nothing
        await outcome(bookies, batch())
        scene.bookie("b1").on_call = hang_up_on_batches
        assert isinstance(await outcome(bookies, batch()), ConnectionLost)
        assert bookies.has_batches(B1), "it had answered a batch read, so the reason is another"

    play(story, config=config)


@BOTH
def test_late_read_response_does_not_complete_a_fencing_read(config: ClientConfig) -> None:
    """CN1: otherwise recovery would take an unfenced bookie for fenced."""

    async def story(scene: Scene) -> None:
        bookie, bookies = scene.bookie("b1"), scene.bookies
        bookie.on_call = ignore
        assert isinstance(await outcome(bookies, read(3), 0.5), BookieTimeout)
        (peer,) = bookie.peers
        fencing = asyncio.ensure_future(outcome(bookies, fence(3), 0.4))
        await scene.until(lambda: sum(len(p.calls) for p in bookie.peers) == 2)
        find_nothing(peer, peer.calls[0])  # The late response to the plain read.
        assert isinstance(await fencing, BookieTimeout)
        bookie.on_call = find_nothing
        assert isinstance(await outcome(bookies, fence(3)), ReadReply)

    play(story, config=config)


@BOTH
def test_concurrent_calls_for_one_entry_get_their_own_replies(config: ClientConfig) -> None:
    """CN1."""

    def refuse_fences(peer: Peer, call: ReceivedRequest) -> None:
        assert isinstance(call.request, EntryRead)
        error = Unauthorized if call.request.fence else NoSuchEntry
        peer.send(call.answer(refusal_of(call.request, error)))

    async def story(scene: Scene) -> None:
        scene.bookie("b1").on_call = refuse_fences
        requests = [read(3), fence(3), read(3)] if config is V3 else [read(3), fence(3)]
        replies = await asyncio.gather(*(outcome(scene.bookies, r) for r in requests))
        errors = [reply.error for reply in replies if isinstance(reply, ReadReply)]
        assert errors == [NoSuchEntry, Unauthorized, NoSuchEntry][: len(requests)]

    play(story, config=config)


@BOTH
@pytest.mark.parametrize(
    "instead",
    [
        ReadReply(NoSuchEntry, L7, EntryId(4)),
        ReadReply(NoSuchEntry, LedgerId(8), EntryId(3)),
        ReadReply(NoSuchEntry, LedgerId(-1), NO_ENTRY),
        ReadReply(NoSuchEntry, LedgerId(7 + (1 << 32)), EntryId(3)),
    ],
)
def test_mismatched_reply_closes_the_connection(config: ClientConfig, instead: Reply) -> None:
    """CN1: only its IDs protect a negative reply."""

    async def story(scene: Scene) -> None:
        bookie = scene.bookie("b1")
        bookie.on_call = lambda peer, call: peer.send(call.answer(instead))
        assert isinstance(await outcome(scene.bookies, read(3)), ConnectionLost)
        assert scene.health.is_quarantined(B1, scene.client_node.clock.monotonic_ns())
        bookie.on_call = find_nothing
        await asyncio.sleep(0.1)
        assert isinstance(await outcome(scene.bookies, read(3)), ReadReply)
        assert len(bookie.peers) == 2

    play(story, config=config)


def test_reply_to_a_timed_out_call_is_ignored() -> None:
    async def story(scene: Scene) -> None:
        bookie = scene.bookie("b1")
        bookie.on_call = ignore
        assert isinstance(await outcome(scene.bookies, read(3), 0.1), BookieTimeout)
        (peer,) = bookie.peers
        bookie.on_call = find_nothing
        find_nothing(peer, peer.calls[0])
        assert isinstance(await outcome(scene.bookies, read(4)), ReadReply)
        assert len(bookie.peers) == 1

    play(story)


def test_refusal_is_returned_as_the_reply() -> None:
    async def story(scene: Scene) -> None:
        bookie = scene.bookie("b1")
        bookie.on_call = lambda peer, call: peer.send(call.answer(Refusal(Unauthorized)))
        assert await outcome(scene.bookies, ReadLac(L7)) == Refusal(Unauthorized)

    play(story)


# --- Deadlines and broken connections -----------------------------------------------------------


@BOTH
def test_silent_bookie_times_out_and_loses_its_connection(config: ClientConfig) -> None:
    async def story(scene: Scene) -> None:
        bookie = scene.bookie("b1")
        bookie.on_call = ignore
        started = scene.world.now
        errors = await asyncio.gather(*(outcome(scene.bookies, read(e), 2.0) for e in range(3)))
        assert [type(error) for error in errors] == [BookieTimeout] * 3
        assert scene.world.now - started == pytest.approx(2.0, abs=0.1)
        await scene.until(lambda: not bookie.living_peers)
        assert scene.health.is_quarantined(B1, scene.client_node.clock.monotonic_ns())

    play(story, config=config)


@BOTH
def test_hung_bookie_is_detected_when_all_calls_are_cancelled(
    config: ClientConfig,
) -> None:
    """Readers cancel a call as soon as another copy has arrived."""

    async def story(scene: Scene) -> None:
        bookie = scene.bookie("b1")
        bookie.on_call = ignore
        for entry_id in range(20):
            asking = asyncio.ensure_future(outcome(scene.bookies, read(entry_id)))
            await asyncio.sleep(0.5)
            asking.cancel()
        await scene.until(lambda: bookie.peers[0].is_gone)

    play(story, config=config)


def test_cancelled_long_poll_keeps_the_connection() -> None:
    async def story(scene: Scene) -> None:
        bookie = scene.bookie("b1")
        bookie.on_call = ignore
        poll = EntryRead(L7, NO_ENTRY, previous_lac=EntryId(3), timeout_ms=60_000)
        polling = asyncio.ensure_future(outcome(scene.bookies, poll, 70.0))
        await asyncio.sleep(1.0)
        polling.cancel()
        await asyncio.sleep(30.0)
        assert not bookie.peers[0].is_gone

    play(story)


def test_calls_cancelled_before_sending_are_not_sent() -> None:
    async def story(scene: Scene) -> None:
        channel = scene.bookies.add_channel(B1, L7, Listening())
        await scene.until(lambda: channel.is_open)
        (peer,) = scene.bookie("b1").peers
        peer.transport.pause_reading()
        channel.write(frames_of(scene, 10, 100_000), 10)
        for entry_id in range(50):
            asking = asyncio.ensure_future(outcome(scene.bookies, read(entry_id)))
            await asyncio.sleep(0.01)
            asking.cancel()
        peer.transport.resume_reading()
        await scene.until(lambda: not channel.unanswered)
        assert peer.calls == []

    play(story)


def test_short_deadline_does_not_quarantine_the_bookie() -> None:
    """A call with little time left does not blame the bookie."""

    async def story(scene: Scene) -> None:
        scene.bookie("b1").on_call = ignore
        assert isinstance(await outcome(scene.bookies, read(1), 0.3), BookieTimeout)
        clock = scene.client_node.clock
        assert not scene.health.is_quarantined(B1, clock.monotonic_ns())
        assert isinstance(await outcome(scene.bookies, read(2), 1.5), BookieTimeout)
        assert scene.health.is_quarantined(B1, clock.monotonic_ns())

    play(story)


def test_one_slow_response_does_not_close_the_connection() -> None:
    def answer_but_one(peer: Peer, call: ReceivedRequest) -> None:
        if call.request != read(0):
            find_nothing(peer, call)

    async def story(scene: Scene) -> None:
        bookie = scene.bookie("b1")
        bookie.on_call = answer_but_one
        slow = asyncio.ensure_future(outcome(scene.bookies, read(0), 3.0))
        while not slow.done():
            await asyncio.sleep(0.5)
            assert isinstance(await outcome(scene.bookies, read(1)), ReadReply)
        assert isinstance(await slow, BookieTimeout)
        assert len(bookie.peers) == len(bookie.living_peers) == 1

    play(story)


def test_calls_time_out_within_50_ms_of_their_deadlines() -> None:
    async def story(scene: Scene) -> None:
        scene.bookie("b1").on_call = ignore
        bookies, started = scene.bookies, scene.world.now
        took: list[float] = []

        async def ask(entry_id: int, deadline_s: float) -> None:
            assert isinstance(await outcome(bookies, read(entry_id), deadline_s), BookieTimeout)
            took.append(scene.world.now - started - deadline_s)

        waits = [0.9, 0.05, 0.3, 0.31, 0.7, 0.06]
        await asyncio.gather(*(ask(e, wait) for e, wait in enumerate(waits)))
        assert len(took) == len(waits)
        assert all(0 <= late < 0.05 for late in took)

    play(story)


@BOTH
@pytest.mark.parametrize(
    "garbage",
    [b"\0\0\0\0", b"\xff\xff\xff\xff", pack_frame(b"\x0a\xff"), pack_frame(b"\x02\x63\0\0")],
)
def test_garbage_closes_only_the_connection(config: ClientConfig, garbage: bytes) -> None:
    async def story(scene: Scene) -> None:
        bookie = scene.bookie("b1")
        sink = Listening()
        channel = scene.bookies.add_channel(B1, L7, sink)
        await scene.until(lambda: channel.is_open)
        bookie.on_call = lambda peer, _call: peer.send(garbage)
        assert isinstance(await outcome(scene.bookies, read(1)), ConnectionLost)
        await scene.until(lambda: sink.opened == 2)
        assert len(sink.losses) == 1
        bookie.on_call = find_nothing
        assert isinstance(await outcome(scene.bookies, read(1)), ReadReply)

    play(story, config=config)


@BOTH
def test_partial_reply_then_close_raises_connection_lost(config: ClientConfig) -> None:
    def answer_half(peer: Peer, call: ReceivedRequest) -> None:
        peer.send(call.answer(refusal_of(call.request, NoSuchEntry))[:-3])
        peer.transport.close()

    async def story(scene: Scene) -> None:
        scene.bookie("b1").on_call = answer_half
        assert isinstance(await outcome(scene.bookies, read(1)), ConnectionLost)

    play(story, config=config)


def test_reply_sent_byte_by_byte_is_decoded() -> None:
    def answer_slowly(peer: Peer, call: ReceivedRequest) -> None:
        async def drip() -> None:
            for byte in call.answer(refusal_of(call.request, NoSuchEntry)):
                peer.send(bytes((byte,)))
                await asyncio.sleep(0.01)

        peer.bookie.node.world.loop.create_task(drip(), context=peer.bookie.node.context)

    async def story(scene: Scene) -> None:
        scene.bookie("b1").on_call = answer_slowly
        assert isinstance(await outcome(scene.bookies, read(1)), ReadReply)

    play(story)


def test_unsent_call_fails_with_bookie_unreachable() -> None:
    """The caller may then retry, here or elsewhere, without checking the outcome first."""

    async def story(scene: Scene) -> None:
        bookie = scene.bookie("b1")
        sink = Listening()
        channel = scene.bookies.add_channel(B1, L7, sink)
        await scene.until(lambda: channel.is_open)
        (peer,) = bookie.peers
        peer.transport.pause_reading()
        channel.write(frames_of(scene, 40, 100_000), 40)
        assert channel.queued_bytes > MIB
        error = await outcome(scene.bookies, read(1), 0.5)
        assert isinstance(error, BookieUnreachable)
        asking = asyncio.ensure_future(outcome(scene.bookies, read(2)))
        await asyncio.sleep(0.1)
        peer.transport.abort()
        assert isinstance(await asking, BookieUnreachable)

    play(story)


# --- Room and order -----------------------------------------------------------------------------


def test_calls_over_the_limit_wait_except_high_priority_ones() -> None:
    """CN3."""

    async def story(scene: Scene) -> None:
        bookie = scene.bookie("b1")
        bookie.on_call = ignore
        asking = [asyncio.ensure_future(outcome(scene.bookies, read(e))) for e in range(50)]
        urgent = asyncio.ensure_future(
            scene.bookies.call(B1, fence(0), deadline_s=5, is_high_priority=True)
        )
        await asyncio.sleep(0.5)
        (peer,) = bookie.peers
        assert len(peer.calls) == 10 + 1
        cancelled = asking[30]
        cancelled.cancel()
        bookie.on_call = find_nothing
        for call in list(peer.calls):
            find_nothing(peer, call)
        await urgent
        replies = await asyncio.gather(*asking, return_exceptions=True)
        assert isinstance(replies[30], asyncio.CancelledError)
        assert sum(isinstance(reply, ReadReply) for reply in replies) == 49

    play(story, config=replace(V3, calls_max=10))


def test_call_timing_out_in_the_queue_raises_bookie_unreachable() -> None:
    async def story(scene: Scene) -> None:
        scene.bookie("b1").on_call = ignore
        first = asyncio.ensure_future(outcome(scene.bookies, read(1), 2.0))
        await asyncio.sleep(0.1)
        assert isinstance(await outcome(scene.bookies, read(2), 0.2), BookieUnreachable)
        assert isinstance(await first, BookieTimeout)

    play(story, config=replace(V3, calls_max=1))


def test_high_priority_call_overtakes_queued_adds() -> None:
    async def story(scene: Scene) -> None:
        bookie = scene.bookie("b1")
        heard: list[str] = []
        bookie.on_adds = lambda peer, adds: heard.extend(["add"] * adds.count)
        bookie.on_call = lambda peer, call: heard.append("urgent" if call[1] else "call")
        sink = Listening()
        channel = scene.bookies.add_channel(B1, L7, sink)
        await scene.until(lambda: channel.is_open)
        (peer,) = bookie.peers
        peer.transport.pause_reading()
        channel.write(frames_of(scene, 100, 40_000), 100)
        waiting = [asyncio.ensure_future(outcome(scene.bookies, read(1), 50.0))]
        await asyncio.sleep(0.1)
        urgent = scene.bookies.call(B1, fence(2), deadline_s=50.0, is_high_priority=True)
        waiting.append(asyncio.ensure_future(urgent))
        await asyncio.sleep(0.1)
        peer.transport.resume_reading()
        await scene.until(lambda: len(heard) == 102)
        assert heard[-1] == "call"
        assert heard.index("urgent") < 50
        for each in waiting:
            each.cancel()

    play(story)


# --- Channels -----------------------------------------------------------------------------------


@BOTH
def test_channel_reports_replies_to_all_its_adds(config: ClientConfig) -> None:
    async def story(scene: Scene) -> None:
        sink = Listening()
        channel = scene.bookies.add_channel(B1, L7, sink)
        assert not channel.is_open
        await scene.until(lambda: channel.is_open)
        channel.write(frames_of(scene, 5000), 5000)
        await scene.until(lambda: len(sink.heard) == 5000)
        assert sink.heard == list(range(5000))
        assert (channel.unanswered, channel.queued_bytes) == (0, 0)

    play(story, config=config)


def test_adds_of_many_ledgers_in_one_turn_form_one_chunk() -> None:
    """Each chunk costs the bookie a sync; otherwise the first add would be a chunk of its own."""

    async def story(scene: Scene) -> None:
        sink = Listening()
        ledgers = range(7, 17)
        channels = [scene.bookies.add_channel(B1, LedgerId(each), sink) for each in ledgers]
        await scene.until(lambda: all(map(is_open, channels)))
        for ledger_id, channel in zip(ledgers, channels, strict=True):
            frame = scene.packer(ledger_id).pack(EntryId(0), NO_ENTRY, 0, b"")
            scene.bookies.tick_flush.hand_out(partial(channel.write, frame, 1))
        await scene.until(lambda: len(sink.heard) == len(channels))
        (peer,) = scene.bookie("b1").peers
        assert [each.count for each in peer.adds] == [len(channels)]

    play(story)


def test_lost_connection_drops_its_gathered_bytes() -> None:
    async def story(scene: Scene) -> None:
        channels = [scene.bookies.add_channel(B1, LedgerId(each), Listening()) for each in (7, 8)]
        await scene.until(lambda: all(map(is_open, channels)))
        client = channels[0]._client
        assert isinstance(client, BookieClient)
        for ledger_id, channel in zip((7, 8), channels, strict=True):
            frame = scene.packer(ledger_id).pack(EntryId(0), NO_ENTRY, 0, b"")
            scene.bookies.tick_flush.hand_out(partial(channel.write, frame, 1))
        unsent: list[int] = []
        scene.bookies.tick_flush.hand_out(lambda: unsent.append(client.unsent_bytes))
        scene.bookies.tick_flush.hand_out(partial(client._end, ConnectionLost("it is over")))
        await scene.until(lambda: client.is_over)
        assert unsent[0] > 0
        assert client.unsent_bytes == 0

    play(story)


def test_single_add_is_sent_in_the_same_loop_turn() -> None:
    """Waiting one more loop turn would delay a single append."""

    async def story(scene: Scene) -> None:
        channel = scene.bookies.add_channel(B1, L7, Listening())
        await scene.until(lambda: channel.is_open)
        left: list[int] = []

        def act() -> None:
            (frame,) = frames_of(scene, 1)
            channel.write(frame, 1)
            left.append(channel.queued_bytes)

        scene.bookies.tick_flush.hand_out(act)
        await scene.until(lambda: left)
        assert left == [0]

    play(story)


def test_queued_bytes_count_adds_waiting_for_a_stuck_socket() -> None:
    async def story(scene: Scene) -> None:
        sink = Listening()
        channel = scene.bookies.add_channel(B1, L7, sink)
        await scene.until(lambda: channel.is_open)
        (peer,) = scene.bookie("b1").peers
        peer.transport.pause_reading()
        frames = frames_of(scene, 8, MIB)
        total = sum(map(len, frames))
        for frame in frames:
            channel.write(frame, 1)
        assert total - MIB < channel.queued_bytes <= total
        peer.transport.resume_reading()
        await scene.until(lambda: len(sink.heard) == 8)
        assert sink.heard == list(range(8))
        assert channel.queued_bytes == 0

    play(story)


def test_only_channels_of_different_ledgers_share_a_connection() -> None:
    async def story(scene: Scene) -> None:
        sinks = [Listening() for _ in range(3)]
        one = scene.bookies.add_channel(B1, L7, sinks[0])
        other = scene.bookies.add_channel(B1, LedgerId(8), sinks[1])
        again = scene.bookies.add_channel(B1, L7, sinks[2])
        await scene.until(lambda: one.is_open and other.is_open and again.is_open)
        await asyncio.sleep(0.1)
        assert len(scene.bookie("b1").peers) == 2
        frames = frames_of(scene, 10)
        one.write(frames[:5], 5)
        again.write(frames[5:], 5)
        await scene.until(lambda: sinks[0].heard and sinks[2].heard)
        assert sinks[0].heard == [0, 1, 2, 3, 4]
        assert sinks[2].heard == [5, 6, 7, 8, 9]

    play(story)


@BOTH
def test_acks_never_reach_another_channel_of_the_same_ledger(config: ClientConfig) -> None:
    """CN2: an ack of the writer's add must not count for recovery."""

    async def story(scene: Scene) -> None:
        bookie = scene.bookie("b1")
        bookie.on_adds = ignore
        writer, recoverer = Listening(), Listening()
        channel = scene.bookies.add_channel(B1, L7, writer)
        await scene.until(lambda: channel.is_open)
        channel.write(frames_of(scene, 3), 3)
        await scene.until(lambda: bookie.peers[0].adds)
        channel.close()
        channel.close()
        later = scene.bookies.add_channel(B1, L7, recoverer, is_high_priority=True)
        await scene.until(lambda: later.is_open and len(bookie.peers) == 2)
        acknowledge(bookie.peers[0], bookie.peers[0].adds[0])
        await asyncio.sleep(0.5)
        assert (writer.heard, recoverer.heard) == ([], [])
        third = scene.bookies.add_channel(B1, L7, writer)
        await scene.until(lambda: third.is_open)
        assert len(bookie.peers) == 2, "no replies are pending, so the connection is free again"

    play(story, config=config)


@BOTH
def test_duplicate_add_replies_close_the_connection(config: ClientConfig) -> None:
    """CN2: surplus acks could confirm entries that the bookie does not have."""

    def acknowledge_twice(peer: Peer, adds: Adds) -> None:
        acknowledge(peer, adds)
        acknowledge(peer, adds)

    async def story(scene: Scene) -> None:
        scene.bookie("b1").on_adds = acknowledge_twice
        sink = Listening()
        channel = scene.bookies.add_channel(B1, L7, sink)
        await scene.until(lambda: channel.is_open)
        channel.write(frames_of(scene, 3), 3)
        await scene.until(lambda: sink.losses)
        assert sink.heard in ([0, 1, 2], [])

    play(story, config=config)


def test_adds_of_a_closed_channel_are_still_sent() -> None:
    """Third copies are wanted although no caller waits for them."""

    async def story(scene: Scene) -> None:
        peer = await closed_while_stuck(scene)
        peer.transport.resume_reading()
        await scene.until(lambda: sum(adds.count for adds in peer.adds) == 30)

    play(story)


def test_unsent_adds_of_closed_channels_are_bounded() -> None:
    async def story(scene: Scene) -> None:
        bookie = scene.bookie("b1")
        for ledger_id in range(20):
            channel = scene.bookies.add_channel(B1, LedgerId(ledger_id), Listening())
            await scene.until(partial(is_open, channel))
            bookie.peers[0].transport.pause_reading()
            packer = scene.packer(ledger_id)
            channel.write(packer.pack(EntryId(0), NO_ENTRY, 0, bytes(MIB)), 1)
            channel.close()
        probe = scene.bookies.add_channel(B1, LedgerId(99), Listening())
        await scene.until(lambda: probe.is_open)
        bookie.peers[0].transport.resume_reading()
        probe.write(scene.packer(99).pack(EntryId(0), NO_ENTRY, 0, b""), 1)
        await scene.until(lambda: not probe.unanswered)
        assert sum(adds.count for adds in bookie.peers[0].adds) <= 2 + 4 + 1

    play(story, config=replace(V3, call_bytes_max=4 * MIB))


def test_silent_bookie_with_pending_adds_is_disconnected() -> None:
    async def story(scene: Scene) -> None:
        bookie = scene.bookie("b1")
        bookie.on_adds = ignore
        channel = scene.bookies.add_channel(B1, L7, Listening())
        await scene.until(lambda: channel.is_open)
        channel.write(frames_of(scene, 1), 1)
        channel.close()
        await scene.until(lambda: bookie.peers[0].is_gone)

    play(story)


def test_lost_connection_is_reopened_only_while_channels_exist() -> None:
    async def story(scene: Scene) -> None:
        bookie = scene.bookie("b1")
        sink = Listening()
        channel = scene.bookies.add_channel(B1, L7, sink)
        await scene.until(lambda: sink.opened == 1)
        bookie.node.kill()
        await scene.until(lambda: len(sink.losses) >= 3)
        assert not channel.is_open
        bookie.node.restart()
        await scene.until(lambda: sink.opened == 2)
        channel.close()
        bookie.node.kill()
        losses = len(sink.losses)
        await asyncio.sleep(5)
        assert len(sink.losses) == losses

    play(story)


def test_reconnects_to_a_closing_bookie_are_rate_limited() -> None:
    async def story(scene: Scene) -> None:
        bookie = scene.bookie("b1")
        bookie.hangs_up = True
        sink = Listening()
        scene.bookies.add_channel(B1, L7, sink)
        await asyncio.sleep(20)
        assert 15 <= len(bookie.peers) <= 50
        assert len(sink.losses) == pytest.approx(len(bookie.peers), abs=1)

    play(story)


def test_reconnects_to_a_bookie_closing_on_adds_are_rate_limited() -> None:
    """The bookie accepts connections but no adds: its frame limit may be smaller."""

    async def story(scene: Scene) -> None:
        bookie = scene.bookie("b1")
        scene.infos[B1] = describe_bookie(Address("b1", PORT), extensions=(IDENTITY,))
        heard: list[int] = []

        def hang_up(peer: Peer, adds: Adds) -> None:
            heard.append(adds.count)
            peer.transport.abort()

        bookie.on_adds = hang_up

        class Stubborn(Listening):
            def on_channel_open(self, channel: AddChannel) -> None:
                super().on_channel_open(channel)
                channel.write(frames_of(scene, 1), 1)

        sink = Stubborn()
        scene.bookies.add_channel(B1, L7, sink)
        await asyncio.sleep(20)
        assert 15 <= len(bookie.peers) <= 50
        assert heard == [1] * sink.opened  # Each connection got one add, and none twice.
        for count in (sink.opened, len(sink.losses)):
            assert count == pytest.approx(len(bookie.peers), abs=1)

    play(story)


def test_complaint_closes_only_a_silent_connection() -> None:
    async def story(scene: Scene) -> None:
        bookie = scene.bookie("b1")
        sink = Listening()
        channel = scene.bookies.add_channel(B1, L7, sink)
        await scene.until(lambda: channel.is_open)
        await asyncio.sleep(5)
        await outcome(scene.bookies, read(1))
        channel.complain(5.0)
        await asyncio.sleep(0.9)
        assert channel.is_open
        bookie.on_adds = ignore
        channel.write(frames_of(scene, 1), 1)
        await asyncio.sleep(5)
        channel.complain(5.0)
        assert channel.is_open, "`complain` does not close within the call"
        await scene.until(lambda: sink.losses)
        await scene.until(lambda: sink.opened == 2)

    play(story)


def test_refusal_of_adds_reaches_the_channel() -> None:
    def refuse(peer: Peer, adds: Adds) -> None:
        acknowledged = adds.groups[0].pack_replies(LedgerFenced)
        peer.send(acknowledged)

    async def story(scene: Scene) -> None:
        scene.bookie("b1").on_adds = refuse
        sink = Listening()
        channel = scene.bookies.add_channel(B1, L7, sink)
        await scene.until(lambda: channel.is_open)
        channel.write(frames_of(scene, 2), 2)
        await scene.until(lambda: len(sink.heard) == 2)
        assert {replies.error for replies in sink.replies} == {LedgerFenced}

    play(story)


def test_refused_connection_closes_despite_pending_adds() -> None:
    async def story(scene: Scene) -> None:
        bookie = scene.bookie("b1")
        bookie.on_call = bookie.on_adds = ignore
        assert isinstance(await outcome(scene.bookies, read(1), 0.1), BookieTimeout)
        channel = scene.bookies.add_channel(B1, L7, Listening())
        await scene.until(lambda: channel.is_open)
        channel.write(frames_of(scene, 1), 1)
        channel.close()
        (peer,) = bookie.peers
        await scene.until(lambda: peer.adds)
        peer.send(peer.calls[0].answer(Refusal(Unauthorized)))
        await asyncio.sleep(0.1)
        assert peer.is_gone

    play(story)


# --- Where bookies are --------------------------------------------------------------------------


def test_calls_to_a_bookie_known_to_be_down_fail_fast() -> None:
    async def story(scene: Scene) -> None:
        bookie = scene.bookie("b1")
        bookie.node.kill()
        for _ in range(8):
            await outcome(scene.bookies, read(1))
            await asyncio.sleep(0.3)
        started = scene.world.now
        for _ in range(100):
            assert isinstance(await outcome(scene.bookies, read(1)), BookieUnreachable)
        assert scene.world.now - started < 0.01
        bookie.node.restart()
        await asyncio.sleep(1.0)
        assert isinstance(await outcome(scene.bookies, read(1)), ReadReply)

    play(story)


def test_call_after_failures_uses_the_new_registered_address() -> None:
    async def story(scene: Scene) -> None:
        scene.bookie("b1").node.kill()
        for _ in range(8):
            await outcome(scene.bookies, read(1))
            await asyncio.sleep(0.3)
        await outcome(scene.bookies, read(1))
        scene.infos[B1] = describe_bookie(Address("b2", PORT))
        assert isinstance(await outcome(scene.bookies, read(1)), ReadReply)

    play(story, bookies=("b1", "b2"))


@BOTH
def test_different_bookie_at_the_address_is_rejected(config: ClientConfig) -> None:
    """CN4: otherwise its missing entries would count as negatives of the expected bookie."""

    async def story(scene: Scene) -> None:
        scene.infos[B1] = describe_bookie(Address("b2", PORT), extensions=(IDENTITY,))
        sink = Listening()
        scene.bookies.add_channel(B1, L7, sink)
        error = await outcome(scene.bookies, read(1))
        assert isinstance(error, BookieUnreachable)
        assert "b2" in str(error)
        await scene.until(lambda: sink.losses)
        assert sink.opened == 0
        scene.infos[B1] = describe_bookie(Address("b1", PORT), extensions=(IDENTITY,))
        assert isinstance(await outcome(scene.bookies, read(1)), ReadReply)
        await scene.until(lambda: sink.opened)

    play(story, bookies=("b1", "b2"), config=config)


@BOTH
def test_bookie_that_does_not_identify_itself_is_rejected(config: ClientConfig) -> None:
    """CN4."""

    async def story(scene: Scene) -> None:
        bookie = scene.bookie("b1")
        scene.infos[B1] = describe_bookie(Address("b1", PORT), extensions=(IDENTITY,))
        bookie.says_who = False
        for on_call in (ignore, find_nothing):
            bookie.on_call = on_call
            assert isinstance(await outcome(scene.bookies, read(1), 9.0), BookieUnreachable)
            await asyncio.sleep(1.0)

    play(story, config=config)


def test_bookie_id_that_is_an_address_needs_no_registration() -> None:
    async def story(scene: Scene) -> None:
        del scene.infos[B1]
        reply = await scene.bookies.call(BookieId(f"b1:{PORT}"), read(1), deadline_s=5)
        assert isinstance(reply, ReadReply)
        assert isinstance(await outcome(scene.bookies, read(1)), BookieUnreachable)

    play(story)


def test_tls_client_never_uses_a_plaintext_port() -> None:
    async def story(scene: Scene) -> None:
        assert isinstance(await outcome(scene.bookies, read(1)), BookieUnreachable)
        scene.infos[B1] = describe_bookie(Address("b9", 1), tls=Address("b1", PORT))
        assert isinstance(await outcome(scene.bookies, read(1)), ReadReply)

    play(story, config=replace(V3, uses_tls=True))


def test_calls_spread_over_configured_connections() -> None:
    async def story(scene: Scene) -> None:
        calls = [
            scene.bookies.call(B1, read(0, ledger_id), deadline_s=5) for ledger_id in range(10)
        ]
        await asyncio.gather(*calls)
        assert sorted(len(peer.calls) for peer in scene.bookie("b1").peers) == [3, 3, 4]

    play(story, config=replace(V3, connections_per_bookie=3))


# --- The end ------------------------------------------------------------------------------------


def test_closing_the_pool_fails_pending_and_later_calls() -> None:
    async def story(scene: Scene) -> None:
        scene.bookie("b1").on_call = ignore
        sink = Listening()
        scene.bookies.add_channel(B1, L7, sink)
        scene.bookies.add_channel(BookieId("b2"), L7, sink)
        waiting = asyncio.ensure_future(outcome(scene.bookies, read(1)))
        connecting = asyncio.ensure_future(
            scene.bookies.call(BookieId("b3"), read(1), deadline_s=9)
        )
        scene.world.network.cut("client", "b3")
        await asyncio.sleep(0.5)
        await scene.bookies.close()
        assert isinstance(await waiting, ConnectionLost)
        with pytest.raises(BookieUnreachable):
            await connecting
        with pytest.raises(BookieUnreachable):
            await scene.bookies.call(B1, read(1), deadline_s=9)
        assert sink.losses
        await scene.bookies.close()

    play(story, bookies=("b1", "b3"))


def test_closing_the_pool_lets_pending_adds_arrive() -> None:
    """A program that exits right after its writer must not leave only two copies."""

    async def story(scene: Scene) -> None:
        peer = await closed_while_stuck(scene)
        asyncio.get_running_loop().call_later(0.5, peer.transport.resume_reading)
        await scene.bookies.close()
        assert sum(adds.count for adds in peer.adds) == 30

    play(story)


def test_closing_the_pool_fails_pending_calls_at_once() -> None:
    """The pool does not wait for adds on a connection that has pending calls."""

    async def story(scene: Scene) -> None:
        loop = asyncio.get_running_loop()
        bookie = scene.bookie("b1")
        bookie.on_adds = bookie.on_call = ignore
        channel = scene.bookies.add_channel(B1, L7, Listening())
        await scene.until(lambda: channel.is_open)
        channel.write(frames_of(scene, 3), 3)
        channel.close()
        waiting = asyncio.ensure_future(outcome(scene.bookies, read(1)))
        await asyncio.sleep(0.1)
        began = loop.time()
        await scene.bookies.close()
        assert isinstance(await waiting, ConnectionLost)
        assert loop.time() - began < 0.1

    play(story)


@pytest.mark.parametrize("ending", ["silence", "a cut", "cancelled"])
def test_closing_the_pool_waits_at_most_a_second_for_adds(ending: str) -> None:
    async def story(scene: Scene) -> None:
        loop = asyncio.get_running_loop()
        bookie = scene.bookie("b1")
        bookie.on_adds = ignore
        channel = scene.bookies.add_channel(B1, L7, Listening())
        await scene.until(lambda: channel.is_open)
        channel.write(frames_of(scene, 3), 3)
        channel.close()
        began = loop.time()
        closing = asyncio.ensure_future(scene.bookies.close())
        await asyncio.sleep(0)
        with pytest.raises(BookieUnreachable):
            await scene.bookies.call(B1, read(1), deadline_s=9)
        if ending == "a cut":
            loop.call_later(0.2, bookie.peers[0].transport.abort)
        elif ending == "cancelled":
            loop.call_later(0.2, closing.cancel)
        await asyncio.gather(closing, return_exceptions=True)
        assert closing.cancelled() == (ending == "cancelled")
        assert loop.time() - began < (1.1 if ending == "silence" else 0.5)
        await scene.until(lambda: bookie.peers[0].is_gone)

    play(story)


def test_overload_reply_is_returned_without_quarantine() -> None:
    async def story(scene: Scene) -> None:
        for error in (Overloaded, BookieFailed):
            scene.bookie("b1").on_call = partial(refuse, error)
            reply = await outcome(scene.bookies, read(1))
            assert isinstance(reply, ReadReply)
            assert reply.error is error
        assert not scene.health.is_quarantined(B1, scene.client_node.clock.monotonic_ns())

    play(story)
