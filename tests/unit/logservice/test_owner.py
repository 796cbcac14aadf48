"""LS1 to LS11: one log and its owners, in virtual time."""

import asyncio
from contextlib import suppress

import pytest

from rollbook.logservice import append_path
from rollbook.logservice.core.control_blocks import Barrier, unpack_control
from rollbook.logservice.core.ledger_list import ListedLogState
from rollbook.logservice.core.record_block import Block
from rollbook.logservice.core.roll_rules import AGE
from rollbook.logservice.ids import Offset, ProducerRef, WriterEpoch
from rollbook.logservice.log_config import LogConfig, WriterMode
from rollbook.logservice.messages import AcquireMode, Condition
from rollbook.logservice.owner import PendingAppend
from rollbook.logservice.tail_cache import Subscription
from rollbook.proto.errors import (
    AppendUnsettled,
    InvalidRequest,
    LogSealed,
    OffsetMismatch,
    Overloaded,
    OwnerChanging,
    ProducerFenced,
    StaleEpoch,
    WriterHeld,
    WriterRequired,
)
from tests.unit.logservice.owner_scene import LOG, Held, Scene, block_of, play, refused


def ref(seq: int, epoch: int = 0) -> ProducerRef:
    return ProducerRef(b"p", epoch, seq)


# --- Open, append, hand over ---------------------------------------------------------------------


def test_appends_are_stored_in_order() -> None:
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


def test_hand_over_acks_pending_appends() -> None:
    async def story(scene: Scene) -> None:
        log = await (await scene.server("s1")).open()
        pending = [log.begin(b"%d" % number) for number in range(10)]
        await log.close()
        assert [(await each.answer).first_offset for each in pending] == list(range(10))
        assert len(await scene.values()) == 10

    play(story)


# --- Roll ------------------------------------------------------------------------------------------


def test_rolls_under_load_keep_offsets_dense() -> None:
    async def story(scene: Scene) -> None:
        log = await (await scene.server("s1")).open()
        pending: list[PendingAppend] = []
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
        written = (await scene.stored()).list.segments[1].ledger_id
        assert log.owner.last_confirmed == (
            written,
            1,
        )  # The segment's first entry, then the block.
        assert list(log.owner.confirmed) == [written]
        await log.close()
        assert await scene.values() == [b"a", b"b"]

    play(story)


# --- Seal ------------------------------------------------------------------------------------------


def test_sealed_log_refuses_appends_and_answers_retries() -> None:
    async def story(scene: Scene) -> None:
        log = await (await scene.server("s1")).open()
        await log.append(b"a", producer=ref(0))
        block, info = block_of(b"last", producer=ref(1))
        assert await log.run(log.owner.seal(block, info)) == 2
        assert await log.run(log.owner.seal(block, info)) == 2  # A retry of the same block.
        assert await log.run(log.owner.seal()) == 2  # A repeated seal without a block.
        refusal = await refused(log.append(b"b", producer=ref(2)), LogSealed)
        assert refusal.ids["tail"] == 2
        assert (await log.append(b"a", producer=ref(0))).is_duplicate
        await refused(log.run(log.owner.roll()), LogSealed)
        await refused(
            log.run(log.owner.acquire_writer("a", AcquireMode.STEAL)),
            LogSealed,
        )
        assert (await scene.stored()).list.state is ListedLogState.SEALED
        await log.close()
        again = await (await scene.server("s2")).open()
        assert (again.owner.is_sealed, again.owner.tail) == (True, 2)
        assert (await again.append(b"a", producer=ref(0))).first_offset == 0
        await refused(again.append(b"b"), LogSealed)
        await again.close()
        assert await scene.values() == [b"a", b"last"]

    play(story)


def test_a_seal_that_is_refused_seals_nothing() -> None:
    async def story(scene: Scene) -> None:
        log = await (await scene.server("s1")).open()
        wrong = Condition(expected_offset=Offset(5))
        block, info = block_of(b"last")
        await refused(log.run(log.owner.seal(block, info, wrong)), OffsetMismatch)
        await refused(log.run(log.owner.seal(condition=wrong)), OffsetMismatch)
        assert (await log.append(b"a")).first_offset == 0
        await log.close()

    play(story)


