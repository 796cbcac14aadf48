"""Passes messages between a metadata service, its connections and its storage. Everything runs on
one event loop. A new connection brings a callable that accepts messages for the client, and gets a
number under which the client's messages are passed on.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from rollbook.proto.metastore.core.metadata_service import (
    CommitGroup,
    ConnectionId,
    Kept,
    MetadataService,
)
from rollbook.proto.metastore.core.service_messages import FromClient, FromService, HangUp
from rollbook.proto.metastore.core.sessions import TICK_NS
from rollbook.proto.ports import Clock, SessionId

Say = Callable[[Sequence[FromService | HangUp]], None]
Keep = Callable[[CommitGroup], Awaitable[None]]
"""Stores a batch, and returns when it is durable. If it raises an error, nothing is sent any more."""

_TICK_S: Final = TICK_NS / 1e9


class Host:
    """The shell of the service. It receives and sends messages, calls the service at each tick and
    stores batches; the service decides.
    """

    def __init__(self, kept: Kept, clock: Clock, keep: Keep | None = None) -> None:
        """If there is no `keep`, every batch counts as durable."""
        self.service = MetadataService(kept, clock.monotonic_ns())
        self.closed = False
        self._clock = clock
        self._keep = keep
        self._connections: dict[ConnectionId, Say] = {}
        self._last_connection = 0
        self._tick_timer: asyncio.TimerHandle | None = None
        self._keeping: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._tick_timer = asyncio.get_running_loop().call_later(_TICK_S, self._tick)

    async def close(self) -> None:
        """Stores and answers the requests that it has received, then disconnects all clients. Their
        sessions live on.
        """
        self.closed = True
        if self._tick_timer is not None:
            self._tick_timer.cancel()
        if self._keeping is not None:
            await asyncio.gather(self._keeping, return_exceptions=True)
        for say in list(self._connections.values()):
            say([HangUp("the service is closing")])
        self._connections.clear()

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    def connect(self, say: Say) -> ConnectionId:
        self._last_connection += 1
        connection = self._last_connection
        self._connections[connection] = say
        self.service.on_connected(connection)
        return connection

    def disconnect(self, connection: ConnectionId) -> None:
        if self._connections.pop(connection, None) is not None:
            self.service.on_disconnected(connection)

    def hear(self, connection: ConnectionId, messages: Sequence[FromClient]) -> None:
        if self.closed:
            return
        now_ms = self._now_ms()
        for message in messages:
            self.service.on_message(connection, message, now_ms)
        self._go_on()

    def expire(self, session: SessionId) -> None:
        self.service.expire(session, self._now_ms())
        self._go_on()

    def _tick(self) -> None:
        self.start()
        self.service.on_tick(self._clock.monotonic_ns(), self._now_ms())
        self._go_on()

    def _go_on(self) -> None:
        """Collects the next batch while the previous one is being stored, so that commits are made
        in groups.
        """
        if self._keep is None:
            if (batch := self.service.take_batch()) is not None:
                self.service.on_durable(batch)
        elif self._keeping is None and (batch := self.service.take_batch()) is not None:
            self._keeping = asyncio.get_running_loop().create_task(self._keep_all(batch))
        self._speak()

    async def _keep_all(self, batch: CommitGroup | None) -> None:
        """Stores batches. After a failure this task stops, so that nothing is stored or sent any more."""
        assert self._keep is not None
        while batch is not None:
            await self._keep(batch)
            self.service.on_durable(batch)
            self._speak()
            batch = self.service.take_batch()
        self._keeping = None

    def _speak(self) -> None:
        for connection, messages in self.service.speak().items():
            if (say := self._connections.get(connection)) is not None:
                say(messages)
                if isinstance(messages[-1], HangUp):
                    self.disconnect(connection)

    def _now_ms(self) -> int:
        return self._clock.wall_us() // 1000
