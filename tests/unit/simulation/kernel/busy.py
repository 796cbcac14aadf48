"""A world that uses everything that the kernel offers, to compare its traces.

`python -m tests.unit.simulation.kernel.busy FIRST COUNT` prints `seed digest`, one line each.
"""

import asyncio
import sys
from collections.abc import Iterator

import structlog

from rollbook.proto.errors import RollbookError
from rollbook.proto.ports import Address, OpenMode
from rollbook.proto.tasks import TaskGroup
from tests.simulation.kernel import Node, World

logger = structlog.get_logger()

PORT = 3181
BOOKIES = ("b1", "b2", "b3")


class _Appender(asyncio.Protocol):
    """Stores each line in the node's file and answers when it is durable."""

    def __init__(self, node: Node, turns: asyncio.Queue[tuple["_Appender", bytes]]) -> None:
        self._node, self._turns = node, turns
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._turns.put_nowait((self, data))


async def _serve(node: Node) -> None:
    disk = node.disk
    await disk.make_directory("/data")
    await disk.sync_directory("/")
    if await disk.stat("/data/f") is None:
        await disk.open("/data/f", OpenMode.CREATE)
        await disk.sync_directory("/data")
    file = await disk.open("/data/f", OpenMode.WRITE)
    logger.info("file_opened", size=await file.size(), wall_us=node.clock.wall_us())
    turns = asyncio.Queue[tuple[_Appender, bytes]]()
    store = await node.metadata(session_timeout_s=2.0)

    async def work() -> None:
        while True:
            sender, data = await turns.get()
            position = await file.size()
            if node.buggify("busy.slow_append"):
                await asyncio.sleep(0.01)
            await file.write_and_sync(position, [data])
            sender.transport.write(data)

    async def report() -> None:
        while True:
            await asyncio.sleep(0.3)
            try:
                await store.create(f"/{node.name}-", str(turns.qsize()).encode())
            except RollbookError as error:
                logger.warning("report_failed", reason=str(error))

    await node.transport.listen(lambda: _Appender(node, turns), Address("", PORT))
    async with TaskGroup() as group:
        for _ in range(3):
            group.create_task(work())
        group.create_task(report())


async def _ask(node: Node) -> None:
    for number in range(30):
        target = node.randomness.choice(BOOKIES)
        try:
            async with asyncio.timeout(0.5):
                reader, writer = await asyncio.open_connection(target, PORT)
                writer.write(f"{node.name} {number}\n".encode())
                line = await reader.readline()
                logger.info("answered", line=line, by=target)
                writer.close()
        except (OSError, TimeoutError) as error:
            logger.info("failed", reason=type(error).__name__)
            await asyncio.sleep(0.1)


async def _scenario(world: World) -> None:
    chance = world.random("faults")
    bookies = [world.node(name) for name in BOOKIES]
    for bookie in bookies:
        bookie.start(_serve)
    clients = [world.node(name).start(_ask) for name in ("c1", "c2")]

    async def trouble() -> None:
        network = world.network
        while True:
            await asyncio.sleep(chance.uniform(0.01, 0.3))
            bookie = chance.choice(bookies)
            match chance.randrange(9):
                case 0:
                    bookie.restart()
                case 1:
                    bookie.power_cut()
                    await asyncio.sleep(0.2)
                    bookie.start(_serve)
                case 2:
                    bookie.pause()
                    await asyncio.sleep(chance.uniform(0, 0.5))
                    bookie.resume()
                case 3:
                    network.cut_one_way("c1", bookie.name)
                    await asyncio.sleep(chance.uniform(0, 0.5))
                    network.heal("c1", bookie.name)
                case 4:
                    network.reset("c2", bookie.name)
                case 5:
                    await network.swizzle(BOOKIES, (0.0, 0.1))
                case 6:
                    world.metadata.lose(bookie)
                case 7:
                    bookie.clock.jump(chance.uniform(-100, 100))
                case _:
                    network.slow("c1", bookie.name, (0.0, 0.1), 0.1, (0.1, 1.0))

    nemesis = asyncio.get_running_loop().create_task(trouble())
    for client in clients:
        await client.result
    nemesis.cancel()


def run(seed: int, *, keep_text: bool = False) -> World:
    world = World(seed, shuffle=seed % 2 == 1, keep_text=keep_text)
    if seed % 3 == 0:
        world.metadata.lag_s = (0.0, 0.1)
    world.run(_scenario(world))
    return world


def digests(seeds: range) -> Iterator[tuple[int, str]]:
    for seed in seeds:
        yield seed, run(seed).trace.digest()


if __name__ == "__main__":
    first, count = map(int, sys.argv[1:])
    for one, digest in digests(range(first, first + count)):
        sys.stdout.write(f"{one} {digest}\n")
