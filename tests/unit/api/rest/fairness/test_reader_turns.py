"""Followers share a limited number of turns, and a stalled one does not delay the others."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from rollbook.api.rest import event_streams
from rollbook.api.rest.fairness import reader_turns as shared_room
from rollbook.api.rest.fairness.reader_turns import Events, ReaderTurns, Through
from rollbook.logservice.core.record_block import pack_block
from rollbook.logservice.ids import LogName, Offset
from rollbook.logservice.messages import (
    CaughtUp,
    FellBehind,
    Progress,
    ReadStream,
    Records,
    WaitsFor,
)
from rollbook.logservice.position_syntax import AtOffset, Latest, Position
from rollbook.proto.errors import NotOwner, Overloaded, OwnerChanging
from tests.unit.api.rest.log_routes import LOG, SSE, Site

RECORDS = Records((b"",), Offset(0), Offset(1))


class Reader:
    def __init__(self, *events: Any) -> None:
        self.is_asked = self.is_open = False
        self.request: ReadStream | None = None
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self._events = iter(events)  # A resumed read continues with the next event.

    async def read(self) -> AsyncGenerator[Any, None]:
        self.is_open = True
        try:
            for event in self._events:
                self.is_asked = True
                await self.may_answer.wait()
                await asyncio.sleep(0)  # Lets other tasks run.
                yield event
        finally:
            self.is_open = False


ASKED = ReadStream(LogName("ns", "log"), Latest(), heartbeat_ms=60_000)


async def stand(position: Position) -> Progress:
    return Progress(Offset(7), Offset(0), Offset(9), 2, 0, 0, WaitsFor.THROTTLE)


def take(turns: ReaderTurns, reader: Reader, asked: ReadStream = ASKED) -> Events:
    def read(request: ReadStream) -> Events:
        reader.request = request
        return reader.read()

    return turns.take(lambda through: through(read, asked), stand)


async def anything_but_progress(events: Events) -> Any:
    """Skips heartbeats, which a paused process may have sent first."""
    async for event in events:
        if not isinstance(event, Progress):
            return event
    return None


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_readers_behind_the_tail_read_in_turns() -> None:
    turns, readers = ReaderTurns(2), [Reader(RECORDS, RECORDS) for _ in range(3)]
    told = [take(turns, reader) for reader in readers]
    assert [await anext(each) for each in told[:2]] == [RECORDS, RECORDS]
    third = asyncio.ensure_future(anext(told[2]))
    await settled()
    assert not readers[2].is_asked
    await told[0].aclose()  # Its records are sent or dropped.
    assert await third == RECORDS
    for each in told:
        await each.aclose()


async def test_turn_lasts_until_its_byte_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower that waits for the next turn has no reader."""
    monkeypatch.setattr(shared_room, "_TURN_BYTES", 30)
    records = Records((b"x" * 10,), Offset(4), Offset(5))
    turns, told = ReaderTurns(1), list[int]()
    readers = [Reader(*[records] * 4), Reader(records)]

    async def follow(number: int) -> None:
        async for _ in take(turns, readers[number]):
            told.append(number)
            if number == 1:
                assert not readers[0].is_open

    await asyncio.gather(follow(0), follow(1))
    assert told == [0, 0, 0, 1, 0]
    assert readers[0].request is not None
    assert readers[0].request.start == AtOffset(Offset(5))


async def test_caught_up_reader_needs_no_turn_until_it_falls_behind() -> None:
    turns = ReaderTurns(1)
    live = take(turns, Reader(CaughtUp(Offset(0)), RECORDS, FellBehind(Offset(9)), RECORDS))
    assert await anext(live) == CaughtUp(Offset(0))
    assert await anext(live) == RECORDS
    other = take(turns, Reader(RECORDS))
    assert await anext(other) == RECORDS  # The caught-up reader has no turn.
    assert await anext(live) == FellBehind(Offset(9))
    behind = asyncio.ensure_future(anext(live))
    await settled()
    assert not behind.done()
    await other.aclose()
    assert await behind == RECORDS
    await live.aclose()


