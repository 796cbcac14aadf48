"""Decides which entry logs are worth rewriting, and which of them are merged.

A log's fullness is the size of a sorted log of its live entries divided by its own size. Padding
and framing of an adopted journal file are waste, like entries of deleted ledgers. A log that was
just compacted is full, even if its entries are small. The emptiest logs (by tenths, then by age)
are rewritten first, since they give back the most space for each byte copied. Several logs are
merged into one new log.

The new log has the age of its youngest source (`core/catalog.py`). Therefore logs are merged only
if that hides no entry (B12). An entry of an older source may have been added again; then no log
with the newer copy may stay if its age is between the ages of the sources.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Final, NamedTuple

from rollbook.bookie.core.catalog import LedgerInLog, Use
from rollbook.bookie.core.catalog_records import EntryLogInfo

# Upper bounds for the size of a sorted log: no log is rewritten without a gain.
_LOG_BYTES: Final = 4096
_LEDGER_BYTES: Final = 160
_ENTRY_BYTES: Final = 16.5
_ENTRY_SHARE: Final = 1.01

# The approximate size of a new log that is made from several logs.
TARGET_BYTES: Final = 256 * 1024 * 1024
# The index of a new log is in memory until the log is finished, and takes 16 bytes for each entry.
TARGET_ENTRIES: Final = 2 * 1024 * 1024
_VICTIMS_MAX: Final = 64  # The maximum number of sources of a new log; each is an open file.


class Candidate(NamedTuple):
    number: int
    age: int
    file_bytes: int
    use: Use

    @property
    def sorted_bytes(self) -> int:
        """The size of a sorted log that has only the live entries."""
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


def candidate(log: EntryLogInfo, use: Use) -> Candidate:
    return Candidate(log.number, log.age, log.file_bytes, use)


def pick_victims(
    candidates: Iterable[Candidate], threshold: float, damaged: Collection[int] = ()
) -> list[Candidate]:
    """Picks logs, the emptiest first by tenths of their fullness. Among equals the oldest comes
    first, because logs that are adjacent by age can be merged without a check of their ledgers.
    Damaged logs are always picked. Empty logs are never picked, because they are removed.
    """
    found = [
        each
        for each in candidates
        if each.use.ledgers and (each.fullness < threshold or each.number in damaged)
    ]
    return sorted(found, key=lambda each: (int(10 * each.fullness), each.age, each.number))


class CompactionGroup:
    """Logs that will be merged into one new log."""

    def __init__(self, first: Candidate) -> None:
        self.numbers = [first.number]
        self.age = self.oldest = first.age
        self.sorted_bytes = first.sorted_bytes
        self._entries = first.use.entries

    @property
    def is_full(self) -> bool:
        return len(self.numbers) >= _VICTIMS_MAX

    def has_room_for(self, other: Candidate, bytes_max: int) -> bool:
        return (
            not self.is_full
            and self.sorted_bytes + other.sorted_bytes <= min(bytes_max, TARGET_BYTES)
            and self._entries + other.use.entries <= TARGET_ENTRIES
        )

    def add(self, other: Candidate) -> None:
        self.numbers.append(other.number)
        self.age, self.oldest = max(self.age, other.age), min(self.oldest, other.age)
        self.sorted_bytes += other.sorted_bytes
        self._entries += other.use.entries


def is_between(log: EntryLogInfo, oldest: int, age: int) -> bool:
    """Returns whether the log's age is between these two ages. If no log is between, a merge hides
    nothing."""
    return oldest < log.age < age


def hides_younger(
    held: Iterable[LedgerInLog], age_of: Callable[[int], int], batch: Collection[int]
) -> bool:
    """Returns whether merging these logs would hide entries of a ledger that a younger log holds.

    `held` lists the ledger's entries in all logs. The new log has the age of the youngest log of
    the batch, even if that one holds no entry of this ledger.
    """
    new_age = max(map(age_of, batch))
    ours, others = list[LedgerInLog](), list[LedgerInLog]()
    for each in held:
        if each.log in batch:
            ours.append(each)
        elif age_of(each.log) < new_age:
            others.append(each)
    return any(
        age_of(older.log) < age_of(between.log)
        and between.first_entry <= older.last_entry
        and older.first_entry <= between.last_entry
        for between in others
        for older in ours
    )


class CompactionKind(NamedTuple):
    """The settings of one kind of compaction, minor or major: which logs it rewrites, and how
    often. This kind of compaction is off if either value is not above 0."""

    name: str
    threshold: float
    interval_s: float

    @property
    def is_on(self) -> bool:
        return self.threshold > 0 and self.interval_s > 0


class CompactionSchedule:
    """Decides when to run which kind of compaction. A major compaction also does the work of a
    minor one."""

    def __init__(self, minor: CompactionKind, major: CompactionKind, now_ns: int) -> None:
        self.minor, self.major = minor, major
        self._kinds = (major, minor)
        self._last_ns = {kind.name: now_ns for kind in self._kinds}
        self._is_suspended = {kind.name: False for kind in self._kinds}

    def is_suspended(self, name: str) -> bool:
        return self._is_suspended[name]

    def suspend(self, name: str, is_suspended: bool) -> None:
        self._is_suspended[name] = is_suspended

    def due(
        self, now_ns: int, *, is_short: bool = False, has_damage: bool = False
    ) -> CompactionKind | None:
        """Returns the kind that is due. A kind may be due early: a major compaction while space is
        short, a minor one if there is damage."""
        for kind in self._kinds:
            if self._is_suspended[kind.name]:
                continue
            is_wanted = is_short if kind is self.major else has_damage
            age_s = (now_ns - self._last_ns[kind.name]) / 1e9
            if kind.is_on and (is_wanted or age_s >= kind.interval_s):
                return kind
        return None

    def on_done(self, kind: CompactionKind, now_ns: int) -> None:
        self._last_ns[kind.name] = now_ns
        if kind == self.major:
            self._last_ns[self.minor.name] = now_ns
