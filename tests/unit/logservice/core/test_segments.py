"""How a reader moves from segment to segment: which entries it accepts, and when it waits."""

import random

import pytest

from rollbook.logservice.core.control_blocks import Barrier, Control, Follows, pack_control
from rollbook.logservice.core.ledger_list import LedgerList, ListedSegmentState, Segment
from rollbook.logservice.core.record_block import Block, pack_block, stamped
from rollbook.logservice.core.segment_lookup import find_segment, find_segment_at, from_last_settled
from rollbook.logservice.core.segment_traversal import (
    AwaitOwner,
    AwaitRoll,
    End,
    Enter,
    Gone,
    Trail,
)
from rollbook.logservice.ids import (
    LogUid,
    Offset,
    OwnerEpoch,
    SegmentId,
    ServerId,
    ServerInfo,
    WriterEpoch,
)
from rollbook.logservice.log_config import LogConfig
from rollbook.proto.errors import DataLost
from rollbook.proto.ids import FIRST_ENTRY, NO_ENTRY, EntryId, LedgerId

L1, L2, L3, L4 = map(LedgerId, (1, 2, 3, 4))
EMPTY = LedgerList(LogUid(bytes(16)), LogConfig(), created_us=1).with_owner(
    ServerInfo(ServerId("a~1"), "a:7400")
)


def stamp(block: bytes, base: int, time_us: int = 1000) -> bytes:
    return stamped(
        block,
        base_offset=Offset(base),
        base_timestamp_us=time_us,
        owner_epoch=OwnerEpoch(1),
        writer_epoch=WriterEpoch(0),
    )


def records(base: int, count: int) -> bytes:
    return stamp(pack_block([b"%d" % number for number in range(base, base + count)]), base)


def control(said: Control, base: int) -> bytes:
    return stamp(pack_control(said), base)


def follows(ledger_id: int, last_entry: int, base: int) -> bytes:
    return control(Follows(LedgerId(ledger_id), EntryId(last_entry), b""), base)


def begin(listed: LedgerList, ledger_id: LedgerId) -> LedgerList:
    return listed.with_successor(ledger_id, "test", 0)


def close(listed: LedgerList, number: int, end: int, time_us: int = 1000) -> LedgerList:
    return listed.with_closed(
        SegmentId(number), next_offset=Offset(end), last_timestamp_us=time_us, bytes=100
    )


def enter(trail: Trail, listed: LedgerList) -> Enter:
    step = trail.pick(listed)
    assert isinstance(step, Enter), step
    trail.enter(step.segment, FIRST_ENTRY if step.first_entry is None else step.first_entry)
    return step


ONE = begin(EMPTY, L1)
TWO = begin(ONE, L2)  # Rolling: the first segment is not closed yet.


def test_a_log_is_read_from_its_first_segment_to_its_end() -> None:
    trail = Trail(Offset(0))
    assert enter(trail, ONE).first_entry == FIRST_ENTRY
    entries = [follows(-1, -1, 0), records(0, 3), control(Barrier(), 3), records(3, 2)]
    assert trail.on_entries(entries) == [entries[1], entries[3]]
    assert (trail.next_offset, trail.next_entry) == (5, 4)
    trail.on_end(EntryId(3))
    assert trail.pick(ONE) == AwaitOwner()
    assert trail.pick(close(ONE, 0, 5).with_sealed(Offset(5))) == End()


def test_successor_that_names_its_predecessors_end_is_read_at_once() -> None:
    """RL2: the reader does not wait for the list."""
    trail = Trail(Offset(0))
    enter(trail, TWO)
    trail.on_entries([follows(-1, -1, 0), records(0, 3)])
    trail.on_end(EntryId(1))
    enter(trail, TWO)
    assert trail.on_entries([follows(1, 1, 3), records(3, 1)]) == [records(3, 1)]
    assert trail.next_offset == 4


@pytest.mark.parametrize("last_entry", [0, 2, -1])
def test_a_successor_that_names_another_end_is_not_read(last_entry: int) -> None:
    """The successor is discarded; the reader waits until the list names the next segment."""
    trail = Trail(Offset(0))
    enter(trail, TWO)
    trail.on_entries([follows(-1, -1, 0), records(0, 3)])
    trail.on_end(EntryId(1))
    enter(trail, TWO)
    assert trail.on_entries([follows(1, last_entry, 3), records(3, 1)]) is None
    assert trail.next_offset == 3
    assert trail.pick(TWO) == AwaitRoll()
    settled = begin(close(TWO, 0, 3).with_discarded(SegmentId(1)), L3)
    assert enter(trail, settled).segment.ledger_id == L3
    assert trail.on_entries([follows(1, 1, 3), records(3, 2)]) == [records(3, 2)]


def test_empty_successor_makes_the_reader_wait() -> None:
    trail = Trail(Offset(0))
    enter(trail, TWO)
    trail.on_entries([follows(-1, -1, 0)])
    trail.on_end(EntryId(0))
    enter(trail, TWO)
    trail.on_end(NO_ENTRY)
    assert trail.pick(TWO) == AwaitRoll()
    settled = begin(close(TWO, 0, 0).with_discarded(SegmentId(1)), L3)
    assert enter(trail, settled).segment.ledger_id == L3


