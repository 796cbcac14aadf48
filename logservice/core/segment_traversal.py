"""Decides how a reader goes from one segment of a log to the next.

The last segment has no base offset in the list until its predecessor is closed there (`segment_lookup.py`). A
reader that continues in the last segment derives the base if both of these hold:

    the predecessor is CLOSED, and all of it was read; before that, it is uncertain which segment follows
    the segment's first entry names the predecessor, and exactly the entry at which it was closed

If the first entry names another entry, the segment will be discarded as a whole: nothing in it was acked. The
reader reads the list again, and waits for that change; it does not fail (RL2). A base that was derived this way
never changes, since a closed ledger does not change.

Offsets are dense. All code that returns blocks checks that each of them begins where the previous one ended: a
hole is reported as an error, never skipped (RL1).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rollbook.logservice.core.ledger_list import LedgerList, ListedLogState, Segment
from rollbook.logservice.core.record_block import Block, span_of
from rollbook.logservice.core.segment_lookup import continues, find_segment, index_of, successor_of
from rollbook.logservice.ids import Offset
from rollbook.proto.errors import DataLost
from rollbook.proto.ids import FIRST_ENTRY, EntryId, LedgerId


@dataclass(frozen=True, slots=True)
class Enter:
    """Read this segment from `first_entry` on; None: from the entry that holds the next offset."""

    segment: Segment
    first_entry: EntryId | None


@dataclass(frozen=True, slots=True)
class AwaitRoll:
    """Wait: the next segment is listed, but it may be discarded."""


@dataclass(frozen=True, slots=True)
class AwaitOwner:
    """Wait: the last segment is closed, and no further segment is listed."""


@dataclass(frozen=True, slots=True)
class Gone:
    """The next wanted record is below the head: it was truncated."""

    head: Offset


@dataclass(frozen=True, slots=True)
class End:
    """The log is sealed, and all of it was read."""


Step = Enter | AwaitRoll | AwaitOwner | Gone | End


class Trail:
    """One reader's path through a log. The caller passes it the list, entries from ledgers and blocks from
    the owner's memory.
    """

    def __init__(self, start: Offset) -> None:
        self.next_offset = start  # The offset of the next record to return.
        self.last_timestamp_us = 0  # The time of the last returned record.
        self.next_entry = FIRST_ENTRY  # The next entry in the current segment.
        self._is_within = True  # Whether the next block may begin before `next_offset`.
        # The last ledger that was read to its end, and its last entry. The ledger is settled.
        self._behind: tuple[LedgerId, EntryId] | None = None
        self._current: Segment | None = None
        self._is_settled = False  # Whether the current segment is known to be part of the log.
        # A ledger that does not follow what was read, or is empty.
        self._void: LedgerId | None = None

    def skip_to(self, head: Offset) -> None:
        self.next_offset = head
        self._is_within = True
        self._behind = self._current = None

    # --- What the list says -----------------------------------------------------------------

    def pick(self, listed: LedgerList) -> Step:
        if self.next_offset < listed.head:
            return Gone(listed.head)
        if self._current is not None:
            if index_of(listed.segments, self._current.ledger_id) is not None:
                return Enter(self._current, self.next_entry)
            self._current = None  # The segment was discarded, or truncated up to here.
        if self._behind is not None and index_of(listed.segments, self._behind[0]) is None:
            # The ledger was truncated; the segment after it has a known base by then.
            self._behind = None
        if self._behind is None:
            segment = find_segment(listed.segments, self.next_offset)
        else:
            segment = successor_of(listed.segments, self._behind[0])
        if segment is None:
            return End() if listed.state is ListedLogState.SEALED else AwaitOwner()
        self._is_settled = segment.base_offset is not None
        if segment.ledger_id == self._void and not self._is_settled:
            return AwaitRoll()
        self.next_entry = FIRST_ENTRY
        if segment.base_offset is not None and segment.base_offset != self.next_offset:
            is_ahead = self._is_within and segment.base_offset < self.next_offset
            if self._behind is not None and not is_ahead:
                raise _hole(self.next_offset, segment.base_offset, ledger_id=segment.ledger_id)
            # The reader may have got more from the owner's memory than bookies confirm, or than is listed yet.
            self._is_within = True
            return Enter(segment, None)
        return Enter(segment, FIRST_ENTRY)

    def enter(self, segment: Segment, first_entry: EntryId) -> None:
        """Take note that the segment's ledger is open, and is read from that entry on."""
        self._current, self.next_entry = segment, first_entry

    # --- What the current ledger holds ------------------------------------------------------

    def on_entries(self, payloads: Sequence[bytes]) -> list[bytes] | None:
        """The blocks of records among the entries; None: the segment does not follow what was read.

        Raises `DataLost` if the blocks do not continue what was returned before.
        """
        blocks: list[bytes] = []
        if payloads and not self._is_settled:
            if self._behind is None or not continues(Block(payloads[0]), self._behind):
                assert self._current is not None
                self._void, self._current = self._current.ledger_id, None
                return None
            self._is_settled = True
        for payload in payloads:
            base_offset, next_offset = span_of(payload)
            if base_offset == next_offset:
                continue  # A control block has no records.
            if base_offset != self.next_offset:
                if not self._is_within or base_offset > self.next_offset:
                    assert self._current is not None
                    raise _hole(self.next_offset, base_offset, ledger_id=self._current.ledger_id)
                if next_offset <= self.next_offset:
                    continue
            self._is_within = False
            self.next_offset = next_offset
            blocks.append(payload)
        if blocks:
            self.last_timestamp_us = Block(blocks[-1]).timestamp_us
        self.next_entry = EntryId(self.next_entry + len(payloads))
        return blocks

    def on_end(self, last_entry: EntryId) -> None:
        """Take note that the current ledger is CLOSED at that entry, and all of it was read."""
        assert self._current is not None
        if self._is_settled:
            self._behind = self._current.ledger_id, last_entry
        else:
            self._void = self._current.ledger_id
        self._current = None

    def on_memory(self, blocks: Sequence[bytes]) -> None:
        """Take note of blocks that the owner has just confirmed. Raises `DataLost` if they do not
        continue what was returned before."""
        for payload in blocks:
            base_offset, next_offset = span_of(payload)
            if base_offset != self.next_offset and (
                not self._is_within or not base_offset < self.next_offset < next_offset
            ):
                raise _hole(self.next_offset, base_offset)
            self._is_within = False
            self.next_offset = next_offset
        if blocks:
            self.last_timestamp_us = Block(blocks[-1]).timestamp_us
            # A later read from ledgers has to find its segment by the offset.
            self._behind = self._current = None


def _hole(expected: Offset, found: Offset | None, ledger_id: int = -1) -> DataLost:
    return DataLost(
        "offsets do not continue", expected=expected, found=found or 0, ledger_id=ledger_id
    )
