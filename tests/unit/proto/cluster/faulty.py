"""A metadata store that fails on demand: loses requests or replies, or reports an expired session."""

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from enum import Enum
from types import TracebackType
from typing import Self, TypeVar

from rollbook.proto.errors import ConnectionLost, MetadataUnavailable, RollbookError, SessionExpired
from rollbook.proto.ports import (
    ANY_VERSION,
    CreateMode,
    MetadataStore,
    Node,
    NodeStat,
    Op,
    OpResult,
    SessionEvent,
    SessionId,
    Watch,
)

T = TypeVar("T")
Between = Callable[[], Awaitable[None]]


class Fate(Enum):
    OK = "ok"
    REQUEST_LOST = "request lost"  # Sent but never applied; the client does not know.
    ANSWER_LOST = "answer lost"  # Applied or refused; the client does not know.
    NOT_SENT = "not sent"
    EXPIRED = "expired"  # The session expired before the request was sent.


class FaultyStore:
    """`fates` decides the outcome of the next writes, one each; later writes succeed. Reads have
    their own queue. `between` runs once, right after the first request whose reply is lost: what
    rivals do before the client looks again.
    """

    def __init__(self, store: MetadataStore) -> None:
        self.store = store
        self.fates: deque[Fate] = deque()
        self.read_fates: deque[Fate] = deque()
        self.between: Between | None = None
        # What rivals do before the n-th read or write since the counts were last reset.
        self.before_read: dict[int, list[Between]] = {}
        self.before_write: dict[int, list[Between]] = {}
        self.writes = 0
        self.reads = 0

    @property
    def session(self) -> SessionId:
        return self.store.session

    async def get(self, path: str) -> Node | None:
        return await self._read(lambda: self.store.get(path))

    async def children(self, path: str) -> list[str]:
        return await self._read(lambda: self.store.children(path))

    async def create(
        self, path: str, value: bytes = b"", mode: CreateMode = CreateMode.PERSISTENT
    ) -> str:
        return await self._write(lambda: self.store.create(path, value, mode))

    async def set(self, path: str, value: bytes, version: int | None = ANY_VERSION) -> NodeStat:
        return await self._write(lambda: self.store.set(path, value, version))

    async def delete(self, path: str, version: int | None = ANY_VERSION) -> None:
        return await self._write(lambda: self.store.delete(path, version))

    async def transaction(self, ops: Sequence[Op]) -> list[OpResult]:
        return await self._write(lambda: self.store.transaction(ops))

    async def watch(self, path: str, *, recursive: bool = False) -> Watch:
        return await self._read(lambda: self.store.watch(path, recursive=recursive))

    def session_events(self) -> AsyncIterator[SessionEvent]:
        return self.store.session_events()

    async def sync(self) -> None:
        return await self._read(self.store.sync)

    async def close(self) -> None:
        await self.store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def _read(self, call: Callable[[], Awaitable[T]]) -> T:
        self.reads += 1
        for action in self.before_read.pop(self.reads, ()):
            await action()
        return await self._meet(self.read_fates, call)

    async def _write(self, call: Callable[[], Awaitable[T]]) -> T:
        self.writes += 1
        for action in self.before_write.pop(self.writes, ()):
            await action()
        return await self._meet(self.fates, call)

    async def _meet(self, fates: deque[Fate], call: Callable[[], Awaitable[T]]) -> T:
        match fates.popleft() if fates else Fate.OK:
            case Fate.OK:
                return await call()
            case Fate.NOT_SENT:
                raise MetadataUnavailable
            case Fate.EXPIRED:
                raise SessionExpired
            case Fate.ANSWER_LOST:
                try:
                    await call()
                except RollbookError:
                    pass  # The request was refused, and that reply is lost too.
            case Fate.REQUEST_LOST:
                pass
        if self.between is not None:
            between, self.between = self.between, None
            await between()
        raise ConnectionLost
