"""The small rules: possible losses, control records, adoption, salvage, cache, group commit."""

import random
from itertools import pairwise

import pytest

from rollbook.bookie.core.byte_cache import ByteCache
from rollbook.bookie.core.control_records import (
    Control,
    ControlOperation,
    is_of_control,
    unpack_controls,
)
from rollbook.bookie.core.entry_salvage import find_entries, proves_itself, take_frames
from rollbook.bookie.core.fencing import LedgerFacts
from rollbook.bookie.core.journal_as_entry_log import JournalShape
from rollbook.bookie.core.possible_losses import PossibleLosses
from rollbook.bookie.core.record_format import (
    FILE_HEADER_BYTES,
    SECTOR,
    RecordKind,
    RecordReader,
    unpack_rows,
)
from rollbook.bookie.core.record_packer import Frames, RecordPacker, index_of, size_of
from rollbook.bookie.core.torn_tail import scan
from rollbook.proto.errors import TornRecord
from rollbook.proto.ids import NO_ENTRY, EntryId, LedgerId
from rollbook.proto.wire import v2_adds, v3_adds
from rollbook.proto.wire.digest import DigestType, LedgerDigest, ledger_key
from tests.support.entries import pack_entry

KEY = ledger_key(b"secret")
FILE_ID = b"f" * 16


# --- Possible losses --------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(100))
def test_possible_losses_are_the_union_of_their_ranges(seed: int) -> None:
    """B1."""
    chance = random.Random(seed)
    doubts, model = PossibleLosses(), set[tuple[int, int]]()
    for _ in range(chance.randint(1, 12)):
        ledger_id = chance.choice((1, 2))
        first = chance.randint(-1, 30)
        last = first + chance.randint(0, 6)
        news = {(ledger_id, entry_id) for entry_id in range(first, last + 1)} - model
        assert doubts.add(ledger_id, first, last) == bool(news)
        model |= news
    for ledger_id in (1, 2, 3):
        ours = {entry_id for each, entry_id in model if each == ledger_id}
        for entry_id in range(-1, 40):
            assert doubts.about(ledger_id, entry_id) == (entry_id in ours)
            assert doubts.beyond(ledger_id, entry_id) == any(each > entry_id for each in ours)
        ranges = doubts.of(ledger_id)
        assert all(a.last_entry + 1 < b.first_entry for a, b in pairwise(ranges))
    for _ in range(chance.randint(1, 4)):
        first = chance.randint(-1, 30)
        last = first + chance.randint(0, 9)
        doubts.remove(1, first, last)
        model -= {(1, entry_id) for entry_id in range(first, last + 1)}
    for entry_id in range(-1, 40):
        assert doubts.about(1, entry_id) == ((1, entry_id) in model)
    doubts.remove(1, -1, 2**63 - 1)
    assert not doubts.of(1)
    assert not doubts.about(1, 5)
    assert doubts.of(2) or not any(each == 2 for each, _ in model)


def test_possible_loss_of_everything_covers_any_ledger() -> None:
    doubts = PossibleLosses()
    assert not doubts
    doubts.everything = True
    assert doubts
    assert doubts.about(12345, 0)
    assert doubts.beyond(12345, 2**62)


def test_settled_ledger_is_exempt_from_loss_of_everything() -> None:
    doubts = PossibleLosses()
    doubts.add_everything()
    doubts.add(7, 3, 3)
    # This leaves out its explicit LAC, so the ledger is not settled as a whole.
    doubts.settle(7, 0, 2**63 - 1)
    assert doubts.about(7, 3)
    doubts.settle(7, -1, 2**63 - 1)
    assert not doubts.about(7, 3)
    assert not doubts.beyond(7, -1)
    assert doubts.about(8, 3)
    doubts.add(7, 5, 5)  # A settled ledger may become doubtful again by itself,
    assert doubts.about(7, 5)
    assert not doubts.about(7, 3)
    doubts.add_everything()  # and together with everything else.
    assert doubts.about(7, 3)
    doubts.remove_everything()
    assert not doubts.about(7, 3)
    assert list(doubts) == [(7, (5, 5))]


def test_repeated_possible_loss_still_counts_as_news() -> None:
    doubts = PossibleLosses()
    doubts.add(7, 0, 9)
    seen = doubts.news
    assert not doubts.add(7, 5, 5)
    assert doubts.news > seen
    seen = doubts.news
    doubts.settle(7, 0, 9)
    assert doubts.news == seen


# --- Control ----------------------------------------------------------------------------------

CONTROLS = [
    Control(ControlOperation.FENCE, 7, KEY),
    Control(ControlOperation.FENCE, 2**63 - 1, b""),
    Control(ControlOperation.FENCE, 8, None),
    Control(ControlOperation.LAC, 7, KEY, 5, b"packet"),
    Control(ControlOperation.LAC, 9, KEY, -1, b""),
    Control(ControlOperation.DELETE, 7, None, 2**41),
    Control(ControlOperation.DROP, 7, KEY),
]


