import asyncio
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from rollbook.ledger.tick_flush import TickFlush


async def test_all_hand_outs_run_before_any_write() -> None:
    turn, done = TickFlush(), list[str]()
    turn.write_out(partial(done.append, "written"))
    turn.hand_out(partial(done.append, "handed out"))
    turn.hand_out(partial(done.append, "handed out by another"))
    assert not done, "the turn has not ended"
    await asyncio.sleep(0)
    assert done == ["handed out", "handed out by another", "written"]
    await asyncio.sleep(0)
    assert len(done) == 3


async def test_writes_queued_by_a_hand_out_run_in_the_same_turn() -> None:
    turn, done = TickFlush(), list[str]()
    turn.hand_out(lambda: turn.write_out(partial(done.append, "written")))
    await asyncio.sleep(0)
    assert done == ["written"]


async def test_calls_queued_by_their_own_stage_run_next_turn() -> None:
    turn, done = TickFlush(), list[str]()
    turn.hand_out(lambda: turn.hand_out(partial(done.append, "handed out")))
    turn.write_out(lambda: turn.write_out(partial(done.append, "written")))
    await asyncio.sleep(0)
    assert not done
    await asyncio.sleep(0)
    assert done == ["handed out", "written"]


async def test_failing_callback_does_not_stop_the_others() -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    turn, done = TickFlush(), list[str]()

    def fail() -> None:
        raise ZeroDivisionError

    turn.hand_out(fail)
    turn.hand_out(partial(done.append, "handed out"))
    turn.write_out(fail)
    turn.write_out(partial(done.append, "written"))
    await asyncio.sleep(0)
    assert done == ["handed out", "written"]
    assert [type(each["exception"]) for each in told] == [ZeroDivisionError] * 2
    assert all(repr(fail) in each["message"] for each in told), "the message names the callback"
    turn.write_out(partial(done.append, "written later"))
    await asyncio.sleep(0)
    assert done[-1] == "written later"


def test_interrupt_loses_only_the_interrupted_callback() -> None:
    """In a notebook the same loop continues after an interrupt."""
    done = list[str]()

    def interrupt() -> None:
        done.append("interrupted")
        raise KeyboardInterrupt

    async def make() -> TickFlush:
        return TickFlush()

    async def go_on(turn: TickFlush) -> None:
        turn.hand_out(partial(done.append, "handed out later"))
        await asyncio.sleep(0)

    with closing(asyncio.new_event_loop()) as loop:
        turn = loop.run_until_complete(make())
        turn.hand_out(interrupt)
        turn.hand_out(partial(done.append, "handed out"))
        turn.hand_out(lambda: done.append(f"shared: {turn.is_shared}"))
        turn.write_out(interrupt)
        turn.write_out(partial(done.append, "written"))
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                loop.run_until_complete(asyncio.sleep(0))
            assert not turn.is_shared
        loop.run_until_complete(asyncio.sleep(0))
        loop.run_until_complete(go_on(turn))
    assert done == [
        "interrupted",
        "handed out",
        "shared: True",
        "interrupted",
        "written",
        "handed out later",
    ]


async def test_is_shared_is_true_only_with_several_hand_outs() -> None:
    turn, shared = TickFlush(), list[bool]()

    def hand_out() -> None:
        shared.append(turn.is_shared)

    turn.hand_out(hand_out)
    turn.hand_out(hand_out)
    await asyncio.sleep(0)
    assert shared == [True, True]
    turn.hand_out(hand_out)
    await asyncio.sleep(0)
    assert shared == [True, True, False]
    assert not turn.is_shared