async def test_reader_stuck_in_its_turn_loses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_room, "_TURN_S", 0.01)
    turns, stuck = ReaderTurns(1), Reader(RECORDS)
    stuck.may_answer.clear()
    first, second = take(turns, stuck), take(turns, Reader(RECORDS))
    waiting = asyncio.ensure_future(anext(first))
    await settled()
    assert await anext(second) == RECORDS
    stuck.may_answer.set()
    assert await waiting == RECORDS
    await first.aclose()
    await second.aclose()
    third = take(turns, Reader(RECORDS))
    assert await anext(third) == RECORDS
    await third.aclose()


async def test_reader_waiting_for_a_turn_is_sent_its_place_and_resumes_there() -> None:
    """RL3: it is sent its position with each heartbeat, and keeps its place in the queue."""
    turns, reader, later = ReaderTurns(1), Reader(RECORDS), Reader(RECORDS)
    first = take(turns, Reader(RECORDS))
    await anext(first)
    waiting = take(turns, reader, replace(ASKED, heartbeat_ms=200))
    assert await anext(waiting) == await stand(Latest())
    behind_him = asyncio.ensure_future(anext(take(turns, later)))
    assert await anext(waiting) == await stand(Latest())
    heard = asyncio.ensure_future(anything_but_progress(waiting))
    await settled()
    await first.aclose()
    assert await heard == RECORDS
    assert not later.is_asked
    assert reader.request is not None
    assert reader.request.start == AtOffset(Offset(7))
    await waiting.aclose()
    assert await behind_him == RECORDS


