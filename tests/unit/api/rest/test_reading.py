"""A range of records as JSON is made as it is taken, and no further."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from rollbook.api.rest import following, reading, untaken
from rollbook.api.rest.line import Line
from rollbook.api.rest.newcomers import ROUNDS
from rollbook.api.rest.reading import records_response
from rollbook.api.rest.record_json import Encoding
from rollbook.api.rest.untaken import Untaken
from rollbook.logservice.core.block import Codec, pack_block, stamped
from rollbook.logservice.ids import Offset
from rollbook.logservice.words import ReadAnswer

COUNT = 20_000
DEADLINE_S = 30


class Client:
    """Takes what he is sent while he may."""

    def __init__(self) -> None:
        self.takes = asyncio.Event()
        self.takes.set()
        self.leaves = asyncio.Event()
        self.head: dict[str, Any] = {}
        self.bodies: list[bytes] = []
        self.is_ended = False

    async def send(self, message: Any) -> None:
        if not self.leaves.is_set():
            await self.takes.wait()
        if message["type"] == "http.response.start":
            self.head = message
        else:
            self.bodies.append(message["body"])
            self.is_ended = not message.get("more_body", False)

    async def receive(self) -> Any:
        await self.leaves.wait()
        return {"type": "http.disconnect"}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The pieces that were made of all answers."""
    found: list[int] = []
    real = following.pieces

    def counted(*about: Any) -> Iterator[following.Told]:
        for piece in real(*about):
            found.append(len(piece.facts["records"]))
            yield piece

    monkeypatch.setattr(reading, "pieces", counted)
    return found


def answer_of(values: list[bytes], codec: Codec = Codec.NONE) -> ReadAnswer:
    block = pack_block(values, codec=codec)
    found = stamped(block, base_offset=5, base_timestamp_us=1000, owner_epoch=1, writer_epoch=0)
    end = Offset(5 + len(values))
    return ReadAnswer((found,), Offset(5), end, Offset(0), end, is_sealed=False)


LARGE = answer_of([b"%0100d" % number for number in range(COUNT)])


def serve(
    client: Client, answer: ReadAnswer = LARGE, *, method: str = "GET", room: int = 2**24
) -> asyncio.Task[None]:
    response = records_response(Line(ROUNDS), answer, answer.next_offset, Encoding.AUTO, {})
    scope = {"type": "http", "method": method}
    return asyncio.ensure_future(Untaken(room).serve(response, scope, client.receive, client.send))


async def test_it_is_one_object_in_pieces() -> None:
    client = Client()
    await serve(client)
    assert client.is_ended
    assert max(map(len, client.bodies)) < 64 * 1024
    found = json.loads(b"".join(client.bodies))
    assert [int(record["data"]) for record in found.pop("records")] == list(range(COUNT))
    end = COUNT + 5
    assert found == {"next_offset": end, "head": 0, "tail": end, "is_sealed": False}


async def test_others_come_in_between_pieces() -> None:
    client, rounds = Client(), 0
    serving = serve(client)
    while not serving.done():
        told = len(client.bodies)
        await asyncio.sleep(0)
        rounds += 1
        assert len(client.bodies) <= told + 2
    assert rounds >= len(client.bodies) - 2 > 100


async def test_nothing_is_made_for_who_takes_nothing(made: list[int]) -> None:
    client = Client()
    client.takes.clear()
    serving = serve(client)
    await asyncio.sleep(0.05)
    assert not made
    client.takes.set()
    await serving
    assert sum(made) == COUNT


async def test_nothing_is_made_for_who_has_left(made: list[int]) -> None:
    client = Client()
    serving = serve(client)
    while len(made) < 3:
        await asyncio.sleep(0)
    client.leaves.set()
    async with asyncio.timeout(DEADLINE_S):
        await serving
    assert len(made) < 10


async def test_nothing_is_made_for_who_is_hung_up_on(
    made: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(untaken, "_PATIENCE_S", 0.01)
    client = Client()
    serving = serve(client, room=3 * 2**20)  # More than half of it is his.
    while len(made) < 3:
        await asyncio.sleep(0)
    client.takes.clear()
    async with asyncio.timeout(DEADLINE_S):
        await serving
    assert len(made) < 10
    assert not client.is_ended


async def test_who_asks_for_the_head_alone_has_it(made: list[int]) -> None:
    client = Client()
    await serve(client, method="HEAD")
    assert (client.head["status"], b"".join(client.bodies), made) == (200, b"", [])


async def test_a_small_answer_says_how_long_it_is() -> None:
    client = Client()
    await serve(client, answer_of([b"x" * 10_000]))
    (body,) = client.bodies
    assert (b"content-length", b"%d" % len(body)) in client.head["headers"]
    assert json.loads(body)["records"][0]["data"] == "x" * 10_000


async def test_what_was_packed_is_counted_unpacked() -> None:
    packed = answer_of([b"x" * 2_000_000], Codec.ZSTD)
    assert len(packed.blocks[0]) < 10_000
    client = Client()
    await serve(client, packed, room=1_000_000)
    assert client.head["status"] == 503
