"""Open pages share responses: pending ones, fresh ones, and old ones while the store is away."""

import asyncio

import pytest

from rollbook.api.dashboard.shared_answers import SharedAnswer, SharedAnswers
from rollbook.proto.errors import MetadataUnavailable, Missing


class Store:
    """Returns the number of the query once `may_answer` is set."""

    def __init__(self) -> None:
        self.now_ns = 1
        self.asked = 0
        self.may_answer = asyncio.Event()
        self.raises: Exception | None = None
        self.answers = SharedAnswers(lambda: self.now_ns, fresh_s=2, kept_max=3)
        self.now_ns += 1

    async def _answer(self) -> int:
        self.asked += 1
        number = self.asked
        await self.may_answer.wait()
        if self.raises is not None:
            raise self.raises
        return number

    async def ask(self, key: str = "health") -> SharedAnswer:
        return await self.answers.ask(key, self._answer)

    def begin(self, count: int) -> list[asyncio.Task[SharedAnswer]]:
        return [asyncio.create_task(self.ask()) for _ in range(count)]


async def _until_asked(store: Store, count: int) -> None:
    async with asyncio.timeout(30):
        while store.asked < count:
            await asyncio.sleep(0)


async def test_concurrent_requests_share_one_query() -> None:
    store = Store()
    asking = store.begin(50)
    await _until_asked(store, 1)
    store.may_answer.set()
    assert {(await each).facts for each in asking} == {1}
    assert (await store.ask()).facts == store.asked == 1
    store.now_ns += 2_000_000_000
    assert (await store.ask()).facts == 2


async def test_request_after_a_change_gets_a_new_response() -> None:
    """This holds although the response to an earlier query is still pending."""
    store = Store()
    (before,) = store.begin(1)
    await _until_asked(store, 1)
    store.answers.on_act()
    store.now_ns += 1
    (after,) = store.begin(1)
    await _until_asked(store, 2)
    store.may_answer.set()
    assert ((await before).facts, (await after).facts) == (1, 2)
    assert (await store.ask()).facts == 2


async def test_cancelled_request_does_not_cancel_the_shared_query() -> None:
    store = Store()
    leaver, stayer = store.begin(2)
    await _until_asked(store, 1)
    leaver.cancel()
    store.may_answer.set()
    assert (await stayer).facts == 1
    with pytest.raises(asyncio.CancelledError):
        await leaver
    assert store.asked == 1


async def test_last_response_is_served_while_the_store_is_away() -> None:
    """DB3."""
    store = Store()
    store.may_answer.set()
    await store.ask()
    store.raises = MetadataUnavailable("away")
    store.now_ns += 42_000_000_000
    old = await store.ask()
    assert (old.facts, old.age_s, old.problem) == (1, 42, store.raises)
    with pytest.raises(MetadataUnavailable):
        await store.ask("never known")
    store.raises = Missing("it was deleted")
    with pytest.raises(Missing):
        await store.ask()
    store.raises = None
    assert (await store.ask()).facts == store.asked == 5


async def test_kept_responses_are_bounded_and_close_cancels_queries() -> None:
    store = Store()
    store.may_answer.set()
    for key in "abcda":
        await store.ask(key)
    assert store.asked == 5, "the oldest of four responses was dropped"
    store.may_answer.clear()
    store.now_ns += 2_000_000_000
    (left,) = store.begin(1)
    await _until_asked(store, 6)
    await store.answers.close()
    with pytest.raises(asyncio.CancelledError):
        await left
