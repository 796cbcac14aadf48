"""The stores under comparison, each with clients that can be failed at a chosen call."""

import contextlib
import random
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final, Protocol

from rollbook.proto.metastore.memory import MemoryLine, MemoryService
from rollbook.proto.ports import MetadataStore
from rollbook.proto.runtime.clock import SystemClock
from rollbook.proto.runtime.metastore.zookeeper import ZooKeeperStore
from tests.support.cutting_proxy import ZOOKEEPER, CuttingProxy
from tests.support.zookeeper import ZooKeeperServer, end_session

SESSION_TIMEOUT_S: Final = 10.0  # ZooKeeper's longest at the ticks of the tests: no accidents.


class Seat(Protocol):
    """A client, and the line between it and its store."""

    @property
    def store(self) -> MetadataStore: ...

    def lose_request(self) -> None: ...

    def lose_reply(self) -> None: ...

    def forgive(self) -> None:
        """Takes back a loss that met no request."""

    def isolate(self) -> None: ...

    def rejoin(self) -> None: ...

    async def expire(self) -> None:
        """Ends the session of a client that is isolated."""

    async def reopen(self) -> None: ...

    async def close(self) -> None: ...


class Stage(Protocol):
    name: str

    async def seat(self) -> Seat: ...


# --- Memory -------------------------------------------------------------------------------------


class MemoryStage:
    name = "memory"

    def __init__(self, service: MemoryService) -> None:
        self._service = service

    async def seat(self) -> "MemorySeat":
        store = await self._service.connect(session_timeout_s=SESSION_TIMEOUT_S)
        return MemorySeat(self._service, store)


class MemorySeat:
    def __init__(self, service: MemoryService, client: MetadataStore) -> None:
        self._service = service
        self._client = client

    @property
    def store(self) -> MetadataStore:
        return self._client

    @property
    def _line(self) -> MemoryLine:
        return self._service.line(self._client)

    def lose_request(self) -> None:
        self._line.lose_next_request()

    def lose_reply(self) -> None:
        self._line.lose_next_answer()

    def forgive(self) -> None:
        self._line._next_loss = None

    def isolate(self) -> None:
        self._line.suspend()

    def rejoin(self) -> None:
        self._line.resume()

    async def expire(self) -> None:
        self._service.expire(self._client.session)

    async def reopen(self) -> None:
        await self._client.close()
        self._client = await self._service.connect(session_timeout_s=SESSION_TIMEOUT_S)

    async def close(self) -> None:
        await self._client.close()


@contextlib.asynccontextmanager
async def memory_stage() -> AsyncIterator[MemoryStage]:
    service = MemoryService(SystemClock(), random.Random(0))
    try:
        yield MemoryStage(service)
    finally:
        await service.close()


# --- ZooKeeper ----------------------------------------------------------------------------------


class ZooKeeperStage:
    name = "zookeeper"

    def __init__(self, server: ZooKeeperServer) -> None:
        self._server = server
        self._proxies = contextlib.ExitStack()
        self._idle: list[CuttingProxy] = []

    async def seat(self) -> "ZooKeeperSeat":
        seat = ZooKeeperSeat(self._server, self._proxy(), self._idle.append)
        await seat.open()
        return seat

    def close(self) -> None:
        self._proxies.close()

    def _proxy(self) -> CuttingProxy:
        if self._idle:
            return self._idle.pop()
        return self._proxies.enter_context(CuttingProxy(self._server.address, ZOOKEEPER))


class ZooKeeperSeat:
    store: ZooKeeperStore

    def __init__(
        self,
        server: ZooKeeperServer,
        proxy: CuttingProxy,
        give_back: Callable[[CuttingProxy], None],
    ) -> None:
        self._server = server
        self._proxy = proxy
        self._give_back = give_back

    async def open(self) -> None:
        store = ZooKeeperStore(self._proxy.address, session_timeout_s=SESSION_TIMEOUT_S)
        self.store = await store.open()

    def lose_request(self) -> None:
        self._proxy.lose_request()

    def lose_reply(self) -> None:
        self._proxy.lose_reply()

    def forgive(self) -> None:
        self._proxy.forgive()

    def isolate(self) -> None:
        self._proxy.refuse()
        self._proxy.cut()

    def rejoin(self) -> None:
        self._proxy.accept()

    async def expire(self) -> None:
        client = self.store._link._client
        await end_session(self._server, client._session_id, client._session_passwd)

    async def reopen(self) -> None:
        await self.store.close()
        await self.open()

    async def close(self) -> None:
        await self.store.close()
        self._proxy.forgive()
        self._proxy.accept()
        self._give_back(self._proxy)


@contextlib.contextmanager
def zookeeper_stage(server: ZooKeeperServer) -> Iterator[ZooKeeperStage]:
    stage = ZooKeeperStage(server)
    try:
        yield stage
    finally:
        stage.close()
