"""Every crash of a bookie's storage: files as a power cut may leave them are reopened and judged.

The power may be cut after each disk operation of a trace. The *images* of that moment are all
combinations of un-synced sectors, sizes and names that the kernel's file system allows, if they are
few; otherwise a sample that begins with all and none. No combination counts twice. Each image is
opened by the real recovery code and judged (`judge.py`), as it is or after a full checkpoint.

Some of them crash again: during that recovery, or after a kill of the process, which leaves
un-synced data in place. In others the disk is full when they are opened, which may stop them, and
the crash after that must lose nothing either.
"""

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from rollbook.bookie.storage import Storage
from rollbook.proto.errors import BadConfig, RollbookError
from tests.crash.images.judge import Due, LedgerDue, Promise, judge
from tests.crash.images.life import Trace, record
from tests.crash.images.step_disk import StepDisk, step
from tests.simulation.kernel import SimulationFailed
from tests.simulation.kernel.filesystem import POWER_CUT, FileSystem, Operation
from tests.support.clocks import StandingClock

SAMPLE: Final = 24  # Maximum number of combinations of one moment.
SECOND_ODDS: Final = 0.05
_SECOND_SAMPLE: Final = 6
_KILLS: Final = 4  # Kills of the process for each second crash of an image.
_FULL_ODDS: Final = 0.02
_SINGLY_ODDS: Final = 0.1
_FAILURES_MAX: Final = 5


@dataclass
class Crashes:
    """The results of one trace, or of many."""

    images: int = 0  # Images opened and judged.
    traces: int = 0
    moments: int = 0  # Moments of power cuts.
    again: int = 0  # Images of a crash during or after the recovery from another crash.
    failures: list[str] = field(default_factory=list)

    def add(self, other: "Crashes") -> None:
        self.images += other.images
        self.traces += other.traces
        self.moments += other.moments
        self.again += other.again
        self.failures += other.failures


def crash_everywhere(
    seed: int, *, sample: int = SAMPLE, second_odds: float = SECOND_ODDS
) -> Crashes:
    """Judges the images of all moments of one trace."""
    try:
        trace = record(seed)
    except SimulationFailed as error:
        return Crashes(traces=1, failures=[f"seed {seed} lives badly: {error}"])
    return _Crasher(trace, sample, second_odds).crash_everywhere()


