"""The add pipeline: what each slot is sent, what is kept, and deadlines."""

import itertools
import random
from array import array
from itertools import accumulate
from typing import Any

import pytest

from rollbook.ledger.core.add_pipeline import (
    DEADLINE_TICKS,
    LAGGARD_TICKS,
    LOOK_AGAIN_S,
    PATIENCE_TICKS,
    AddPipeline,
)
from rollbook.proto.errors import (
    EntryTooLarge,
    InvalidRequest,
    NotEnoughBookies,
    Overloaded,
    QuorumTimeout,
)
from rollbook.proto.ids import EntryId, LedgerId
from rollbook.proto.quorum import Quorum
from rollbook.proto.wire.add_columns import Adds
from rollbook.proto.wire.digest import DigestType, LedgerDigest, ledger_key
from rollbook.proto.wire.request_decoder import RequestDecoder
from rollbook.proto.wire.v3_adds import V3AddPacker
from tests.messages import raises_message

Q332 = Quorum(ensemble=3, write=3, ack=2)
STRIPED = Quorum(ensemble=5, write=3, ack=2)
ALL = 0b111
MIB = 1024 * 1024
DIGEST = LedgerDigest(DigestType.CRC32C, b"", LedgerId(7))


def make(
    quorum: Quorum = Q332, *, window_bytes: int = MIB, window_entries: int = 100
) -> AddPipeline:
    packer = V3AddPacker(ledger_key(b""), DIGEST, itertools.count(1))
    return AddPipeline(quorum, packer, window_bytes, window_entries)


def append(pipeline: AddPipeline, count: int, payload: bytes = b"xy") -> None:
    for _ in range(count):
        pipeline.append(payload)


def take(pipeline: AddPipeline, slot: int, bytes_max: int = MIB) -> list[int]:
    """Take the entries that the slot is sent now."""
    frames, count = pipeline.take(slot, bytes_max)
    entries = entries_in(frames)
    assert len(entries) == count
    return entries


def entries_in(frames: bytes) -> list[int]:
    heard = RequestDecoder().feed(frames)
    groups = [group for adds in heard if isinstance(adds, Adds) for group in adds.groups]
    return [entry_id for group in groups for entry_id in group.entry_ids]


def answer(pipeline: AddPipeline, slot: int, *entries: int) -> None:
    pipeline.on_acks(slot, [EntryId(each) for each in entries])
    pipeline.release()


def tick(pipeline: AddPipeline, count: int) -> list[list[int]]:
    return [pipeline.on_tick() for _ in range(count)]


# --- Appending ----------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", ["abc", 3, None, [1, 2], ["a"]], ids=repr)
def test_append_of_a_wrong_type_changes_nothing(wrong: Any) -> None:
    """WR1: entry ID, ledger length and queue change together or not at all."""
    pipeline = make()
    append(pipeline, 1)
    before = pipeline.next_entry, pipeline.kept_bytes, pipeline.appended_bytes
    with pytest.raises(TypeError):
        pipeline.append(wrong)
    with pytest.raises(TypeError):
        pipeline.append_all([b"right", wrong])
    with pytest.raises(TypeError):
        pipeline.append_all(["a", b"right", "b"])  # type: ignore[list-item]  # The refused type.
    assert (pipeline.next_entry, pipeline.kept_bytes, pipeline.appended_bytes) == before
    assert pipeline.append(b"abc") == 1
    assert pipeline.append_all([b"d", b"ef"]) == range(2, 4)
    assert taken(pipeline) == [(0, 2, b"xy"), (1, 5, b"abc"), (2, 6, b"d"), (3, 8, b"ef")]