def test_controls_are_unpacked_as_packed() -> None:
    body = b"".join(control.pack() for control in CONTROLS)
    assert list(unpack_controls(body)) == CONTROLS
    rows = unpack_rows(b"".join(control.pack_row() for control in CONTROLS))
    assert [row.ledger_id for row in rows] == [control.ledger_id for control in CONTROLS]
    assert all(map(is_of_control, rows))
    for cut in range(1, len(body)):
        try:
            assert (
                list(unpack_controls(body[:cut]))
                == CONTROLS[: len(list(unpack_controls(body[:cut])))]
            )
        except TornRecord:
            pass


def test_controls_change_ledger_facts() -> None:
    facts = LedgerFacts()
    for control in (CONTROLS[3], CONTROLS[0]):
        facts = control.applied_to(facts, 3)
    assert facts == LedgerFacts(KEY, True, b"packet", 5)
    dropped = CONTROLS[6].applied_to(facts, 3)
    assert dropped == LedgerFacts(KEY, True, b"packet", 5, dropped_in=3)
    assert CONTROLS[6].applied_to(dropped, 4).dropped_in == 4
    assert CONTROLS[5].applied_to(dropped, 3) == LedgerFacts(KEY, True, None, NO_ENTRY, 2**41)


# --- Adoption ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ledgers", "entry_bytes", "overhead", "expected"),
    [
        (1, 1000, 1.05, True),
        (4, 1000, 1.05, False),  # Reading all of it would read a little over four times its bytes.
        (3, 1000, 1.05, True),
        (500, 100, 1.3, False),
        (1, 100, 1.3, True),
        (1, 100, 6.0, False),  # Single small adds are mostly padding.
    ],
)
def test_journal_is_adopted_if_few_ledgers_and_little_overhead(
    ledgers: int, entry_bytes: int, overhead: float, expected: bool
) -> None:
    shape, total = JournalShape(), 0
    for _ in range(100):
        entries = 60 * entry_bytes
        shape.on_record(int(entries * min(overhead, 1.3)), ledgers)
        total += entries
    assert shape.is_worth_adopting(total, int(total * overhead)) == expected


def test_journal_of_deleted_ledgers_is_not_adopted() -> None:
    shape = JournalShape()
    shape.on_record(1000, 1)
    assert not shape.is_worth_adopting(0, 1000)
    assert not shape.is_worth_adopting(100, 1000)


# --- Salvage ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(DigestType))
@pytest.mark.parametrize("payload", [b"", b"p", b"p" * 100])
def test_only_a_valid_crc_proves_an_entry(kind: DigestType, payload: bytes) -> None:
    """B1: bytes are returned only if a checksum covers them."""
    digest = LedgerDigest(kind, b"secret", LedgerId(7))
    entry = pack_entry(digest, EntryId(3), EntryId(2), 5, payload)
    has_crc = kind in (DigestType.CRC32C, DigestType.CRC32)
    assert proves_itself(entry, 7, 3) == has_crc
    assert not proves_itself(entry, 7, 4)
    assert not proves_itself(entry, 8, 3)
    for position in range(len(entry)):
        damaged = bytearray(entry)
        damaged[position] ^= 8
        assert not proves_itself(bytes(damaged), 7, 3)
    assert not proves_itself(b"", 7, 3)


@pytest.mark.parametrize("version", [2, 3])
def test_damaged_frame_loses_no_other_entry(version: int) -> None:
    """B1: this holds for damage in a length, a key, an id or a payload."""
    frames, ids = [], [(7, 0), (2**62, 5), (7, 1), (8, 0)]
    txn_ids = iter(range(2**40, 2**41))
    for ledger_id, entry_id in ids:
        digest = LedgerDigest(DigestType.CRC32C, b"", LedgerId(ledger_id))
        packer = (
            v2_adds.V2AddPacker(KEY, digest)
            if version == 2
            else v3_adds.V3AddPacker(KEY, digest, txn_ids, is_recovery=True, is_high_priority=True)
        )
        frames.append(packer.pack(EntryId(entry_id), NO_ENTRY, 0, b"p" * 40))
    body = b"".join(frames)
    for position in range(len(body)):
        damaged = bytearray(body)
        damaged[position] ^= 0x11
        found = [each[:2] for each in find_entries(bytes(damaged), (7, 8, 2**62), {7: KEY})]
        at = 0
        for pair, frame in zip(ids, frames, strict=True):
            if not at <= position < at + len(frame):
                assert pair in found
            at += len(frame)
    assert [each[:2] for each in find_entries(body, (7,), {})] == [(7, 0), (7, 1)]


