"""Appends, reads and administration of a log through the asynchronous client."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from rollbook.api.client.async_client import connect
from rollbook.api.client.reader import RecordBatch, Tail
from rollbook.logservice import messages
from rollbook.logservice.core.record_block import Record
from rollbook.logservice.ids import Offset
from rollbook.logservice.log_config import LogConfig, WriterMode
from rollbook.proto.errors import (
    BadConfig,
    Guarded,
    InvalidRequest,
    LogExists,
    LogSealed,
    MetadataConflict,
    NoSuchCursor,
    NoSuchLog,
    OffsetMismatch,
    StaleEpoch,
    Truncated,
    WriterHeld,
)
from tests.messages import raises_message
from tests.unit.api.client.conftest import Site


async def test_records_are_appended_and_read(site: Site) -> None:
    log = await site.client("a").open("orders", create=True)
    ack = await log.append(b"one", key=b"k", headers={"h": b"v"}, event_time_us=7)
    assert (ack.first_offset, ack.next_offset) == (0, 1)
    ack = await log.append_many([b"two", b"three"], keys=[None, b"x"])
    assert (ack.first_offset, ack.next_offset) == (1, 3)
    records = [record async for record in log.read()]
    assert [(r.offset, r.value, r.key) for r in records] == [
        (0, b"one", b"k"),
        (1, b"two", None),
        (2, b"three", b"x"),
    ]
    assert (dict(records[0].headers), records[0].event_time_us) == ({"h": b"v"}, 7)
    assert [r.value async for r in log.read(-2, 3)] == [b"two", b"three"]
    assert [b.values() async for b in log.read_batches(2)] == [[b"three"]]
    assert [b.values() async for b in log.read_batches(1, 2)] == [[b"two"]]


@pytest.mark.parametrize("values", [["text"], [b"x", "text"], "text"])
async def test_values_that_are_not_bytes_are_refused_with_advice(site: Site, values: Any) -> None:
    log = await site.client("a").open("orders", create=True)
    with pytest.raises(TypeError, match=r"a record is bytes, not str: call \.encode\(\)"):
        await log.append_many(values)
    with pytest.raises(TypeError, match="a key is bytes, not int"):
        await log.append_many([b"a", b"b"], keys=[None, 7])  # type: ignore[list-item]  # Invalid.
    with pytest.raises(TypeError, match="a header is bytes, not NoneType"):
        await log.append(b"a", headers={"h": None})  # type: ignore[dict-item]  # Invalid.
    with pytest.raises(TypeError, match="a record is bytes, not NoneType"):
        await log.append(None)  # type: ignore[arg-type]  # Invalid.
    assert (await log.append(b"x")).first_offset == 0


async def test_all_appends_encode_text_and_datetimes_alike(site: Site) -> None:
    time, key = datetime(2026, 1, 31, 12, tzinfo=UTC), "k\u00e9y"
    headers: dict[str, str | bytes] = {"h": "v", "b": b"b"}
    log = await site.client("a").open("orders", create=True)
    await log.append(b"1", key=key, headers=headers, event_time=time)
    await log.append_many([b"2"], keys=[key], headers=[headers], event_times=[time])
    async with log.writer() as writer:
        writer.submit(b"3", key=key, headers=headers, event_time=time)
        await writer.send(b"4", key=key, headers=headers, event_time=time)
        for wrong in (
            {"event_time": time, "event_time_us": 1},
            {"event_time": time.replace(tzinfo=None)},
            {"event_time": 0},
            {"event_time": "2026-01-31"},
            {"event_time": time.date()},
        ):
            with pytest.raises(InvalidRequest):
                writer.submit(b"x", **wrong)
        with raises_message(InvalidRequest) as caught:
            await log.append(b"x", event_time=5)  # type: ignore[arg-type]  # Untyped programs can.
        assert "event_time_us=" in caught.value.next_step
        with raises_message(InvalidRequest):
            await log.find(timestamp=5)  # type: ignore[arg-type]  # Untyped programs can.
        with raises_message(InvalidRequest):
            writer.submit(b"x", key="\ud800")
    found = [record async for record in log.read()]
    assert [each.value for each in found] == [b"1", b"2", b"3", b"4"]
    for each in found:
        assert (each.key, dict(each.headers)) == (key.encode(), {"h": b"v", "b": b"b"})
        assert each.event_time == time
        assert each.timestamp.timestamp() == pytest.approx(each.timestamp_us / 1e6)


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (("",), ["a/one", "a/two", "default/ten"]),
        (("*",), ["a/one", "a/two", "default/ten"]),
        (("a",), ["a/one", "a/two"]),
        (("a/",), ["a/one", "a/two"]),
        (("a/*",), ["a/one", "a/two"]),
        (("a/t*",), ["a/two"]),
        (("t*",), ["default/ten"]),
        (("a", "o"), ["a/one"]),
    ],
)
async def test_logs_are_listed_by_pattern(
    site: Site, said: tuple[str, ...], meant: list[str]
) -> None:
    client = site.client("a")
    for name in ("a/one", "a/two", "ten"):
        await client.open(name, create=True)
    assert [str(name) async for name in client.logs(*said)] == meant


@pytest.mark.parametrize("said", [("a/b",), ("a/*b*",), ("*/b*",), ("a/b*", "c")])
async def test_invalid_log_pattern_is_refused(site: Site, said: tuple[str, ...]) -> None:
    with pytest.raises(InvalidRequest):
        await anext(site.client("a").logs(*said))


async def test_tail_can_be_polled_and_ends_by_its_timeout(site: Site) -> None:
    log = await site.client("a").open("orders", create=True)
    tail = log.tail("earliest", timeout=0.05)
    assert await tail.poll(0) is None
    assert [record async for record in tail] == []
    await log.append_many([b"1", b"2", b"3"])
    first = await tail.poll(30)
    assert first is not None
    assert first.value == b"1"
    async for record in tail:  # The rest of the batch stays in the tail.
        assert record.value == b"2"
        break
    assert [record.value async for record in tail] == [b"3"]
    assert not tail.is_over
    await log.seal()
    assert await tail.poll(30) is None
    assert tail.is_over


async def test_a_tail_closed_by_another_task_ends(site: Site) -> None:
    log = await site.client("a").open("orders", create=True)

    async def iterate(tail: Tail) -> Record | None:
        async for record in tail:
            return record
        return None

    for wait in (Tail.poll, iterate):
        tail = log.tail()
        waits = asyncio.create_task(wait(tail))
        await asyncio.sleep(0)  # The task waits now.
        await tail.aclose()
        async with asyncio.timeout(30):
            assert await waits is None
        assert tail.is_over
        assert await tail.poll() is None


async def test_loop_that_closes_its_tail_ends(site: Site) -> None:
    log = await site.client("a").open("orders", create=True)
    await log.append_many([b"1", b"2", b"3"])
    seen = []
    tail = log.tail("earliest")
    async for record in tail:
        seen.append(record.value)
        await tail.aclose()
    assert seen == [b"1"]


async def test_missing_cursor_returns_the_default(site: Site) -> None:
    log = await site.client("a").open("orders", create=True)
    assert await log.cursor("none").get(None) is None
    assert await log.cursor("none").get(default=7) == 7
    await log.cursor("some").commit(0)
    found = await log.cursor("some").get(default=None)
    assert found is not None
    assert found.offset == 0


async def test_record_with_an_idempotency_key_is_appended_once(site: Site) -> None:
    log = await site.client("a").open("orders", create=True)
    first = await log.append(b"x", idempotency_key="payment-1")
    again = await log.append(b"x", idempotency_key="payment-1")
    assert (again.first_offset, again.is_duplicate) == (first.first_offset, True)
    assert not (await log.append(b"x", idempotency_key="payment-2")).is_duplicate
    for wrong in ("", "k" * 60, "\u00e9", 7):
        with raises_message(InvalidRequest):
            await log.append(b"x", idempotency_key=wrong)  # type: ignore[arg-type]  # One is a number.


async def test_an_address_needs_no_scheme(site: Site) -> None:
    async with connect(site.cluster.addresses["a"]) as client:
        assert client.owners.servers == (site.cluster.addresses["a"],)
        assert (await client.limits()).record_bytes_max
    for nonsense in ("", "http://a:1", "://a:1"):
        with pytest.raises(BadConfig):
            connect(nonsense)


async def test_a_writer_needs_no_flush(site: Site) -> None:
    log = await site.client("a").open("orders", create=True)
    async with log.writer() as writer:
        submissions = [writer.submit(b"%d" % index) for index in range(1000)]
        assert await submissions[500] == 500
        assert [await each for each in submissions] == list(range(1000))
        assert submissions[3].done()
        assert submissions[3].result() == 3
        alone = writer.submit(b"alone")
        assert await alone == 1000
    assert site.cluster.log(log.name).tail == 1001
    assert len(site.cluster.log(log.name).blocks) < 10


async def test_submits_beyond_the_window_keep_their_order(site: Site) -> None:
    log = await site.client("a", batch_bytes_max=4096, window_bytes=16384).open("x", create=True)
    async with log.writer() as writer:
        submissions = [await writer.send(b"%04d" % index + bytes(96)) for index in range(5000)]
        await writer.flush()
        assert all(each.done() for each in submissions)
    values = [record.value[:4] async for record in log.read()]
    assert values == [b"%04d" % index for index in range(5000)]


async def test_followed_log_delivers_new_records(site: Site) -> None:
    log = await site.client("a").open("orders", create=True)
    await log.append(b"before")
    seen: list[bytes] = []
    is_caught_up = asyncio.Event()

    async def follow() -> None:
        async for event in log.events():
            if isinstance(event, RecordBatch):
                seen.extend(event.values())
            elif isinstance(event, messages.CaughtUp):
                is_caught_up.set()

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(follow())
        await is_caught_up.wait()
        for index in range(10):
            await log.append(b"%d" % index)
        assert await log.seal() == 11
    assert seen == [b"%d" % index for index in range(10)]
    with pytest.raises(LogSealed) as caught:
        await log.append(b"late")
    assert caught.value.ids["tail"] == 11


async def test_append_conditions_are_checked(site: Site) -> None:
    log = await site.client("a").open("orders", create=True)
    await log.append(b"a", must_be_empty=True)
    with pytest.raises(OffsetMismatch) as caught:
        await log.append(b"b", expect=0)
    assert caught.value.ids == {"expected": 0, "tail": 1}
    await log.append(b"b", expect=1)
    grant = await log.acquire_writer("me")
    assert (grant.writer_epoch, grant.fence_offset) == (1, 2)
    with pytest.raises(WriterHeld):
        await log.acquire_writer("another")
    with pytest.raises(StaleEpoch):
        await log.append(b"c", epoch=0)
    await log.append(b"c", epoch=grant.writer_epoch)
    async with log.writer(epoch=grant.writer_epoch) as writer:
        assert await writer.submit(b"d") == 3
    await log.renew_writer(grant.writer_epoch)
    await log.release_writer(grant.writer_epoch)


async def test_protected_cursor_limits_truncation(site: Site) -> None:
    log = await site.client("a").open("orders", create=True)
    await log.append_many([b"%d" % index for index in range(10)])
    cursor = log.cursor("etl")
    with pytest.raises(NoSuchCursor):
        await cursor.get()
    assert (await cursor.commit(5, version=-1)).version == 0
    with pytest.raises(MetadataConflict):
        await cursor.commit(6, version=-1)
    assert (await cursor.mark(5, b"blob", version=0)).is_protected
    assert [record.offset async for record in log.read("cursor:etl")] == [5, 6, 7, 8, 9]
    assert [each.name for each in await log.cursors()] == ["etl"]
    plan = await log.truncate(8, plan=True)
    assert (plan.new_head, plan.guards) == (8, ("etl",))
    with pytest.raises(Guarded):
        await log.truncate(8)
    assert (await log.truncate(5)).new_head == 5
    assert await log.head_offset() == 5
    with pytest.raises(Truncated) as caught:
        [record async for record in log.read(0)]
    assert caught.value.ids["head"] == 5
    events = log.events(0, at_tail=messages.AtTail.STOP, skip_truncated=True)
    progress, gap = await events.next(), await events.next()
    assert isinstance(progress, messages.Progress)
    assert (progress.position, progress.tail) == (0, 10)
    assert gap == messages.Gap(messages.GapKind.TRUNCATED, Offset(0), Offset(5))
    await cursor.delete()
    assert await log.cursors() == ()
    assert await log.find("-3") == 7


async def test_administrative_calls_take_effect(site: Site) -> None:
    client = site.client("a")
    with pytest.raises(NoSuchLog):
        await client.open("team/orders")
    config = LogConfig(
        retention_age_s=60, labels=(("team", "x"),), writer_mode=WriterMode.EXCLUSIVE
    )
    log = await client.open("team/orders", create=config)
    assert log.config == config
    with pytest.raises(LogExists):
        await client.open("team/orders", create=LogConfig())
    state = await log.update(retention_age_s=None, description="all orders")
    assert state.config.retention_age_s is None
    assert state.config.labels == (("team", "x"),)
    await log.update(record_bytes_max=1000)
    state = await log.update(batch_bytes_max=2000)  # Less than the default `record_bytes_max`.
    assert (state.config.record_bytes_max, state.config.batch_bytes_max) == (1000, 2000)
    with pytest.raises(BadConfig):
        await log.update(record_bytes_max=2001)
    assert await log.roll() == 1
    assert (await log.segments())[0].state is messages.SegmentState.OPEN
    assert (await log.journal())[0].details == {"ledger_id": "7"}
    for index in range(5):
        await client.open(f"team/n{index}", create=True)
    assert [str(name) async for name in client.logs("team", "n")] == [
        f"team/n{index}" for index in range(5)
    ]
    assert (await client.lookup(["team/orders"]))[0].is_owner
    assert [view.server_id for view in await client.servers()] == ["a"]
    assert (await client.stats()).stats == {"appends_total": 3.0}
    assert (await client.limits()).block_records_max == 10_000
    assert await client.drain("a") == 6
    await client.delete("team/orders")
    with pytest.raises(NoSuchLog):
        await log.state()