async def test_turn_begins_while_the_position_request_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: a position request to a log without an owner delayed the turn for seconds."""
    monkeypatch.setattr(shared_room, "_TURN_S", 100)
    is_asked = asyncio.Event()

    async def stand_never(position: Position) -> Progress:
        is_asked.set()
        await asyncio.Event().wait()
        return await stand(position)

    turns, request = ReaderTurns(1), replace(ASKED, heartbeat_ms=10)
    first = take(turns, Reader(RECORDS))
    await anext(first)
    waiting = turns.take(
        lambda through: through(lambda _: Reader(RECORDS).read(), request), stand_never
    )
    heard = asyncio.ensure_future(anext(waiting))
    async with asyncio.timeout(30):
        await is_asked.wait()
        await first.aclose()
        assert await heard == RECORDS
    await waiting.aclose()


async def test_no_turn_begins_for_a_stalled_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_room, "_TURN_S", 100)
    turns = ReaderTurns(1)
    first, slow = take(turns, Reader(RECORDS)), Reader(RECORDS)
    await anext(first)
    told = take(turns, slow, replace(ASKED, heartbeat_ms=10))
    await anext(told)  # The client then reads no more.
    await first.aclose()
    other = take(turns, Reader(RECORDS))
    async with asyncio.timeout(30):
        assert await anext(other) == RECORDS
        await other.aclose()
        assert await anext(told) == RECORDS
    await told.aclose()


@pytest.mark.parametrize("times", [1, 2])
async def test_reader_cancelled_when_its_turn_comes_passes_the_turn_on(
    times: int,
) -> None:
    turns = ReaderTurns(1)
    first, waiting = take(turns, Reader(RECORDS)), take(turns, Reader(RECORDS))
    await anext(first)
    heard = asyncio.ensure_future(anext(waiting))
    await settled()
    await first.aclose()
    for _ in range(times):
        heard.cancel()
        await asyncio.sleep(0)
    await asyncio.gather(heard, return_exceptions=True)
    async with asyncio.timeout(30):
        assert await anext(take(turns, Reader(RECORDS))) == RECORDS


@pytest.mark.parametrize("was_told", [False, True])
async def test_failed_read_is_retried_only_after_a_first_response(
    monkeypatch: pytest.MonkeyPatch, *, was_told: bool
) -> None:
    """Retries hold no turn; before a first response the failure is returned."""
    monkeypatch.setattr(shared_room, "_RETRY_S", 0.01)
    errors: list[Exception] = [Overloaded(), OwnerChanging(), NotOwner()]

    async def fails(_: ReadStream) -> AsyncGenerator[Any, None]:
        opened.append(_.start)
        yield await asyncio.sleep(0, RECORDS) if not errors else raised(errors.pop(0))

    opened: list[Position] = []
    turns = ReaderTurns(1)
    stands = Offset(7) if was_told else None
    told = turns.take(lambda through: through(fails, ASKED), stand, stands)
    if not was_told:
        with pytest.raises(Overloaded):
            await anext(told)
        return
    async with asyncio.timeout(30):
        assert await anext(told) == await stand(Latest())
        assert await anext(take(turns, Reader(RECORDS))) == RECORDS
        assert await anext(told) == await stand(Latest())
    with pytest.raises(NotOwner):  # The client has to ask another server.
        await anext(told)
    assert opened == [AtOffset(Offset(7))] * 3


def raised(error: Exception) -> Any:
    raise error


async def test_reader_past_its_range_when_its_turn_comes_reads_nothing() -> None:
    """It is not refused because the log has passed its range while it waited."""
    turns, reader = ReaderTurns(1), Reader(RECORDS)
    first = take(turns, Reader(RECORDS))
    await anext(first)
    asked = replace(ASKED, until_offset=Offset(5), heartbeat_ms=10)
    waiting = take(turns, reader, asked)
    assert await anext(waiting) == await stand(Latest())  # It is at offset 7 now.
    await first.aclose()
    await anext(waiting)
    assert reader.request == replace(asked, start=AtOffset(Offset(7)), until_offset=Offset(7))
    await waiting.aclose()


@pytest.mark.parametrize("is_heard", [False, True])
async def test_reader_that_leaves_while_waiting_keeps_no_turn(*, is_heard: bool) -> None:
    turns, reader = ReaderTurns(1), Reader(RECORDS)
    first = take(turns, Reader(RECORDS))
    await anext(first)
    waiting = take(turns, reader, replace(ASKED, heartbeat_ms=10))
    await anext(waiting)
    if is_heard:  # It gets its turn at the moment it leaves.
        await first.aclose()
    await waiting.aclose()
    await first.aclose()
    assert await anext(take(turns, Reader(RECORDS))) == RECORDS
    assert not reader.is_asked


async def test_throttled_reader_waits_for_its_quota_without_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_room, "_TURN_S", 100)
    turns, may_go_on = ReaderTurns(1), asyncio.Event()

    async def throttled(through: Through) -> Events:
        async with aclosing(through(lambda _: Reader(RECORDS, RECORDS).read(), ASKED)) as events:
            async for event in events:
                yield event
                await may_go_on.wait()

    first = turns.take(throttled, stand)
    assert await anext(first) == RECORDS
    waiting = asyncio.ensure_future(anext(first))
    await settled()
    second = take(turns, Reader(RECORDS))
    async with asyncio.timeout(30):
        assert await anext(second) == RECORDS
    may_go_on.set()
    await settled()
    assert not waiting.done()  # It needs a turn to read on.
    await second.aclose()
    assert await waiting == RECORDS
    await first.aclose()


async def test_follower_waiting_for_a_turn_gets_progress(
    there: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The progress is sent before any record is read; a missing log is reported."""
    there.core.cluster.logs[LogName("ns", "log")].append(pack_block([b"a", b"b"]), None)
    turns, path = ReaderTurns(0), f"{LOG}/records?from=-1&heartbeat_ms=100"
    monkeypatch.setattr(there.routing, "_turns", turns)
    async with there.open("GET", path, b"", **SSE) as stream:
        parts = stream.parts()
        assert (await anext(parts), stream.status) == (b"retry: 250\n\n", 200)
        told = await anext(parts)
        assert told.startswith(b"id: 1\nevent: progress\n")
        assert b'"waits_for":"throttle"' in told
        turns.release()
        while b"event: records" not in told:
            told = await anext(parts)
        assert b'"offset":1' in told
    assert not there.core.readers
    there.core.cluster.logs.clear()
    monkeypatch.setattr(there.routing, "_turns", ReaderTurns(0))
    assert (await there.get(path, **SSE)).status == 404


