"""When a bookie has failed, and how it is replaced.

    adds to b3 fail ──► b3 is down ──► withdrawn: its copies count no more ──► CAS: fragment at LAC + 1
                          │                                                      names b4 for b3
                          └─ no other bookie: it stays down;                          │
                             back and answering: it sits again      b4 gets what is not confirmed

- One change is made at a time; bookies that fail during a change are replaced by the next one (WR3). Slots without a
  replacement stay down, and are tried again.
- The writer changes only a ledger that it reads back as OPEN, with the end that it wrote itself. Any other state means
  a recovery, which may have counted negatives of the present ensemble: the writer stops permanently (WR4).
- If the reply to a compare-and-set was lost, it was made if the ledger's end is as requested: no other
  process moves it while the ledger is OPEN.
- While one attempt's outcome is unknown, entries may be confirmed by bookies that stay, since they are
  in the ensemble in both cases. Therefore each new attempt starts at the LAC + 1 of its own time (WR2).

A lost connection is made again at once. If that fails, or if the connection is lost again before
anything was acknowledged, the bookie has failed. That holds only for a bookie with outstanding
adds: many ledgers are idle, and a restart is no reason to move them all. A bookie has failed, too,
if it responds with an error of its own or does not respond in time. A read-only bookie leaves the
ensemble without a quarantine; "busy" is no failure; "fenced" and "unauthorized" end the writer.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from rollbook.proto.errors import (
    BookieReadOnly,
    LedgerFenced,
    Overloaded,
    RollbookError,
    Unauthorized,
)
from rollbook.proto.ids import BookieId, EntryId
from rollbook.proto.metadata import Fragment, LedgerMetadata, LedgerState
from rollbook.proto.quorum import Ensemble, Quorum, Slots


class RefusalAction(Enum):
    """The meaning of a refused add."""

    RETRY = "retry"
    REPLACE = "replace"  # Replace the bookie and put it in quarantine.
    RELIEVE = "relieve"  # Replace the bookie without a quarantine.
    STOP = "stop"


def judge(refusal: type[RollbookError]) -> RefusalAction:
    if issubclass(refusal, Overloaded):
        return RefusalAction.RETRY
    if issubclass(refusal, BookieReadOnly):
        return RefusalAction.RELIEVE
    if issubclass(refusal, LedgerFenced | Unauthorized):
        return RefusalAction.STOP
    return RefusalAction.REPLACE


@dataclass(slots=True)
class _Down:
    error: RollbookError
    ends_when_open: bool  # Whether a new connection ends the failure: only connections have failed.


class OpenEnsemble:
    """The members of the open fragment, and which of them have failed."""

    def __init__(self, quorum: Quorum, open_fragment: Fragment) -> None:
        self.open_fragment = open_fragment  # The open fragment, as it was last certainly written.
        self._quorum = quorum
        self._down: dict[int, _Down] = {}  # Failed slots, in the order of their failures.
        self._leaving: Slots = 0
        self._lost: Slots = 0  # Slots that hung up and have not answered anything since.
        self._refusing: Slots = 0  # Slots that refused an add and have acknowledged none since.
        # Members that are gone and could not be replaced, with the reasons why they are gone.
        self._gone: dict[BookieId, str] = {}

    @property
    def ensemble(self) -> Ensemble:
        return self.open_fragment.ensemble

    @property
    def down(self) -> tuple[int, ...]:
        return tuple(self._down)

    @property
    def awaits_answer(self) -> bool:
        """Whether an answer would clear a bookie that hung up or refused an add."""
        return self._lost | self._refusing != 0

    @property
    def standing(self) -> Slots:
        return (1 << self._quorum.ensemble) - 1 - self._down_mask

    @property
    def vacant(self) -> dict[BookieId, str]:
        """Members that are not expected to get a copy of the next entry, and why (WR12)."""
        found = {
            bookie: "it refuses adds"
            for slot, bookie in enumerate(self.ensemble)
            if self._refusing >> slot & 1
        }
        for slot, down in self._down.items():
            found[self.ensemble[slot]] = down.error.message or down.error.code.reason
        return found | {each: why for each, why in self._gone.items() if each in self.ensemble}

    @property
    def is_short(self) -> bool:
        """Whether the remaining members cannot confirm some entries."""
        allowed = self._quorum.write - self._quorum.ack
        write_masks = map(self._quorum.write_mask, map(EntryId, range(self._quorum.ensemble)))
        return any((self._down_mask & mask).bit_count() > allowed for mask in write_masks)

    @property
    def _down_mask(self) -> Slots:
        return sum(1 << slot for slot in self._down)

    def error_of(self, slot: int) -> RollbookError:
        return self._down[slot].error

    def explain(self, error: RollbookError) -> RollbookError:
        """Adds the last error of each member that is down to the reason why the writer gives up."""
        if not self._down:
            return error
        seen = ", ".join(
            f"{self.ensemble[slot]}: {down.error.message or down.error.code.reason}"
            for slot, down in sorted(self._down.items())
        )
        return type(error)(f"{error.message} ({seen})", next_step=error.next_step, **error.ids)

    def on_failure(self, slot: int, error: RollbookError) -> bool:
        """Marks the slot's bookie as down, because it did not answer or answered wrongly. Returns
        whether it was up before."""
        is_news = slot not in self._down
        self._down[slot] = _Down(error, ends_when_open=False)
        return is_news

    def on_refusal(self, slot: int, error: RollbookError) -> bool:
        """Like `on_failure`, after a refused add. The bookie may get its seat back at once, but the
        seat counts as vacant until the bookie acknowledges something."""
        self._refusing |= 1 << slot
        return self.on_failure(slot, error)

    def on_gone(self, gone: dict[BookieId, str]) -> bool:
        """Takes the members that are gone and that no other bookie can replace, with the reasons.
        Returns whether they have changed."""
        is_news = gone.keys() != self._gone.keys()
        self._gone = gone
        return is_news

    def on_lost(self, slot: int, error: RollbookError) -> bool:
        """The connection was lost or could not be made. Returns whether the slot has failed now."""
        if slot in self._down:
            return False
        if not self._lost >> slot & 1:
            self._lost |= 1 << slot
            return False
        self._down[slot] = _Down(error, ends_when_open=True)
        return True

    def on_answer(self, slot: int) -> None:
        """The slot's bookie acknowledges what it is sent."""
        self._lost &= ~(1 << slot)
        self._refusing &= ~(1 << slot)

    def on_open(self, slot: int) -> bool:
        """The slot has a connection again; returns whether its bookie has its seat back. If the
        connection is lost again before an answer, the slot fails."""
        down = self._down.get(slot)
        if down is None or not down.ends_when_open or self._leaving >> slot & 1:
            return False
        del self._down[slot]
        return True

    def on_rested(self, slot: int) -> None:
        """The bookie gets its seat back: its quarantine is over and it has a connection."""
        del self._down[slot]

    def on_leaving(self, slots: Iterable[int]) -> None:
        """Successors for these slots are picked: their old bookies cannot get the seats back."""
        self._leaving = sum(1 << slot for slot in slots)

    def on_moved(self, open_fragment: Fragment) -> list[int]:
        """The change was written. Returns the slots that have a new bookie."""
        moved = [
            slot
            for slot, (old, new) in enumerate(
                zip(self.ensemble, open_fragment.ensemble, strict=True)
            )
            if old != new
        ]
        for slot in moved:
            self._down.pop(slot, None)
            self._lost &= ~(1 << slot)
            self._refusing &= ~(1 << slot)
        assert open_fragment.first_entry >= self.open_fragment.first_entry, (
            "WR2: the end of the ledger went back"
        )
        self._leaving = 0
        self.open_fragment = open_fragment
        return moved

    # --- Metadata -----------------------------------------------------------------------------

    def plan(self, first_entry: EntryId, picks: dict[int, BookieId]) -> Fragment:
        ensemble = tuple(picks.get(slot, bookie) for slot, bookie in enumerate(self.ensemble))
        assert all(ensemble.count(each) == 1 for each in picks.values()), (
            "WR9: a bookie is twice in an ensemble that we make"
        )
        return Fragment(first_entry, ensemble)

    def find_made(self, found: LedgerMetadata, attempts: Sequence[Fragment]) -> Fragment | None:
        """Returns the one of `attempts`, whose outcomes are unknown, that was written. Raises
        `LedgerFenced` (WR4)."""
        if found.state is LedgerState.OPEN and found.fragments[-1] in attempts:
            return found.fragments[-1]
        self.verify(found)
        return None

    def verify(self, found: LedgerMetadata) -> None:
        """Raises `LedgerFenced` unless we may still write the ledger (WR4)."""
        if found.state is not LedgerState.OPEN:
            raise LedgerFenced(ledger_id=found.ledger_id, state=found.state.value)
        if found.fragments[-1] != self.open_fragment:
            raise LedgerFenced(
                "somebody else has moved the end of the ledger", ledger_id=found.ledger_id
            )
