"""LS5, LS6: what a log remembers of its producers."""

import random
import tracemalloc
from dataclasses import replace
from typing import Final

import pytest

from rollbook.logservice.core import producers as module
from rollbook.logservice.core.producer_memory_budget import ProducerMemory
from rollbook.logservice.core.producers import AppendedBatch, Producers
from rollbook.logservice.ids import Offset, ProducerRef
from rollbook.logservice.log_config import LogConfig
from rollbook.proto.errors import (
    BadMetadata,
    DuplicateDiffers,
    DuplicateTooOld,
    ProducerFenced,
    ProducerGap,
)
from rollbook.proto.ids import EntryId, LedgerId

DAY_US: Final = 86_400_000_000
A: Final = b"a"
CRC: Final = 16


def batch(offset: int, timestamp_us: int = 0, records: int = 1) -> AppendedBatch:
    return AppendedBatch(
        Offset(offset), Offset(offset + records), timestamp_us, LedgerId(7), EntryId(offset)
    )


def ref(seq: int, epoch: int = 1, who: bytes = A) -> ProducerRef:
    return ProducerRef(who, epoch, seq)


def filled(count: int, config: LogConfig = module.DEFAULT) -> Producers:
    found = Producers(config)
    for seq in range(count):
        assert found.find(ref(seq), seq) is None
        found.on_batch(ref(seq), batch(10 * seq, seq, 10), CRC)
    return found


def test_retry_returns_its_original_offsets() -> None:
    known = filled(5)
    assert [known.find(ref(seq), 9) for seq in range(5)] == [
        batch(10 * seq, seq, 10) for seq in range(5)
    ]
    assert known.find(ref(5), 9) is None


def test_different_batch_with_the_same_number_is_refused() -> None:
    """Otherwise its sender would take the first batch's offsets for its own, and its records be lost."""
    known = filled(5)
    known.on_batch(ref(5), batch(50, 9, 3), 17)
    newest, older = known.find(ref(5), 9), known.find(ref(4), 9)
    assert newest is not None
    assert older is not None
    known.check_same(ref(5), newest, 3, 17)
    with pytest.raises(DuplicateDiffers):
        known.check_same(ref(5), newest, 3, 18)
    # For older batches, and after a snapshot, only the number of records is known.
    known.check_same(ref(4), older, 10, 18)
    with pytest.raises(DuplicateDiffers):
        known.check_same(ref(4), older, 9, 18)
    known = Producers.unpack(known.pack())
    known.check_same(ref(5), newest, 3, 18)
    with pytest.raises(DuplicateDiffers):
        known.check_same(ref(5), newest, 4, 17)


def test_gap_is_refused_with_the_expected_number() -> None:
    """Otherwise the batches that were overtaken could never be appended in order."""
    with pytest.raises(ProducerGap) as refusal:
        filled(5).find(ref(6), 9)
    assert refusal.value.ids["expected"] == 5


def test_unknown_producer_must_begin_with_zero() -> None:
    """Its first batches may still be pending, from a time before this owner."""
    with pytest.raises(ProducerGap) as refusal:
        Producers().find(ref(3), 0)
    assert refusal.value.ids["expected"] == 0


def test_a_newer_epoch_begins_with_zero_and_fences_the_older() -> None:
    known = filled(5)
    with pytest.raises(ProducerGap):
        known.find(ref(5, epoch=2), 9)
    assert known.find(ref(0, epoch=2), 9) is None
    known.on_batch(ref(0, epoch=2), batch(50, 9), CRC)
    with pytest.raises(ProducerFenced):
        known.find(ref(5), 9)
    with pytest.raises(
        ProducerFenced
    ):  # It is refused although it was appended: the older epoch is fenced.
        known.find(ref(4), 9)
    assert known.find(ref(0, epoch=2), 9) == batch(50, 9)


def test_batch_older_than_the_window_is_reported_as_applied() -> None:
    known = filled(100)
    assert known.find(ref(36), 100) == batch(360, 36, 10)
    with pytest.raises(DuplicateTooOld) as refusal:
        known.find(ref(35), 100)
    assert refusal.value.outcome.value == "applied"
    assert refusal.value.ids["first_remembered"] == 36


def test_window_can_be_narrowed_and_widened() -> None:
    known = filled(64)
    known.configure(LogConfig(dedupe_batches=2))
    known.on_batch(ref(64), batch(640), CRC)
    with pytest.raises(DuplicateTooOld):
        known.find(ref(62), 0)
    assert known.find(ref(63), 0) == batch(630, 63, 10)
    known.configure(LogConfig(dedupe_batches=100))
    known.on_batch(ref(65), batch(650), CRC)
    assert known.find(ref(63), 0) == batch(630, 63, 10)


def test_producer_silent_for_a_day_of_log_time_is_forgotten() -> None:
    known = filled(5)
    assert known.find(ref(5), DAY_US + 4) is None
    with pytest.raises(ProducerGap):
        known.find(ref(5), DAY_US + 5)
    assert known.find(ref(0), DAY_US + 5) is None
    known.on_batch(ref(0), batch(50, DAY_US + 5), CRC)
    with pytest.raises(ProducerGap):
        known.find(ref(5), DAY_US + 5)


