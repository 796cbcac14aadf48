"""Conversations with a bookie, over the simulator's network and disk."""

import asyncio

import pytest

from rollbook.proto.ids import NO_ENTRY, EntryId, LedgerId
from rollbook.proto.wire.adds import AddReplies
from rollbook.proto.wire.messages import (
    Auth,
    AuthReply,
    BatchRead,
    BatchReadReply,
    BookieInfoReply,
    ForceLedger,
    ForceLedgerReply,
    GetBookieInfo,
    ListEntries,
    ListEntriesReply,
    Read,
    ReadLac,
    ReadLacReply,
    ReadReply,
    WriteLac,
    WriteLacReply,
)
from tests.support.bookie_client import KEY, BookieClient
from tests.unit.bookie.serving import Scene, tell

L7 = LedgerId(7)


async def add(client: BookieClient, ledger_id: int, *entry_ids: int, lac: int = -1) -> None:
    """Until all are acknowledged."""
    left = len(entry_ids)
    done = asyncio.get_running_loop().create_future()

    def on_adds(replies: AddReplies) -> None:
        nonlocal left
        assert replies.error is None, replies
        left -= len(replies.entry_ids)
        if not left:
            done.set_result(None)

    client.on_adds = on_adds
    ledger = client.ledger(ledger_id)
    client.send(b"".join(ledger.pack(entry_id, lac, b"payload") for entry_id in entry_ids))
    await asyncio.wait_for(done, 10)


@pytest.mark.parametrize("version", [2, 3])
def test_an_entry_is_read_as_it_was_added(version: int) -> None:
    async def story(scene: Scene) -> None:
        client = await scene.connect(version)
        await add(client, 7, 0, 1, 2)
        reply = await client.call(Read(L7, EntryId(1)))
        assert isinstance(reply, ReadReply)
        assert reply.body == scene.storage.peek(7, 1)
        last = await client.call(Read(L7, NO_ENTRY))
        assert isinstance(last, ReadReply)
        assert last.entry_id == NO_ENTRY
        assert last.body == scene.storage.peek(7, 2)

    tell(story)


def test_each_operation_has_an_answer() -> None:
    async def story(scene: Scene) -> None:
        client = await scene.connect(3)
        await add(client, 7, 0, 1, 2, lac=0)
        assert await client.call(Auth("any", b"")) == AuthReply("AuthDisabledPlugin", b"")
        assert await client.call(ForceLedger(L7)) == ForceLedgerReply(None, L7)
        packet = client.ledger(7).digest.pack_lac(EntryId(1))
        written = await client.call(WriteLac(L7, EntryId(1), KEY, packet))
        assert written == WriteLacReply(None, L7)
        lac = await client.call(ReadLac(L7))
        assert lac == ReadLacReply(None, L7, packet, scene.storage.peek(7, 2))
        info = await client.call(GetBookieInfo(total_bytes=True, free_bytes=True))
        assert isinstance(info, BookieInfoReply)
        assert info.total_bytes
        assert info.free_bytes
        entries = await client.call(ListEntries(L7))
        assert isinstance(entries, ListEntriesReply)
        assert entries.entries
        assert list(entries.entries.ranges()) == [(0, 2)]
        fenced = await client.call(Read(L7, NO_ENTRY, KEY, fence=True))
        assert isinstance(fenced, ReadReply)
        assert fenced.body == scene.storage.peek(7, 2)
        assert scene.storage.is_fenced(7)

    tell(story)


def test_a_long_poll_brings_the_entry_when_the_lac_rises() -> None:
    async def story(scene: Scene) -> None:
        reader, writer = await scene.connect(3), await scene.connect(3)
        await add(writer, 7, 0)
        poll = reader.ask(
            Read(L7, NO_ENTRY, previous_lac=NO_ENTRY, timeout_ms=5000, piggyback=True)
        )
        await asyncio.sleep(1.0)
        assert not poll.done()
        await add(writer, 7, 1, lac=0)
        reply = await poll
        assert isinstance(reply, ReadReply)
        assert (reply.entry_id, reply.last_add_confirmed) == (0, 0)
        assert reply.body == scene.storage.peek(7, 0)
        assert reply.lac_updated_ms
        late = await reader.call(
            Read(L7, NO_ENTRY, previous_lac=EntryId(0), timeout_ms=500, piggyback=True)
        )
        assert late == ReadReply(None, L7, NO_ENTRY, None, EntryId(0))

    tell(story)


def test_a_batch_brings_consecutive_entries() -> None:
    async def story(scene: Scene) -> None:
        client = await scene.connect(2)
        await add(client, 7, *range(10))
        reply = await client.call(BatchRead(L7, EntryId(2), 1, 5, 1_000_000))
        assert isinstance(reply, BatchReadReply)
        assert list(reply.bodies) == [scene.storage.peek(7, entry_id) for entry_id in range(2, 7)]

    tell(story)
