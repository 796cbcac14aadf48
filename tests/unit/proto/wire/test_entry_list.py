import random
import struct

import pytest

from rollbook.proto.errors import BadFrame
from rollbook.proto.ids import EntryId
from rollbook.proto.wire.entry_list import EntryList, pack_entry_list, unpack_entry_list

MAX = 2**63 - 1


def _packed(
    *groups: tuple[int, int, int, int], version: int = 0, count: int | None = None
) -> bytes:
    header = struct.pack(">ii56x", version, len(groups) if count is None else count)
    return header + b"".join(struct.pack(">qqii", *group) for group in groups)


@pytest.mark.parametrize("seed", range(30))
def test_entry_lists_survive_round_trip(seed: int) -> None:
    chance = random.Random(seed)
    entry_ids = sorted(chance.sample(range(300), chance.randrange(1, 300)))
    entries = unpack_entry_list(pack_entry_list(EntryList.of(map(EntryId, entry_ids))))
    assert [e for e in map(EntryId, range(-2, 302)) if e in entries] == entry_ids
    assert entries.count == len(entry_ids)
    assert [e for a, b in entries.ranges() for e in range(a, b + 1)] == entry_ids


@pytest.mark.parametrize("seed", range(30))
def test_groups_with_periods_equal_their_runs(seed: int) -> None:
    chance = random.Random(seed)
    groups, expected, start = [], [], 0
    for _ in range(chance.randrange(1, 8)):
        start += chance.randrange(1, 20)
        size = chance.randrange(1, 5)
        period = size + chance.randrange(5)
        starts = [start + period * run for run in range(chance.randrange(1, 6))]
        groups.append((starts[0], starts[-1], size, period))
        expected += [s + offset for s in starts for offset in range(size)]
        start = starts[-1] + size
    entries = unpack_entry_list(_packed(*groups))
    assert [e for e in map(EntryId, range(start + 20)) if e in entries] == expected
    assert entries.count == len(expected)
    assert [e for a, b in entries.ranges() for e in range(a, b + 1)] == expected


def test_huge_group_is_not_expanded() -> None:
    entries = unpack_entry_list(_packed((0, MAX - 1, 1, 2)))
    assert entries.count == 2**62
    assert EntryId(MAX - 1) in entries
    assert EntryId(MAX) not in entries
    assert next(entries.ranges()) == (0, 0)


def test_last_possible_entry_can_be_listed() -> None:
    assert EntryId(MAX) in unpack_entry_list(_packed((MAX, MAX, 1, 0)))
    assert EntryId(MAX) in unpack_entry_list(_packed((MAX - 5, MAX - 5, 6, 0)))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(63),
        bytes(65),
        _packed(version=1),
        _packed(version=-1),
        _packed(count=1),
        _packed(count=-1),
        _packed(count=2**31 - 1),
        _packed((0, 0, 1, 0), count=2),
        _packed((0, 0, 1, 0)) + b"\0",
        _packed((0, 0, 0, 0)),
        _packed((0, 0, -1, 0)),
        _packed((-1, -1, 1, 0)),
        _packed((0, 1, 1, 0)),  # Two runs without a period.
        _packed((1, 0, 1, 0)),
        _packed((0, 5, 1, 2)),  # The last entry is not the start of a run.
        _packed((0, 4, 3, 2)),  # Runs overlap.
        _packed((0, 4, 1, -2)),
        _packed((4, 0, 1, 2)),
        _packed((MAX, MAX, 2, 0)),  # Ends beyond 2^63-1.
        _packed((5, 5, 1, 0), (4, 4, 1, 0)),
        _packed((5, 5, 1, 0), (5, 5, 1, 0)),
        _packed((5, 5, 3, 0), (7, 7, 1, 0)),
        _packed((0, 9, 1, 3), (5, 5, 1, 0)),  # Groups interleave.
    ],
)
def test_invalid_entry_list_is_refused(data: bytes) -> None:
    with pytest.raises(BadFrame):
        unpack_entry_list(data)


@pytest.mark.parametrize("ids", [[], [0], [0, 1, 2, 5, 7, 8]])
def test_ranges_are_packed_like_their_ids(ids: list[int]) -> None:
    ranges = list(EntryList.of(map(EntryId, ids)).ranges())
    assert EntryList.of_ranges(ranges) == EntryList.of(map(EntryId, ids))


def test_range_too_long_for_one_group_uses_several() -> None:
    packed = EntryList.of_ranges([(5, 5 + 2**32)])
    assert packed.count == 2**32 + 1
    assert EntryId(5 + 2**32) in packed
    assert EntryId(6 + 2**32) not in packed
    assert all(group.is_sound() for group in packed.groups)
