"""The servers of a run: log servers with all that is behind their doors, and the bookies beneath.

A log server is what `rollbook server log` runs, but for gRPC: the service core on the ports of a node,
two sessions with the metadata store, a door. One that cannot start, or was asked to stop, is started again
by its operator. Bookies keep what they are given in memory, across restarts of their processes: what
disks and whole bookies do is the business of other worlds, and costs ten times as much.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final

from rollbook.ledger.config import ClientConfig
from rollbook.ledger.ledgers import Ledgers
from rollbook.logservice.config import LogServiceConfig
from rollbook.logservice.ids import LogName
from rollbook.logservice.log_metadata import LogMetadataStore
from rollbook.logservice.log_ownership import LogServer, _Grounds
from rollbook.logservice.orphan_ledgers import OrphanRepair
from rollbook.logservice.service import LogService
from rollbook.proto.cluster.cluster_root import open_cluster
from rollbook.proto.errors import NodeExists, NoSuchNode, RollbookError
from rollbook.proto.formats.paths import AVAILABLE
from rollbook.proto.formats.service_info import WRITERS_FROM, describe_bookie, pack_service_info
from rollbook.proto.ports import Address, MetadataStore
from tests.simulation.kernel.metadata import Mail
from tests.simulation.kernel.world import Main, Node, Process, World
from tests.simulation.worlds.logs.door import Door, Peers
from tests.simulation.worlds.logs.words import BOOKIES, PORT
from tests.unit.ledger.scripted_bookie import PORT as BOOKIE_PORT
from tests.unit.ledger.scripted_bookie import ScriptedBookie
from tests.unit.logservice.memory_bookie import MemoryBookie

ROOT: Final = "/ledgers"
LEASE_S: Final = 0.6
SESSION_S: Final = 2.0
STOP_S: Final = 20.0
_RESTART_S: Final = 0.1

# Deadlines that faults outlast. As in a log server (`api/cli/server/log.py`), bookies hear of a last entry late.
LEDGERS: Final = ClientConfig(
    connect_timeout_s=0.3,
    reconnect_pause_s_max=0.2,
    silence_s_max=0.25,
    add_deadline_s=0.8,
    read_deadline_s=0.6,
    recovery_patience_s=0.1,
    explicit_lac_idle_ms=30_000,
)
SERVICE: Final = LogServiceConfig(
    lease_s=LEASE_S,
    rebalance_after_s=0.5,
    heartbeat_s=0.5,
    open_deadline_s=5.0,
    sweep_interval_s=0.7,
    orphans_interval_s=0.9,
)

Live = Callable[[Main, Node], Coroutine[Any, Any, None]]


class Bookies:
    def __init__(self, world: World, live: Live, names: Sequence[str] = BOOKIES) -> None:
        self.names = names
        self._world, self._live = world, live
        self.memories: dict[str, MemoryBookie] = {}
        self._away: dict[str, None] = {}
        self._moved = asyncio.Event()

    async def start(self, store: MetadataStore) -> None:
        for name in self.names:
            await _register(store, name)
            scripted = ScriptedBookie(self._world.node(name))
            self.memories[name] = MemoryBookie(scripted)
            scripted.node.start(partial(self._live, scripted.serve))

    def ignore(self, ledger_ids: Iterable[int]) -> Callable[[], None]:
        """All of them do, but for fences and recoveries. Returns how to end that."""
        ledger_ids = tuple(ledger_ids)
        for memory in self.memories.values():
            memory.ignored.update(ledger_ids)

        def hear() -> None:
            for memory in self.memories.values():
                memory.ignored.difference_update(ledger_ids)

        return hear

    def be_full(self) -> Callable[[], None]:
        """All of them are, but for fences and recoveries. Returns how to end that."""
        self._set_full(True)
        return partial(self._set_full, False)

    def _set_full(self, is_full: bool) -> None:
        for memory in self.memories.values():
            memory.is_full = is_full

    def copies(self, ledger_id: int, entry_id: int) -> int:
        """With those that a format took."""
        return sum(
            any(
                shelf is not None and entry_id in shelf.entries
                for shelf in (memory.shelves.get(ledger_id), memory.forgotten.get(ledger_id))
            )
            for memory in self.memories.values()
        )

    def format(self, name: str, next_ledger_id: int) -> None:
        """Unless another one was: the second copy of what was acked may be there."""
        if not any(memory.writers_from for memory in self.memories.values()):
            self.memories[name].format(next_ledger_id)

    def start_all_again(self) -> None:
        self._set_full(False)
        for memory in self.memories.values():
            memory.ignored.clear()
        for name in self.names:
            self.come_back(name)

    # --- Stopped in order, for a while ------------------------------------------------------------

    def leave(self, name: str) -> None:
        self._world.node(name).kill()
        self._away[name] = None
        self._moved.set()

    def come_back(self, name: str) -> None:
        self._away.pop(name, None)
        self._moved.set()
        if not self._world.node(name).is_running:
            self._world.node(name).restart()

    async def keep_registered(self, node: Node) -> None:
        """Those that are not away. For cases in which some leave."""
        store = await node.metadata()
        registered = dict.fromkeys(self.names, 0)  # And the first ledger whose writer each takes.
        while True:
            await self._moved.wait()
            self._moved.clear()
            for name in self.names:
                try:
                    writers_from = self.memories[name].writers_from
                    is_as_it_was = registered.get(name) == writers_from
                    if name in registered and (name in self._away or not is_as_it_was):
                        await store.delete(f"{ROOT}/{AVAILABLE}/{name}")
                        del registered[name]
                    if name not in self._away and name not in registered:
                        await _register(store, name, writers_from)
                        registered[name] = writers_from
                except NodeExists:
                    registered[name] = writers_from
                except NoSuchNode:
                    del registered[name]
                except RollbookError:  # The metadata store is away.
                    self._world.at(self._world.now + _RESTART_S, self._moved.set)


async def _register(store: MetadataStore, name: str, writers_from: int = 0) -> None:
    properties = {WRITERS_FROM: str(writers_from)} if writers_from else {}
    info = pack_service_info(describe_bookie(Address(name, BOOKIE_PORT), properties=properties))
    await store.create(f"{ROOT}/{AVAILABLE}/{name}", info)


class Servers:
    """The operator of the log servers."""

    def __init__(
        self,
        world: World,
        addresses: dict[str, str],
        *,
        mail: Mail,
        tell: Callable[[str], None],
        live: Live,
    ) -> None:
        """`addresses`: where each says that it is."""
        self.names = tuple(addresses)
        self._addresses = addresses
        self.is_over = False  # A server that stops now is not started again.
        self._world, self._mail, self._tell, self._live = world, mail, tell, live
        self._serving: dict[str, tuple[Process, LogService]] = {}
        self._may_end: dict[str, asyncio.Event] = {}

    def start(self) -> None:
        for name in self.names:
            self._world.node(name).start(partial(self._live, self._keep))

    def start_all_again(self) -> None:
        for name in self.names:
            self._start_again(self._world.node(name))

    def find(self, name: str) -> LogService | None:
        """The one that serves."""
        process, service = self._serving.get(name, (None, None))
        return service if process is not None and process.is_alive else None

    def all_serve(self) -> bool:
        return all(self.find(name) for name in self.names)

    def stop(self, name: str) -> None:
        """As SIGTERM."""
        if self.find(name) is not None:
            self._may_end[name].set()

    def take(self, name: str, log: LogName) -> None:
        """It believes that the log is its own to open, whatever the others suggest."""
        service = self.find(name)
        if service is None:
            return
        server = service.server
        if server._is_closed:
            return  # No belief of its makes it open anything.
        busy = (server._openings, server._closings)
        if server.find(log) is None and not any(log in each for each in busy):
            context = self._world.node(name).context.copy()
            context.run(server._start, log, _Grounds("suggestions differ"))

    def walk(self, name: str) -> None:
        """It looks for ledgers that were never listed."""
        service = self.find(name)
        if service is not None:
            node = self._world.node(name)
            work = self._repair(service.server, node)
            self._world.loop.create_task(work, context=node.context.copy())

    async def _repair(self, server: LogServer, node: Node) -> None:
        try:
            now_ms = node.clock.wall_us() // 1000
            await OrphanRepair(server.ledgers, server.nodes, now_ms).run()
        except RollbookError as error:
            self._tell(f"{node.name} looks for leftovers in vain: {error!r}")

    # --- One life of a server's process -----------------------------------------------------------

    async def _keep(self, node: Node) -> None:
        self._may_end[node.name] = asyncio.Event()
        try:
            async with AsyncExitStack() as stack:
                await self._serve(node, stack)
        except RollbookError as error:
            self._tell(f"{node.name} stops: {error!r}")
        self._serving.pop(node.name, None)
        assert node.process is not None
        self._world.at(self._world.now + _RESTART_S, self._replace, node, node.process)

    async def _serve(self, node: Node, stack: AsyncExitStack) -> None:
        store = await node.metadata(session_timeout_s=SESSION_S, operation_timeout_s=1.0)
        stack.push_async_callback(store.close)
        lease = await node.metadata(session_timeout_s=LEASE_S, operation_timeout_s=1.0)
        stack.push_async_callback(lease.close)
        cluster = await open_cluster(store, ROOT)
        ledgers = await stack.enter_async_context(
            Ledgers(node.transport, store, cluster, node.clock, node.randomness, LEDGERS)
        )
        nodes = LogMetadataStore(store, cluster, node.clock, node.randomness)
        await nodes.start()
        server = LogServer(
            node.name,
            "test",
            ledgers=ledgers,
            nodes=nodes,
            lease=lease,
            transport=node.transport,
            clock=node.clock,
            randomness=node.randomness,
            config=SERVICE,
        )
        peers = Peers(self._mail, node.transport)
        stack.callback(peers.close)
        service = LogService(server, server.clock, peers.ask)
        listener = await node.transport.listen(
            lambda: Door(self._mail, service), Address(node.name, PORT)
        )
        stack.push_async_callback(listener.close)
        stack.push_async_callback(server.close, STOP_S / 2)
        await server.start(self._addresses[node.name])
        assert node.process is not None
        self._serving[node.name] = (node.process, service)
        self._tell(f"{node.name} serves as {server.server_id}")
        await self._may_end[node.name].wait()
        self._tell(f"{node.name} is told to stop")

    def _replace(self, node: Node, ended: Process) -> None:
        """When nothing is left of it."""
        if ended.is_alive:
            self._world.at(self._world.now + _RESTART_S, self._replace, node, ended)
        elif node.process is ended:
            self._start_again(node)

    def _start_again(self, node: Node) -> None:
        if not node.is_running and node.is_up and not self.is_over:
            node.restart()
