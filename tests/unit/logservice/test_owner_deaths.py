"""An owner dies between any two steps: LS1 to LS6.

A step is a message to a bookie or a request to the metadata store. The owner runs through all of its
operations; at one step its process is killed, or its messages are lost and it is killed soon after.
Then another server takes the log over, and the client sends everything again.
"""

import asyncio
from functools import partial
from typing import Final

import pytest

from rollbook.logservice.core.ledger_list import ListedLogState
from rollbook.logservice.ids import ProducerRef
from rollbook.logservice.messages import AcquireMode, AppendAck
from rollbook.proto.errors import LogSealed
from tests.unit.logservice.owner_scene import Held, Scene, play

VALUES: Final = [b"%d" % number for number in range(12)]
NEVER: Final = 10**9


def ref(seq: int) -> ProducerRef:
    return ProducerRef(b"p", 0, seq)


class Life:
    """The operations of an owner, and the acks that its client received."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.acked: dict[int, int] = {}  # Offsets by batch number.
        self.was_sealed = False

    async def live(self) -> None:
        log = await (await self.scene.server("s1")).open()
        await self._append(log, 0, 3)
        rolling = log.server.begin(log.owner.roll())
        await self._append(log, 3, 6)
        await self.scene.within(asyncio.shield(rolling))
        grant = await log.run(log.owner.acquire_writer("a", AcquireMode.STEAL))
        assert grant.fence_offset == 6
        await self._append(log, 6, 9)
        await log.run(log.owner.barrier())
        await log.close()
        log = await (await self.scene.server("s1")).open()
        await self._append(log, 9, 12)
        await log.run(log.owner.seal())
        self.was_sealed = True

    async def _append(self, log: Held, start: int, end: int) -> None:
        pending = [log.begin(VALUES[each], producer=ref(each)) for each in range(start, end)]
        for number, each in enumerate(pending, start):
            each.answer.add_done_callback(partial(self._note, number))
        for each in pending:
            await self.scene.within(each.answer)

    def _note(self, number: int, answer: "asyncio.Future[AppendAck]") -> None:
        if not answer.cancelled():  # Pending appends are cancelled when the owner dies.
            self.acked[number] = answer.result().first_offset


def run(die_at: int, seed: int, *, is_cut_first: bool = False) -> int:
    """Returns the number of steps. With `is_cut_first` the owner still receives responses for a while."""
    steps = 0

    async def story(scene: Scene) -> None:
        nonlocal steps
        life = Life(scene)

        def step(process: str) -> bool:
            nonlocal steps
            if not process.startswith("s1#"):
                return False
            steps += 1
            if steps == die_at and is_cut_first:
                scene.world.network.cut_one_way("s1", "metadata")
                scene.world.at(scene.world.now + 0.3, scene.world.nodes["s1"].kill)
            elif steps == die_at:
                scene.world.nodes["s1"].kill()
            return steps >= die_at

        def asked(process: str, _: object) -> None:
            step(process)

        for bookie in scene.bookies.values():
            bookie.loses = step
        scene.world.metadata.on_asked = asked
        living = scene.world.loop.create_task(life.live())
        await scene.until(lambda: living.done() or not scene.is_running("s1"))
        if living.done():
            await living
            scene.world.nodes["s1"].kill()
        else:
            living.cancel()
        scene.world.metadata.on_asked = None
        await _take_over(scene, life)

    play(story, seed=seed)
    return steps


async def _take_over(scene: Scene, life: Life) -> None:
    log = await (await scene.server("s2")).open()
    offsets: list[int] = []
    for number, value in enumerate(VALUES):
        try:
            ack = await log.append(value, producer=ref(number))
        except LogSealed:
            assert log.owner.is_sealed
            break
        offsets.append(ack.first_offset)
        assert ack.is_duplicate or number not in life.acked
    assert offsets == list(range(len(offsets)))
    assert life.acked == {number: number for number in life.acked}
    assert len(offsets) >= len(life.acked)
    assert len(offsets) == 12 or not life.was_sealed
    await log.close()
    assert await scene.values() == VALUES[: len(offsets)]
    listed = (await scene.stored()).list
    assert (listed.state is ListedLogState.SEALED) >= life.was_sealed
    # Every listed segment still has its ledger.
    kept = {each async for each in scene.ledgers.list()}
    assert kept >= {segment.ledger_id for segment in listed.segments}


STEPS: Final = 10


@pytest.mark.parametrize("part", range(STEPS))
def test_owner_death_at_any_step_loses_no_acked_append(part: int) -> None:
    last = run(NEVER, seed=part)
    for die_at in range(1 + part, last + 1, STEPS):
        run(die_at, seed=part)
        run(die_at, seed=part, is_cut_first=True)
