"""The pool of connections: against bookies that behave and bookies that do not."""

import pytest

from rollbook.ledger.config import ClientConfig
from rollbook.proto.errors import (
    NoSuchEntry,
)
from rollbook.proto.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from rollbook.proto.wire.messages import Read, ReadReply
from tests.unit.ledger.scripted_bookie import Listening, Scene, play

B1 = BookieId("b1")
V2 = ClientConfig(protocol_version=2)
BOTH = pytest.mark.parametrize("config", [ClientConfig(), V2], ids=["v3", "v2"])


def read(entry_id: int, ledger_id: int = 7) -> Read:
    return Read(LedgerId(ledger_id), EntryId(entry_id))


@BOTH
def test_a_call_gets_its_reply(config: ClientConfig) -> None:
    async def story(scene: Scene) -> None:
        reply = await scene.bookies.call(B1, read(3), deadline_s=5)
        assert reply == ReadReply(NoSuchEntry, LedgerId(7), EntryId(3))
        await scene.bookies.call(B1, read(4), deadline_s=5, is_high_priority=True)
        assert len(scene.bookie("b1").peers) == 1

    play(story, config=config)


@BOTH
def test_a_channel_writes_and_hears(config: ClientConfig) -> None:
    async def story(scene: Scene) -> None:
        sink = Listening()
        channel = scene.bookies.add_channel(B1, LedgerId(7), sink)
        assert not channel.is_open
        await scene.until(lambda: channel.is_open)
        packer = scene.packer(7)
        frames = [packer.pack(EntryId(e), NO_ENTRY, 0, b"x" * 100) for e in range(5000)]
        channel.write(frames, len(frames))
        await scene.until(lambda: len(sink.heard) == 5000)
        assert sink.heard == list(range(5000))
        assert (channel.unanswered, channel.queued_bytes) == (0, 0)
        channel.close()

    play(story, config=config)
