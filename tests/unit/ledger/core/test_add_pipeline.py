"""Entries on their way: what is sent to whom, what is kept, and what time does."""

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
from rollbook.proto.wire.adds import Adds
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
    """Which entries the slot is sent."""
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


# --- Taking in ----------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", ["abc", 3, None, [1, 2], ["a"]], ids=repr)
def test_an_argument_of_a_wrong_kind_changes_nothing(wrong: Any) -> None:
    """WR1: an id, the ledger's length and the place in the queue come together or not at all."""
    pipeline = make()
    append(pipeline, 1)
    before = pipeline.next_entry, pipeline.kept_bytes, pipeline.appended_bytes
    with pytest.raises(TypeError):
        pipeline.append(wrong)
    with pytest.raises(TypeError):
        pipeline.append_all([b"right", wrong])
    with pytest.raises(TypeError):
        pipeline.append_all(["a", b"right", "b"])  # type: ignore[list-item]  # What is refused.
    assert (pipeline.next_entry, pipeline.kept_bytes, pipeline.appended_bytes) == before
    assert pipeline.append(b"abc") == 1
    assert pipeline.append_all([b"d", b"ef"]) == range(2, 4)
    assert taken(pipeline) == [(0, 2, b"xy"), (1, 5, b"abc"), (2, 6, b"d"), (3, 8, b"ef")]


def test_whatever_has_bytes_is_taken_as_they_are_at_the_time() -> None:
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
    """What a bookie is sent: ids, the ledger's lengths, payloads."""
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


def test_everyone_is_sent_the_same_bytes_once() -> None:
    pipeline = make()
    append(pipeline, 3)
    frames = [pipeline.take(slot, MIB) for slot in range(3)]
    assert frames[0] == frames[1] == frames[2]
    assert entries_in(frames[0][0]) == [0, 1, 2]
    assert [take(pipeline, slot) for slot in range(3)] == [[], [], []]


def test_each_stripe_gets_what_it_holds() -> None:
    pipeline = make(STRIPED)
    append(pipeline, 20)
    for slot in range(5):
        wanted = [each for each in range(20) if STRIPED.holds(slot, EntryId(each))]
        assert take(pipeline, slot, 400) + take(pipeline, slot) == wanted


def test_a_connection_is_handed_only_so_much_at_a_time() -> None:
    pipeline = make()
    append(pipeline, 4, bytes(1000))
    assert take(pipeline, 0, 2500) == [0, 1]
    assert take(pipeline, 0, 1) == [2], "one goes whatever its size"
    assert pipeline.has_more(0)
    assert take(pipeline, 0, 5000) == [3]
    assert not pipeline.has_more(0)


def test_who_lags_behind_does_not_change_what_the_others_are_sent() -> None:
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
    assert frames[0] is frames[1] is frames[2], "joined once"


def test_a_burst_that_is_too_large_goes_in_pieces() -> None:
    pipeline = make()
    append(pipeline, 5, bytes(1000))
    for slot in range(3):
        assert take(pipeline, slot, 2500) == [0, 1]
    for slot in range(3):
        assert take(pipeline, slot, 2500) == [2, 3]
    frames = [pipeline.take(slot, 2500)[0] for slot in range(3)]
    assert frames[0] is frames[1] is frames[2], "joined once"
    assert entries_in(frames[0]) == [4]


def test_a_new_connection_gets_what_was_not_acknowledged() -> None:
    pipeline = make()
    append(pipeline, 5)
    take(pipeline, 0)
    answer(pipeline, 0, 0, 1, 3)
    pipeline.restart(0)
    assert take(pipeline, 0) == [2, 3, 4]


def test_what_was_refused_is_offered_again_and_nothing_else() -> None:
    """WR8."""
    pipeline = make()
    append(pipeline, 5)
    take(pipeline, 0)
    assert pipeline.on_busy(0, [EntryId(1), EntryId(3)])
    assert not pipeline.on_busy(0, [EntryId(2)]), "the pause has begun already"
    append(pipeline, 1)
    assert take(pipeline, 0) == [], "nothing is sent to one who is busy"
    answer(pipeline, 0, 0)
    frames, count = pipeline.retry(0, MIB)
    assert (entries_in(frames), count) == ([1, 2, 3], 3), "4 is on its way"
    assert take(pipeline, 0) == [5]


def test_a_bookie_that_was_busy_is_not_buried() -> None:
    """WR8: what it refused goes to it a piece at a time, and nothing else before that is done."""
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


def test_the_window_counts_what_is_kept_for_the_slowest() -> None:
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


def test_the_window_is_never_passed_in_bytes() -> None:
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
def test_whatever_was_released_there_is_room_for_again(size: int) -> None:
    """WR6: byte for byte, however often; and as long as anything is kept it counts."""
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
def test_append_refuses_just_what_there_is_no_room_for(seed: int) -> None:
    """It asks the same question in its own words."""
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