def test_append_copies_any_bytes_like_payload() -> None:
    pipeline = make()
    numbers = array("i", [1, 2, 3])
    changing = bytearray(b"changing")
    every_other = memoryview(b"a-b-c-")[::2]
    given: list[Any] = [numbers, memoryview(numbers), changing, every_other]
    expected = [numbers.tobytes(), numbers.tobytes(), b"changing", b"abc"]
    for each in given:
        pipeline.append(each)
    pipeline.append_all(given)
    changing[:] = b"forgotten"
    numbers[0] = 7
    found = taken(pipeline)
    assert [payload for _, _, payload in found] == expected * 2
    assert [length for _, length, _ in found] == [*accumulate(map(len, expected * 2))]


def taken(pipeline: AddPipeline) -> list[tuple[int, int, bytes]]:
    """Take what slot 0 is sent: entry IDs, ledger lengths, payloads."""
    frames, _ = pipeline.take(0, MIB)
    found: list[tuple[int, int, bytes]] = []
    for adds in RequestDecoder().feed(frames):
        assert isinstance(adds, Adds)
        for group in adds.groups:
            for entry_id, start, end in zip(group.entry_ids, group.starts, group.ends, strict=True):
                entry = DIGEST.unpack_entry(adds.buffer[start:end], entry_id)
                found.append((entry.entry_id, entry.ledger_length, entry.payload))
    return found


# --- Sending ------------------------------------------------------------------------------------


def test_each_bookie_is_sent_the_same_bytes_once() -> None:
    pipeline = make()
    append(pipeline, 3)
    frames = [pipeline.take(slot, MIB) for slot in range(3)]
    assert frames[0] == frames[1] == frames[2]
    assert entries_in(frames[0][0]) == [0, 1, 2]
    assert [take(pipeline, slot) for slot in range(3)] == [[], [], []]


def test_each_slot_is_sent_only_entries_of_its_stripe() -> None:
    pipeline = make(STRIPED)
    append(pipeline, 20)
    for slot in range(5):
        wanted = [each for each in range(20) if STRIPED.holds(slot, EntryId(each))]
        assert take(pipeline, slot, 400) + take(pipeline, slot) == wanted


def test_take_returns_at_most_the_requested_bytes() -> None:
    pipeline = make()
    append(pipeline, 4, bytes(1000))
    assert take(pipeline, 0, 2500) == [0, 1]
    assert take(pipeline, 0, 1) == [2], "one entry is sent whatever its size"
    assert pipeline.has_more(0)
    assert take(pipeline, 0, 5000) == [3]
    assert not pipeline.has_more(0)


def test_lagging_slot_does_not_change_what_other_slots_get() -> None:
    pipeline = make()
    append(pipeline, 4, bytes(1000))
    assert [take(pipeline, slot) for slot in (0, 1)] == [[0, 1, 2, 3]] * 2
    assert take(pipeline, 2, 1500) == [0]
    append(pipeline, 3, bytes(1000))
    assert [take(pipeline, slot, 5000) for slot in (2, 0, 1)] == [
        [1, 2, 3, 4],
        [4, 5, 6],
        [4, 5, 6],
    ]
    assert take(pipeline, 2) == [5, 6]
    append(pipeline, 1)
    frames = [pipeline.take(slot, MIB)[0] for slot in range(3)]
    assert frames[0] is frames[1] is frames[2], "frames are joined only once"


def test_large_burst_is_sent_in_pieces() -> None:
    pipeline = make()
    append(pipeline, 5, bytes(1000))
    for slot in range(3):
        assert take(pipeline, slot, 2500) == [0, 1]
    for slot in range(3):
        assert take(pipeline, slot, 2500) == [2, 3]
    frames = [pipeline.take(slot, 2500)[0] for slot in range(3)]
    assert frames[0] is frames[1] is frames[2], "frames are joined only once"
    assert entries_in(frames[0]) == [4]


def test_new_connection_is_sent_all_unacked_entries() -> None:
    pipeline = make()
    append(pipeline, 5)
    take(pipeline, 0)
    answer(pipeline, 0, 0, 1, 3)
    pipeline.restart(0)
    assert take(pipeline, 0) == [2, 3, 4]


