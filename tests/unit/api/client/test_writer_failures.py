"""After any failure, records are appended once and in order, or their outcome is reported."""

import asyncio
import socket
from collections.abc import Sequence

import pytest

from rollbook.api.client.producer_batch import Batch, Submission
from rollbook.logservice import messages
from rollbook.logservice.core.record_block import Block
from rollbook.logservice.ids import OwnerEpoch
from rollbook.logservice.messages import AppendResult
from rollbook.proto.addresses import parse_address
from rollbook.proto.errors import (
    ClientClosed,
    ConnectionLost,
    EntryTooLarge,
    InvalidRequest,
    LogSealed,
    OffsetMismatch,
    Outcome,
    Overloaded,
    OwnerChanging,
    OwnerLost,
    QuorumTimeout,
    RecordsUnacked,
    RollbookError,
    StaleEpoch,
    Throttled,
    WriterHeld,
)
from tests.unit.api.client.conftest import PATIENCE_S, Site, hurried
from tests.unit.api.grpc.fake_core import FakeCore, FakeStream


async def outcomes(submissions: list[Submission]) -> list[Outcome]:
    found = []
    for each in submissions:
        try:
            await each
            found.append(Outcome.APPLIED)
        except RollbookError as error:
            found.append(error.outcome)
    return found


async def until(condition: object) -> None:
    assert callable(condition)
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


def values_of(site: Site, name: str) -> list[bytes]:

    log = next(log for log in site.cluster.logs.values() if log.name.name == name)
    return [value for block in log.blocks for value in Block(block).values()]


async def test_client_follows_owner_hints(site: Site) -> None:
    await site.start("b")
    site.cluster.make("orders").owner = site.cluster.addresses["b"]
    log = await site.client("a").open("orders")
    site.cluster.logs[log.name].owner = site.cluster.addresses["a"]
    site.cluster.logs[log.name].owner_epoch = OwnerEpoch(2)
    assert (await log.append(b"x")).first_offset == 0  # The cached owner was stale.
    async with log.writer() as writer:
        assert await writer.submit(b"y") == 1
        site.cluster.logs[log.name].owner = site.cluster.addresses["b"]
        site.cluster.logs[log.name].owner_epoch = OwnerEpoch(3)
        submissions = [writer.submit(b"%d" % index) for index in range(100)]
        assert [await each for each in submissions] == list(range(2, 102))
    await log.truncate(5)
    assert site.cores["b"].asked[-1].log == log.name


async def test_one_address_is_enough_to_find_other_servers(site: Site) -> None:
    await site.start("b")
    log = await site.client("a").open("orders", create=True)
    async with log.writer() as writer:
        assert await writer.submit(b"x") == 0
        await site.stop("a")
        assert await writer.submit(b"y") == 1
    assert await log.tail_offset() == 2


async def test_stream_that_broke_while_idle_is_replaced(site: Site) -> None:
    """Otherwise an idle writer would submit to the broken stream and wait for a time-out."""
    client = site.client("a", attempt_s=3600, timeout_s=7200)
    log = await client.open("orders", create=True)
    address = parse_address(site.cluster.addresses["a"], "it")
    async with log.writer() as writer:
        assert await writer.submit(b"x") == 0
        line = client.append_streams.to(str(address))
        await site.stop("a")
        await until(lambda: line.failure is not None)
        await site.start("a", address)
        assert await writer.submit(b"y") == 1
        assert (await log.append(b"z")).first_offset == 2


async def test_records_in_doubt_after_a_crash_are_appended_once(site: Site) -> None:
    log = await site.client("a", batch_bytes_max=1024).open("orders", create=True)
    address = parse_address(site.cluster.addresses["a"], "it")
    async with log.writer() as writer:
        assert await writer.submit(b"first") == 0
        site.cores["a"].holds.add("append_stream")  # Records are appended but not acked.
        submissions = [writer.submit(b"%03d" % index + bytes(97)) for index in range(100)]
        await until(lambda: site.cluster.logs[log.name].tail > 1)
        await site.stop("a")
        site.cores["a"].holds.clear()
        await site.start("a", address)
        assert [await each for each in submissions] == list(range(1, 101))
    assert values_of(site, "orders") == [b"first"] + [
        b"%03d" % index + bytes(97) for index in range(100)
    ]


