"""Planted bugs that the simulator must find. If it missed them, its silence about our code would prove nothing.

Each mutant is searched for with fresh seeds. There are five kinds:

    the toy protocol with one rule broken        this module
    a bookie with a flaw                         `worlds/bookie/flaws.py`
    a ledger client with a flaw                  `worlds/ledger/flaws.py`
    a log service with a flaw                    `worlds/logs/flaws.py`
    recovery with a flaw                         `worlds/cluster/flaws.py`

The mutant `LacFenceOnOne` is not a bug: the promise also holds if recovery asks only one bookie for the LAC. Entries
are confirmed in order, so the fencing reads alone are enough. Proof:

Let recovery close the ledger at entry L. Then `absence` fenced members of the write set of entry L+1 have reported
that they do not have that entry. Each of them had no durable copy at that time, and accepts no ordinary add afterwards.
So at most `ack` - 1 bookies of the writer's ensemble can ever acknowledge L+1, and the writer cannot change the
ensemble after recovery has marked the ledger. Therefore neither L+1 nor any later entry is ever confirmed.

A LAC that is too low only makes recovery read more entries. Asking all bookies for the LAC is still worth it: recovery
reads fewer entries, and the writer learns of the recovery sooner. The model checks this argument: it visits every
interleaving of a small world, and finds a violation if the reads do not fence, as it should.
"""

import asyncio
import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rollbook.proto.errors import EntryStateUnknown, LedgerFenced, MetadataConflict
from rollbook.proto.ids import EntryId
from rollbook.proto.ports import OpenMode
from rollbook.proto.quorum import Ensemble
from tests.simulation.run import find_failure, parallel
from tests.simulation.schedule import Case
from tests.simulation.shrink import shrink
from tests.simulation.worlds.bookie.flaws import BOOKIE_MUTANTS, BookieMutant
from tests.simulation.worlds.cluster.flaws import CLUSTER_MUTANTS, ClusterMutant
from tests.simulation.worlds.ledger.flaws import LEDGER_MUTANTS, LedgerMutant
from tests.simulation.worlds.logs.flaws import LOG_MUTANTS, LogMutant
from tests.simulation.worlds.toy import drills
from tests.simulation.worlds.toy.bookie import JOURNAL, Bookie
from tests.simulation.worlds.toy.drills import Drill
from tests.simulation.worlds.toy.ledger import CLOSED, Ledger
from tests.simulation.worlds.toy.model import Rules, explore
from tests.simulation.worlds.toy.oracle import EVERY_RULE
from tests.simulation.worlds.toy.recovery import Answers, Recovery
from tests.simulation.worlds.toy.scene import Parts, ToyScene
from tests.simulation.worlds.toy.wire import (
    ABSENT,
    FENCING_READ,
    READ,
    Message,
    Stream,
)
from tests.simulation.worlds.toy.writer import Pending, Writer
from tests.tally import Tally

Say = Callable[[str], None]


class OneNegative(Recovery):
    """Recovery takes one negative answer for proof that an entry is absent."""

    negatives_needed = 1


class OneCopy(Recovery):
    """Recovery closes when one copy of each entry is written back."""

    copies_needed = 1


class MovingLac(Recovery):
    """Recovery's write-backs call what it has written back so far confirmed."""

    def _lac_to_tell(self, lac: EntryId, entry: EntryId) -> EntryId:
        return EntryId(entry - 1)


class ReadsDoNotFence(Recovery):
    """Recovery fences with its first question only, as BookKeeper did until issue 2614."""

    read_kind = READ


class OrderedReads(Bookie):
    """Plain reads wait their turn behind the adds accepted before them. No bug: it makes the one
    above pure, since all that its reads lack then is the fence.
    """

    def on_ask(self, stream: Stream, ask: Message) -> None:
        if ask.kind == READ:
            self._enqueue(stream, ask, b"")
        else:
            super().on_ask(stream, ask)

    def _finish(self, stream: Stream, ask: Message) -> None:
        if ask.kind == READ:
            self._answer(stream, ask, self._look_up(ask))
        else:
            super()._finish(stream, ask)


class LacFenceOnOne(Recovery):
    """Recovery asks one bookie only for the LAC. Its reads still fence, so this is no bug."""

    def _whom_to_fence(self, ensemble: Ensemble) -> Ensemble:
        return (self._rng.choice(ensemble),)

    def _is_covered(self, ensemble: Ensemble, answers: Answers) -> bool:
        return bool(answers)


class AckBeforeSync(Bookie):
    """A bookie answers first and makes it durable then."""

    async def _commit(self, batch: list[tuple[Stream, Message, bytes]]) -> None:
        for stream, ask, _ in batch:
            self._finish(stream, ask)
        records = b"".join(record for _, _, record in batch)
        if records:
            await self._make_durable(records)


class RetriedSync(Bookie):
    """A bookie whose sync failed syncs again, and believes the second answer."""

    async def _make_durable(self, records: bytes) -> None:
        try:
            await super()._make_durable(records)
        except OSError:
            await self._sync_until_it_works()
            self._end += len(records)

    async def _sync_until_it_works(self) -> None:
        while True:
            try:
                return await self._journal.sync()
            except OSError:
                await asyncio.sleep(0.01)


