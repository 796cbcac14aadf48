"""Throttled readers of one principal take turns, and each reports its progress."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rollbook.api.access import read_quota_throttle
from rollbook.api.access.authenticator import CALLER, AuthenticatedCaller, Authenticator
from rollbook.api.access.authorized_service import AuthorizedService
from rollbook.api.access.core.access_file import Principal
from rollbook.api.access.core.grants import EVERYTHING
from rollbook.api.access.core.quotas import PrincipalAccount, Quotas
from rollbook.api.rest.owner_routing import Asking, OwnerRouting
from rollbook.api.rpc_methods import READ_STREAM
from rollbook.logservice import messages
from rollbook.logservice.ids import LogName, Offset
from rollbook.logservice.position_syntax import AtOffset, Earliest
from rollbook.proto.errors import Overloaded, RollbookError, Unauthorized

DEADLINE_S = 30.0
LOG = LogName("ns", "log")
RATE = 500
EVENT = 10  # Records of one event: 1/50 s at this rate.
HEARTBEAT_MS = 100


class BusyCore:
    """A log that always has more records."""

    def __init__(self) -> None:
        self.readers = 0
        self.failures: list[RollbookError] = []  # `find_offset` raises these, the last first.

    def on_waiting(self) -> None:
        pass

    def explained(self, error: RollbookError) -> RollbookError:
        return error

    async def find_offset(self, asked: messages.FindOffset, _: float) -> messages.FoundOffset:
        """Throttled readers use this and not the tail, whose time may need a search."""
        self._fail()
        stands = asked.position.offset if isinstance(asked.position, AtOffset) else Offset(0)
        return messages.FoundOffset(stands, Offset(0), Offset(1_000_000))

    def _fail(self) -> None:
        if self.failures:
            raise self.failures.pop()

    async def read_stream(
        self, asked: messages.ReadStream
    ) -> AsyncGenerator[messages.Records, None]:
        self.readers += 1
        try:
            offset = asked.start.offset if isinstance(asked.start, AtOffset) else 0
            while True:
                yield messages.Records((b"",), Offset(offset), Offset(offset + EVENT))
                offset += EVENT
        finally:
            self.readers -= 1


class Scene:
    def __init__(self, debt: int) -> None:
        """`debt`: in records."""
        quotas = Quotas(read_records_per_s=RATE)
        self.core = BusyCore()
        self.account = PrincipalAccount(quotas)
        self._service = AuthorizedService(cast(messages.ServiceCore, self.core))
        self.account.reads.take(RATE + debt, 0, self._service._now_ns())
        self.is_in_force = True
        keeper = SimpleNamespace(still_admits=lambda _: self.is_in_force)
        principal = Principal("reader", EVERYTHING, quotas)
        CALLER.set(
            AuthenticatedCaller(principal, self.account, authenticator=cast(Authenticator, keeper))
        )

    def watch(self, stands: Offset | None = None) -> AsyncGenerator[Any, None]:
        asked = messages.ReadStream(LOG, Earliest(), heartbeat_ms=HEARTBEAT_MS)
        return self._service.watch(READ_STREAM, asked, stands=stands)

    def routing(self) -> OwnerRouting:
        return OwnerRouting(self._service, lambda _: "")


async def test_throttled_readers_take_turns_and_report_progress() -> None:
    """RL3, G8: each of eight readers of one account has more to read than the rate allows."""
    scene = Scene(debt=RATE // 10)
    told = [0] * 8
    heard = [0] * 8
    is_enough = asyncio.Event()

    async def follow(number: int) -> None:
        async with aclosing(scene.watch()) as events:
            async for event in events:
                if isinstance(event, messages.Progress):
                    heard[number] += 1
                else:
                    told[number] += 1
                if sum(told) >= 48:
                    is_enough.set()

    followers = [asyncio.create_task(follow(number)) for number in range(8)]
    try:
        async with asyncio.timeout(DEADLINE_S):
            await is_enough.wait()
    finally:
        for follower in followers:
            follower.cancel()
        await asyncio.gather(*followers, return_exceptions=True)
    assert min(told) >= 4, told
    assert min(heard) >= 1, heard
    assert scene.account.line.is_empty


async def test_reader_that_takes_nothing_does_not_block_others() -> None:
    scene = Scene(debt=RATE // 4)
    async with asyncio.timeout(DEADLINE_S), aclosing(scene.watch()) as stuck:
        assert isinstance(await anext(stuck), messages.Progress)
        async with aclosing(scene.watch()) as events:
            async for event in events:
                if isinstance(event, messages.Records):
                    break
        assert isinstance(await anext(stuck), messages.Progress | messages.Records)
    assert scene.account.line.is_empty


async def test_caught_up_reader_does_not_block_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that waits for new records gives its turn up."""
    monkeypatch.setattr(read_quota_throttle, "_TAKES_S", 3600.0)
    scene = Scene(debt=0)
    busy_read = scene.core.read_stream
    is_idle = asyncio.Event()

    async def told_once(_: messages.ReadStream) -> AsyncGenerator[messages.ReadEvent, None]:
        yield messages.CaughtUp(Offset(0))
        yield messages.Records((b"",), Offset(0), Offset(EVENT))
        is_idle.set()
        await asyncio.Event().wait()

    async def follow() -> None:
        async for _ in idle:
            pass

    monkeypatch.setattr(scene.core, "read_stream", told_once)
    idle = scene.watch()
    async with asyncio.timeout(DEADLINE_S):
        following = asyncio.create_task(follow())
        await is_idle.wait()
        monkeypatch.setattr(scene.core, "read_stream", busy_read)
        async with aclosing(scene.watch()) as events:
            while not isinstance(await anext(events), messages.Records):
                pass
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    await idle.aclose()
    assert scene.account.line.is_empty


@pytest.mark.parametrize("was_told", [False, True])
async def test_position_lookup_may_fail_briefly_if_position_is_known(*, was_told: bool) -> None:
    """A reader that resumes brings its position with it."""
    scene = Scene(debt=RATE * 3600)
    scene.core.failures = [Overloaded(), Overloaded()]
    stands = Offset(7) if was_told else None
    async with asyncio.timeout(DEADLINE_S), aclosing(scene.watch(stands)) as events:
        if not was_told:
            with pytest.raises(Overloaded):
                await anext(events)
            return
        told = await anext(events)
        assert isinstance(told, messages.Progress)
        assert told.position == 7
        scene.core.failures = [Overloaded()] * 3
        with pytest.raises(Overloaded):  # The client should ask another server.
            await anext(events)


async def test_resumed_read_reports_its_position_despite_overload() -> None:
    """The routing layer passes on that the reader resumes."""
    scene = Scene(debt=RATE * 3600)
    scene.core.failures = [Overloaded()]
    asked = messages.ReadStream(LOG, AtOffset(Offset(7)), heartbeat_ms=HEARTBEAT_MS)
    async with (
        asyncio.timeout(DEADLINE_S),
        aclosing(scene.routing().follow(asked, Offset(7))) as told,
    ):
        assert (await anext(told)).position == 7


async def test_find_offset_with_removed_token_is_refused() -> None:
    scene = Scene(debt=0)
    scene.is_in_force = False
    with pytest.raises(Unauthorized):
        await scene.routing().ask(messages.FindOffset(LOG, Earliest()), Asking())
