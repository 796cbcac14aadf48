"""A connection between a client and a service in one process. Messages pass unchanged, and take one
turn of the loop each way.
"""

import asyncio
from collections.abc import Sequence

from rollbook.proto.metastore.core.service_messages import FromClient, FromService, HangUp
from rollbook.proto.metastore.service_client import Receiver
from rollbook.proto.metastore.service_host import Host


class LocalChannel:
    """A connection within the process. Messages that are in flight when it closes are lost."""

    def __init__(self, host: Host, receiver: Receiver) -> None:
        self.is_open = True
        self.receiver = receiver
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._connection = host.connect(self._say)

    def send(self, messages: Sequence[FromClient]) -> None:
        self._loop.call_soon(self.arrive, tuple(messages))

    def close(self) -> None:
        self.is_open = False
        self._host.disconnect(self._connection)

    def arrive(self, messages: Sequence[FromClient]) -> None:
        if self.is_open:
            self._host.hear(self._connection, messages)

    def _say(self, messages: Sequence[FromService | HangUp]) -> None:
        self._loop.call_soon(self._deliver, messages)

    def _deliver(self, messages: Sequence[FromService | HangUp]) -> None:
        if not self.is_open:
            return
        self.receiver.on_messages([m for m in messages if not isinstance(m, HangUp)])
        if isinstance(messages[-1], HangUp):
            self.is_open = False
            self.receiver.on_lost(messages[-1].reason)