def test_a_successor_whose_first_entry_is_no_follows_is_not_read() -> None:
    trail = Trail(Offset(0))
    enter(trail, TWO)
    trail.on_entries([follows(-1, -1, 0), records(0, 3)])
    trail.on_end(EntryId(1))
    enter(trail, TWO)
    assert trail.on_entries([records(3, 1)]) is None


def test_empty_segments_are_skipped() -> None:
    listed = begin(close(ONE, 0, 3), L2)
    listed = begin(close(listed, 1, 3), L3)
    trail = Trail(Offset(0))
    enter(trail, listed)
    trail.on_entries([follows(-1, -1, 0), records(0, 3)])
    trail.on_end(EntryId(1))
    assert enter(trail, listed).segment.ledger_id == L2
    trail.on_entries([follows(1, 1, 3)])
    trail.on_end(EntryId(0))
    assert enter(trail, listed).segment.ledger_id == L3
    assert trail.on_entries([follows(2, 0, 3), records(3, 1)]) == [records(3, 1)]


def test_reader_that_starts_within_a_block_gets_the_whole_block() -> None:
    listed = begin(close(ONE, 0, 10), L2)
    trail = Trail(Offset(5))
    step = trail.pick(listed)
    assert isinstance(step, Enter)
    assert (step.segment.ledger_id, step.first_entry) == (L1, None)
    trail.enter(step.segment, EntryId(2))
    assert trail.on_entries([records(4, 3), records(7, 3)]) == [records(4, 3), records(7, 3)]
    assert trail.next_offset == 10


def test_blocks_below_the_start_are_not_returned() -> None:
    trail = Trail(Offset(5))
    enter(trail, ONE)
    assert trail.on_entries([records(0, 5), records(5, 1)]) == [records(5, 1)]


@pytest.mark.parametrize("base", [2, 4, 5])
def test_blocks_that_overlap_or_leave_a_gap_are_lost_data(base: int) -> None:
    """RL1: offsets are dense: no record is returned twice or left out."""
    trail = Trail(Offset(0))
    enter(trail, ONE)
    trail.on_entries([follows(-1, -1, 0), records(0, 3)])
    with pytest.raises(DataLost):
        trail.on_entries([records(base, 2)])


@pytest.mark.parametrize("base", [2, 4])
def test_records_from_memory_out_of_order_are_lost_data(base: int) -> None:
    trail = Trail(Offset(0))
    trail.on_memory([records(0, 3)])
    with pytest.raises(DataLost):
        trail.on_memory([records(base, 2)])


def test_ledgers_continue_after_memory_that_begins_within_a_block() -> None:
    trail = Trail(Offset(1))
    trail.on_memory([records(0, 3)])
    assert trail.next_offset == 3
    step = trail.pick(ONE)
    assert isinstance(step, Enter)
    assert step.first_entry is None


def test_reader_from_memory_skips_entries_it_already_has() -> None:
    """The writer confirms its last entries only with later ones; their records were returned already."""
    trail = Trail(Offset(0))
    trail.on_memory([records(0, 3), records(3, 2)])
    step = trail.pick(ONE)
    assert isinstance(step, Enter)
    trail.enter(step.segment, EntryId(1))  # The ledger is confirmed up to there.
    assert trail.on_entries([records(0, 3), records(3, 2), last := records(5, 1)]) == [last]
    assert trail.next_offset == 6


def test_reader_from_memory_skips_records_of_segments_it_has_read() -> None:
    trail = Trail(Offset(0))
    trail.on_memory([records(0, 3), records(3, 2), records(5, 2)])
    enter(trail, ONE)  # The list is old: the segment ends at 3, and another one follows by now.
    assert trail.on_entries([records(0, 3)]) == []
    trail.on_end(EntryId(0))
    newer = close(TWO, 0, 3)
    step = trail.pick(newer)
    assert step == Enter(newer.segments[1], None)
    trail.enter(step.segment, EntryId(2))
    last = records(7, 1)
    assert trail.on_entries([records(5, 2), last]) == [last]


def test_position_below_the_head_is_gone() -> None:
    listed = begin(close(ONE, 0, 10), L2).with_head(Offset(4), Offset(10))
    trail = Trail(Offset(3))
    assert trail.pick(listed) == Gone(Offset(4))
    trail.skip_to(Offset(4))
    assert isinstance(trail.pick(listed), Enter)


def test_reader_continues_after_its_finished_segment_is_truncated() -> None:
    listed = begin(close(ONE, 0, 3), L2)
    trail = Trail(Offset(0))
    enter(trail, listed)
    trail.on_entries([follows(-1, -1, 0), records(0, 3)])
    trail.on_end(EntryId(1))
    truncated = listed.with_head(Offset(3), Offset(3), is_begun=True)
    assert [each.ledger_id for each in truncated.segments] == [L2]
    assert enter(trail, truncated).segment.ledger_id == L2


