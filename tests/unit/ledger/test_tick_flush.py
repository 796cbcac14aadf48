import asyncio
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from rollbook.ledger.tick_flush import TickFlush


async def test_all_hand_outs_run_before_any_write() -> None:
    tick_flush, done = TickFlush(), list[str]()
    tick_flush.write_out(partial(done.append, "written"))
    tick_flush.hand_out(partial(done.append, "handed out"))
    tick_flush.hand_out(partial(done.append, "handed out by another"))
    assert not done, "the turn has not ended"
    await asyncio.sleep(0)
    assert done == ["handed out", "handed out by another", "written"]
    await asyncio.sleep(0)
    assert len(done) == 3


async def test_writes_queued_by_a_hand_out_run_in_the_same_turn() -> None:
    tick_flush, done = TickFlush(), list[str]()
    tick_flush.hand_out(lambda: tick_flush.write_out(partial(done.append, "written")))
    await asyncio.sleep(0)
    assert done == ["written"]


async def test_calls_queued_by_their_own_stage_run_next_turn() -> None:
    tick_flush, done = TickFlush(), list[str]()
    tick_flush.hand_out(lambda: tick_flush.hand_out(partial(done.append, "handed out")))
    tick_flush.write_out(lambda: tick_flush.write_out(partial(done.append, "written")))
    await asyncio.sleep(0)
    assert not done
    await asyncio.sleep(0)
    assert done == ["handed out", "written"]


async def test_failing_callback_does_not_stop_the_others() -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    tick_flush, done = TickFlush(), list[str]()

    def fail() -> None:
        raise ZeroDivisionError

    tick_flush.hand_out(fail)
    tick_flush.hand_out(partial(done.append, "handed out"))
    tick_flush.write_out(fail)
    tick_flush.write_out(partial(done.append, "written"))
    await asyncio.sleep(0)
    assert done == ["handed out", "written"]
    assert [type(each["exception"]) for each in told] == [ZeroDivisionError] * 2
    assert all(repr(fail) in each["message"] for each in told), "the message names the callback"
    tick_flush.write_out(partial(done.append, "written later"))
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

    async def go_on(tick_flush: TickFlush) -> None:
        tick_flush.hand_out(partial(done.append, "handed out later"))
        await asyncio.sleep(0)

    with closing(asyncio.new_event_loop()) as loop:
        tick_flush = loop.run_until_complete(make())
        tick_flush.hand_out(interrupt)
        tick_flush.hand_out(partial(done.append, "handed out"))
        tick_flush.hand_out(lambda: done.append(f"shared: {tick_flush.is_shared}"))
        tick_flush.write_out(interrupt)
        tick_flush.write_out(partial(done.append, "written"))
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                loop.run_until_complete(asyncio.sleep(0))
            assert not tick_flush.is_shared
        loop.run_until_complete(asyncio.sleep(0))
        loop.run_until_complete(go_on(tick_flush))
    assert done == [
        "interrupted",
        "handed out",
        "shared: True",
        "interrupted",
        "written",
        "handed out later",
    ]


async def test_is_shared_is_true_only_with_several_hand_outs() -> None:
    tick_flush, shared = TickFlush(), list[bool]()

    def hand_out() -> None:
        shared.append(tick_flush.is_shared)

    tick_flush.hand_out(hand_out)
    tick_flush.hand_out(hand_out)
    await asyncio.sleep(0)
    assert shared == [True, True]
    tick_flush.hand_out(hand_out)
    await asyncio.sleep(0)
    assert shared == [True, True, False]
    assert not tick_flush.is_shared
