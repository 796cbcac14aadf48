"""The client against services that are silent, full, gone or strange."""

import asyncio
import random
from collections.abc import Awaitable, Sequence
from typing import Any

import pytest
import structlog

from rollbook.proto.errors import (
    BadConfig,
    ConnectionLost,
    MetadataUnavailable,
    Overloaded,
    RollbookError,
)
from rollbook.proto.metastore import service_client
from rollbook.proto.metastore.core.messages import (
    Answer,
    Ask,
    FromClient,
    Hello,
    StartWatch,
    StopWatch,
    Sync,
    Welcome,
)
from rollbook.proto.metastore.service_client import Receiver, StoreClient
from rollbook.proto.ports import NO_SESSION, SessionState
from tests.support.clocks import LoopTime

TIMEOUT_S = 3000.0
PAUSE_S = service_client.PAUSE_S_MAX  # It tries again within that.


class Script:
    """A connector and its channel: welcomes, and answers while `answers` is set."""

    def __init__(self) -> None:
        self.answers = True
        self.refusal: RollbookError | None = None
        self.hellos: list[Hello] = []
        self.asked: list[Ask] = []
        self.closed = False
        self.receiver: Receiver

    async def connect(self, receiver: Receiver, timeout_s: float) -> "Script":
        if self.refusal is not None:
            raise self.refusal
        self.receiver = receiver
        return self

    def why_silent(self) -> str:
        return "it sleeps"

    def send(self, messages: Sequence[FromClient]) -> None:
        for message in messages:
            if isinstance(message, Ask):
                self.asked.append(message)
            else:
                self.hellos.append(message)
            if self.answers:
                asyncio.get_running_loop().call_soon(self._answer, self.receiver, message)

    def _answer(self, receiver: Receiver, message: FromClient) -> None:
        if isinstance(message, Hello):
            receiver.on_messages([Welcome("store", 7, message.timeout_ms, 1)])
        else:
            receiver.on_messages([Answer(message.request_id, 1, None)])

    def close(self) -> "asyncio.Future[None]":  # Of the channel; awaited as the connector's.
        self.closed = True
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done


def client_of(script: Script, **timeouts: float) -> StoreClient:
    timeouts = {"session_timeout_s": 1000 * TIMEOUT_S, "operation_timeout_s": TIMEOUT_S} | timeouts
    return StoreClient(script, random.Random(0), **timeouts)  # type: ignore[arg-type]  # Both.


_TIMEOUTS_MAX = 10  # Until a call has ended.


async def overdue(call: Awaitable[Any], time: LoopTime) -> Any:
    """There are attempts to connect meanwhile, and then its time passes."""
    waiting = asyncio.ensure_future(call)
    await time.pass_by(PAUSE_S)
    for _ in range(_TIMEOUTS_MAX):
        if waiting.done():
            break
        await time.pass_by(TIMEOUT_S)
    assert waiting.done()
    return await waiting


@pytest.fixture
async def time(monkeypatch: pytest.MonkeyPatch) -> LoopTime:
    return LoopTime(monkeypatch)


async def test_an_idle_client_speaks_three_times_in_each_timeout(time: LoopTime) -> None:
    script = Script()
    store = await client_of(script, session_timeout_s=TIMEOUT_S).open()
    for _ in range(6):
        await time.pass_by(TIMEOUT_S / 3)
    assert [type(ask.question) for ask in script.asked] == [Sync] * 6
    assert len(script.hellos) == 1
    await store.close()


