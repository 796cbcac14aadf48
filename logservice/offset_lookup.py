"""Finds offsets by time or position, and entries by offset, by searching the blocks of ledgers.

Base offsets and timestamps never decrease from one entry of a log to the next, control entries included. A
search for either is therefore a bisection, and each step reads one entry.

Bookies learn only from the next entry, or some time later, that the last entry is confirmed. A search at the
owner therefore also covers the entries that the owner has confirmed, and finds every acked record.
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Final

from rollbook.ledger.ledgers import Ledgers
from rollbook.ledger.reader import LedgerReader
from rollbook.logservice.core.control_blocks import NO_LEDGER
from rollbook.logservice.core.ledger_list import LedgerList, Segment, Size, Sizes
from rollbook.logservice.core.record_block import Block
from rollbook.logservice.core.segment_lookup import continues, find_segment_at, from_last_settled
from rollbook.logservice.ids import Offset
from rollbook.proto.errors import NoSuchEntry
from rollbook.proto.ids import FIRST_ENTRY, NO_ENTRY, EntryId, LedgerId
from rollbook.proto.wire.digest import Entry

Confirmed = Mapping[LedgerId, EntryId]
"""The last confirmed entry of each ledger that the owner writes."""

NOT_OWNED: Final[Confirmed] = {}


async def read_block(ledger: LedgerReader, entry_id: EntryId) -> Block:
    """The block of one entry. Raises `EntryUnavailable`, `DigestMismatch`, `NoSuchEntry`."""
    return Block((await _read_entry(ledger, entry_id)).payload)


async def _read_entry(ledger: LedgerReader, entry_id: EntryId) -> Entry:
    """Read one entry that the caller knows to be confirmed. Raises `EntryUnavailable`, `DigestMismatch`,
    `NoSuchEntry`.
    """
    async with ledger.read_unconfirmed(entry_id, entry_id) as entries:
        async for entry in entries:
            return entry
    raise NoSuchEntry(ledger_id=ledger.ledger_id, entry_id=entry_id)


async def find_entry(
    ledger: LedgerReader, is_there: Callable[[Block], bool], last_entry: EntryId | None = None
) -> EntryId:
    """The first confirmed entry for which `is_there` is true, or, if there is none, the entry after the
    last one.

    Once `is_there` is true for an entry, it must be true for all later entries. `last_entry` is the last
    confirmed entry; None: the last entry that bookies report as confirmed.
    """
    if last_entry is None:
        last_entry = ledger.last_add_confirmed
    low, high = FIRST_ENTRY, EntryId(last_entry + 1)
    while low < high:
        middle = EntryId((low + high) // 2)
        if is_there(await read_block(ledger, middle)):
            high = middle
        else:
            low = EntryId(middle + 1)
    return low


async def find_offset_at(
    listed: LedgerList, timestamp_us: int, ledgers: Ledgers, confirmed: Confirmed = NOT_OWNED
) -> Offset:
    """The offset of the first record of that time or later. If all records are older, the end of the
    searched records, so that a reader that starts there skips no record.

    The result is at least the head. Raises `NoSuchLedger`, and `EntryUnavailable` or `DigestMismatch` if an
    entry cannot be read.
    """
    first = find_segment_at(listed.segments, timestamp_us)
    if first is None:
        assert listed.tail is not None  # A list without an unclosed segment has a tail.
        return max(listed.tail, listed.head)
    end = listed.head if first.base_offset is None else first.base_offset
    segments = listed.segments[listed.segments.index(first) :]
    async with aclosing(_followed(segments, ledgers, confirmed)) as found:
        async for ledger, last_entry in found:
            offset = await _first_record(ledger, timestamp_us, last_entry)
            if offset is not None:
                return max(offset, listed.head)
            end = (await read_block(ledger, last_entry)).next_offset
    return max(end, listed.head)


async def _first_record(
    ledger: LedgerReader, timestamp_us: int, last_entry: EntryId
) -> Offset | None:
    """The offset of the first record of that time or later, or None if there is none. Any number of control
    entries may come before that record: they have the same base offset.
    """
    entry_id = await find_entry(
        ledger, lambda block: block.timestamp_us >= timestamp_us, last_entry
    )
    if entry_id > last_entry:
        return None
    offset = (await read_block(ledger, entry_id)).base_offset
    entry_id = await find_entry(ledger, lambda block: block.next_offset > offset, last_entry)
    return offset if entry_id <= last_entry else None


async def find_tail(listed: LedgerList, ledgers: Ledgers) -> tuple[Offset, int]:
    """The confirmed end of the log, and the time of its last record, or 0 if that time could only be found by a
    search.

    Every record acked before the call is below that end, except perhaps the records in the last block, which
    bookies may not know to be confirmed. If all segments are closed, the list has the end. Raises
    `NoSuchLedger`, `EntryUnavailable`, `DigestMismatch`.
    """
    if listed.tail is not None:
        return max(listed.tail, listed.head), 0
    segments = from_last_settled(listed.segments)
    tail, timestamp_us = listed.head, 0
    if segments and segments[0].base_offset is not None:
        tail = segments[0].base_offset
    async with aclosing(_followed(segments, ledgers)) as found:
        async for ledger, last_entry in found:
            block = await read_block(ledger, last_entry)
            tail = block.next_offset
            timestamp_us = 0 if block.is_control else block.timestamp_us
    return tail, timestamp_us


async def find_last_time(
    listed: LedgerList, ledgers: Ledgers, confirmed: Confirmed = NOT_OWNED
) -> int:
    """The time of the last record, or 0 if no record is left. Any number of control entries may follow that record.

    Raises `NoSuchLedger`, `EntryUnavailable`, `DigestMismatch`.
    """
    last = from_last_settled(listed.segments)
    timestamp_us = 0
    async with aclosing(_followed(last, ledgers, confirmed)) as found:
        async for ledger, last_entry in found:
            timestamp_us = await _last_time(ledger, last_entry) or timestamp_us
    before = listed.segments[: len(listed.segments) - len(last)]
    with_records = [segment for segment in before if segment.records]
    if not timestamp_us and with_records:
        async with await ledgers.open(with_records[-1].ledger_id) as ledger:
            timestamp_us = await _last_time(ledger, ledger.last_add_confirmed)
    return timestamp_us


async def _last_time(ledger: LedgerReader, last_entry: EntryId) -> int:
    block = await read_block(ledger, last_entry)
    if block.is_control:
        tail = block.next_offset
        block = await read_block(
            ledger, await find_entry(ledger, lambda each: each.next_offset >= tail, last_entry)
        )
    return 0 if block.is_control else block.timestamp_us


async def find_sizes(listed: LedgerList, ledgers: Ledgers) -> Sizes:
    """The sizes of the unclosed segments, up to the last entries that bookies report as confirmed. Raises
    `NoSuchLedger`, `EntryUnavailable`, `DigestMismatch`.
    """
    sizes: dict[LedgerId, Size] = {}
    async with aclosing(_followed(listed.unclosed, ledgers)) as found:
        async for ledger, last_entry in found:
            base_offset = (await read_block(ledger, FIRST_ENTRY)).base_offset
            last = await _read_entry(ledger, last_entry)
            records = Block(last.payload).next_offset - base_offset
            sizes[ledger.ledger_id] = Size(last.ledger_length, records)
    return sizes


async def _followed(
    segments: Sequence[Segment], ledgers: Ledgers, confirmed: Confirmed = NOT_OWNED
) -> AsyncGenerator[tuple[LedgerReader, EntryId]]:
    """Yield the ledger of each segment with its last confirmed entry. Stops at an empty ledger, at a ledger that
    may not be part of the log, and after an unclosed ledger.
    """
    before = (NO_LEDGER, NO_ENTRY)
    for segment in segments:
        async with await ledgers.open(segment.ledger_id) as ledger:
            last_entry = max(ledger.last_add_confirmed, confirmed.get(segment.ledger_id, NO_ENTRY))
            if last_entry == NO_ENTRY:
                return
            if segment.base_offset is None and not continues(
                await read_block(ledger, FIRST_ENTRY), before
            ):
                return
            yield ledger, last_entry
            if not ledger.is_closed:
                return
            before = (segment.ledger_id, last_entry)
