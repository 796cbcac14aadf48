"""When a bookie may drop its copies of a ledger that has others (B16).

A bookie that was away comes back with copies that were made elsewhere in the meantime. The copies of
a ledger are dropped if all of this holds:
- Two looks at the metadata, one an `interval` after the other, found that the ledger is closed and that no fragment
  names this bookie. A closed ledger never opens again, and after that only a repair can name a bookie.
- Nothing was added here since the first look: a repair copies first and changes the metadata afterwards.
- The second look was made under the ledger's lock, so that no repair is under way, and so recently
  that the session which holds the lock cannot have ended. A repair relies on the bookie's list.

A failed look proves nothing. All this is kept in memory: after a restart, the next look is a first one.
"""

from collections.abc import Collection
from typing import Final

from rollbook.proto.ids import BookieId
from rollbook.proto.metadata import LedgerMetadata

_CERTAIN_NS_MAX: Final = 1_000_000_000


def is_surplus(metadata: LedgerMetadata, bookie: BookieId) -> bool:
    """Whether this bookie's copy of the ledger will never be used, unless a repair names the
    bookie."""
    return metadata.is_closed and not metadata.names(bookie)


class SurplusCopies:
    def __init__(self, interval_ns: int, session_timeout_s: float, quiet: dict[int, int]) -> None:
        """`quiet`: the storage removes a ledger from it when it accepts an add."""
        # Looks vary in length: a look that is slightly too early need not be repeated a day later.
        self._apart_ns = interval_ns * 9 // 10
        self._certain_ns = min(int(session_timeout_s * 1e9 / 2), _CERTAIN_NS_MAX)
        self._quiet = quiet  # Ledgers that are surplus, and when each was first asked about.

    @property
    def ledger_ids(self) -> Collection[int]:
        """Ledgers that are dropped if the next look agrees."""
        return self._quiet.keys()

    def on_asked(self, ledger_id: int, asked_ns: int) -> None:
        """Called before the ledger's metadata is read, so that an add during the read is noticed."""
        self._quiet.setdefault(ledger_id, asked_ns)

    def on_unanswered(self, ledger_id: int, asked_ns: int) -> None:
        """The metadata could not be read: this look proves nothing about the ledger."""
        if self._quiet.get(ledger_id) == asked_ns:
            del self._quiet[ledger_id]

    def on_answer(self, ledger_id: int, asked_ns: int, *, surplus: bool) -> bool:
        """Takes the answer; returns whether to read the metadata again under the ledger's lock."""
        if not surplus:
            self._quiet.pop(ledger_id, None)
        return self._is_due(ledger_id, asked_ns)

    def may_drop(self, ledger_id: int, asked_ns: int, now_ns: int) -> bool:
        """Whether the ledger may be dropped: it is surplus under its lock, in a session that was
        alive at `asked_ns`."""
        return self._is_due(ledger_id, asked_ns) and now_ns - asked_ns < self._certain_ns

    def _is_due(self, ledger_id: int, asked_ns: int) -> bool:
        first_ns = self._quiet.get(ledger_id)
        return first_ns is not None and asked_ns - first_ns >= self._apart_ns

    def on_gone(self, ledger_id: int) -> None:
        """Called when no entry of the ledger is here any more."""
        self._quiet.pop(ledger_id, None)