class _Crasher:
    def __init__(self, trace: Trace, sample: int, second_odds: float) -> None:
        self._trace = trace
        self._due = Due(trace.promises)
        self._sample = sample
        self._second_odds = second_odds
        self._chance = random.Random(trace.seed)
        self._result = Crashes(traces=1)

    def crash_everywhere(self) -> Crashes:
        system, chance, result = FileSystem(), self._chance, self._result
        for now, operation in enumerate(self._trace.operations, 1):
            system = after(system, operation)
            result.moments += 1
            ledgers = self._due.at(now)
            for image in images(system, chance, self._sample):
                self._crash(image, chance.random() < self._second_odds, ledgers, f"{now}")
            if chance.random() < self._second_odds * _KILLS:  # A kill keeps the page cache.
                self._crash(system.copy(), True, ledgers, f"{now}, killed")
            if len(result.failures) > _FAILURES_MAX:
                break
        return result

    def _crash(
        self, image: FileSystem, is_followed: bool, ledgers: list[LedgerDue], name: str
    ) -> None:
        try:
            if self._chance.random() < _FULL_ODDS:
                image = self._start_while_full(image)
            before = image.copy() if is_followed else None
            operations = self._judge(image, ledgers)
            if before is not None:
                self._crash_again(before, operations, ledgers)
        except (Promise, RollbookError, OSError, AssertionError) as error:
            self._result.failures.append(
                f"seed {self._trace.seed} operation {name}: {type(error).__name__}: {error}"
            )

    def _crash_again(
        self, before: FileSystem, operations: list[Operation], ledgers: list[LedgerDue]
    ) -> None:
        chance = self._chance
        for operation in operations[: chance.randint(1, max(1, len(operations)))]:
            before = after(before, operation)
        for again in images(before, chance, _SECOND_SAMPLE):
            self._judge(again, ledgers)
            self._result.again += 1

    def _judge(self, image: FileSystem, ledgers: list[LedgerDue]) -> list[Operation]:
        """Opens the store; judges it as it is, after all of it was checkpointed, or both."""
        disk = StepDisk(image)
        chance = self._chance
        storage = self._open(disk, is_made=any(due.entries for due in ledgers))
        when = chance.random()
        if when < 0.6:
            judge(storage, ledgers, singly=chance.random() < _SINGLY_ODDS)
        if when > 0.5:
            while step(storage.checkpoint()):
                pass
            judge(storage, ledgers, singly=chance.random() < _SINGLY_ODDS)
        self._result.images += 1
        return disk.operations

    def _start_while_full(self, image: FileSystem) -> FileSystem:
        """The start may fail, but not do harm. Returns the image after another power cut."""
        disk = StepDisk(image, self._chance.choice((0, 0, 3_000, 20_000)))
        try:
            self._open(disk, is_made=True)
        except (OSError, RollbookError):
            pass
        return image.after_power_cut(self._chance.randrange)

    def _open(self, disk: StepDisk, *, is_made: bool) -> Storage:
        randomness = random.Random(len(disk.operations))
        arguments = (disk, self._trace.config, StandingClock(), randomness)
        try:
            return step(Storage.open(*arguments))
        except BadConfig:
            if is_made:
                raise
        step(Storage.make(disk, self._trace.config, randomness))
        return step(Storage.open(*arguments))


# --- Images of one moment -----------------------------------------------------------------------


def images(system: FileSystem, chance: random.Random, sample: int) -> Iterator[FileSystem]:
    """All states that a power cut may leave, or a sample of `sample` of them."""
    first = _Picks(lambda count: count - 1)
    yield system.after_power_cut(first)
    ways = 1
    for count in first.counts:
        ways *= count
    if ways == 1:
        return
    seen = {tuple(first.picks)}
    for choose in _all(first.counts) if ways <= sample else _some(chance, sample - 1):
        picks = _Picks(choose)
        image = system.after_power_cut(picks)
        if (key := tuple(picks.picks)) not in seen:
            seen.add(key)
            yield image


class _Picks:
    """Records each choice, and the number of options."""

    def __init__(self, choose: Callable[[int], int]) -> None:
        self.counts: list[int] = []
        self.picks: list[int] = []
        self._choose = choose

    def __call__(self, count: int) -> int:
        pick = self._choose(count)
        self.counts.append(count)
        self.picks.append(pick)
        return pick


def _all(counts: Sequence[int]) -> Iterator[Callable[[int], int]]:
    """Later choices depend on earlier ones; surplus choices take the oldest state."""
    for picks in itertools.product(*map(range, counts)):
        rest = iter(picks)
        yield lambda count, rest=rest: min(next(rest, 0), count - 1)  # type: ignore[misc]  # Defaults bind.


def _some(chance: random.Random, sample: int) -> Iterator[Callable[[int], int]]:
    yield lambda _: 0
    for _ in range(sample - 1):
        newest, oldest = chance.random(), chance.random()  # Odds of this cut.
        yield lambda count, newest=newest, oldest=oldest: (  # type: ignore[misc]  # Defaults bind.
            count - 1
            if chance.random() < newest
            else (0 if chance.random() < oldest else chance.randrange(count))
        )


def after(system: FileSystem, operation: Operation) -> FileSystem:
    name, *arguments = operation
    if name == POWER_CUT:
        picks = iter(arguments)
        return system.after_power_cut(lambda _: next(picks))
    getattr(system, name)(*arguments)
    return system
