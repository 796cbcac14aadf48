"""What cancelling a wait leaves behind, as docs/services.md has it; of a submission, `test_writer_failures`,
of an event, `test_reader_failures`.
"""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Final

import pytest

from rollbook.api.client.client import Client
from rollbook.api.client.log import Log
from rollbook.proto.errors import ClientClosed, Outcome, RollbookError
from tests.unit.api.client.conftest import PATIENCE_S, Site
from tests.unit.api.client.test_writer_failures import outcomes, until, values_of


async def cancelled(wait: Coroutine[Any, Any, object], when: object = None) -> None:
    """Cancels it in the midst of its waiting, which `when` says, or which any turn of the loop is."""
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


async def test_an_append_may_be_in_the_log_and_again_is_another_one(
    site: Site, client: Client
) -> None:
    log = await client.open("orders", create=True)
    site.cores["a"].holds.add("append_stream")
    await cancelled(log.append(b"x"), lambda: site.cluster.logs[log.name].tail == 1)
    site.cores["a"].release()
    assert (await log.append(b"x")).first_offset == 1
    assert values_of(site, "orders") == [b"x", b"x"]


async def test_an_append_at_an_offset_is_there_once(site: Site, client: Client) -> None:
    log = await client.open("orders", create=True)
    site.cores["a"].holds.add("append_stream")
    at_zero = log.append(b"x", expect=0)
    await cancelled(at_zero, lambda: site.cluster.logs[log.name].tail == 1)
    site.cores["a"].release()
    with pytest.raises(RollbookError) as caught:
        await log.append(b"x", expect=0)
    assert caught.value.outcome is Outcome.NOT_APPLIED
    assert values_of(site, "orders") == [b"x"]


async def test_a_flush_leaves_the_writer_as_it_was(site: Site, client: Client) -> None:
    log = await client.open("orders", create=True)
    site.cores["a"].holds.add("append_stream")
    async with log.writer() as writer:
        submission = writer.submit(b"x")
        await cancelled(writer.flush())
        behind = writer.submit(b"y")
        site.cores["a"].release()
        assert [await submission, await behind] == [0, 1]
    assert values_of(site, "orders") == [b"x", b"y"]


async def test_what_waited_for_room_was_not_submitted(site: Site) -> None:
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


async def test_a_writer_whose_end_is_cancelled_has_ended(site: Site, client: Client) -> None:
    log = await client.open("orders", create=True)
    site.cores["a"].holds.add("append_stream")
    writer = log.writer()
    submission = writer.submit(b"x")
    await cancelled(writer.close(), lambda: site.cluster.logs[log.name].tail == 1)
    async with asyncio.timeout(PATIENCE_S):
        assert await outcomes([submission]) == [Outcome.UNKNOWN]
    with pytest.raises(ClientClosed):
        writer.submit(b"late")


async def test_a_followed_log_is_let_go(site: Site, client: Client) -> None:
    log = await client.open("orders", create=True)
    await log.append(b"x")
    told = log.tail(0)
    assert (await anext(told)).value == b"x"
    await until(lambda: site.cores["a"].readers == 1)
    await cancelled(anext_of(told))
    await log.append(b"y")
    assert (await anext(told)).value == b"y"  # It missed nothing.
    await told.aclose()
    await until(lambda: site.cores["a"].readers == 0)
    told = log.tail(1)
    assert (await anext(told)).value == b"y"
    await until(lambda: site.cores["a"].readers == 1)
    await cancelled(anext_of(told))
    del told
    gc.collect()  # The task that was cancelled holds it in its traceback.
    await until(lambda: site.cores["a"].readers == 0)


CHANGES: Final[dict[str, Callable[[Log], Coroutine[Any, Any, object]]]] = {
    "truncate": lambda log: log.truncate(3),
    "commit_cursor": lambda log: log.cursor("place").commit(4),
    "update_log": lambda log: log.update(description="new"),
    "seal": lambda log: log.seal(),
}


@pytest.mark.parametrize("method", CHANGES)
async def test_a_change_that_was_cancelled_is_made_again(
    site: Site, client: Client, method: str
) -> None:
    log = await client.open("orders", create=True)
    await log.append_many([b"x"] * 5)
    core, make = site.cores["a"], CHANGES[method]
    core.holds.add(method)
    asked = len(core.asked)
    await cancelled(make(log), lambda: len(core.asked) > asked)
    core.release()
    assert await make(log) is not None
    await make(log)