def test_first_segment_has_its_creation_time() -> None:
    async def story(scene: Scene) -> None:
        server = await scene.server("s1")
        began_us = server.node.clock.wall_us()
        log = await server.open()
        (segment,) = (await scene.stored()).list.segments
        assert began_us <= segment.first_timestamp_us <= server.node.clock.wall_us()
        assert (await log.append(b"a")).timestamp_us >= segment.first_timestamp_us
        await log.close()

    play(story)


def test_a_log_is_sealed_while_it_rolls() -> None:
    async def story(scene: Scene) -> None:
        log = await (await scene.server("s1")).open()
        pending = [log.begin(b"%d" % number) for number in range(40)]
        rolling = log.server.begin(log.owner.roll())
        sealing = log.server.begin(log.owner.seal())
        assert await scene.within(sealing) == 40
        await asyncio.gather(rolling, return_exceptions=True)
        for each in pending:
            await scene.within(each.answer)
        listed = (await scene.stored()).list
        assert (listed.state, listed.tail) == (ListedLogState.SEALED, 40)
        await log.close()
        assert len(await scene.values()) == 40

    play(story)


# --- The exclusive writer --------------------------------------------------------------------------


def test_stolen_writer_epoch_fences_older_appends() -> None:
    """LS8."""

    async def story(scene: Scene) -> None:
        log = await (await scene.server("s1")).open()
        await refused(log.append(b"x"), WriterRequired)
        first = await log.run(log.owner.acquire_writer("a", AcquireMode.FAIL))
        mine = Condition(writer_epoch=first.writer_epoch)
        pending = [log.begin(b"%d" % number, condition=mine) for number in range(5)]
        stealing = log.server.begin(log.owner.acquire_writer("b", AcquireMode.STEAL))
        await scene.until(lambda: log.owner.writer_epoch == 2)
        late = log.begin(b"late", condition=mine)
        grant = await scene.within(stealing)
        assert all(each.answer.done() for each in pending)
        assert (grant.writer_epoch, grant.fence_offset) == (2, 5)
        error = await refused(scene.within(late.answer), StaleEpoch)
        assert error.ids["fenced_at"] == 5
        await refused(log.run(log.owner.renew_writer(first.writer_epoch)), StaleEpoch)
        renewed = await log.run(log.owner.renew_writer(grant.writer_epoch))
        assert renewed == grant
        log.server.node.kill()
        second = await (await scene.server("s2")).open()
        await refused(second.append(b"x", condition=mine), StaleEpoch)
        ack = await second.append(b"y", condition=Condition(writer_epoch=grant.writer_epoch))
        assert (ack.first_offset, ack.writer_epoch) == (5, 2)
        await second.close()

    play(story, config=LogConfig(writer_mode=WriterMode.EXCLUSIVE))


def test_epoch_is_granted_only_after_appends_of_older_ones_are_settled() -> None:
    """LS8: otherwise an older writer's append could still appear in the log."""

    async def story(scene: Scene) -> None:
        log = await (await scene.server("s1")).open()
        scene.set_bookies(delay_s=0.3)
        pending = log.begin(b"a")
        stealing = log.server.begin(log.owner.acquire_writer("b", AcquireMode.STEAL))
        await asyncio.sleep(0.2)
        assert log.owner.writer_epoch == 1
        assert not stealing.done()
        assert (await scene.within(stealing)).fence_offset == 1
        assert pending.answer.done()
        scene.set_bookies(delay_s=0.0)
        await log.close()

    play(story)


def test_waiter_gets_the_writer_epoch_when_it_is_released_or_expires() -> None:
    async def story(scene: Scene) -> None:
        log = await (await scene.server("s1")).open()
        first = await log.run(log.owner.acquire_writer("a", AcquireMode.WAIT))
        await refused(log.run(log.owner.acquire_writer("b", AcquireMode.FAIL)), WriterHeld)
        waiting = log.server.begin(log.owner.acquire_writer("b", AcquireMode.WAIT, 5000))
        await asyncio.sleep(20)
        assert not waiting.done()
        await log.run(log.owner.release_writer(first.writer_epoch))
        second = await scene.within(waiting)
        assert (second.writer_epoch, log.owner.writer_holder) == (2, "b")
        began = scene.world.now
        third = await log.run(log.owner.acquire_writer("c", AcquireMode.WAIT))
        assert third.writer_epoch == 3
        assert 4.9 < scene.world.now - began < 5.5
        await refused(log.run(log.owner.release_writer(WriterEpoch(2))), StaleEpoch)
        await log.close()

    play(story)


