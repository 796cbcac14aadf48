"""LS4, LS11: changes of a log while its owner waits, and bounds of lists and take-overs."""

import asyncio
from dataclasses import replace
from itertools import pairwise

import pytest

from rollbook.ledger.reader import LedgerReader
from rollbook.logservice import offset_lookup, segment_roll
from rollbook.logservice.core import roll_rules
from rollbook.logservice.core.record_block import Block
from rollbook.logservice.core.replayed_state import snapshot_in
from rollbook.logservice.ids import Offset, ProducerRef
from rollbook.logservice.log_config import LogConfig
from rollbook.logservice.messages import AcquireMode
from rollbook.proto.errors import InvalidRequest, OwnerChanging, OwnerLost
from rollbook.proto.ids import EntryId
from tests.unit.logservice import owner_scene
from tests.unit.logservice.owner_scene import Scene, block_of, play, refused


def ref(seq: int) -> ProducerRef:
    return ProducerRef(b"p", 0, seq)


# --- Changes during a wait -------------------------------------------------------------------


def test_seal_whose_last_block_is_appended_yields_to_the_hand_over() -> None:
    """LS4: the log may be handed over between the append of the last block and the seal."""

    async def story(scene: Scene) -> None:
        log = await (await scene.server("s1")).open()
        await log.append(b"a", producer=ref(0))
        scene.set_bookies(delay_s=0.05)
        pending = log.begin(b"b", producer=ref(1))  # The seal has to wait for this append.
        sealing = log.server.begin(log.owner.seal(*block_of(b"a", producer=ref(0))))
        await asyncio.sleep(0)
        closing = log.server.begin(log.owner.close("test"))
        await refused(scene.within(sealing), OwnerChanging)
        await scene.within(pending.answer)
        await scene.within(closing)
        assert (await scene.stored()).list.owner is None
        assert await scene.values() == [b"a", b"b"]

    play(story)