async def test_single_appends_are_appended_once_despite_a_crash(site: Site) -> None:
    await site.start("b")
    log = await site.client("a", "b").open("orders", create=True)
    site.cores["a"].holds.add("append_stream")
    appends = [asyncio.ensure_future(log.append(b"%d" % index)) for index in range(10)]
    await until(lambda: site.cluster.logs[log.name].tail == 10)
    await site.stop("a")
    acks = await asyncio.gather(*appends)
    assert sorted(ack.first_offset for ack in acks) == list(range(10))
    assert all(ack.is_duplicate for ack in acks)


@pytest.mark.parametrize(
    "error",
    [
        Overloaded(retry_after_ms=20),
        OwnerChanging(),
        Throttled(),
        OwnerLost(epoch=3),
        QuorumTimeout(),
    ],
    ids=lambda error: error.code.reason,
)
async def test_transient_errors_are_retried_in_order(site: Site, error: RollbookError) -> None:
    log = await site.client("a", batch_bytes_max=1024).open("orders", create=True)
    async with log.writer() as writer:
        assert await writer.submit(b"first") == 0
        site.cores["a"].failures["append_stream"].append(error)
        submissions = [writer.submit(b"%03d" % index + bytes(97)) for index in range(100)]
        assert [await each for each in submissions] == list(range(1, 101))
    assert values_of(site, "orders")[1:] == [b"%03d" % index + bytes(97) for index in range(100)]


async def test_oversized_append_does_not_break_the_shared_stream(
    site: Site,
) -> None:
    log = await site.client("a").open("orders", create=True)
    others = [asyncio.create_task(log.append(b"x")) for _ in range(10)]
    await asyncio.sleep(0)
    with pytest.raises(EntryTooLarge) as caught:
        await log.append(bytes(9 << 20))
    assert caught.value.outcome is Outcome.NOT_APPLIED
    acks = await asyncio.gather(*others)
    assert not any(ack.is_duplicate for ack in acks)  # No append was sent twice.


async def test_nothing_is_appended_after_a_refused_batch(site: Site) -> None:
    log = await site.client("a", batch_bytes_max=1024).open("orders", create=True)
    writer = log.writer()
    await writer.submit(b"first")
    site.cores["a"].failures["append_stream"].append(LogSealed(tail=1))
    submissions = [writer.submit(bytes(100)) for index in range(100)]
    assert await outcomes(submissions) == [Outcome.NOT_APPLIED] * 100
    with pytest.raises(LogSealed):
        await writer.flush()
    with pytest.raises(LogSealed) as caught:
        writer.submit(b"late")
    assert caught.value.ids["tail"] == 1
    with pytest.raises(LogSealed):
        await writer.ready()
    await writer.close()
    assert values_of(site, "orders") == [b"first"]
    async with log.writer() as another:  # The log itself still takes appends.
        assert await another.submit(b"second") == 1


def forget_producers(site: Site) -> None:
    for log in site.cluster.logs.values():
        log.producers.clear()


async def test_forgotten_producer_begins_a_new_epoch(site: Site) -> None:
    log = await site.client("a", batch_bytes_max=1024).open("orders", create=True)
    values = [b"%03d" % index + bytes(97) for index in range(100)]
    async with log.writer() as writer:
        await writer.submit(b"first")
        assert (await log.append(b"second")).first_offset == 1
        for _ in range(2):
            forget_producers(site)
            submissions = [writer.submit(value) for value in values]
            await asyncio.gather(*(each for each in submissions))
            assert not (await log.append(b"alone")).is_duplicate
    again = [*values, b"alone"]
    assert values_of(site, "orders") == [b"first", b"second", *again, *again]


