"""When a bookie has failed, and how it is replaced.

    adds to b3 fail ──► b3 is down ──► withdrawn: its copies stop counting ──► CAS: fragment at LAC + 1
                          │                                                      names b4 for b3
                          └─ no other bookie: it stays down;                          │
                             reconnected: it gets its slot back     b4 gets what is not confirmed

- One change is made at a time; bookies that fail during a change are replaced by the next one
  (WR3). A slot without a replacement stays down, and a replacement is sought again later.
- The writer changes a ledger only after it has read it back as OPEN, with the end that it wrote
  itself. Any other state means a recovery, which may have counted negatives of the present
  ensemble: the writer stops permanently (WR4).
- If the reply to a compare-and-set was lost, the writer reads the metadata: the change was made if
  the ledger's end is as requested, because no other process moves the end while the ledger is OPEN.
- While the outcome of an attempt is unknown, the bookies that stay may confirm entries, since they
  are in the ensemble in either case. Therefore each new attempt starts at LAC + 1, with the LAC at
  the time of the attempt (WR2).

The writer connects again at once after a lost connection. If that fails, or if the new connection
is lost before an acknowledgement, the bookie has failed. This applies only to a bookie with
outstanding adds: many ledgers are idle, and a restart is no reason to move them all. A bookie has
also failed if it responds with an error of its own or does not respond in time. A read-only bookie
leaves the ensemble without a quarantine; "busy" is no failure; "fenced" and "unauthorized" end the
writer.
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
    """The writer's reaction to a refused add."""

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
    ends_when_open: bool  # Whether a new connection ends the failure.


class OpenEnsemble:
    """The members of the open fragment, and which of them have failed."""

    def __init__(self, quorum: Quorum, open_fragment: Fragment) -> None:
        self.open_fragment = open_fragment  # The open fragment as it was last known to be written.
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
        """Whether a bookie hung up or refused an add, and has acknowledged no add since;
        `on_answer` clears its slot."""
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
        """Whether there are entries that the remaining members cannot confirm."""
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
        """Marks the slot's bookie as down after a refused add, like `on_failure`. The bookie may
        get its slot back at once, but the slot counts as vacant until the bookie acknowledges
        something."""
        self._refusing |= 1 << slot
        return self.on_failure(slot, error)

    def on_gone(self, gone: dict[BookieId, str]) -> bool:
        """Stores which members are gone and cannot be replaced, and why.
        Returns whether the set of these members has changed."""
        is_news = gone.keys() != self._gone.keys()
        self._gone = gone
        return is_news

    def on_lost(self, slot: int, error: RollbookError) -> bool:
        """Notes that the connection was lost or could not be made. Returns whether the slot has
        failed now."""
        if slot in self._down:
            return False
        if not self._lost >> slot & 1:
            self._lost |= 1 << slot
            return False
        self._down[slot] = _Down(error, ends_when_open=True)
        return True

    def on_answer(self, slot: int) -> None:
        """Clears the slot's bookie, which has acknowledged an add."""
        self._lost &= ~(1 << slot)
        self._refusing &= ~(1 << slot)

    def on_open(self, slot: int) -> bool:
        """Notes that the slot has a connection again. Returns whether its bookie has its slot back.
        If the connection is lost again before an answer, the slot fails."""
        down = self._down.get(slot)
        if down is None or not down.ends_when_open or self._leaving >> slot & 1:
            return False
        del self._down[slot]
        return True

    def on_rested(self, slot: int) -> None:
        """Gives the bookie its slot back, because its quarantine is over and it has a connection."""
        del self._down[slot]

    def on_leaving(self, slots: Iterable[int]) -> None:
        """Notes that successors are picked for these slots: their old bookies cannot get the slots
        back."""
        self._leaving = sum(1 << slot for slot in slots)

    def on_moved(self, open_fragment: Fragment) -> list[int]:
        """Takes the ensemble of a change that was written. Returns the slots that have a new
        bookie."""
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
        """Returns the attempt that was written, of `attempts` with unknown outcomes; None if none
        was. Raises `LedgerFenced` (WR4)."""
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
                "another client has moved the end of the ledger", ledger_id=found.ledger_id
            )
