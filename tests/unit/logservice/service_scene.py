"""Whole log servers without network fronts in the simulator; builds on `owner_scene`.

async def story(scene):
    a = await start(scene, "a")
    await a.append(LOG, b"value")           sent to server a
    client = Client(scene, a, b)
    await client.append(LOG, b"value")      follows redirects and retries until it is acked
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final, TypeVar

from rollbook.api.rpc_methods import BY_REQUEST
from rollbook.ledger.ledgers import Ledgers
from rollbook.logservice import messages
from rollbook.logservice.config import LogServiceConfig
from rollbook.logservice.core.record_block import Block
from rollbook.logservice.ids import LogName, Offset, ProducerRef
from rollbook.logservice.log_metadata import LogMetadataStore
from rollbook.logservice.log_ownership import LogServer
from rollbook.logservice.position_syntax import Earliest, Position
from rollbook.logservice.service import LogService
from rollbook.proto.cluster.cluster_root import open_cluster
from rollbook.proto.errors import (
    ConnectionLost,
    NotOwner,
    OutcomeUnknown,
    OwnerFenced,
    RollbookError,
    ServerUnreachable,
    Unavailable,
)
from rollbook.proto.ports import Address, Listener
from tests.simulation.kernel import Node
from tests.support.services import service_of
from tests.unit.logservice.owner_scene import (
    FAST,
    PATIENCE_S,
    ROOT,
    Scene,
    Server,
    block_of,
)

T = TypeVar("T")

PORT: Final = 7400
QUICK: Final = LogServiceConfig(rebalance_after_s=1.0, heartbeat_s=2.0)
_GRACE_S: Final = 0.5


class Serving(Server):
    """A log server's process; its network front would call its `service`."""

    def __init__(self, scene: Scene, name: str, config: LogServiceConfig = QUICK) -> None:
        super().__init__(scene, name)
        self.config = config
        self.service: LogService
        self.listener: Listener
        self.takes_calls = False

    @property
    def address(self) -> str:
        return f"{self.name}:{PORT}"

    @property
    def log_server(self) -> LogServer:
        return self.service.server

    async def _live(self, node: Node) -> None:
        self.takes_calls = False  # Also after a kill.
        store = await node.metadata()
        lease = await node.metadata(session_timeout_s=self.config.lease_s)
        cluster = await open_cluster(store, ROOT)
        ledgers = Ledgers(node.transport, store, cluster, node.clock, node.randomness, FAST)
        await ledgers.start()
        nodes = LogMetadataStore(store, cluster, node.clock, node.randomness)
        await nodes.start()
        server = LogServer(
            self.name,
            "test",
            ledgers=ledgers,
            nodes=nodes,
            lease=lease,
            transport=node.transport,
            clock=node.clock,
            randomness=node.randomness,
            config=self.config,
        )
        self.service = service_of(server, node.clock, self._ask_peer)
        address = Address(self.name, PORT)
        self.listener = await node.transport.listen(asyncio.Protocol, address)
        await server.start(self.address)
        self.takes_calls = True
        self._is_ready.set()
        try:
            await self._may_end.wait()
        finally:
            await server.close()
            self.takes_calls = False
            await asyncio.sleep(_GRACE_S)  # Lets the last responses out, as a network front does.
            await self.listener.close()
            await ledgers.close()
            await lease.close()
            await store.close()

    async def _ask_peer(self, asked: Any, address: str, due: float) -> Any:
        """As over gRPC: a killed or paused process sends no response."""
        name = address.partition(":")[0]
        peer = self.scene._servers.get(name)
        if not isinstance(peer, Serving) or not peer.node.is_running or not peer.takes_calls:
            raise ServerUnreachable(server=address)
        method = BY_REQUEST[type(asked)].core_name
        answer = peer.begin(getattr(peer.service, method)(asked, due))
        answer.add_done_callback(
            lambda it: it.cancelled() or it.exception()
        )  # The caller may have been cancelled.
        return await asyncio.shield(answer)

    async def stop(self) -> None:
        """Stops the server cleanly, as on SIGTERM."""
        self._may_end.set()
        assert self.node.process is not None
        await self.scene.within(self.node.process.result)

    # --- Calls from its network front -------------------------------------------------------------

    def due(self, within_s: float = PATIENCE_S) -> float:
        return asyncio.get_running_loop().time() + within_s

    async def ask(self, work: Coroutine[Any, Any, T]) -> T:
        return await self.run(work)

    async def append(
        self, log: LogName, *values: bytes, producer: ProducerRef | None = None
    ) -> messages.AppendAck:
        block, _ = block_of(*values, producer=producer)
        return await self.ask(self.service.append(messages.Append(log, block), self.due(10.0)))

    async def read_all(self, log: LogName, start: Position = Earliest()) -> list[bytes]:  # noqa: B008  # A value.
        """Returns the values from `start` to the current tail."""
        request = messages.ReadStream(log, start, at_tail=messages.AtTail.STOP)
        values: list[bytes] = []
        async with self.events(request) as events:
            async for event in events:
                if isinstance(event, messages.Records):
                    values += values_of(event)
        return values

    @asynccontextmanager
    async def events(
        self, request: messages.ReadStream
    ) -> AsyncIterator[AsyncIterator[messages.ReadEvent]]:
        """Events from this server's process, each sent when the test reads it. The iterator raises
        `ConnectionLost` if the process is killed.
        """
        process = self.node.process
        assert process is not None
        queue: asyncio.Queue[messages.ReadEvent | RollbookError | None] = asyncio.Queue()
        wanted = asyncio.Semaphore(0)

        async def tell() -> None:
            stream = self.service.read_stream(request)
            try:
                await wanted.acquire()
                async for event in stream:
                    queue.put_nowait(event)
                    await wanted.acquire()
                queue.put_nowait(None)
            except RollbookError as error:
                queue.put_nowait(error)
            finally:
                await stream.aclose()  # type: ignore[attr-defined]  # It is a generator.

        async def take() -> AsyncIterator[messages.ReadEvent]:
            while True:
                wanted.release()
                getting = asyncio.ensure_future(queue.get())
                try:
                    await asyncio.wait(
                        (getting, process.result), return_when=asyncio.FIRST_COMPLETED
                    )
                finally:
                    if not getting.done():
                        getting.cancel()
                if not getting.done():
                    raise ConnectionLost
                event = getting.result()
                if isinstance(event, RollbookError):
                    raise event
                if event is None:
                    return
                yield event

        telling = self.begin(tell())
        try:
            yield take()
        finally:
            telling.cancel()
            if not process.result.done():  # A killed process runs no task any more.
                await asyncio.gather(telling, return_exceptions=True)


