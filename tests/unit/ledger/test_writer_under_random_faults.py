"""The writer under random faults in virtual time: failing bookies, and lost metadata replies.

After each confirmation, after each metadata change and at the end, each confirmed entry must be on
an ack quorum of the bookies that metadata names for it at that moment.
"""

import asyncio
import random
from functools import partial

import pytest

from rollbook.ledger.config import ClientConfig
from rollbook.ledger.core.acks import AckTracker
from rollbook.proto.errors import (
    AppendUnsettled,
    BookieFailed,
    BookieReadOnly,
    ConnectionLost,
    NotEnoughBookies,
    Overloaded,
    QuorumTimeout,
    RollbookError,
)
from rollbook.proto.ids import EntryId
from rollbook.proto.metadata import LedgerState
from rollbook.proto.quorum import Quorum
from rollbook.proto.wire.add_columns import Adds
from tests.unit.ledger.scripted_bookie import Peer, ignore
from tests.unit.ledger.writer_scene import FIVE, WriterScene, play_writer

SEEDS = 40  # Larger: slower, rarer schedules are found.
STEPS = 60
QUORUMS = [Quorum(3, 3, 2), Quorum(3, 2, 2), Quorum(3, 3, 3), Quorum(4, 3, 2), Quorum(4, 2, 1)]
CONFIG = ClientConfig(add_deadline_s=0.5, writer_window_entries=30)


class Ordeal:
    def __init__(self, scene: WriterScene, chance: random.Random) -> None:
        self.scene = scene
        self.chance = chance
        self.synced: dict[str, set[int]] = {name: set() for name in scene.kept}
        self.moods: dict[str, type[RollbookError] | None] = dict.fromkeys(scene.kept)
        self.confirmed: list[int] = []
        for name in scene.kept:
            scene.kept[name].answer_adds = partial(self.answer, name)
        scene.nodes.before_update = self.before_update
        scene.nodes.after_update = self.after_update
        scene.nodes.before_read = self.delay

    # --- Bookies ------------------------------------------------------------------------------

    def answer(self, name: str, peer: Peer, adds: Adds) -> None:
        for group in adds.groups:
            mood = self.moods[name]
            if mood is None or (mood is Overloaded and self.chance.random() < 0.3):
                self.synced[name] |= set(group.entry_ids)
                peer.send(group.pack_replies())
            else:
                peer.send(group.pack_replies(mood))

    def harm(self, name: str) -> None:
        bookie = self.scene.bookie(name)
        match self.chance.choice(["hang", "die", "cut", "busy", "fail", "full"]):
            case "hang":
                self.scene.kept[name].answer_adds = ignore
            case "die":
                bookie.hangs_up = True
                self.cut(name)
            case "cut":
                self.cut(name)
            case "busy":
                self.moods[name] = Overloaded
            case "fail":
                self.moods[name] = BookieFailed
            case "full":
                self.moods[name] = BookieReadOnly

    def heal(self, name: str) -> None:
        bookie = self.scene.bookie(name)
        was_hanging = self.scene.kept[name].answer_adds is ignore
        self.scene.kept[name].answer_adds = partial(self.answer, name)
        bookie.hangs_up = False
        self.moods[name] = None
        if was_hanging:
            self.cut(name)

    def cut(self, name: str) -> None:
        for peer in self.scene.bookie(name).living_peers:
            peer.transport.abort()

    # --- Metadata -----------------------------------------------------------------------------

    async def delay(self) -> None:
        await asyncio.sleep(self.chance.choice((0, 0.001, 0.05)))

    async def before_update(self) -> None:
        await self.delay()
        if self.chance.random() < 0.2:
            raise ConnectionLost

    async def after_update(self) -> None:
        self.judge()
        await self.delay()
        if self.chance.random() < 0.2:
            raise ConnectionLost

    # --- The check ----------------------------------------------------------------------------

    def judge(self) -> None:
        metadata = self.scene.nodes.stored.metadata
        quorum = metadata.quorum
        assert self.confirmed == [*range(len(self.confirmed))]
        for entry_id in map(EntryId, self.confirmed):
            holders = quorum.write_set(entry_id, metadata.fragment_of(entry_id).ensemble)
            copies = [name for name in holders if entry_id in self.synced[name]]
            assert len(copies) >= quorum.ack, (entry_id, holders, copies)

    def on_done(self, future: "asyncio.Future[EntryId]") -> None:
        if not future.cancelled() and future.exception() is None:
            self.confirmed.append(future.result())
            self.judge()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_confirmed_entries_are_on_an_ack_quorum_named_by_metadata(seed: int) -> None:
    """WR1, WR2, WR3."""
    chance = random.Random(seed)

    async def story(scene: WriterScene) -> None:
        ordeal = Ordeal(scene, chance)
        try:
            await run_under_faults(ordeal)
        except (NotEnoughBookies, QuorumTimeout):  # Too many bookies failed for too long.
            pass
        for name in scene.kept:
            ordeal.heal(name)
        try:
            await scene.writer.close()
        except AppendUnsettled:
            assert scene.writer.failure is not None
        ordeal.judge()
        metadata = scene.nodes.stored.metadata
        assert metadata.state is LedgerState.CLOSED
        assert metadata.last_entry == len(ordeal.confirmed) - 1
        assert metadata.length == 3 * len(ordeal.confirmed)

    play_writer(
        story, quorum=chance.choice(QUORUMS), bookies=FIVE, config=CONFIG, seed=seed + 1_000_000
    )


async def run_under_faults(ordeal: Ordeal) -> None:
    chance, scene = ordeal.chance, ordeal.scene
    names = list(scene.kept)
    for _ in range(STEPS):
        for _ in range(chance.choice((0, 1, 1, 3, 10))):
            try:
                scene.writer.append(b"xyz").add_done_callback(ordeal.on_done)
            except Overloaded:
                break
        match chance.random():
            case luck if luck < 0.12:
                ordeal.harm(chance.choice(names))
            case luck if luck < 0.26:
                ordeal.heal(chance.choice(names))
        await asyncio.sleep(chance.choice((0, 0, 0.001, 0.02, 0.1)))


def test_ack_quorum_check_detects_counting_withdrawn_copies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without WR2, copies with bookies that left would confirm entries."""

    def withdraw(self: AckTracker, slot: int) -> None:
        self._withdrawn |= 1 << slot

    def admit(self: AckTracker, slot: int, first_entry: EntryId) -> None:
        self._withdrawn &= ~(1 << slot)

    monkeypatch.setattr(AckTracker, "withdraw", withdraw)
    monkeypatch.setattr(AckTracker, "admit", admit)
    guilty = 0
    for seed in range(SEEDS):
        try:
            test_confirmed_entries_are_on_an_ack_quorum_named_by_metadata(seed)
        except Exception:  # noqa: BLE001  # From `judge`, or from a callback that it failed.
            guilty += 1
    assert guilty, "no seed shows it"