async def test_a_silent_service_is_left_before_the_session_is_over(time: LoopTime) -> None:
    script = Script()
    timeouts = {"session_timeout_s": TIMEOUT_S, "operation_timeout_s": 100 * TIMEOUT_S}
    store = await client_of(script, **timeouts).open()
    states = store.session_events()
    assert (await anext(states)).state is SessionState.CONNECTED
    script.answers = False
    call = asyncio.ensure_future(store.get("/a"))
    for _ in range(2):
        assert not call.done()
        await time.pass_by(TIMEOUT_S / 3)
    event = await anext(states)
    assert (event.state, event.session) == (SessionState.SUSPENDED, 7)
    with pytest.raises(ConnectionLost, match="it sleeps"):
        await call
    script.answers = True
    back = asyncio.ensure_future(anext(states))
    while not back.done():  # It may have said hello once more to nobody.
        await time.pass_by(TIMEOUT_S / 3)
    assert (await back).state is SessionState.CONNECTED
    assert {(hello.store, hello.session) for hello in script.hellos[1:]} == {("store", 7)}
    await store.close()


async def test_a_call_without_an_answer_ends_at_its_deadline(time: LoopTime) -> None:
    script = Script()
    store = await client_of(script).open()
    script.answers = False
    with pytest.raises(ConnectionLost, match=rf"within {TIMEOUT_S:g} s: it sleeps"):
        await overdue(store.create("/a"), time)
    script.answers = True
    await store.close()
    assert script.closed


async def test_a_watch_whose_start_is_in_doubt_is_stopped(time: LoopTime) -> None:
    script = Script()
    store = await client_of(script).open()
    script.answers = False
    with pytest.raises(ConnectionLost):
        await overdue(store.watch("/a"), time)
    start, stop = (ask.question for ask in script.asked)
    assert isinstance(start, StartWatch)
    assert stop == StopWatch(start.watch_id)
    assert store._watches == {}
    script.answers = True
    await store.close()


async def test_an_attempt_that_takes_long_is_waited_for(time: LoopTime) -> None:
    """The store's file is large, and we are the one who reads it."""
    script = Script()
    reading = asyncio.Event()

    async def read_first(receiver: Receiver, timeout_s: float) -> Script:
        await reading.wait()
        return await Script.connect(script, receiver, timeout_s)

    script.connect = read_first  # type: ignore[method-assign]  # Slower.
    opening = asyncio.ensure_future(client_of(script).open())
    for _ in range(3 * service_client._OPENING_PARTS):
        await time.pass_by(TIMEOUT_S)
    assert not opening.done()
    reading.set()
    async with await opening as store:
        assert store.session == 7


async def test_who_opens_in_vain_is_told_when_its_time_is_over(time: LoopTime) -> None:
    script = Script()
    script.refusal = MetadataUnavailable("nobody is there")
    opening = asyncio.ensure_future(client_of(script).open())
    await asyncio.sleep(0)  # Its time begins.
    for _ in range(service_client._OPENING_PARTS):
        assert not opening.done()
        await time.pass_by(TIMEOUT_S / service_client._OPENING_PARTS)
    assert isinstance(opening.exception(), MetadataUnavailable)


async def test_who_stood_still_while_it_opened_has_its_time_all_the_same(time: LoopTime) -> None:
    """A command on a laptop that was closed for a minute said that nobody serves."""
    script = Script()
    script.refusal = MetadataUnavailable("nobody is there yet")
    opening = asyncio.ensure_future(client_of(script).open())
    for _ in range(5):
        await time.pass_by(10 * TIMEOUT_S)
    assert not opening.done()
    script.refusal = None
    await time.pass_by(PAUSE_S)
    async with await opening as store:
        assert store.session == 7


async def test_who_leaves_waits_for_a_silent_service_no_longer_than_a_moment(
    time: LoopTime,
) -> None:
    script = Script()
    store = await client_of(script).open()
    script.answers = False
    closing = asyncio.ensure_future(store.close())
    while not script.asked:
        await asyncio.sleep(0)
    assert not closing.done()
    await time.pass_by(service_client.CLOSE_TIMEOUT_S)
    assert closing.done()
    assert script.closed


