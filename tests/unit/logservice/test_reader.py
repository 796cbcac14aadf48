"""Readers read a log from any server through rolls, take-overs and truncation, with heartbeats."""

import asyncio
import math
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest

from rollbook.logservice import messages, tail_lookup
from rollbook.logservice.core.owner_placement import shard_of
from rollbook.logservice.ids import LogName, Offset
from rollbook.logservice.log_config import LogConfig
from rollbook.logservice.log_ownership import _Grounds
from rollbook.logservice.messages import (
    AtTail,
    CaughtUp,
    Consistency,
    FellBehind,
    Gap,
    Moving,
    OnTruncated,
    Progress,
    ReadEvent,
    ReadStream,
    Records,
    Sealed,
    Stopped,
    WaitsFor,
)
from rollbook.logservice.position_syntax import (
    Ago,
    AtOffset,
    AtTime,
    BeforeTail,
    Earliest,
    Latest,
    Position,
)
from rollbook.logservice.reader import LogReader
from rollbook.proto.errors import (
    BeyondTail,
    ConnectionLost,
    EntryUnavailable,
    InvalidRequest,
    LogDeleted,
    NoSuchLog,
    NotOwner,
    RollbookError,
    Truncated,
    Unavailable,
)
from tests.unit.logservice.owner_scene import LEASE_S, LOG, Scene, play, refused
from tests.unit.logservice.service_scene import (
    Client,
    Serving,
    log_suggested_to,
    make_log,
    offset,
    start_all,
    values_of,
)

QUICK_ROLLS = LogConfig(roll_entries=16)


def at(number: int) -> AtOffset:
    return AtOffset(offset(number))