async def test_forgotten_producer_does_not_repeat_doubtful_records(site: Site) -> None:
    log = await site.client("a").open("orders", create=True)
    writer = log.writer()
    await writer.submit(b"first")
    await log.append(b"second")
    address = parse_address(site.cluster.addresses["a"], "it")
    site.cores["a"].holds.add("append_stream")  # Records are appended but not acked.
    alone, submission = asyncio.ensure_future(log.append(b"alone")), writer.submit(b"sent")
    await until(lambda: site.cluster.logs[log.name].tail == 4)
    await site.stop("a")
    forget_producers(site)
    site.cores["a"].holds.clear()
    await site.start("a", address)
    assert await outcomes([submission]) == [Outcome.UNKNOWN]
    with pytest.raises(RollbookError) as caught:
        await alone
    assert caught.value.outcome is Outcome.UNKNOWN
    await writer.close()
    assert (await log.append(b"third")).first_offset == 4  # Later appends are not in doubt.
    assert sorted(values_of(site, "orders")[2:4]) == [b"alone", b"sent"]


async def test_refusal_after_a_doubt_keeps_the_outcome_unknown(site: Site) -> None:
    log = await site.client("a", batch_bytes_max=1024).open("orders", create=True)
    writer = log.writer()
    site.cores["a"].failures["append_stream"].extend([OwnerLost(), StaleEpoch(current_epoch=9)])
    submissions = [writer.submit(b"x")]
    with pytest.raises(StaleEpoch) as caught:
        await submissions[0]
    assert caught.value.outcome is Outcome.UNKNOWN
    assert not caught.value.retryable
    site.cores["a"].failures["append_stream"].extend([OwnerLost(), OffsetMismatch(tail=7)])
    with pytest.raises(OffsetMismatch) as mismatch:
        await log.append(b"x", expect=3)
    assert mismatch.value.outcome is Outcome.UNKNOWN
    assert mismatch.value.ids["tail"] == 7


@pytest.mark.parametrize("mode", list(messages.AcquireMode))
async def test_retry_after_a_lost_grant_gets_the_same_epoch(
    site: Site, mode: messages.AcquireMode
) -> None:
    """The holder must not be refused, wait or get a new epoch because of its own grant."""
    log = await site.client("a").open("wal", create=True)
    core = site.cores["a"]
    grants: list[messages.WriterGrant] = []

    async def lose_first_grant(request: messages.AcquireWriter, due: float) -> messages.WriterGrant:
        grants.append(await FakeCore.acquire_writer(core, request, due))
        if len(grants) == 1:
            raise ConnectionLost
        return grants[-1]

    core.acquire_writer = lose_first_grant  # type: ignore[method-assign]  # Loses one.
    granted = await log.acquire_writer("me", mode)
    assert [granted] * 2 == grants
    with pytest.raises(WriterHeld):  # A call without its attempt is another holder's.
        await log.acquire_writer("me")
    again = await log.acquire_writer("me", "steal", attempt="mine")
    assert again.writer_epoch == granted.writer_epoch + 1
    assert await log.acquire_writer("me", "fail", attempt="mine") == again
    with pytest.raises(WriterHeld):
        await log.acquire_writer("you", "fail", attempt="mine")
    core.failures["acquire_writer"].append(ConnectionLost())
    with pytest.raises(WriterHeld) as held:
        await log.acquire_writer("another")
    assert (held.value.ids["holder"], held.value.outcome) == ("me", Outcome.UNKNOWN)


