"""Which bookies are lost, when their ledgers are marked, and in which order.

A bookie is *missing* while a cookie or a ledger names it and it is not registered. It is *lost* once it
was missing for the whole delay, as this auditor has seen it (AU1). The delay holds for any number of
bookies; one that comes back within it costs nothing. A person who asks for an audit does not wait for it.

**The brake** (AU2). If more than half of all bookies that hold ledgers or serve are missing at once, then
rather the network or the metadata store is broken than the bookies are: nothing is marked until enough of
them are back, or a person approves the loss of these very bookies.

**Order** (AU3). Ledgers whose worst entry has the fewest good copies come first.
"""

from array import array
from collections.abc import Collection, Iterator, Mapping

from rollbook.proto.ids import BookieId, LedgerId


class Losses:
    def __init__(self, delay_s: int) -> None:
        self._delay_ns = delay_s * 10**9
        self._since: dict[BookieId, int] = {}  # Missing since then, as far as was seen.
        self._asked: set[BookieId] = set()  # Missing when a person asked for an audit.
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
        now_ns: int,
    ) -> None:
        """`known` by a cookie, `named` by a ledger."""
        missing = (set(known) | set(named)) - set(registered)
        self._since = {each: self._since.get(each, now_ns) for each in sorted(missing)}
        self._asked &= missing
        self._named = frozenset(named)
        self._population = len(self._named | set(registered))

    def on_asked(self) -> None:
        """A person asks for an audit now."""
        self._asked.update(self._since)

    def on_approved(self, bookies: Collection[BookieId]) -> None:
        """These may be lost all at once, says a person."""
        self._approved = frozenset(bookies)

    @property
    def missing(self) -> Mapping[BookieId, int]:
        """With the time since when."""
        return self._since

    @property
    def is_braked(self) -> bool:
        """AU2. A bookie that no ledger names any more was dealt with before, and counts for nothing."""
        gone = self._named.intersection(self._since)
        return 2 * len(gone) > self._population and not gone <= self._approved

    def lost(self, now_ns: int) -> frozenset[BookieId]:
        """Whose ledgers are to be marked; nobody's while the brake is on."""
        if self.is_braked:
            return frozenset()
        return frozenset(
            each
            for each, since_ns in self._since.items()
            if each in self._asked or now_ns - since_ns >= self._delay_ns
        )

    def next_ns(self, now_ns: int) -> int | None:
        """When the next one becomes lost, if nothing happens before."""
        due = [since_ns + self._delay_ns for since_ns in self._since.values()]
        return min((each for each in due if each > now_ns), default=None)


class Backlog:
    """Ledgers to be marked, those with the fewest good copies first (AU3); 8 bytes for each."""

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
    """0: never. A completion in the future was written by a clock that was wrong."""
    if interval_ms == 0:
        return False
    return completed_ms is None or not completed_ms <= now_ms < completed_ms + interval_ms