async def test_resume_at_a_sealed_end_needs_no_turn(
    there: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = there.core.cluster.logs[LogName("ns", "log")]
    log.append(pack_block([b"a"]), None)
    log.is_sealed = True
    monkeypatch.setattr(there.routing, "_turns", ReaderTurns(0))
    path = f"{LOG}/records?heartbeat_ms=100"
    assert (await there.get(path, **SSE, **{"last-event-id": "1"})).status == 204


@pytest.mark.parametrize("turns", [0, 1])
async def test_reader_gets_the_error_if_its_position_is_unknown(
    monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    """The client gets the error and may ask another server, with a turn and without one."""
    monkeypatch.setattr(shared_room, "_RETRY_S", 0.01)

    async def fails(_: ReadStream) -> AsyncGenerator[Any, None]:
        yield raised(Overloaded())

    async def knows_nothing(_: Position) -> Progress:
        raise Overloaded

    request = replace(ASKED, heartbeat_ms=10)
    told = ReaderTurns(turns).take(
        lambda through: through(fails, request), knows_nothing, Offset(7)
    )
    async with asyncio.timeout(30):
        with pytest.raises(Overloaded):
            await anext(told)


async def test_position_failure_after_a_first_response_is_ignored() -> None:
    failures = [Overloaded()]

    async def stand_at_times(position: Position) -> Progress:
        asked.append(position)
        if len(asked) == 2:
            raise failures.pop()
        return await stand(position)

    asked: list[Position] = []
    request = replace(ASKED, heartbeat_ms=10)
    told = ReaderTurns(0).take(
        lambda through: through(lambda _: Reader().read(), request), stand_at_times
    )
    assert await anext(told) == await anext(told) == await stand(Latest())
    assert asked == [Latest(), AtOffset(Offset(7)), AtOffset(Offset(7))]
    assert not failures
    await told.aclose()


async def test_large_record_is_sent_to_a_slow_client_in_slices(
    there: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_streams, "_PATIENCE_S", 0.01)
    value = b"x" * 200_000
    there.core.cluster.logs[LogName("ns", "log")].append(pack_block([value, b"last"]), None)
    async with there.open("GET", f"{LOG}/records?at_tail=stop", b"", **SSE) as stream:
        parts, text = stream.parts(), b""
        while b"event: stopped" not in text:
            stream.may_send.clear()
            await asyncio.sleep(0.03)
            stream.may_send.set()
            part = await anext(parts)
            assert len(part) <= event_streams._SLICE_BYTES
            text += part
        assert there.routing.rests.bytes == 0
    assert text.count(value) == text.count(b'"last"') == 1


async def test_follower_beyond_the_unsent_bytes_limit_is_closed(
    there: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_streams, "_RESTS_BYTES_MAX", 100_000)

    async def take_beginnings(text: bytes, send: Any) -> bool:
        begins = text.startswith(b"id:")
        if begins:
            await send(event_streams._body(text))
        return begins

    monkeypatch.setattr(event_streams, "_send_text", take_beginnings)
    there.core.cluster.logs[LogName("ns", "log")].append(pack_block([b"x" * 200_000]), None)
    async with there.open("GET", f"{LOG}/records", b"", **SSE) as stream:
        *_, last = [part async for part in stream.parts()]
        assert b"event: records" in last
        assert not last.endswith(b"\n\n")
    assert there.routing.rests.bytes == there.core.readers == 0