async def test_deadline_errors_have_the_known_outcome(site: Site) -> None:
    client = site.client("a", batch_bytes_max=1024)
    log = await client.open("orders", create=True)
    await log.append(b"first")  # The connection exists, so submitted records are sent.
    site.cores["a"].holds.add("append_stream")
    with hurried(client, timeout_s=1, attempt_s=0.2):
        writer = log.writer()
        submissions = [writer.submit(bytes(100)) for index in range(100)]
        async with asyncio.timeout(PATIENCE_S):
            found = await outcomes(submissions)
    assert found[0] is Outcome.UNKNOWN
    assert found[-1] is Outcome.NOT_APPLIED  # The last record was never sent.
    with pytest.raises(QuorumTimeout, match="not acked within") as flushed:
        await writer.flush()
    assert flushed.value.outcome is Outcome.UNKNOWN  # Some of the records may be in the log.
    with pytest.raises(QuorumTimeout) as refused:
        writer.submit(b"behind the end")
    assert refused.value.outcome is Outcome.NOT_APPLIED
    before, known = site.cluster.logs[log.name].tail, Outcome.NOT_APPLIED
    async with asyncio.timeout(PATIENCE_S):
        while known is Outcome.NOT_APPLIED:  # A busy machine may not send it in time.
            assert site.cluster.logs[log.name].tail == before
            with pytest.raises(QuorumTimeout) as caught:
                await log.append(b"x", timeout_s=0.5)
            known = caught.value.outcome
    assert known is Outcome.UNKNOWN


async def test_unreachable_server_leaves_no_doubt(site: Site) -> None:
    client = site.client("a")
    log = await client.open("orders", create=True)
    await site.stop("a")
    await site.is_noticed(client, "a")
    with hurried(client, timeout_s=1):
        writer = log.writer()
        submission = writer.submit(b"x")
        with pytest.raises(QuorumTimeout) as caught:
            await submission
        assert caught.value.outcome is Outcome.NOT_APPLIED
        with pytest.raises(RollbookError) as single:
            await log.append(b"x")
        assert single.value.outcome is Outcome.NOT_APPLIED


async def test_append_waiting_for_a_connection_is_not_applied(site: Site) -> None:
    """A socket accepts the connection and never responds."""
    client = site.client("a")
    log = await client.open("orders", create=True)
    address = site.doors["a"].address
    await site.stop("a")
    await site.is_noticed(client, "a")
    with (
        socket.create_server((address.host, address.port)),
        hurried(client, timeout_s=1, attempt_s=0.3),
        pytest.raises(RollbookError) as caught,
    ):
        await log.append(b"x")
    assert caught.value.outcome is Outcome.NOT_APPLIED


@pytest.mark.parametrize("attempt_s", [0.3, PATIENCE_S])
async def test_submit_to_a_silent_server_is_not_applied(site: Site, attempt_s: float) -> None:
    client = site.client("a")
    log = await client.open("orders", create=True)
    address = site.doors["a"].address
    await site.stop("a")
    await site.is_noticed(client, "a")
    with (
        socket.create_server((address.host, address.port)),
        hurried(client, timeout_s=1, attempt_s=attempt_s),
    ):
        writer = log.writer()
        with pytest.raises(QuorumTimeout) as caught:
            await writer.submit(b"x")
        assert caught.value.outcome is Outcome.NOT_APPLIED
        with pytest.raises(QuorumTimeout) as flushed:
            await writer.flush()
    assert flushed.value.outcome is Outcome.NOT_APPLIED


async def test_cancelling_a_wait_cancels_no_record(site: Site) -> None:
    log = await site.client("a").open("orders", create=True)
    site.cores["a"].holds.add("append_stream")
    async with log.writer() as writer:
        submission = writer.submit(b"x")

        async def wait() -> int:
            return await submission

        waiting = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        waiting.cancel()
        assert (await asyncio.gather(waiting, return_exceptions=True))[0].__class__ is (
            asyncio.CancelledError
        )
        site.cores["a"].release()
        assert await submission == 0


