"""The thread that reads standard input, and records in JSON."""

import asyncio
import threading
from pathlib import Path

import pytest

from rollbook.api.cli.log import record_input
from rollbook.api.cli.log.record_input import InputRecord, record_of_json, standard_input
from rollbook.proto.errors import InvalidRequest
from tests.messages import raises_message

DEADLINE_S = 10.0


def test_failed_consumer_ends_the_input_thread_silently(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The consumer fails while the thread waits for room in the queue."""
    untold: list[threading.ExceptHookArgs] = []
    waits_for_room = asyncio.Event()

    class Queue(asyncio.Queue[bytes]):
        async def put(self, item: bytes) -> None:
            if self.full():
                waits_for_room.set()
            await super().put(item)

    monkeypatch.setattr(threading, "excepthook", untold.append)
    monkeypatch.setattr(record_input, "_READ_BYTES", 1)
    monkeypatch.setattr(asyncio, "Queue", Queue)
    path = tmp_path / "input"
    path.write_bytes(b"x" * 100)

    async def fail_while_it_waits() -> None:
        async for _ in standard_input():
            async with asyncio.timeout(DEADLINE_S):
                await waits_for_room.wait()
            raise ConnectionError

    with path.open() as file:
        monkeypatch.setattr("sys.stdin", file)
        with pytest.raises(ConnectionError):
            asyncio.run(fail_while_it_waits())
        for thread in threading.enumerate():
            if thread.name == "standard-input":
                thread.join(DEADLINE_S)
                assert not thread.is_alive()
    assert untold == []


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b" ",
        b"text",
        b'{"value": "v"',
        rb'{"value": "\ud800"}',
        rb'{"value": "v", "headers": {"\udfff": "1"}}',
        b"{}",
        b"[]",
        b'"text"',
        b'{"value": 1}',
        b'{"value_base64": "?"}',
        b'{"value": "v", "headers": ["h"]}',
        b'{"value": "v", "headers": {"h": 1}}',
        b'{"value": "v", "headers": {"h": "1"}, "headers_base64": {"h": "Mg=="}}',
        b'{"value": "v", "event_time_us": "1"}',
        b'{"value": "v", "key": 1}',
        b'{"value": "v", "key_base64": 1}',
        b"\xff",
    ],
)
def test_invalid_json_record_line_is_refused(line: bytes) -> None:
    with raises_message(InvalidRequest):
        record_of_json(line)


def test_record_is_parsed_from_json() -> None:
    line = b'{"offset": 7, "value": "v", "key_base64": "/w==", "headers": {"h": "1"}}'
    assert record_of_json(line) == InputRecord(b"v", b"\xff", {"h": b"1"}, None)
