"""The stores under contract: how to open each of them, and how to inject faults for its clients."""

import asyncio
import contextlib
import json
import os
import random
import tempfile
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

from rollbook.proto.metastore.memory import MemoryLine, MemoryService
from rollbook.proto.metastore.service_client import StoreClient
from rollbook.proto.metastore.url import Backend, MetadataUrl
from rollbook.proto.ports import MetadataStore, SessionEvent, SessionState, WatchEvent
from rollbook.proto.runtime.clock import SystemClock
from rollbook.proto.runtime.metastore import open_metadata_store
from rollbook.proto.runtime.metastore.embedded_owner import StoreOwner
from rollbook.proto.runtime.metastore.zookeeper import ZooKeeperStore
from tests.support.cutting_proxy import CuttingProxy, Dialect

OPERATION_TIMEOUT_S: Final = 20.0
SESSION_TIMEOUT_S: Final = 10.0  # Long enough for a busy machine.
SHORT_SESSION_S: Final = (
    3.0  # For sessions that must expire; still long enough for a stalled machine.
)
DEADLINE_S: Final = 60.0  # For events that must happen; none takes nearly as long.


@contextlib.contextmanager
def hurried(store: MetadataStore, timeout_s: float) -> Iterator[None]:
    """Sets the operation time-out within the block; the store was opened with a longer one."""
    if isinstance(store, StoreClient):
        before, store._operation_timeout_s = store._operation_timeout_s, timeout_s
        if store._timer is not None:  # The timer was set for the longer time-out.
            store._timer.cancel()
            store._timer = None
        yield
        store._operation_timeout_s = before
    else:
        assert isinstance(store, ZooKeeperStore)
        before, store._timeout_s = store._timeout_s, timeout_s
        yield
        store._timeout_s = before


class Site(ABC):
    """One store, its clients, and its faults. All clients are closed at the end."""

    def __init__(self) -> None:
        self._clients: list[MetadataStore] = []

    async def open(
        self,
        *,
        session_timeout_s: float = SESSION_TIMEOUT_S,
        operation_timeout_s: float = OPERATION_TIMEOUT_S,
    ) -> MetadataStore:
        client = await self._open(session_timeout_s, operation_timeout_s)
        self._clients.append(client)
        return client

    async def close(self) -> None:
        for client in self._clients:
            await client.close()

    @abstractmethod
    async def _open(
        self, session_timeout_s: float, operation_timeout_s: float
    ) -> MetadataStore: ...

    @abstractmethod
    async def cut(self, client: MetadataStore) -> None:
        """The client's connection breaks once; it may reconnect at once."""

    @abstractmethod
    async def suspend(self, client: MetadataStore) -> None:
        """The client's connection breaks, and no new one is made until `resume`."""

    @abstractmethod
    async def resume(self, client: MetadataStore) -> None: ...

    @abstractmethod
    async def lose_next_request(self, client: MetadataStore) -> None:
        """The connection breaks on the next request, which is not applied."""

    @abstractmethod
    async def lose_next_answer(self, client: MetadataStore) -> None:
        """The connection breaks after the next request was applied."""


class MemorySite(Site):
    def __init__(self) -> None:
        super().__init__()
        self._service = MemoryService(SystemClock(), random.Random(0))

    async def _open(self, session_timeout_s: float, operation_timeout_s: float) -> MetadataStore:
        return await self._service.connect(
            session_timeout_s=session_timeout_s, operation_timeout_s=operation_timeout_s
        )

    async def close(self) -> None:
        await super().close()
        await self._service.close()

    async def cut(self, client: MetadataStore) -> None:
        self._service.line(client).cut()

    async def suspend(self, client: MetadataStore) -> None:
        self._service.line(client).suspend()

    async def resume(self, client: MetadataStore) -> None:
        self._service.line(client).resume()

    async def lose_next_request(self, client: MetadataStore) -> None:
        self._service.line(client).lose_next_request()

    async def lose_next_answer(self, client: MetadataStore) -> None:
        self._service.line(client).lose_next_answer()


