"""Plans the repairs that give every entry of one ledger all its copies again (RP1).

Each fragment with a known end is repaired slot by slot:

    the bookie is registered and stays   RESTORE  the entries that its list lacks are copied back to it
    it is lost, or it is draining        REPLACE  another bookie gets the slot's share, then the slot

An open fragment is never changed (LM4): its writer replaces lost bookies itself, or is dead and the ledger
has to be closed first. A ledger in recovery is recovered first. A ledger that was reserved and has no
writer yet has no entries, so only its slots change.

A marked bookie that is only read-only is not lost: its entries are restored like those of any other bookie.

During the repair of a slot, `repair_step` returns the next step:

    RESTORE   all copied                          WHOLE
              some entries are unavailable        STUCK
              the bookie has no room              REPLACE_PRESENT
    REPLACE   the bookie is draining              REPLACE_PRESENT
              it is registered at this moment     CHANGED: the next plan restores it (RP2)
              it is not                           REPLACE_LOST

A ledger with a writer is closed for a repair only after the writer had a grace period in which to leave the
bookie by itself, see `GracePeriods` (RP4).
"""

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, TypeVar

from rollbook.proto.ids import BookieId, EntryId
from rollbook.proto.metadata import Fragment, LedgerMetadata, LedgerState
from rollbook.proto.quorum import Quorum
from rollbook.proto.wire.entry_list import EntryList
from rollbook.recovery.core.entry_spans import EntrySpan, covers

_WINDOW: Final = 4096  # The number of entries that are examined in one step.
_NS_PER_S: Final = 1_000_000_000

Key = TypeVar("Key", bound=Hashable)
Awaited = TypeVar("Awaited")


class BookiePresence(Enum):
    WRITABLE = "writable"
    READ_ONLY = "read-only"
    LOST = "lost"  # The bookie is not registered.


class Action(Enum):
    RESTORE = "restore"
    REPLACE = "replace"


class FirstStep(Enum):
    """The step that a ledger needs first, if it is not enough to repair its closed fragments."""

    NOTHING = "nothing"
    RECOVER = "recover"  # A recovery of the ledger has begun and has to be completed.
    # The open end names a marked bookie: close the ledger if its writer does not leave the bookie.
    AWAIT_WRITER = "await the writer"
    MOVE_SLOT = "move the slot"  # No writer has claimed the ledger yet, so it has no entries.


@dataclass(frozen=True, slots=True)
class SlotRepair:
    """One slot in the ensemble of one fragment, and the repair that it needs."""

    fragment: Fragment
    last_entry: EntryId  # The fragment's last entry; one less than its first entry if it is empty.
    slot: int
    action: Action

    @property
    def bookie(self) -> BookieId:
        return self.fragment.ensemble[self.slot]

    @property
    def first_entry(self) -> EntryId:
        return self.fragment.first_entry

    def share(self, quorum: Quorum, window: range) -> list[EntryId]:
        """Return the entries that this slot holds in a window of the fragment, in ascending order."""
        if quorum.ensemble == quorum.write:
            return [EntryId(each) for each in window]
        return [EntryId(each) for each in window if quorum.holds(self.slot, EntryId(each))]


@dataclass(frozen=True, slots=True)
class RepairPlan:
    first_step: FirstStep
    # The repairs of closed fragments, those with the fewest other members present first.
    repairs: tuple[SlotRepair, ...]
    open_slots: tuple[int, ...] = ()  # The slots of marked bookies in the open fragment.


class RestoreResult(Enum):
    """The result of restoring missing entries on the bookie that holds the slot."""

    COMPLETE = "complete"
    INCOMPLETE = "incomplete"  # Some entries are unavailable.
    NO_ROOM = "no room"  # The bookie is alive, but has no room for the missing entries.


class RepairStep(Enum):
    """The next step in the repair of a slot."""

    RESTORE = "restore"
    LOOK_UP = "look up"  # Find out whether the bookie is registered at this moment.
    # Swap the bookie, whether it is registered or not.
    REPLACE_PRESENT = "replace present"
    REPLACE_LOST = "replace lost"  # Swap the bookie only if it is still not registered.


class RepairOutcome(Enum):
    WHOLE = "whole"  # The bookie of the slot has all its entries.
    CHANGED = "changed"  # The slot has a new bookie, or has to be planned again.
    STUCK = "stuck"  # Some entries are unavailable, for now or permanently.


_AFTER_RESTORE: Final[Mapping[RestoreResult, RepairStep | RepairOutcome]] = {
    RestoreResult.COMPLETE: RepairOutcome.WHOLE,
    RestoreResult.INCOMPLETE: RepairOutcome.STUCK,
    RestoreResult.NO_ROOM: RepairStep.REPLACE_PRESENT,
}


def repair_step(
    action: Action,
    *,
    is_draining: bool,
    restored: RestoreResult | None = None,
    is_registered: bool | None = None,
) -> RepairStep | RepairOutcome:
    """Return the next step for a slot, or the outcome of its repair. `restored` is None before an attempt,
    and `is_registered` is None before the bookie is looked up.
    """
    if action is Action.RESTORE:
        return RepairStep.RESTORE if restored is None else _AFTER_RESTORE[restored]
    if is_draining:
        return RepairStep.REPLACE_PRESENT
    if is_registered is None:
        return RepairStep.LOOK_UP
    return RepairOutcome.CHANGED if is_registered else RepairStep.REPLACE_LOST


