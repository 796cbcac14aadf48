"""LS5 to LS8: how the sequencer orders appends."""

from typing import Final

import pytest

from rollbook.logservice.core.control_blocks import (
    Control,
    Follows,
    SealBlock,
    Snapshot,
    WriterAcquired,
    WriterReleased,
    pack_control,
)
from rollbook.logservice.core.producers import AppendedBatch
from rollbook.logservice.core.record_block import Block, BlockInfo, Codec, pack_block, stamped
from rollbook.logservice.core.replayed_state import LogMemory, snapshot_in
from rollbook.logservice.core.sequencer import BlockStamp, Sequencer
from rollbook.logservice.ids import TIMESTAMP_US_MAX, Offset, OwnerEpoch, ProducerRef, WriterEpoch
from rollbook.logservice.messages import AcquireMode, Condition
from rollbook.proto.errors import (
    BadMetadata,
    BlockCorrupt,
    InvalidRequest,
    LogSealed,
    OffsetMismatch,
    ProducerGap,
    StaleEpoch,
    WriterHeld,
    WriterRequired,
)
from rollbook.proto.ids import EntryId, LedgerId

L1: Final = LedgerId(1)
MS: Final = 1_000_000


class Log:
    """A log's sequencer, and the blocks that it has placed."""

    def __init__(self, *, is_exclusive: bool = False) -> None:
        self.memory = LogMemory()
        self.sequencer = Sequencer(self.memory, is_exclusive=is_exclusive)
        self.blocks: list[Block] = []

    def decide(
        self,
        count: int = 1,
        *,
        producer: ProducerRef | None = None,
        condition: Condition | None = None,
        wall_us: int = 0,
    ) -> BlockStamp | AppendedBatch:
        info = BlockInfo(count, producer, Codec.NONE, 100, 100, count)
        return self.sequencer.decide(info, condition, wall_us)

    def append(
        self,
        count: int = 1,
        *,
        producer: ProducerRef | None = None,
        condition: Condition | None = None,
        wall_us: int = 0,
    ) -> BlockStamp:
        place = self.decide(count, producer=producer, condition=condition, wall_us=wall_us)
        assert type(place) is BlockStamp
        info = BlockInfo(count, producer, Codec.NONE, 100, 100, count)
        self.sequencer.on_placed(place, info, L1, EntryId(len(self.blocks)))
        packed = pack_block([b"x"] * count, producer=producer)
        self._keep(packed, place.base_offset, place.timestamp_us)
        return place

    def say(self, said: Control) -> None:
        self._keep(pack_control(said), self.memory.tail, self.memory.timestamp_us)

    def acquire(
        self, holder: str, mode: AcquireMode, ttl_ms: int, now_ns: int, attempt: str = ""
    ) -> WriterEpoch:
        acquired = self.sequencer.acquire(holder, mode, ttl_ms, now_ns, attempt)
        self.say(acquired)
        self.sequencer.on_acquired(acquired, now_ns)
        return acquired.epoch

    def _keep(self, packed: bytes, base_offset: int, timestamp_us: int) -> None:
        block = stamped(
            packed,
            base_offset=base_offset,
            base_timestamp_us=timestamp_us,
            owner_epoch=1,
            writer_epoch=self.memory.writer_epoch,
        )
        self.blocks.append(Block(block))


def ref(seq: int, epoch: int = 0) -> ProducerRef:
    return ProducerRef(b"p", epoch, seq)


def test_offsets_are_dense() -> None:
    log = Log()
    places = [log.append(count) for count in (3, 1, 10)]
    assert [place[:2] for place in places] == [(0, 3), (3, 4), (4, 14)]


def test_time_never_goes_back() -> None:
    """LS7: searches by time rely on the order."""
    log = Log()
    times = [log.append(wall_us=us).timestamp_us for us in (100, 50, 100, 101, 2**63)]
    assert times == [100, 100, 100, 101, TIMESTAMP_US_MAX]


def test_deciding_changes_nothing() -> None:
    """If the ledger has no room, the append must leave no trace."""
    log = Log()
    before = log.memory.pack()
    log.decide(5, producer=ref(0), wall_us=7)
    assert log.memory.pack() == before


# --- Dedupe first -------------------------------------------------------------------------------


def test_the_retry_of_an_applied_append_is_no_mismatch() -> None:
    """LS6: the first attempt moved the tail away from where both expect it."""
    log = Log()
    condition = Condition(expected_offset=Offset(0), must_be_empty=True)
    first = log.append(2, producer=ref(0), condition=condition)
    again = log.decide(2, producer=ref(0), condition=condition)
    assert again == AppendedBatch(*first, L1, EntryId(0))


