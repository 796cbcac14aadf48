"""A metadata store in memory: it behaves like the other stores, but ends with its process.

    service = MemoryService(clock, randomness)
    store = await service.connect()

Each `connect` makes a client with a session of its own. Messages take one turn of the event loop
each way, and `service.line(store)` can cut a client off between any two messages.
"""

import asyncio
from collections.abc import Sequence
from enum import Enum

from rollbook.proto.errors import MetadataUnavailable
from rollbook.proto.metastore.core.metadata_service import Kept
from rollbook.proto.metastore.core.service_messages import Ask, FromClient, Sync
from rollbook.proto.metastore.local_channel import LocalChannel
from rollbook.proto.metastore.service_client import (
    OPERATION_TIMEOUT_S,
    SESSION_TIMEOUT_S,
    Receiver,
    StoreClient,
)
from rollbook.proto.metastore.service_host import Host
from rollbook.proto.ports import Clock, MetadataStore, Randomness, SessionId


class MemoryService:
    def __init__(self, clock: Clock, randomness: Randomness) -> None:
        self._host = Host(Kept(store=f"{randomness.getrandbits(64):016x}"), clock)
        self._randomness = randomness
        self._lines: dict[int, MemoryLine] = {}  # The connections, by the client's `id()`.
        self._started = False

    async def connect(
        self,
        *,
        session_timeout_s: float = SESSION_TIMEOUT_S,
        operation_timeout_s: float = OPERATION_TIMEOUT_S,
    ) -> StoreClient:
        if not self._started:
            self._started = True
            self._host.start()
        line = MemoryLine(self._host)
        store = StoreClient(
            line,
            self._randomness,
            session_timeout_s=session_timeout_s,
            operation_timeout_s=operation_timeout_s,
        )
        self._lines[id(store)] = line
        return await store.open()

    def line(self, store: MetadataStore) -> "MemoryLine":
        return self._lines[id(store)]

    def expire(self, session: SessionId) -> None:
        """Expires the session."""
        self._host.expire(session)

    async def close(self) -> None:
        await self._host.close()


class _LostMessage(Enum):
    REQUEST = "request"  # The request never arrives.
    ANSWER = "answer"  # The request arrives and is served.


class MemoryLine:
    """Connects one client to the service. It can be made to fail."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._suspended = False
        self._next_loss: _LostMessage | None = None
        self._channel: _MemoryChannel | None = None

    # --- Faults ---

    def cut(self) -> None:
        """Breaks the connection now. Messages in flight are lost."""
        if self._channel is not None:
            self._channel.cut()

    def suspend(self) -> None:
        """Breaks the connection, and prevents a new one until `resume`."""
        self._suspended = True
        self.cut()

    def resume(self) -> None:
        self._suspended = False

    def lose_next_request(self) -> None:
        """Breaks the connection at the next request, which never arrives."""
        self._next_loss = _LostMessage.REQUEST

    def lose_next_answer(self) -> None:
        """Breaks the connection after the next request was served, before the answer arrives."""
        self._next_loss = _LostMessage.ANSWER

    # --- The connector ---

    async def connect(self, receiver: Receiver, timeout_s: float) -> "_MemoryChannel":
        await asyncio.sleep(0)
        if self._suspended or self._host.closed:
            raise MetadataUnavailable("it is closed" if self._host.closed else "it is suspended")
        self._channel = _MemoryChannel(self, self._host, receiver)
        return self._channel

    def why_silent(self) -> str:
        return "it does not answer"

    async def close(self) -> None:
        self._channel = None

    def take_loss(self, message: FromClient) -> _LostMessage | None:
        if not isinstance(message, Ask) or isinstance(message.question, Sync):
            return None  # The message may be a heartbeat, whose response nobody awaits.
        loss, self._next_loss = self._next_loss, None
        return loss


class _MemoryChannel(LocalChannel):
    def __init__(self, line: MemoryLine, host: Host, receiver: Receiver) -> None:
        super().__init__(host, receiver)
        self._line = line

    def cut(self) -> None:
        if self.is_open:
            self.close()
            self.receiver.on_lost("the connection was cut")

    def arrive(self, messages: Sequence[FromClient]) -> None:
        for index, message in enumerate(messages):
            if (loss := self._line.take_loss(message)) is not None:
                super().arrive(messages[: index + (loss is _LostMessage.ANSWER)])
                self.cut()
                return
        super().arrive(messages)