async def test_too_many_calls_are_refused(time: LoopTime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollbook.proto.metastore.service_client.CALLS_MAX", 2)
    script = Script()
    store = await client_of(script).open()
    script.answers = False
    calls = asyncio.gather(*(store.get("/a") for _ in range(2)), return_exceptions=True)
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await store.get("/a")
    assert [type(each) for each in await overdue(calls, time)] == [ConnectionLost] * 2
    script.answers = True
    await store.close()


async def test_what_cannot_be_mended_is_raised_at_once() -> None:
    script = Script()
    script.refusal = BadConfig("no such folder")
    with pytest.raises(BadConfig, match="no such folder"):
        await client_of(script).open()


async def test_who_waits_is_told_why(time: LoopTime) -> None:
    script = Script()
    script.refusal = MetadataUnavailable("nobody is there")
    with pytest.raises(MetadataUnavailable, match="nobody is there"):
        await overdue(client_of(script).open(), time)
    script.refusal = None
    store = await client_of(script).open()
    script.refusal = MetadataUnavailable("it left")
    script.receiver.on_lost("gone")
    await asyncio.sleep(0)
    with pytest.raises(MetadataUnavailable, match="it left"):
        await overdue(store.get("/a"), time)
    await overdue(store.close(), time)


async def test_trouble_after_the_opening_is_waited_out(time: LoopTime) -> None:
    """A file that cannot be opened now may be mended; until then calls fail."""
    script = Script()
    store = await client_of(script).open()
    script.refusal = BadConfig("it is damaged")
    script.receiver.on_lost("gone")
    with pytest.raises((MetadataUnavailable, ConnectionLost), match=r"it is damaged|gone"):
        await overdue(store.get("/a"), time)
    with pytest.raises(MetadataUnavailable, match="it is damaged"):
        await overdue(store.get("/a"), time)
    script.refusal = None
    assert await store.get("/a") is None
    await store.close()


async def test_a_cancelled_opening_leaves_nothing_behind() -> None:
    script = Script()
    script.answers = False
    store = client_of(script)
    opening = asyncio.ensure_future(store.open())
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert store.session == NO_SESSION
    assert store._runner is not None
    assert store._runner.done()


@pytest.mark.parametrize("how", ["overdue", "cancelled"])
async def test_what_was_said_to_be_unsent_stays_unsent(how: str) -> None:
    """The connection comes back in the very turn of the loop in which a caller gives up."""
    script = Script()
    store = await client_of(script).open()
    script.refusal = MetadataUnavailable("it left")
    script.receiver.on_lost("gone")
    await asyncio.sleep(0)
    call = asyncio.ensure_future(store.create("/a"))
    await asyncio.sleep(0)
    ((request_id, waiting),) = store._unsent.items()
    script.refusal = None
    if how == "overdue":
        store._on_late(request_id, waiting)
    else:
        waiting.answer.cancel()
    asked = len(script.asked)
    line = store._line = service_client._Link(store)
    line.channel, line.welcomed = script, True  # type: ignore[assignment]  # It is both.
    store._flush()
    assert len(script.asked) == asked
    with pytest.raises((MetadataUnavailable, asyncio.CancelledError)):
        await call
    store._line = None
    await store.close()


async def test_a_bug_in_a_connector_is_heard_of(time: LoopTime) -> None:
    script = Script()
    script.refusal = ZeroDivisionError()  # type: ignore[assignment]  # A bug.
    with pytest.raises(ZeroDivisionError):
        await client_of(script).open()
    script.refusal = None
    store = await client_of(script).open()
    script.refusal = ZeroDivisionError("oops")  # type: ignore[assignment]  # A bug.
    script.receiver.on_lost("gone")
    with structlog.testing.capture_logs() as logs:
        await time.pass_by(PAUSE_S)
        with pytest.raises(MetadataUnavailable, match="oops"):
            await overdue(store.get("/a"), time)
    assert "metadata_client_failed" in [line["event"] for line in logs]
    await overdue(store.close(), time)
