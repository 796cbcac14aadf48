"""LS1 to LS10 under random faults: a client sends each batch until it is acked.

Each batch has one record and is numbered by its producer, so a record's offset must equal its number:
a lost, repeated or reordered record would have another offset.
"""

import asyncio
import random
from contextlib import suppress
from typing import Final

import pytest

from rollbook.logservice.ids import Offset, ProducerRef
from rollbook.logservice.messages import AppendAck
from rollbook.logservice.owner import PendingAppend
from rollbook.proto.errors import RollbookError
from tests.unit.logservice.owner_scene import Held, Scene, play

SERVERS: Final = ("s1", "s2", "s3")
CHAOS_S: Final = 12.0
PATIENCE_S: Final = 6.0  # A client's time-out of one attempt.


class Client:
    def __init__(self, scene: Scene, chance: random.Random) -> None:
        self.scene, self.chance = scene, chance
        self.held: list[Held] = []
        self.next_number = 0  # All earlier batches are acked.
        self.end: int | None = None  # Set when the faults have ended.
        self.failures = 0

    async def write(self) -> None:
        """Sends a few batches at a time, in order; sends them again after a failure."""
        while self.end is None or self.next_number < self.end:
            log = self.held[-1] if self.held else None
            if log is None or log.owner.failure is not None or not log.server.node.is_running:
                await self.open(self.chance.choice(SERVERS))
                continue
            end = self.next_number + self.chance.randint(1, 8)
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await self._write_some(log, self.next_number, end)
                    if self.chance.random() < 0.2:
                        tail = await asyncio.shield(log.server.begin(log.owner.barrier()))
                        assert tail >= self.next_number
            except (RollbookError, TimeoutError, asyncio.CancelledError):
                self.failures += 1
                await self.open(self.chance.choice(SERVERS))
            await asyncio.sleep(self.chance.choice((0, 0.02, 0.2)))

    async def _write_some(self, log: Held, start: int, end: int) -> None:
        pending: list[PendingAppend] = [
            log.begin(b"%d" % number, producer=ProducerRef(b"p", 0, number))
            for number in range(start, end)
        ]
        for number, each in enumerate(pending, start):
            ack: AppendAck = await asyncio.shield(each.answer)
            assert (ack.first_offset, ack.next_offset) == (number, number + 1)
            self.next_number = number + 1

    async def open(self, name: str) -> None:
        server = await self.scene.server(name)
        if not server.node.is_running:
            return
        opening = server.begin(server.open())
        opening.add_done_callback(lambda done: done.cancelled() or done.exception())
        with suppress(RollbookError, TimeoutError, asyncio.CancelledError):
            async with asyncio.timeout(PATIENCE_S):
                self.held.append(await asyncio.shield(opening))


class Nemesis:
    """Injects one fault after another and heals most of them soon."""

    def __init__(self, scene: Scene, client: Client, chance: random.Random) -> None:
        self.scene, self.client, self.chance = scene, client, chance

    async def rage(self) -> None:
        world = self.scene.world
        end = world.now + CHAOS_S
        while world.now < end:
            await asyncio.sleep(self.chance.uniform(0.01, 0.3))
            with suppress(RollbookError, TimeoutError):
                async with asyncio.timeout(5):
                    await self._strike(self.chance.choice(SERVERS))
        self._heal()

    async def _strike(self, name: str) -> None:
        scene, world, chance = self.scene, self.scene.world, self.chance
        server = await scene.server(name)
        bookie = chance.choice(list(scene.bookies))
        soon = world.now + chance.choice((0.1, 1.0, 4.0))
        match chance.randrange(12):
            case 0:
                server.node.pause()
                world.at(soon, server.node.resume)
            case 1:
                server.node.kill()
                await server.start()
            case 2:
                scene.bookies[bookie].is_hung = True
                world.at(soon, setattr, scene.bookies[bookie], "is_hung", False)
            case 3:
                scene.bookies[bookie].delay_s = 0.2
                world.at(soon, setattr, scene.bookies[bookie], "delay_s", 0.0)
            case 4:
                world.metadata.lose(server.node, replies=chance.random() < 0.5)
            case 5:
                world.network.cut(name, "metadata")
                world.at(soon, world.network.heal, name, "metadata")
            case 6:
                world.network.cut_one_way(*chance.sample((name, bookie), 2))
                world.at(soon, world.network.heal, name, bookie)
            case 7:
                world.network.reset(name, bookie)
            case 8 | 9:
                await self.client.open(name)
            case 10 if self.client.held:
                log = self.client.held[-1]
                if log.owner.failure is None and log.server.node.is_running:
                    await asyncio.shield(log.server.begin(log.owner.roll()))
            case 11:
                segments = (await scene.stored()).list.segments
                if segments:
                    ledger_id = chance.choice(segments[-2:]).ledger_id
                    async with await scene.ledgers.open_recover(ledger_id):
                        pass

    def _heal(self) -> None:
        self.scene.world.network.heal_all()
        self.scene.world.metadata.heal()
        self.scene.set_bookies(is_hung=False, delay_s=0.0)
        for name in SERVERS:
            self.scene.world.nodes[name].resume()


def run(seed: int) -> Client:
    clients: list[Client] = []

    async def story(scene: Scene) -> None:
        chance = random.Random(seed)
        client = Client(scene, chance)
        clients.append(client)
        for name in SERVERS:
            await scene.server(name)
        raging = asyncio.ensure_future(Nemesis(scene, client, random.Random(seed + 1)).rage())
        writing = asyncio.ensure_future(client.write())
        await raging
        client.end = client.next_number + 10
        async with asyncio.timeout(120):
            await writing
        last = await (await scene.server("last")).open()
        assert last.owner.tail == client.next_number
        await last.close()
        assert await scene.values() == [b"%d" % number for number in range(client.next_number)]
        listed = (await scene.stored()).list
        times = [block.timestamp_us for block in await scene.read_all()]
        assert times == sorted(times)
        assert listed.head == Offset(0)
        for name in SERVERS:
            scene.world.nodes[name].kill()

    play(story, seed=seed)
    return clients[0]


@pytest.mark.parametrize("seed", range(12))
def test_random_faults_leave_each_record_at_its_number(seed: int) -> None:
    run(seed)
