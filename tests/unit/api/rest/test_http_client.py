"""The HTTP client of tests and benchmarks parses responses correctly."""

import asyncio

import pytest

from tests.unit.api.rest.http_client import Connection, parse

WITH_LENGTH = b"HTTP/1.1 201 Created\r\nContent-Length: 3\r\n\r\nabc"
IN_CHUNKS = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3\r\na\r\n\r\nA;more=1\r\n0\r\n\r\n23456\r\n0\r\nLate: yes\r\n\r\n"
)
EMPTY = b"HTTP/1.1 204 No Content\r\n\r\n"
BODIES = {WITH_LENGTH: b"abc", IN_CHUNKS: b"a\r\n0\r\n\r\n23456", EMPTY: b""}


class NullWriter:
    def write(self, data: bytes) -> None:
        pass


@pytest.mark.parametrize("said", BODIES)
def test_parse_removes_framing_and_stops_after_one_response(said: bytes) -> None:
    answer = parse(said)
    assert answer.status == int(said[9:12])
    assert answer.body == BODIES[said]
    assert parse(said + WITH_LENGTH).body == BODIES[said]


@pytest.mark.parametrize("step", [1, 7, 1000])
async def test_responses_on_one_connection_are_separated(step: int) -> None:
    """Regression: a chunked response was parsed as part of the next one."""
    reader = asyncio.StreamReader()
    connection = Connection(reader, NullWriter())  # type: ignore[arg-type]  # Only `write` is called.
    said = [IN_CHUNKS, WITH_LENGTH, EMPTY, IN_CHUNKS, WITH_LENGTH]
    whole = b"".join(said)

    async def say() -> None:
        for start in range(0, len(whole), step):
            reader.feed_data(whole[start : start + step])
            await asyncio.sleep(0)

    saying = asyncio.create_task(say())
    assert [(await connection.ask(b"")).body for _ in said] == [BODIES[each] for each in said]
    await saying


def test_cut_off_response_has_the_body_received_so_far() -> None:
    assert parse(WITH_LENGTH[:-2]).body == b"a"
    assert parse(IN_CHUNKS[: IN_CHUNKS.index(b"23456")]).body == b"a\r\n0\r\n\r\n"