def test_retry_of_an_applied_append_is_answered_after_its_writer_is_fenced() -> None:
    log = Log(is_exclusive=True)
    epoch = log.acquire("a", AcquireMode.STEAL, 0, 0)
    condition = Condition(writer_epoch=epoch)
    first = log.append(producer=ref(0), condition=condition)
    log.acquire("b", AcquireMode.STEAL, 0, 0)
    again = log.decide(producer=ref(0), condition=condition)
    assert again[:3] == first
    with pytest.raises(StaleEpoch):
        log.decide(producer=ref(1), condition=condition)


def test_retry_of_an_applied_append_is_answered_after_the_log_is_sealed() -> None:
    log = Log()
    first = log.append(producer=ref(0))
    log.memory.is_sealed = True
    assert log.decide(producer=ref(0))[:3] == first
    with pytest.raises(LogSealed):
        log.decide(producer=ref(1))
    with pytest.raises(LogSealed):
        log.decide()


def test_refused_appends_do_not_advance_the_producer() -> None:
    log = Log()
    log.append(producer=ref(0))
    with pytest.raises(OffsetMismatch):
        log.decide(producer=ref(1), condition=Condition(expected_offset=Offset(9)))
    with pytest.raises(ProducerGap):
        log.decide(producer=ref(2))
    assert log.append(producer=ref(1)).base_offset == 1


# --- Conditions ---------------------------------------------------------------------------------


def test_append_at_a_wrong_expected_offset_is_refused() -> None:
    log = Log()
    log.append(5, condition=Condition(expected_offset=Offset(0)))
    with pytest.raises(OffsetMismatch) as refusal:
        log.decide(condition=Condition(expected_offset=Offset(4)))
    assert refusal.value.ids["tail"] == 5
    log.append(condition=Condition(expected_offset=Offset(5)))


def test_append_expecting_an_empty_log_is_refused_on_nonempty_log() -> None:
    log = Log()
    log.append(condition=Condition(must_be_empty=True))
    with pytest.raises(OffsetMismatch):
        log.decide(condition=Condition(must_be_empty=True))
    with pytest.raises(OffsetMismatch):  # The tail is where it is expected, but not empty.
        log.decide(condition=Condition(must_be_empty=True, expected_offset=Offset(1)))


def test_stale_writer_gets_stale_epoch_not_offset_mismatch() -> None:
    """Otherwise the client would read up to the tail and retry for ever."""
    log = Log()
    old = log.acquire("a", AcquireMode.STEAL, 0, 0)
    new = log.acquire("b", AcquireMode.STEAL, 0, 0)
    log.append(3, condition=Condition(writer_epoch=new))
    with pytest.raises(StaleEpoch) as refusal:
        log.decide(condition=Condition(expected_offset=Offset(0), writer_epoch=old))
    assert refusal.value.ids["holder"] == "b"
    assert refusal.value.ids["fenced_at"] == 0


def test_exclusive_log_requires_a_writer_epoch() -> None:
    log = Log(is_exclusive=True)
    with pytest.raises(WriterRequired):
        log.decide()
    epoch = log.acquire("a", AcquireMode.STEAL, 0, 0)
    log.append(condition=Condition(writer_epoch=epoch))
    with pytest.raises(WriterRequired):
        log.decide(condition=Condition(expected_offset=Offset(1)))


def test_epoch_that_was_never_granted_is_rejected() -> None:
    log = Log()
    for epoch in (0, 1, -1):
        with pytest.raises(InvalidRequest):
            log.decide(condition=Condition(writer_epoch=WriterEpoch(epoch)))


# --- The exclusive writer -----------------------------------------------------------------------


def test_released_writer_epoch_is_stale() -> None:
    log = Log()
    epoch = log.acquire("a", AcquireMode.FAIL, 0, 0)
    log.memory.on_released(epoch)
    with pytest.raises(StaleEpoch):
        log.decide(condition=Condition(writer_epoch=epoch))
    assert log.acquire("b", AcquireMode.FAIL, 0, 0) == epoch + 1


def test_held_epoch_is_granted_only_to_a_steal() -> None:
    log = Log()
    first = log.acquire("a", AcquireMode.FAIL, 0, 0)
    for mode in (AcquireMode.FAIL, AcquireMode.WAIT):
        with pytest.raises(WriterHeld) as refusal:
            log.sequencer.acquire("b", mode, 0, 10**18)
        assert refusal.value.ids["holder"] == "a"
    assert log.acquire("b", AcquireMode.STEAL, 0, 1) == first + 1


def test_lease_expires_unless_renewed() -> None:
    log = Log()
    log.acquire("a", AcquireMode.FAIL, 5000, 0)
    assert log.sequencer.held_for_ns(1000 * MS) == 4000 * MS
    log.sequencer.on_renewed(3000 * MS)
    with pytest.raises(WriterHeld):
        log.sequencer.acquire("b", AcquireMode.FAIL, 0, 7999 * MS)
    log.acquire("b", AcquireMode.FAIL, 0, 8000 * MS)
    assert log.sequencer.held_for_ns(0) is None