def plan_repair(
    metadata: LedgerMetadata,
    in_question: Collection[BookieId],
    draining: Collection[BookieId],
    presence: Callable[[BookieId], BookiePresence],
    *,
    is_unclaimed: bool = False,
    looked_at: Collection[BookieId] = (),
) -> RepairPlan:
    """Return the plan of one ledger. `in_question` are the bookies that the ledger's mark names. `draining`
    bookies lose their slots although they are present. `looked_at` bookies may lack copies and keep their
    slots. All other bookies keep their slots, too, even lost ones, since their repair is not due yet (RP2).
    """
    repairs: list[SlotRepair] = []
    open_slots: tuple[int, ...] = ()
    for index, fragment in enumerate(metadata.fragments):
        last_entry = metadata.last_entry_of(index)
        slots = [
            (slot, action)
            for slot, bookie in enumerate(fragment.ensemble)
            if (action := _action(bookie, in_question, draining, looked_at, presence))
        ]
        if last_entry is None:
            open_slots = tuple(slot for slot, action in slots if action is Action.REPLACE)
        else:
            repairs += [SlotRepair(fragment, last_entry, slot, action) for slot, action in slots]
    repairs.sort(
        key=lambda repair: (_others_present(repair, presence), repair.first_entry, repair.slot)
    )
    return RepairPlan(_first_step(metadata, open_slots, is_unclaimed), tuple(repairs), open_slots)


def _action(
    bookie: BookieId,
    in_question: Collection[BookieId],
    draining: Collection[BookieId],
    looked_at: Collection[BookieId],
    presence: Callable[[BookieId], BookiePresence],
) -> Action | None:
    if bookie in draining:
        return Action.REPLACE
    if bookie not in in_question:
        return Action.RESTORE if bookie in looked_at else None
    return Action.REPLACE if presence(bookie) is BookiePresence.LOST else Action.RESTORE


def _others_present(repair: SlotRepair, presence: Callable[[BookieId], BookiePresence]) -> int:
    return sum(
        presence(bookie) is not BookiePresence.LOST
        for slot, bookie in enumerate(repair.fragment.ensemble)
        if slot != repair.slot
    )


def _first_step(
    metadata: LedgerMetadata, open_slots: tuple[int, ...], is_unclaimed: bool
) -> FirstStep:
    if metadata.state is LedgerState.IN_RECOVERY:
        return FirstStep.RECOVER
    if metadata.is_closed or not open_slots:
        return FirstStep.NOTHING
    return FirstStep.MOVE_SLOT if is_unclaimed else FirstStep.AWAIT_WRITER


class GracePeriods(Generic[Key, Awaited]):
    """The grace periods in which writers may leave a bookie (RP4).

    A period begins with the first look that finds something to wait for. The period is measured by the clock
    of this process, since marks have the time of another machine. A new period begins if a look finds
    something else to wait for.
    """

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._begun: dict[Key, tuple[Awaited, int]] = {}

    def left_s(self, key: Key, awaited: Awaited, now_ns: int) -> float:
        """Return the remaining seconds of the period, and begin the period if necessary. If the result is 0
        or less, the period is over.
        """
        begun = self._begun.get(key)
        if begun is None or begun[0] != awaited:
            begun = self._begun[key] = awaited, now_ns
        return self._grace_s - (now_ns - begun[1]) / _NS_PER_S

    def forget(self, key: Key) -> None:
        self._begun.pop(key, None)

    def begun(self) -> set[Key]:
        """Return the keys of all periods that have begun."""
        return set(self._begun)


def sources_of(
    quorum: Quorum,
    repair: SlotRepair,
    entry_id: EntryId,
    presence: Callable[[BookieId], BookiePresence],
) -> list[BookieId]:
    """Return bookies that may have a copy of the entry, in the order in which they are asked.

    One present member is asked before all others. The same member is asked for a whole fragment, so that it
    reads in order. A bookie that loses its slot is used as a source while it is present. Lost bookies are
    asked last, since they may be back.
    """
    slots = [slot for slot in quorum.write_slots(entry_id) if slot != repair.slot]
    if repair.action is Action.REPLACE:
        slots.append(repair.slot)
    members = [repair.fragment.ensemble[slot] for slot in slots]
    start = repair.first_entry % max(1, len(members))
    # Every member has every entry, so keep reading from the same one.
    if quorum.ensemble == quorum.write:
        members.sort(key=repair.fragment.ensemble.index)
        members = members[start:] + members[:start]
    members.sort(key=lambda bookie: presence(bookie) is BookiePresence.LOST)
    return list(dict.fromkeys(members))


def lacking(
    quorum: Quorum, repair: SlotRepair, listed: EntryList, bad: Sequence[EntrySpan] = ()
) -> Iterator[EntryId]:
    """Yield the entries of the slot's share that its bookie does not list, or holds with bad bytes. They are
    ascending.
    """
    for window in windows(repair):
        yield from lacking_in(window, quorum, repair, listed, bad)


def windows(repair: SlotRepair) -> Iterator[range]:
    """Yield windows of the slot's fragment, so that no step of the loop handles a million entries."""
    end = repair.last_entry + 1
    for start in range(repair.first_entry, end, _WINDOW):
        yield range(start, min(start + _WINDOW, end))


def lacking_in(
    window: range,
    quorum: Quorum,
    repair: SlotRepair,
    listed: EntryList,
    bad: Sequence[EntrySpan] = (),
) -> list[EntryId]:
    if not bad and _lists_all(listed, window):
        return []
    share = repair.share(quorum, window)
    if not listed.packed:
        return share
    return [each for each in share if each not in listed or covers(bad, each)]


def _lists_all(listed: EntryList, window: range) -> bool:
    """Return whether the whole window is listed, by a quick test that only recognises a run without holes:
    False may be wrong.
    """
    group = listed.group_at(EntryId(window.start))
    return group is not None and not group.period and window.stop - 1 <= group.last_entry
