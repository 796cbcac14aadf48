"""The pool under random calls and adds: each response must match its request (CN1, CN2).

The bookie answers late, twice, wrongly, partially or not at all, and the network fails. Its
responses state their request: the entry, whether it was a fence, and the time of the request.
"""

import asyncio
import random
from dataclasses import dataclass, field
from functools import partial

import pytest

from rollbook.ledger.bookie_pool import AddChannel
from rollbook.ledger.config import ClientConfig
from rollbook.proto.errors import NoSuchEntry, RollbookError
from rollbook.proto.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from rollbook.proto.wire.add_columns import AddReplies, Adds
from rollbook.proto.wire.digest import LEDGER_KEY_BYTES
from rollbook.proto.wire.messages import EntryRead, ReadReply, ReceivedRequest, refusal_of
from tests.unit.ledger.scripted_bookie import Peer, Scene, play

B1 = BookieId("b1")
LEDGER = LedgerId(7)
KEY = bytes(LEDGER_KEY_BYTES)
STEPS = 150


@dataclass
class Mischief:
    """How the bookie misbehaves."""

    scene: Scene
    chance: random.Random

    def on_call(self, peer: Peer, call: ReceivedRequest) -> None:
        chance, request = self.chance, call.request
        assert isinstance(request, EntryRead)
        asked_at = self.scene.world.now
        body = f"{request.entry_id} {request.fence} {asked_at!r}".encode()
        reply = ReadReply(None, request.ledger_id, request.entry_id, body)
        match chance.choices(
            ["right", "late", "never", "other", "refuse", "half", "hangup"],
            (8, 8, 3, 0.2, 2, 0.2, 0.2),
        ):
            case ["right"]:
                peer.send(call.answer(reply))
            case ["late"]:
                self._later(peer, call.answer(reply))
            case ["other"]:
                wrong = reply._replace(entry_id=EntryId(request.entry_id + 1))
                peer.send(call.answer(wrong))
            case ["refuse"]:
                peer.send(call.answer(refusal_of(request, NoSuchEntry)))
            case ["half"]:
                peer.send(call.answer(reply)[:-1])
            case ["hangup"]:
                peer.transport.abort()

    def on_adds(self, peer: Peer, adds: Adds) -> None:
        for group in adds.groups:
            match self.chance.choices(
                ["right", "late", "never", "twice", "hangup"], (8, 8, 2, 0.3, 0.2)
            ):
                case ["right"]:
                    peer.send(group.pack_replies())
                case ["late"]:
                    self._later(peer, group.pack_replies())
                case ["twice"]:
                    peer.send(group.pack_replies() * 2)
                case ["hangup"]:
                    peer.transport.abort()

    def _later(self, peer: Peer, frame: bytes) -> None:
        loop = self.scene.world.loop
        delay_s = self.chance.expovariate(2.0)
        loop.call_later(delay_s, peer.send, frame, context=self.scene.bookie("b1").node.context)


@dataclass
class Writer:
    """A sink that remembers what it wrote on the current connection."""

    wrong: list[str] = field(default_factory=list)
    written: dict[int, None] = field(default_factory=dict)  # Entry IDs on this connection.
    heard: int = 0
    is_closed: bool = False

    def on_add_replies(self, channel: AddChannel, replies: AddReplies) -> None:
        if self.is_closed:
            self.wrong.append("a closed channel hears")
        for entry_id in replies.entry_ids:
            self.heard += 1
            if entry_id not in self.written:  # A duplicate ack is harmless.
                self.wrong.append(f"entry {entry_id} is acknowledged and was not written here")

    def on_channel_open(self, channel: AddChannel) -> None:
        self.written.clear()

    def on_channel_lost(self, channel: AddChannel, error: RollbookError) -> None:
        self.written.clear()


async def ask(scene: Scene, chance: random.Random, wrong: list[str]) -> str:
    is_fence = chance.random() < 0.5
    request = EntryRead(LEDGER, EntryId(chance.randrange(3)), KEY if is_fence else None, is_fence)
    asked_at = scene.world.now
    try:
        reply = await scene.bookies.call(
            B1, request, deadline_s=chance.choice((0.1, 0.5, 2.0)), is_high_priority=is_fence
        )
    except RollbookError as error:
        return type(error).__name__
    assert isinstance(reply, ReadReply)
    if reply.error is None:
        entry_id, fence, heard_at = bytes(reply.body or b"").decode().split()
        if (int(entry_id), fence) != (request.entry_id, str(is_fence)):
            wrong.append(f"{request} was answered with entry {entry_id}, fence {fence}")
        if float(heard_at) < asked_at:
            wrong.append(f"{request} was answered with what was said to an earlier one")
    return "answer"


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("seed", range(25))
def test_each_response_reaches_its_request(version: int, seed: int) -> None:
    """CN1, CN2."""
    outcomes: dict[str, int] = {}
    acknowledged = 0

    async def story(scene: Scene) -> None:
        nonlocal acknowledged
        chance = random.Random(seed)
        bookie = scene.bookie("b1")
        mischief = Mischief(scene, chance)
        bookie.on_call, bookie.on_adds = mischief.on_call, mischief.on_adds
        wrong: list[str] = []
        asking: list[asyncio.Future[str]] = []
        open_channels: list[tuple[AddChannel, Writer]] = []
        next_entry = 0
        packer = scene.packer(LEDGER)
        for _ in range(STEPS):
            match chance.choices(
                ["ask", "channel", "write", "close", "network", "cancel"], (8, 2, 8, 1, 0.3, 1)
            ):
                case ["ask"]:
                    asking.append(asyncio.ensure_future(ask(scene, chance, wrong)))
                case ["channel"] if len(open_channels) < 3:
                    writer = Writer(wrong)
                    channel = scene.bookies.add_channel(B1, LEDGER, writer)
                    open_channels.append((channel, writer))
                case ["write"] if open_channels:
                    channel, writer = chance.choice(open_channels)
                    if channel.is_open:
                        entries = range(next_entry, next_entry + chance.randint(1, 5))
                        next_entry = entries.stop
                        writer.written.update(dict.fromkeys(entries))
                        frames = [packer.pack(EntryId(e), NO_ENTRY, 0, b"x") for e in entries]
                        channel.write(frames, len(frames))
                case ["close"] if open_channels:
                    channel, writer = open_channels.pop(chance.randrange(len(open_channels)))
                    channel.close()
                    writer.is_closed = True
                    acknowledged += writer.heard
                case ["network"]:
                    scene.world.network.cut("client", "b1")
                    scene.world.loop.call_later(
                        chance.random(), partial(scene.world.network.heal, "client", "b1")
                    )
                case ["cancel"] if asking:
                    chance.choice(asking).cancel()
            await asyncio.sleep(chance.expovariate(20.0))
        for channel, writer in open_channels:
            channel.close()
            acknowledged += writer.heard
        for each in await asyncio.gather(*asking, return_exceptions=True):
            name = each if isinstance(each, str) else type(each).__name__
            outcomes[name] = outcomes.get(name, 0) + 1
        assert not wrong, wrong
        scene.world.network.heal("client", "b1")

    play(story, seed=seed, config=ClientConfig(protocol_version=version))
    assert outcomes.get("answer", 0) > 3, outcomes
    assert acknowledged > 3
