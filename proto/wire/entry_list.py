"""A list of the entries of a ledger that a bookie holds, as ranges (GET_LIST_OF_ENTRIES_OF_LEDGER). Big-endian.

    i32 version, 0 · i32 number of groups · 56 zero bytes
    a group:  i64 first start · i64 last start · i32 size · i32 period

A group stands for runs of `size` consecutive ids. The first run starts at `first_start`, each
further one a period later, and the last one at `last_start`; if the period is 0, there is one run.
Groups are in ascending order and never overlap. As in Java, packing writes a group for each run and
no periods; unpacking accepts groups with periods, too.

Groups are never expanded, since 24 bytes can claim 2^63 entries. They stay packed, since the
objects for a full frame of groups would take ten times its size.
"""

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from rollbook.proto.errors import BadFrame
from rollbook.proto.ids import EntryId

_VERSION: Final = 0
_HEADER: Final = struct.Struct(">ii56x")
_GROUP: Final = struct.Struct(">qqii")
ENTRY_GROUP_BYTES: Final = _GROUP.size
_SIZE_MAX: Final = 2**31 - 1  # The size is an i32; a longer run takes several groups.
_ENTRY_ID_MAX: Final = 2**63 - 1


class EntryGroup(NamedTuple):
    first_start: EntryId
    last_start: EntryId
    size: int
    period: int

    @property
    def last_entry(self) -> EntryId:
        return EntryId(self.last_start + self.size - 1)

    @property
    def runs(self) -> int:  # `len(starts)` would fail for 2^63 and more.
        return 1 + (self.last_start - self.first_start) // (self.period or 1)

    @property
    def starts(self) -> range:
        return range(self.first_start, self.last_start + 1, self.period or 1)

    def holds(self, entry_id: EntryId) -> bool:
        if not self.first_start <= entry_id <= self.last_entry:
            return False
        ahead = entry_id - self.first_start
        return (ahead % self.period if self.period else ahead) < self.size

    def is_sound(self) -> bool:
        """Returns whether all values of the group are in the ranges that the arithmetic above handles."""
        first, last, size, period = self
        if not 0 <= first <= last <= _ENTRY_ID_MAX - size + 1 or size < 1:
            return False
        if period == 0:
            return first == last
        return size <= period and (last - first) % period == 0


@dataclass(frozen=True, slots=True)
class EntryList:
    packed: bytes  # The packed groups, all of them sound and in order.

    @classmethod
    def of(cls, entry_ids: Iterable[EntryId]) -> Self:
        """Makes a list of these entries. `entry_ids` must ascend strictly."""
        groups = bytearray()
        start, size = 0, 0
        for entry_id in entry_ids:
            if entry_id == start + size and 0 < size < _SIZE_MAX:
                size += 1
                continue
            if size:
                assert entry_id >= start + size
                groups += _GROUP.pack(start, start, size, 0)
            start, size = entry_id, 1
        if size:
            groups += _GROUP.pack(start, start, size, 0)
        return cls(bytes(groups))

    @classmethod
    def of_ranges(cls, ranges: Iterable[tuple[int, int]]) -> Self:
        """Makes a list of ranges, each a pair of first and last entry. The ranges must ascend, with
        gaps between them.
        """
        groups = bytearray()
        for first, last in ranges:
            for start in range(first, last + 1, _SIZE_MAX):
                groups += _GROUP.pack(start, start, min(_SIZE_MAX, last - start + 1), 0)
        return cls(bytes(groups))

    @property
    def groups(self) -> Iterator[EntryGroup]:
        return map(EntryGroup._make, _GROUP.iter_unpack(self.packed))

    @property
    def count(self) -> int:
        return sum(group.size * group.runs for group in self.groups)

    def __contains__(self, entry_id: EntryId) -> bool:
        group = self.group_at(entry_id)
        return group is not None and group.holds(entry_id)

    def group_at(self, entry_id: EntryId) -> EntryGroup | None:
        """Returns the last group that begins at or before this entry; no other group can hold the entry."""
        at = bisect_right(range(len(self.packed) // _GROUP.size), entry_id, key=self._first_start)
        return self._group(at - 1) if at > 0 else None

    def ranges(self) -> Iterator[tuple[EntryId, EntryId]]:
        """Returns the first and last entry of each run, in ascending order. A group may claim very
        many runs.
        """
        for group in self.groups:
            for start in group.starts:
                yield EntryId(start), EntryId(start + group.size - 1)

    def _group(self, at: int) -> EntryGroup:
        return EntryGroup._make(_GROUP.unpack_from(self.packed, at * _GROUP.size))

    def _first_start(self, at: int) -> EntryId:
        return self._group(at).first_start


def pack_entry_list(entries: EntryList) -> bytes:
    return _HEADER.pack(_VERSION, len(entries.packed) // _GROUP.size) + entries.packed


def unpack_entry_list(data: bytes) -> EntryList:
    if len(data) < _HEADER.size:
        raise BadFrame(f"an entry list of {len(data)} bytes has no header")
    version, count = _HEADER.unpack_from(data)
    if version != _VERSION:
        raise BadFrame(f"entry list version {version} is unknown")
    if len(data) != _HEADER.size + count * _GROUP.size:
        raise BadFrame(f"an entry list of {len(data)} bytes cannot hold {count} groups")
    entries, last_entry = EntryList(data[_HEADER.size :]), -1
    for group in entries.groups:
        if not group.is_sound():
            raise BadFrame(f"{tuple(group)} in an entry list is not a valid group of runs")
        if group.first_start <= last_entry:
            raise BadFrame("an entry list's groups are not in ascending order")
        last_entry = group.last_entry
    return entries
