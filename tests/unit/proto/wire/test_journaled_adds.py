"""Stored adds are gathered from the journal with the meaning that they had when they were received."""

import itertools
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator

import pytest

from rollbook.bookie.core.entry_salvage import take_frames
from rollbook.proto.ids import EntryId, LedgerId
from rollbook.proto.wire import journaled_adds, v2, v2_adds, v3_adds
from rollbook.proto.wire.add_columns import AddPacker
from rollbook.proto.wire.digest import DigestType, LedgerDigest
from rollbook.proto.wire.journaled_adds import StoredAdds
from rollbook.proto.wire.messages import EntryRead

# By ledger: its key, the highest LAC, and for each entry its id, position and length.
Columns = dict[int, tuple[bytes, int, list[tuple[int, int, int]]]]

# The last two keys look like the bytes around a key, so that one might be mistaken for the other.
KEYS = (b"k" * 20, b"\x1a\x14" * 10, b"\x22\x1a\x14" + b"\x08" * 17)


@pytest.fixture(params=[1, 2, 16], autouse=True)
def alike_min(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The minimum number of adds of one shape that are read by columns."""
    monkeypatch.setattr(journaled_adds, "_ALIKE_MIN", request.param)


def as_it_came(buffer: bytes, position: int) -> Columns:
    """Decodes with the parsers for received adds. The buffer repeats no entry."""
    found: Columns = {}
    for adds in take_frames(buffer):
        for group in adds.groups:
            key, lac, rows = found.get(group.ledger_id, (group.ledger_key, group.lacs[0], []))
            lengths = map(int.__sub__, group.ends, group.starts)
            starts = [position + start for start in group.starts]
            rows += zip(group.entry_ids, starts, lengths, strict=True)
            found[group.ledger_id] = key, max(lac, *group.lacs), rows
    return {
        ledger_id: (key, lac, sorted(rows, key=lambda row: row[1]))
        for ledger_id, (key, lac, rows) in found.items()
    }


def gathered(stored: StoredAdds) -> Columns:
    return {
        ledger_id: (stored.ledger_keys[ledger_id], lac, [*zip(*columns, strict=True)])
        for ledger_id, lac, *columns in stored.take()
    }


def writers(chance: random.Random, txn_ids: Iterator[int]) -> list[AddPacker]:
    made: list[AddPacker] = []
    for _ in range(chance.choice((1, 3, 40))):
        ledger_id = chance.choice((1, 5, 127, 128, 300, 70_000, 2**40)) + chance.randrange(3)
        digest = LedgerDigest(chance.choice(list(DigestType)), b"password", LedgerId(ledger_id))
        key = KEYS[ledger_id % len(KEYS)]
        how = {
            "is_recovery": chance.random() < 0.1,
            "is_high_priority": chance.random() < 0.1,
        }
        if chance.random() < 0.4:
            made.append(v2_adds.V2AddPacker(key, digest, **how))
        else:
            made.append(v3_adds.V3AddPacker(key, digest, txn_ids, **how))
    return made


def traffic(chance: random.Random) -> bytes:
    """Frames in groups by writer; sizes are mostly equal, and ids cross lengths of varints."""
    packers = writers(chance, itertools.count(chance.choice((0, 100, 16_000, 2**21 - 50))))
    entry_ids = itertools.count(chance.choice((0, 100, 16_300, 2**21 - 100, 2**28 - 60)))
    group, sizes = (
        chance.choice((1, 2, 10)),
        chance.choice(([30], [30], [0, 1, 2], list(range(120, 180)))),
    )
    frames: list[bytes] = []
    for _ in range(60):
        packer = chance.choice(packers)
        for _ in range(group):
            entry_id = next(entry_ids)
            payload = chance.randbytes(chance.choice(sizes))
            if chance.random() < 0.1:  # A frame within a payload must be ignored.
                payload = (frames[-1] if frames else b"")[:400]
            lac = EntryId(entry_id - chance.choice((1, 1, 7)))
            frames.append(packer.pack(EntryId(entry_id), lac, 10 * entry_id, payload))
    return b"".join(frames)


@pytest.mark.parametrize("seed", range(40))
def test_gathered_adds_match_received_adds(seed: int) -> None:
    chance = random.Random(seed)
    stored = StoredAdds()
    for position in (0, 5_000_000):
        buffer = traffic(chance)
        assert stored.gather(buffer, position) == len(buffer)
        assert gathered(stored) == as_it_came(buffer, position)


@pytest.mark.parametrize("version", [2, 3])
def test_adds_of_equal_size_and_many_ledgers_match_received_adds(version: int) -> None:
    """Several hundred adds, so that the first few do not predict the others."""
    chance = random.Random(version)
    stored, txn_ids = StoredAdds(), itertools.count(2**14 - 300)
    ids = {ledger_id: itertools.count(2**7 - 20) for ledger_id in (*range(100, 140), 2**50)}
    frames: list[bytes] = []
    for ledger_id in chance.choices([*ids], k=700):
        digest = LedgerDigest(DigestType.CRC32C, b"password", LedgerId(ledger_id))
        key = ledger_id.to_bytes(20, "big")
        packer: AddPacker = v2_adds.V2AddPacker(key, digest)
        if version == 3:
            packer = v3_adds.V3AddPacker(key, digest, txn_ids)
        entry_id = next(ids[ledger_id])
        lac = EntryId(chance.randrange(entry_id))
        frames.append(packer.pack(EntryId(entry_id), lac, 0, chance.randbytes(30)))
    buffer = b"".join(frames)
    assert stored.gather(buffer, 11) == len(buffer)
    assert len(stored) == len(frames)
    assert gathered(stored) == as_it_came(buffer, 11)
    assert (len(stored), gathered(stored)) == (0, {})


def v3_frames(ledger_id: int, key: bytes, *adds: tuple[int, bytes], lac: int = -1) -> bytes:
    digest = LedgerDigest(DigestType.CRC32C, b"password", LedgerId(ledger_id))
    packer = v3_adds.V3AddPacker(key, digest, itertools.count(1))
    return b"".join(
        packer.pack(EntryId(entry_id), EntryId(lac), 0, payload) for entry_id, payload in adds
    )


@pytest.mark.parametrize("entry_id", [2**7, 2**14, 2**21])
def test_longer_id_with_shorter_payload_is_read_correctly(entry_id: int) -> None:
    """Frames then have equal length and agree up to the entry id."""
    longer, shorter = (entry_id - 1, b"x" * 31), (entry_id, b"x" * 30)
    for order in itertools.product((longer, shorter), repeat=4):
        buffer = v3_frames(300, KEYS[0], *(add for add in order for _ in range(8)))
        assert len({len(v3_frames(300, KEYS[0], add)) for add in order}) == 1
        stored = StoredAdds()
        assert stored.gather(buffer, 0) == len(buffer)
        assert gathered(stored) == as_it_came(buffer, 0)


def test_field_after_a_shorter_entry_is_read_correctly() -> None:
    digest = LedgerDigest(DigestType.CRC32C, b"password", LedgerId(300))
    txn_ids = itertools.count(1)
    plain, recovering = (
        v3_adds.V3AddPacker(KEYS[0], digest, txn_ids, is_recovery=each) for each in (False, True)
    )
    frames = [plain.pack(EntryId(each), EntryId(-1), 0, b"x" * 33) for each in range(30)]
    frames += [recovering.pack(EntryId(each), EntryId(-1), 0, b"x" * 30) for each in range(30, 60)]
    assert len(set(map(len, frames))) == 1
    stored = StoredAdds()
    assert stored.gather(b"".join(frames), 0) == sum(map(len, frames))
    assert gathered(stored) == as_it_came(b"".join(frames), 0)


def test_bytes_that_look_like_an_add_with_longer_id_are_read_correctly() -> None:
    """Key, ledger and LAC are such that everything looks like an add with a longer id four bytes
    later.
    """
    key, ledger_id, lac = b"\x22\x50\x1a\x14" * 5, 0x1A14_224C_0000_0000, 0x0445_0D05 << 32
    longer = ((2**28 + each, bytes(40)) for each in range(20))
    adds = *longer, *((each, bytes(44)) for each in range(20))
    buffer = v3_frames(ledger_id, key, *adds, lac=lac)
    stored = StoredAdds()
    assert stored.gather(buffer, 0) == len(buffer)
    assert gathered(stored) == as_it_came(buffer, 0)


def test_gathering_in_parts_equals_gathering_at_once() -> None:
    chance = random.Random(1)
    parts = [traffic(chance) for _ in range(3)]
    piecemeal, at_once = StoredAdds(), StoredAdds()
    position = 7
    for part in parts:
        position += piecemeal.gather(part, position)
    at_once.gather(b"".join(parts), 7)
    assert gathered(piecemeal) == gathered(at_once)


class Steps(defaultdict[int, list[int]]):
    """Rows by ledger that count over how many ledgers a caller iterates."""

    def __init__(self) -> None:
        super().__init__(list)
        self.taken = 0

    def _counted(self, items: Iterable[int]) -> Iterator[int]:
        for item in items:
            self.taken += 1
            yield item

    def __iter__(self) -> Iterator[int]:
        return self._counted(super().__iter__())

    def __reversed__(self) -> Iterator[int]:
        return self._counted(super().__reversed__())


def test_gathering_does_not_iterate_over_earlier_ledgers() -> None:
    """Otherwise a file with many ledgers takes quadratic time."""
    stored, chunks = StoredAdds(), 50
    stored._rows = steps = Steps()
    for chunk in range(chunks):
        packers = [
            v2_adds.V2AddPacker(
                ledger_id.to_bytes(20, "big"),
                LedgerDigest(DigestType.CRC32C, b"password", LedgerId(ledger_id)),
            )
            for ledger_id in range(20 * chunk, 20 * chunk + 20)
        ]
        stored.gather(b"".join(each.pack(EntryId(0), EntryId(-1), 0, b"x") for each in packers), 0)
    assert stored.ledger_keys == {each: each.to_bytes(20, "big") for each in range(20 * chunks)}
    assert steps.taken <= 20 * chunks


def test_taken_adds_are_not_returned_again() -> None:
    stored = StoredAdds()
    for ledger_id in range(50):
        stored.gather(v3_frames(ledger_id, KEYS[0], (0, b"x")), 0)
    assert len([*stored.take()]) == 50
    assert not stored._rows
    stored.gather(v3_frames(7, KEYS[1], (1, b"x")), 0)
    assert [each.ledger_id for each in stored.take()] == [7]
    assert stored.ledger_keys[7] == KEYS[0]


@pytest.mark.parametrize("seed", range(20))
def test_gathering_ends_at_first_other_frame(seed: int) -> None:
    chance = random.Random(seed)
    buffer = traffic(chance)
    other = v2.pack_request(EntryRead(LedgerId(1), EntryId(1)))
    assert StoredAdds().gather(buffer + other + buffer, 0) == len(buffer)
