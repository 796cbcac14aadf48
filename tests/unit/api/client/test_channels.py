"""Whom calls of one client hold up."""

import asyncio

import pytest

from rollbook.api.grpc import server
from rollbook.logservice import words
from rollbook.logservice.ids import Offset
from tests.unit.api.client.conftest import Site

CALLS = 3


async def test_appends_go_through_however_many_wait(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server takes so many calls of one connection at a time: those that wait have their own."""
    options = dict(server._OPTIONS) | {"grpc.max_concurrent_streams": CALLS}
    monkeypatch.setattr(server, "_OPTIONS", tuple(options.items()))
    core = await site.start("b")
    held = site.cluster.make("ns/log")
    held.owner, held.holder = core.address, "somebody"
    client = site.client("b")
    wait = words.AcquireWriter(held.name, "me", words.AcquireMode.WAIT)
    waiting = [asyncio.ensure_future(client.ask(wait, timeout_s=100)) for _ in range(CALLS)]
    async with asyncio.timeout(30):
        while core.asked.count(wait) < CALLS:
            await asyncio.sleep(0.01)
    tail = await client.ask(words.GetTail(held.name), timeout_s=60)
    assert tail.tail == Offset(0)
    for each in waiting:
        each.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
