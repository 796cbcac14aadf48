"""The client with services that are silent, full, unreachable or faulty."""

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
from rollbook.proto.metastore.core.service_messages import (
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
PAUSE_S = service_client.PAUSE_S_MAX  # The client reconnects within this pause.


class Script:
    """A connector that is also its channel: sends Welcome, and answers while `answers` is set."""

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

    # Called as the channel's and awaited as the connector's.
    def close(self) -> "asyncio.Future[None]":
        self.closed = True
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done


def client_of(script: Script, **timeouts: float) -> StoreClient:
    timeouts = {"session_timeout_s": 1000 * TIMEOUT_S, "operation_timeout_s": TIMEOUT_S} | timeouts
    return StoreClient(script, random.Random(0), **timeouts)  # type: ignore[arg-type]  # Connector and channel.


_TIMEOUTS_MAX = 10  # A call ends within this many time-outs.


async def overdue(call: Awaitable[Any], time: LoopTime) -> Any:
    """Lets the client try to connect, then lets the time of the call pass."""
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


async def test_idle_client_sends_three_times_per_session_timeout(time: LoopTime) -> None:
    script = Script()
    store = await client_of(script, session_timeout_s=TIMEOUT_S).open()
    for _ in range(6):
        await time.pass_by(TIMEOUT_S / 3)
    assert [type(ask.question) for ask in script.asked] == [Sync] * 6
    assert len(script.hellos) == 1
    await store.close()


async def test_silent_service_is_disconnected_before_session_timeout(time: LoopTime) -> None:
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
    while not back.done():  # The client may have sent another Hello that nobody answered.
        await time.pass_by(TIMEOUT_S / 3)
    assert (await back).state is SessionState.CONNECTED
    assert {(hello.store, hello.session) for hello in script.hellos[1:]} == {("store", 7)}
    await store.close()


async def test_unanswered_call_raises_connection_lost_at_its_deadline(time: LoopTime) -> None:
    script = Script()
    store = await client_of(script).open()
    script.answers = False
    with pytest.raises(ConnectionLost, match=rf"within {TIMEOUT_S:g} s: it sleeps"):
        await overdue(store.create("/a"), time)
    script.answers = True
    await store.close()
    assert script.closed


async def test_watch_with_unknown_start_is_stopped(time: LoopTime) -> None:
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


async def test_slow_connection_attempt_is_not_interrupted(time: LoopTime) -> None:
    """This process may be reading the store's large file itself."""
    script = Script()
    reading = asyncio.Event()

    async def read_first(receiver: Receiver, timeout_s: float) -> Script:
        await reading.wait()
        return await Script.connect(script, receiver, timeout_s)

    script.connect = read_first  # type: ignore[method-assign]  # A slow connector.
    opening = asyncio.ensure_future(client_of(script).open())
    for _ in range(3 * service_client._OPENING_PARTS):
        await time.pass_by(TIMEOUT_S)
    assert not opening.done()
    reading.set()
    async with await opening as store:
        assert store.session == 7


async def test_failed_open_ends_after_its_timeout(time: LoopTime) -> None:
    script = Script()
    script.refusal = MetadataUnavailable("nobody is there")
    opening = asyncio.ensure_future(client_of(script).open())
    await asyncio.sleep(0)  # The time-out begins.
    for _ in range(service_client._OPENING_PARTS):
        assert not opening.done()
        await time.pass_by(TIMEOUT_S / service_client._OPENING_PARTS)
    assert isinstance(opening.exception(), MetadataUnavailable)


async def test_standstill_of_the_client_does_not_use_up_open_timeout(time: LoopTime) -> None:
    """A command on a laptop that was closed for a minute reported that no process serves."""
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


async def test_close_waits_briefly_for_silent_service(
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


async def test_bad_configuration_is_raised_at_once() -> None:
    script = Script()
    script.refusal = BadConfig("no such folder")
    with pytest.raises(BadConfig, match="no such folder"):
        await client_of(script).open()


async def test_timeout_reports_the_last_connection_error(time: LoopTime) -> None:
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


async def test_connection_errors_after_open_are_retried(time: LoopTime) -> None:
    """A file that cannot be opened now may be repaired; until then calls fail."""
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


async def test_cancelled_open_leaves_no_session_or_task() -> None:
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
async def test_ended_call_is_not_sent_after_reconnect(how: str) -> None:
    """The connection returns in the same turn of the loop in which a caller gives up."""
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
    link = store._link = service_client._Link(store)
    link.channel, link.welcomed = script, True  # type: ignore[assignment]  # Connector and channel.
    store._flush()
    assert len(script.asked) == asked
    with pytest.raises((MetadataUnavailable, asyncio.CancelledError)):
        await call
    store._link = None
    await store.close()


async def test_bug_in_connector_is_raised_or_logged(time: LoopTime) -> None:
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
