"""Large responses count before their head is sent, and stalled ones are dropped."""

import asyncio
from typing import Any

import pytest
from starlette.responses import Response
from starlette.types import Scope

from rollbook.api.rest.fairness import response_memory
from rollbook.api.rest.fairness.response_memory import ResponseBackpressure

SIZE = 2_000_000
SCOPE: Scope = {"type": "http", "method": "GET"}


class Client:
    """A client that reads while `takes` is set."""

    def __init__(self) -> None:
        self.takes = asyncio.Event()
        self.status = 0
        self.body = b""

    async def send(self, message: Any) -> None:
        await self.takes.wait()
        self.status = message.get("status", self.status)
        self.body += message.get("body", b"")


async def nothing() -> Any:
    await asyncio.Event().wait()


def ask(room: ResponseBackpressure, client: Client) -> asyncio.Task[None]:
    answer = Response(b"x" * SIZE)
    return asyncio.ensure_future(room.serve(answer, SCOPE, nothing, client.send))


async def test_response_counts_while_its_head_waits() -> None:
    """Earlier responses on its connection may not have been read yet."""
    room, clients = ResponseBackpressure(2 * SIZE), [Client() for _ in range(3)]
    asked = [ask(room, clients[0])]
    await asyncio.sleep(0)
    assert room.bytes == SIZE
    clients[2].takes.set()
    asked += [ask(room, clients[1]), ask(room, clients[2])]
    await asked[2]
    assert (clients[2].status, room.bytes) == (503, 2 * SIZE)
    asked[0].cancel()
    clients[1].takes.set()
    await asyncio.gather(*asked, return_exceptions=True)
    assert (len(clients[1].body), clients[1].status, room.bytes) == (SIZE, 200, 0)


async def test_response_stalled_before_its_head_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_memory, "_PATIENCE_S", 0.01)
    room, client = ResponseBackpressure(SIZE), Client()
    asked = ask(room, client)
    async with asyncio.timeout(30):
        await asyncio.sleep(0)
        assert room.bytes == SIZE
        while room.bytes:
            await asyncio.sleep(0.005)
        client.takes.set()
        await asked
    assert client.status == 503
