"""The state after a wait is cancelled, as docs/services.md describes it.

`test_writer_failures` cancels waits for submissions, and `test_reader_failures` waits for events.
"""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Final

import pytest

from rollbook.api.client.async_client import Client
from rollbook.api.client.log import Log
from rollbook.proto.errors import ClientClosed, Outcome, RollbookError
from tests.unit.api.client.conftest import PATIENCE_S, Site
from tests.unit.api.client.test_writer_failures import outcomes, until, values_of


async def cancelled(wait: Coroutine[Any, Any, object], when: object = None) -> None:
    """Cancels `wait` once `when` is true, or after ten turns of the loop."""
    task = asyncio.ensure_future(wait)
    for _ in range(10):
        await asyncio.sleep(0)
    if when is not None:
        await until(when)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def anext_of(told: AsyncIterator[Any]) -> object:
    return await anext(told)


@pytest.fixture
def client(site: Site) -> Client:
    return site.client("a")


async def test_append_again_after_cancelling_may_append_twice(site: Site, client: Client) -> None:
    log = await client.open("orders", create=True)
    site.cores["a"].holds.add("append_stream")
    await cancelled(log.append(b"x"), lambda: site.cluster.logs[log.name].tail == 1)
    site.cores["a"].release()
    assert (await log.append(b"x")).first_offset == 1
    assert values_of(site, "orders") == [b"x", b"x"]


async def test_append_again_at_an_expected_offset_appends_once(site: Site, client: Client) -> None:
    log = await client.open("orders", create=True)
    site.cores["a"].holds.add("append_stream")
    at_zero = log.append(b"x", expect=0)
    await cancelled(at_zero, lambda: site.cluster.logs[log.name].tail == 1)
    site.cores["a"].release()
    with pytest.raises(RollbookError) as caught:
        await log.append(b"x", expect=0)
    assert caught.value.outcome is Outcome.NOT_APPLIED
    assert values_of(site, "orders") == [b"x"]


async def test_cancelled_flush_leaves_the_writer_usable(site: Site, client: Client) -> None:
    log = await client.open("orders", create=True)
    site.cores["a"].holds.add("append_stream")
    async with log.writer() as writer:
        submission = writer.submit(b"x")
        await cancelled(writer.flush())
        behind = writer.submit(b"y")
        site.cores["a"].release()
        assert [await submission, await behind] == [0, 1]
    assert values_of(site, "orders") == [b"x", b"y"]


async def test_cancelled_wait_for_room_submits_nothing(site: Site) -> None:
    log = await site.client("a", window_bytes=1024).open("orders", create=True)
    site.cores["a"].holds.add("append_stream")
    async with log.writer() as writer:
        while writer.has_room:
            writer.submit(bytes(100))
        await cancelled(writer.send(b"never"))
        await cancelled(writer.ready())
        site.cores["a"].release()
        await writer.send(b"last")
    assert values_of(site, "orders")[-1] == b"last"
    assert b"never" not in values_of(site, "orders")


async def test_writer_is_closed_after_a_cancelled_close(site: Site, client: Client) -> None:
    log = await client.open("orders", create=True)
    site.cores["a"].holds.add("append_stream")
    writer = log.writer()
    submission = writer.submit(b"x")
    await cancelled(writer.close(), lambda: site.cluster.logs[log.name].tail == 1)
    async with asyncio.timeout(PATIENCE_S):
        assert await outcomes([submission]) == [Outcome.UNKNOWN]
    with pytest.raises(ClientClosed):
        writer.submit(b"late")


async def test_cancelled_tail_read_loses_nothing_and_can_be_closed(
    site: Site, client: Client
) -> None:
    log = await client.open("orders", create=True)
    await log.append(b"x")
    told = log.tail(0)
    assert (await anext(told)).value == b"x"
    await until(lambda: site.cores["a"].readers == 1)
    await cancelled(anext_of(told))
    await log.append(b"y")
    assert (await anext(told)).value == b"y"  # The cancelled wait missed no record.
    await told.aclose()
    await until(lambda: site.cores["a"].readers == 0)
    told = log.tail(1)
    assert (await anext(told)).value == b"y"
    await until(lambda: site.cores["a"].readers == 1)
    await cancelled(anext_of(told))
    del told
    gc.collect()  # The cancelled task's traceback holds the tail.
    await until(lambda: site.cores["a"].readers == 0)


CHANGES: Final[dict[str, Callable[[Log], Coroutine[Any, Any, object]]]] = {
    "truncate": lambda log: log.truncate(3),
    "commit_cursor": lambda log: log.cursor("place").commit(4),
    "update_log": lambda log: log.update(description="new"),
    "seal": lambda log: log.seal(),
}


@pytest.mark.parametrize("method", CHANGES)
async def test_cancelled_change_can_be_repeated(site: Site, client: Client, method: str) -> None:
    log = await client.open("orders", create=True)
    await log.append_many([b"x"] * 5)
    core, make = site.cores["a"], CHANGES[method]
    core.holds.add(method)
    asked = len(core.asked)
    await cancelled(make(log), lambda: len(core.asked) > asked)
    core.release()
    assert await make(log) is not None
    await make(log)
