"""LS1 to LS11: one log and its owners, in virtual time."""

import asyncio

import pytest

from rollbook.logservice.core.rolling import AGE
from rollbook.logservice.ids import ProducerRef
from rollbook.logservice.log_config import LogConfig
from rollbook.proto.errors import (
    OwnerChanging,
)
from tests.unit.logservice.owner_scene import Scene, play


def ref(seq: int, epoch: int = 0) -> ProducerRef:
    return ProducerRef(b"p", epoch, seq)


# --- Open, append, hand over ---------------------------------------------------------------------


def test_what_was_appended_is_there_in_order() -> None:
    async def story(scene: Scene) -> None:
        log = await (await scene.server("s1")).open()
        acks = [await log.append(b"%d" % number) for number in range(5)]
        assert [ack.first_offset for ack in acks] == [0, 1, 2, 3, 4]
        assert log.owner.tail == 5
        await log.close()
        assert await scene.values() == [b"0", b"1", b"2", b"3", b"4"]
        stored = await scene.stored()
        assert stored.list.owner is None
        assert stored.list.owner_epoch == 1

    play(story)


def test_a_log_that_was_handed_over_has_nothing_to_recover() -> None:
    async def story(scene: Scene) -> None:
        log = await (await scene.server("s1")).open()
        await log.append(b"a", b"b", producer=ref(0))
        await log.close()
        assert not (await scene.stored()).list.unclosed
        with pytest.raises(OwnerChanging):
            log.begin(b"too late")
        next_log = await (await scene.server("s2")).open()
        again = await next_log.append(b"a", b"b", producer=ref(0))
        assert (again.first_offset, again.next_offset, again.is_duplicate) == (0, 2, True)
        ack = await next_log.append(b"c", producer=ref(1))
        assert (ack.first_offset, ack.owner_epoch) == (2, 2)
        await next_log.close()
        assert await scene.values() == [b"a", b"b", b"c"]

    play(story)


def test_what_is_pending_when_a_log_is_handed_over_is_acked() -> None:
    async def story(scene: Scene) -> None:
        log = await (await scene.server("s1")).open()
        pending = [log.begin(b"%d" % number) for number in range(10)]
        await log.close()
        assert [(await each.answer).first_offset for each in pending] == list(range(10))
        assert len(await scene.values()) == 10

    play(story)


# --- Roll ------------------------------------------------------------------------------------------


def test_a_log_rolls_under_load_and_nobody_notices() -> None:
    async def story(scene: Scene) -> None:
        log = await (await scene.server("s1")).open()
        pending = []
        for number in range(300):
            pending.append(log.begin(b"%d" % number, producer=ref(number)))
            if number % 3 == 0:
                await asyncio.sleep(0.002)
        acks = [await scene.within(each.answer) for each in pending]
        assert [ack.first_offset for ack in acks] == list(range(300))
        assert len({ack.ledger_id for ack in acks}) > 5
        await log.close()
        assert await scene.values() == [b"%d" % number for number in range(300)]
        segments = (await scene.stored()).list.segments
        assert [each.base_offset for each in segments[1:]] == [
            each.next_offset for each in segments[:-1]
        ]
        assert {each.reason for each in segments[1:]} == {"entries"}

    play(story)


def test_an_idle_log_rolls_by_age_and_an_empty_segment_stays() -> None:
    async def story(scene: Scene) -> None:
        log = await (await scene.server("s1")).open()
        await log.append(b"a")
        await asyncio.sleep(100)
        segments = (await scene.stored()).list.segments
        assert [each.is_closed for each in segments] == [True, False]
        assert segments[1].reason == AGE
        await asyncio.sleep(1000)
        assert (await scene.stored()).list.segments == segments
        assert await log.run(log.owner.roll()) == segments[1].segment_id
        await log.close()

    play(story, config=LogConfig(roll_age_s=60))


def test_a_roll_on_demand_returns_when_the_old_segment_is_closed() -> None:
    async def story(scene: Scene) -> None:
        log = await (await scene.server("s1")).open()
        await log.append(b"a")
        assert await log.run(log.owner.roll()) == 1
        assert (await scene.stored()).list.segments[0].next_offset == 1
        assert (await log.append(b"b")).first_offset == 1
        await log.close()
        assert await scene.values() == [b"a", b"b"]

    play(story)
