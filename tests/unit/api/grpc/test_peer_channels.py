"""Connections to other servers are replaced when this server's credentials change."""

import asyncio

import pytest

from rollbook.api.client.channels import Channels, Security
from rollbook.api.grpc import peer_channels
from rollbook.api.grpc.config import GrpcConfig
from rollbook.api.grpc.peer_channels import GrpcPeers
from rollbook.api.grpc.server import GrpcServer
from rollbook.logservice import messages
from rollbook.logservice.ids import LogName
from rollbook.proto.ports import Address
from tests.unit.api.grpc.fake_core import FakeCluster, FakeCore

TAIL = messages.GetTail(LogName("ns", "log"))


class Counted(Channels):
    """Counts how often it was closed."""

    def __init__(self, security: Security) -> None:
        super().__init__(security)
        self.closings = 0

    async def close(self) -> None:
        self.closings += 1
        await super().close()


async def test_connections_with_old_credentials_close_once_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Counted] = []

    def make(security: Security, **_: object) -> Channels:
        made.append(Counted(security))
        return made[-1]

    monkeypatch.setattr(peer_channels, "Channels", make)
    core = FakeCore(FakeCluster())
    core.cluster.make("ns/log")
    server = await GrpcServer.start(core, GrpcConfig(Address("127.0.0.1", 0)))
    seen = 0
    peers = GrpcPeers(lambda: Security(token=f"token {seen}"), lambda: seen)

    async def ask() -> messages.LogTail:
        due = asyncio.get_running_loop().time() + 30
        found: messages.LogTail = await peers.ask(TAIL, str(server.address), due)
        return found

    async with asyncio.timeout(30):
        await ask()
        seen = 1  # The credentials change while no request is open.
        await ask()
        assert [each.closings for each in made] == [1, 0]
        core.holds.add("get_tail")
        waiting = asyncio.ensure_future(ask())
        while len(core.asked) < 3:
            await asyncio.sleep(0.01)
        core.holds.clear()
        seen = 2  # The credentials change while a request is open.
        await ask()
        assert [each.closings for each in made] == [1, 0, 0]
        core.release()
        await waiting
        assert [each.closings for each in made] == [1, 1, 0]
        await peers.close()
        assert [each.closings for each in made] == [1, 1, 1]
        await server.close(0)
