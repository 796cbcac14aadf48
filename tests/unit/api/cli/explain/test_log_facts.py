"""Requests of `rollbook explain` during an outage and for a missing log."""

import asyncio
import gc
from typing import Any, cast

import pytest

from rollbook.api.cli.explain.log_facts import Look
from rollbook.api.client.async_client import Client
from rollbook.logservice import messages
from rollbook.logservice.ids import LogName, ServerId
from rollbook.proto.errors import NoSuchLog, QuorumTimeout

SERVERS = 8
AWAY = messages.Outage(
    (messages.Obstacle(messages.ObstacleKind.METADATA, "the store", 0, "does not answer"),)
)


def _server(number: int) -> messages.ServerView:
    address = f"s:{number}"
    return messages.ServerView(ServerId(address), address, messages.ServerState.SERVING, "", 0, 0)


class Silent:
    """Returns the outage after half a second and lists the servers; other requests time out."""

    def __init__(self) -> None:
        self.asked: dict[str | None, int] = {}
        self.open = self.open_at_most = 0  # Pending requests to other servers.

    async def ask(
        self, request: Any, *, timeout_s: float | None = None, server: str | None = None
    ) -> Any:
        self.asked[server] = self.asked.get(server, 0) + 1
        if isinstance(request, messages.GetOutage):
            await asyncio.sleep(0.5)
            return AWAY
        if isinstance(request, messages.ListServers):
            return messages.Servers(tuple(map(_server, range(SERVERS))))
        assert timeout_s is not None, "every other request needs a time-out"
        self.open += server is not None
        self.open_at_most = max(self.open, self.open_at_most)
        try:
            await asyncio.sleep(timeout_s)
            raise QuorumTimeout("late")
        finally:
            self.open -= server is not None


class WithoutLog:
    async def ask(
        self, request: Any, *, timeout_s: float | None = None, server: str | None = None
    ) -> Any:
        if isinstance(request, messages.GetOutage):
            return messages.Outage()
        if isinstance(request, messages.ListServers):
            return messages.Servers(())
        raise NoSuchLog


async def test_explain_asks_all_servers_concurrently() -> None:
    """Sequential requests would take 0.4 s each."""
    client = Silent()
    found = await Look(cast(Client, client), LogName.parse("a"), 15.0).look()
    assert client.open_at_most == 5 * SERVERS
    assert (found.state, found.outage) == (None, AWAY)
    assert [client.asked.get(f"s:{each}") for each in range(SERVERS)] == [5] * SERVERS


async def test_missing_log_raises_a_single_error() -> None:
    """asyncio must not report errors of the other requests as never retrieved."""
    unheard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
    with pytest.raises(NoSuchLog):
        await Look(cast(Client, WithoutLog()), LogName.parse("a"), 15.0).look()
    await asyncio.sleep(0)
    gc.collect()
    assert unheard == []