def numbers(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


async def fill(server: Serving, log: LogName, count: int, first: int = 0) -> None:
    for value in numbers(count, first):
        await server.append(log, value)


async def take(events: AsyncIterator[messages.ReadEvent], count: int) -> list[bytes]:
    """The next `count` records; other events are skipped."""
    values: list[bytes] = []
    while len(values) < count:
        event = await anext(events)
        if isinstance(event, Records):
            values += values_of(event)
    return values


async def until(
    events: AsyncIterator[messages.ReadEvent], kind: type[messages.ReadEvent]
) -> messages.ReadEvent:
    while True:
        event = await anext(events)
        if isinstance(event, kind):
            return event


def test_a_log_is_read_across_segments_from_any_server() -> None:
    async def story(scene: Scene) -> None:
        a, b = await start_all(scene, "a", "b")
        log = log_suggested_to(a)
        await scene.nodes.ensure(log, QUICK_ROLLS)
        await fill(a, log, 100)
        assert len((await scene.stored(log)).list.segments) > 5
        await asyncio.sleep(0.1)  # Bookies learn by now that the last entry is confirmed.
        for server in (a, b):
            assert await server.read_all(log) == numbers(100)
            for first in (1, 50, 99, 100):
                assert await server.read_all(log, at(first)) == numbers(100 - first, first)

    play(story)


def test_append_reaches_readers_on_every_server_without_a_later_one() -> None:
    """Bookies learn that the last entry is confirmed without a later one (WR7)."""

    async def story(scene: Scene) -> None:
        a, b = await start_all(scene, "a", "b")
        log = log_suggested_to(a)
        await scene.nodes.ensure(log, QUICK_ROLLS)
        await fill(a, log, 5)
        for server, within_s in ((a, 0.001), (b, 0.5)):
            async with server.events(ReadStream(log, at(3))) as events:
                assert await take(events, 2) == numbers(2, 3)
                for number in range(5, 45):  # Through several rolls.
                    await a.append(log, b"more")
                    appended_at = scene.world.now
                    assert await take(events, 1) == [b"more"], number
                    assert scene.world.now - appended_at < within_s
            await a.ask(a.service.truncate(messages.Truncate(log, Latest()), a.due()))
            log = await make_log(scene, log_suggested_to(a, 1))
            await fill(a, log, 5)

    play(story)


def test_reader_continues_through_take_overs() -> None:
    async def story(scene: Scene) -> None:
        a, b, c = await start_all(scene, "a", "b", "c")
        log = log_suggested_to(a)
        await scene.nodes.ensure(log, QUICK_ROLLS)
        client = Client(scene, a, b)
        async with c.events(ReadStream(log, Earliest())) as events:
            for round_, victim in enumerate((a, b, a)):
                for value in numbers(20, 20 * round_):
                    await client.append(log, value)
                assert await take(events, 20) == numbers(20, 20 * round_)
                victim.node.kill()
                await client.append(log, b"after")
                assert await take(events, 1) == [b"after"]
                await victim.start()

    play(story)


def test_transfer_sends_readers_to_the_new_owner() -> None:
    async def story(scene: Scene) -> None:
        a, b = await start_all(scene, "a", "b")
        log = await make_log(scene, log_suggested_to(a))
        await fill(a, log, 3)
        async with a.events(ReadStream(log, Latest())) as events:
            assert await until(events, CaughtUp) == CaughtUp(offset(3))
            await a.ask(a.service.transfer_log(messages.TransferLog(log, "b"), a.due()))
            await b.append(log, b"3")
            moving = await until(events, Moving)
            assert moving == Moving(b.address, offset(3))
            with pytest.raises(StopAsyncIteration):
                await anext(events)
        assert await b.read_all(log, at(3)) == [b"3"]

    play(story)


def test_read_at_the_end_of_a_log_without_an_owner_is_answered_at_once() -> None:
    """The list has the tail, so nothing has to be awaited."""

    async def story(scene: Scene) -> None:
        (a,) = await start_all(scene, "a")
        log = await make_log(scene, log_suggested_to(a))
        await fill(a, log, 3)
        await a.ask(a.service.drain_server(messages.DrainServer("a"), a.due()))
        asked_at = scene.world.now
        answer = await a.ask(a.service.read(messages.Read(log, at(3)), a.due()))
        assert (answer.blocks, answer.next_offset, answer.tail) == ((), 3, 3)
        assert not answer.is_tail_uncertain
        async with a.events(ReadStream(log, at(3))) as events:
            assert await until(events, CaughtUp) == CaughtUp(offset(3))
        assert scene.world.now - asked_at < 0.1

    play(story)


def test_reader_too_slow_for_the_owners_memory_lags_and_catches_up() -> None:
    async def story(scene: Scene) -> None:
        (a,) = await start_all(scene, "a")
        await scene.nodes.ensure(LOG, None)
        log = LogName("test", "small")
        await scene.nodes.ensure(log, LogConfig(tail_cache_bytes=4096))
        await fill(a, log, 1)
        async with a.events(ReadStream(log, Earliest())) as events:
            assert await take(events, 1) == [b"0"]
            await until(events, CaughtUp)
            await fill(a, log, 200, 1)
            await until(events, FellBehind)
            assert await take(events, 200) == numbers(200, 1)
            await until(events, CaughtUp)

    play(story)


def test_last_records_of_a_dead_owner_are_read_without_new_appends() -> None:
    """Bookies do not report the last record before the ledger is recovered."""

    async def story(scene: Scene) -> None:
        a, b, c = await start_all(scene, "a", "b", "c")
        log = await make_log(scene, log_suggested_to(a))
        heir = log_heir(log, b, c)
        other = c if heir is b else b
        await fill(a, log, 3)
        a.node.kill()
        async with (
            other.events(ReadStream(log, Earliest(), heartbeat_ms=1000)) as there,
            heir.events(ReadStream(log, Earliest(), heartbeat_ms=1000)) as here,
        ):
            moving = await until(there, Moving)
            assert isinstance(moving, Moving)
            assert moving.server == heir.address
            assert await take(here, 3) == numbers(3)
        await b.read_all(log)
        assert await other.read_all(log) == numbers(3)

    play(story)


async def take_from(log: LogName, owner: Serving, heir: Serving) -> None:
    """The heir takes the log over; the owner is alive and is not notified."""
    heir.do(heir.log_server._start, log, _Grounds("the test says so"))
    await heir.append(log, b"heir's")
    assert owner.log_server.find(log) is not None


def test_reader_at_a_replaced_owner_gets_the_new_owners_address() -> None:
    """SV6: without appends, only the owner's own checks notice the replacement."""

    async def story(scene: Scene) -> None:
        a, b = await start_all(scene, "a", "b", rebalance_after_s=1000.0)
        log = await make_log(scene, log_suggested_to(a))
        await fill(a, log, 3)
        async with a.events(ReadStream(log, Earliest(), heartbeat_ms=1000)) as events:
            assert await take(events, 3) == numbers(3)
            await take_from(log, a, b)
            began_s = scene.world.now
            assert await until(events, Moving) == Moving(b.address, offset(3))
            assert scene.world.now < began_s + LEASE_S + 2.0
        assert a.log_server.find(log) is None
        assert await a.read_all(log) == [*numbers(3), b"heir's"]

    play(story)


def test_reader_that_starts_at_a_replaced_owner_sees_the_new_owners_log() -> None:
    """SV6: at most one lease after the take-over."""

    async def story(scene: Scene) -> None:
        a, b = await start_all(scene, "a", "b", rebalance_after_s=1000.0)
        log = await make_log(scene, log_suggested_to(a))
        await fill(a, log, 3)
        await take_from(log, a, b)
        truncation = messages.Truncate(log, at(3), force_roll=True)
        assert (await b.ask(b.service.truncate(truncation, b.due()))).new_head == 3
        await asyncio.sleep(LEASE_S)
        assert await a.read_all(log) == [b"heir's"]

    play(story)


def test_owner_of_a_silent_log_is_read_without_the_metadata_store() -> None:
    """SV6: bookies can confirm the ownership, too."""

    async def story(scene: Scene) -> None:
        (a,) = await start_all(scene, "a", lease_s=60.0)
        log = await make_log(scene, log_suggested_to(a))
        await fill(a, log, 3)
        await asyncio.sleep(70.0)
        scene.world.metadata.down()
        assert await a.read_all(log) == numbers(3)
        scene.world.metadata.up()

    play(story)


def test_reader_gets_records_from_the_owner_without_list_or_bookies() -> None:
    """SV6, RL3: known records arrive in time; a read alone does not reset the idle time."""

    async def story(scene: Scene) -> None:
        (a,) = await start_all(scene, "a", lease_s=60.0)
        log = await make_log(scene, log_suggested_to(a))
        await fill(a, log, 3)
        told_s: list[float] = []

        async def watch() -> None:
            async for each in a.service.watch_tail(messages.WatchTail(log, heartbeat_ms=500)):
                assert each.tail == 3
                told_s.append(scene.world.now)

        watching = a.begin(watch())
        await asyncio.sleep(100.0)
        owner = a.log_server.find(log)
        assert owner is not None
        used_ns = owner.idle_since_ns
        scene.world.metadata.down()
        scene.set_bookies(is_hung=True)
        await scene.until(lambda: not owner.is_proven)
        silent_s = scene.world.now
        answer = await a.ask(a.service.read(messages.Read(log, at(0)), a.due()))
        assert (answer.next_offset, answer.tail) == (3, 3)
        assert scene.world.now - silent_s < 2.5
        await asyncio.sleep(5.0)
        scene.set_bookies(is_hung=False)
        scene.world.metadata.up()
        assert max(later - sooner for sooner, later in pairwise(told_s)) < 0.7
        assert told_s[-1] > silent_s + 4
        assert owner.idle_since_ns == used_ns
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)

    play(story)


