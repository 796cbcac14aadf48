"""A writer with scripted bookies in the simulator, and scripted metadata in memory.

play_writer(story)      story(scene): `scene.writer` is the writer under test

scene.bookie("b1").on_adds = ignore        the bookie hangs
scene.nodes.on_update = …                   scripts the next compare-and-sets
"""

import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final, cast

import pytest

from rollbook.ledger.client_context import ClientContext
from rollbook.ledger.config import ClientConfig
from rollbook.ledger.core.placement import Placement
from rollbook.ledger.writer import LedgerWriter
from rollbook.proto.cluster.ledger_nodes import LedgerNodes, StoredLedger
from rollbook.proto.errors import MetadataConflict, RollbookError
from rollbook.proto.ids import FIRST_ENTRY, BookieId, EntryId, LedgerId
from rollbook.proto.metadata import Fragment, LedgerMetadata
from rollbook.proto.ports import Clock
from rollbook.proto.quorum import Ensemble, Quorum
from rollbook.proto.wire.add_columns import Adds
from rollbook.proto.wire.digest import DigestType, LedgerDigest
from rollbook.proto.wire.messages import (
    BookieInfoReply,
    GetBookieInfo,
    ReceivedRequest,
    WriteLac,
    WriteLacReply,
)
from tests.simulation.kernel import World
from tests.unit.ledger.scripted_bookie import (
    DEFAULT,
    PASSWORD,
    Peer,
    Scene,
    ScriptedBookie,
    ignore,
    play,
)

L7: Final = LedgerId(7)
Q332: Final = Quorum(ensemble=3, write=3, ack=2)
B1, B2, B3, B4, B5 = map(BookieId, ("b1", "b2", "b3", "b4", "b5"))
FIVE: Final = ("b1", "b2", "b3", "b4", "b5")


class JumpingClock:
    """The node's clock plus an offset, so that a test can skip days."""

    def __init__(self, clock: Clock) -> None:
        self.ahead_s = 0
        self._clock = clock

    def monotonic_ns(self) -> int:
        return self._clock.monotonic_ns() + self.ahead_s * 1_000_000_000

    def wall_us(self) -> int:
        return self._clock.wall_us() + self.ahead_s * 1_000_000

    def let_others_run(self) -> None:
        pass


class Nodes:
    """One ledger's versioned node; a test may act before or after each write."""

    def __init__(self, metadata: LedgerMetadata) -> None:
        self.stored = StoredLedger(metadata, 0, 0)
        self.updates: list[LedgerMetadata] = []
        self.before_update: Callable[[], Awaitable[None]] = _nothing
        self.after_update: Callable[[], Awaitable[None]] = _nothing
        self.before_read: Callable[[], Awaitable[None]] = _nothing

    async def read(self, _ledger_id: LedgerId, *, fresh: bool = False) -> StoredLedger:
        assert fresh, "a writer that checks its own write needs the truth"
        await self.before_read()
        return self.stored

    async def update(self, stored: StoredLedger, metadata: LedgerMetadata) -> StoredLedger:
        await self.before_update()
        if metadata == stored.metadata:
            return stored
        if stored.version != self.stored.version:
            raise MetadataConflict(ledger_id=metadata.ledger_id)
        self.put(metadata)
        self.updates.append(metadata)
        await self.after_update()
        return self.stored

    def put(self, metadata: LedgerMetadata) -> None:
        self.stored = StoredLedger(metadata, self.stored.version + 1, 0)

    @property
    def fragments(self) -> list[tuple[int, Ensemble]]:
        return [(each.first_entry, each.ensemble) for each in self.stored.metadata.fragments]


async def _nothing() -> None: ...


class Keeping:
    """Records what one bookie was sent, in order; its `ScriptedBookie` answers."""

    def __init__(self, bookie: ScriptedBookie) -> None:
        self.entries: list[int] = []
        self.lacs: dict[int, int] = {}
        self.explicit_lacs: list[int] = []
        self._answer = bookie.on_adds
        self._bookie = bookie
        bookie.on_adds = self._keep
        bookie.on_call = self._on_call
        self.answer_adds: Callable[[Peer, Adds], None] = self._answer

    def _keep(self, peer: Peer, adds: Adds) -> None:
        for group in adds.groups:
            assert not group.is_recovery
            self.entries += group.entry_ids
            self.lacs |= zip(group.entry_ids, group.lacs, strict=True)
        self.answer_adds(peer, adds)

    def _on_call(self, peer: Peer, call: ReceivedRequest) -> None:
        if self.answer_adds is ignore:
            return  # The bookie hangs.
        match call.request:
            case WriteLac():
                self.explicit_lacs.append(call.request.last_add_confirmed)
                peer.send(call.answer(WriteLacReply(None, L7)))
            case GetBookieInfo():
                peer.send(call.answer(BookieInfoReply(None)))
            case _:
                raise AssertionError(call.request)


class WriterScene:
    def __init__(self, scene: Scene, quorum: Quorum, config: ClientConfig) -> None:
        self.scene = scene
        self.health = scene.health
        self.config = config
        self.quorum = quorum
        self.kept: dict[str, Keeping] = {name: Keeping(scene.bookie(name)) for name in scene.infos}
        ensemble = tuple(itertools.islice(scene.infos, quorum.ensemble))
        self.nodes = Nodes(
            LedgerMetadata(
                L7,
                quorum,
                (Fragment(FIRST_ENTRY, ensemble),),
                digest_type=DigestType.CRC32C,
                password=PASSWORD,
                created_ms=0,
                creation_token=1,
            )
        )
        self.clock = JumpingClock(scene.client_node.clock)
        self.writer = self.open()

    def open(self, ledger_id: LedgerId = L7) -> LedgerWriter:
        """Open a writer; the test must stop each writer of a further ledger."""
        node, nodes = self.scene.client_node, self.nodes
        if ledger_id != L7:
            nodes = Nodes(replace(nodes.stored.metadata, ledger_id=ledger_id))
        return LedgerWriter(
            nodes.stored,
            LedgerDigest(DigestType.CRC32C, PASSWORD, ledger_id),
            PASSWORD,
            ClientContext(
                cast(LedgerNodes, nodes),
                self.scene.bookies,
                Placement(self.health, node.randomness),
                self.health,
                self.clock,
                node.randomness,
                self.config,
            ),
        )

    def bookie(self, name: str) -> ScriptedBookie:
        return self.scene.bookie(name)

    async def until(self, is_so: Callable[[], object]) -> None:
        await self.scene.until(is_so)

    async def append(self, count: int) -> list[EntryId]:
        """Append all at once; return when they are confirmed."""
        futures = [self.writer.append(b"%d" % index) for index in range(count)]
        return [await each for each in futures]


Story = Callable[[WriterScene], Awaitable[None]]


def play_writer(
    story: Story,
    *,
    quorum: Quorum = Q332,
    bookies: Sequence[str] = FIVE,
    config: ClientConfig = DEFAULT,
    seed: int = 1,
) -> World:
    async def act(scene: Scene) -> None:
        stage = WriterScene(scene, quorum, config)
        try:
            await story(stage)
        except (
            pytest.fail.Exception
        ) as failure:  # Not a subclass of `Exception`: it would end only the simulated process.
            raise AssertionError(str(failure)) from failure
        await stage.writer.stop()

    return play(act, seed=seed, config=config, bookies=bookies)


def refuse_with(error: type[RollbookError]) -> Callable[[Peer, Adds], None]:
    def answer(peer: Peer, adds: Adds) -> None:
        for group in adds.groups:
            peer.send(group.pack_replies(error))

    return answer