def values_of(records: messages.Records) -> list[bytes]:
    """The values within the event's offsets; its first and last block may hold more."""
    values: list[bytes] = []
    for block in map(Block, records.blocks):
        first = max(records.base_offset - block.base_offset, 0)
        values += block.values()[first : records.next_offset - block.base_offset]
    return values


async def start(scene: Scene, name: str, **changes: Any) -> Serving:
    """The server is registered when this returns; other servers may see it a moment later."""
    serving = Serving(scene, name, replace(QUICK, **changes))
    scene._servers[name] = serving
    await serving.start()
    return serving


async def start_all(scene: Scene, *names: str, **changes: Any) -> list[Serving]:
    """Returns when every server sees all of them."""
    servers = [await start(scene, name, **changes) for name in names]
    await scene.until(
        lambda: all(len(each.log_server.membership.servers) == len(names) for each in servers)
    )
    return servers


class Client:
    """Follows redirects and retries each append until it is acked; batch numbers prevent duplicates.

    All clients are the same producer, so a story has only one.
    """

    def __init__(self, scene: Scene, *servers: Serving) -> None:
        self.refusals: list[str] = []  # Reason codes.
        self._scene = scene
        self._servers = {each.address: each for each in servers}
        self._first = servers[0].address
        self._seqs: dict[LogName, int] = {}

    def hear_of(self, server: Serving) -> None:
        self._servers[server.address] = server

    async def append(self, log: LogName, *values: bytes) -> messages.AppendAck:
        seq = self._seqs.get(log, 0)
        self._seqs[log] = seq + 1
        producer = ProducerRef(b"client", 0, seq)
        address = self._first
        async with asyncio.timeout(PATIENCE_S):
            while True:
                server = self._servers[address]
                if not server.takes_calls or not server.node.is_running:
                    address = self._another(address)
                    await asyncio.sleep(0.01)
                    continue
                try:
                    return await self._ask(server, log, values, producer)
                except (Unavailable, OutcomeUnknown, OwnerFenced) as error:  # These are retried.
                    self.refusals.append(error.code.reason)
                    to = str(error.ids.get("owner", "")) if isinstance(error, NotOwner) else ""
                    address = to or self._another(address)
                    await asyncio.sleep(error.ids.get("retry_after_ms", 1) / 1000)

    async def _ask(
        self, server: Serving, log: LogName, values: tuple[bytes, ...], producer: ProducerRef
    ) -> messages.AppendAck:
        """Raises ConnectionLost when the server's process is not running."""
        block, _ = block_of(*values, producer=producer)
        asking = server.begin(server.service.append(messages.Append(log, block), server.due(10.0)))
        while not asking.done():
            await asyncio.sleep(0.002)
            if not server.node.is_running:
                raise ConnectionLost
        return asking.result()

    def _another(self, address: str) -> str:
        """The next server in order."""
        addresses = list(self._servers)
        return addresses[(addresses.index(address) + 1) % len(addresses)]


def log_suggested_to(server: Serving, number: int = 0) -> LogName:
    """The log with this number among those whose suggested owner is this server."""
    suggestions = server.log_server.membership.suggestions
    found = 0
    for index in range(100_000):
        name = LogName("test", f"log-{index}")
        if suggestions.server_for(name) == server.name:
            if found == number:
                return name
            found += 1
    raise AssertionError("no log is suggested to this server")


async def make_log(scene: Scene, name: LogName) -> LogName:
    await scene.nodes.ensure(name, None)
    return name


def offset(value: int) -> Offset:
    return Offset(value)
