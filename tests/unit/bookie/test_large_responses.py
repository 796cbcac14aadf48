"""Large responses that take many loop turns, and urgent requests that must not wait (B7)."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from itertools import count

import pytest

from rollbook.bookie.config import ServerConfig
from rollbook.bookie.connection import Connection
from rollbook.bookie.journal import OnDone
from rollbook.bookie.server_context import ServerContext
from rollbook.bookie.storage import Admission
from rollbook.proto.ids import NO_ENTRY, EntryId, LedgerId
from rollbook.proto.ports import Buffer
from rollbook.proto.wire import v3
from rollbook.proto.wire.add_columns import AddReplies, Adds
from rollbook.proto.wire.messages import BatchRead, BatchReadReply, EntryRead
from rollbook.proto.wire.reply_decoder import ReplyDecoder
from rollbook.proto.wire.v3_adds import V3AddPacker
from tests.support.bookie_client import KEY
from tests.unit.bookie.serving import STORAGE, Scene, Story, add_entries, digest_of, tell

L7 = LedgerId(7)
ENTRIES = 200
BATCH_BYTES = 2_000_000


class Taker(asyncio.Transport):
    """A client that reads one piece, and after `take_on` everything that is written."""

    def __init__(self, shared: ServerContext) -> None:
        super().__init__()
        self.taken = bytearray()
        self.connection = Connection(shared)
        self.connection.connection_made(self)
        self._is_taking = False

    def send(self, frames: bytes) -> None:
        self.connection.get_buffer(-1)[: len(frames)] = frames
        self.connection.buffer_updated(len(frames))

    def take_on(self) -> None:
        self._is_taking = True
        self.connection.resume_writing()

    def has_taken(self) -> bool:
        return bool(self.taken)

    def lose(self) -> None:
        self.connection.connection_lost(None)

    def write(self, data: Buffer) -> None:
        assert len(data) < 200_000  # Only a piece is written at a time.
        self.taken += data
        if not self._is_taking:
            self.connection.pause_writing()

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


async def turns_until(is_so: Callable[[], bool]) -> int:
    turns = 0
    async with asyncio.timeout(100):
        while not is_so():
            turns += 1
            await asyncio.sleep(0)
    return turns


def tell_with_room(story: Story) -> None:
    tell(
        story,
        config=ServerConfig(held_bytes_max=1024**3, connection_bytes_max=64 * 1024**2),
        storage_config=replace(STORAGE, journal_file_bytes=16 * 1024**2),
    )


def read_of(txn_id: int) -> bytes:
    return v3.pack_request(txn_id, BatchRead(L7, EntryId(0), txn_id, ENTRIES, BATCH_BYTES))


async def reading(scene: Scene, count: int, answers: int) -> list[Taker]:
    """Clients whose first response is being written, while their other responses wait."""
    await add_entries(scene.storage, 7, range(ENTRIES), bytes(20_000))
    takers = [Taker(scene.server._shared) for _ in range(count)]
    # All responses are in preparation before the first is ready.
    async with scene.server._shared.loop_budget._lock:
        for taker in takers:
            taker.send(b"".join(read_of(txn_id) for txn_id in range(1, answers + 1)))
        await turns_until(
            lambda: all(each.connection._ordinary.running == answers for each in takers)
        )
    await turns_until(
        lambda: all(
            each.connection._out_bytes > BATCH_BYTES * (answers * 0.9 - 0.1) for each in takers
        )
    )
    return takers


def test_urgent_reads_wait_few_turns_despite_many_writers() -> None:
    async def story(scene: Scene) -> None:
        takers = await reading(scene, 60, answers=1)
        urgent = [Taker(scene.server._shared) for _ in range(8)]
        for taker in takers:
            taker.take_on()
        await turns_until(lambda: len(takers[0].taken) > 200_000)
        waits = []
        for taker in urgent:
            await asyncio.sleep(0)
            taker.send(v3.pack_request(1, EntryRead(L7, NO_ENTRY), is_high_priority=True))
            waits.append(await turns_until(taker.has_taken))
        assert max(waits) <= 4
        assert all(taker.connection._out for taker in takers)
        await turns_until(lambda: not any(taker.connection._out for taker in takers))
        for taker in (*urgent, *takers):
            taker.lose()

    tell_with_room(story)


def test_acks_follow_and_speed_up_the_response_in_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Other clients' responses are being written, and this client waits for more of its own."""

    async def story(scene: Scene) -> None:
        mixed, *others = takers = await reading(scene, 12, answers=3)
        add = scene.storage.add
        acks: list[OnDone] = []

        def later(adds: Adds, on_done: OnDone) -> Admission:
            acks.append(on_done)
            return add(adds)

        monkeypatch.setattr(scene.storage, "add", later)
        packer = V3AddPacker(KEY, digest_of(8), count(9))
        mixed.send(packer.pack(EntryId(0), NO_ENTRY, 0, b"payload"))
        for taker in takers:
            taker.take_on()
        await turns_until(lambda: all(len(taker.taken) > 300_000 for taker in takers))
        acks[0](1, None)
        await turns_until(lambda: len(mixed.taken) > BATCH_BYTES)
        # The connection with a waiting ack gets more steps than the others.
        assert max(len(taker.taken) for taker in others) < BATCH_BYTES / 2
        await turns_until(lambda: not any(taker.connection._out for taker in takers))
        heard = ReplyDecoder().feed(bytes(mixed.taken))
        kinds = [type(each if isinstance(each, AddReplies) else each.reply) for each in heard]
        assert kinds == [BatchReadReply, AddReplies, BatchReadReply, BatchReadReply]
        for taker in takers:
            taker.lose()

    tell_with_room(story)