def test_retry_resends_only_refused_entries() -> None:
    """WR8."""
    pipeline = make()
    append(pipeline, 5)
    take(pipeline, 0)
    assert pipeline.on_busy(0, [EntryId(1), EntryId(3)])
    assert not pipeline.on_busy(0, [EntryId(2)]), "the pause has already begun"
    append(pipeline, 1)
    assert take(pipeline, 0) == [], "an overloaded bookie is sent nothing"
    answer(pipeline, 0, 0)
    frames, count = pipeline.retry(0, MIB)
    assert (entries_in(frames), count) == ([1, 2, 3], 3), "entry 4 is in flight"
    assert take(pipeline, 0) == [5]


def test_refused_entries_are_resent_in_pieces_before_new_ones() -> None:
    """WR8: refused entries are resent a piece at a time, before any new entry."""
    pipeline = make()
    append(pipeline, 5, bytes(1000))
    take(pipeline, 0)
    pipeline.on_busy(0, [EntryId(each) for each in range(4)])
    append(pipeline, 1)
    assert entries_in(pipeline.retry(0, 2500)[0]) == [0, 1]
    assert pipeline.is_paused(0)
    assert take(pipeline, 0) == []
    answer(pipeline, 0, 2)
    assert entries_in(pipeline.retry(0, 100)[0]) == [3]
    assert not pipeline.is_paused(0)
    assert take(pipeline, 0) == [5]
    assert pipeline.retry(0, MIB) == (b"", 0)


# --- The window -----------------------------------------------------------------------------------


def test_window_is_held_by_the_slowest_replica() -> None:
    """WR6: a slow third replica holds the writer back."""
    pipeline = make(window_entries=3)
    append(pipeline, 3)
    with pytest.raises(Overloaded):
        pipeline.append(b"")
    for slot in range(3):
        take(pipeline, slot)
    answer(pipeline, 0, 0, 1, 2)
    answer(pipeline, 1, 0, 1, 2)
    assert pipeline.acks.last_add_confirmed == 2
    assert not pipeline.has_room(1, 0)
    answer(pipeline, 2, 0)
    append(pipeline, 1)
    assert pipeline.next_entry == 4


def test_window_limit_in_bytes_is_never_exceeded() -> None:
    pipeline = make(window_bytes=10_000)
    while pipeline.has_room(1, 900):
        append(pipeline, 1, bytes(900))
    assert 8_000 < pipeline.kept_bytes <= 10_000
    taken = pipeline.next_entry
    with pytest.raises(Overloaded):
        pipeline.append(bytes(900))
    assert pipeline.next_entry == taken


def fill(pipeline: AddPipeline, size: int) -> int:
    count = 0
    while pipeline.has_room(1, size):
        append(pipeline, 1, bytes(size))
        count += 1
    return count


def answer_all(pipeline: AddPipeline) -> None:
    for slot in range(3):
        answer(pipeline, slot, *take(pipeline, slot))


@pytest.mark.parametrize("size", [0, 10, 900])
def test_released_entries_free_their_room(size: int) -> None:
    """WR6: exactly as many bytes are free again, however often; kept entries still count."""
    pipeline = make(window_bytes=10_000, window_entries=10_000)
    count = fill(pipeline, size)
    for _ in range(10):
        answer_all(pipeline)
        assert (pipeline.has_all_replies, pipeline.kept_bytes) == (True, 0)
        assert fill(pipeline, size) == count
    oldest = pipeline.next_entry - count
    for slot in range(3):
        answer(pipeline, slot, *take(pipeline, slot)[:5])
    assert (pipeline.next_entry, fill(pipeline, size)) == (oldest + count, 5)


@pytest.mark.parametrize("seed", range(5))
def test_append_refuses_exactly_when_has_room_is_false(seed: int) -> None:
    """`append` has its own implementation of the check."""
    chance = random.Random(seed)
    pipeline = make(window_bytes=10_000, window_entries=8)
    refused = 0
    for _ in range(300):
        size = chance.choice([0, 1, 100, 1000, 9_000, 20_000])
        has_room, before = pipeline.has_room(1, size), pipeline.next_entry
        try:
            append(pipeline, 1, bytes(size))
        except Overloaded:
            refused += 1
        assert (pipeline.next_entry > before) == has_room
        if chance.random() < 0.1:
            answer_all(pipeline)
    assert 50 < refused < 250


