"""Which entry logs are worth rewriting, and which of them together.

A log is as full as what a sorted log with only its live entries would take of what it takes now:
padding and framing of an adopted journal are waste as well as entries of deleted ledgers, and a log
fresh from compaction is full, however small its entries. Victims are taken emptiest first, since they
give the most space back for each byte copied, and several of them make one new log.

The new log is as old as the youngest of them (`core/catalog.py`). So logs are only put together if
that hides nothing: no entry of an older one may step in front of a repeat of it in a log that is in
between by age and stays.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from rollbook.bookie.core.catalog import Held, Log, Use

# What a sorted log takes, from above; so that none is rewritten for what it cannot do without.
_LOG_BYTES: Final = 4096
_LEDGER_BYTES: Final = 160
_ENTRY_BYTES: Final = 16.5
_ENTRY_SHARE: Final = 1.01

TARGET_BYTES: Final = 256 * 1024 * 1024  # Of a log made of several.
TARGET_ENTRIES: Final = 2 * 1024 * 1024  # Their index is held in memory meanwhile: 16 bytes each.
_VICTIMS_MAX: Final = 64  # Each is an open file.


class Candidate(NamedTuple):
    number: int
    age: int
    file_bytes: int
    use: Use

    @property
    def sorted_bytes(self) -> int:
        """What would be left of it."""
        return sorted_bytes(self.use)

    @property
    def fullness(self) -> float:
        return min(1.0, self.sorted_bytes / self.file_bytes)


def sorted_bytes(use: Use) -> int:
    return int(
        _LOG_BYTES
        + use.ledgers * _LEDGER_BYTES
        + use.entries * _ENTRY_BYTES
        + use.entry_bytes * _ENTRY_SHARE
    )


def candidate(log: Log, use: Use) -> Candidate:
    return Candidate(log.number, log.age, log.file_bytes, use)


def pick_victims(candidates: Iterable[Candidate], threshold: float) -> list[Candidate]:
    """Emptiest first. Those that hold nothing are not rewritten: they can just go."""
    found = [
        each for each in candidates if each.use.ledgers and each.fullness < min(threshold, 1.0)
    ]
    return sorted(found, key=lambda each: (each.fullness, each.number))


@dataclass(slots=True)
class Batch:
    """Logs that become one."""

    victims: list[Candidate]

    @property
    def age(self) -> int:
        return max(each.age for each in self.victims)

    @property
    def numbers(self) -> list[int]:
        """Oldest first."""
        return [each.number for each in sorted(self.victims, key=lambda each: each.age)]


def next_batch(
    victims: Sequence[Candidate], hides: Callable[[Sequence[Candidate]], bool]
) -> Batch | None:
    """The emptiest, and as many of the next ones as fit into one log and hide nothing."""
    if not victims:
        return None
    taken, size, entries = [victims[0]], victims[0].sorted_bytes, victims[0].use.entries
    for each in victims[1:]:
        if len(taken) == _VICTIMS_MAX:
            break
        fits = size + each.sorted_bytes <= TARGET_BYTES
        if not fits or entries + each.use.entries > TARGET_ENTRIES or hides([*taken, each]):
            continue
        taken.append(each)
        size += each.sorted_bytes
        entries += each.use.entries
    return Batch(taken)


def hides_younger(
    held: Iterable[Held], ages: Callable[[int], int], victims: frozenset[int]
) -> bool:
    """Whether these logs, made one, would hide what a younger one holds of the ledger.

    `held` is all that there is of it.
    """
    by_age = sorted(held, key=lambda each: ages(each.log))
    youngest = max((n for n, each in enumerate(by_age) if each.log in victims), default=0)
    for at, older in enumerate(by_age[:youngest]):
        if older.log not in victims:
            continue
        for between in by_age[at + 1 : youngest]:
            overlaps = (
                between.first_entry <= older.last_entry and older.first_entry <= between.last_entry
            )
            if between.log not in victims and overlaps:
                return True
    return False


class Kind(NamedTuple):
    """Minor or major: what is rewritten, and how often one looks. Off if either is not above zero."""

    name: str
    threshold: float
    interval_s: float

    @property
    def is_on(self) -> bool:
        return self.threshold > 0 and self.interval_s > 0


class Schedule:
    """When to compact how. Major does what minor does, and more."""

    def __init__(self, minor: Kind, major: Kind, now_ns: int) -> None:
        self._kinds = (major, minor)
        self._last_ns = {kind.name: now_ns for kind in self._kinds}
        self._is_suspended = {kind.name: False for kind in self._kinds}

    def is_suspended(self, name: str) -> bool:
        return self._is_suspended[name]

    def suspend(self, name: str, is_suspended: bool) -> None:
        self._is_suspended[name] = is_suspended

    def due(self, now_ns: int) -> Kind | None:
        for kind in self._kinds:
            age_s = (now_ns - self._last_ns[kind.name]) / 1e9
            if kind.is_on and not self._is_suspended[kind.name] and age_s >= kind.interval_s:
                return kind
        return None

    def on_done(self, kind: Kind, now_ns: int) -> None:
        major, minor = self._kinds
        self._last_ns[kind.name] = now_ns
        if kind == major:
            self._last_ns[minor.name] = now_ns