def test_seal_succeeds_when_a_snapshot_fills_the_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last block is in the log by then, so a refusal would be wrong."""
    monkeypatch.setattr(owner_scene, "FAST", replace(owner_scene.FAST, writer_window_entries=10))
    monkeypatch.setattr(roll_rules, "_SNAPSHOT_ENTRIES", 11)
    monkeypatch.setattr(roll_rules, "_SNAPSHOT_SHARE", 0)

    async def story(scene: Scene) -> None:
        log = await (await scene.server("s1")).open()
        scene.set_bookies(delay_s=0.05)
        writing = log.owner._append_path.writing
        while writing and writing.length.entries < 10:
            log.begin(b"a")
        before = log.owner._memory.tail
        assert await log.run(log.owner.seal(*block_of(b"last"))) == before + 1
        await log.close()
        assert (await scene.values())[-1] == b"last"

    play(story)


def test_truncation_fails_if_the_owner_is_lost_during_its_roll() -> None:
    """The owner is lost in the same event-loop turn in which the roll ends."""

    async def story(scene: Scene) -> None:
        log = await (await scene.server("s1")).open()
        await log.append(b"a")
        truncating = log.server.begin(log.owner.truncate(Offset(1), force_roll=True))
        await scene.until(lambda: log.owner._segment_roll.rolling)
        rolling = log.owner._segment_roll.rolling
        assert rolling is not None

        def lose(_: object) -> None:
            log.begin(b"b")
            log.owner.lose("the test says so")

        rolling.add_done_callback(lose, context=log.server.context)
        await refused(scene.within(truncating), OwnerChanging)
        await log.run(log.owner.ended())

    play(story)


def test_truncation_beyond_a_replaced_owners_tail_reports_owner_lost() -> None:
    """LS4: the tail of the newer owner is higher."""

    async def story(scene: Scene) -> None:
        first = await (await scene.server("s1")).open()
        await first.append(b"a")
        log = await (await scene.server("s2")).open()
        await log.append(b"b")
        await refused(first.run(first.owner.truncate(Offset(2))), OwnerLost)
        assert (await log.run(log.owner.truncate(Offset(2)))).new_head == 2
        await first.run(first.owner.ended())
        await log.close()

    play(story)


def test_hand_over_completes_if_the_log_is_lost_during_it() -> None:
    """Waiting for the hand-over must not be cancelled with the pending work."""

    async def story(scene: Scene) -> None:
        log = await (await scene.server("s1")).open()
        ack = await log.append(b"a")
        scene.set_bookies(ignored={ack.ledger_id})
        closing = log.server.begin(log.owner.close("test"))
        await asyncio.sleep(0.1)
        log.owner.lose("the test says so")
        await scene.within(closing)
        scene.set_bookies(ignored=set())
        again = await (await scene.server("s2")).open()
        assert again.owner.tail == 1
        await again.close()

    play(story)


def test_roll_of_a_lost_log_fails_with_owner_lost() -> None:
    async def story(scene: Scene) -> None:
        log = await (await scene.server("s1")).open()
        ack = await log.append(b"a")
        scene.set_bookies(ignored={ack.ledger_id})
        pending = log.begin(b"b")
        rolling = log.server.begin(log.owner.roll())
        await asyncio.sleep(0.1)
        log.owner.lose("the test says so")
        for each in (pending.answer, rolling):
            await refused(scene.within(each), OwnerLost)
        await log.run(log.owner.ended())

    play(story)


def test_seal_of_a_lost_log_fails_with_owner_lost() -> None:
    """The seal, and the block before it, are in the log; the list does not say so yet."""

    async def story(scene: Scene) -> None:
        log = await (await scene.server("s1")).open()
        await log.append(b"a")
        scene.world.metadata.down()
        sealing = log.server.begin(log.owner.seal(*block_of(b"last")))
        await scene.until(lambda: log.owner.is_sealed)
        await asyncio.sleep(0.1)
        log.owner.lose("the test says so")
        await refused(scene.within(sealing), OwnerLost)
        await log.run(log.owner.ended())
        scene.world.metadata.up()
        again = await (await scene.server("s2")).open()
        assert again.owner.is_sealed
        assert again.owner.tail == 2
        await again.close()

    play(story)


# --- Bounds ----------------------------------------------------------------------------------------


def test_log_with_too_many_segments_stops_rolling_and_can_be_truncated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(segment_roll, "SEGMENTS_MAX", 2)

    async def story(scene: Scene) -> None:
        log = await (await scene.server("s1")).open()
        await log.append(b"a")
        await log.run(log.owner.roll())
        await log.append(b"b")
        ledgers = [each async for each in scene.ledgers.list()]
        await refused(log.run(log.owner.roll()), InvalidRequest)
        assert [each async for each in scene.ledgers.list()] == ledgers
        await log.append(b"c")
        log.server.node.kill()
        again = await (await scene.server("s2")).open()
        await again.run(again.owner.truncate(Offset(3)))
        await again.append(b"d")
        await again.run(again.owner.roll())
        await again.close()
        assert (await scene.values())[-1] == b"d"

    play(story)


def test_log_with_only_control_entries_gets_snapshots_and_rolls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """LS11: barriers and writer epochs write entries without records."""
    monkeypatch.setattr(roll_rules, "_SNAPSHOT_ENTRIES", 16)
    monkeypatch.setattr(roll_rules, "_SNAPSHOT_SHARE", 0)

    async def story(scene: Scene) -> None:
        log = await (await scene.server("s1")).open()
        for _ in range(100):
            await log.run(log.owner.barrier())
        for number in range(100):
            await log.run(log.owner.acquire_writer(f"w{number}", AcquireMode.STEAL))
        log.server.node.kill()
        again = await (await scene.server("s2")).open()
        assert again.owner.writer_holder == "w99"
        await again.close()
        blocks = await scene.read_all()
        assert len(blocks) > 200
        at = [index for index, block in enumerate(blocks) if snapshot_in(block) is not None]
        assert max(after - before for before, after in pairwise(at)) <= 17
        assert len((await scene.stored()).list.segments) > 2

    play(story, config=LogConfig(roll_entries=64))


def test_time_is_found_after_many_entries_without_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads: list[EntryId] = []
    read_block = offset_lookup.read_block

    async def counted(ledger: LedgerReader, entry_id: EntryId) -> Block:
        reads.append(entry_id)
        return await read_block(ledger, entry_id)

    monkeypatch.setattr(offset_lookup, "read_block", counted)

    async def story(scene: Scene) -> None:
        log = await (await scene.server("s1")).open()
        first = await log.append(b"a")
        for _ in range(200):
            await log.run(log.owner.barrier())
        await log.append(b"b")
        await log.close()
        listed = (await scene.stored()).list
        find = offset_lookup.find_offset_at
        assert await find(listed, first.timestamp_us, scene.ledgers) == 0
        assert await find(listed, first.timestamp_us + 1, scene.ledgers) == 1
        assert len(reads) < 50

    play(story, config=LogConfig())


def test_failed_hand_over_leaves_no_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the owner takes nothing more, and neither its waiters nor its server get an error."""

    async def story(scene: Scene) -> None:
        server = await scene.server("s1")
        log = await server.open()
        await log.append(b"first")

        async def stumble(_: str) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(log.owner, "_hand_over", stumble)
        with pytest.raises(ZeroDivisionError):
            await log.close()
        assert isinstance(log.owner.failure, OwnerChanging)
        assert log.owner.until_lost.done()
        again = await server.open()
        await again.append(b"second")
        await again.close()
        assert await scene.values() == [b"first", b"second"]

    play(story)