def log_heir(log: LogName, *servers: Serving) -> Serving:
    """The server that is suggested when the first choice is gone."""
    suggestions = servers[0].log_server.membership.suggestions
    name = suggestions.ranked(shard_of(log))[1]
    return next(each for each in servers if each.name == name)


def test_readers_of_a_sealed_log_end_at_its_tail() -> None:
    async def story(scene: Scene) -> None:
        a, b = await start_all(scene, "a", "b")
        log = await make_log(scene, log_suggested_to(a))
        await fill(a, log, 3)
        async with (
            a.events(ReadStream(log, Earliest())) as here,
            b.events(ReadStream(log, Earliest())) as there,
        ):
            for events in (here, there):
                assert await take(events, 3) == numbers(3)
            await a.ask(a.service.seal(messages.Seal(log), a.due()))
            sealed_at = scene.world.now
            for events in (here, there):
                assert await until(events, Sealed) == Sealed(offset(3))
                with pytest.raises(StopAsyncIteration):
                    await anext(events)
            assert scene.world.now - sealed_at < 2.5
        # A later reader ends at once.
        came_at = scene.world.now
        for start in (Earliest(), at(3)):
            async with a.events(ReadStream(log, start)) as events:
                assert await until(events, Sealed) == Sealed(offset(3))
        assert scene.world.now - came_at < 0.5

    play(story)


