"""A reader resumes at the exact offset, notices missing records and reports stalls."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from rollbook.api.client.reader import EventReader, RecordBatch
from rollbook.logservice import messages
from rollbook.logservice.core.record_block import Codec, pack_block, stamped
from rollbook.logservice.ids import Offset
from rollbook.logservice.position_syntax import AtOffset
from rollbook.proto.addresses import parse_address
from rollbook.proto.errors import (
    BadFrame,
    BlockCorrupt,
    DataLost,
    EntryUnavailable,
    ReaderStalled,
    RollbookError,
    Truncated,
)
from tests.unit.api.client.conftest import Site

Script = Callable[[messages.ReadStream], AsyncIterator[messages.ReadEvent]]


def block(offset: int, *values: bytes) -> bytes:
    return stamped(
        pack_block(values), base_offset=offset, base_timestamp_us=1, owner_epoch=1, writer_epoch=0
    )


def records(offset: int, *values: bytes) -> messages.Records:
    end = Offset(offset + len(values))
    return messages.Records((block(offset, *values),), Offset(offset), end)


def scripted(*runs: list[messages.ReadEvent | RollbookError]) -> Script:
    """Each stream sends the next run, the last run repeats; then the stream is silent."""
    left = list(runs)

    async def tell(request: messages.ReadStream) -> AsyncIterator[messages.ReadEvent]:
        run = left.pop(0) if len(left) > 1 else left[0]
        for each in run:
            if isinstance(each, RollbookError):
                raise each
            yield each
        await asyncio.sleep(600)

    return tell


async def reader_of(
    site: Site,
    script: Script | None,
    at_tail: messages.AtTail = messages.AtTail.FOLLOW,
    **settings: float,
) -> EventReader:
    site.cores["a"].events = script
    log = await site.client("a", **settings).open("orders", create=True)
    return log.events(0, at_tail=at_tail)


async def test_reader_resumes_at_its_position(site: Site) -> None:
    script = scripted(
        [records(0, b"a", b"b"), EntryUnavailable()],
        [records(2, b"c"), EntryUnavailable()],
        [messages.Stopped(Offset(3))],
    )
    reader = await reader_of(site, script)
    seen = [event async for event in reader]
    assert [e.values() for e in seen if isinstance(e, RecordBatch)] == [[b"a", b"b"], [b"c"]]
    assert seen[-1] == messages.Stopped(Offset(3))
    asked = [each for each in site.cores["a"].asked if isinstance(each, messages.ReadStream)]
    assert [str(each.start) for each in asked] == ["0", "2", "3"]


@pytest.mark.parametrize("at_tail", [messages.AtTail.STOP, messages.AtTail.STOP_AT_BARRIER])
async def test_reader_that_resumes_keeps_its_first_end(
    site: Site, at_tail: messages.AtTail
) -> None:
    """With a new end from each resumed stream, a read of a growing log would never end."""
    waits_for_quota = messages.Progress.held_back(Offset(0), Offset(0), Offset(1))
    begins = messages.Progress(Offset(0), Offset(0), Offset(2), 2, 0, 0, messages.WaitsFor.FETCHING)
    heartbeat = messages.Progress(
        Offset(1), Offset(0), Offset(9), 8, 0, 0, messages.WaitsFor.REPLICA
    )
    reader = await reader_of(
        site,
        scripted(
            [waits_for_quota, begins, records(0, b"a"), heartbeat, EntryUnavailable()],
            [records(1, b"b"), messages.Stopped(Offset(2))],
        ),
        at_tail=at_tail,
    )
    seen = [event async for event in reader]
    values = [value for each in seen if isinstance(each, RecordBatch) for value in each.values()]
    assert values == [b"a", b"b"]
    asked = [each for each in site.cores["a"].asked if isinstance(each, messages.ReadStream)]
    wanted = [(each.start, each.until_offset, each.at_tail) for each in asked]
    resumed = (AtOffset(Offset(1)), Offset(2), messages.AtTail.FOLLOW)
    assert wanted == [(AtOffset(Offset(0)), None, at_tail), resumed]


async def test_tail_survives_server_restarts(site: Site) -> None:
    log = await site.client("a").open("orders", create=True)
    seen: list[int] = []

    async def follow() -> None:
        async for record in log.tail("earliest"):
            seen.append(record.offset)  # noqa: PERF401  # The test reads `seen` in between.

    following = asyncio.ensure_future(follow())
    address = parse_address(site.cluster.addresses["a"], "it")
    for start in range(0, 30, 10):
        for _ in range(10):
            await log.append(b"x")
        async with asyncio.timeout(30):
            while len(seen) < start + 10:
                await asyncio.sleep(0.005)
        await site.stop("a")
        await site.start("a", address)
    await log.seal()
    async with asyncio.timeout(30):
        await following
    assert seen == list(range(30))


async def test_reader_follows_a_moved_log(site: Site) -> None:
    await site.start("b")
    there = site.cluster.addresses["b"]
    reader = await reader_of(
        site, scripted([records(0, b"a"), messages.Moving(there, Offset(1))], [])
    )
    site.cores["b"].events = scripted([records(1, b"b"), messages.Sealed(Offset(2))])
    seen = [event async for event in reader]
    assert [e.values() for e in seen if isinstance(e, RecordBatch)] == [[b"a"], [b"b"]]
    assert seen[-1] == messages.Sealed(Offset(2))


@pytest.mark.parametrize(
    "event",
    [
        records(3, b"x"),
        records(1, b"x"),
        messages.Moving("", Offset(5)),
        messages.CaughtUp(Offset(9)),
        messages.Gap(messages.GapKind.TRUNCATED, Offset(4), Offset(6)),
        messages.Records((block(2, b"x"),), Offset(2), Offset(4)),
        messages.Records((block(2, b"x"), block(4, b"y")), Offset(2), Offset(5)),
        messages.Records((block(3, b"x", b"y"),), Offset(2), Offset(4)),
        messages.Records((block(2, b"x"), block(3, b"y")), Offset(2), Offset(3)),
        messages.Records((block(1, b"x"), block(2, b"y")), Offset(2), Offset(3)),
        messages.Records((), Offset(2), Offset(2)),
    ],
    ids=lambda event: type(event).__name__,
)
async def test_holes_and_repetitions_are_noticed(site: Site, event: messages.ReadEvent) -> None:
    reader = await reader_of(site, scripted([records(0, b"a", b"b"), event]))
    assert await reader.next()
    with pytest.raises(BadFrame):
        await reader.next()
    await reader.aclose()


async def test_invalid_block_is_noticed(site: Site) -> None:
    reader = await reader_of(
        site, scripted([messages.Records((b"nonsense" * 20,), Offset(0), Offset(1))])
    )
    with pytest.raises((BlockCorrupt, BadFrame)):
        await reader.next()
    await reader.aclose()


@pytest.mark.parametrize("size", [0, 8, 39, 71])
async def test_block_that_is_too_short_is_noticed(site: Site, size: int) -> None:
    short = messages.Records((block(0, b"a")[:size],), Offset(0), Offset(1))
    reader = await reader_of(site, scripted([short]))
    with pytest.raises((BlockCorrupt, BadFrame)):
        await reader.next()
    await reader.aclose()


async def test_silent_server_is_reported_as_stalled(site: Site) -> None:
    reader = await reader_of(site, scripted([records(0, b"a")], []))
    assert await reader.next()
    reader._patience_s, reader._silence_s = 0.1, 0.2
    with pytest.raises(ReaderStalled) as caught:
        await reader.next()
    assert caught.value.ids["position"] == 1
    with pytest.raises(ReaderStalled):  # A second call waits again.
        await reader.next()
    await reader.aclose()


async def test_reader_moves_from_a_silent_server_to_another(site: Site) -> None:
    await site.start("b")
    site.cores["a"].events = scripted([records(0, b"a")], [])
    site.cores["b"].events = scripted([records(1, b"b")])
    log = await site.client("a", "b", heartbeat_s=60).open("x", create=True)
    reader = log.events(0)
    for value in (b"a", b"b"):
        event = await reader.next()
        assert isinstance(event, RecordBatch)
        assert event.values() == [value]
        reader._due = 0.0  # Pretends that the server was silent for too long.
    await reader.aclose()


async def test_lag_that_does_not_shrink_is_reported(site: Site) -> None:
    stuck = messages.Progress(Offset(0), Offset(0), Offset(9), 9, 9, 9, messages.WaitsFor.REPLICA)
    reader = await reader_of(site, scripted([stuck] * 9))
    for _ in range(3):
        assert await reader.next() == stuck
    with pytest.raises(ReaderStalled) as caught:
        await reader.next()
    assert caught.value.ids["waits_for"] == "replica"
    await reader.aclose()


async def test_log_without_a_server_is_reported_as_stalled(site: Site) -> None:
    reader = await reader_of(site, None, heartbeat_s=2.0)
    await site.stop("a")
    with pytest.raises(ReaderStalled) as caught:
        await reader.next()
    assert isinstance(caught.value.__cause__, RollbookError)
    await reader.aclose()


async def test_permanent_error_ends_the_reader(site: Site) -> None:
    reader = await reader_of(site, scripted([records(0, b"a"), Truncated(head=7)]))
    assert await reader.next()
    with pytest.raises(Truncated) as caught:
        await reader.next()
    assert caught.value.ids["head"] == 7
    assert await reader.next() is None


async def test_lost_records_are_reported_and_not_skipped(site: Site) -> None:
    gap = messages.Gap(messages.GapKind.LOST, Offset(1), Offset(4))
    site.cores["a"].events = scripted([records(0, b"a"), gap, records(4, b"b")])
    log = await site.client("a").open("orders", create=True)
    told = log.tail(0)
    assert (await anext(told)).value == b"a"
    with pytest.raises(DataLost) as caught:
        await anext(told)
    assert caught.value.ids == {"start": 1, "end": 4}


async def test_cancelled_wait_misses_no_event(site: Site) -> None:
    log = await site.client("a").open("orders", create=True)
    reader = log.events("latest")
    assert isinstance(await reader.next(), messages.CaughtUp)
    waiting = asyncio.ensure_future(reader.next())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await log.append(b"x")
    event = await reader.next()
    assert isinstance(event, RecordBatch)
    assert event.values() == [b"x"]
    await reader.aclose()


async def test_large_event_is_split_into_bounded_batches(site: Site) -> None:
    """LB3: older servers bound stored bytes only, and a few hundred can unpack to megabytes."""
    packed = pack_block([bytes(1024 * 1024)] * 3, codec=Codec.ZSTD)
    blocks = tuple(
        stamped(packed, base_offset=at, base_timestamp_us=1, owner_epoch=1, writer_epoch=0)
        for at in (0, 3, 6)
    )
    event = messages.Records(
        blocks, Offset(1), Offset(8)
    )  # The event leaves out the first and the last record of its blocks.
    reader = await reader_of(site, scripted([event, messages.Stopped(Offset(8))]))
    seen = [await reader.next() for _ in range(3)]
    batches = [each for each in seen if isinstance(each, RecordBatch)]
    assert [(each.base_offset, each.next_offset) for each in batches] == [(1, 3), (3, 6), (6, 8)]
    assert [record.offset for each in batches for record in each.records()] == list(range(1, 8))
    assert reader.position == 8
    assert await reader.next() == messages.Stopped(Offset(8))
