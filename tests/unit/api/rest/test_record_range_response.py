"""A range of records is encoded as JSON only as fast as the client reads; its memory is counted."""

import asyncio
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from structlog.testing import capture_logs

from rollbook.api.rest import (
    record_range_response as reading,
)
from rollbook.api.rest.fairness import loop_yield_queue as line
from rollbook.api.rest.fairness import new_reader_pacing as newcomers
from rollbook.api.rest.fairness import response_memory
from rollbook.api.rest.fairness.loop_yield_queue import AdmissionQueue
from rollbook.api.rest.fairness.new_reader_pacing import ROUNDS
from rollbook.api.rest.fairness.response_memory import ResponseBackpressure
from rollbook.api.rest.record_json import Encoding
from rollbook.api.rest.record_json_slices import RecordSlice, pieces
from rollbook.api.rest.record_range_response import RangeResponse
from rollbook.logservice.core.record_block import Block, Codec, pack_block, stamped
from rollbook.logservice.ids import Offset
from rollbook.logservice.messages import ReadAnswer
from rollbook.proto.errors import BlockCorrupt
from tests.unit.api.rest.loop_rounds import Loop

COUNT = 20_000
DEADLINE_S = 30
SLICE = 64 * 1024


class Client:
    """A client that reads while `takes` is set."""

    def __init__(self) -> None:
        self.takes = asyncio.Event()
        self.takes.set()
        self.leaves = asyncio.Event()
        self.head: dict[str, Any] = {}
        self.bodies: list[bytes] = []
        self.is_ended = False

    @property
    def body(self) -> bytes:
        return b"".join(self.bodies)

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
    """The number of records in each piece that was made, for all responses."""
    found: list[int] = []

    def counted(*about: Any) -> Iterator[RecordSlice]:
        for piece in pieces(*about):
            found.append(len(json.loads(piece.records)))
            yield piece

    monkeypatch.setattr(reading, "pieces", counted)
    return found


def block_of(values: list[bytes], base: int, codec: Codec = Codec.NONE) -> bytes:
    block = pack_block(values, codec=codec)
    return stamped(block, base_offset=base, base_timestamp_us=1000, owner_epoch=1, writer_epoch=0)


def answer_of(*blocks: bytes, count: int) -> ReadAnswer:
    end = Offset(5 + count)
    return ReadAnswer(blocks, Offset(5), end, Offset(0), end, is_sealed=False)


VALUES = [b"%0100d" % number for number in range(COUNT)]
LARGE = answer_of(block_of(VALUES, 5), count=COUNT)


def serve(
    client: Client,
    answer: ReadAnswer = LARGE,
    *,
    method: str = "GET",
    room: ResponseBackpressure | None = None,
    end: int | None = None,
    in_line: AdmissionQueue | None = None,
) -> asyncio.Task[None]:
    wanted = answer.next_offset if end is None else Offset(end)
    response = RangeResponse(in_line or AdmissionQueue(ROUNDS), answer, wanted, Encoding.AUTO, {})
    scope = {"type": "http", "method": method, "path": "/v1/some-log"}
    room = room or ResponseBackpressure(2**24)
    return asyncio.ensure_future(room.serve(response, scope, client.receive, client.send))


async def test_range_is_one_json_object_sent_in_small_pieces() -> None:
    client = Client()
    await serve(client)
    assert client.is_ended
    assert max(map(len, client.bodies)) < 32 * 1024
    found = json.loads(client.body)
    assert [int(record["data"]) for record in found.pop("records")] == list(range(COUNT))
    end = COUNT + 5
    assert found == {"next_offset": end, "head": 0, "tail": end, "is_sealed": False}


async def test_loop_runs_between_pieces(made: list[int]) -> None:
    client, most = Client(), 0
    serving = serve(client)
    while not serving.done():
        before = len(made)
        await asyncio.sleep(0)
        most = max(most, len(made) - before)
    assert len(made) > 100
    assert most == 1


