"""A bookie's server in the simulator, and clients for the scenarios of tests."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from rollbook.bookie.config import ServerConfig, StorageConfig
from rollbook.bookie.socket_server import BookieServer
from rollbook.bookie.storage import Storage
from rollbook.proto.ids import NO_ENTRY, EntryId, LedgerId
from rollbook.proto.ports import Address
from rollbook.proto.wire.add_columns import Adds
from rollbook.proto.wire.digest import DigestType, LedgerDigest
from rollbook.proto.wire.request_decoder import RequestDecoder
from rollbook.proto.wire.v2_adds import V2AddPacker
from tests.simulation.kernel import Node, World
from tests.support.bookie_client import KEY, PASSWORD, BookieClient
from tests.support.entries import pack_entry

STORAGE = StorageConfig(
    "/store/journal", ("/store/ledgers",), journal_file_bytes=1024 * 1024, idle_after_ms=20
)
SERVER = ServerConfig()
PORT = 3181
PATIENCE_S = 100.0  # Seconds of virtual time.


@dataclass
class Scene:
    """The parts that a test's scenario uses."""

    world: World
    node: Node  # The bookie's machine.
    client_node: Node  # The machine of all clients.
    storage: Storage
    server: BookieServer

    async def connect(self, version: int = 3, port: int = PORT) -> BookieClient:
        client = BookieClient(version)
        await self.client_node.transport.connect(lambda: client, Address("b1", port), 10.0)
        return client

    async def raw(self) -> "Raw":
        raw = Raw()
        await self.client_node.transport.connect(lambda: raw, Address("b1", PORT), 10.0)
        return raw


class Raw(asyncio.Protocol):
    """A connection that sends and receives plain bytes."""

    def __init__(self) -> None:
        self.received = b""
        self.is_closed = False
        self.transport: asyncio.Transport
        self._news = asyncio.Event()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        self._news.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        self._news.set()

    def send(self, data: bytes) -> None:
        self.transport.write(data)

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not is_so():
                self._news.clear()
                await self._news.wait()

    async def receive(self, size: int) -> bytes:
        await self.until(lambda: len(self.received) >= size or self.is_closed)
        taken, self.received = self.received[:size], self.received[size:]
        return taken

    async def closed(self) -> None:
        await self.until(lambda: self.is_closed)


def digest_of(ledger_id: int) -> LedgerDigest:
    return LedgerDigest(DigestType.CRC32C, PASSWORD, LedgerId(ledger_id))


def entry(ledger_id: int, entry_id: int, payload: bytes = b"payload") -> bytes:
    """An entry of a writer that confirms each entry before it adds the next one."""
    lac = EntryId(max(entry_id - 1, NO_ENTRY))
    return pack_entry(digest_of(ledger_id), EntryId(entry_id), lac, 0, payload)


async def add_entries(
    storage: Storage,
    ledger_id: int,
    entry_ids: Iterable[int],
    payload: bytes = b"payload",
    *,
    is_recovery: bool = False,
) -> None:
    packer = V2AddPacker(KEY, digest_of(ledger_id), is_recovery=is_recovery)
    frames = b"".join(
        packer.pack(EntryId(entry_id), EntryId(entry_id - 1), 0, payload) for entry_id in entry_ids
    )
    for adds in RequestDecoder().feed(frames):
        assert isinstance(adds, Adds)
        admission = storage.add(adds)
        assert admission.done, admission.refusals
        await admission.done


Story = Callable[[Scene], Awaitable[None]]


def tell(
    story: Story,
    seed: int = 1,
    config: ServerConfig = SERVER,
    storage_config: StorageConfig = STORAGE,
    *,
    may_fail: bool = False,
) -> World:
    """Runs the story with a new store and a server.

    `may_fail`: the storage may fail during the story.
    """
    world = World(seed)
    node, client_node = world.node("b1"), world.node("client")
    serving: asyncio.Queue[tuple[Storage, BookieServer]] = asyncio.Queue()
    is_told = asyncio.Event()

    async def serve(node: Node) -> None:
        await Storage.make(node.disk, storage_config, node.randomness)
        storage = await Storage.open(node.disk, storage_config, node.clock, node.randomness)
        storage.start()
        server = BookieServer(storage, config, node.transport, node.clock, storage.stats)
        await server.listen(Address("b1", PORT))
        serving.put_nowait((storage, server))
        await is_told.wait()
        await server.drain(5.0)
        if not may_fail:
            await storage.close()

    async def play(client_node: Node) -> None:
        storage, server = await serving.get()
        await story(Scene(world, node, client_node, storage, server))
        is_told.set()

    async def scenario() -> None:
        server = node.start(serve)
        player = client_node.start(play)
        await asyncio.wait((server.result, player.result), return_when=asyncio.FIRST_COMPLETED)
        await (server.result if server.result.done() else player.result)
        await server.result

    world.run(scenario())
    return world
