"""When a ledger that metadata no longer names may be deleted here.

A ledger is deleted only if all of this holds (B11: nothing else is proof):
- It was absent from two scans of the metadata that both began after it was known here, the second
  begun at least `interval` after the first had ended, and from every scan in between and since.
- After that, `gc_quarantine_s` have passed: time to notice that metadata was deleted, lost or moved by
  mistake.
- No more than a share of all ledgers are gone at once, since a wrong or emptied metadata store looks
  like that. Otherwise nothing is deleted until fewer ledgers are gone, or an operator says so.

An unfinished scan proves nothing. All this is kept in memory: a restart starts over.
"""

from array import array
from dataclasses import dataclass
from typing import Final

from rollbook.bookie.core.journal_index import IntArray

_BRAKE_LEDGERS_MIN: Final = 100  # Fewer deletions than this are never suspicious.
_NOT_AGREED: Final = -1


@dataclass(frozen=True, slots=True)
class GarbageDecision:
    garbage: IntArray  # Ids of ledgers to delete, ascending.
    is_braked: bool


class Suspects:
    """Ledgers that are here and were not in metadata, ascending: three columns, 24 bytes each."""

    def __init__(self, interval_ns: int, wait_ns: int, brake_share: float) -> None:
        self.ledgers = 0  # Number of ledgers that the last scan compared.
        self._interval_ns = interval_ns
        self._wait_ns = wait_ns
        self._brake_share = brake_share
        self._ids = array("q")
        self._first_ended_ns = array("q")  # When the first scan that missed the ledger had ended.
        # When a second scan, begun late enough, had ended; or `_NOT_AGREED`.
        self._agreed_ns = array("q")

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def agreed(self) -> int:
        return sum(agreed_ns != _NOT_AGREED for agreed_ns in self._agreed_ns)

    def on_scan(self, began_ns: int, ended_ns: int, absent: IntArray, ledgers: int) -> None:
        """Takes a complete scan of the `ledgers` that were here before it; metadata lacked `absent`
        (ascending)."""
        ids, firsts, agreeds = array("q"), array("q"), array("q")
        at, count = 0, len(self._ids)
        for ledger_id in absent:
            while at < count and self._ids[at] < ledger_id:
                at += 1  # This ledger is in metadata again: it is no suspect any more.
            ids.append(ledger_id)
            if at == count or self._ids[at] != ledger_id:
                firsts.append(ended_ns)
                agreeds.append(_NOT_AGREED)
                continue
            agreed_ns = self._agreed_ns[at]
            if (
                agreed_ns == _NOT_AGREED
                and began_ns - self._first_ended_ns[at] >= self._interval_ns
            ):
                agreed_ns = ended_ns
            firsts.append(self._first_ended_ns[at])
            agreeds.append(agreed_ns)
        self._ids, self._first_ended_ns, self._agreed_ns = ids, firsts, agreeds
        self.ledgers = ledgers

    def on_deleted(self, ledger_ids: IntArray) -> None:
        """Forgets ledgers that were deleted here."""
        gone = dict.fromkeys(ledger_ids)
        kept = [at for at, ledger_id in enumerate(self._ids) if ledger_id not in gone]
        self._ids = array("q", [self._ids[at] for at in kept])
        self._first_ended_ns = array("q", [self._first_ended_ns[at] for at in kept])
        self._agreed_ns = array("q", [self._agreed_ns[at] for at in kept])

    def judge(self, now_ns: int, *, force: bool) -> GarbageDecision:
        """Which ledgers to delete now. `force`, from an operator, skips the brake and the wait, but
        not the second scan."""
        agreed = self.agreed
        is_many = agreed > max(_BRAKE_LEDGERS_MIN, self._brake_share * self.ledgers)
        if is_many and not force:
            return GarbageDecision(array("q"), is_braked=True)
        due_ns = now_ns if force else now_ns - self._wait_ns
        garbage = array(
            "q",
            [
                ledger_id
                for ledger_id, agreed_ns in zip(self._ids, self._agreed_ns, strict=True)
                if agreed_ns != _NOT_AGREED and agreed_ns <= due_ns
            ],
        )
        return GarbageDecision(garbage, is_braked=False)
