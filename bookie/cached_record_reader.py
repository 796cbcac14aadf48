"""One open file of records. Whole, verified records are read from it through the cache.

For a sequential reader, a stretch of the following records is read, too. The next stretches are
requested as well, so that the disk works while answers are sent. If several readers need the same
record, one reads it and the others wait.
"""

import asyncio
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final, NamedTuple

from rollbook.bookie.core.byte_cache import ByteCache
from rollbook.bookie.core.entry_salvage import proves_itself
from rollbook.bookie.core.equal_length_slices import cut_evenly
from rollbook.bookie.core.journal_index import EntryLocation
from rollbook.bookie.core.record_format import (
    FILE_HEADER_BYTES,
    HEAD_BYTES,
    FileHeader,
    RecordReader,
    bodies_in,
)
from rollbook.proto.errors import TornRecord
from rollbook.proto.ports import Buffer, File

_STRETCH_BYTES: Final = 512 * 1024
# The maximum number of stretches that are read or read ahead at a time, because the time of a read
# varies by device.
_AHEAD_MAX: Final = 4
# The maximum number of bytes that one reader may have requested at a time.
_REQUESTS_BYTES: Final = 4 * 1024 * 1024
_BODIES_BYTES: Final = 64 * 1024
# If a record's first entry has at least this size, its entries are views of the record, which are
# cheaper than copies.
_VIEWED_BYTES: Final = 2 * 1024
_SERIAL_SHIFT: Final = 32  # The number of bits in a position, which is u32.


@dataclass(slots=True)
class Cache:
    """A cache of the bodies of records, by file and position. Each file has a serial number, since
    a journal file and the entry log made from it have the same number."""

    bodies: ByteCache[int]
    serials: Iterator[int] = field(default_factory=count)


class _Fetch(NamedTuple):
    """A read of consecutive records that is in progress."""

    numbers: range
    has_come: asyncio.Event


