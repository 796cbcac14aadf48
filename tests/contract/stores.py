"""The stores under contract: how to open each, and how to make things go wrong for its clients."""

import asyncio
import contextlib
import random
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import Final

from rollbook.proto.metastore.memory import MemoryService
from rollbook.proto.ports import MetadataStore, SessionEvent, SessionState, WatchEvent
from rollbook.proto.runtime.clock import SystemClock

OPERATION_TIMEOUT_S: Final = 5.0
SESSION_TIMEOUT_S: Final = 1.0  # The least that a ZooKeeper for tests grants.
DEADLINE_S: Final = 15.0  # For what must come; nothing takes nearly as long.


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
        """Its connection breaks once; it may come back at once."""

    @abstractmethod
    async def suspend(self, client: MetadataStore) -> None:
        """Its connection breaks, and no new one is made until `resume`."""

    @abstractmethod
    async def resume(self, client: MetadataStore) -> None: ...

    @abstractmethod
    async def lose_next_request(self, client: MetadataStore) -> None:
        """It breaks on the next request, which is not applied."""

    @abstractmethod
    async def lose_next_answer(self, client: MetadataStore) -> None:
        """It breaks after the next request was applied."""


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
    """By watching it, so that nothing is asked again and again."""
    watch = await store.watch(path)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DEADLINE_S):
            while await store.get(path) is not None:
                await anext(watch)
            await watch.close()
            return
    raise AssertionError(f"{path} is still there after {DEADLINE_S} s")