class ForgottenFence(Bookie):
    """A bookie keeps its fence in memory only."""

    def _record_of(self, ask: Message) -> bytes:
        record = super()._record_of(ask)
        return b"" if ask.kind == FENCING_READ else record


class HastyNegative(Bookie):
    """A bookie says "absent" at once and makes the fence durable afterwards."""

    _in_flight: Sequence[tuple[Stream, Message, bytes]] = ()

    async def _commit(self, batch: list[tuple[Stream, Message, bytes]]) -> None:
        self._in_flight = batch
        await super()._commit(batch)
        self._in_flight = ()

    def on_ask(self, stream: Stream, ask: Message) -> None:
        coming = [*self._in_flight, *self._queue]  # What is on its way is not called absent.
        is_coming = any(ask.entry == accepted.entry for _, accepted, _ in coming)
        if ask.kind == FENCING_READ and self._look_up(ask) == ABSENT and not is_coming:
            self._answer(stream, ask, ABSENT)
        super().on_ask(stream, ask)  # Its second answer finds nobody waiting.


class NoHold(Writer):
    """The writer confirms entries while metadata is learning of the next ensemble."""

    def _is_held(self) -> bool:
        return False


# --- More, beyond the ones that every such simulator is measured by -----------------------------


class SilenceIsAbsence(Recovery):
    """Recovery takes bookies that do not answer for bookies that deny."""

    async def _read(self, ensemble: Ensemble, entry: EntryId) -> int | None:
        try:
            return await super()._read(ensemble, entry)
        except EntryStateUnknown:
            return None


class StartsTooLow(Recovery):
    """Recovery looks for entries of earlier fragments in the last one's ensemble (issue 2615)."""

    def _start(self, found: Ledger, lacs: list[int]) -> EntryId:
        return EntryId(max(lacs))


class PublishesEarly(Recovery):
    """Recovery publishes the bookies it writes to before it has written what they must hold."""

    async def _mend(self, mended: Ledger, entry: EntryId, ensemble: Ensemble) -> Ledger:
        mended = mended.with_ensemble(entry, ensemble)
        await self._node.change(mended)
        return mended


class IgnoresRecovery(Writer):
    """The writer changes the ensemble of a ledger that somebody recovers."""

    async def _publish(self, changed: Ledger) -> None:
        try:
            await self._node.change(changed)
        except MetadataConflict:
            found = self._node.ledger
            if found.state == CLOSED:
                raise LedgerFenced(state=found.state) from None
            await self._node.change(replace(found, fragments=changed.fragments))


class OldCopiesCount(Writer):
    """The writer counts copies on bookies that it has replaced."""

    def _disown(self, pending: Pending, slot: int) -> None:
        pass


class TrustsItsJournal(Bookie):
    """A bookie goes on with its journal as it finds it, synced or not."""

    async def _replay(self) -> None:
        if await self._disk.stat(JOURNAL) is None:
            return await super()._replay()
        self._journal = await self._disk.open(JOURNAL, OpenMode.WRITE)
        size = await self._journal.size()
        self._end = len(self._load(await self._journal.read_at(0, size)))
        return None


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    parts: Parts
    seeds_max: int  # Within which it must be found.
    drill: Drill | None = None  # All its cases are that.
    is_equivalent: bool = False  # Then it must not be found.

    def scene(self, rules: frozenset[str] = EVERY_RULE) -> ToyScene:
        return ToyScene(self.parts, rules, self.drill)

    @property
    def what(self) -> str:
        for part in (self.parts.recovery, self.parts.writer, self.parts.bookie):
            if part.__module__ == __name__:
                return (part.__doc__ or "").partition("\n")[0]
        raise AssertionError(f"{self.name} mutates nothing")


# Budgets are about ten times the mean number of seeds. One of a hundred bugs would get away by bad luck
# in one run of two hundred: so what was not found within its budget is sought for twice as long again.
_PATIENCE: Final = 3
MUTANTS: Final = (
    Mutant("one-negative", Parts(recovery=OneNegative), 150),
    Mutant("ack-before-sync", Parts(bookie=AckBeforeSync), 50),
    Mutant("retried-sync", Parts(bookie=RetriedSync), 500),
    Mutant("one-copy", Parts(recovery=OneCopy), 20, drill=drills.lone_copy),
    Mutant("no-hold", Parts(writer=NoHold), 1_000),
    Mutant("moving-lac", Parts(recovery=MovingLac), 4_000),
    Mutant("forgotten-fence", Parts(bookie=ForgottenFence), 400),
    Mutant(
        "reads-do-not-fence",
        Parts(OrderedReads, recovery=ReadsDoNotFence),
        500,
        drill=drills.late_adds,
    ),
    Mutant("hasty-negative", Parts(bookie=HastyNegative), 400),
    Mutant(
        "silence-is-absence",
        Parts(recovery=SilenceIsAbsence),
        500,
        drill=drills.dark_recovery,
    ),
    Mutant("starts-too-low", Parts(recovery=StartsTooLow), 300, drill=drills.new_members),
    Mutant("publishes-early", Parts(recovery=PublishesEarly), 600),
    Mutant("ignores-recovery", Parts(writer=IgnoresRecovery), 400),
    Mutant("old-copies-count", Parts(writer=OldCopiesCount), 50, drill=drills.all_replaced),
    Mutant("trusts-its-journal", Parts(bookie=TrustsItsJournal), 500),
    Mutant("lac-fence-on-one", Parts(recovery=LacFenceOnOne), 250, is_equivalent=True),
)