@pytest.mark.parametrize(("unheard_s", "held_s"), [(0, 5), (2, 3), (60, 2.5), (-9, 5)])
def test_new_owner_counts_time_without_owner_against_the_lease(
    unheard_s: int, held_s: float
) -> None:
    """Counted from the newest entry; half of the lease remains, since the writer could not renew it."""
    log = Log()
    log.acquire("a", AcquireMode.FAIL, 5000, 0)
    replayed = Sequencer(LogMemory.unpack(log.memory.pack()), is_exclusive=False)
    wall_us = replayed.memory.timestamp_us + unheard_s * 1_000_000
    replayed.on_owner_changed(100_000 * MS, wall_us)
    assert replayed.held_for_ns(100_000 * MS) == held_s * 1000 * MS


def test_epoch_without_a_lease_is_held_across_owners() -> None:
    log = Log()
    log.acquire("a", AcquireMode.FAIL, 0, 0)
    log.sequencer.on_owner_changed(0, 10**15)
    assert log.sequencer.is_held(10**18)


# --- Replay -------------------------------------------------------------------------------------


def full_log() -> Log:
    log = Log()
    log.append(3, producer=ref(0), wall_us=10)
    epoch = log.acquire("a", AcquireMode.STEAL, 70, 0)
    log.append(2, producer=ref(1), condition=Condition(writer_epoch=epoch), wall_us=20)
    log.say(WriterReleased(epoch))
    log.memory.on_released(epoch)
    log.acquire("ü", AcquireMode.STEAL, 0, 0, "é1")
    log.append(producer=ref(0, epoch=1), wall_us=15)
    log.say(SealBlock())
    log.memory.is_sealed = True
    return log


def test_replay_restores_the_owners_state() -> None:
    """LS5, from the beginning and from any snapshot."""
    log = full_log()
    states = [LogMemory().pack()]
    for start in range(len(log.blocks)):
        memory = LogMemory.unpack(states[start])
        memory.replay(log.blocks[start], L1, EntryId(start))
        states.append(memory.pack())
    assert states[-1] == log.memory.pack()
    assert LogMemory.unpack(states[-1]).holder == "ü"
    assert LogMemory.unpack(states[-1]).attempt == "é1"


def test_time_between_owners_does_not_age_producers() -> None:
    """LT1: also after a replay from a snapshot; snapshots of older releases have no gaps."""
    memory = LogMemory()
    memory.on_time(1_000_000, OwnerEpoch(1))
    memory.on_time(9_000_000, OwnerEpoch(1))
    assert not memory.producers.lived.gaps
    snapshot, beside = memory.pack(), memory.pack_lived()
    for known, gaps in ((memory, 1), (LogMemory.unpack(snapshot, lived=beside), 1)):
        known.on_time(99_000_000, OwnerEpoch(2))
        known.on_time(99_500_000, OwnerEpoch(3))  # Too short to matter.
        assert len(known.producers.lived.gaps) == gaps
        assert known.producers.lived.age_us(5_000_000, 100_000_000) == 5_000_000
        again = LogMemory.unpack(known.pack(), lived=known.pack_lived())
        assert again.producers.lived == known.producers.lived
        assert again.owner_epoch == 3
    before = LogMemory.unpack(snapshot)
    before.on_time(99_000_000, OwnerEpoch(2))
    assert not before.producers.lived.gaps
    with pytest.raises(BadMetadata):
        LogMemory.unpack(snapshot, lived=beside[:-1])


def test_replay_of_a_block_out_of_order_is_corrupt() -> None:
    log = full_log()
    memory = LogMemory()
    memory.replay(log.blocks[0], L1, EntryId(0))
    with pytest.raises(BlockCorrupt):
        memory.replay(log.blocks[0], L1, EntryId(1))
    with pytest.raises(BlockCorrupt):
        memory.replay(log.blocks[-1], L1, EntryId(1))


def test_replay_may_begin_at_follows_and_snapshot_blocks() -> None:
    log = full_log()
    log.say(Follows(L1, EntryId(3), b"state"))
    log.say(Snapshot(b"later"))
    log.say(WriterAcquired(WriterEpoch(9), "", 0))
    found = [snapshot_in(block) for block in log.blocks[-4:]]
    assert found == [None, Follows(L1, EntryId(3), b"state"), Snapshot(b"later"), None]


def test_damaged_snapshot_is_rejected() -> None:
    packed = full_log().memory.pack()
    for cut in range(len(packed)):
        with pytest.raises(BadMetadata):
            LogMemory.unpack(packed[:cut])
    with pytest.raises(BadMetadata):
        LogMemory.unpack(b"\xff" + packed[1:])
