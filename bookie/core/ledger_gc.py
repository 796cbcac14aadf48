"""Decides when a ledger that metadata no longer names may be deleted here.

A ledger is deleted only if all of these conditions hold (B11: nothing else is proof):
- Two scans of the metadata and all scans in between and since missed the ledger. Both began after
  the ledger was known here, and the second began at least `interval` after the first had ended.
- After that, `gc_quarantine_s` have passed, so that an operator can notice if metadata was deleted,
  lost or moved by mistake.
- At most a certain share of all ledgers is missing at once, because more are missing if the
  metadata store is wrong or was emptied. If more are missing, no ledger is deleted until fewer are
  missing, or an operator confirms it.

An unfinished scan proves nothing. These observations are kept in memory, so a restart begins from
scratch.
"""

from array import array
from dataclasses import dataclass
from typing import Final

from rollbook.bookie.core.journal_index import IntArray

_BRAKE_LEDGERS_MIN: Final = 100  # A smaller number of deletions is never suspicious.
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
        # The time at which the first scan that missed the ledger had ended.
        self._first_ended_ns = array("q")
        # The time at which a second scan that began late enough had ended; or `_NOT_AGREED`.
        self._agreed_ns = array("q")

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def agreed(self) -> int:
        return sum(agreed_ns != _NOT_AGREED for agreed_ns in self._agreed_ns)

    def on_scan(self, began_ns: int, ended_ns: int, absent: IntArray, ledgers: int) -> None:
        """Takes the result of a complete scan: `ledgers` were here before it, and metadata lacked
        those in `absent` (ascending)."""
        ids, firsts, agreeds = array("q"), array("q"), array("q")
        at, count = 0, len(self._ids)
        for ledger_id in absent:
            while at < count and self._ids[at] < ledger_id:
                at += 1  # This ledger is in metadata again, so it is no suspect any more.
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
        """Decides which ledgers to delete now. `force`, from an operator, skips the brake and the
        wait, but not the second scan."""
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
