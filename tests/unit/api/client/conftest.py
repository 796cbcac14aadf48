"""A client of servers in this process that share one set of logs in memory.

Its time-outs suit a busy machine; calls that must reach their deadline are made under `hurried`.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import grpc
import pytest

from rollbook.api.client.async_client import Client, connect
from rollbook.api.client.config import LogClientConfig
from rollbook.api.grpc.config import GrpcConfig
from rollbook.api.grpc.server import GrpcServer
from rollbook.proto.ports import Address
from tests.unit.api.grpc.fake_core import FakeCluster, FakeCore

LOOPBACK = Address("127.0.0.1", 0)
PATIENCE_S = 60.0
PATIENT = LogClientConfig(timeout_s=PATIENCE_S, connect_s=PATIENCE_S, attempt_s=PATIENCE_S)


@dataclass
class Site:
    cluster: FakeCluster = field(default_factory=FakeCluster)
    cores: dict[str, FakeCore] = field(default_factory=dict)
    doors: dict[str, GrpcServer] = field(default_factory=dict)
    clients: list[Client] = field(default_factory=list)

    async def start(self, name: str, address: Address = LOOPBACK) -> FakeCore:
        core = self.cores.setdefault(name, FakeCore(self.cluster, name))
        self.doors[name] = await GrpcServer.start(core, GrpcConfig(address))
        self.cluster.addresses[name] = str(self.doors[name].address)
        return core

    async def stop(self, name: str) -> None:
        """Looks like a crash to clients. They may notice it later: see `is_noticed`."""
        await self.doors.pop(name).close(0)

    async def is_noticed(self, client: Client, name: str) -> None:
        """Waits until the client stops using its connection to that server."""
        channel = client.channels.to(self.cluster.addresses[name])
        async with asyncio.timeout(PATIENCE_S):
            while channel.get_state() is grpc.ChannelConnectivity.READY:
                await asyncio.sleep(0.005)

    def url(self, *names: str) -> str:
        return "log://" + ",".join(self.cluster.addresses[name] for name in names)

    def client(self, *names: str, **settings: Any) -> Client:
        self.clients.append(connect(self.url(*names), replace(PATIENT, **settings)))
        return self.clients[-1]


@contextmanager
def hurried(client: Client, **settings: float) -> Iterator[None]:
    """Calls that the client starts in the block have these settings, e.g. shorter deadlines."""
    before = {name: getattr(client.config, name) for name in settings}
    try:
        for name, value in settings.items():
            object.__setattr__(client.config, name, value)
        yield
    finally:
        for name, value in before.items():
            object.__setattr__(client.config, name, value)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    found = Site()
    await found.start("a")
    yield found
    for client in found.clients:
        await client.close()
    for name in list(found.doors):
        await found.stop(name)