@pytest.mark.parametrize("mode", list(AcquireMode))
def test_retried_acquire_returns_the_epoch_already_granted(mode: AcquireMode) -> None:
    """A retry must not be refused because of itself, wait for itself, or get another epoch."""

    async def story(scene: Scene) -> None:
        log = await (await scene.server("s1")).open()
        scene.set_bookies(delay_s=0.3)
        both = [
            log.server.begin(log.owner.acquire_writer("a", mode, attempt="mine")) for _ in range(2)
        ]
        grant = await scene.within(both[0])
        assert await scene.within(both[1]) == grant
        scene.set_bookies(delay_s=0.0)
        await log.append(b"x", condition=Condition(writer_epoch=grant.writer_epoch))
        log.server.node.kill()
        log = await (await scene.server("s2")).open()
        assert await log.run(log.owner.acquire_writer("a", mode, attempt="mine")) == grant
        await refused(log.run(log.owner.acquire_writer("a", AcquireMode.FAIL)), WriterHeld)
        assert (grant.writer_epoch, grant.fence_offset) == (1, 0)
        await log.close()

    play(story)


def test_late_acquire_retry_gets_no_epoch_after_a_release() -> None:
    async def story(scene: Scene) -> None:
        log = await (await scene.server("s1")).open()
        fail = AcquireMode.FAIL
        first = await log.run(log.owner.acquire_writer("a", fail, attempt="mine"))
        await log.run(log.owner.release_writer(first.writer_epoch))
        await refused(log.run(log.owner.acquire_writer("a", fail, attempt="mine")), StaleEpoch)
        second = await log.run(log.owner.acquire_writer("b", fail, attempt="another"))
        assert second.writer_epoch == 2
        await refused(log.run(log.owner.acquire_writer("a", fail, attempt="mine")), WriterHeld)
        scene.set_bookies(delay_s=0.3)
        asking = log.server.begin(log.owner.acquire_writer("b", fail, attempt="another"))
        await asyncio.sleep(0.1)
        steal = log.owner.acquire_writer("c", AcquireMode.STEAL, attempt="last")
        stealing = log.server.begin(steal)
        await refused(scene.within(asking), StaleEpoch)
        third = await scene.within(stealing)
        scene.set_bookies(delay_s=0.0)
        assert await log.run(log.owner.acquire_writer("c", fail, attempt="last")) == third
        await log.owner.seal()
        await refused(log.run(log.owner.acquire_writer("c", fail, attempt="last")), LogSealed)
        await log.close()

    play(story)


def test_equal_attempts_of_two_holders_are_distinct() -> None:
    """LS8: otherwise both would write under one epoch, and a steal would fence nobody."""

    async def story(scene: Scene) -> None:
        log = await (await scene.server("s1")).open()
        fail, steal = AcquireMode.FAIL, AcquireMode.STEAL
        first = await log.run(log.owner.acquire_writer("a", fail, attempt="1"))
        await refused(log.run(log.owner.acquire_writer("b", fail, attempt="1")), WriterHeld)
        second = await log.run(log.owner.acquire_writer("b", steal, attempt="1"))
        assert (first.writer_epoch, second.writer_epoch, second.holder) == (1, 2, "b")
        await refused(
            log.append(b"x", condition=Condition(writer_epoch=WriterEpoch(1))), StaleEpoch
        )
        await refused(log.run(log.owner.acquire_writer("a", fail, attempt="1")), WriterHeld)
        assert await log.run(log.owner.acquire_writer("b", fail, attempt="1")) == second
        await log.run(log.owner.release_writer(second.writer_epoch))
        await refused(log.run(log.owner.acquire_writer("a", fail, attempt="1")), StaleEpoch)
        await log.close()

    play(story)


# --- Barriers ---------------------------------------------------------------------------------------


