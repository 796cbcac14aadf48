"""The stores under comparison, each with clients that can be failed at a chosen call."""

import contextlib
import os
import random
import tempfile
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final, Protocol

from rollbook.proto.metastore.memory import MemoryLine, MemoryService
from rollbook.proto.metastore.url import Backend, MetadataUrl
from rollbook.proto.ports import MetadataStore
from rollbook.proto.runtime.clock import SystemClock
from rollbook.proto.runtime.metastore import open_metadata_store
from rollbook.proto.runtime.metastore.embedded_owner import StoreOwner
from rollbook.proto.runtime.metastore.zookeeper import ZooKeeperStore
from tests.contract.stores import proxy_of_store
from tests.support.cutting_proxy import ZOOKEEPER, CuttingProxy
from tests.support.zookeeper import ZooKeeperServer, end_session

SESSION_TIMEOUT_S: Final = (
    10.0  # The longest that ZooKeeper allows with the tick time of the tests.
)


class StoreClient(Protocol):
    """A client, and the connection between it and its store."""

    @property
    def store(self) -> MetadataStore: ...

    def lose_request(self) -> None: ...

    def lose_reply(self) -> None: ...

    def forgive(self) -> None:
        """Cancels a planned loss that has met no request."""

    def isolate(self) -> None: ...

    def rejoin(self) -> None: ...

    async def expire(self) -> None:
        """Ends the session of a client that is isolated."""

    async def reopen(self) -> None: ...

    async def close(self) -> None: ...


class Stage(Protocol):
    name: str

    async def seat(self) -> StoreClient: ...


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


# --- Embedded -----------------------------------------------------------------------------------


class EmbeddedStage:
    """Clients that reach the owner over its socket, each through a proxy of its own.

    A client finds its proxy where it looks for the owner: beside a file with the store's name.
    """

    name = "sqlite"

    def __init__(self, owner: StoreOwner, path: str) -> None:
        self._owner = owner
        self._path = path
        self._resources = contextlib.ExitStack()
        self._idle: list[tuple[CuttingProxy, str]] = []

    async def seat(self) -> "EmbeddedSeat":
        proxy, seen = self._idle.pop() if self._idle else self._proxy()
        seat = EmbeddedSeat(self._owner, proxy, seen, lambda: self._idle.append((proxy, seen)))
        await seat.open()
        return seat

    def close(self) -> None:
        self._resources.close()

    def _proxy(self) -> tuple[CuttingProxy, str]:
        return self._resources.enter_context(proxy_of_store(self._path))


class ProxiedSeat(ABC):
    """A client that fails through its proxy; the proxy is reused after the client is closed."""

    store: MetadataStore

    def __init__(self, proxy: CuttingProxy, give_back: Callable[[], None]) -> None:
        self._proxy = proxy
        self._give_back = give_back

    async def open(self) -> None:
        self.store = await self._open()

    @abstractmethod
    async def _open(self) -> MetadataStore: ...

    @abstractmethod
    async def expire(self) -> None: ...

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

    async def reopen(self) -> None:
        await self.store.close()
        await self.open()

    async def close(self) -> None:
        await self.store.close()
        self._proxy.forgive()
        self._proxy.accept()
        self._give_back()


class EmbeddedSeat(ProxiedSeat):
    def __init__(
        self, owner: StoreOwner, proxy: CuttingProxy, path: str, give_back: Callable[[], None]
    ) -> None:
        super().__init__(proxy, give_back)
        self._owner = owner
        self._path = path

    async def _open(self) -> MetadataStore:
        url = MetadataUrl(Backend.SQLITE, self._path)
        return await open_metadata_store(url, session_timeout_s=SESSION_TIMEOUT_S)

    async def expire(self) -> None:
        self._owner._host.expire(self.store.session)


@contextlib.asynccontextmanager
async def embedded_stage() -> AsyncIterator[EmbeddedStage]:
    with tempfile.TemporaryDirectory(prefix="store-") as folder:
        path = os.path.join(folder, "metadata.db")
        owner = await StoreOwner.take(path, SystemClock(), random.Random(0), create=True)
        assert owner is not None
        stage = EmbeddedStage(owner, path)
        try:
            yield stage
        finally:
            stage.close()
            await owner.close()


# --- ZooKeeper ----------------------------------------------------------------------------------


class ZooKeeperStage:
    name = "zookeeper"

    def __init__(self, server: ZooKeeperServer) -> None:
        self._server = server
        self._resources = contextlib.ExitStack()
        self._idle: list[CuttingProxy] = []

    async def seat(self) -> "ZooKeeperSeat":
        proxy = self._idle.pop() if self._idle else self._proxy()
        seat = ZooKeeperSeat(self._server, proxy, lambda: self._idle.append(proxy))
        await seat.open()
        return seat

    def close(self) -> None:
        self._resources.close()

    def _proxy(self) -> CuttingProxy:
        return self._resources.enter_context(CuttingProxy(self._server.address, ZOOKEEPER))


class ZooKeeperSeat(ProxiedSeat):
    store: ZooKeeperStore

    def __init__(
        self, server: ZooKeeperServer, proxy: CuttingProxy, give_back: Callable[[], None]
    ) -> None:
        super().__init__(proxy, give_back)
        self._server = server

    async def _open(self) -> ZooKeeperStore:
        store = ZooKeeperStore(self._proxy.address, session_timeout_s=SESSION_TIMEOUT_S)
        return await store.open()

    async def expire(self) -> None:
        client = self.store._link._client
        await end_session(self._server, client._session_id, client._session_passwd)


@contextlib.contextmanager
def zookeeper_stage(server: ZooKeeperServer) -> Iterator[ZooKeeperStage]:
    stage = ZooKeeperStage(server)
    try:
        yield stage
    finally:
        stage.close()