def test_entry_larger_than_the_window_is_accepted_alone() -> None:
    pipeline = make(window_bytes=1000)
    append(pipeline, 1, bytes(5000))
    assert not pipeline.has_room(1, 0)


def test_append_all_takes_all_or_none() -> None:
    pipeline = make(window_bytes=10_000, window_entries=5)
    assert pipeline.append_all([b"a", b"b"]) == range(2)
    with pytest.raises(Overloaded):
        pipeline.append_all([b""] * 4)
    with raises_message(InvalidRequest):
        pipeline.append_all([b""] * 6)
    with raises_message(InvalidRequest):
        pipeline.append_all([bytes(6_000)] * 2)
    assert pipeline.append_all([]) == range(2, 2)
    assert pipeline.next_entry == 2
    with pytest.raises(EntryTooLarge):
        make(window_bytes=100 * MIB).append_all([b"", bytes(6 * MIB)])


def test_confirmed_length_ends_at_the_lac() -> None:
    pipeline = make()
    append(pipeline, 2, bytes(10))
    append(pipeline, 2, bytes(5))
    for slot in range(3):
        take(pipeline, slot)
    assert pipeline.confirmed_length == 0
    for slot in (0, 1):
        answer(pipeline, slot, 0, 1, 2)
    assert pipeline.confirmed_length == 25
    answer(pipeline, 2, 0, 1, 2)
    assert pipeline.confirmed_length == 25


# --- Slots that change hands ----------------------------------------------------------------------


def test_successor_is_sent_entries_after_the_lac() -> None:
    """WR2."""
    pipeline = make()
    append(pipeline, 4)
    for slot in range(3):
        take(pipeline, slot)
    for slot in range(3):
        answer(pipeline, slot, 0)
    answer(pipeline, 2, 1, 2)
    pipeline.withdraw(2)
    answer(pipeline, 0, 1)
    assert pipeline.acks.last_add_confirmed == 0, "entry 1 has one copy left"
    append(pipeline, 1)
    assert take(pipeline, 2) == []
    assert pipeline.admit(2, EntryId(1)) == (1, 1)
    assert take(pipeline, 2) == [1, 2, 3, 4]
    answer(pipeline, 2, 1)
    assert pipeline.acks.last_add_confirmed == 1


def test_slot_resumed_in_time_is_sent_all_missing_entries() -> None:
    pipeline = make()
    append(pipeline, 2)
    take(pipeline, 0)
    take(pipeline, 1)
    pipeline.suspend(2)
    answer(pipeline, 0, 0, 1)
    answer(pipeline, 1, 0, 1)
    assert pipeline.resume(2) == (0, 0)
    assert take(pipeline, 2) == [0, 1]


# --- Time -----------------------------------------------------------------------------------------


def test_bookie_fails_when_its_oldest_add_passes_the_deadline() -> None:
    """WR6."""
    pipeline = make()
    append(pipeline, 1)
    for slot in range(3):
        take(pipeline, slot)
    answer(pipeline, 0, 0)
    answer(pipeline, 2, 0)
    assert tick(pipeline, DEADLINE_TICKS) == [[]] * DEADLINE_TICKS
    assert pipeline.on_tick() == [1]


def test_acks_renew_the_deadline_of_later_adds() -> None:
    pipeline = make()
    late: list[list[int]] = []
    for entry in range(3 * DEADLINE_TICKS):
        append(pipeline, 1)
        for slot in range(3):
            take(pipeline, slot)
            answer(pipeline, slot, entry - DEADLINE_TICKS + 5)
        late += tick(pipeline, 1)
    assert late == [[]] * len(late)


