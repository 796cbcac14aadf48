"""Rules that decide which bookies are lost, and when and in which order their ledgers are marked.

A bookie is *missing* while a cookie or a ledger names it and it is not registered. A bookie is *lost* once
this auditor has seen it missing for the whole delay (AU1). The delay is the same for any number of bookies,
and a bookie that comes back within the delay causes no copying. A requested audit does not wait for the
delay.

**Absence must be observed** (AU1). The time of absence is counted from look to look, within one session. Time
in which the auditor did not look, because it slept or could not reach the metadata store, counts only in
part: one interval between two looks counts for at most a quarter of the delay. In a new session the count
starts over, since bookies may have come and left in between.

**The brake** (AU2). If more than half of all bookies that serve or hold ledgers are missing at once, the
network or the metadata store is probably broken. In that case nothing is marked until enough bookies are
back, or a person approves the loss of these bookies.

**Order** (AU3). Ledgers whose worst entry has the fewest good copies come first.
"""

from array import array
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from rollbook.proto.ids import BookieId, LedgerId
from rollbook.proto.ports import NO_SESSION, SessionId

# The minimum number of looks in a delay, so that an interval counts for at most a quarter of the delay.
_LOOKS_MIN: Final = 4
# The usual number of looks in a delay. If the delay is long, looks are more frequent: one every `_LOOK_AGAIN_NS`.
_LOOKS: Final = 10
_LOOK_AGAIN_NS: Final = 10 * 10**9


class Losses:
    def __init__(self, delay_s: int) -> None:
        self._delay_ns = delay_s * 10**9
        # For each missing bookie, the time for which it was seen missing.
        self._absent_ns: dict[BookieId, int] = {}
        self._session: SessionId = NO_SESSION
        self._looked_ns = 0
        # Bookies that were missing when a person requested an audit.
        self._asked: set[BookieId] = set()
        self._approved: frozenset[BookieId] = frozenset()
        self._named: frozenset[BookieId] = frozenset()
        self._population = 0

    def on_delay(self, delay_s: int) -> None:
        self._delay_ns = delay_s * 10**9

    def on_members(
        self,
        known: Collection[BookieId],
        named: Collection[BookieId],
        registered: Collection[BookieId],
        session: SessionId,
        now_ns: int,
    ) -> None:
        """Take note of one look, made in this session: bookies that had a cookie (`known`), that a ledger
        named (`named`), or that were `registered`.
        """
        missing = (set(known) | set(named)) - set(registered)
        before = self._absent_ns if session == self._session else {}
        counted_ns = self._counted_ns(now_ns - self._looked_ns)
        self._absent_ns = {
            each: before[each] + counted_ns if each in before else 0 for each in sorted(missing)
        }
        self._session, self._looked_ns = session, now_ns
        self._asked &= missing
        self._named = frozenset(named)
        self._population = len(self._named | set(registered))

    def _counted_ns(self, interval_ns: int) -> int:
        """Return the part of the time between two looks that counts as watched."""
        return min(interval_ns, self._delay_ns // _LOOKS_MIN)

    def on_asked(self) -> None:
        """Take note that a person requests an audit now."""
        self._asked.update(self._absent_ns)

    def on_approved(self, bookies: Collection[BookieId]) -> None:
        """Take note that a person approves the loss of these bookies."""
        self._approved = frozenset(bookies)

    @property
    def missing(self) -> Mapping[BookieId, int]:
        """Return the missing bookies, each with the nanoseconds for which it was seen missing."""
        return self._absent_ns

    @property
    def is_braked(self) -> bool:
        """Return whether the brake is on (AU2). Missing bookies that no ledger names are not counted, since
        they were handled before.
        """
        gone = self._named.intersection(self._absent_ns)
        return 2 * len(gone) > self._population and not gone <= self._approved

    def lost(self) -> frozenset[BookieId]:
        """Return the bookies whose ledgers should be marked. The set is empty while the brake is on."""
        if self.is_braked:
            return frozenset()
        return frozenset(
            each
            for each, absent_ns in self._absent_ns.items()
            if each in self._asked or absent_ns >= self._delay_ns
        )

    def next_look_ns(self) -> int | None:
        """Return how long after the latest look the next one is due, or None if no bookie is about to be
        lost.
        """
        left_ns = [
            self._delay_ns - absent_ns
            for absent_ns in self._absent_ns.values()
            if absent_ns < self._delay_ns
        ]
        pause_ns = min(self._delay_ns // _LOOKS, _LOOK_AGAIN_NS)
        return min(*left_ns, pause_ns) if left_ns else None


class Backlog:
    """Ledgers that should be marked, ordered so that those with the fewest good copies come first (AU3). Each
    ledger takes 8 bytes.
    """

    def __init__(self) -> None:
        self._by_copies: dict[int, array[int]] = {}

    def add(self, ledger_id: LedgerId, copies: int) -> None:
        self._by_copies.setdefault(copies, array("q")).append(ledger_id)

    def __len__(self) -> int:
        return sum(map(len, self._by_copies.values()))

    def __iter__(self) -> Iterator[LedgerId]:
        for copies in sorted(self._by_copies):
            yield from map(LedgerId, self._by_copies[copies])


def is_check_due(completed_ms: int | None, now_ms: int, interval_ms: int) -> bool:
    """Return whether a check is due. With an interval of 0, no check is ever due. A completion time in the
    future came from a wrong clock.
    """
    if interval_ms == 0:
        return False
    return completed_ms is None or not completed_ms <= now_ms < completed_ms + interval_ms