class OwnerSite(Site):
    """The embedded store, used by clients in the owner's process."""

    def __init__(self, owner: StoreOwner) -> None:
        super().__init__()
        self._owner = owner
        self._lines: dict[MetadataStore, MemoryLine] = {}

    async def _open(self, session_timeout_s: float, operation_timeout_s: float) -> MetadataStore:
        line = MemoryLine(self._owner._host)
        client = await StoreClient(
            line,
            random.Random(0),
            session_timeout_s=session_timeout_s,
            operation_timeout_s=operation_timeout_s,
        ).open()
        self._lines[client] = line
        return client

    async def cut(self, client: MetadataStore) -> None:
        self._lines[client].cut()

    async def suspend(self, client: MetadataStore) -> None:
        self._lines[client].suspend()

    async def resume(self, client: MetadataStore) -> None:
        self._lines[client].resume()

    async def lose_next_request(self, client: MetadataStore) -> None:
        self._lines[client].lose_next_request()

    async def lose_next_answer(self, client: MetadataStore) -> None:
        self._lines[client].lose_next_answer()


def _embedded_request(frame: bytes) -> int | None:
    head = json.loads(frame[4 : 4 + int.from_bytes(frame[:4])])
    return head[1] if head[0] in ("get", "children", "transact") else None


def _embedded_answer(frame: bytes) -> int | None:
    head = json.loads(frame[4 : 4 + int.from_bytes(frame[:4])])
    return head[1] if head[0] in ("node", "list", "nothing", "refused") else None


EMBEDDED: Final = Dialect(_embedded_request, _embedded_answer)


@contextlib.contextmanager
def proxy_of_store(path: str) -> Iterator[tuple[CuttingProxy, str]]:
    """Yields a proxy, and a path beside which a client looks for the owner and finds the proxy.

    The path is a separate file: a link to the store would lead to the owner itself.
    """
    with (
        CuttingProxy(f"{path}.sock", EMBEDDED) as proxy,
        tempfile.TemporaryDirectory(prefix="store-") as folder,
    ):
        seen = Path(folder) / "metadata.db"
        seen.touch()
        os.symlink(proxy.address, f"{seen}.sock")
        yield proxy, str(seen)


class SocketSite(Site):
    """The embedded store over its socket, each client behind a proxy of its own."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path
        self._resources = contextlib.ExitStack()
        self._proxies: dict[MetadataStore, CuttingProxy] = {}

    async def _open(self, session_timeout_s: float, operation_timeout_s: float) -> MetadataStore:
        proxy, seen = self._resources.enter_context(proxy_of_store(self._path))
        client = await open_metadata_store(
            MetadataUrl(Backend.SQLITE, seen),
            session_timeout_s=session_timeout_s,
            operation_timeout_s=operation_timeout_s,
        )
        self._proxies[client] = proxy
        return client

    async def close(self) -> None:
        await super().close()
        self._resources.close()

    async def cut(self, client: MetadataStore) -> None:
        self._proxies[client].cut()

    async def suspend(self, client: MetadataStore) -> None:
        self._proxies[client].refuse()
        self._proxies[client].cut()

    async def resume(self, client: MetadataStore) -> None:
        self._proxies[client].accept()

    async def lose_next_request(self, client: MetadataStore) -> None:
        self._proxies[client].lose_request()

    async def lose_next_answer(self, client: MetadataStore) -> None:
        self._proxies[client].lose_reply()


# --- Waiting for facts --------------------------------------------------------------------------


async def next_event(watch: AsyncIterator[WatchEvent]) -> WatchEvent:
    async with asyncio.timeout(DEADLINE_S):
        return await anext(watch)


async def until_state(events: AsyncIterator[SessionEvent], state: SessionState) -> SessionEvent:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            event = await anext(events)
            if event.state is state:
                return event


async def until_gone(store: MetadataStore, path: str) -> None:
    """Waits by a watch instead of polling."""
    watch = await store.watch(path)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DEADLINE_S):
            while await store.get(path) is not None:
                await anext(watch)
            await watch.close()
            return
    raise AssertionError(f"{path} is still there after {DEADLINE_S} s")
