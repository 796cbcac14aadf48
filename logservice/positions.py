"""From times and words to offsets, and from offsets to entries: searches in ledgers by their blocks.

Base offsets and timestamps never go back from entry to entry of a log, control entries included; so
either is found by halving, with one read of a single entry for each step.
"""

from collections.abc import Callable

from rollbook.ledger.ledgers import Ledgers
from rollbook.ledger.reader import LedgerReader
from rollbook.logservice.core.block import Block
from rollbook.logservice.core.control import NO_LEDGER
from rollbook.logservice.core.ledger_list import LedgerList
from rollbook.logservice.core.segments import (
    continues,
    find_segment_at,
    from_last_settled,
)
from rollbook.logservice.ids import Offset
from rollbook.proto.errors import NoSuchEntry
from rollbook.proto.ids import FIRST_ENTRY, NO_ENTRY, EntryId


async def read_block(ledger: LedgerReader, entry_id: EntryId) -> Block:
    """Raises as `LedgerReader.read`."""
    async with ledger.read(entry_id, entry_id) as entries:
        async for entry in entries:
            return Block(entry.payload)
    raise NoSuchEntry(ledger_id=ledger.ledger_id, entry_id=entry_id)


async def find_entry(ledger: LedgerReader, is_there: Callable[[Block], bool]) -> EntryId:
    """The first confirmed entry of which it is true; the one behind the last if it never is.

    Once it is true it has to stay so from entry to entry.
    """
    low, high = FIRST_ENTRY, EntryId(ledger.last_add_confirmed + 1)
    while low < high:
        middle = EntryId((low + high) // 2)
        if is_there(await read_block(ledger, middle)):
            high = middle
        else:
            low = EntryId(middle + 1)
    return low


async def find_offset_at(listed: LedgerList, timestamp_us: int, ledgers: Ledgers) -> Offset | None:
    """Of the first record that is not older, as far as what is confirmed goes; None: all are.

    At least the head. Raises what opening and reading ledgers raises.
    """
    segment = find_segment_at(listed.segments, timestamp_us)
    while segment is not None:
        async with await ledgers.open(segment.ledger_id) as ledger:
            offset = await _first_record(ledger, timestamp_us)
        if offset is not None:
            return max(offset, listed.head)
        index = listed.segments.index(segment) + 1
        segment = listed.segments[index] if index < len(listed.segments) else None
    return None


async def _first_record(ledger: LedgerReader, timestamp_us: int) -> Offset | None:
    """Behind any number of control entries: their base offset is that of the record to come."""
    entry_id = await find_entry(ledger, lambda block: block.timestamp_us >= timestamp_us)
    if entry_id > ledger.last_add_confirmed:
        return None
    offset = (await read_block(ledger, entry_id)).base_offset
    entry_id = await find_entry(ledger, lambda block: block.next_offset > offset)
    return offset if entry_id <= ledger.last_add_confirmed else None


async def find_tail(listed: LedgerList, ledgers: Ledgers) -> tuple[Offset, int]:
    """Where the log ends, as far as is confirmed, and the time of its last block.

    What was acked before the call is below it, but for the last block of a segment whose writer has
    not told of it yet. Raises what opening and reading ledgers raises.
    """
    tail, timestamp_us = listed.head, 0
    before = (NO_LEDGER, NO_ENTRY)
    for segment in from_last_settled(listed.segments):
        if segment.base_offset is not None:
            tail = segment.base_offset
        async with await ledgers.open(segment.ledger_id) as ledger:
            last_entry = ledger.last_add_confirmed
            if last_entry == NO_ENTRY:
                break
            if segment.base_offset is None:
                first = await read_block(ledger, FIRST_ENTRY)
                if not continues(first, before):
                    break
            block = await read_block(ledger, last_entry)
            tail, timestamp_us = block.next_offset, block.timestamp_us
            if not ledger.is_closed:
                break
            before = (segment.ledger_id, last_entry)
    return tail, timestamp_us