class RecordFile:
    def __init__(self, file: File, header: FileHeader, cache: Cache) -> None:
        self.file = file
        self.header = header
        self.records = array("I")  # The positions of the records with entries, ascending.
        # The end of the last record with entries, or of a later record without entries.
        self.end = FILE_HEADER_BYTES
        self._cache = cache.bodies
        self._serial = next(cache.serials) << _SERIAL_SHIFT
        self._fetches: list[_Fetch] = []  # Reads in progress; there are few at a time.
        # The position up to which the last sequential reader has read.
        self._read_up_to = sys.maxsize
        self._ahead = 1  # The number of stretches to read ahead; it grows by one each time.
        self._readers = 0
        self._is_retired = False

    def on_written(self, position: int, body: bytes, end: int) -> None:
        self.records.append(position)
        self.end = end
        self._cache.put(self._serial | position, body)

    def peek(self, place: EntryLocation) -> bytes | None:
        """Returns the entry if it is in the cache, or None."""
        at = bisect_right(self.records, place.position) - 1
        record = self.records[at]
        body = self._cache.get(self._serial | record)
        if body is None:
            return None
        start = place.position - record - HEAD_BYTES
        return body[start : start + place.length]

    async def read(self, ledger_id: int, entry_id: int, place: EntryLocation) -> bytes:
        """Raises `TornRecord` if the record is damaged and the entry's own digest does not prove
        the entry."""
        if (found := self.peek(place)) is not None:
            return found
        at = bisect_right(self.records, place.position) - 1
        self._readers += 1
        try:
            try:
                body = await self.body(at)
            except TornRecord:
                entry = await self.file.read_at(place.position, place.length)
                if len(entry) == place.length and proves_itself(entry, ledger_id, entry_id):
                    return entry
                raise
        finally:
            self._readers -= 1
            await self._close_when_unused()
        start = place.position - self.records[at] - HEAD_BYTES
        return body[start : start + place.length]

    async def read_run(self, positions: Sequence[int], lengths: Sequence[int]) -> list[Buffer]:
        """Returns the entries at these positions, up to the first damaged record. A caller that
        keeps an entry may keep its whole record in memory."""
        found: list[Buffer] = []
        source: Buffer
        self._readers += 1
        try:
            while len(found) < len(positions):
                position, length = positions[len(found)], lengths[len(found)]
                at = bisect_right(self.records, position) - 1
                start = self.records[at] + HEAD_BYTES
                body = self._cache.get(self._serial | self.records[at]) or await self.body(at)
                end = start + len(body)
                # The position is in no record, so the loop would not advance.
                if not start <= position < end:
                    raise self._damage(position)
                if length < _VIEWED_BYTES:
                    found += cut_evenly(body, start, positions, lengths, len(found))
                    source = body
                else:
                    source = memoryview(body)
                rest = slice(len(found), None)
                for position, length in zip(positions[rest], lengths[rest], strict=True):
                    if not start <= position < end:
                        break
                    found.append(source[position - start : position - start + length])
        except TornRecord:
            pass  # Reading that entry by itself raises the error.
        finally:
            self._readers -= 1
            await self._close_when_unused()
        return found

    async def body(self, at: int) -> bytes:
        """Returns the body of record number `at`. The file is read ahead if the preceding record
        was read before, or is being read."""
        if coming := self._fetch_of(at):
            await coming.has_come.wait()
            body = self._cache.get(self._serial | self.records[at])
            if body is not None:  # Without a body the record is damaged or was not kept.
                return body
        if not self._is_next(at):
            self._ahead = 1
            return await self._fetch(at, range(at, at + 1))
        stretch = self._stretch_of(at)
        self._read_up_to = self._end_of(stretch[-1])
        self._announce_behind(stretch[-1])
        return await self._fetch(at, stretch)

    def _is_next(self, at: int) -> bool:
        """Returns whether this read continues the reads of a sequential reader. Such a reader may
        have several requests in progress, which start far apart."""
        distance = self.records[at] - self._read_up_to
        return 0 <= distance <= _REQUESTS_BYTES or (at > 0 and self._is_read(at - 1))

    def _fetch_of(self, at: int) -> _Fetch | None:
        for fetch in self._fetches:
            if at in fetch.numbers:
                return fetch
        return None

    def _is_read(self, at: int) -> bool:
        """Returns whether the record was read or is being read."""
        if self._fetches and self._fetch_of(at):
            return True
        return self._cache.peek(self._serial | self.records[at]) is not None

    def _announce_behind(self, last: int) -> None:
        """Prefetches the next stretches after record `last`, except those that were read or are
        being read."""
        limit = self._end_of(last) + _REQUESTS_BYTES
        left, self._ahead = self._ahead, min(self._ahead + 1, _AHEAD_MAX)
        first = last + 1
        while left and first < len(self.records) and (start := self.records[first]) < limit:
            end = self._end_of_stretch(first)
            if not self._is_read(first):
                self.file.prefetch(start, self._end_of(end - 1) - start)
                left -= 1
            first = end

    def _stretch_of(self, at: int) -> range:
        """Returns the numbers of the records that one read fetches together with record `at`.
        Stretches are the same for all readers."""
        start = self.records[at] // _STRETCH_BYTES * _STRETCH_BYTES
        first = bisect_left(self.records, start, 0, at)
        while first < at and self._is_read(first):
            first += 1
        return range(first, self._end_of_stretch(at))

    def _end_of_stretch(self, at: int) -> int:
        """Returns the number of the first record after the stretch with record `at`, or of an
        earlier record that is being fetched."""
        next_at = (self.records[at] // _STRETCH_BYTES + 1) * _STRETCH_BYTES
        end = bisect_left(self.records, next_at, at)
        for fetch in self._fetches:
            if fetch.numbers.start < end and at + 1 < fetch.numbers.stop:
                end = max(at + 1, fetch.numbers.start)
        return end

    async def _fetch(self, at: int, numbers: range) -> bytes:
        """Reads and verifies record number `at`; the other records that were read go to the cache."""
        start = self.records[numbers[0]]
        fetch = _Fetch(numbers, asyncio.Event())
        self._fetches.append(fetch)
        try:
            positions = self.records[numbers.start : numbers.stop]
            bodies = await self.file.read_with(
                start,
                self._end_of(numbers[-1]) - start,
                lambda contents: self._bodies_in(contents, start, positions),
            )
            for position, body in zip(positions, bodies, strict=True):
                # The reader of a damaged record reads it again and gets the error.
                if body is not None:
                    self._cache.put(self._serial | position, body)
            if (body := bodies[at - numbers.start]) is None:
                raise self._damage(self.records[at])
            return body
        finally:
            fetch.has_come.set()
            self._fetches.remove(fetch)

    async def bodies_from(self, first: int) -> list[bytes | None]:
        """Returns the bodies of record number `first` and some after it, from memory or by one
        short read; None for a damaged one.

        No body is kept in the cache, because a walk through a whole file would evict everything
        else.
        """
        found: list[bytes | None] = []
        start, last = self.records[first], first
        while (body := self._cache.peek(self._serial | self.records[last])) is not None:
            found.append(body)
            last += 1
            if last == len(self.records) or self._end_of(last) - start > _BODIES_BYTES:
                return found
        if found:
            return found
        while last + 1 < len(self.records) and self._end_of(last + 1) - start <= _BODIES_BYTES:
            last += 1
        data = await self.file.read_at(start, self._end_of(last) - start)
        return self._bodies_in(data, start, self.records[first : last + 1])

    async def damaged_body(self, at: int) -> bytes:
        """Returns record number `at` as stored; neither its bytes nor its end are verified."""
        start = self.records[at] + HEAD_BYTES
        return await self.file.read_at(start, self._end_of(at) - start)

    async def verify(self, at: int) -> int:
        """Reads record number `at` from the disk; returns its size. Raises `TornRecord`."""
        start, size = self.records[at], self._end_of(at) - self.records[at]
        (body,) = self._bodies_in(await self.file.read_at(start, size), start, (start,))
        if body is None:
            raise self._damage(start)
        self._cache.put(self._serial | start, body)
        return size

    def number_at(self, position: int) -> int:
        """Returns the number of the record at that position."""
        return bisect_right(self.records, position) - 1

    def _bodies_in(
        self, contents: Buffer, origin: int, positions: Sequence[int]
    ) -> list[bytes | None]:
        """Returns the verified bodies of these records; None for damaged ones."""
        bodies = bodies_in(contents, self.header.file_id, origin, positions)
        if None in bodies:  # If only a head is damaged, the trailer says where the body is.
            reader = RecordReader(bytes(contents), self.header.file_id, origin)
            for at, position in enumerate(positions):
                if bodies[at] is None:
                    bodies[at] = _body_found_otherwise(reader, position)
        return bodies

    def _damage(self, position: int) -> TornRecord:
        return TornRecord("a record is damaged", file=self.header.number, position=position)

    def _end_of(self, at: int) -> int:
        return self.records[at + 1] if at + 1 < len(self.records) else self.end

    async def retire(self) -> None:
        """Closes the file when it has no more readers."""
        self._is_retired = True
        for position in self.records:
            self._cache.drop(self._serial | position)
        await self._close_when_unused()

    async def _close_when_unused(self) -> None:
        if self._is_retired and not self._readers:
            await self.file.close()


def _body_found_otherwise(reader: RecordReader, position: int) -> bytes | None:
    record = reader.at(position) or reader.next_after(position, 0)
    if record is None or record.position != position:
        return None
    try:
        return reader.body(record)
    except TornRecord:
        return None
