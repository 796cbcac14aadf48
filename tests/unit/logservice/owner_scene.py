"""Log owners at work in the simulator: real ledgers over in-memory bookies.

    play(story)      story(scene): `await scene.server("s1").open()` is an owner of the log under test

Each server is a process with its own client of the metadata store. Its work runs in that process:
a killed server does nothing more, a paused one continues when it is resumed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import Context
from typing import Any, Final, TypeVar

from rollbook.ledger.config import ClientConfig
from rollbook.ledger.ledgers import Ledgers
from rollbook.logservice.core.record_block import Block, BlockInfo, Codec, pack_block
from rollbook.logservice.ids import LogName, Offset, ProducerRef, ServerId, ServerInfo
from rollbook.logservice.log_config import LogConfig
from rollbook.logservice.log_metadata import LogMetadataStore, StoredLog
from rollbook.logservice.messages import AppendAck, Condition
from rollbook.logservice.owner import Owner, PendingAppend
from rollbook.logservice.server_context import OwnerContext
from rollbook.logservice.stall_detector import StallDetector
from rollbook.logservice.tail_cache import TailMemory
from rollbook.proto.cluster.cluster_root import initialise, open_cluster
from rollbook.proto.errors import RollbookError
from rollbook.proto.formats.paths import AVAILABLE
from rollbook.proto.formats.service_info import describe_bookie, pack_service_info
from rollbook.proto.ports import Address, MetadataStore
from tests.simulation.kernel import Node, World
from tests.unit.ledger.scripted_bookie import PORT, ScriptedBookie
from tests.unit.logservice.memory_bookie import MemoryBookie

T = TypeVar("T")

LOG: Final = LogName.parse("test/log")
ROOT: Final = "/ledgers"
LEASE_S: Final = 3.0
PATIENCE_S: Final = 60.0  # Virtual time.
FAST: Final = ClientConfig(read_deadline_s=1.0, add_deadline_s=1.0, recovery_patience_s=0.1)
SMALL: Final = LogConfig(roll_entries=16)


def block_of(*values: bytes, producer: ProducerRef | None = None) -> tuple[bytes, BlockInfo]:
    block = pack_block(values, producer=producer)
    crc = int.from_bytes(block[4:8], "little")
    return block, BlockInfo(len(values), producer, Codec.NONE, len(block), len(block), crc)


class Server:
    def __init__(self, scene: "Scene", name: str) -> None:
        self.scene = scene
        self.node: Node = scene.world.node(name)
        self.name = name
        self.owner_context: OwnerContext
        self._is_ready = asyncio.Event()
        self._may_end = asyncio.Event()

    async def start(self) -> None:
        self._is_ready.clear()
        self.node.start(self._live)
        await self.scene.within(self._is_ready.wait())

    async def _live(self, node: Node) -> None:
        store = await node.metadata()
        cluster = await open_cluster(store, ROOT)
        ledgers = Ledgers(node.transport, store, cluster, node.clock, node.randomness, FAST)
        await ledgers.start()
        nodes = LogMetadataStore(store, cluster, node.clock, node.randomness)
        await nodes.start()
        stall_detector = StallDetector(node.clock, LEASE_S)
        stall_detector.start()
        assert node.process is not None
        self.owner_context = OwnerContext(
            ServerInfo(ServerId(f"{self.name}~{node.process.number}"), f"{self.name}:7400"),
            ledgers,
            nodes,
            node.clock,
            node.randomness,
            stall_detector,
            TailMemory(2**20),
        )
        self._is_ready.set()
        try:
            await self._may_end.wait()
        finally:
            stall_detector.close()
            await ledgers.close()
            await store.close()

    @property
    def context(self) -> Context:
        return self.node.context.copy()

    def begin(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        return asyncio.get_running_loop().create_task(work, context=self.context)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        return await self.scene.within(asyncio.shield(self.begin(work)))

    def do(self, function: Callable[..., T], *arguments: Any) -> T:
        return self.context.run(function, *arguments)

    async def open(self, reason: str = "test", name: LogName = LOG) -> "Held":
        return Held(self, await self.run(Owner.open(name, self.owner_context, reason=reason)))


class Held:
    """An owner, used from within its server's process."""

    def __init__(self, server: Server, owner: Owner) -> None:
        self.server, self.owner = server, owner

    def begin(
        self,
        *values: bytes,
        producer: ProducerRef | None = None,
        condition: Condition | None = None,
    ) -> PendingAppend:
        block, info = block_of(*values, producer=producer)
        return self.server.do(self.owner.append, block, info, condition)

    async def append(
        self,
        *values: bytes,
        producer: ProducerRef | None = None,
        condition: Condition | None = None,
    ) -> AppendAck:
        pending = self.begin(*values, producer=producer, condition=condition)
        return await self.server.scene.within(pending.answer)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        return await self.server.run(work)

    async def close(self) -> None:
        await self.run(self.owner.close("test"))