def test_named_producer_gets_its_progress_once_it_is_settled() -> None:
    """LS15: also from the next owner, and while appends of an older instance are pending."""
    name = b"loader"

    async def story(scene: Scene) -> None:
        log = await (await scene.server("s1")).open()
        first = await log.run(log.owner.begin_producer(name))
        assert (first.records, first.last_offset) == (0, None)
        await log.append(b"a", b"b", producer=ProducerRef(name, first.epoch, 0))
        scene.set_bookies(delay_s=0.3)
        pending = log.begin(b"c", producer=ProducerRef(name, first.epoch, 1))
        beginning = log.server.begin(log.owner.begin_producer(name))
        await asyncio.sleep(0.2)
        assert not beginning.done()
        second = await scene.within(beginning)
        assert pending.answer.done()
        assert (second.records, second.last_offset) == (3, 2)
        assert second.epoch > first.epoch
        scene.set_bookies(delay_s=0.0)
        late = log.begin(b"late", producer=ProducerRef(name, first.epoch, 2))
        await refused(scene.within(late.answer), ProducerFenced)
        log.server.node.kill()
        again = await (await scene.server("s2")).open()
        late = again.begin(b"late", producer=ProducerRef(name, first.epoch, 2))
        await refused(scene.within(late.answer), ProducerFenced)
        await again.append(b"d", producer=ProducerRef(name, second.epoch, 0))
        third = await again.run(again.owner.begin_producer(name))
        assert (third.records, third.last_offset) == (4, 3)
        await again.run(again.owner.seal())
        await refused(again.run(again.owner.begin_producer(name)), LogSealed)
        await again.close()
        assert await scene.values() == [b"a", b"b", b"c", b"d"]

    play(story)


def test_barriers_share_entries_and_need_none_beside_appends() -> None:
    """LS10."""

    async def story(scene: Scene) -> None:
        log = await (await scene.server("s1")).open()
        await log.append(b"a")
        alone = [log.server.begin(log.owner.barrier()) for _ in range(50)]
        assert {await scene.within(each) for each in alone} == {1}
        beside = log.server.begin(log.owner.barrier())
        await asyncio.sleep(0)
        pending = log.begin(b"b")
        assert await scene.within(beside) == 2
        assert pending.answer.done()
        await log.close()
        said = [unpack_control(block) for block in await scene.read_all() if block.is_control]
        assert sum(isinstance(each, Barrier) for each in said) == 1

    play(story)


# --- Backpressure ---------------------------------------------------------------------------------------------


def test_a_full_window_refuses_and_changes_nothing() -> None:
    async def story(scene: Scene) -> None:
        log = await (await scene.server("s1")).open()
        scene.set_bookies(is_hung=True)
        big = b"x" * 1_000_000
        pending: list[PendingAppend] = []
        with suppress(Overloaded):
            while True:
                pending.append(log.begin(big, producer=ref(len(pending))))
        taken = len(pending)
        assert 10 <= taken <= 16
        waiting = log.server.begin(log.owner.ready(len(big)))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        scene.set_bookies(is_hung=False)
        scene.world.network.reset("s1", "b1")
        scene.world.network.reset("s1", "b2")
        scene.world.network.reset("s1", "b3")
        scene.world.network.reset("s1", "b4")
        await scene.within(waiting)
        ack = await log.append(big, producer=ref(taken))
        assert ack.first_offset == taken
        await log.close()

    play(story, config=LogConfig())


def test_withheld_refusals_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append_path, "_UNCERTAIN_MAX", 100)

    async def story(scene: Scene) -> None:
        log = await (await scene.server("s1")).open()
        scene.set_bookies(delay_s=0.2)
        pending = [log.begin(b"a")]
        wrong = Condition(expected_offset=Offset(9))
        with suppress(Overloaded):
            while True:
                pending.append(log.begin(b"b", condition=wrong))
        assert len(pending) == 100
        await log.run(log.owner.ready())
        assert all(each.answer.done() for each in pending)
        scene.set_bookies(delay_s=0.0)
        await log.close()

    play(story)


# --- Failing dependencies --------------------------------------------------------------------------


def test_log_that_cannot_roll_continues_in_its_segment() -> None:
    async def story(scene: Scene) -> None:
        log = await (await scene.server("s1")).open()
        await log.append(b"a")
        scene.world.metadata.down()
        for number in range(100):
            assert (await log.append(b"%d" % number)).first_offset == number + 1
            await asyncio.sleep(0.1)
        scene.world.metadata.up()
        await asyncio.sleep(15)
        await log.append(b"z")
        await asyncio.sleep(1)
        listed = (await scene.stored()).list
        assert len(listed.segments) == 2
        await log.close()
        assert len(await scene.values()) == 102

    play(story)


def test_append_without_bookies_is_unsettled_and_log_reopens() -> None:
    async def story(scene: Scene) -> None:
        server = await scene.server("s1")
        log = await server.open()
        await log.append(b"a", producer=ref(0))
        scene.set_bookies(is_hung=True)
        await refused(log.append(b"b", producer=ref(1)), AppendUnsettled)
        await refused(log.append(b"b", producer=ref(1)), OwnerChanging)
        await log.run(log.owner.ended())
        scene.set_bookies(is_hung=False)
        again = await server.open()
        assert (await again.append(b"b", producer=ref(1))).first_offset == 1
        await again.close()

    play(story)


