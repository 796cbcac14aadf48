"""Tracks what a reader knows about the tail of its log, and decides what it reports (RL6).

    behind ──► live      the reader has read up to a tail that the owner, on any server, or a list of closed segments
       ▲         │       gave after the reader's request. `CaughtUp` is reported once
       └─────────┘       the owner's memory has dropped what the reader would read next. `FellBehind` is reported

A reader at another server asks the owner after it has read everything that bookies report as confirmed:
bookies learn only from the next block that a block is confirmed. If the owner cannot be asked, the reader
is unsure. It reports once that it waits for the owner, and asks again after a pause.

Each heartbeat names the position, the tail as far as it is known, and what the reader waits for (RL3). A reader
reports that it waits for nothing only if that is certain; otherwise it reports that it waits for the owner.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from rollbook.logservice.core.ledger_list import LedgerList
from rollbook.logservice.core.segment_lookup import from_last_settled
from rollbook.logservice.ids import FIRST_OFFSET, Offset
from rollbook.logservice.messages import CaughtUp, FellBehind, LogTail, Progress, WaitsFor
from rollbook.proto.ids import NO_ENTRY, EntryId, LedgerId

# The pause after an owner could not be asked. Shorter: the reader spends more time on asking owners, and less
# on reading from bookies.
ASK_AGAIN_S: Final = 2.0


def has_read_all(next_entry: EntryId, last_add_confirmed: EntryId, *, is_closed: bool) -> bool:
    """Return whether the ledger is unclosed, and all entries that bookies report as confirmed were read."""
    return next_entry > last_add_confirmed and not is_closed


class ReaderPosition(NamedTuple):
    next_offset: Offset
    last_timestamp_us: int  # The time of the last record that was read; 0 if none was.
    now_us: int  # The time at which the position is reported.


class ReaderProgress:
    """The reports of one reader that depend on the log's tail."""

    def __init__(self, start: Offset) -> None:
        self.tail = start  # The tail as far as is known.
        self.owner_tail: LogTail | None = None  # The last report of an owner at another server.
        self.waits_for = WaitsFor.FETCHING
        # Whether the reader has reported that it caught up, and has not fallen behind since.
        self.is_live = False
        # Whether the reader has reported that the owner cannot be asked.
        self._is_unsure = False
        self._ask_again_s = 0.0  # When the owner is asked again after it did not answer.
        self._listed_head = FIRST_OFFSET
        self._bytes = self._records = 0  # Totals of what was read.

    # --- What is known of the tail ------------------------------------------------------------

    def on_tail(self, tail: Offset) -> None:
        self.tail = max(self.tail, tail)

    def on_list(self, listed: LedgerList) -> None:
        self._listed_head = listed.head
        self.on_tail(_known_tail(listed))

    def on_records(self, start: Offset, next_offset: Offset, record_bytes: int) -> None:
        self.on_tail(next_offset)
        self._records += next_offset - start
        self._bytes += record_bytes

    def on_owner_tail(self, report: LogTail, uid: str) -> bool:
        """Take note of a report by an owner at another server; returns whether it counts. A report about
        another log that has the name now does not count. `uid`: this log's uid; empty: not known.
        """
        if report.uid and uid and report.uid != uid:
            return False
        self.owner_tail = report
        self.on_tail(report.tail)
        return True

    def confirmed_in(self, ledger_id: LedgerId) -> EntryId:
        """The last entry of the ledger that an owner at another server has reported as confirmed."""
        report = self.owner_tail
        if report is None or report.ledger_id != ledger_id or report.last_entry is None:
            return NO_ENTRY
        return report.last_entry

    def lag(self, position: Offset, owner_tail: Offset | None) -> int:
        """The number of records that follow, as far as is known. `owner_tail`: None unless this server is the owner."""
        tail = self.tail if owner_tail is None else max(owner_tail, self.tail)
        return max(tail - position, 0)

    # --- From the owner's memory --------------------------------------------------------------

    def on_memory_entered(self, position: Offset, owner_tail: Offset) -> Sequence[CaughtUp]:
        self.waits_for = WaitsFor.NOTHING
        return self.on_memory_read(position, owner_tail)

    def on_memory_read(self, position: Offset, owner_tail: Offset) -> Sequence[CaughtUp]:
        return self._go_live(position) if position >= owner_tail else ()

    def on_memory_lost(self, owner_tail: Offset | None) -> Sequence[FellBehind]:
        """Take note that the owner's memory has dropped the records after the position."""
        if not self.is_live:
            return ()
        self.is_live = False
        return (FellBehind(self.tail if owner_tail is None else owner_tail),)

    # --- From the ledgers ---------------------------------------------------------------------

    def on_segment_found(self) -> None:
        """Take note of a segment to read. A reader that waits for a replica continues to report this until
        it has read from one.
        """
        if self.waits_for is not WaitsFor.REPLICA:
            self.waits_for = WaitsFor.FETCHING

    def on_more_to_read(self) -> None:
        self.waits_for = WaitsFor.FETCHING

    def on_replica_awaited(self) -> None:
        self.waits_for = WaitsFor.REPLICA

    def on_roll_awaited(self) -> None:
        self.waits_for = WaitsFor.ROLL

    def on_owner_awaited(self, position: Offset) -> Sequence[CaughtUp]:
        """Take note that all listed segments are closed and were read: nothing follows before an owner
        begins a segment.
        """
        self.waits_for = WaitsFor.OWNER
        return self._go_live(position)

    def on_all_read(self) -> None:
        """Take note that everything that bookies report as confirmed was read."""
        self.waits_for = WaitsFor.NOTHING

    def may_ask(self, now_s: float) -> bool:
        """Return whether an owner at another server may be asked now for its tail."""
        return now_s >= self._ask_again_s

    def on_answer(
        self, answer: LogTail | None, position: ReaderPosition, now_s: float
    ) -> Sequence[CaughtUp | Progress]:
        """Take note of the owner's answer, after everything that bookies report was read. Call
        `on_owner_tail` first. None: the owner was not asked, or did not answer.
        """
        if answer is None:
            self.waits_for = WaitsFor.OWNER
            if self.may_ask(now_s):  # The owner was asked and did not answer: a new pause begins.
                self._ask_again_s = now_s + ASK_AGAIN_S
            if self._is_unsure:
                return ()
            self._is_unsure = True
            return (self._report(position, self._listed_head, WaitsFor.OWNER),)
        if answer is self.owner_tail and position.next_offset >= answer.tail:
            return self._go_live(position.next_offset)
        self.waits_for = WaitsFor.FETCHING
        return ()

    # --- Heartbeats ---------------------------------------------------------------------------

    def report_at_owner(
        self, position: ReaderPosition, *, owner_head: Offset, owner_tail: Offset
    ) -> Progress:
        self.on_tail(owner_tail)
        return self._report(position, owner_head, self.waits_for)

    def report_elsewhere(self, position: ReaderPosition, *, is_sure: bool) -> Progress:
        """`is_sure`: whether the owner, or a list of closed segments, has just given the tail."""
        waits_for = self.waits_for
        if waits_for is WaitsFor.NOTHING and not is_sure:
            waits_for = WaitsFor.OWNER
        return self._report(position, self._listed_head, waits_for)

    def _report(self, position: ReaderPosition, head: Offset, waits_for: WaitsFor) -> Progress:
        """The lag in bytes is estimated from the mean size of read records; the lag in time is the age of
        the last one.
        """
        next_offset, last_timestamp_us, now_us = position
        lag = max(self.tail - next_offset, 0)
        return Progress(
            next_offset,
            head,
            max(self.tail, next_offset),
            lag,
            lag_bytes=lag * self._bytes // max(self._records, 1),
            lag_us=max(now_us - last_timestamp_us, 0) if lag and last_timestamp_us else 0,
            waits_for=waits_for,
        )

    def _go_live(self, position: Offset) -> Sequence[CaughtUp]:
        self._is_unsure = False
        if self.is_live:
            return ()
        self.is_live = True
        return (CaughtUp(position),)


def _known_tail(listed: LedgerList) -> Offset:
    last = from_last_settled(listed.segments)[:1]
    if not last:
        return listed.head
    return (
        last[0].base_offset or listed.head if last[0].next_offset is None else last[0].next_offset
    )