def test_reader_below_the_head_gets_truncated_or_a_gap() -> None:
    async def story(scene: Scene) -> None:
        a, b = await start_all(scene, "a", "b")
        log = log_suggested_to(a)
        await scene.nodes.ensure(log, QUICK_ROLLS)
        await fill(a, log, 60)
        await a.ask(a.service.truncate(messages.Truncate(log, at(41)), a.due()))
        for server in (a, b):
            async with server.events(ReadStream(log, at(7))) as events:
                error = await refused(anext(events), Truncated)
                assert error.ids["head"] == 41
            request = ReadStream(log, at(7), on_truncated=OnTruncated.SKIP)
            async with server.events(request) as events:
                gap = await until(events, Gap)
                assert isinstance(gap, Gap)
                assert (gap.start, gap.end) == (7, 41)
                assert await take(events, 19) == numbers(19, 41)

    play(story)


def test_reader_fails_when_its_log_is_truncated_or_deleted() -> None:
    async def story(scene: Scene) -> None:
        a, b = await start_all(scene, "a", "b")
        log = log_suggested_to(a)
        await scene.nodes.ensure(log, QUICK_ROLLS)
        await fill(a, log, 60)
        async with b.events(ReadStream(log, Earliest())) as events:
            await take(events, 1)
            await asyncio.sleep(3.0)  # The read-ahead is dropped by now.
            await a.ask(a.service.truncate(messages.Truncate(log, at(50)), a.due()))
            error = await refused(take(events, 100), Truncated)
            assert error.ids["head"] == 50
        async with b.events(ReadStream(log, at(50))) as events:
            await take(events, 10)
            await a.ask(a.service.delete_log(messages.DeleteLog(log), a.due()))
            a.node.kill()
            await refused(take(events, 1), LogDeleted)

    play(story)


def test_reader_gets_progress_while_idle_and_while_bookies_hang() -> None:
    """RL3."""

    async def story(scene: Scene) -> None:
        a, b = await start_all(scene, "a", "b")
        log = await make_log(scene, log_suggested_to(a))
        await fill(a, log, 3)
        for server in (a, b):
            async with server.events(ReadStream(log, Earliest(), heartbeat_ms=1000)) as events:
                await take(events, 3)
                asked_at = scene.world.now
                told = await until(events, Progress)
                assert scene.world.now - asked_at < 2.5
                expected = Progress(offset(3), offset(0), offset(3), 0, 0, 0, WaitsFor.NOTHING)
                assert told == expected
        scene.set_bookies(is_hung=True)
        async with b.events(ReadStream(log, Earliest(), heartbeat_ms=1000)) as events:
            for _ in range(5):
                asked_at = scene.world.now
                try:
                    await anext(events)
                except RollbookError:  # The start offset cannot be looked up.
                    break
                assert scene.world.now - asked_at < 2.5
        scene.set_bookies(is_hung=False)

    play(story)


def test_reader_reports_lag_while_bookies_hang_and_then_continues() -> None:
    async def story(scene: Scene) -> None:
        a, b = await start_all(scene, "a", "b")
        log = log_suggested_to(a)
        await scene.nodes.ensure(log, QUICK_ROLLS)
        await fill(a, log, 40)
        async with b.events(ReadStream(log, Earliest(), heartbeat_ms=1000)) as events:
            await take(events, 1)
            await asyncio.sleep(3.0)  # The read-ahead is dropped by now.
            scene.set_bookies(is_hung=True)
            for _ in range(10):
                asked_at = scene.world.now
                event = await anext(events)
                assert scene.world.now - asked_at < 2.5
                if isinstance(event, Progress) and event.waits_for is WaitsFor.REPLICA:
                    break
            else:
                pytest.fail("no event says that the reader waits for a replica")
            assert event.lag_records > 0
            assert event.lag_bytes > 0
            scene.set_bookies(is_hung=False)
            while not isinstance(event, Records) or event.next_offset < 40:
                event = await anext(events)

    play(story)