def test_refreshed_owner_applies_a_new_configuration() -> None:
    async def story(scene: Scene) -> None:
        log = await (await scene.server("s1")).open()
        await log.append(b"a")
        exclusive = LogConfig(writer_mode=WriterMode.EXCLUSIVE, roll_age_s=5)
        await scene.nodes.change(LOG, lambda listed: listed.with_config(exclusive))
        await log.run(log.owner.refresh())
        await refused(log.append(b"b"), WriterRequired)
        await asyncio.sleep(10)
        assert len((await scene.stored()).list.segments) == 2
        await log.close()

    play(story)


# --- Readers at the tail ------------------------------------------------------------------------------


def test_tail_readers_see_blocks_only_once_acked() -> None:
    async def story(scene: Scene) -> None:
        log = await (await scene.server("s1")).open()
        await log.append(b"a")
        reader = log.owner.tail_from(Offset(0))
        assert reader is not None
        assert [Block(each).values() for each in await next_blocks(log, reader)] == [[b"a"]]
        scene.set_bookies(delay_s=0.1)
        waiting = log.server.begin(reader.next(5.0, 1000))
        pending = log.begin(b"b", b"c")
        await asyncio.sleep(0.05)
        assert not waiting.done()
        blocks = await scene.within(waiting)
        assert blocks
        assert [Block(each).values() for each in blocks] == [[b"b", b"c"]]
        await scene.within(pending.answer)
        assert reader.offset == 3
        assert await next_blocks(log, reader) == []
        assert log.owner.tail_from(Offset(4)) is None
        scene.set_bookies(delay_s=0.0)
        await log.close()
        with pytest.raises(OwnerChanging):
            await next_blocks(log, reader)

    play(story)


async def next_blocks(log: Held, reader: Subscription) -> list[bytes]:
    blocks = await log.run(reader.next(0.1, 1000))
    assert blocks is not None
    return blocks


# --- Truncation ---------------------------------------------------------------------------------------


def test_truncation_frees_ledgers_and_keeps_producers() -> None:
    async def story(scene: Scene) -> None:
        log = await (await scene.server("s1")).open()
        for number in range(60):
            await log.append(b"%d" % number, producer=ref(number))
        before = len((await scene.stored()).list.segments)
        assert before >= 4
        plan = await log.run(log.owner.truncate(Offset(60), dry_run=True))
        assert plan.new_head == 60
        assert (await scene.stored()).list.head == 0
        await log.run(log.owner.truncate(Offset(60), force_roll=True))
        assert log.owner.head == 60
        await asyncio.sleep(1)
        listed = (await scene.stored()).list
        assert (listed.head, len(listed.segments), listed.discarded) == (60, 1, ())
        assert [each async for each in scene.ledgers.list()] == [listed.segments[0].ledger_id]
        await refused(log.run(log.owner.truncate(Offset(61))), InvalidRequest)
        log.server.node.kill()
        again = await (await scene.server("s2")).open()
        assert (await again.append(b"59", producer=ref(59))).first_offset == 59
        assert (await again.append(b"60", producer=ref(60))).first_offset == 60
        await again.close()

    play(story)


def test_segment_with_log_memory_is_kept_until_the_next_has_begun() -> None:
    """LS5: if the owner died, the new segment would be found empty and the producers be unknown."""

    async def story(scene: Scene) -> None:
        log = await (await scene.server("s1")).open()
        ack = await log.append(b"a", producer=ref(0))
        scene.set_bookies(ignored={ack.ledger_id + 1})
        rolling = log.server.begin(log.owner.roll())
        await scene.until(lambda: any(each.is_closed for each in log.owner.list.segments))
        assert not log.owner._segment_roll.has_begun(log.owner.list)
        truncating = log.server.begin(log.owner.truncate(Offset(1)))
        await asyncio.sleep(0.5)
        assert not truncating.done()
        log.server.node.kill()
        rolling.cancel()
        truncating.cancel()
        scene.set_bookies(ignored=set())
        again = await (await scene.server("s2")).open()
        assert (await again.append(b"a", producer=ref(0))).is_duplicate
        await again.close()

    play(story)
