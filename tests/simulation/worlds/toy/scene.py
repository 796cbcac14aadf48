"""A seed's life: chaos, a partial healing with a deadline, a power cut of everything, the reckoning.

While the writer appends and recoveries try to take its ledger away, the schedule's faults come and
go. Then they end; one bookie may stay down. The ledger must be closed within a deadline. At last
all bookies lose power at once and come back, and what they hold is compared with what was promised.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from structlog.testing import capture_logs

from rollbook.proto.ids import BookieId
from tests.simulation.checkers.log import check_log
from tests.simulation.history import NEVER, History
from tests.simulation.kernel.failures import SimulationFailed
from tests.simulation.kernel.world import Node, World
from tests.simulation.nemesis import Nemesis
from tests.simulation.schedule import SOON_US, Case, Kind, Recipe, Step, draw, log_uniform
from tests.simulation.worlds import Report
from tests.simulation.worlds.toy.bookie import Bookie
from tests.simulation.worlds.toy.drills import Drill
from tests.simulation.worlds.toy.ledger import QUORUM, LedgerNode
from tests.simulation.worlds.toy.oracle import EVERY_RULE, Oracle
from tests.simulation.worlds.toy.reader import Reader
from tests.simulation.worlds.toy.recovery import Recovery
from tests.simulation.worlds.toy.wire import Links
from tests.simulation.worlds.toy.words import (
    APPEND,
    BOOKIES,
    CLIENTS,
    CLOSE,
    FOLLOW,
    LAST_RECOVERY,
    METADATA,
    READER,
    RECOVER,
    RECOVERIES,
    STAY_DOWN,
    WRITER,
)
from tests.simulation.worlds.toy.writer import Writer

FIRST_BODY: Final = 1000  # Entry i carries the i-th body.
APPENDS: Final = 12
CHAOS_US: Final = (60_000, 1_500_000)  # The ledger is created in peace.
CHAOS_S: Final = CHAOS_US[1] / 1e6
LIVENESS_S: Final = 8.0
RESTART_S: Final = 0.2  # After a bookie has stopped by itself.

LIVENESS: Final = "liveness"
LINEARIZABLE: Final = "linearizable"


@dataclass(frozen=True, slots=True)
class Parts:
    """What takes part. A mutant brings a broken one of something."""

    bookie: type[Bookie] = Bookie
    writer: type[Writer] = Writer
    recovery: type[Recovery] = Recovery


class ToyScene:
    def __init__(
        self,
        parts: Parts | None = None,
        rules: frozenset[str] = EVERY_RULE,
        drill: Drill | None = None,
    ) -> None:
        """`drill` is all that its cases have."""
        self._parts = parts or Parts()
        self._rules, self._drill = rules, drill

    def case(self, seed: int) -> Case:
        rng = random.Random(f"toy {seed}")
        if self._drill is not None:
            return Case("toy", seed, *self._drill(rng))
        steps = _draw_steps(rng)
        return Case("toy", seed, steps, draw(rng, RECIPES, CHAOS_US, steps))

    def run(self, case: Case, *, tell: bool = False) -> Report:
        run = _Run(case, self._parts, self._rules, tell)
        broke, detail = None, ""
        try:
            with capture_logs():  # Of the shells that run here; the story tells what matters.
                run.world.run(run.scenario())
        except SimulationFailed as failure:
            broke = run.broke or run.oracle.broke or type(failure).__name__
            detail = str(failure)
        digest = run.world.trace.digest()
        return Report(broke, detail, digest, run.history, run.story, run.world.callbacks)


class _Run:
    def __init__(self, case: Case, parts: Parts, rules: frozenset[str], tell: bool) -> None:
        self.world = World(case.seed)
        self.history = History(lambda: self.world.now)
        self.story: list[str] = []
        self.oracle = Oracle(self.world, rules, self._tell if tell else None)
        self.broke: str | None = None
        self._case, self._parts = case, parts
        self._is_telling = tell
        self._stay_down: list[str] = []
        self._nemesis = Nemesis(self.world, self.history, self._tell if tell else None)

    async def scenario(self) -> None:
        world = self.world
        for bookie in BOOKIES:
            world.node(bookie).start(self._keep)
        for name in CLIENTS:
            world.node(name)
        world.nodes[WRITER].start(self._write)
        mains = {RECOVER: self._recover, FOLLOW: self._follow}
        for step in self._case.steps:
            if (main := mains.get(step.what)) is not None:
                world.at(step.at_us / 1e6, world.nodes[step.actor].start, main)
        self._nemesis.schedule(self._case.faults)
        await asyncio.sleep(CHAOS_S)

        self._tell("the chaos is over")
        self._nemesis.heal()
        self._stay_down = [step.actor for step in self._case.steps if step.what == STAY_DOWN]
        for name in self._stay_down:
            world.node(name).kill()
        await self._settle()

        self._stay_down = []
        self.oracle.look_at_metadata()
        self._tell("the whole cluster loses power")
        machines = [world.node(name) for name in BOOKIES]
        for machine in machines:
            machine.power_cut()
        self.oracle.bookies.clear()
        for machine in machines:
            machine.restart()
        await self._within(
            LIVENESS_S, lambda: len(self.oracle.bookies) == len(BOOKIES), "not all bookies are back"
        )
        self._read_back()

    async def _settle(self) -> None:
        """The ledger gets closed, and the writer, if it lives, gets an answer to each append."""
        recovered = self.world.node(LAST_RECOVERY).start(self._recover)
        try:
            async with asyncio.timeout(LIVENESS_S):
                await recovered.result
        except TimeoutError:
            self._break(LIVENESS, "the ledger is not closed in time")
        if self.world.node(WRITER).is_running:
            await self._within(LIVENESS_S, self._is_writer_done, "an append has no answer")

    def _is_writer_done(self) -> bool:
        return all(append.returned != NEVER for append in self.history.appends)

    async def _within(self, seconds: float, holds: Callable[[], bool], what: str) -> None:
        deadline = self.world.now + seconds
        while not holds():
            if self.world.now > deadline:
                self._break(LIVENESS, f"{what} within {seconds:g} s")
            await asyncio.sleep(0.05)

    def _read_back(self) -> None:
        self.oracle.look_at_metadata()
        ledger = self.oracle.ledger
        assert ledger is not None
        assert ledger.last is not None
        for entry in range(ledger.last + 2):
            held_on = (self.oracle.bookies[name] for name in ledger.ensemble_of(entry))
            bodies = [bookie.entries[entry] for bookie in held_on if entry in bookie.entries]
            value = bodies[0] if bodies and entry <= ledger.last else None
            self.history.on_read(self.history.read("reader", entry), value)
        self.oracle.check_changes()
        self.oracle.check_copies(lambda entry: FIRST_BODY + entry)
        for anomaly in check_log(self.history):
            self._break(LINEARIZABLE, str(anomaly))

    def _break(self, rule: str, text: str) -> None:
        if self.broke is None:
            self.broke = rule
            self.world.fail(f"{rule}: {text}")

    def _tell(self, text: str) -> None:
        if self._is_telling:
            self.story.append(f"{self.world.now:8.4f}s {text}")

    # --- Processes ----------------------------------------------------------------------------

    async def _keep(self, node: Node) -> None:
        bookie = self._parts.bookie(BookieId(node.name), node.transport, node.disk, self.oracle)
        try:
            await bookie.serve()
        except OSError as error:  # It stops, and its supervisor starts it again.
            self._tell(f"{node.name} stops: {error}")
            self.world.at(self.world.now + RESTART_S, self._start_again, node)

    def _start_again(self, node: Node) -> None:
        if not node.is_running and node.name not in self._stay_down:
            node.restart()

    async def _write(self, node: Node) -> None:
        metadata = LedgerNode(await node.metadata())
        links = Links(node.transport, BOOKIES)
        writer = self._parts.writer(
            BOOKIES, metadata, links, self.history, node.randomness, self.oracle.on_confirmed
        )
        await writer.open(BOOKIES[: QUORUM.ensemble])
        body = FIRST_BODY
        for step in self._case.steps:
            if step.actor == WRITER:
                await asyncio.sleep(step.at_us / 1e6 - self.world.now)
                if step.what == APPEND:
                    self._tell(f"writer appends entry {body - FIRST_BODY}")
                    writer.append(body)
                    body += 1
                else:
                    await writer.close()
        await asyncio.Event().wait()  # Until it is killed: answers may still come.

    async def _recover(self, node: Node) -> None:
        self._tell(f"{node.name} begins")
        store = await node.metadata()
        links = Links(node.transport, BOOKIES)
        await self._parts.recovery(BOOKIES, LedgerNode(store), links, node.randomness).recover()
        links.close()
        await store.close()

    async def _follow(self, node: Node) -> None:
        metadata = LedgerNode(await node.metadata())
        links = Links(node.transport, BOOKIES)
        name = f"{node.name} {node.process.number if node.process else 0}"  # Each starts anew.
        await Reader(name, metadata, links, self.history, node.randomness).follow()
        links.close()


# --- Drawing a case ---------------------------------------------------------------------------


def _draw_steps(rng: random.Random) -> tuple[Step, ...]:
    steps = []
    at_us = 100_000
    for _ in range(APPENDS):
        steps.append(Step(at_us, WRITER, APPEND))
        if rng.random() < 0.6:  # Else at once: entries travel in bunches.
            at_us += round(rng.expovariate(1 / 120_000))
    if rng.random() < 0.3:
        steps.append(Step(at_us + rng.randrange(500_000), WRITER, CLOSE))
    steps += [  # While some append is likely to be under way.
        Step(rng.choice(steps).at_us + log_uniform(rng, SOON_US), name, RECOVER)
        for name in RECOVERIES
        if rng.random() < 0.8
    ]
    if rng.random() < 0.5:
        steps.append(Step(rng.randint(100_000, at_us), READER, FOLLOW))
    if rng.random() < 0.4:
        steps.append(Step(CHAOS_US[1], rng.choice(BOOKIES), STAY_DOWN))
    return tuple(sorted(steps, key=lambda step: step.at_us))


MS: Final = 1000
_EARLY: Final = (WRITER, READER, *RECOVERIES)
_EACH_BOOKIE: Final = tuple((name,) for name in BOOKIES)
_EACH_CLIENT: Final = tuple((name,) for name in _EARLY)
_PAIRS: Final = tuple((client, bookie) for client in _EARLY for bookie in BOOKIES)
_ADDS: Final = tuple((WRITER, bookie) for bookie in BOOKIES)
_BOTH_WAYS: Final = _PAIRS + tuple((bookie, client) for client, bookie in _PAIRS)
_TO_METADATA: Final = tuple((client, METADATA) for client in _EARLY)
_ALL: Final = (*BOOKIES, *CLIENTS, METADATA)
_GROUPS: Final = tuple(tuple(group) for size in (2, 3, 5) for group in combinations(BOOKIES, size))

RECIPES: Final = (
    Recipe(Kind.KILL, _EACH_BOOKIE, times=(1, 4), for_us=(5 * MS, 1000 * MS)),
    Recipe(Kind.KILL, ((WRITER,),), times=(1, 1), odds=0.25),
    Recipe(Kind.KILL, _EACH_CLIENT[1:], times=(1, 5), for_us=(5 * MS, 300 * MS)),
    Recipe(Kind.POWER_CUT, _EACH_BOOKIE, times=(1, 3), for_us=(5 * MS, 1000 * MS)),
    Recipe(Kind.POWER_CUT, _GROUPS, times=(1, 3), for_us=(5 * MS, 500 * MS)),
    Recipe(Kind.PAUSE, _EACH_BOOKIE + _EACH_CLIENT, times=(1, 4), for_us=(10 * MS, 1000 * MS)),
    Recipe(Kind.CUT, _PAIRS + _TO_METADATA, times=(1, 4), for_us=(20 * MS, 1000 * MS)),
    Recipe(Kind.CUT_ONE_WAY, _BOTH_WAYS, times=(1, 4), for_us=(20 * MS, 1000 * MS)),
    Recipe(Kind.RESET, _PAIRS, times=(1, 40)),
    # Steps that take their time leave room for something to go wrong between them.
    Recipe(Kind.FAR_APART, (_ALL,), times=(1, 1), amount=(MS, 40 * MS), from_start=True),
    Recipe(Kind.JITTER, (_ALL,), times=(1, 1), amount=(5 * MS, 300 * MS), from_start=True),
    Recipe(Kind.SLOW_LINK, _ADDS, times=(1, 3), amount=(20 * MS, 500 * MS), from_start=True),
    Recipe(Kind.SLOW_LINK, _BOTH_WAYS, times=(1, 8), amount=(MS, 500 * MS), from_start=True),
    Recipe(Kind.TAIL_LATENCY, _BOTH_WAYS, times=(1, 8), amount=(MS, 1500 * MS), from_start=True),
    Recipe(Kind.SLOW_DISK, _EACH_BOOKIE, times=(1, 3), amount=(MS, 1000 * MS), from_start=True),
    Recipe(Kind.HUNG_DISK, _EACH_BOOKIE, times=(1, 2), for_us=(5 * MS, 800 * MS), odds=0.3),
    Recipe(Kind.SYNC_ERROR, _EACH_BOOKIE + _GROUPS, times=(1, 3), for_us=(MS, 100 * MS)),
    Recipe(Kind.METADATA_DOWN, ((),), times=(1, 1), for_us=(20 * MS, 500 * MS), odds=0.2),
    Recipe(Kind.METADATA_LOSS, _EACH_CLIENT, times=(1, 3), amount=(0, 1), odds=0.3),
    Recipe(Kind.METADATA_EXPIRY, _EACH_CLIENT, times=(1, 2), odds=0.2),
    Recipe(Kind.METADATA_LAG, ((),), times=(1, 1), amount=(MS, 300 * MS), odds=0.2),
)
