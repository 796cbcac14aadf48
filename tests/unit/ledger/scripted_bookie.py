"""A bookie in the simulator whose behaviour a test scripts, and a connection pool to it.

    play(story)      story(scene): `scene.bookies` is the pool under test

    scene.bookie("b1").on_call = lambda peer, call: peer.send(call.answer(…))

By default it stores nothing, acknowledges adds and finds no entry.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from rollbook.ledger.bookie_pool import AddChannel, Bookies
from rollbook.ledger.config import ClientConfig
from rollbook.ledger.core.bookie_quarantine import Health
from rollbook.proto.cluster.bookie_watcher import BookieWatcher, LiveBookies
from rollbook.proto.errors import NoSuchEntry, RollbookError
from rollbook.proto.formats.service_info import BookieServiceInfo, describe_bookie
from rollbook.proto.ids import BookieId, LedgerId
from rollbook.proto.ports import Address
from rollbook.proto.wire.add_columns import AddPacker, AddReplies, Adds
from rollbook.proto.wire.digest import DigestType, LedgerDigest, ledger_key
from rollbook.proto.wire.messages import (
    IDENTITY_PLUGIN,
    Auth,
    AuthReply,
    ReceivedRequest,
    refusal_of,
)
from rollbook.proto.wire.request_decoder import RequestDecoder
from rollbook.proto.wire.v2_adds import V2AddPacker
from rollbook.proto.wire.v3_adds import V3AddPacker
from tests.simulation.kernel import Node, World

PORT: Final = 3181
PASSWORD: Final = b"secret"
KEY: Final = ledger_key(PASSWORD)
DEFAULT: Final = ClientConfig()
PATIENCE_S: Final = 100.0  # In virtual time.


class Peer(asyncio.Protocol):
    """One connection, as the bookie sees it."""

    def __init__(self, bookie: "ScriptedBookie") -> None:
        self.bookie = bookie
        self.calls: list[ReceivedRequest] = []
        self.adds: list[Adds] = []
        self.transport: asyncio.Transport
        self._decoder = RequestDecoder()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.bookie.peers.append(self)
        if self.bookie.hangs_up:
            transport.abort()

    @property
    def is_gone(self) -> bool:
        """Also true if its process was killed, which gets no callback."""
        return self.transport.is_closing()

    def data_received(self, data: bytes) -> None:
        for heard in self._decoder.feed(data):
            if isinstance(heard, Adds):
                self.adds.append(heard)
                self.bookie.on_adds(self, heard)
            elif isinstance(heard, ReceivedRequest) and self._is_asked_who(heard):
                name = self.bookie.node.name.encode()
                self.send(heard.answer(AuthReply(IDENTITY_PLUGIN, name)))
            elif isinstance(heard, ReceivedRequest):
                self.calls.append(heard)
                self.bookie.on_call(self, heard)

    def _is_asked_who(self, call: ReceivedRequest) -> bool:
        return isinstance(call.request, Auth) and self.bookie.says_who

    def send(self, data: bytes) -> None:
        self.transport.write(data)


class ScriptedBookie:
    def __init__(self, node: Node) -> None:
        self.node = node
        self.peers: list[Peer] = []
        self.hangs_up = False
        self.says_who = True
        self.on_call: Callable[[Peer, ReceivedRequest], None] = find_nothing
        self.on_adds: Callable[[Peer, Adds], None] = acknowledge

    async def serve(self, node: Node) -> None:
        await node.transport.listen(lambda: Peer(self), Address(node.name, PORT))
        await asyncio.Event().wait()

    @property
    def living_peers(self) -> list[Peer]:
        return [peer for peer in self.peers if not peer.is_gone]


def find_nothing(peer: Peer, call: ReceivedRequest) -> None:
    peer.send(call.answer(refusal_of(call.request, NoSuchEntry)))


def acknowledge(peer: Peer, adds: Adds) -> None:
    for group in adds.groups:
        peer.send(group.pack_replies())


def ignore(_peer: Peer, _heard: object) -> None:
    """Never answer."""


class FixedWatcher(BookieWatcher):
    """A fixed set of bookies, which only the test changes."""

    def __init__(self, infos: dict[BookieId, BookieServiceInfo]) -> None:
        self.infos = infos

    @property
    def current(self) -> LiveBookies:
        return LiveBookies(self.infos)


class Listening:
    """A sink that records its callbacks."""

    def __init__(self) -> None:
        self.opened = 0
        self.losses: list[RollbookError] = []
        self.replies: list[AddReplies] = []

    @property
    def heard(self) -> list[int]:
        return [entry_id for replies in self.replies for entry_id in replies.entry_ids]

    def on_add_replies(self, channel: AddChannel, replies: AddReplies) -> None:
        self.replies.append(replies)

    def on_channel_open(self, channel: AddChannel) -> None:
        self.opened += 1

    def on_channel_lost(self, channel: AddChannel, error: RollbookError) -> None:
        self.losses.append(error)


class Scene:
    def __init__(self, world: World, config: ClientConfig) -> None:
        self.world = world
        self.client_node = world.node("client")
        self.infos: dict[BookieId, BookieServiceInfo] = {}
        self.health = Health()
        self.bookies: Bookies  # Set when the client runs.
        self._config = config
        self._scripted: dict[str, ScriptedBookie] = {}

    def bookie(self, name: str) -> ScriptedBookie:
        if name not in self._scripted:
            self._scripted[name] = ScriptedBookie(self.world.node(name))
            self.infos[BookieId(name)] = describe_bookie(Address(name, PORT))
        return self._scripted[name]

    def start(self, name: str) -> ScriptedBookie:
        bookie = self.bookie(name)
        bookie.node.start(bookie.serve)
        return bookie

    def open(self, node: Node) -> None:
        watcher = FixedWatcher(self.infos)
        self.bookies = Bookies(
            node.transport, watcher, node.clock, node.randomness, self._config, self.health
        )

    def packer(self, ledger_id: int) -> AddPacker:
        digest = LedgerDigest(DigestType.CRC32C, PASSWORD, LedgerId(ledger_id))
        if self._config.protocol_version == 2:
            return V2AddPacker(KEY, digest)
        return V3AddPacker(KEY, digest, self.bookies.txn_ids)

    async def until(self, is_so: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not is_so():
                await asyncio.sleep(0.001)


Story = Callable[[Scene], Awaitable[None]]


def play(
    story: Story,
    *,
    seed: int = 1,
    config: ClientConfig = DEFAULT,
    bookies: Sequence[str] = ("b1",),
) -> World:
    """Run the story, close the pool, and check that no tasks or connections remain."""
    world = World(seed)
    scene = Scene(world, config)

    async def act(node: Node) -> None:
        scene.open(node)
        await story(scene)
        await scene.bookies.close()
        assert node.process is not None
        assert len(node.process.lane.tasks()) == 1, "the pool left tasks behind"
        await scene.until(lambda: not any(b.living_peers for b in scene._scripted.values()))

    async def scenario() -> None:
        for name in bookies:
            scene.start(name)
        await asyncio.sleep(0.01)
        await scene.client_node.start(act).result

    world.run(scenario())
    return world