def test_what_no_window_can_hold_passes_alone() -> None:
    pipeline = make(window_bytes=1000)
    append(pipeline, 1, bytes(5000))
    assert not pipeline.has_room(1, 0)


def test_many_are_taken_all_or_none() -> None:
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


def test_the_confirmed_length_is_that_of_the_lac() -> None:
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


def test_a_successor_gets_what_follows_the_last_confirmed() -> None:
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
    assert pipeline.acks.last_add_confirmed == 0, "one copy is left of entry 1"
    append(pipeline, 1)
    assert take(pipeline, 2) == []
    assert pipeline.admit(2, EntryId(1)) == (1, 1)
    assert take(pipeline, 2) == [1, 2, 3, 4]
    answer(pipeline, 2, 1)
    assert pipeline.acks.last_add_confirmed == 1


def test_who_comes_back_in_time_lacks_nothing() -> None:
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


def test_a_bookie_has_failed_when_its_oldest_add_is_too_old() -> None:
    """WR6."""
    pipeline = make()
    append(pipeline, 1)
    for slot in range(3):
        take(pipeline, slot)
    answer(pipeline, 0, 0)
    answer(pipeline, 2, 0)
    assert tick(pipeline, DEADLINE_TICKS) == [[]] * DEADLINE_TICKS
    assert pipeline.on_tick() == [1]


def test_answers_renew_the_patience_with_what_came_later() -> None:
    pipeline = make()
    late: list[list[int]] = []
    for entry in range(3 * DEADLINE_TICKS):
        append(pipeline, 1)
        for slot in range(3):
            take(pipeline, slot)
            answer(pipeline, slot, entry - DEADLINE_TICKS + 5)
        late += tick(pipeline, 1)
    assert late == [[]] * len(late)


def test_a_successor_has_a_deadline_of_its_own() -> None:
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


def test_a_silent_bookie_that_fills_the_window_has_failed_sooner() -> None:
    """WR6: unless it is busy, which is not silence."""
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


def test_who_is_busy_again_and_again_is_not_silent() -> None:
    """WR8: though what was refused has just been offered again when the tick comes."""
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


def test_a_slow_bookie_that_fills_the_window_has_not_failed() -> None:
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


def test_for_one_that_failed_no_more_than_half_of_the_window_is_kept() -> None:
    """WR6: the writer goes on with what stands, and it is known which copies lack."""
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


def test_the_writer_gives_up_when_bookies_are_too_few_for_a_deadline() -> None:
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


def test_only_the_entrys_own_write_set_can_confirm_it() -> None:
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
def test_what_is_less_than_what_is_unanswered_gathers(
    unanswered: int, appended: int, payload: int, gathers: bool
) -> None:
    """WR10."""
    pipeline = make()
    append(pipeline, 1)
    take(pipeline, 0)
    answer(pipeline, 0, 0)
    append(pipeline, appended, b"x" * payload)
    assert pipeline.gathers(0, unanswered) is gathers


def test_a_connection_with_a_full_socket_gets_nothing_more() -> None:
    pipeline = make(window_bytes=4 * MIB)
    append(pipeline, 3, bytes(400_000))
    assert pipeline.next_frames(0, MIB // 2 + 1, 0, is_overdue=False) == (b"", 0, LOOK_AGAIN_S)
    frames, count, look_s = pipeline.next_frames(0, MIB // 2, 0, is_overdue=False)
    assert (entries_in(frames), count, look_s) == ([0], 1, LOOK_AGAIN_S), "half of the room is left"
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
    assert pipeline.next_pause_s(1, chance=1.0) == 0.02, "each slot has its own"
    answer(pipeline, 0, 0)
    assert pipeline.next_pause_s(0, chance=1.0) == 0.02


def test_the_successor_of_a_busy_bookie_begins_with_a_short_pause() -> None:
    pipeline = make()
    append(pipeline, 1)
    for _ in range(3):
        pipeline.next_pause_s(0, chance=1.0)
    pipeline.withdraw(0)
    pipeline.admit(0, EntryId(0))
    assert pipeline.next_pause_s(0, chance=1.0) == 0.02


def test_of_striped_entries_those_count_that_the_slot_holds() -> None:
    """WR10: three of five are its own."""
    pipeline = make(STRIPED)
    append(pipeline, 20)
    assert not pipeline.gathers(0, 12)
    assert pipeline.gathers(0, 13)


def test_what_a_slot_does_not_hold_it_need_not_be_sent() -> None:
    """While it waited for more, the others have acknowledged what came."""
    pipeline = make(Quorum(ensemble=3, write=1, ack=1))
    append(pipeline, 2)
    assert [take(pipeline, slot) for slot in range(2)] == [[0], [1]]
    answer(pipeline, 0, 0)
    answer(pipeline, 1, 1)
    assert pipeline.has_all_replies
    assert not pipeline.has_more(2)
    append(pipeline, 1)
    assert take(pipeline, 2) == [2]
