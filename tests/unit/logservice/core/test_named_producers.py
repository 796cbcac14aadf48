"""LS15: named producers learn their progress, however old, and older epochs are fenced."""

import random
from typing import Final

import pytest

from rollbook.logservice.core import producers as module
from rollbook.logservice.core.control_blocks import Follows, ProducerBegun, pack_control
from rollbook.logservice.core.producers import AppendedBatch, Producers
from rollbook.logservice.core.record_block import Block, pack_block, stamped
from rollbook.logservice.core.replayed_state import LogMemory
from rollbook.logservice.ids import (
    NAMED_EPOCH_MIN,
    NO_WRITER_YET,
    PRODUCER_EPOCH_MAX,
    Offset,
    OwnerEpoch,
    ProducerRef,
)
from rollbook.logservice.log_config import LogConfig
from rollbook.proto.errors import BadMetadata, InvalidRequest, ProducerFenced, ProducerGap
from rollbook.proto.ids import EntryId, LedgerId
from tests.messages import raises_message

NAME: Final = b"loader"
NOW_US: Final = 1_767_225_600_000_000
YEAR_US: Final = 365 * 86_400_000_000


def at(block: bytes, tail: Offset, now_us: int) -> bytes:
    return stamped(
        block,
        base_offset=tail,
        base_timestamp_us=now_us,
        owner_epoch=OwnerEpoch(1),
        writer_epoch=NO_WRITER_YET,
    )


class Story:
    """A log's producers, and the records that are in the log."""

    def __init__(self, known: Producers | None = None) -> None:
        self.known = known or Producers()
        self.tail = 0

    def begin(self, now_us: int = NOW_US, who: bytes = NAME) -> tuple[int, int | None, int | None]:
        """Returns the epoch, and the progress that its producer learns."""
        progress = self.known.begin(who, now_us)
        self.known.on_begun(progress.begun, Offset(self.tail), now_us)
        return progress.begun.epoch, progress.records, progress.last_offset

    def append(
        self, epoch: int, seq: int, records: int = 1, now_us: int = NOW_US, who: bytes = NAME
    ) -> None:
        ref = ProducerRef(who, epoch, seq)
        assert self.known.find(ref, now_us) is None
        end = self.tail + records
        place = AppendedBatch(Offset(self.tail), Offset(end), now_us, LedgerId(7), EntryId(end))
        self.known.on_batch(ref, place, 16)
        self.tail = end

    def restored(self) -> "Story":
        """The state as the next owner restores it."""
        counts = self.known.pack_counts()
        again = Story(Producers.unpack(self.known.pack(), counts=counts))
        again.tail = self.tail
        assert again.known.pack() == self.known.pack()
        assert again.known.pack_counts() == counts
        return again


