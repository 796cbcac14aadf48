"""Whoever has not shown that he takes anything is told a piece at a time, and others come in between."""

import asyncio
from collections.abc import AsyncGenerator
from itertools import pairwise
from typing import Any

import pytest

from rollbook.api.rest import following, newcomers
from rollbook.api.rest.newcomers import Line, Newcomer
from rollbook.logservice.core.block import pack_block
from rollbook.logservice.ids import LogName
from tests.unit.api.rest.http_client import DEADLINE_S
from tests.unit.api.rest.log_routes import LOG, SSE, Site

PIECE = 16 * 1024
MUCH = newcomers._UNTAKEN_BYTES_MAX


def log_of(there: Site) -> Any:
    return there.core.cluster.logs[LogName("ns", "log")]


class Loop:
    """Counts its rounds."""

    def __init__(self) -> None:
        self.rounds = 0
        self._is_over = False
        self._go_round()

    def _go_round(self) -> None:
        self.rounds += 1
        if not self._is_over:
            asyncio.get_running_loop().call_soon(self._go_round)

    def end(self) -> None:
        self._is_over = True


@pytest.fixture
async def loop() -> AsyncGenerator[Loop, None]:
    loop = Loop()
    yield loop
    loop.end()


async def test_others_have_the_loop_before_each_piece(loop: Loop) -> None:
    newcomer = Newcomer(Line())
    for _ in range(3):
        before = loop.rounds
        await newcomer.wait()
        assert loop.rounds - before >= newcomers._ROUNDS
        newcomer.on_told(PIECE)


async def test_newcomers_are_told_one_after_the_other_in_the_order_of_their_coming(
    loop: Loop,
) -> None:
    line, told = Line(), list[tuple[int, int]]()

    async def tell(number: int) -> None:
        newcomer = Newcomer(line)
        for _ in range(2):
            await newcomer.wait()
            told.append((number, loop.rounds))

    await asyncio.gather(*map(tell, range(3)))
    assert [number for number, _ in told] == [0, 1, 2, 0, 1, 2]
    rounds = [at for _, at in told]
    assert all(b - a >= newcomers._ROUNDS for a, b in pairwise(rounds))


async def test_whoever_took_what_nothing_could_hold_for_him_waits_for_nobody(loop: Loop) -> None:
    newcomer = Newcomer(Line())
    newcomer.on_told(MUCH - 1)
    before = loop.rounds
    await newcomer.wait()
    assert loop.rounds > before
    newcomer.on_told(1)
    before = loop.rounds
    await newcomer.wait()
    assert loop.rounds == before
    newcomer.on_nothing_taken()
    await newcomer.wait()
    assert loop.rounds > before


async def test_a_moment_passes_while_several_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others need the processor, too. Whoever has nobody behind him in the line does not pay for that."""
    monkeypatch.setattr(newcomers, "_MOMENT_S", 0.05)
    line, told = Line(), list[str]()

    async def tell(name: str) -> None:
        await Newcomer(line).wait()
        told.append(name)

    asyncio.get_running_loop().call_later(0.025, told.append, "others")
    await asyncio.gather(tell("first"), tell("second"), tell("last"))
    assert told == ["first", "others", "second", "last"]  # Nobody is behind the last one.
    monkeypatch.setattr(newcomers, "_MOMENT_S", 3600)
    await tell("alone")


async def test_who_leaves_the_line_holds_nobody_up(loop: Loop) -> None:
    line = Line()
    waits = [asyncio.ensure_future(Newcomer(line).wait()) for _ in range(4)]
    await asyncio.sleep(0)
    waits[0].cancel()
    waits[2].cancel()
    ends = await asyncio.gather(*waits, return_exceptions=True)
    assert [isinstance(end, asyncio.CancelledError) for end in ends] == [True, False, True, False]


# --- As followers of HTTP ---------------------------------------------------------------------


@pytest.fixture
def rounds_of_pieces(monkeypatch: pytest.MonkeyPatch, loop: Loop) -> list[int]:
    """The round of the loop in which each piece of records is told to somebody."""
    rounds: list[int] = []
    is_taken = following._is_taken

    async def noted(text: bytes, send: Any) -> bool:
        if b'"records"' in text:
            rounds.append(loop.rounds)
        return await is_taken(text, send)

    monkeypatch.setattr(following, "_is_taken", noted)
    return rounds


async def test_followers_who_come_at_once_do_not_hold_up_others(
    there: Site, loop: Loop, rounds_of_pieces: list[int]
) -> None:
    """Eight of them were told 290,000 bytes each in one round of the loop, for 31 ms."""
    log_of(there).append(pack_block([b"x" * 700] * 300), None)
    path = f"{LOG}/records?at_tail=stop"
    answers = await asyncio.gather(*(there.get(path, **SSE) for _ in range(8)))
    assert all(answer.body.count(b"x" * 700) == 300 for answer in answers)
    gaps = [b - a for a, b in pairwise(rounds_of_pieces)]
    assert min(gaps) >= newcomers._ROUNDS


async def test_a_follower_who_takes_what_he_is_told_goes_on_at_his_own_pace(
    there: Site, loop: Loop, rounds_of_pieces: list[int]
) -> None:
    log_of(there).append(pack_block([b"x" * 1000] * 1000), None)
    answer = await there.get(f"{LOG}/records?at_tail=stop", **SSE)
    assert answer.body.count(b"x" * 1000) == 1000
    gaps = [b - a for a, b in pairwise(rounds_of_pieces)]
    first = MUCH // PIECE  # They are somewhat larger, as JSON.
    assert min(gaps[: first // 2]) >= newcomers._ROUNDS
    assert max(gaps[first:]) == 0


async def test_news_of_a_log_wait_for_no_newcomer(there: Site, loop: Loop) -> None:
    async with there.door.newcomers._first, there.open("GET", f"{LOG}/records", b"", **SSE) as one:
        log_of(there).append(pack_block([b"new"]), None)
        async with asyncio.timeout(DEADLINE_S):
            while b'"new"' not in await anext(one.parts()):
                pass