def test_longest_unused_producer_is_dropped_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PRODUCERS_MAX", 3)
    known = Producers()
    for name in b"abcad":
        who = bytes([name])
        seq = 1 if known.find(ref(0, who=who), 0) else 0
        known.on_batch(ref(seq, who=who), batch(0), CRC)
    assert len(known) == 3
    assert known.find(ref(0, who=b"b"), 0) is None
    assert all(known.find(ref(0, who=who), 0) for who in (b"a", b"c", b"d"))


def test_full_producer_memory_fits_into_one_snapshot() -> None:
    """The most producers, each with the longest name; then one with the largest window."""
    known = Producers(LogConfig(dedupe_batches=1024))
    for number in range(module.PRODUCERS_MAX + 100):
        known.on_batch(ref(0, who=b"%064d" % number), batch(number), CRC)
    for seq in range(1, 20):
        for number in range(module.PRODUCERS_MAX // 2, module.PRODUCERS_MAX, 2):
            known.on_batch(ref(seq, who=b"%064d" % number), batch(seq), CRC)
    assert len(known) <= module.PRODUCERS_MAX
    assert len(known.pack()) <= 4 * 1024 * 1024


@pytest.mark.parametrize("seed", range(20))
def test_replay_restores_the_same_state(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """LS5: from any snapshot, since the state depends only on the blocks."""
    monkeypatch.setattr(module, "PRODUCERS_MAX", 4)
    monkeypatch.setattr(module, "BATCHES_MAX", 20)
    chance = random.Random(seed)
    config = replace(LogConfig(), dedupe_batches=3, dedupe_age_s=1)
    known, written, packed = (
        Producers(config),
        list[tuple[ProducerRef, AppendedBatch]](),
        list[bytes](),
    )
    seqs: dict[bytes, tuple[int, int]] = {}
    now_us = 0
    for offset in range(200):
        now_us += chance.choice((0, 1000, 200_000))
        who = bytes([chance.choice(b"abcdef")])
        epoch, seq = seqs.get(who, (1, 0))
        if chance.random() < 0.1:
            epoch, seq = epoch + 1, 0
        packed.append(known.pack())
        try:
            assert known.find(ref(seq, epoch, who), now_us) is None
        except ProducerGap:
            epoch, seq = epoch + 1, 0
        written.append((ref(seq, epoch, who), batch(offset, now_us)))
        known.on_batch(*written[-1], CRC)
        seqs[who] = (epoch, seq + 1)
    for start in chance.sample(range(200), 10):
        replayed = Producers.unpack(packed[start], config)
        for each in written[start:]:
            replayed.on_batch(*each, CRC)
        assert replayed.pack() == known.pack()


def test_damaged_snapshot_is_rejected() -> None:
    packed = filled(3).pack()
    for cut in range(len(packed)):
        with pytest.raises(BadMetadata):
            Producers.unpack(packed[:cut])
    with pytest.raises(BadMetadata):
        Producers.unpack(packed + b"x")
    assert Producers.unpack(packed).pack() == packed


def test_time_without_an_owner_does_not_age_producers() -> None:
    """LT1: between two owners, and when a clock is set."""
    known = filled(3)
    known.on_unlived(2, 2 + 10 * DAY_US)
    later_us = 2 + 10 * DAY_US
    assert known.find(ref(1), later_us) == batch(10, 1, 10)
    assert known.find(ref(1), later_us + DAY_US) == batch(10, 1, 10)
    known.on_batch(ref(0, who=b"b"), batch(30, later_us + DAY_US), CRC)
    assert len(known) == 2
    with pytest.raises(ProducerGap):  # A day with an owner counts.
        known.find(ref(3), later_us + DAY_US + 1)
    known.on_batch(ref(1, who=b"b"), batch(31, later_us + DAY_US + 1), CRC)
    assert len(known) == 1


def test_memory_limit_evicts_from_the_largest_log() -> None:
    """LS11: all logs of a server share the limit; a log with few producers keeps them."""
    budget, large, small = ProducerMemory(100_000), Producers(), Producers()
    for each in (large, small):
        budget.add(each)
    small.on_batch(ref(0, who=b"quiet"), batch(0), CRC)
    for number in range(5000):
        large.on_batch(ref(0, who=b"%d" % number), batch(number), CRC)
        assert budget.bytes == large.bytes + small.bytes <= 100_000
    assert small.find(ref(0, who=b"quiet"), 0) == batch(0)
    assert large.find(ref(0, who=b"4999"), 0) == batch(4999)
    assert large.find(ref(0, who=b"0"), 0) is None  # The longest unused producer was dropped.
    assert Producers.unpack(large.pack()).bytes == large.bytes
    budget.remove(large)
    budget.remove(large)
    assert budget.bytes == small.bytes
    large.on_batch(ref(0, who=b"later"), batch(0), CRC)
    assert budget.bytes == small.bytes


def test_counted_bytes_match_the_memory_used() -> None:
    """Within a quarter, for producers with one batch each."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        known = Producers()
        for number in range(module.PRODUCERS_MAX):
            known.on_batch(ref(0, who=b"%016d" % number), batch(number), CRC)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert 0.75 * known.bytes < grown < 1.25 * known.bytes
    assert grown / len(known) < 360
