"""Decides when a bookie may drop its copies of a ledger because other bookies hold it (B16).

If a bookie was away, others may have copied its entries in the meantime, and its own copies are
surplus. The copies of a ledger are dropped if all of these conditions hold:
- Two looks at the metadata, at least nine tenths of an `interval` apart, found that the ledger is
  closed and that no fragment names this bookie. A closed ledger never opens again, so from then on
  only a repair can add a bookie to its metadata.
- Nothing was added here since the first look: a repair copies first and changes the metadata afterwards.
- The second look was made under the ledger's lock, so that no repair is under way, and so recently
  that the session which holds the lock cannot have ended. A drop during
  a repair would be wrong, because the repair relies on the bookie's list of entries.

A look that fails proves nothing. The looks are kept in memory, so the first look after a restart
counts as the first of the two.
"""

from collections.abc import Collection
from typing import Final

from rollbook.proto.ids import BookieId
from rollbook.proto.metadata import LedgerMetadata

_CERTAIN_NS_MAX: Final = 1_000_000_000


def is_surplus(metadata: LedgerMetadata, bookie: BookieId) -> bool:
    """Returns whether this bookie's copy of the ledger will never be used, unless a repair names
    the bookie."""
    return metadata.is_closed and not metadata.names(bookie)


class SurplusCopies:
    def __init__(self, interval_ns: int, session_timeout_s: float, quiet: dict[int, int]) -> None:
        """The storage removes a ledger from `quiet` when it accepts an add."""
        # Nine tenths of the interval are enough: looks take varying times, and a second look that
        # comes slightly early would otherwise count only after one more interval.
        self._apart_ns = interval_ns * 9 // 10
        self._certain_ns = min(int(session_timeout_s * 1e9 / 2), _CERTAIN_NS_MAX)
        self._quiet = quiet  # Ledgers that are surplus, each with the time of its first look.

    @property
    def ledger_ids(self) -> Collection[int]:
        """The ledgers that are dropped if a look nine tenths of an interval later confirms that they are surplus."""
        return self._quiet.keys()

    def on_asked(self, ledger_id: int, asked_ns: int) -> None:
        """Called before the ledger's metadata is read, so that an add during the read is noticed."""
        self._quiet.setdefault(ledger_id, asked_ns)

    def on_unanswered(self, ledger_id: int, asked_ns: int) -> None:
        """Called when the metadata could not be read: this look proves nothing about the ledger."""
        if self._quiet.get(ledger_id) == asked_ns:
            del self._quiet[ledger_id]

    def on_answer(self, ledger_id: int, asked_ns: int, *, surplus: bool) -> bool:
        """Takes the metadata that was read; returns whether to read it again under the ledger's
        lock."""
        if not surplus:
            self._quiet.pop(ledger_id, None)
        return self._is_due(ledger_id, asked_ns)

    def may_drop(self, ledger_id: int, asked_ns: int, now_ns: int) -> bool:
        """Returns whether the ledger may be dropped: it is surplus under its lock, in a session
        that was alive at `asked_ns`."""
        return self._is_due(ledger_id, asked_ns) and now_ns - asked_ns < self._certain_ns

    def _is_due(self, ledger_id: int, asked_ns: int) -> bool:
        first_ns = self._quiet.get(ledger_id)
        return first_ns is not None and asked_ns - first_ns >= self._apart_ns

    def on_gone(self, ledger_id: int) -> None:
        """Called when the bookie has no entry of the ledger any more."""
        self._quiet.pop(ledger_id, None)
