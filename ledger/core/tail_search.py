"""Finds where a ledger ends: decides which requests recovery sends to bookies, and what the answers
prove.

The ensemble is that of the last fragment when recovery began; every request fences. The entries
after the LAC are decided in order. Each of them is one of these:

    present     one valid copy was returned, whatever the other members say (FR2)
    absent      at least `write - ack + 1` members of its write set said that they lack it, and
                every other member was heard or cannot be reached (FR3)
    undecided   it is neither, and no member is left to ask: recovery fails, and is tried again

Only the answer "no such entry" or "no such ledger" for the entry itself is a negative. In addition,
members that check for possible losses (`on_last`) deny every entry above the last entry that they
named when they were fenced. All members are asked for their last entry anyway, so usually no member
is asked for the next one. A member proves nothing about an entry if it may have lost the entry,
does not return it in time, returns it with a wrong digest, or leaves it out of a batch. The first
absent entry ends the ledger.

Up to the highest entry that the fence found, entries probably exist, so one member is asked for a
run of them, and others only if this member is slow or fails. Beyond that entry, the whole write set
is asked at once: the proof that a ledger ends takes one round trip.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from rollbook.ledger.core.read_plan import covering_slots
from rollbook.proto.ids import NO_ENTRY, EntryId
from rollbook.proto.quorum import Ensemble, Quorum, Slots
from rollbook.proto.wire.digest import Entry

_PROBES_MAX: Final = 64  # The maximum number of entries to request beyond those known to exist.


class TailProbe(NamedTuple):
    """A request to the member at `slot` for its entries among `span` consecutive ids from
    `first_entry` on; with `span` 1 it is a plain read."""

    slot: int
    first_entry: EntryId
    span: int


@dataclass(slots=True)
class _Sought:
    """An entry that was requested and is not found yet."""

    pending: Slots = 0  # Members that were asked and have not responded.
    tried: Slots = 0  # Members that are no longer asked alone for the entry.
    negatives: Slots = 0
    failures: dict[int, str] = field(default_factory=dict)  # By slot, answers that prove nothing.


class TailSearch:
    """Decides about each entry in turn whether it exists; the caller sends the requests."""

    def __init__(
        self,
        quorum: Quorum,
        last_known: EntryId,
        highest_seen: EntryId,
        *,
        batch_slots: Slots,
        batch_entries_max: int,
    ) -> None:
        """`last_known` is known to exist; members at `batch_slots` can be asked for runs."""
        self._quorum = quorum
        self._next = EntryId(last_known + 1)  # The first entry that is not decided.
        self._highest_seen = highest_seen
        self._batch_slots = batch_slots
        self._batch_entries_max = batch_entries_max
        self._probes = 1
        self._planned_end = self._next
        self._sought: dict[EntryId, _Sought] = {}
        self._found: dict[EntryId, Entry] = {}
        self._to_plan: deque[EntryId] = deque()
        self._is_end_certain = False
        # The last entry of each slot, as reported when it was fenced.
        self._lasts: dict[int, EntryId] = {}
        # Members that will soon report their last entry, and are not asked for entries until then.
        self._expected: Slots = 0

    # --- Questions ----------------------------------------------------------------------------

    def plan(self, entries_max: int) -> list[TailProbe]:
        """Returns the next requests, at most `entries_max` entries ahead of the first undecided
        one."""
        end = self._next + entries_max
        end = min(end, max(self._highest_seen, self._next - 1) + 1 + self._probes)
        for entry_id in map(EntryId, range(max(self._planned_end, self._next), end)):
            if entry_id not in self._found:
                denied = self._denied_by_fences(entry_id)
                self._sought[entry_id] = _Sought(tried=denied, negatives=denied)
                self._to_plan.append(entry_id)
        self._planned_end = EntryId(max(self._planned_end, end))
        runs = _Runs(self._quorum, self._batch_slots, self._batch_entries_max)
        chunk, cover = -1, covering_slots(self._quorum, 0)
        for entry_id in sorted(dict.fromkeys(self._to_plan)):
            if (sought := self._sought.get(entry_id)) is not None:
                if entry_id // self._batch_entries_max != chunk:
                    chunk = entry_id // self._batch_entries_max
                    cover = covering_slots(self._quorum, chunk % self._quorum.ensemble)
                one = self._one_to_ask(entry_id, sought, cover)
                slots = self._all_to_ask(entry_id, sought) if one is None else (one,)
                for slot in slots:
                    if not sought.pending >> slot & 1:
                        sought.pending |= 1 << slot
                        runs.add(slot, entry_id, may_join=one is not None)
        self._to_plan.clear()
        return runs.asks()

    def _one_to_ask(self, entry_id: EntryId, sought: _Sought, cover: Sequence[int]) -> int | None:
        """Returns the member to ask alone, which is the same for neighbouring entries. Returns None
        if the entry is unlikely to exist, or if every member was tried."""
        if entry_id > self._highest_seen:
            return None
        untried = self._quorum.write_mask(entry_id) & ~sought.tried
        if not untried:
            return None
        untried &= (self._batch_slots & untried) or untried
        for slot in cover:
            if untried >> slot & 1:
                return slot
        return untried.bit_length() - 1

    def _all_to_ask(self, entry_id: EntryId, sought: _Sought) -> Iterable[int]:
        return (
            slot
            for slot in self._quorum.write_slots(entry_id)
            if not (sought.negatives | self._expected) >> slot & 1 and slot not in sought.failures
        )

    def _denied_by_fences(self, entry_id: EntryId) -> Slots:
        held = self._quorum.write_mask(entry_id)
        return held & sum(1 << slot for slot, last in self._lasts.items() if last < entry_id)

    # --- Responses ----------------------------------------------------------------------------

    def on_fenced(self, entry: Entry) -> None:
        """Takes a verified entry that the fence returned, so that no member is asked for it (FR2).
        Called before `plan`."""
        if entry.entry_id >= self._next:
            self._found[entry.entry_id] = entry

    def expect_last(self, slot: int) -> None:
        """Notes that the member will soon report its last entry; the caller then calls `on_last` or
        `on_no_last`."""
        self._expected |= 1 << slot

    def on_last(self, slot: int, last: Entry | None) -> None:
        """Takes the verified last entry of a fenced member; None if it has no entry. The member
        must have checked for damage and possible losses, as for any other entry."""
        self._lasts[slot] = last.entry_id if last is not None else NO_ENTRY
        self._expected &= ~(1 << slot)
        for entry_id, sought in self._sought.items():
            if self._denied_by_fences(entry_id) >> slot & 1:
                sought.negatives |= 1 << slot
                sought.tried |= 1 << slot
            else:
                self._to_plan.append(entry_id)
        if last is not None and last.entry_id >= self._next:
            self._sought.pop(last.entry_id, None)
            self._take(last)

    def on_no_last(self, slot: int) -> None:
        """Asks the member entry by entry, because it does not report its last entry."""
        if self._expected >> slot & 1:
            self._expected &= ~(1 << slot)
            self._to_plan.extend(self._sought)

    def on_entries(self, ask: TailProbe, entries: Sequence[Entry]) -> None:
        """Takes at least one verified entry, in order; later entries of the request did not fit
        into the answer."""
        for entry in entries:
            entry_id = entry.entry_id
            if self._sought.pop(entry_id, None) is not None:
                self._take(entry)
        last = entries[-1].entry_id
        for entry_id, sought in self._missing(ask):
            self._on_left_out(ask, entry_id, sought, has_room=entry_id < last)

    def _take(self, entry: Entry) -> None:
        self._found[entry.entry_id] = entry
        if entry.entry_id > self._highest_seen:
            self._highest_seen = entry.entry_id
            self._probes = min(2 * self._probes, _PROBES_MAX)

    def on_negative(self, ask: TailProbe) -> None:
        """Notes that the member has no such entry, or no such ledger; this counts only for the
        first entry requested."""
        for entry_id, sought in self._missing(ask):
            if entry_id == ask.first_entry:
                sought.negatives |= 1 << ask.slot
                sought.failures.pop(ask.slot, None)
                sought.tried = self._quorum.write_mask(entry_id)  # All other members are asked now.
            self._on_left_out(ask, entry_id, sought, has_room=True)

    def on_failure(self, ask: TailProbe, reason: str) -> None:
        """Notes that the member's answer proves nothing about any of these entries."""
        for entry_id, sought in self._missing(ask):
            if entry_id == ask.first_entry:
                sought.failures[ask.slot] = reason
            self._on_left_out(ask, entry_id, sought, has_room=True)

    def on_delay(self, ask: TailProbe) -> None:
        """Asks other members, too, because this one is late. Its answer still counts when it comes."""
        for entry_id, sought in self._missing(ask):
            sought.tried |= 1 << ask.slot
            self._to_plan.append(entry_id)

    def _on_left_out(
        self, ask: TailProbe, entry_id: EntryId, sought: _Sought, *, has_room: bool
    ) -> None:
        sought.pending &= ~(1 << ask.slot)
        if has_room:
            sought.tried |= 1 << ask.slot
        self._to_plan.append(entry_id)

    def _missing(self, ask: TailProbe) -> Iterator[tuple[EntryId, _Sought]]:
        for entry_id in map(EntryId, range(ask.first_entry, ask.first_entry + ask.span)):
            sought = self._sought.get(entry_id)
            if sought is not None and self._quorum.holds(ask.slot, entry_id):
                yield entry_id, sought

    # --- Results ------------------------------------------------------------------------------

    def take_found(self) -> list[Entry]:
        """Returns the entries that are present, in order, and each of them only once."""
        found: list[Entry] = []
        while (entry := self._found.pop(self._next, None)) is not None:
            found.append(entry)
            self._next = EntryId(self._next + 1)
        return found

    @property
    def next_entry(self) -> EntryId:
        return self._next

    @property
    def is_absence_proven(self) -> bool:
        """Whether enough members have proven that the next entry was never acknowledged; others may
        still have a copy."""
        sought = self._sought.get(self._next)
        return sought is not None and self._quorum.is_absent(self._next, sought.negatives)

    @property
    def is_over(self) -> bool:
        """Whether the ledger ends before `next_entry`."""
        if not self.is_absence_proven:
            return False
        assert self._next not in self._found, "FR2: an entry with a valid copy counts as absent"
        return self._is_end_certain or self._is_everybody_asked

    @property
    def is_stuck(self) -> bool:
        """Whether all members have answered for the next entry, and it is neither present nor
        absent."""
        return (
            self._next in self._sought and self._is_everybody_asked and not self.is_absence_proven
        )

    @property
    def _is_everybody_asked(self) -> bool:
        sought = self._sought[self._next]
        answered = sought.negatives | sum(1 << slot for slot in sought.failures)
        return not self._quorum.write_mask(self._next) & ~answered

    def stop_waiting(self) -> None:
        """Counts members that have not answered by now as unreachable, if absence is proven."""
        self._is_end_certain = True

    def ask_again(self) -> None:
        """Asks again all members whose answers proved nothing."""
        for entry_id, sought in self._sought.items():
            sought.failures.clear()
            self._to_plan.append(entry_id)

    def describe(self, ensemble: Ensemble) -> str:
        """Describes what the members of the write set reported about the next entry."""
        sought = self._sought.get(self._next, _Sought())
        answers: list[str] = []
        for slot in self._quorum.write_slots(self._next):
            said = sought.failures.get(slot, "no answer")
            answers.append(f"{ensemble[slot]}: {'no' if sought.negatives >> slot & 1 else said}")
        return ", ".join(answers)


class _Runs:
    """Merges requests for neighbouring entries to one member."""

    def __init__(self, quorum: Quorum, batch_slots: Slots, entries_max: int) -> None:
        self._quorum = quorum
        self._batch_slots = batch_slots
        self._entries_max = entries_max
        self._runs: list[list[int]] = []  # Each run is a slot, first entry and end.
        self._open: dict[int, list[int]] = {}  # For each slot, the run that may grow.

    def add(self, slot: int, entry_id: EntryId, *, may_join: bool) -> None:
        """Adds a request. A member answers for each entry that is requested alone, but not for an
        entry that it leaves out of a batch."""
        if may_join and self._batch_slots >> slot & 1:
            run = self._open.get(slot)
            if run is not None and entry_id - run[1] < self._entries_max:
                behind = run[2]
                if entry_id in (behind, self._quorum.first_held(slot, EntryId(behind))):
                    run[2] = entry_id + 1
                    return
            run = self._open[slot] = [slot, entry_id, entry_id + 1]
        else:
            run = [slot, entry_id, entry_id + 1]
        self._runs.append(run)

    def asks(self) -> list[TailProbe]:
        return [
            TailProbe(slot, EntryId(first), behind - first) for slot, first, behind in self._runs
        ]
