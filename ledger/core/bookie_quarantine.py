"""Remembers which bookies should be avoided for a while.

A bookie that failed (no response in time, no connection, an I/O error) is in quarantine: it gets no
new copies while other bookies are available, and readers ask it last. The first quarantine takes a
minute; if the bookie fails again soon after, the next one takes twice as long, up to half an hour.
A hanging bookie therefore costs all users of this object one deadline, and very little after that.
A caller that finds only bookies in quarantine asks them whether they respond, and ends the
quarantine of those that do.

A slow bookie has not failed: when another copy arrives first, readers ask the slow bookie after the
others until it answers again.
"""

from dataclasses import dataclass
from typing import Final

from rollbook.proto.ids import BookieId

_NS_PER_S: Final = 1_000_000_000
QUARANTINE_NS_MIN: Final = 60 * _NS_PER_S
QUARANTINE_NS_MAX: Final = 30 * 60 * _NS_PER_S
# For this long, a bookie that was slow is asked after the others, unless it answers before.
_SLOW_NS: Final = 5 * _NS_PER_S
_BOOKIES_MAX: Final = 10_000  # A bound on remembered bookies; no cluster has this many.


@dataclass(slots=True)
class _BookieRecord:
    failed_until_ns: int = -1
    quarantine_ns: int = 0  # The length of the last quarantine.
    slow_until_ns: int = -1


class Health:
    def __init__(self) -> None:
        self._records: dict[BookieId, _BookieRecord] = {}

    def on_failure(self, bookie: BookieId, now_ns: int) -> None:
        """Begins a quarantine, unless the bookie is in one. Further failures, of other ledgers or
        of reconnects, do not extend the quarantine."""
        record = self._record(bookie)
        if now_ns < record.failed_until_ns:
            return
        is_relapse = now_ns < record.failed_until_ns + record.quarantine_ns
        wanted = 2 * record.quarantine_ns if is_relapse else QUARANTINE_NS_MIN
        record.quarantine_ns = min(wanted, QUARANTINE_NS_MAX)
        record.failed_until_ns = now_ns + record.quarantine_ns

    def on_slow(self, bookie: BookieId, now_ns: int) -> None:
        self._record(bookie).slow_until_ns = now_ns + _SLOW_NS

    def on_answer(self, bookie: BookieId) -> None:
        """Notes a good response: the bookie is no longer slow. A quarantine continues, because the
        response may be old, and quarantine is meant for bookies that fail now and then."""
        if record := self._records.get(bookie):
            record.slow_until_ns = -1

    def pardon(self, bookie: BookieId, now_ns: int) -> None:
        """Ends the quarantine of a bookie that has just answered a test request. A new failure
        still counts as a relapse."""
        if (record := self._records.get(bookie)) and now_ns < record.failed_until_ns:
            record.failed_until_ns = now_ns

    def is_quarantined(self, bookie: BookieId, now_ns: int) -> bool:
        record = self._records.get(bookie)
        return record is not None and now_ns < record.failed_until_ns

    def quarantined_until_ns(self, bookie: BookieId) -> int:
        record = self._records.get(bookie)
        return record.failed_until_ns if record else -1

    def read_rank(self, bookie: BookieId, now_ns: int) -> int:
        """Returns the bookie's rank for reads: 0: asked in its turn; 1: asked after those of rank
        0; 2: asked last."""
        record = self._records.get(bookie)
        if record is None:
            return 0
        if now_ns < record.failed_until_ns:
            return 2
        return 1 if now_ns < record.slow_until_ns else 0

    def _record(self, bookie: BookieId) -> _BookieRecord:
        record = self._records.get(bookie)
        if record is None:
            if len(self._records) >= _BOOKIES_MAX:
                del self._records[next(iter(self._records))]
            record = self._records[bookie] = _BookieRecord()
        return record
