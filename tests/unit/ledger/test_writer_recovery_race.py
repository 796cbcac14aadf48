"""A real writer and a real recovery race over randomly failing bookies, in virtual time.

The closed ledger must hold every entry that the writer took for confirmed. Every entry in it must
be readable, have the written payload, and have its copies where metadata says. A tailing reader
must see a prefix of the ledger and finally all of it. The simulator's ledger world does the same
with real bookies and many more faults.
"""

import asyncio
import random

import pytest

from rollbook.ledger.client_context import ClientContext
from rollbook.ledger.config import ClientConfig
from rollbook.ledger.writer import LedgerWriter
from rollbook.proto.errors import Overloaded, RollbookError
from rollbook.proto.ids import EntryId
from rollbook.proto.metadata import LedgerMetadata
from rollbook.proto.quorum import Quorum
from tests.unit.ledger.keeper import DIGEST, L1, Stage, payload_of, stage
from tests.unit.ledger.scripted_bookie import PASSWORD

CONFIG = ClientConfig(
    read_deadline_s=0.5,
    add_deadline_s=0.6,
    recovery_patience_s=0.2,
    connect_timeout_s=0.3,
    silence_s_max=0.3,
    writer_window_entries=30,
)
QUORUMS = [Quorum(3, 3, 2), Quorum(4, 3, 2), Quorum(3, 2, 2), Quorum(3, 2, 1), Quorum(5, 3, 3)]
NAMES = [f"b{i}" for i in range(7)]


class Meeting:
    def __init__(self, on: Stage, chance: random.Random, quorum: Quorum) -> None:
        self.on = on
        self.chance = chance
        self.quorum = quorum
        self.confirmed: list[int] = []
        self.seen: list[int] = []

    async def play(self) -> None:
        on, chance = self.on, self.chance
        on.announce_batches(*chance.sample(NAMES, chance.randint(0, len(NAMES))))
        ensemble = " ".join(chance.sample(NAMES, self.quorum.ensemble))
        await on.create(self.quorum, (0, ensemble))
        troubles = asyncio.create_task(self._trouble())
        writing = asyncio.create_task(self._write())
        following = asyncio.create_task(self._follow())
        await asyncio.sleep(chance.uniform(0, 1.5))
        closed = await self._recover()
        troubles.cancel()
        for keeper in on.keepers(" ".join(NAMES)):
            keeper.is_hung, keeper.delay_s, keeper.add_error = False, 0.0, None
        await asyncio.gather(troubles, return_exceptions=True)
        await writing
        await following
        await self._judge(closed)

    async def _write(self) -> None:
        on, node = self.on, self.on.scene.client_node
        writer = LedgerWriter(
            on.stored,
            DIGEST,
            PASSWORD,
            ClientContext(
                on.nodes,
                on.scene.bookies,
                on.placement,
                on.scene.health,
                node.clock,
                node.randomness,
                CONFIG,
            ),
        )
        entry_id = 0
        try:
            while True:
                try:
                    future = writer.append(payload_of(entry_id))
                except Overloaded:
                    await writer.ready()
                    continue
                future.add_done_callback(self._on_confirmed)
                entry_id += 1
                await asyncio.sleep(self.chance.expovariate(200))
        except RollbookError:
            pass  # Recovery stopped the writer.
        await writer.stop()

    def _on_confirmed(self, future: "asyncio.Future[EntryId]") -> None:
        if not future.cancelled() and future.exception() is None:
            self.confirmed.append(future.result())

    async def _follow(self) -> None:
        while True:
            try:
                reader = await self.on.open()
            except RollbookError:
                await asyncio.sleep(0.1)
                continue
            try:
                async for entry in reader.tail(EntryId(len(self.seen))):
                    assert entry.entry_id == len(self.seen)
                    assert entry.payload == payload_of(entry.entry_id)
                    self.seen.append(entry.entry_id)
                return
            except RollbookError:
                await asyncio.sleep(0.1)
            finally:
                await reader.close()

    async def _trouble(self) -> None:
        """Trouble at most two bookies at a time."""
        chance = self.chance
        while True:
            await asyncio.sleep(chance.expovariate(5))
            keepers = chance.sample(self.on.keepers(" ".join(NAMES)), chance.randint(1, 2))
            for keeper in keepers:
                match chance.randrange(4):
                    case 0:
                        keeper.is_hung = True
                    case 1:
                        keeper.delay_s = chance.uniform(0, 0.4)
                    case 2:
                        keeper.add_error = Overloaded
                    case 3:
                        for peer in keeper.scripted.living_peers:
                            peer.transport.abort()
            await asyncio.sleep(chance.expovariate(2))
            for keeper in keepers:
                keeper.is_hung, keeper.delay_s, keeper.add_error = False, 0.0, None

    async def _recover(self) -> LedgerMetadata:
        while True:
            task = asyncio.create_task(self.on.recover())
            if self.chance.random() < 0.3:
                asyncio.get_running_loop().call_later(self.chance.uniform(0, 0.3), task.cancel)
            try:
                return await task
            except (RollbookError, asyncio.CancelledError):
                await asyncio.sleep(0.05)

    async def _judge(self, closed: LedgerMetadata) -> None:
        assert closed.last_entry is not None
        assert max(self.confirmed, default=-1) <= closed.last_entry
        assert self.seen == list(range(closed.last_entry + 1))
        reader = await self.on.open()
        read = [entry async for entry in reader.read()]
        assert [entry.entry_id for entry in read] == self.seen
        assert all(entry.payload == payload_of(entry.entry_id) for entry in read)
        assert (read[-1].ledger_length if read else 0) == closed.length
        for entry_id in map(EntryId, self.seen):
            holders = self.quorum.write_set(entry_id, closed.fragment_of(entry_id).ensemble)
            assert sum(entry_id in self.on[b].entries for b in holders) >= self.quorum.ack
        await reader.close()


@pytest.mark.parametrize("seed", range(40))
def test_confirmed_entries_survive_a_concurrent_recovery(seed: int) -> None:
    """FR1 to FR7, RD4."""
    chance = random.Random(seed)
    quorum = chance.choice(QUORUMS)

    async def act(on: Stage) -> None:
        assert on.nodes.path(L1)
        await Meeting(on, chance, quorum).play()

    stage(act, bookies=NAMES, config=CONFIG, seed=seed)
