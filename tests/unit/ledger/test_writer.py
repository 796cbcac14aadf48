"""The writer among bookies that behave and bookies that do not, in virtual time."""


import pytest

from rollbook.ledger.config import ClientConfig
from rollbook.proto.errors import (
    LedgerClosed,
)
from rollbook.proto.ids import NO_ENTRY, EntryId
from rollbook.proto.metadata import LedgerState
from rollbook.proto.quorum import Quorum
from tests.unit.ledger.writer_scene import (
    B1,
    B2,
    B3,
    WriterScene,
    play_writer,
)

THREE = ("b1", "b2", "b3")
V2 = ClientConfig(protocol_version=2)
STRIPED = Quorum(ensemble=4, write=2, ack=2)


@pytest.mark.parametrize("config", [ClientConfig(), V2], ids=["v3", "v2"])
def test_entries_are_confirmed_in_order_and_the_ledger_is_closed_at_the_last(
    config: ClientConfig,
) -> None:
    """WR1."""

    async def story(scene: WriterScene) -> None:
        assert await scene.append(100) == list(range(100))
        assert await scene.writer.append_many([b"x", b"y"]) == range(100, 102)
        await scene.writer.close()
        metadata = scene.nodes.stored.metadata
        assert metadata.state is LedgerState.CLOSED
        assert (metadata.last_entry, metadata.length) == (101, 192)
        for name in THREE:
            assert scene.kept[name].entries == list(range(102))
        with pytest.raises(LedgerClosed):
            scene.writer.append(b"late")

    play_writer(story, config=config)


def test_an_empty_ledger_is_closed_before_its_first_entry() -> None:
    async def story(scene: WriterScene) -> None:
        async with scene.writer:
            pass
        assert scene.nodes.stored.metadata.last_entry == NO_ENTRY
        assert scene.nodes.stored.metadata.length == 0
        await scene.writer.close()

    play_writer(story)


def test_entries_are_striped() -> None:
    """Q1 and WR1: member `i` of four gets entries `i` and `i - 1` modulo four, and no others."""

    async def story(scene: WriterScene) -> None:
        await scene.append(50)
        await scene.append(50)
        for slot, name in enumerate(("b1", "b2", "b3", "b4")):
            wanted = [each for each in range(100) if STRIPED.holds(slot, EntryId(each))]
            assert scene.kept[name].entries == wanted

    play_writer(story, quorum=STRIPED)


def test_appends_of_one_turn_leave_in_one_write() -> None:
    async def story(scene: WriterScene) -> None:
        await scene.append(100)
        sizes = [sum(adds.count for adds in peer.adds) for peer in scene.bookie("b1").peers]
        assert sizes == [100]
        assert len(scene.bookie("b1").peers[0].adds) == 1

    play_writer(story)


def test_a_dead_bookie_is_replaced_and_its_successor_gets_what_is_not_confirmed() -> None:
    """WR2, WR3: and nobody else gets anything twice."""

    async def story(scene: WriterScene) -> None:
        await scene.append(10)
        scene.bookie("b3").hangs_up = True
        scene.bookie("b3").on_adds = lambda peer, _adds: peer.transport.abort()
        await scene.append(10)
        await scene.until(lambda: len(scene.nodes.updates) == 1)
        (start, old), (first, new) = scene.nodes.fragments
        assert (start, old) == (0, (B1, B2, B3))
        assert new[:2] == (B1, B2)
        successor = scene.kept[new[2]]
        await scene.until(lambda: successor.entries == list(range(first, 20)))
        assert scene.kept["b1"].entries == list(range(20))
        await scene.writer.close()
        assert scene.nodes.stored.metadata.last_entry == 19

    play_writer(story)
