"""A new client is sent one piece at a time until it has shown that it reads."""

import asyncio
from collections.abc import AsyncGenerator, Generator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest

from rollbook.api.rest import event_streams
from rollbook.api.rest.fairness import loop_yield_queue as line
from rollbook.api.rest.fairness import new_reader_pacing as newcomers
from rollbook.api.rest.fairness import reader_turns
from rollbook.api.rest.fairness.loop_yield_queue import AdmissionQueue
from rollbook.api.rest.fairness.new_reader_pacing import Newcomer
from rollbook.logservice.core.record_block import pack_block
from rollbook.logservice.ids import LogName
from tests.unit.api.rest.http_client import DEADLINE_S
from tests.unit.api.rest.log_routes import LOG, SSE, Site
from tests.unit.api.rest.loop_rounds import Loop

PIECE = 16 * 1024
MUCH = newcomers._UNTAKEN_BYTES_MAX
TO_THE_TAIL = f"{LOG}/records?at_tail=stop"


def log_of(there: Site) -> Any:
    return there.core.cluster.logs[LogName("ns", "log")]


@pytest.fixture
async def loop() -> AsyncGenerator[Loop, None]:
    loop = Loop()
    yield loop
    loop.end()


@pytest.fixture
def no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes waits end by rounds of the loop alone, not by time."""
    monkeypatch.setattr(line, "_REST_S", 3600)
    monkeypatch.setattr(newcomers, "_WAITS_S_MAX", 3600)


async def rounds_of_a_wait(newcomer: Newcomer, loop: Loop) -> int:
    before = loop.rounds
    await newcomer.wait()
    return loop.rounds - before


async def test_new_reader_that_read_enough_is_not_paced(loop: Loop) -> None:
    busy = AdmissionQueue(10)
    newcomer = Newcomer(busy)
    await busy.wait()
    newcomer.on_sent(MUCH - 1)
    assert await rounds_of_a_wait(newcomer, loop) > 0
    newcomer.on_sent(1)
    assert await rounds_of_a_wait(newcomer, loop) == 0
    newcomer.on_nothing_taken()
    assert await rounds_of_a_wait(newcomer, loop) > 0


async def test_total_wait_of_a_new_reader_is_bounded(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound holds for a slow loop and a long queue."""
    monkeypatch.setattr(line, "_REST_S", 3600)
    monkeypatch.setattr(newcomers, "_WAITS_S_MAX", 0.001)
    endless = AdmissionQueue(10**9)
    await endless.wait()
    newcomer = Newcomer(endless)
    assert await rounds_of_a_wait(newcomer, loop) > 0
    assert await rounds_of_a_wait(newcomer, loop) == 0
    newcomer.on_nothing_taken()
    assert await rounds_of_a_wait(newcomer, loop) > 0


# --- HTTP followers ---------------------------------------------------------------------------


@dataclass
class Piece:
    """A piece with records, as it is sent to a client."""

    of: Any
    round: int
    size: int


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch, loop: Loop) -> list[Piece]:
    told: list[Piece] = []
    is_taken = event_streams._send_text

    async def noted(text: bytes, send: Any) -> bool:
        if b'"records"' in text:
            told.append(Piece(send, loop.rounds, len(text)))
        return await is_taken(text, send)

    monkeypatch.setattr(event_streams, "_send_text", noted)
    return told


@pytest.mark.usefixtures("no_clock")
async def test_pieces_of_new_followers_are_sent_rounds_apart(
    there: Site, pieces: list[Piece]
) -> None:
    """Regression: each of them was sent a piece in the same round of the loop."""
    log_of(there).append(pack_block([b"x" * 700] * 300), None)
    answers = await asyncio.gather(*(there.get(TO_THE_TAIL, **SSE) for _ in range(20)))
    assert all(answer.body.count(b"x" * 700) == 300 for answer in answers)
    rounds = [piece.round for piece in pieces]
    assert len(rounds) > 20 * 10
    assert all(b - a >= newcomers.ROUNDS for a, b in pairwise(rounds))


@pytest.mark.usefixtures("no_clock")
async def test_follower_that_read_enough_is_no_longer_paced(
    there: Site, pieces: list[Piece]
) -> None:
    log_of(there).append(pack_block([b"x" * 1000] * 1000), None)
    answer = await there.get(TO_THE_TAIL, **SSE)
    assert answer.body.count(b"x" * 1000) == 1000
    told = 0
    for piece, following_one in pairwise(pieces):
        told += piece.size
        gap = following_one.round - piece.round
        assert gap >= newcomers.ROUNDS if told < MUCH else gap == 0
    assert told > 2 * MUCH


async def test_records_at_the_tail_are_not_paced(
    there: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: from the second record on, they waited in the queue of new readers."""
    monkeypatch.setattr(Newcomer, "wait", lambda _: asyncio.Event().wait())
    async with there.open("GET", f"{LOG}/records", b"", **SSE) as one:
        parts = one.parts()
        async with asyncio.timeout(DEADLINE_S):
            for news in (b"new", b"newer", b"newest"):
                log_of(there).append(pack_block([news]), None)
                while b'"%s"' % news not in await anext(parts):
                    pass


async def test_only_followers_with_a_turn_hold_pieces(
    there: Site, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: with rounds of 1 ms, 115 of 300 followers held pieces after 20 s."""
    held = most = 0
    real = event_streams._pieces

    def counted(*args: Any) -> Generator[Any, None, None]:
        nonlocal held, most
        held += 1
        most = max(most, held)
        try:
            yield from real(*args)
        finally:
            held -= 1

    monkeypatch.setattr(event_streams, "_pieces", counted)
    begin = loop.rounds
    # The loop's time advances with its rounds; a follower's turn would end after ten rounds.
    monkeypatch.setattr(
        asyncio.get_running_loop(),
        "time",
        lambda: (loop.rounds - begin) * reader_turns._TURN_S / 10,
    )
    log_of(there).append(pack_block([b"x" * 700] * 300), None)
    answers = await asyncio.gather(*(there.get(TO_THE_TAIL, **SSE) for _ in range(40)))
    monkeypatch.undo()
    assert all(answer.body.count(b"x" * 700) == 300 for answer in answers)
    assert 1 < most <= reader_turns.TURNS
    assert held == 0


@pytest.mark.parametrize("ends", ["he leaves", "the server closes"])
async def test_new_reader_that_leaves_while_waiting_frees_everything(
    there: Site, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    waits = asyncio.Event()

    async def wait(_: Newcomer) -> None:
        waits.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Newcomer, "wait", wait)
    turns = reader_turns.ReaderTurns(1)
    monkeypatch.setattr(there.routing, "_turns", turns)
    log_of(there).append(pack_block([b"x" * 700] * 300), None)
    async with asyncio.timeout(DEADLINE_S), there.open("GET", TO_THE_TAIL, b"", **SSE) as stream:
        await waits.wait()
        assert there.core.readers == 1
        if ends == "the server closes":
            await there.routing.close()
            assert [part async for part in stream.parts()][1:] == []
            assert there.core.readers == 0
    assert there.core.readers == 0
    assert not there.routing.followers
    assert turns._free == 1