def test_frame_inside_a_damaged_payload_is_not_salvaged() -> None:
    """B1: the writer of the payload does not know the ledger's key."""
    digest, other = (LedgerDigest(DigestType.CRC32C, b"", LedgerId(each)) for each in (7, 8))
    forged = v2_adds.V2AddPacker(b"guess" * 4, digest).pack(EntryId(5), NO_ENTRY, 0, b"forged")
    own = v2_adds.V2AddPacker(KEY, digest).pack(EntryId(0), NO_ENTRY, 0, b"own")
    carrier = v2_adds.V2AddPacker(KEY, other).pack(EntryId(0), NO_ENTRY, 0, forged)
    damaged = bytearray(carrier + own)
    assert [each[:2] for each in find_entries(bytes(damaged), (7, 8), {})] == [(8, 0), (7, 0)]
    damaged[60] ^= 1  # The outer frame is damaged and no longer covers the inner one.
    assert [each[:2] for each in find_entries(bytes(damaged), (7, 8), {7: KEY})] == [(7, 0)]
    assert find_entries(bytes(damaged), (7, 8), {}) == []


# --- The cache --------------------------------------------------------------------------------


def test_cache_evicts_the_least_recently_used_within_budget() -> None:
    cache = ByteCache[str](100)
    for name in "abc":
        cache.put(name, bytes(30))
    assert cache.get("a") is not None  # A used value becomes the youngest.
    cache.put("d", bytes(30))
    assert cache.get("b") is None
    assert cache.get("a") is not None
    cache.put("huge", bytes(101))
    assert cache.get("huge") is None
    cache.put("a", bytes(10))
    cache.drop("c")
    cache.drop("never")
    assert cache.bytes == 40
    assert (cache.hits, cache.misses) == (2, 2)


# --- Group commit -----------------------------------------------------------------------------


def frames(*ids: tuple[int, int], size: int = 50) -> Frames:
    buffer = b"".join(
        v2_adds.V2AddPacker(KEY, LedgerDigest(DigestType.DUMMY, b"", LedgerId(ledger_id))).pack(
            EntryId(entry_id), NO_ENTRY, 0, bytes([ledger_id]) * size
        )
        for ledger_id, entry_id in ids
    )
    (adds,) = take_frames(buffer)
    return Frames(buffer, 0, tuple(adds.groups))


def written(
    packer: RecordPacker, items: list[Frames | Control], contents: bytearray
) -> list[RecordKind]:
    write = packer.pack(items)
    data = b"".join(write.buffers)
    assert write.position % SECTOR == 0
    assert len(data) == write.end - write.position
    assert len(data) <= sum(map(size_of, items)) + SECTOR
    contents += bytes(write.position - len(contents)) + data
    for record in write.records:
        for placed in record.adds:
            for group, positions, lengths in index_of(placed):
                for entry_id, position, length in zip(
                    group.entry_ids, positions, lengths, strict=True
                ):
                    ids = contents[position : position + 16]
                    assert ids == group.ledger_id.to_bytes(8) + entry_id.to_bytes(8)
                    assert contents[position + length - 1] == group.ledger_id
    packer.on_synced(write)
    return [record.kind for record in write.records]


def test_write_groups_items_into_few_records_in_order() -> None:
    packer = RecordPacker(FILE_ID, FILE_HEADER_BYTES, 1, 0)
    contents = bytearray(FILE_HEADER_BYTES)
    items: list[Frames | Control] = [
        frames((1, 0), (2, 5), (1, 1)),
        frames((1, 2)),
        CONTROLS[0],
        CONTROLS[3],
        frames((3, 0)),
    ]
    assert written(packer, items, contents) == [
        RecordKind.FRAMES,
        RecordKind.CONTROL,
        RecordKind.FRAMES,
    ]
    assert written(packer, [frames((1, 9))], contents) == [RecordKind.FRAMES]
    reader = RecordReader(bytes(contents), FILE_ID)
    found = scan(reader)
    assert [record.sequence for record in found.records] == [1, 2, 3, 4]
    assert [record.last_synced for record in found.records] == [0, 0, 0, 3]
    assert reader.rows(found.records[0]) == [(1, 0, 2), (2, 5, 5)]
    assert list(unpack_controls(reader.body(found.records[1]))) == [CONTROLS[0], CONTROLS[3]]


def test_large_chunks_get_separate_records() -> None:
    packer = RecordPacker(FILE_ID, FILE_HEADER_BYTES, 1, 0)
    items: list[Frames | Control] = [frames((1, n), size=40_000) for n in range(3)]
    contents = bytearray(FILE_HEADER_BYTES)
    assert written(packer, items, contents) == [RecordKind.FRAMES] * 3
    assert written(packer, [frames((1, n), size=20_000) for n in range(3)], contents) == [
        RecordKind.FRAMES
    ]