def test_successor_gets_its_own_deadline() -> None:
    pipeline = make()
    append(pipeline, 1)
    for slot in range(3):
        take(pipeline, slot)
    answer(pipeline, 0, 0)
    tick(pipeline, DEADLINE_TICKS)
    assert pipeline.on_tick() == [1, 2]
    pipeline.withdraw(2)
    pipeline.suspend(1)
    pipeline.admit(2, EntryId(0))
    assert tick(pipeline, DEADLINE_TICKS - 1) == [[]] * (DEADLINE_TICKS - 1)
    assert pipeline.on_tick() == [2]


def test_silent_bookie_filling_the_window_fails_sooner() -> None:
    """WR6: an overloaded bookie replies, so it is not silent."""
    for is_busy in (False, True):
        pipeline = make(window_entries=10)
        append(pipeline, 6)
        for slot in range(3):
            take(pipeline, slot)
        if is_busy:
            pipeline.on_busy(2, [EntryId(0)])
        answer(pipeline, 0, *range(6))
        answer(pipeline, 1, *range(6))
        late = tick(pipeline, LAGGARD_TICKS + 1)
        assert late[-1] == ([] if is_busy else [2])
        assert late[:-1] == [[]] * LAGGARD_TICKS


def test_overloaded_bookie_fails_only_at_the_deadline() -> None:
    """WR8: although the refused add has just been resent at each tick."""
    pipeline = make(window_entries=10)
    append(pipeline, 6)
    for slot in range(3):
        take(pipeline, slot)
    answer(pipeline, 0, *range(6))
    answer(pipeline, 1, *range(6))
    for _ in range(DEADLINE_TICKS):
        pipeline.on_busy(2, [EntryId(0)])
        pipeline.retry(2, MIB)
        assert pipeline.on_tick() == []
    assert pipeline.on_tick() == [2]


def test_slow_bookie_filling_the_window_does_not_fail() -> None:
    pipeline = make(window_entries=10)
    for entry in range(40):
        if entry >= 6:
            answer(pipeline, 2, entry - 6)
            tick(pipeline, LAGGARD_TICKS - 1)
        append(pipeline, 1)
        for slot in range(3):
            take(pipeline, slot)
            if slot < 2:
                answer(pipeline, slot, entry)
    assert tick(pipeline, 1) == [[]]


def test_failed_slot_holds_at_most_half_the_window() -> None:
    """WR6: the writer continues without it and remembers the missing copies."""
    pipeline = make(window_entries=10)
    pipeline.suspend(2)
    append(pipeline, 6)
    for slot in range(2):
        take(pipeline, slot)
        answer(pipeline, slot, *range(6))
    tick(pipeline, PATIENCE_TICKS)
    assert not pipeline.has_all_replies
    tick(pipeline, 1)
    assert pipeline.has_all_replies
    append(pipeline, 10)
    assert pipeline.resume(2) == (0, 6)
    assert take(pipeline, 2) == list(range(6, 16))


def test_writer_fails_after_a_deadline_without_quorum() -> None:
    """WR6."""
    pipeline = make()
    append(pipeline, 1)
    take(pipeline, 0)
    answer(pipeline, 0, 0)
    tick(pipeline, DEADLINE_TICKS)
    assert pipeline.find_hopeless(0b001, is_changing=False) is None
    tick(pipeline, 1)
    assert isinstance(pipeline.find_hopeless(0b001, is_changing=False), NotEnoughBookies)
    assert pipeline.find_hopeless(0b001, is_changing=True) is None
    assert pipeline.find_hopeless(ALL, is_changing=False) is None
    tick(pipeline, DEADLINE_TICKS)
    assert isinstance(pipeline.find_hopeless(ALL, is_changing=True), QuorumTimeout)


def test_quorum_is_judged_by_the_entrys_write_set() -> None:
    pipeline = make(Quorum(ensemble=4, write=2, ack=2))
    append(pipeline, 1)
    tick(pipeline, DEADLINE_TICKS + 1)
    assert isinstance(pipeline.find_hopeless(0b1110, is_changing=False), NotEnoughBookies)
    assert pipeline.find_hopeless(0b0011, is_changing=False) is None


