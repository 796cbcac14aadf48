"""The ledger client at work on whole bookies: chaos, healing, a power cut of everything, the reckoning.

Writers, recoverers and readers are processes of their own that know nothing of each other; all of them
are the product's client on simulated ports. While they do what the case tells them its faults come and
go. Then they end, perhaps but for one bookie that stays away: each append has an answer, a follower
sees what was written, every ledger is closed, each within a deadline, and clients that are
closed leave nothing behind. At last all bookies lose power and come back, and every copy of
every entry is asked for.

Nothing of the client's inside is known here; what makes a bug of it visible is said in
`checkers/ledger`.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from rollbook.bookie import bookie
from rollbook.ledger.explicit_lac import ExplicitLac
from rollbook.ledger.follower import Follower
from rollbook.ledger.metadata_writer import MetadataWriter
from rollbook.ledger.recovery import LedgerRecovery, _Attempt
from rollbook.proto.cluster.cluster_root import initialise
from rollbook.proto.formats.layout import Layout
from rollbook.proto.formats.ledger_metadata import unpack_ledger_metadata
from rollbook.proto.formats.paths import ledger_of_path
from rollbook.proto.ids import LedgerId
from rollbook.proto.ports import Create, Set
from tests.simulation.checkers.ledger import LedgerChecker
from tests.simulation.kernel.disk import SimulatedDisk
from tests.simulation.kernel.metadata import Commit
from tests.simulation.kernel.world import Node, Process
from tests.simulation.nemesis import Nemesis
from tests.simulation.schedule import Case, Fault, Kind
from tests.simulation.worlds import Report
from tests.simulation.worlds.ledger import plan, users, words
from tests.simulation.worlds.ledger.bookies import FRUGAL, ROOT, STORAGE, Cluster, watched
from tests.simulation.worlds.ledger.drills import MEMBER, STRANGER
from tests.simulation.worlds.ledger.users import Sums, Users
from tests.simulation.worlds.stage import LIVENESS, Stage
from tests.simulation.worlds.whole_bookies import InnerStep, measured, remembering
from tests.support.planting import Patch, planted

CHAOS_S: Final = plan.CHAOS_US[1] / 1e6
CALLBACKS_MAX: Final = 200_000  # Many times what a run takes: more is a loop that runs hot.
LIVENESS_S: Final = 15.0  # A session that runs out, a cut that TCP notices late, a few attempts.
APPENDED_S: Final = 10.0
SEEN_S: Final = 2.0  # From the confirmation to the follower, without further writes (WR7).
LAST: Final = "last-recoverer"
LAST_FOLLOWER: Final = "last-follower"
UNSEEN: Final = "unseen"
# Steps of which two faults at least must have been in force during one, or the run proves too little.
DECISIVE: Final = ("change ensemble", "recover", "close")


class LedgerScene:
    def __init__(self, patches: Sequence[Patch] = (), drill: str | None = None) -> None:
        """`patches` plant a bug for as long as a case runs; `drill` is all that its cases have."""
        self._patches = patches
        self._drill = drill

    def case(self, seed: int) -> Case:
        return plan.draw_case(seed, self._drill)

    def run(self, case: Case, *, tell: bool = False) -> Report:
        run = _Run(case, tell)
        with (
            planted(FRUGAL),
            planted(remembering(bookie, users)),
            planted(self._patches),
            planted(watched(run.world, run.checker)),
            planted(measured(run.history, _INNER_STEPS)),
        ):
            return run.report()


# Steps that no user sees, by what takes them.
_INNER_STEPS: Final[tuple[InnerStep, ...]] = (
    (MetadataWriter, "move", "change ensemble"),
    (MetadataWriter, "close", "end"),
    (ExplicitLac, "_tell", "tell LAC"),
    (LedgerRecovery, "_start", "mark"),
    (_Attempt, "fence", "fence"),
    (_Attempt, "_find_and_write_back", "search"),
    (Follower, "_poll", "poll"),
)


class _Nemesis(Nemesis):
    def __init__(self, run: "_Run") -> None:
        super().__init__(run.world, run.history, run.tell if run.is_telling else None)
        self._run = run

    def _inflict(self, fault: Fault) -> Any:
        world, facts = self._world, self._run.checker.facts
        fault = replace(fault, nodes=tuple(map(self._run.resolve, fault.nodes)))
        if any(name not in world.nodes for name in fault.nodes):
            return None  # A bookie that a smaller cluster does not have.
        if fault.kind in (Kind.ROT, Kind.READ_ERROR):
            facts.damaged[fault.nodes[0]] = None
        if fault.kind is Kind.WIPE:
            node = world.node(fault.nodes[0])
            self._run.cluster.wipe(node)
            return node.restart
        if fault.kind is Kind.DISK_FULL:
            node = world.node(fault.nodes[0])
            return self._set([node.disk], capacity_bytes=node.disk.system.used_bytes)
        return super()._inflict(fault)

    def _in_some_file(self, node: Node, damage: Callable[[SimulatedDisk, str], int]) -> None:
        """In an entry log: what rots elsewhere keeps a bookie from starting, or is taken for torn."""
        folder = STORAGE.ledger_dirs[0]
        if node.disk.system.find(folder) is not None:
            names = node.disk.system.list_directory(folder)
            if logs := [f"{folder}/{name}" for name in names if name.endswith(".log")]:
                damage(node.disk, self._chance.choice(logs))


class _Run(Stage):
    def __init__(self, case: Case, is_telling: bool) -> None:
        super().__init__(case, is_telling, callbacks_max=CALLBACKS_MAX, decisive=DECISIVE)
        self.checker = LedgerChecker(self.broken, lambda: self.world.now_ns)
        self._case = case
        self._asked: dict[str, list[tuple[str, bytes | None, int | None]]] = {}
        self.cluster = Cluster(
            self.world,
            self.history,
            self.checker,
            plan.bookies_of(case),
            disks_fill_up=any(fault.kind is Kind.DISK_FULL for fault in case.faults),
            tell=self.tell,
            on_broken=self.broken,
            live=self.live,
        )
        self._sums = Sums(
            self.world,
            self.history,
            self.checker,
            case,
            self.tell,
            self.broken,
            doubts_of=self.cluster.doubts_of,
        )
        self._users = Users(self._sums)
        self._nemesis = _Nemesis(self)

    async def scenario(self) -> None:
        world = self.world
        await world.node(words.OPERATOR).start(self._make_cluster).result
        world.metadata.on_asked = self._on_asked
        world.metadata.on_commit = self._on_commit
        self.cluster.start()
        if not await self.holds(LIVENESS_S, self.cluster.all_registered):
            self.broken(LIVENESS, "not all bookies are registered at first")
        mains = self._users.mains()
        acting = dict.fromkeys(step.actor for step in self._case.steps)
        for name, main in mains.items():
            if name in acting:
                world.node(name).start(partial(self.live, main))
        self._let_operate()
        self._nemesis.schedule(self._case.faults)
        await asyncio.sleep(CHAOS_S - world.now)

        self.tell("the chaos is over")
        self._nemesis.heal()
        self.cluster.stay_down = tuple(
            step.actor for step in self._case.steps if step.what == words.STAY_DOWN
        )
        for name in self.cluster.stay_down:
            world.node(name).kill()
        self.cluster.start_all_again()
        await self._settle()

        self.tell("the whole cluster loses power")
        await self.cluster.reckon()

    # --- Liveness -------------------------------------------------------------------------------

    async def _settle(self) -> None:
        world = self.world
        await self.within(LIVENESS_S, self.cluster.all_registered, "not all are registered")
        if world.node(words.WRITER).is_running:
            await self.within(APPENDED_S, self._all_answered, "an append has no answer")
        following = await self._follow_one_more()
        last = world.node(LAST).start(partial(self.live, self._finish))
        for process in (last, following):
            if process is not None:
                try:
                    async with asyncio.timeout(4 * LIVENESS_S):
                        await process.result
                except TimeoutError:
                    self.broken(LIVENESS, f"{process.node.name} does not come to an end")
        for name in words.CLIENTS:
            world.node(name).kill()

    async def _follow_one_more(self) -> Process | None:
        """What a healthy writer adds comes to a follower though nothing follows it (RD4, WR7)."""
        sums, writer = self._sums, self._sums.living_writer()
        if writer is None:
            return None
        ledger_id, seen = writer.ledger_id, [-1]
        facts = self.checker.facts.ledger(ledger_id)
        expected = facts.confirmed

        async def follow(node: Node) -> None:
            async with self._users.client(node) as ledgers:
                await self._users.follow_to_the_end(ledgers, ledger_id, seen.append)

        following = self.world.node(LAST_FOLLOWER).start(partial(self.live, follow))
        what = f"a follower sees {{}} of ledger {ledger_id}, confirmed are"
        if not await self.holds(LIVENESS_S, lambda: seen[-1] >= expected) and sums.living_writer():
            self.broken(UNSEEN, f"{what.format(seen[-1])} {expected}")
        sums.one_more.set()
        await self.holds(APPENDED_S, lambda: sums.last_append is not None)
        await self.within(APPENDED_S, self._all_answered, "the last append has no answer")
        expected = facts.confirmed
        # Unless it was stopped with that very entry: then only a recovery can tell.
        if not await self.holds(SEEN_S, lambda: seen[-1] >= expected) and sums.living_writer():
            self.broken(UNSEEN, f"{what.format(seen[-1])} {expected}, after {SEEN_S:g} s")
        return following

    async def _finish(self, node: Node) -> None:
        """Every ledger is closed, and everything in it can be read; a lost disk is made good."""
        users, facts = self._users, self.checker.facts
        async with users.client(node) as ledgers:
            for ledger_id in map(LedgerId, list(facts.ledgers)):
                if facts.ledger(ledger_id).is_doomed:
                    continue
                last = await self.in_time(
                    LIVENESS_S,
                    users.close_for_good(ledgers, ledger_id),
                    f"ledger {ledger_id} is not closed",
                )
                await self.in_time(
                    LIVENESS_S,
                    users.read_for_sure(ledgers, ledger_id, last),
                    f"ledger {ledger_id} is not read",
                )

            for name in list(facts.destroyed):
                await self.in_time(
                    LIVENESS_S, users.heal_for_sure(ledgers, name), f"{name} is not healed"
                )
                self.checker.on_healed(name)

    def _all_answered(self) -> bool:
        return not self._sums.unanswered()

    def tell_who_waits(self) -> None:
        for append in self._sums.unanswered():
            self.tell(f"waiting: {append}")

    def resolve(self, name: str) -> str:
        """Who has that place in the newest ledger's last fragment now, or has none."""
        kind, _, number = name.partition("-")
        if kind not in (MEMBER, STRANGER):
            return name
        ledgers = [
            facts.metadata for facts in self.checker.facts.ledgers.values() if facts.metadata
        ]
        members = ledgers[-1].fragments[-1].ensemble if ledgers else ()
        strangers = [each for each in self.cluster.names if each not in members]
        found = members if kind == MEMBER else strangers
        return found[int(number) - 1] if int(number) <= len(found) else name

    # --- Metadata -------------------------------------------------------------------------------

    async def _make_cluster(self, node: Node) -> None:
        store = await node.metadata()
        # One name for all runs: cookies are parsed once.
        await initialise(store, ROOT, random.Random(0))
        await store.close()

    def _on_asked(self, process: str, question: Any) -> None:
        for op in getattr(question, "ops", ()):
            if isinstance(op, Set | Create) and op.path.startswith(_LEDGERS):
                version = op.version if isinstance(op, Set) else None
                self._asked.setdefault(op.path, []).append((process, op.value, version))

    def _on_commit(self, commit: Commit) -> None:
        for path, row in commit.rows.items():
            ledger_id = self._ledger_of(path)
            if ledger_id is None:
                continue
            if row is None:
                self.tell(f"ledger {ledger_id} is removed")
                self.checker.on_committed(ledger_id, None, -1, ())
                continue
            facts = self.checker.facts.ledger(ledger_id)
            if row.version == facts.version:
                continue  # Only its children have changed.
            metadata = unpack_ledger_metadata(ledger_id, row.value)
            authors = [
                (process, version)
                for process, value, version in self._asked.get(path, ())
                if value == row.value
            ]
            self.tell(f"ledger {ledger_id} version {row.version}: {_told(metadata)}")
            self.checker.on_committed(ledger_id, metadata, row.version, authors)

    def _ledger_of(self, path: str) -> LedgerId | None:
        if not path.startswith(_LEDGERS):
            return None
        return ledger_of_path(Layout.HIERARCHICAL, path[len(_LEDGERS) :])

    # --- The operator's hand ----------------------------------------------------------------------

    def _let_operate(self) -> None:
        for step in self._case.steps:
            verb, *rest = step.what.split()
            if verb == words.READ_ONLY:
                self.world.at(step.at_us / 1e6, self._make_read_only, rest[0])

    def _make_read_only(self, name: str) -> None:
        node, bookie = self.world.node(name), self.cluster.find(name)
        if bookie is not None:
            self.tell(f"{name} is made read-only")
            self.world.loop.create_task(bookie.set_read_only(True), context=node.context.copy())


_LEDGERS: Final = f"{ROOT}/"


def _told(metadata: Any) -> str:
    fragments = "; ".join(f"{f.first_entry}: {', '.join(f.ensemble)}" for f in metadata.fragments)
    end = f" at {metadata.last_entry}" if metadata.last_entry is not None else ""
    return f"{metadata.state.value}{end}, {fragments}"