async def test_closing_the_client_ends_all_waits(site: Site) -> None:
    client = site.client("a")
    log = await client.open("orders", create=True)
    site.cores["a"].holds.update(("append_stream", "get_tail"))
    writer = log.writer()
    submission = writer.submit(b"x")
    single = asyncio.ensure_future(log.append(b"y"))
    asked = asyncio.ensure_future(log.tail_offset())
    await until(lambda: site.cluster.logs[log.name].tail == 2)
    await until(lambda: any("GetTail" in str(type(each)) for each in site.cores["a"].asked))
    with pytest.raises(RecordsUnacked, match="1 of the submitted records"):
        await client.close(timeout_s=0)
    async with asyncio.timeout(30):
        assert await outcomes([submission]) == [Outcome.UNKNOWN]
        results = await asyncio.gather(single, asked, return_exceptions=True)
    assert all(isinstance(result, RollbookError) for result in results)
    with pytest.raises(ClientClosed):
        writer.submit(b"late")
    with pytest.raises(ClientClosed):
        await log.state()


async def test_invalid_record_is_refused_alone(site: Site) -> None:
    log = await site.client("a").open("orders", create=True)
    async with log.writer() as writer:
        before = writer.submit(b"before")
        for wrong in (
            {"headers": {"": b"v"}},
            {"event_time_us": 2**70},
            {"event_time_us": -(2**70)},
        ):
            with pytest.raises(InvalidRequest):
                writer.submit(b"x", **wrong)
        with pytest.raises(EntryTooLarge):
            writer.submit(b"x", key=bytes(3 << 20))
        after = writer.submit(b"after", event_time_us=7)
        assert [await before, await after] == [0, 1]
    assert values_of(site, "orders") == [b"before", b"after"]


async def test_changing_headers_after_submit_has_no_effect(site: Site) -> None:
    log = await site.client("a").open("orders", create=True)
    headers = {"good": b"v"}
    submission = log.writer().submit(b"x", headers=headers)
    headers[""] = b"v"
    await submission
    assert [record.headers async for record in log.read()] == [{"good": b"v"}]


async def test_failure_to_pack_a_batch_ends_its_writer(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    log = await site.client("a").open("orders", create=True)
    monkeypatch.setattr(Batch, "pack", fail)
    writer = log.writer()
    assert await outcomes([writer.submit(b"x"), writer.submit(b"y")]) == [Outcome.NOT_APPLIED] * 2
    with pytest.raises(InvalidRequest):
        await writer.flush()


async def test_failing_callback_is_reported_to_the_event_loop(site: Site) -> None:
    def fail(_: object) -> None:
        raise KeyError

    told = list[object]()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(type(context["exception"])))
    log = await site.client("a").open("orders", create=True)
    async with log.writer() as writer:
        writer.submit(b"x").add_done_callback(fail)
        await writer.flush()
        assert await writer.submit(b"y") == 1
    assert told == [KeyError]


async def test_invalid_results_of_a_server_are_retried(site: Site) -> None:
    """The server sends results out of order."""
    log = await site.client("a", batch_bytes_max=1024).open("orders", create=True)
    stream_of = site.cores["a"].open_append_stream
    mangled = 0

    def open_append_stream() -> FakeStream:
        stream = stream_of()
        results = stream.results

        async def reversed_results() -> Sequence[AppendResult]:
            nonlocal mangled
            found = await results()
            if len(found) > 1 and mangled < 3:
                mangled += 1
                return found[::-1]
            return found

        stream.results = reversed_results  # type: ignore[method-assign]  # Reverses results.
        return stream

    site.cores["a"].open_append_stream = open_append_stream  # type: ignore[method-assign]  # A stand-in.
    async with log.writer() as writer:
        assert await writer.submit(b"first") == 0
        submissions = [writer.submit(b"%03d" % index + bytes(97)) for index in range(300)]
        assert [await each for each in submissions] == list(range(1, 301))
    assert mangled
    assert len(values_of(site, "orders")) == 301
