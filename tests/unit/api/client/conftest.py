"""A client of servers in this process that share one set of logs in memory."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from rollbook.api.client.client import Client, connect
from rollbook.api.client.config import LogClientConfig
from rollbook.api.grpc.config import GrpcConfig
from rollbook.api.grpc.server import GrpcServer
from rollbook.proto.ports import Address
from tests.unit.api.grpc.fake_core import FakeCluster, FakeCore

LOOPBACK = Address("127.0.0.1", 0)


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
        """As a crash does it, as far as clients can tell."""
        await self.doors.pop(name).close(0)

    def url(self, *names: str) -> str:
        return "log://" + ",".join(self.cluster.addresses[name] for name in names)

    def client(self, *names: str, **settings: Any) -> Client:
        self.clients.append(connect(self.url(*names), LogClientConfig(**settings)))
        return self.clients[-1]


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    found = Site()
    await found.start("a")
    yield found
    for client in found.clients:
        await client.close()
    for name in list(found.doors):
        await found.stop(name)
