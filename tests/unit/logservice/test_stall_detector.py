"""LS9: a process detects that it was paused before it does anything else."""

import asyncio

from rollbook.logservice.stall_detector import StallDetector
from tests.simulation.kernel import Node, World


def test_paused_process_counts_the_stall_at_once() -> None:
    world, seen = World(1), list[int]()

    async def live(node: Node) -> None:
        stall_detector = StallDetector(node.clock, 3.0)
        stall_detector.start()
        await asyncio.sleep(10)
        seen.append(stall_detector.stalls())
        node.pause()
        await asyncio.sleep(0)
        seen.append(stall_detector.stalls())
        await asyncio.sleep(10)
        seen.append(stall_detector.stalls())
        stall_detector.close()

    async def scenario() -> None:
        node = world.node("s1")
        process = node.start(live)
        world.at(13.5, node.resume)
        await process.result

    world.run(scenario())
    assert seen == [0, 1, 1]


def test_forward_jump_of_the_wall_clock_counts_as_a_stall() -> None:
    world = World(1)

    async def live(node: Node) -> None:
        stall_detector = StallDetector(node.clock, 3.0)
        stall_detector.start()
        node.clock.jump(2.0)
        assert stall_detector.stalls() == 0
        await asyncio.sleep(10)
        node.clock.jump(4.0)
        assert stall_detector.stalls() == 1
        await asyncio.sleep(10)
        node.clock.jump(-1000.0)
        await asyncio.sleep(10)
        assert stall_detector.stalls() == 1
        stall_detector.close()

    async def scenario() -> None:
        await world.node("s1").start(live).result

    world.run(scenario())
