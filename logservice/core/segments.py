"""A log as a sequence of segments: which segment has an offset, and how a reader goes from one segment to the next.

The list has a segment's base offset once everything before the segment is settled; such a base never
changes. The last segment has no base in the list until its predecessor is closed there. A reader that
continues in the last segment derives the base if both of these hold:

    the predecessor is CLOSED, and all of it was read; before that, it is uncertain which segment follows
    the segment's first entry names the predecessor, and exactly the entry at which it was closed

If the first entry names another entry, the segment will be discarded as a whole: nothing in it was acked. The
reader reads the list again, and waits for that change; it does not fail (RL2). A base that was derived this way
never changes, since a closed ledger does not change.

Offsets are dense. All code that returns blocks checks that each of them begins where the previous one ended: a
hole is reported as an error, never skipped (RL1).
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from rollbook.logservice.core.control_blocks import Follows, unpack_control
from rollbook.logservice.core.ledger_list import LedgerList, ListedLogState, Segment
from rollbook.logservice.core.record_block import Block, span_of
from rollbook.logservice.ids import Offset
from rollbook.proto.errors import DataLost
from rollbook.proto.ids import FIRST_ENTRY, EntryId, LedgerId


def find_segment(segments: Sequence[Segment], offset: Offset) -> Segment | None:
    """The last segment with a known base that begins at or before the offset; None if there is none."""
    count = _settled_count(segments)
    index = bisect_right(segments, offset, hi=count, key=_base)
    return segments[index - 1] if index else None


def _base(segment: Segment) -> Offset:
    assert segment.base_offset is not None
    return segment.base_offset


def from_last_settled(segments: Sequence[Segment]) -> Sequence[Segment]:
    return segments[max(_settled_count(segments) - 1, 0) :]


def _settled_count(segments: Sequence[Segment]) -> int:
    count = len(segments)
    while count and segments[count - 1].base_offset is None:  # At most one base is unknown.
        count -= 1
    return count


def continues(first: Block, end: tuple[LedgerId, EntryId]) -> bool:
    """Return whether a segment that begins with this block follows a ledger that is CLOSED at that entry."""
    if not first.is_control:
        return False
    kind = unpack_control(first)
    return isinstance(kind, Follows) and (kind.ledger_id, kind.last_entry) == end


def find_segment_at(segments: Sequence[Segment], timestamp_us: int) -> Segment | None:
    """The first segment that may hold a record of that time or later; None if all records are older."""
    for segment in segments:
        latest_us = segment.last_timestamp_us
        if latest_us is None or latest_us >= timestamp_us:
            return segment
    return None


def successor_of(segments: Sequence[Segment], ledger_id: LedgerId) -> Segment | None:
    """The segment after that ledger; None if it is the last one, or not listed."""
    index = index_of(segments, ledger_id)
    return None if index is None or index + 1 == len(segments) else segments[index + 1]


def index_of(segments: Sequence[Segment], ledger_id: LedgerId) -> int | None:
    """The index of the ledger's segment, searched from the end, where readers usually are."""
    for index in range(len(segments) - 1, -1, -1):
        if segments[index].ledger_id == ledger_id:
            return index
    return None


# --- A reader's path ----------------------------------------------------------------------------


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