def test_read_ahead_is_dropped_for_a_stalled_reader() -> None:
    """RL4."""

    async def story(scene: Scene) -> None:
        a, b = await start_all(scene, "a", "b")
        log = log_suggested_to(a)
        await scene.nodes.ensure(log, QUICK_ROLLS)
        await fill(a, log, 100)
        made: list[LogReader] = []
        original = LogReader.__init__

        def noted(self: LogReader, *arguments: object, **more: object) -> None:
            made.append(self)
            original(self, *arguments, **more)  # type: ignore[arg-type]  # Passed on unchanged.

        LogReader.__init__ = noted  # type: ignore[method-assign]  # For this test only.
        try:
            async with b.events(ReadStream(log, Earliest())) as events:
                values = await take(events, 1)
                assert made[0]._ledger is not None
                await asyncio.sleep(3.0)
                assert made[0]._ledger is None
                values += await take(events, 100 - len(values))
                assert values == numbers(100)
        finally:
            LogReader.__init__ = original  # type: ignore[method-assign]  # Restored.

    play(story)


def test_positions_resolve_equally_on_every_server() -> None:
    async def story(scene: Scene) -> None:
        a, b = await start_all(scene, "a", "b")
        log = log_suggested_to(a)
        await scene.nodes.ensure(log, QUICK_ROLLS)
        times: list[int] = []
        for value in numbers(60):
            times.append((await a.append(log, value)).timestamp_us)
            await asyncio.sleep(0.01)
        await a.ask(a.service.truncate(messages.Truncate(log, at(20)), a.due()))

        async def found(server: Serving, position: Position) -> int:
            request = messages.FindOffset(log, position)
            return (await server.ask(server.service.find_offset(request, server.due()))).offset

        for server in (a, b):
            assert await found(server, Earliest()) == 20
            assert await found(server, Latest()) == 60
            assert await found(server, BeforeTail(7)) == 53
            assert await found(server, BeforeTail(100)) == 20
            for number in (20, 21, 35, 36, 37, 59):
                assert await found(server, AtTime(times[number])) == number
                assert await found(server, AtTime(times[number] + 1)) == number + 1
            assert await found(server, AtTime(0)) == 20
            assert await found(server, Ago(10**9)) == 20
            beyond = BeyondTail if server is a else NotOwner
            await refused(server.read_all(log, at(61)), beyond)
            await refused(found(server, at(61)), beyond)
            assert await found(server, at(60)) == 60
            assert await found(server, at(3)) == 3  # Below the head: reading there reports it.
            await refused(server.read_all(LogName("test", "none")), NoSuchLog)

    play(story)


def test_just_acked_record_is_found_by_its_time() -> None:
    """Bookies report a record only later; a reader that starts after it would miss it."""

    async def story(scene: Scene) -> None:
        a, b = await start_all(scene, "a", "b")
        log = await make_log(scene, log_suggested_to(a))

        async def found(server: Serving, position: Position) -> int:
            request = messages.FindOffset(log, position)
            return (await server.ask(server.service.find_offset(request, server.due()))).offset

        hour = Ago(3600 * 10**6)
        for number in range(6):
            ack = await a.append(log, b"%d" % number)
            for server in (b, a):
                assert await found(server, hour) == 0
                assert await found(server, AtTime(ack.timestamp_us)) == number
            assert await a.read_all(log, hour) == numbers(number + 1)
            if number % 2:
                assert await found(a, AtTime(ack.timestamp_us + 1)) == number + 1
                await a.ask(a.service.roll_log(messages.RollLog(log), a.due()))
        request = messages.Truncate(log, hour)
        assert (await a.ask(a.service.truncate(request, a.due()))).new_head == 0

    play(story)