AnyMutant = Mutant | BookieMutant | LedgerMutant | LogMutant | ClusterMutant

ALL_MUTANTS: Final[tuple[AnyMutant, ...]] = (
    *MUTANTS,
    *BOOKIE_MUTANTS,
    *LEDGER_MUTANTS,
    *LOG_MUTANTS,
    *CLUSTER_MUTANTS,
)


@dataclass(frozen=True, slots=True)
class Found:
    mutant: str
    seeds: int  # Tried, the failing one included.
    seed: int | None
    detail: str
    cpu_s: float

    @property
    def seeds_per_cpu_second(self) -> float:
        return self.seeds / self.cpu_s


def run(from_seed: int, say: Say, one_in: int = 1) -> Tally:
    """Mutants fall within their budgets of fresh seeds; the equivalent one stands.

    `one_in`: the first seed chooses which share of them is tried.
    """
    tally = Tally("mutants")
    say(f"{'mutant':<30}{'seeds':>7}{'CPU s':>8}{'seeds/CPU s':>13}  first broken rule")
    chosen = ALL_MUTANTS[from_seed % one_in :: one_in]
    searches = [(mutant.name, from_seed, EVERY_RULE) for mutant in chosen]
    for mutant, found in zip(chosen, parallel(search, searches), strict=True):
        is_right = (found.seed is None) == mutant.is_equivalent
        told = found.detail if found.seed is not None else "none"
        if mutant.is_equivalent:
            verdict = explore(Rules(lac_answers_needed=1))
            is_right = is_right and verdict.broken is None
            told += f", nor in any of the {verdict.states:,} states of the model: it is no bug"
        elif found.seed is None:
            told = f"MISSED in {found.seeds:,} seeds: {mutant.what}"
        say(
            f"{mutant.name:<30}{found.seeds:>7,}{found.cpu_s:>8.1f}"
            f"{found.seeds_per_cpu_second:>13.0f}  {told}"
        )
        tally.passed += is_right
        tally.failed += not is_right
    return tally


def search(task: tuple[str, int, frozenset[str]]) -> Found:
    """In a process of its own: the first fresh seed that tells the mutant from the protocol."""
    name, from_seed, rules = task
    mutant = by_name(name)
    gc.set_threshold(200_000, 50, 100)  # What runs leave is much, and goes with the process.
    start = time.process_time()
    patience = 1 if mutant.is_equivalent else _PATIENCE
    seeds = range(from_seed, from_seed + patience * mutant.seeds_max)
    failure = find_failure(mutant.scene(rules), seeds)
    cpu_s = time.process_time() - start
    if failure is None:
        return Found(name, len(seeds), None, "", cpu_s)
    seed, report = failure
    return Found(name, seed - from_seed + 1, seed, report.detail, cpu_s)


def show(name: str, from_seed: int, say: Say) -> Tally:
    """Finds one mutant, cuts its case down and tells the story of what is left."""
    tally = Tally("mutants")
    try:
        mutant = by_name(name)
    except KeyError as unknown:
        say(str(unknown.args[0]))
        tally.failed += 1
        return tally
    say(f"planted bug: {mutant.what}")
    scene = mutant.scene()
    failure = find_failure(scene, range(from_seed, from_seed + mutant.seeds_max))
    if failure is None:
        say(f"not found in {mutant.seeds_max:,} seeds" + ", as is right" * mutant.is_equivalent)
        tally.passed += mutant.is_equivalent
        tally.failed += not mutant.is_equivalent
        return tally
    seed, report = failure
    case = scene.case(seed)
    say(f"found at seed {seed}: {report.detail}")

    def broken_rule(candidate: Case) -> str | None:
        return scene.run(candidate).broke

    shrunk = shrink(case, broken_rule)
    say(
        f"shrunk in {shrunk.runs} runs from {len(case.faults)} faults and {len(case.steps)} steps "
        f"to {len(shrunk.case.faults)} and {len(shrunk.case.steps)}:"
    )
    for line in str(shrunk.case).splitlines():
        say(f"  {line}")
    say("what happened then:")
    final = scene.run(shrunk.case, tell=True)
    for line in final.story:
        say(f"  {line}")
    say(f"broken: {final.detail}")
    tally.passed += 1
    return tally


def by_name(name: str) -> AnyMutant:
    for mutant in ALL_MUTANTS:
        if mutant.name == name:
            return mutant
    raise KeyError(f"no mutant {name!r}; there are {', '.join(m.name for m in ALL_MUTANTS)}")
