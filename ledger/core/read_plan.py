"""Decides which copy of an entry to ask for next, when to ask a second member, and when to stop.

A plain read asks one member of the write set. The next member is asked when the first one fails,
has no such entry, or is slower than most recent answers (RD2). Healthy members are asked before
slow or failed ones. Among equals, neighbouring entries are requested from the same member, since it
has read ahead. A returned entry counts only with a valid digest and the right ids (RD3). When no
member is left, all responses together decide which error the caller gets:

    NoSuchEntry       every member that should hold a copy says that it has none
    DigestMismatch    a copy has a wrong digest, and asking again would not help
    EntryUnavailable  a member could not be asked, or does not know: a retry may help
"""

from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from itertools import takewhile
from typing import Any, Final

from rollbook.proto.errors import (
    BookieUnreachable,
    ConnectionLost,
    DigestMismatch,
    EntryUnavailable,
    Missing,
    NoSuchEntry,
    Overloaded,
    RollbookError,
    Throttled,
)
from rollbook.proto.ids import EntryId, LedgerId
from rollbook.proto.quorum import Ensemble, Quorum, Slots

_NS_PER_MS: Final = 1_000_000
_NS_PER_S: Final = 1_000_000_000
_LATENCIES_KEPT: Final = 128
_SORTED_EVERY: Final = 16
_PERCENTILE: Final = 0.95
_UNKNOWN_FACTOR: Final = 4
BATCH_FACTOR: Final = 10  # A batch counts as slow after this many times the delay of one entry.
_PASSING: Final = (BookieUnreachable, ConnectionLost, Overloaded, Throttled)


@lru_cache(maxsize=4096)
def covering_slots(quorum: Quorum, offset: int, usable: Slots = -1) -> tuple[int, ...]:
    """Returns a small set of `usable` slots that together hold all entries.

    If all members are usable, it is the smallest such set; each offset selects another one.
    """
    size, write = quorum.ensemble, quorum.write
    cover: dict[int, None] = {}
    for first in range(offset - write + 1, offset - write + 1 + size):
        # The members that hold entry `first` and every entry with the same write set.
        holders = [slot % size for slot in range(first, first + write)]
        if not any(slot in cover for slot in holders):
            slot = next((slot for slot in reversed(holders) if usable >> slot & 1), None)
            if slot is not None:
                cover[slot] = None
    return tuple(cover)


def slots_in_order(
    quorum: Quorum, entry_id: EntryId, preferred: int, ranks: Sequence[int]
) -> list[int]:
    """Returns the write set, best member first: by rank, of which lower is better, and among equals
    from `preferred` on."""
    size = quorum.ensemble
    return sorted(
        quorum.write_slots(entry_id), key=lambda slot: (ranks[slot], (slot - preferred) % size)
    )


class CopySearch:
    """A read of one entry, or of a run that starts with it. It picks the member to ask, and the
    error."""

    def __init__(self, slots: Sequence[int], hedge: "HedgeDelay") -> None:
        self._untried = deque(slots)
        self._hedge = hedge
        self._asked_ns: dict[int, int] = {}  # When each slot was asked, oldest first.
        self._errors: dict[int, type[RollbookError]] = {}  # How each slot failed.

    def next_slot(self, now_ns: int) -> int | None:
        """Returns the member to ask now; None if all were asked."""
        if not self._untried:
            return None
        slot = self._untried.popleft()
        self._asked_ns[slot] = now_ns
        return slot

    def on_success(self, slot: int, now_ns: int) -> list[int]:
        """Takes an answer. Returns the members that it has overtaken. A member that was asked later
        is not overtaken: it had less time."""
        overtaken = list(takewhile(lambda each: each != slot, self._asked_ns))
        for each in (slot, *overtaken):
            self._hedge.observe(now_ns - self._asked_ns[each])
        return overtaken

    def on_failure(self, slot: int, error: type[RollbookError]) -> None:
        self._errors[slot] = error

    @property
    def may_pass(self) -> bool:
        """Whether a retry may help, because a member's failure may be temporary."""
        return any(issubclass(error, _PASSING) for error in self._errors.values())

    def error(self, ledger_id: LedgerId, entry_id: EntryId, ensemble: Ensemble) -> RollbookError:
        """Returns the error of the read when all members have failed."""
        errors = self._errors
        ids: dict[str, Any] = {"ledger_id": ledger_id, "entry_id": entry_id}
        if all(issubclass(error, Missing) for error in errors.values()):
            return NoSuchEntry(**ids)
        found = ", ".join(f"{ensemble[slot]}: {e.code.reason}" for slot, e in errors.items())
        if all(issubclass(error, Missing | DigestMismatch) for error in errors.values()):
            return DigestMismatch(f"no copy is sound ({found})", **ids)
        return EntryUnavailable(f"no copy could be read ({found})", **ids)