def test_last_record_time_ignores_control_entries() -> None:
    """At the owner and another server; after barriers, after a roll, and from the next owner."""

    async def story(scene: Scene) -> None:
        a, b = await start_all(scene, "a", "b")
        log = await make_log(scene, log_suggested_to(a))

        async def last_time(server: Serving, consistency: Consistency) -> int:
            request = messages.GetTail(log, consistency)
            return (await server.ask(server.service.get_tail(request, server.due()))).timestamp_us

        async def told() -> list[int]:
            times = [await last_time(a, each) for each in Consistency]
            await asyncio.sleep(2.0)  # Until bookies know that all entries are confirmed.
            return [*times, await last_time(b, Consistency.CACHED)]

        assert await told() == [0] * (len(Consistency) + 1)
        await a.append(log, b"0")
        appended_us = (await a.append(log, b"1")).timestamp_us
        await asyncio.sleep(1.0)
        assert await told() == [appended_us] * (len(Consistency) + 1)
        await a.ask(a.service.roll_log(messages.RollLog(log), a.due()))
        assert await told() == [appended_us] * (len(Consistency) + 1)
        await a.stop()
        assert await last_time(b, Consistency.COMMITTED) == appended_us

        async def watched() -> int:
            async for tail in b.service.watch_tail(messages.WatchTail(log)):
                if tail.timestamp_us:  # The time needs a search, and the tail does not wait for it.
                    return tail.timestamp_us
            raise AssertionError("the watch ended")

        assert await b.ask(watched()) == appended_us

    play(story)