@pytest.mark.parametrize(
    ("unanswered", "appended", "payload", "gathers"),
    [
        (0, 1, 1, False),
        (1, 1, 1, False),
        (2, 1, 1, True),
        (50, 49, 1, True),
        (50, 50, 1, False),
        (50, 4, 100_000, False),
    ],
)
def test_appends_gather_while_fewer_than_unanswered_adds(
    unanswered: int, appended: int, payload: int, gathers: bool
) -> None:
    """WR10."""
    pipeline = make()
    append(pipeline, 1)
    take(pipeline, 0)
    answer(pipeline, 0, 0)
    append(pipeline, appended, b"x" * payload)
    assert pipeline.gathers(0, unanswered) is gathers


def test_connection_with_a_full_socket_is_sent_nothing() -> None:
    pipeline = make(window_bytes=4 * MIB)
    append(pipeline, 3, bytes(400_000))
    assert pipeline.next_frames(0, MIB // 2 + 1, 0, is_overdue=False) == (b"", 0, LOOK_AGAIN_S)
    frames, count, look_s = pipeline.next_frames(0, MIB // 2, 0, is_overdue=False)
    assert (entries_in(frames), count, look_s) == ([0], 1, LOOK_AGAIN_S), "half of the room is free"
    frames, count, _ = pipeline.next_frames(0, 0, 1, is_overdue=True)
    assert (entries_in(frames), count) == ([1, 2], 2)


def test_entries_gather_for_a_bookie_until_its_responses_are_overdue() -> None:
    """WR10."""
    pipeline = make()
    append(pipeline, 10)
    assert take(pipeline, 0) == [*range(10)]
    append(pipeline, 1)
    frames, count, look_s = pipeline.next_frames(0, 0, 10, is_overdue=False)
    assert (frames, count) == (b"", 0)
    assert look_s < LOOK_AGAIN_S
    frames, count, _ = pipeline.next_frames(0, 0, 10, is_overdue=True)
    assert (entries_in(frames), count) == ([10], 1)


def test_pauses_of_a_busy_bookie_double_until_it_acknowledges_an_entry() -> None:
    """WR8."""
    pipeline = make()
    append(pipeline, 1)
    take(pipeline, 0)
    pauses = [pipeline.next_pause_s(0, chance=1.0) for _ in range(7)]
    assert pauses == [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 0.64]
    assert pipeline.next_pause_s(0, chance=0.0) == 0.32, "writers do not all return at once"
    assert pipeline.next_pause_s(1, chance=1.0) == 0.02, "each slot has its own pause"
    answer(pipeline, 0, 0)
    assert pipeline.next_pause_s(0, chance=1.0) == 0.02


def test_successor_of_an_overloaded_bookie_starts_with_a_short_pause() -> None:
    pipeline = make()
    append(pipeline, 1)
    for _ in range(3):
        pipeline.next_pause_s(0, chance=1.0)
    pipeline.withdraw(0)
    pipeline.admit(0, EntryId(0))
    assert pipeline.next_pause_s(0, chance=1.0) == 0.02


def test_gathering_counts_only_entries_of_the_slots_stripe() -> None:
    """WR10: the slot holds three of five entries."""
    pipeline = make(STRIPED)
    append(pipeline, 20)
    assert not pipeline.gathers(0, 12)
    assert pipeline.gathers(0, 13)


def test_slot_skips_entries_outside_its_stripe() -> None:
    """The other slots have acknowledged all entries so far."""
    pipeline = make(Quorum(ensemble=3, write=1, ack=1))
    append(pipeline, 2)
    assert [take(pipeline, slot) for slot in range(2)] == [[0], [1]]
    answer(pipeline, 0, 0)
    answer(pipeline, 1, 1)
    assert pipeline.has_all_replies
    assert not pipeline.has_more(2)
    append(pipeline, 1)
    assert take(pipeline, 2) == [2]