async def test_loop_runs_between_pieces_of_many_small_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: the headers of all 10,000 blocks were parsed before the first piece."""
    looked_at, most = 0, 0
    real = Block.__init__

    def counted(self: Block, data: bytes) -> None:
        nonlocal looked_at
        looked_at += 1
        real(self, data)

    monkeypatch.setattr(Block, "__init__", counted)
    blocks = [block_of([value], 5 + number) for number, value in enumerate(VALUES[:2000])]
    client = Client()
    serving = serve(client, answer_of(*blocks, count=2000))
    most = looked_at
    while not serving.done():
        before = looked_at
        await asyncio.sleep(0)
        most = max(most, looked_at - before)
    assert looked_at == client.body.count(b'"offset"') == 2000
    assert most <= 256


async def test_new_readers_are_paced_until_they_have_read_enough(
    made: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line, "_REST_S", 3600)  # Only rounds are waited for.
    monkeypatch.setattr(newcomers, "_WAITS_S_MAX", 3600)
    in_line, loop, rounds = AdmissionQueue(ROUNDS), Loop(), list[int]()
    serving = asyncio.gather(*(serve(Client(), in_line=in_line) for _ in range(3)))
    while not serving.done():
        rounds += [loop.rounds] * (len(made) - len(rounds))
        await asyncio.sleep(0)
    loop.end()
    at_first = 3 * newcomers._UNTAKEN_BYTES_MAX // (32 * 1024)  # Each piece is smaller.
    assert all(b - a >= ROUNDS - 1 for a, b in pairwise(rounds[:at_first]))
    assert all(b - a < ROUNDS - 1 for a, b in pairwise(rounds[-at_first:]))


async def test_stalled_client_has_one_piece_made(made: list[int]) -> None:
    client = Client()
    client.takes.clear()
    serving = serve(client)
    for _ in range(1000):
        await asyncio.sleep(0)
    assert len(made) == 1
    client.takes.set()
    await serving
    assert sum(made) == COUNT


async def test_disconnected_client_has_no_more_pieces_made(made: list[int]) -> None:
    client = Client()
    serving = serve(client)
    while len(made) < 3:
        await asyncio.sleep(0)
    client.leaves.set()
    async with asyncio.timeout(DEADLINE_S):
        await serving
    assert len(made) < 10


async def test_dropped_client_has_no_more_pieces_made(
    made: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(response_memory, "_PATIENCE_S", 0.01)
    client, room = Client(), ResponseBackpressure(4 * 2**20)  # The response holds more than half.
    serving = serve(client, room=room)
    while len(made) < 3:
        await asyncio.sleep(0)
    client.takes.clear()
    async with asyncio.timeout(DEADLINE_S):
        await serving
    assert len(made) < 10
    assert not client.is_ended
    assert room.bytes == 0


async def test_range_beyond_the_memory_limit_is_refused_unmade(made: list[int]) -> None:
    client, room = Client(), ResponseBackpressure(2**20)
    await serve(client, room=room)
    assert (client.head["status"], made, room.bytes) == (503, [], 0)


async def test_head_request_gets_the_status_and_no_body(made: list[int]) -> None:
    client = Client()
    await serve(client, method="HEAD")
    assert (client.head["status"], client.body, len(made)) == (200, b"", 1)
    assert client.is_ended


async def test_range_of_one_piece_has_content_length() -> None:
    for values in ([b"x" * 10_000], [b"x" * 200_000], []):
        client = Client()
        blocks = (block_of(values, 5),) if values else ()
        await serve(client, answer_of(*blocks, count=len(values)))
        assert (b"content-length", b"%d" % len(client.body)) in client.head["headers"]
        records = json.loads(client.body)["records"]
        assert [record["data"].encode() for record in records] == values


async def test_first_record_of_a_large_block_is_one_small_piece(made: list[int]) -> None:
    client = Client()
    await serve(client, end=6)
    assert (b"content-length", b"%d" % len(client.body)) in client.head["headers"]
    assert made == [1]


@pytest.mark.parametrize(
    ("values", "codec"),
    [
        ([b"x" * 2_000_000], Codec.ZSTD),
        ([b"x" * 100] * 20_000, Codec.ZSTD),
        ([b"\x01" * 4_000_000], Codec.NONE),
        ([b""] * 50_000, Codec.NONE),
    ],
)
async def test_memory_held_by_a_range_is_counted(values: list[bytes], codec: Codec) -> None:
    """Counts unpacked blocks and JSON, where a byte of a record may take six."""
    client, room = Client(), ResponseBackpressure(2**30)
    client.takes.clear()
    answer = answer_of(block_of(values, 5, codec), count=len(values))
    serving = serve(client, answer, room=room)
    for _ in range(1000):
        await asyncio.sleep(0)
    body = sum(map(len, values))
    assert room.bytes >= max(body, len(answer.blocks[0]) + SLICE)
    if len(values) == 1 and codec is Codec.NONE:
        assert room.bytes > 6 * body
    client.takes.set()
    await serving
    assert room.bytes == 0
    assert len(json.loads(client.body)["records"]) == len(values)


async def test_block_is_released_once_its_piece_is_made() -> None:
    client, room = Client(), ResponseBackpressure(2**30)
    client.takes.clear()
    block = block_of([b"x" * 2_000_000], 5)
    references = sys.getrefcount(block)
    serving = serve(client, answer_of(block, count=1), room=room)
    for _ in range(1000):
        await asyncio.sleep(0)
    assert sys.getrefcount(block) == references
    held = room.bytes
    client.takes.set()
    await serving
    assert held == len(client.body)


async def test_blocks_outside_the_range_are_not_counted() -> None:
    blocks = [block_of([b"x" * 1_000_000], 5 + number) for number in range(3)]
    answer = replace(answer_of(*blocks, count=3), first_offset=Offset(6))
    client, room = Client(), ResponseBackpressure(2_000_000)
    await serve(client, answer, room=room, end=7)
    assert client.head["status"] == 200
    assert [record["offset"] for record in json.loads(client.body)["records"]] == [6]


async def test_large_record_beyond_the_memory_limit_cuts_the_response() -> None:
    small, large = [b"x" * 100] * 1000, [b"\x01" * 1_000_000, b"x"]
    answer = answer_of(block_of(small, 5), block_of(large, 1005), count=1002)
    client, room = Client(), ResponseBackpressure(5 * 2**20)
    await serve(client, answer, room=room)
    assert (client.head["status"], client.is_ended, room.bytes) == (200, False, 0)
    with pytest.raises(ValueError, match=r"."):
        json.loads(client.body)


def damaged(block: bytes) -> bytes:
    found = bytearray(block)
    found[-50] ^= 1
    return bytes(found)


async def test_damaged_first_block_raises_before_the_head() -> None:
    client, room = Client(), ResponseBackpressure(2**24)
    answer = answer_of(damaged(block_of(VALUES, 5)), count=COUNT)
    with pytest.raises(BlockCorrupt):  # The application turns it into a problem.
        await serve(client, answer, room=room)
    assert not client.head
    assert room.bytes == 0


async def test_damaged_later_block_cuts_the_response_and_is_logged() -> None:
    halves = block_of(VALUES[:1000], 5), damaged(block_of(VALUES[1000:], 1005))
    client, room = Client(), ResponseBackpressure(2**24)
    with capture_logs() as logged:
        await serve(client, answer_of(*halves, count=COUNT), room=room)
    assert (client.head["status"], client.is_ended, room.bytes) == (200, False, 0)
    assert client.body.count(b'"offset"') > 500
    with pytest.raises(ValueError, match=r"."):  # HTTP/1.0 has no other sign of a cut response.
        json.loads(client.body)
    (cut,) = logged
    assert (cut["event"], cut["path"]) == ("http_range_cut", "/v1/some-log")
    assert 5 < cut["next_offset"] <= 1005