class CoverSearch:
    """A read of a run of striped entries. It finds members that together return all of them."""

    def __init__(
        self,
        quorum: Quorum,
        run: range,
        preferred: int,
        ranks: Sequence[int],
        hedge: "HedgeDelay",
    ) -> None:
        """`run` is a range of entry ids."""
        self._quorum = quorum
        self._run = run
        self._preferred = preferred
        self._hedge = hedge
        self._asked_ns: dict[int, int] = {}  # The time at which each slot was asked.
        self._healthy = sum(1 << slot for slot, rank in enumerate(ranks) if not rank)
        self._asked: Slots = 0
        self._answered: Slots = 0
        self._useless: Slots = 0

    def next_requests(self, now_ns: int) -> list[tuple[int, range]]:
        """Returns the members to ask now, each with its run, which starts at the first entry that
        it holds."""
        requests: list[tuple[int, range]] = []
        for slot in self._cover():
            if self._asked >> slot & 1:
                continue
            self._asked |= 1 << slot
            first_held = self._quorum.first_held(slot, EntryId(self._run.start))
            if first_held < self._run.stop:
                self._asked_ns[slot] = now_ns
                requests.append((slot, range(first_held, self._run.stop)))
            else:  # The member holds no entry of the run.
                self._answered |= 1 << slot
        return requests

    def on_answer(self, slot: int, now_ns: int, *, is_useful: bool) -> None:
        self._answered |= 1 << slot
        self._useless |= (not is_useful) << slot
        self._hedge.observe(now_ns - self._asked_ns[slot])

    @property
    def waits_for(self) -> list[int]:
        """The members whose answers are outstanding; empty if every available entry was returned."""
        return [slot for slot in self._cover() if not self._answered >> slot & 1]

    @property
    def due_ns(self) -> int:
        """The time at which the first outstanding answer is late."""
        return min(self._asked_ns[slot] for slot in self.waits_for) + self._hedge.delay_ns

    def take_late(self, waited_for: Sequence[int], now_ns: int) -> list[int]:
        """Returns those of `waited_for` that are late. From then on other members are asked for
        their entries."""
        late: list[int] = []
        for slot in waited_for:
            is_late = now_ns - self._asked_ns[slot] >= self._hedge.delay_ns
            if is_late and slot in self.waits_for:
                self._useless |= 1 << slot
                late.append(slot)
        return late

    def _cover(self) -> tuple[int, ...]:
        """Returns members that together hold all entries; only healthy ones if these suffice."""
        usable = self._healthy & ~self._useless
        write_sets = (self._quorum.write_mask(EntryId(e)) for e in range(self._quorum.ensemble))
        if not all(write_set & usable for write_set in write_sets):
            usable = ~self._useless
        return covering_slots(self._quorum, self._preferred, usable)


class HedgeDelay:
    """The delay before another member is asked: longer than 95 % of recent answers took.

    An overtaken response counts with the time after which it was given up. Therefore, when all
    bookies are slow, waits get longer, and nothing is read twice.
    """

    def __init__(self, at_least_ms: float, factor: int = 1) -> None:
        """`factor` says how many times longer this kind of request usually takes."""
        self._at_least_ns = int(at_least_ms * factor * _NS_PER_MS)
        self._latencies: deque[int] = deque(maxlen=_LATENCIES_KEPT)
        self._since_sorted = 0
        # The first delays are longer, because first requests also wait for connections.
        self.delay_ns = _UNKNOWN_FACTOR * self._at_least_ns

    @property
    def delay_s(self) -> float:
        return self.delay_ns / _NS_PER_S

    def observe(self, latency_ns: int) -> None:
        self._latencies.append(latency_ns)
        self._since_sorted += 1
        if self._since_sorted >= _SORTED_EVERY:
            self._since_sorted = 0
            ordered = sorted(self._latencies)
            self.delay_ns = max(self._at_least_ns, ordered[int(_PERCENTILE * len(ordered))])