def test_new_producer_has_no_progress() -> None:
    story = Story()
    assert story.begin() == (NOW_US // 1_000_000, 0, None)


def test_restarted_producer_learns_its_progress() -> None:
    story = Story()
    for life in range(5):
        epoch, records, last = story.begin()
        assert epoch == NOW_US // 1_000_000 + life
        assert (records, last) == (life * 300, story.tail - 6 if life else None)
        for seq in range(100):  # More batches than are remembered.
            story.append(epoch, seq, 3)
        story.append(0, 0, 5, who=b"%d" % life)  # Another producer.
        story = story.restored()


def test_an_older_epoch_is_fenced_before_the_newer_one_has_appended() -> None:
    story = Story()
    first, *_ = story.begin()
    story.append(first, 0)
    second, *_ = story.begin()
    for each in (story, story.restored()):
        for seq in (0, 1):
            with pytest.raises(ProducerFenced):
                each.known.find(ProducerRef(NAME, first, seq), NOW_US)
        with pytest.raises(ProducerGap):
            each.known.find(ProducerRef(NAME, second, 1), NOW_US)
        assert each.known.find(ProducerRef(NAME, second, 0), NOW_US) is None
        assert each.known.begin(NAME, NOW_US).records == 1


def test_a_new_producer_that_appended_nothing_fences_its_older_copy() -> None:
    story = Story()
    first, *_ = story.begin()
    story.begin()
    for each in (story, story.restored()):
        with pytest.raises(ProducerFenced):
            each.known.find(ProducerRef(NAME, first, 0), NOW_US)


def test_named_producer_outlives_years_and_many_other_producers() -> None:
    story = Story()
    epoch, *_ = story.begin()
    story.append(epoch, 0, 7)
    for number in range(module.PRODUCERS_MAX + 10):
        story.append(0, 0, now_us=NOW_US + number, who=b"%d" % number)
    late_us = NOW_US + YEAR_US
    story.append(0, 0, now_us=late_us, who=b"late")
    assert len(story.known) == 2  # All others were forgotten.
    assert story.begin(late_us)[1:] == (7, 6)


def test_longest_unused_named_producer_is_dropped_at_the_limit() -> None:
    story = Story()
    story.begin(who=b"first")
    for number in range(module.NAMED_MAX):
        story.begin(who=b"%d" % number)
    assert len(story.known) == module.NAMED_MAX
    assert story.known.begin(b"first", NOW_US).begun.is_new
    assert not story.known.begin(b"0", NOW_US).begun.is_new


def test_named_producers_leave_room_for_other_producers() -> None:
    story = Story()
    for number in range(module.BATCHES_MAX // 64 + 100):
        who = b"%d" % number
        epoch, *_ = story.begin(who=who)
        for seq in range(64):
            story.append(epoch, seq, who=who)
    story.append(0, 0, who=b"somebody")
    assert story.known.find(ProducerRef(b"somebody", 0, 0), NOW_US) is not None
    assert story.known.begin(b"0", NOW_US).records == 64
    before = story.known.bytes
    story = story.restored()
    assert story.known.bytes == before


def test_short_memory_drops_named_producers_last() -> None:
    story = Story()
    story.begin()
    for number in range(100):
        story.append(0, 0, who=b"%d" % number)
    while len(story.known) > 1:
        story.known.forget_half()
    assert not story.known.begin(NAME, NOW_US).begun.is_new
    story.known.forget_half()
    assert len(story.known) == 1


def test_batches_with_a_chosen_epoch_are_counted() -> None:
    """The shell's `append --producer` chooses epoch 0."""
    story = Story()
    for seq in range(200):
        story.append(0, seq, 2)
    story = story.restored()
    assert story.begin()[1:] == (400, 399)
    with pytest.raises(ProducerFenced):
        story.known.find(ProducerRef(NAME, 0, 200), NOW_US)


@pytest.mark.parametrize(("batches", "records"), [(1, 1), (64, 64), (65, None)])
def test_records_uncounted_by_an_old_owner_are_not_guessed(
    batches: int, records: int | None
) -> None:
    story = Story()
    for seq in range(batches):
        story.append(0, seq)
    story.known = Producers.unpack(story.known.pack())
    for _ in range(2):
        assert story.begin()[1:] == (records, batches - 1)
        story = story.restored()


def test_named_producer_of_an_old_owner_stays_uncounted() -> None:
    story = Story()
    epoch, *_ = story.begin()
    story.append(epoch, 0)
    story.known = Producers.unpack(story.known.pack())
    assert story.begin()[1:] == (None, 0)


def test_epochs_never_go_back_and_can_be_exhausted() -> None:
    story = Story()
    epoch, *_ = story.begin()
    assert story.begin(NOW_US - YEAR_US)[0] == epoch + 1
    assert Story().begin(0)[0] == NAMED_EPOCH_MIN
    story.append(PRODUCER_EPOCH_MAX, 0)
    with raises_message(InvalidRequest):
        story.begin()


@pytest.mark.parametrize("seed", range(20))
def test_replay_restores_the_same_producers(seed: int) -> None:
    """LS5: by replay from any snapshot."""
    chance = random.Random(seed)
    known = LogMemory(LogConfig(dedupe_batches=4, dedupe_age_s=10))
    known.timestamp_us = NOW_US
    snapshots: list[tuple[int, Follows]] = [(0, known.follows(LedgerId(-1), EntryId(-1)))]
    said: list[Block] = []
    epochs: dict[bytes, tuple[int, int]] = {}
    for _ in range(200):
        now_us = known.timestamp_us + chance.choice((0, 1_000_000, 8_000_000))
        who = chance.choice((b"a", b"b", b"c"))
        if who not in epochs or chance.random() < 0.2:
            begun = known.producers.begin(who, now_us).begun
            data = at(pack_control(begun), known.tail, now_us)
            epochs[who] = begun.epoch, 0
        else:
            epoch, seq = epochs[who]
            ref = ProducerRef(who, epoch, seq)
            values = [b"x"] * chance.randint(1, 3)
            block = pack_block(values, producer=ref)
            data = at(block, known.tail, now_us)
            epochs[who] = epoch, seq + 1
        said.append(Block(data))
        known.replay(said[-1], LedgerId(7), EntryId(len(said)))
        if chance.random() < 0.1:
            snapshots.append((len(said), known.follows(LedgerId(7), EntryId(len(said)))))
    for start, snapshot in snapshots:
        again = LogMemory.restore(snapshot, LogConfig(dedupe_batches=4, dedupe_age_s=10))
        for index, each in enumerate(said[start:], start + 1):
            again.replay(each, LedgerId(7), EntryId(index))
        assert again.pack() == known.pack()
        assert again.pack_counts() == known.pack_counts()


def test_invalid_counts_are_rejected() -> None:
    story = Story()
    story.begin()
    for counts in (b"\x02", b"\x01abc"):
        with pytest.raises(BadMetadata):
            Producers.unpack(story.known.pack(), counts=counts)


def test_forgotten_producer_is_not_counted_from_zero() -> None:
    known = Producers()
    known.on_begun(ProducerBegun(NAME, NAMED_EPOCH_MIN, is_new=False), Offset(5), NOW_US)
    assert known.begin(NAME, NOW_US).records is None