def test_reader_within_a_segment_resumes_at_its_entry() -> None:
    trail = Trail(Offset(0))
    enter(trail, ONE)
    trail.on_entries([follows(-1, -1, 0), records(0, 3)])
    step = trail.pick(ONE)
    assert isinstance(step, Enter)
    assert step.first_entry == 2


def test_reader_in_a_discarded_segment_finds_its_replacement() -> None:
    trail = Trail(Offset(0))
    enter(trail, TWO)
    trail.on_entries([follows(-1, -1, 0), records(0, 3)])
    trail.on_end(EntryId(1))
    enter(trail, TWO)  # It is discarded before any entry of it was read.
    settled = begin(close(TWO, 0, 3).with_discarded(SegmentId(1)), L3)
    assert enter(trail, settled).segment.ledger_id == L3


def segment(number: int, base: int | None, end: int | None, last_us: int | None) -> Segment:
    return Segment(
        SegmentId(number),
        LedgerId(number),
        OwnerEpoch(1),
        "test",
        0,
        state=ListedSegmentState.OPEN if end is None else ListedSegmentState.CLOSED,
        base_offset=None if base is None else Offset(base),
        next_offset=None if end is None else Offset(end),
        last_timestamp_us=last_us,
    )


ROW = (
    segment(0, 0, 5, 100),
    segment(1, 5, 5, 100),
    segment(2, 5, 9, 200),
    segment(3, 9, None, None),
    segment(4, None, None, None),
)


def test_offsets_are_found_in_the_last_segment_that_can_have_them() -> None:
    found = {offset: find_segment(ROW, Offset(offset)) for offset in (0, 4, 5, 8, 9, 1000)}
    numbers = {offset: each.segment_id for offset, each in found.items() if each}
    assert numbers == {0: 0, 4: 0, 5: 2, 8: 2, 9: 3, 1000: 3}
    assert find_segment((), Offset(0)) is None
    assert find_segment(ROW[2:], Offset(4)) is None


def test_times_are_found_in_the_first_segment_that_can_have_them() -> None:
    found = {time_us: find_segment_at(ROW, time_us) for time_us in (0, 100, 101, 200, 201)}
    numbers = {time_us: each.segment_id for time_us, each in found.items() if each}
    assert numbers == {0: 0, 100: 0, 101: 2, 200: 2, 201: 3}
    assert find_segment_at(ROW[:1], 101) is None


def test_end_search_starts_at_the_last_settled_segment() -> None:
    assert [each.segment_id for each in from_last_settled(ROW)] == [3, 4]
    assert [each.segment_id for each in from_last_settled(ROW[:4])] == [3]
    assert list(from_last_settled(())) == []


@pytest.mark.parametrize("seed", range(50))
def test_random_lists_yield_every_record_once(seed: int) -> None:
    """Offsets stay dense through rolls, discards and truncation below the reader, from any start."""
    chance = random.Random(seed)
    ledgers: dict[LedgerId, list[bytes]] = {}
    listed, tail = EMPTY, 0
    before = (-1, -1)
    for _ in range(12):
        ledger_id = LedgerId(len(ledgers) + 1)
        is_wrong = chance.random() < 0.3 and before != (-1, -1)
        entries = ledgers[ledger_id] = [
            follows(before[0], before[1] + (1 if is_wrong else 0), tail)
        ]
        listed = begin(listed, ledger_id)
        if is_wrong:
            # It was listed while its predecessor was unclosed, and is discarded.
            entries.append(records(tail, 2))
            listed = listed.with_discarded(listed.segments[-1].segment_id)
            continue
        for _ in range(chance.randrange(4)):
            count = chance.randrange(1, 5)
            entries.append(records(tail, count))
            tail += count
        listed = close(listed, listed.segments[-1].segment_id, tail)
        before = (ledger_id, len(entries) - 1)
    start = chance.randrange(tail + 1)
    trail, told = Trail(Offset(start)), []
    while isinstance(step := trail.pick(listed), Enter):
        entries = ledgers[step.segment.ledger_id]
        first = step.first_entry
        if first is None:
            is_there = [Block(each).next_offset > trail.next_offset for each in entries]
            first = EntryId(is_there.index(True) if True in is_there else len(entries))
        trail.enter(step.segment, first)
        cut = chance.randrange(first, len(entries) + 1)
        for part in (entries[first:cut], entries[cut:]):
            blocks = trail.on_entries(part)
            assert blocks is not None
            told += blocks
            if chance.random() < 0.3:
                head = Offset(chance.randint(listed.head, trail.next_offset))
                listed = listed.with_head(head, Offset(tail))
        trail.on_end(EntryId(len(entries) - 1))
    assert step == AwaitOwner()
    offsets = [offset for each in told for offset in range(*span(each))]
    assert [each for each in offsets if each >= start] == list(range(start, tail))


def span(block: bytes) -> tuple[int, int]:
    return Block(block).base_offset, Block(block).next_offset
