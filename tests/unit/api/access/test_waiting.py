"""Readers of one principal who owes for what was read: each in his turn, and none of them is silent."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any, cast

from rollbook.api.access.core.grants import EVERYTHING
from rollbook.api.access.core.principals import Principal
from rollbook.api.access.core.quotas import Account, Quotas
from rollbook.api.access.doorkeeper import CALLER, Caller, Doorkeeper
from rollbook.api.access.guarded import Guarded
from rollbook.api.grpc.methods import READ_STREAM
from rollbook.logservice import words
from rollbook.logservice.ids import AtOffset, Earliest, LogName, Offset

DEADLINE_S = 30.0
LOG = LogName("ns", "log")
RATE = 500
EVENT = 10  # Records: a fiftieth of a second.
HEARTBEAT_MS = 100


class BusyCore:
    """A log that has always more to tell."""

    def __init__(self) -> None:
        self.readers = 0

    async def find_offset(self, *_: object) -> words.FoundOffset:
        return words.FoundOffset(Offset(0), Offset(0), Offset(1_000_000))

    async def get_tail(self, *_: object) -> SimpleNamespace:
        return SimpleNamespace(head=0, tail=1_000_000)

    async def read_stream(self, asked: words.ReadStream) -> AsyncGenerator[words.Records, None]:
        self.readers += 1
        try:
            offset = asked.start.offset if isinstance(asked.start, AtOffset) else 0
            while True:
                yield words.Records((b"",), Offset(offset), Offset(offset + EVENT))
                offset += EVENT
        finally:
            self.readers -= 1


class Scene:
    def __init__(self, debt: int) -> None:
        """`debt`: in records."""
        quotas = Quotas(read_records_per_s=RATE)
        self.core = BusyCore()
        self.account = Account(quotas)
        self._guarded = Guarded(cast(words.ServiceCore, self.core))
        self.account.reads.take(RATE + debt, 0, self._guarded._now_ns())
        keeper = SimpleNamespace(still_admits=lambda _: True)
        principal = Principal("reader", EVERYTHING, quotas)
        CALLER.set(Caller(principal, self.account, doorkeeper=cast(Doorkeeper, keeper)))

    def watch(self) -> AsyncGenerator[Any, None]:
        asked = words.ReadStream(LOG, Earliest(), heartbeat_ms=HEARTBEAT_MS)
        return self._guarded.watch(READ_STREAM, asked)


async def test_whoever_waited_longest_takes_next() -> None:
    """RL3, G8: eight on one account, each with more to read than all of them may."""
    scene = Scene(debt=RATE // 10)
    told = [0] * 8
    heard = [0] * 8
    is_enough = asyncio.Event()

    async def follow(number: int) -> None:
        async with aclosing(scene.watch()) as events:
            async for event in events:
                if isinstance(event, words.Progress):
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


async def test_who_takes_nothing_keeps_nobody_waiting() -> None:
    """His turn is another's while what he is told is not taken."""
    scene = Scene(debt=RATE // 4)
    async with asyncio.timeout(DEADLINE_S), aclosing(scene.watch()) as stuck:
        assert isinstance(await anext(stuck), words.Progress)
        async with aclosing(scene.watch()) as events:
            async for event in events:
                if isinstance(event, words.Records):
                    break
        assert isinstance(await anext(stuck), words.Progress | words.Records)
    assert scene.account.line.is_empty
