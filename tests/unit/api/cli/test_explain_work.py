"""How long `rollbook explain` takes while everything is away."""

import asyncio
from typing import Any, cast

from rollbook.api.cli.explain_work import Look
from rollbook.api.client.client import Client
from rollbook.logservice import words
from rollbook.logservice.ids import LogName, ServerId
from rollbook.proto.errors import QuorumTimeout

SERVERS = 8
AWAY = words.Outage(
    (words.Obstacle(words.ObstacleKind.METADATA, "the store", 0, "does not answer"),)
)


def _server(number: int) -> words.ServerView:
    address = f"s:{number}"
    return words.ServerView(ServerId(address), address, words.ServerState.SERVING, "", 0, 0)


class Silent:
    """Its server knows the outage after half a second, and the others' names; nothing else is ever answered."""

    def __init__(self) -> None:
        self.asked: dict[str | None, int] = {}

    async def ask(
        self, word: Any, *, timeout_s: float | None = None, server: str | None = None
    ) -> Any:
        self.asked[server] = self.asked.get(server, 0) + 1
        if isinstance(word, words.GetOutage):
            await asyncio.sleep(0.5)
            return AWAY
        if isinstance(word, words.ListServers):
            return words.Servers(tuple(map(_server, range(SERVERS))))
        assert timeout_s is not None, "nothing is waited for without a bound"
        await asyncio.sleep(timeout_s)
        raise QuorumTimeout("late")


async def test_all_servers_are_asked_at_once() -> None:
    """One after the other took 0.4 s each: 4 s here."""
    client = Silent()
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    found = await Look(cast(Client, client), LogName.parse("a"), 15.0).look()
    assert loop.time() - began_s < 2.5, "0.9 s on a machine that has time"
    assert (found.state, found.outage) == (None, AWAY)
    assert [client.asked.get(f"s:{each}") for each in range(SERVERS)] == [5] * SERVERS
