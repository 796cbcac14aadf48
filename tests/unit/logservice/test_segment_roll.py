"""Logs whose open segment has a vacant slot roll to a new one (LS16), in the simulator."""

import asyncio
from typing import Final

import pytest

from rollbook.logservice.log_config import LogConfig
from rollbook.proto.formats.paths import AVAILABLE
from rollbook.proto.formats.service_info import WRITERS_FROM, describe_bookie, pack_service_info
from rollbook.proto.ports import Address
from tests.unit.ledger.scripted_bookie import PORT
from tests.unit.logservice.owner_scene import ROOT, Held, Scene, play

THREE: Final = ("b1", "b2", "b3")
LARGE: Final = LogConfig(roll_entries=10_000)


async def _format(scene: Scene, name: str, held: Held) -> None:
    """The bookie comes back formatted and refuses the writers of all existing ledgers."""
    writing = held.owner.list.segments[-1].ledger_id + 1
    scene.bookies[name].format(writing)
    properties = {WRITERS_FROM: str(writing)}
    info = pack_service_info(describe_bookie(Address(name, PORT), properties=properties))
    path = f"{ROOT}/{AVAILABLE}/{name}"
    await scene.store.delete(path)
    await scene.store.create(path, info)


def _copies(scene: Scene, ledger_id: int) -> int:
    """Counts the copies of the ledger's last entry."""
    shelves = [each.shelves.get(ledger_id) for each in scene.bookies.values()]
    held = [max(shelf.entries) for shelf in shelves if shelf is not None and shelf.entries]
    return held.count(max(held))


@pytest.mark.parametrize("is_written", [True, False])
def test_log_rolls_when_a_formatted_bookie_refuses_its_segment(*, is_written: bool) -> None:
    """LS16: with three bookies no other one can take the slot; the log is written or idle."""

    async def story(scene: Scene) -> None:
        held = await (await scene.server("s1")).open()
        await held.append(b"first")
        old = held.owner.list.segments[-1]
        await _format(scene, "b3", held)
        if is_written:
            await held.append(b"refused by one")
        await scene.until(lambda: held.owner.lacking_slots)
        assert set(held.owner.vacant_slots) == {"b3"}
        lost_s = scene.world.now
        await scene.until(lambda: len(held.owner.list.segments) > 1)
        assert 15 <= scene.world.now - lost_s < 20
        await held.append(b"whole")
        await scene.until(lambda: held.owner.list.segments[0].is_closed)
        new = held.owner.list.segments[-1]
        assert (new.reason, new.degraded_to) == ("vacant seat", 0)
        await scene.until(lambda: _copies(scene, new.ledger_id) == 3)
        assert not held.owner.lacking_slots
        assert held.owner.list.segments[0].ledger_id == old.ledger_id
        await asyncio.sleep(60)
        assert len(held.owner.list.segments) == 2, "a needless roll"
        await held.close()

    play(story, bookies=THREE, config=LARGE)


def test_log_does_not_roll_without_a_full_ensemble() -> None:
    """LS16: no ledger is made and then dropped."""

    async def story(scene: Scene) -> None:
        held = await (await scene.server("s1")).open()
        await held.append(b"first")
        await _format(scene, "b3", held)
        await scene.store.delete(f"{ROOT}/{AVAILABLE}/b3")
        for _ in range(50):
            await held.append(b"more")
            await asyncio.sleep(1)
        assert held.owner.lacking_slots == 1
        assert len(held.owner.list.segments) == 1
        assert len(scene.bookies["b1"].shelves) == 1
        await held.close()

    play(story, bookies=THREE, config=LARGE)


def test_short_bookie_outage_causes_no_roll() -> None:
    """LS16."""

    async def story(scene: Scene) -> None:
        held = await (await scene.server("s1")).open()
        await held.append(b"first")
        scene.bookies["b3"].is_hung = True
        for number in range(40):
            await held.append(b"more")
            await asyncio.sleep(0.2)
            if number == 30:
                assert held.owner.lacking_slots == 1
                scene.bookies["b3"].is_hung = False
        await asyncio.sleep(30)
        assert not held.owner.lacking_slots
        assert len(held.owner.list.segments) == 1
        await held.close()

    play(story, bookies=THREE, config=LARGE)


def test_bookie_that_responds_but_takes_no_entry_causes_no_loop_of_rolls() -> None:
    """LS16: each new segment would include it, so rolls become rare."""

    async def story(scene: Scene) -> None:
        held = await (await scene.server("s1")).open()
        scene.bookies["b3"].writers_from = 2**62
        for _ in range(300):
            await held.append(b"more")
            await asyncio.sleep(1)
        assert 3 <= len(held.owner.list.segments) <= 6
        assert held.owner.lacking_slots == 1
        await held.close()

    play(story, bookies=THREE, config=LARGE)