def test_known_tail_does_not_wait_for_an_unknown_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An unknown time must neither delay GetTail nor be searched for at every poll."""
    searched_s: list[float] = []

    async def story(scene: Scene) -> None:
        hangs = True

        async def search(*_: object) -> int:
            searched_s.append(scene.world.now)
            if hangs:
                await asyncio.sleep(3600.0)
            raise EntryUnavailable

        monkeypatch.setattr(tail_lookup, "find_last_time", search)
        a, b = await start_all(scene, "a", "b")
        log = await make_log(scene, log_suggested_to(a))
        await a.append(log, b"0")
        await a.ask(a.service.transfer_log(messages.TransferLog(log, "b"), a.due()))
        await asyncio.sleep(2.0)  # Until bookies know that all entries are confirmed.
        for consistency in (Consistency.COMMITTED, Consistency.BARRIER):
            asked = messages.GetTail(log, consistency)
            tail = await b.ask(b.service.get_tail(asked, b.due(0.6)))
            assert (tail.tail, tail.timestamp_us) == (1, 0)
        for hangs in (False, True):  # noqa: B007  # `search` looks at it.
            for server in (b, a):
                searched_s.clear()
                began_s, first_s = scene.world.now, math.inf

                async def watch(server: Serving = server) -> None:
                    nonlocal first_s
                    asked = messages.WatchTail(log, interval_ms=10, heartbeat_ms=2000)
                    async for tail in server.service.watch_tail(asked):
                        first_s = min(first_s, scene.world.now)
                        assert tail.tail == 1

                watching = server.begin(watch())
                await asyncio.sleep(10.0)
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
                assert 3 <= len(searched_s) <= 6
                assert first_s - began_s < 0.1

    play(story)


def test_size_of_an_open_segment_is_reported() -> None:
    """Truncation also reports the bytes that it frees, and those of cut segments that it keeps."""

    async def story(scene: Scene) -> None:
        a, b = await start_all(scene, "a", "b")
        log = await make_log(scene, log_suggested_to(a))
        for _ in range(10):
            await a.append(log, bytes(1000))
        await asyncio.sleep(2.0)  # Until bookies know that all entries are confirmed.

        async def sizes(server: Serving) -> list[tuple[int, int]]:
            request = messages.ListSegments(log)
            found = await server.ask(server.service.list_segments(request, server.due()))
            state = await server.ask(server.service.get_log(messages.GetLog(log), server.due()))
            assert state.bytes == sum(each.bytes for each in found.segments)
            return [(each.bytes, each.records) for each in found.segments]

        written = await sizes(a)
        assert await sizes(b) == written
        scene.set_bookies(is_hung=True)
        assert await sizes(a) == written
        asked_at = scene.world.now
        request = messages.ListSegments(log)
        found = await b.ask(b.service.list_segments(request, b.due()))
        assert (found.segments[0].bytes, scene.world.now - asked_at < 2.0) == (0, True)
        scene.set_bookies(is_hung=False)
        ((size, records),) = written
        assert (10_000 < size < 15_000, records) == (True, 10)
        cut = messages.Truncate(log, at(5), dry_run=True)
        planned = await a.ask(a.service.truncate(cut, a.due()))
        assert (planned.freed_bytes, planned.kept_bytes) == (0, size // 2)
        cut = messages.Truncate(log, at(10), force_roll=True)
        done = await a.ask(a.service.truncate(cut, a.due()))
        assert (done.freed_bytes, done.kept_bytes) == (size, 0)
        assert [each[1] for each in await sizes(a)] == [0]

    play(story)


def test_bounded_reads_stop_at_their_bounds() -> None:
    async def story(scene: Scene) -> None:
        a, b = await start_all(scene, "a", "b")
        log = log_suggested_to(a)
        await scene.nodes.ensure(log, QUICK_ROLLS)
        await a.append(log, *numbers(10))
        await a.append(log, *numbers(10, 10))
        for server in (a, b):
            request = ReadStream(log, at(3), until_offset=offset(15))
            async with server.events(request) as events:
                assert await take(events, 12) == numbers(12, 3)
                assert await until(events, Stopped) == Stopped(offset(15))
            request = ReadStream(log, at(20), at_tail=AtTail.STOP)
            async with server.events(request) as events:
                assert await until(events, Stopped) == Stopped(offset(20))
            for at_tail in (AtTail.STOP, AtTail.STOP_AT_BARRIER):
                if at_tail is AtTail.STOP_AT_BARRIER and server is b:
                    continue  # Only the owner can confirm a barrier.
                request = ReadStream(log, at(15), until_offset=offset(18), at_tail=at_tail)
                async with server.events(request) as events:
                    begins = await anext(events)
                    assert isinstance(begins, Progress)
                    assert (begins.position, begins.head, begins.tail) == (15, 0, 20)
                    assert begins.lag_records == 5
                    assert await take(events, 3) == numbers(3, 15)
                    assert await until(events, Stopped) == Stopped(offset(18))
            request = ReadStream(log, at(5), until_offset=offset(3))
            async with server.events(request) as events:
                await refused(take(events, 1), InvalidRequest)
            answer = await server.ask(
                server.service.read(messages.Read(log, at(3), records_max=4), server.due())
            )
            assert (answer.first_offset, answer.next_offset, answer.tail) == (3, 7, 20)
            answer = await server.ask(server.service.read(messages.Read(log, at(20)), server.due()))
            assert (answer.blocks, answer.next_offset) == ((), 20)
        await a.ask(a.service.truncate(messages.Truncate(log, at(10)), a.due()))
        for server in (a, b):
            request = ReadStream(log, Earliest(), until_offset=offset(5))
            async with server.events(request) as events:
                assert await anext(events) == Stopped(offset(10))  # The whole range is truncated.

    play(story)


def test_read_waits_for_a_record_or_its_time_limit() -> None:
    async def story(scene: Scene) -> None:
        a, b = await start_all(scene, "a", "b")
        log = await make_log(scene, log_suggested_to(a))
        await a.append(log, b"0")
        for number, server in enumerate((a, b), 1):
            request = messages.Read(log, at(number), wait_ms=10_000)
            reading = server.begin(server.service.read(request, server.due()))
            await asyncio.sleep(1.0)
            assert not reading.done()
            await a.append(log, b"more")
            answer = await scene.within(reading)
            assert (answer.first_offset, answer.next_offset) == (number, number + 1)
        asked_at = scene.world.now
        request = messages.Read(log, Latest(), wait_ms=500)
        answer = await b.ask(b.service.read(request, b.due()))
        assert answer.blocks == ()
        assert 0.4 < scene.world.now - asked_at < 1.0

    play(story)


@pytest.mark.parametrize("seed", range(3))
def test_random_failures_keep_each_record_read_once_and_in_order(seed: int) -> None:
    """RL1, RL5: through rolls, take-overs and truncation; three readers start at the head. Each
    stream is read from any server, which may be killed.
    """

    async def story(scene: Scene) -> None:
        chance = scene.world.random("story")
        servers = a, b, _ = await start_all(scene, "a", "b", "c")
        log = log_suggested_to(a)
        await scene.nodes.ensure(log, QUICK_ROLLS)
        client = Client(scene, a, b)
        written = broken = 0
        streams = dict.fromkeys("abc", 0)
        is_over = is_done = False

        async def write() -> None:
            nonlocal written
            while not is_over:
                await client.append(log, b"%d" % written)
                written += 1
                await asyncio.sleep(chance.uniform(0, 0.02))

        async def read() -> int:
            """Reads from the head, and resumes on another server when the log or the server is gone."""
            nonlocal broken
            position: Offset | None = None
            while not is_done or (position or 0) < written:
                start = Earliest() if position is None else at(position)
                request = ReadStream(log, start, on_truncated=OnTruncated.SKIP)
                server = chance.choice(
                    [each for each in servers if each.node.is_running and each.takes_calls]
                )
                streams[server.name] += 1
                async with server.events(request) as events:
                    position = await read_on(events, position or Offset(0))
            return position or 0

        async def read_on(events: AsyncIterator[ReadEvent], position: Offset) -> Offset:
            """Reads to the end of the stream, or until all written records are read."""
            nonlocal broken
            while not is_done or position < written:
                try:
                    event = await anext(events)
                except (ConnectionLost, Unavailable):
                    broken += 1
                    await asyncio.sleep(0.01)
                    return position
                if isinstance(event, Gap):
                    assert event.start == position
                    position = event.end
                elif isinstance(event, Records):
                    expected = numbers(event.next_offset - position, position)
                    assert event.base_offset == position
                    assert values_of(event) == expected
                    position = event.next_offset
                elif isinstance(event, Moving):
                    assert event.resume_offset == position
                    return position
                if chance.random() < 0.01:
                    await asyncio.sleep(chance.uniform(0, 2.0))
                if chance.random() < 0.02:
                    return position  # Goes on at another server.
            return position

        writing = asyncio.ensure_future(write())
        reading = [asyncio.ensure_future(read()) for _ in range(3)]
        for _ in range(8):
            await asyncio.sleep(chance.uniform(0.2, 1.5))
            victim = chance.choice(servers[:2])
            if chance.random() < 0.5:
                victim.node.kill()
                await asyncio.sleep(chance.uniform(0.0, 2.0))
                await victim.start()
            else:
                for server in (a, b):
                    try:
                        request = messages.Truncate(log, at(max(written - 20, 0)))
                        await server.ask(server.service.truncate(request, server.due()))
                    except RollbookError:
                        pass
        is_over = True
        await scene.within(writing)
        is_done = True
        assert await scene.within(asyncio.gather(*reading)) == [written] * 3
        assert broken
        assert all(streams.values())

    play(story, seed=seed)


def test_reader_cancelled_while_leaving_a_ledger_stops_it() -> None:
    """A cancelled request must not keep the ledger whose read-ahead is being dropped."""

    async def story(scene: Scene) -> None:
        a, b = await start_all(scene, "a", "b")
        log = log_suggested_to(a)
        await scene.nodes.ensure(log, LogConfig())
        for _ in range(24):
            await a.append(log, bytes(100_000))  # More than one read fetches.
        reads = b.service._reads

        async def read() -> None:
            async with reads._reader(messages.Read(log, Earliest()), offset(0), "") as reader:
                assert isinstance(await reader.next(), Records)
                ledger = reader._ledger
                assert ledger is not None
                leaving = asyncio.get_running_loop().create_task(reader._leave_ledger())
                await asyncio.sleep(0)
                leaving.cancel()
                await asyncio.gather(leaving, return_exceptions=True)
                assert ledger.is_stopped

        await b.ask(read())

    play(story)
