"""What many followers may have together, and that nobody waits for one who gets nothing."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from rollbook.api.rest import following, shared_room
from rollbook.api.rest.shared_room import Turns
from rollbook.logservice.core.block import pack_block
from rollbook.logservice.ids import LogName, Offset
from rollbook.logservice.words import CaughtUp, FellBehind, Records
from tests.unit.api.rest.log_routes import LOG, SSE, Site

RECORDS = Records((b"",), Offset(0), Offset(1))


class Reader:
    def __init__(self, *events: Any) -> None:
        self.is_asked = False
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self._events = events

    async def read(self) -> AsyncGenerator[Any, None]:
        for event in self._events:
            self.is_asked = True
            await self.may_answer.wait()
            yield event


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_those_who_are_behind_read_in_turns() -> None:
    turns, readers = Turns(2), [Reader(RECORDS, RECORDS) for _ in range(3)]
    told = [turns.take(reader.read()) for reader in readers]
    assert [await anext(each) for each in told[:2]] == [RECORDS, RECORDS]
    third = asyncio.ensure_future(anext(told[2]))
    await settled()
    assert not readers[2].is_asked
    await told[0].aclose()  # What it had is told, or given up.
    assert await third == RECORDS
    for each in told:
        await each.aclose()


async def test_whoever_has_caught_up_takes_no_turn_until_he_falls_behind() -> None:
    turns = Turns(1)
    live = turns.take(Reader(CaughtUp(Offset(0)), RECORDS, FellBehind(Offset(9)), RECORDS).read())
    assert await anext(live) == CaughtUp(Offset(0))
    assert await anext(live) == RECORDS
    other = turns.take(Reader(RECORDS).read())
    assert await anext(other) == RECORDS  # Nobody else has it.
    assert await anext(live) == FellBehind(Offset(9))
    behind = asyncio.ensure_future(anext(live))
    await settled()
    assert not behind.done()
    await other.aclose()
    assert await behind == RECORDS
    await live.aclose()


async def test_whoever_waits_for_long_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_room, "_TURN_S", 0.01)
    turns, stuck = Turns(1), Reader(RECORDS)
    stuck.may_answer.clear()
    first, second = turns.take(stuck.read()), turns.take(Reader(RECORDS).read())
    waiting = asyncio.ensure_future(anext(first))
    await settled()
    assert await anext(second) == RECORDS
    stuck.may_answer.set()
    assert await waiting == RECORDS
    await first.aclose()
    await second.aclose()
    third = turns.take(Reader(RECORDS).read())
    assert await anext(third) == RECORDS
    await third.aclose()


async def test_a_large_record_goes_in_slices_to_whoever_takes_them_slowly(
    there: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_PATIENCE_S", 0.01)
    value = b"x" * 200_000
    there.core.cluster.logs[LogName("ns", "log")].append(pack_block([value, b"last"]), None)
    async with there.open("GET", f"{LOG}/records?at_tail=stop", b"", **SSE) as stream:
        parts, text = stream.parts(), b""
        while b"event: stopped" not in text:
            stream.may_send.clear()
            await asyncio.sleep(0.03)
            stream.may_send.set()
            part = await anext(parts)
            assert len(part) <= following._SLICE_BYTES
            text += part
        assert there.door.rests.bytes == 0
    assert text.count(value) == text.count(b'"last"') == 1


async def test_whoever_is_one_too_many_is_hung_up_on(
    there: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_RESTS_BYTES_MAX", 100_000)

    async def take_beginnings(text: bytes, send: Any) -> bool:
        begins = text.startswith(b"id:")
        if begins:
            await send(following._body(text))
        return begins

    monkeypatch.setattr(following, "_is_taken", take_beginnings)
    there.core.cluster.logs[LogName("ns", "log")].append(pack_block([b"x" * 200_000]), None)
    async with there.open("GET", f"{LOG}/records", b"", **SSE) as stream:
        *_, last = [part async for part in stream.parts()]
        assert b"event: records" in last
        assert not last.endswith(b"\n\n")
    assert there.door.rests.bytes == there.core.readers == 0