class Scene:
    def __init__(self, world: World) -> None:
        self.world = world
        self.bookies: dict[str, MemoryBookie] = {}
        self._servers: dict[str, Server] = {}
        self.store: MetadataStore
        self.nodes: LogMetadataStore  # Used by the story itself, as an operator.
        self.ledgers: Ledgers

    async def server(self, name: str) -> Server:
        if name not in self._servers:
            self._servers[name] = Server(self, name)
            await self._servers[name].start()
        return self._servers[name]

    async def within(self, work: Awaitable[T]) -> T:
        async with asyncio.timeout(PATIENCE_S):
            return await work

    async def until(self, is_so: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not is_so():
                await asyncio.sleep(0.001)

    def is_running(self, name: str) -> bool:
        """True also before the process has started."""
        node = self.world.nodes.get(name)
        return node is None or node.process is None or node.is_running

    def set_bookies(self, **switches: Any) -> None:
        for bookie in self.bookies.values():
            for switch, value in switches.items():
                setattr(bookie, switch, value)

    async def stored(self, name: LogName = LOG) -> StoredLog:
        return await self.nodes.read(name)

    async def read_all(self, name: LogName = LOG) -> list[Block]:
        """Returns the blocks of the closed segments and checks that their offsets are dense."""
        blocks: list[Block] = []
        stored = await self.stored(name)
        for segment in stored.list.segments:
            if not segment.is_closed:
                break
            async with await self.ledgers.open(segment.ledger_id) as reader:
                blocks += [Block(entry.payload) async for entry in reader.read()]
        tail = blocks[0].base_offset if blocks else Offset(0)
        for block in blocks:
            assert block.base_offset == tail, "offsets are not dense"
            tail = block.next_offset
        return blocks

    async def values(self, name: LogName = LOG) -> list[bytes]:
        return [value for block in await self.read_all(name) for value in block.values()]


Story = Callable[[Scene], Awaitable[None]]


def play(
    story: Story,
    *,
    seed: int = 1,
    bookies: Sequence[str] = ("b1", "b2", "b3", "b4"),
    config: LogConfig = SMALL,
) -> World:
    """Runs the story, then closes every server and client."""
    world = World(seed)
    scene = Scene(world)

    async def operate(node: Node) -> None:
        store = scene.store = await node.metadata()
        cluster = await initialise(store, ROOT, node.randomness)
        for name in bookies:
            info = pack_service_info(describe_bookie(Address(name, PORT)))
            await store.create(f"{ROOT}/{AVAILABLE}/{name}", info)
            scripted = ScriptedBookie(world.node(name))
            scene.bookies[name] = MemoryBookie(scripted)
            scripted.node.start(scripted.serve)
        scene.ledgers = Ledgers(node.transport, store, cluster, node.clock, node.randomness, FAST)
        await scene.ledgers.start()
        scene.nodes = LogMetadataStore(store, cluster, node.clock, node.randomness)
        await scene.nodes.start()
        await scene.nodes.create(LOG, config)
        await story(scene)
        for server in scene._servers.values():
            if server.node.is_running:
                server._may_end.set()
                assert server.node.process is not None
                await scene.within(server.node.process.result)
        await scene.ledgers.close()
        await store.close()

    async def scenario() -> None:
        await world.node("operator").start(operate).result

    world.run(scenario())
    return world


async def refused(work: Awaitable[Any], kind: type[RollbookError]) -> RollbookError:
    try:
        await work
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")
