"""A cluster that repairs itself: writers, recovery servers and an operator on whole bookies.

Bookies are lost, wiped, formatted and back, cut off, full; recovery servers die after any step of theirs,
lose their sessions, or sleep and go on with what they held to be so. Bookies drain and are taken away.
When the chaos is over, all that is left has to come right by itself within a deadline: every copy
that was lost is there again, no mark, task, lock or failure is left, no ledger names a bookie that is
gone, and every ledger with a living writer takes another entry. Then all ledgers are closed, and that
holds once more; at last all bookies lose power, and every copy is asked for.

What a repair may do is said in `checkers/cluster.py`, what ledgers promise in `checkers/ledger`.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any, Final, Never

from rollbook.bookie import bookie
from rollbook.ledger import lost_bookie_watch
from rollbook.ledger.core.lost_bookie_rules import LostMembers
from rollbook.ledger.metadata_writer import MetadataWriter
from rollbook.proto.cluster.cluster_root import initialise
from rollbook.proto.formats.layout import Layout
from rollbook.proto.formats.ledger_metadata import unpack_ledger_metadata
from rollbook.proto.formats.paths import ledger_of_path
from rollbook.proto.ids import BookieId, LedgerId
from rollbook.proto.ports import Create, Delete, Set
from rollbook.recovery import (
    autorecovery,
    bookie_decommission,
    drain_steward,
    heal_scheduler,
    ledger_checks,
)
from rollbook.recovery.autorecovery import RecoveryServer
from rollbook.recovery.bookie_ledger_scan import take_census
from rollbook.recovery.core import drain_steps, repair_failures
from rollbook.recovery.drain_steward import Steward
from rollbook.recovery.heal_scheduler import HealScheduler
from rollbook.recovery.ledger_repair import LedgerRepair
from tests.simulation.checkers.cluster import ClusterChecker
from tests.simulation.checkers.ledger import LedgerChecker
from tests.simulation.history import History
from tests.simulation.kernel.disk import SimulatedDisk
from tests.simulation.kernel.metadata import Commit
from tests.simulation.kernel.world import Node
from tests.simulation.nemesis import Nemesis
from tests.simulation.schedule import Case, Fault, Kind
from tests.simulation.worlds import Report
from tests.simulation.worlds.cluster import plan, users, words
from tests.simulation.worlds.cluster.log_owner import LogOwner
from tests.simulation.worlds.cluster.users import DELAY_S, GRACE_S, RETRY_PAUSE_S, Staff, Work
from tests.simulation.worlds.ledger import plan as ledger_plan
from tests.simulation.worlds.ledger import users as ledger_users
from tests.simulation.worlds.ledger.bookies import (
    FRUGAL,
    ROOT,
    SESSION_S,
    STORAGE,
    Cluster,
    watched,
)
from tests.simulation.worlds.ledger.users import Sums
from tests.simulation.worlds.stage import CRASH, LIVENESS, Stage
from tests.simulation.worlds.whole_bookies import InnerStep, measured, remembering
from tests.support.planting import Patch, planted

CHAOS_S: Final = plan.CHAOS_US[1] / 1e6
CALLBACKS_MAX: Final = 400_000  # Many times what a run takes: more is a loop that runs hot.
LIVENESS_S: Final = 15.0  # A session that runs out, a cut that TCP notices late, a few attempts.
REPAIRED_S: Final = 40.0  # The delay, grace period and some pauses after failures.
ABSENT_S: Final = (
    2.0  # After which a writer leaves a bookie; the delay comes later, as in production.
)
_HEARD_S: Final = 0.1
_MEMBER: Final = "member"
_STRANGER: Final = "stranger"
_FINISHER: Final = "finisher"


class ClusterScene:
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
            planted(_RESTLESS),
            planted(remembering(bookie, ledger_users, users)),
            planted(self._patches),
            planted(watched(run.world, run.checker)),
            planted(measured(run.history, _INNER_STEPS)),
            planted(run.judged()),
        ):  # What is planted now is what it looks at.
            return run.report()


# What takes minutes in production takes moments here, in the same order.
_RESTLESS: Final[tuple[Patch, ...]] = (
    (lost_bookie_watch, "LostMembers", partial(LostMembers, round(ABSENT_S * 1e9))),
    (repair_failures, "PAUSE_S_MAX", 8),
    (drain_steps, "ATTEMPTS_WITHOUT_TARGET", 3),
    (ledger_checks, "_SILENT_S", 1.0),
    (ledger_checks, "_PAUSE_S_MIN", 1.0),
    (autorecovery, "_TELL_S", 1e6),  # Nothing rests on what servers say of themselves.
)
# Steps that no user sees, by what takes them.
_INNER_STEPS: Final[tuple[InnerStep, ...]] = (
    (MetadataWriter, "move", "change ensemble"),
    (LedgerRepair, "_copy", "copy"),
    (LedgerRepair, "_swap", "swap"),
    (LedgerRepair, "_close", "close for repair"),
)


def _ensemble_of(what: str) -> int:
    """How many bookies the ledgers need that this step makes."""
    verb, *numbers = what.split()
    return int(numbers[3]) if verb in (words.FILL, words.HOLD) else 0


class _History(History):
    def __init__(self, run: "_Run") -> None:
        super().__init__(lambda: run.world.now)
        self._run = run

    def weakness(self) -> str | None:
        """A run without repairs shows nothing."""
        tallies = self._run.judge.tallies
        if not (tallies.swaps or tallies.unmarks or tallies.drained or tallies.whole):
            return "no fault made a repair necessary"
        return None


class _Nemesis(Nemesis):
    def __init__(self, run: "_Run") -> None:
        super().__init__(run.world, run.history, run.tell if run.is_telling else None)
        self._run = run

    def _inflict(self, fault: Fault) -> Any:
        run, world = self._run, self._world
        fault = replace(fault, nodes=tuple(map(run.resolve, fault.nodes)))
        run.hinder(fault)
        names = fault.nodes
        if any(name not in world.nodes or name in run.cluster.stay_down for name in names):
            return None
        if fault.kind is Kind.WIPE:
            run.give_up()
        if fault.kind in (Kind.ROT, Kind.WIPE) and not run.may_lose(names[0]):
            return None
        if fault.kind is Kind.ROT:
            run.checker.facts.damaged[names[0]] = None
        if fault.kind is Kind.WIPE:
            node = world.node(names[0])
            run.wipe(node, is_lost=not fault.for_us)
            return partial(run.bring_back, node) if fault.for_us else None
        if fault.kind is Kind.DISK_FULL:
            node = world.node(names[0])
            return self._set([node.disk], capacity_bytes=node.disk.system.used_bytes)
        return super()._inflict(fault)

    def _in_some_file(self, node: Node, damage: Callable[[SimulatedDisk, str], int]) -> None:
        """In an entry log: what rots elsewhere keeps a bookie from starting, or is taken for torn."""
        folder = STORAGE.ledger_dirs[0]
        if node.disk.system.find(folder) is not None:
            names = node.disk.system.list_directory(folder)
            if logs := [f"{folder}/{name}" for name in names if name.endswith(".log")]:
                damage(node.disk, self._chance.choice(logs))


class _Checker(LedgerChecker):
    def __init__(self, run: "_Run") -> None:
        super().__init__(run.broken, lambda: run.world.now_ns)
        self._run = run

    def on_formatted(self, bookie: str) -> None:
        super().on_formatted(bookie)
        self._run.judge.on_formatted(bookie)
        self._run.on_formatted(bookie)


class _Run(Stage):
    def __init__(self, case: Case, is_telling: bool) -> None:
        super().__init__(case, is_telling, callbacks_max=CALLBACKS_MAX)
        self.history = _History(self)
        self.checker = _Checker(self)
        self.checker.facts.repairers = words.RECOVERIES
        self._case = case
        self._asked: dict[str, list[tuple[str, bytes | None, int | None]]] = {}
        self._hindered: dict[str, float] = {}  # Until when a fault hinders the node.
        self._fated: dict[str, list[int]] = {}  # After how many more writes a process dies.
        self._moments: list[str] = []  # What happens when the moment for it has come.
        self._sleeps: dict[str, list[tuple[float, float]]] = {}  # From when to when.
        self.first_member = ""  # Of the first ledger, when it was made.
        self.cluster = Cluster(
            self.world,
            self.history,
            self.checker,
            ledger_plan.bookies_of(case),
            disks_fill_up=any(fault.kind is Kind.DISK_FULL for fault in case.faults),
            tell=self.tell,
            on_broken=self.broken,
            live=self.live,
        )
        self.judge = ClusterChecker(
            self.checker.facts,
            ROOT,
            self.broken,
            lambda: self.world.now,
            opener_of=lambda session: self.world.metadata.openers.get(session, ""),
            was_free=self._was_free,
            slept_s=self._slept_s,
            grace_s=GRACE_S + SESSION_S,
            delay_s=DELAY_S - _HEARD_S,
            pause_s=RETRY_PAUSE_S - _HEARD_S,
        )
        sums = Sums(
            self.world,
            self.history,
            self.checker,
            case,
            self.tell,
            self.broken,
            doubts_of=self.cluster.doubts_of,
        )
        self._work = Work(sums, self.judge, self.resolve, self.may_lose, self._stop_for_good)
        whats = [step.what for step in case.steps]
        # Bookies that are left when one is taken away: as many as the largest ensemble has members.
        self._standing_min = max((_STANDING_MIN, *map(_ensemble_of, whats)))
        self._work.is_healing = words.HEALING in whats
        if words.ONE_RACK in whats or words.TWO_RACKS in whats:
            near = len(self.cluster.names) if words.ONE_RACK in whats else _NEAR
            for place, name in enumerate(self.cluster.names):
                self.judge.racks[name] = "near" if place < near else "far"
        self._staff = Staff(self._work)
        self._owner = LogOwner(self.world, tell=self.tell, on_broken=self.broken, live=self.live)
        self._has_owner = words.OWNED in whats
        self._nemesis = _Nemesis(self)

    async def scenario(self) -> None:
        world = self.world
        await world.node(words.OPERATOR).start(self._make_cluster).result
        world.metadata.on_asked = self._on_asked
        world.metadata.on_commit = self._on_commit
        self.cluster.start()
        if not await self.holds(LIVENESS_S, self.cluster.all_registered):
            self.broken(LIVENESS, "not all bookies are registered at first")
        acting = dict.fromkeys((*(step.actor for step in self._case.steps), *words.RECOVERIES))
        for name, main in self._staff.mains().items():
            if name in acting:
                world.node(name).start(partial(self.live, main))
        if self._has_owner:
            self._owner.start()
            world.node(words.PRODUCER).start(partial(self.live, self._owner.produce))
        for step in self._case.steps:
            if step.actor == words.FATE and step.what not in words.FROM_THE_BEGINNING:
                world.at(step.at_us / 1e6, self._fate, step.what)
        self._nemesis.schedule(self._case.faults)
        await asyncio.sleep(CHAOS_S - world.now)

        self.tell("the chaos is over")
        self._nemesis.heal()
        self._work.is_over = True
        self._fated.clear()
        self._moments.clear()
        self.cluster.start_all_again()
        for name in words.RECOVERIES:
            self._start_again(world.node(name))
        if self._has_owner:
            world.node(words.PRODUCER).kill()
            self._owner.start_again()
        await self._settle()

        self.tell("the whole cluster loses power")
        await self.cluster.reckon()

    # --- Liveness -------------------------------------------------------------------------------

    async def _settle(self) -> None:
        world = self.world
        await self.within(LIVENESS_S, self.cluster.all_registered, "not all are registered")
        world.node(words.OPERATOR).kill()
        finisher = world.node(_FINISHER)
        finisher.start(partial(self.live, self._staff.set_right))
        await self.within(REPAIRED_S, self._is_repaired, "not all is repaired")
        finisher.kill()
        if self._has_owner:
            await self._do(self._owner.finish, 2 * LIVENESS_S)
        for name in words.WRITERS:
            if name in world.nodes and world.node(name).is_running:
                process = world.node(name).process
                assert process is not None
                context = process.lane.context.copy()
                work = self._staff.append_to_all(name)
                await world.loop.create_task(work, context=context)
        await self.within(LIVENESS_S, self._all_answered, "an append has no answer")
        for name in words.WRITERS:
            if name in world.nodes:
                world.node(name).kill()
                self._staff.forget(name)
        await self._do(self._staff.close_everything, 2 * LIVENESS_S)
        await self.within(REPAIRED_S, self._is_repaired, "not all is repaired")
        if self._work.is_healing:
            await self._do(self._staff.await_certainty, REPAIRED_S)
        await self._do(self._staff.read_everything, 2 * LIVENESS_S)
        for name in words.RECOVERIES:
            world.node(name).kill()

    async def _do(self, main: Any, seconds: float) -> None:
        process = self.world.node(_FINISHER).start(partial(self.live, main))
        try:
            async with asyncio.timeout(seconds):
                await process.result
        except TimeoutError:
            self.broken(LIVENESS, f"{main.__name__} does not come to an end")

    def _is_repaired(self) -> bool:
        return self.judge.unfinished(self.cluster.stay_down) is None

    def _all_answered(self) -> bool:
        return not self._work.sums.unanswered()

    def tell_who_waits(self) -> None:
        for append in self._work.sums.unanswered():
            self.tell(f"waiting: {append}")

    async def within(self, seconds: float, condition: Callable[[], object], what: str) -> None:
        if not await self.holds(seconds, condition):
            self.tell_who_waits()
            left = self.judge.unfinished(self.cluster.stay_down)
            self.broken(LIVENESS, f"{what} within {seconds:g} s: {left}")

    # --- Faults ---------------------------------------------------------------------------------

    def resolve(self, name: str) -> str:
        """Who has that place in the first fragment of the first ledger, or has none."""
        kind, _, number = name.partition("-")
        if kind not in (_MEMBER, _STRANGER):
            return name
        ledgers = self._work.sums.ledgers
        metadata = self.checker.facts.ledger(ledgers[0]).metadata if ledgers else None
        members = metadata.fragments[0].ensemble if metadata else ()
        strangers = [each for each in self.cluster.names if each not in members]
        found = members if kind == _MEMBER else strangers
        return found[int(number) - 1] if int(number) <= len(found) else name

    def may_lose(self, name: str) -> bool:
        """Not if it would take away more than the others can make good."""
        if name in self.checker.facts.damaged or self.judge.is_being_healed(name):
            return False
        if self._has_owner and self.judge.has_wiped:
            return False  # Nobody knows which records of the log have another copy.
        standing = len(self.cluster.names) - len(self.cluster.stay_down) - len(self._leaving())
        return standing > self._standing_min and self.judge.may_lose(name, self.cluster.stay_down)

    def give_up(self) -> None:
        """What is lost of the first ledger has no copy elsewhere, if its moment has come."""
        ledgers = self._work.sums.ledgers
        if ledgers and self._take_moment(words.GIVEN_UP):
            self.checker.on_doomed(ledgers[0])

    def _leaving(self) -> list[str]:
        down = self.cluster.stay_down
        return [name for name in self.judge.lifecycles if name not in down]

    def wipe(self, node: Node, *, is_lost: bool) -> None:
        if is_lost:
            self.cluster.stay_down = (*self.cluster.stay_down, node.name)
        self.judge.on_wiped(node.name)
        # Copies are counted where they are: nothing that comes back is excused.
        self.cluster.wipe(node)
        del self.checker.facts.destroyed[node.name]

    def bring_back(self, node: Node) -> None:
        if node.name not in self.cluster.stay_down:
            node.restart()

    def _stop_for_good(self, name: str) -> bool:
        """It may go, safe-to-remove said: nothing excuses what goes with it."""
        if len(self.cluster.names) - len(self.cluster.stay_down) <= self._standing_min:
            return False
        self.tell(f"{name} is taken away")
        self.wipe(self.world.node(name), is_lost=True)
        self.checker.facts.forgive_nothing(name)
        return True

    def hinder(self, fault: Fault) -> None:
        """For as long as the fault lasts, and for the time in which its end is noticed."""
        until_s = self.world.now + fault.for_us / 1e6 + SESSION_S
        if fault.kind in _LASTING:
            until_s = CHAOS_S
        everybody = fault.kind in _OF_METADATA
        for name in (*words.WRITERS, words.METADATA) if everybody else fault.nodes:
            self._hindered[name] = max(until_s, self._hindered.get(name, 0.0))

    def _was_free(self, name: str, since_s: float) -> bool:
        return self._hindered.get(name, 0.0) < since_s

    def _is_asleep(self, name: str) -> bool:
        return name in self._sleeps and self._sleeps[name][-1][1] == inf

    def _slept_s(self, name: str, since_s: float, until_s: float) -> float:
        """For how long the node did so in between."""
        return sum(
            max(0.0, min(woke_s, until_s) - max(fell_s, since_s))
            for fell_s, woke_s in self._sleeps.get(name, ())
        )

    def _fate(self, what: str) -> None:
        name, _, writes = what.partition(f" {words.DIE} ")
        if what == words.AUDITOR_SLEEPS:
            if auditor := self.judge.auditor.partition("#")[0]:
                self.tell(f"FATE: {auditor} sleeps, which audits")
                self._sleep(self.world.node(auditor))
        elif writes:
            self._fated.setdefault(name, []).append(int(writes))
        else:
            self._moments.append(what)

    def _take_moment(self, *wanted: str) -> str | None:
        """Each happens once."""
        for what in self._moments:
            if what in wanted:
                self._moments.remove(what)
                self.tell(f"FATE: {what}")
                return what
        return None

    def _on_copied(self, target: str, process: str) -> float:
        """For how long the worker goes no further."""
        world, node = self.world, self.world.node(target)
        worker = world.node(process.partition("#")[0])
        match self._take_moment(*_WHEN_COPIED):
            case words.WIPE_TARGET if self.may_lose(target):
                world.at(world.now, partial(self.wipe, node, is_lost=False))
                world.at(world.now + _DEAD_S, self.bring_back, node)
                return _LINGERING_S
            case words.KILL_TARGET:
                world.at(world.now, node.kill)
                world.at(world.now + _DEAD_S, self.bring_back, node)
                return _LINGERING_S
            case words.WORKER_SLEEPS:
                self._sleep(worker)
            case words.WRITER_CLOSES:
                self._staff.close_first()
            case words.CALLED_OFF:
                self._staff.call_off.set()
                return _DEAD_S
        return 0.0

    def on_formatted(self, bookie: str) -> None:
        if self._take_moment(words.LOSS_UNSEEN):
            self.judge.on_loss_unseen()
            self._staff.to_forget.put_nowait(bookie)

    def _on_copying(self) -> None:
        if self._take_moment(words.MEMBER_RETURNS):
            self._start_again(self.world.node(self.first_member))

    def _on_concluded(self, process: str) -> None:
        """A steward is going to change a lifecycle."""
        if self._take_moment(words.STEWARD_SLEEPS):
            name = process.partition("#")[0]
            self._sleep(self.world.node(name))
            for other in words.RECOVERIES:
                if other != name:
                    self.world.node(other).kill()

    def _sleep(self, node: Node) -> None:
        self.world.at(self.world.now, node.pause)
        self.world.at(self.world.now + _ASLEEP_S, node.resume)

    def _start_again(self, node: Node) -> None:
        if node.process is not None and not node.is_running:
            node.restart()

    # --- Metadata -------------------------------------------------------------------------------

    async def _make_cluster(self, node: Node) -> None:
        store = await node.metadata()
        # One name for all runs: cookies are parsed once.
        cluster = await initialise(store, ROOT, random.Random(0))
        if self._has_owner:
            await self._owner.make_log(store, cluster, node)
        await store.close()

    def _on_asked(self, process: str, question: Any) -> None:
        ops = getattr(question, "ops", ())
        for op in ops:
            if isinstance(op, Set | Create | Delete):
                version = None if isinstance(op, Create) else op.version
                value = None if isinstance(op, Delete) else op.value
                self._asked.setdefault(op.path, []).append((process, value, version))
        name = process.partition("#")[0]
        if ops and (fated := self._fated.get(name)):
            fated[:] = [each - 1 for each in fated]
            if 0 in fated:
                fated.remove(0)
                # Before it can hear that this was made.
                self.world.at(self.world.now, self._die, self.world.node(name))

    def _die(self, node: Node) -> None:
        self.tell(f"{node.name} dies after a write")
        node.kill()
        self.world.at(self.world.now + _DEAD_S, self._start_again, node)

    def _on_commit(self, commit: Commit) -> None:
        others = []
        for path, row in commit.rows.items():
            ledger_id = self._ledger_of(path)
            if ledger_id is None:
                others.append((path, row))
                continue
            if row is None:
                self.tell(f"ledger {ledger_id} is removed")
                self.checker.on_committed(ledger_id, None, -1, ())
                continue
            facts = self.checker.facts.ledger(ledger_id)
            if row.version == facts.version:
                continue  # Only its children have changed.
            before, metadata = facts.metadata, unpack_ledger_metadata(ledger_id, row.value)
            asked = self._asked.get(path, ())
            authors = [
                (process, version) for process, value, version in asked if value == row.value
            ]
            # A repair may bring back what was there before, as somebody else had asked for it.
            latest = [each for each in authors if each[1] == facts.version]
            authors = latest or authors
            by = ", ".join(dict.fromkeys(process for process, _ in authors))
            if before is None and by.startswith(words.LOG_OWNER):
                self.judge.of_logs[ledger_id] = None
            self.tell(f"ledger {ledger_id} version {row.version}: {_told(metadata)}, by {by}")
            if ledger_id in self.judge.of_logs:
                facts.metadata, facts.version, facts.is_doomed = metadata, row.version, True
            else:
                self.checker.on_committed(ledger_id, metadata, row.version, authors)
                self.first_member = self.first_member or metadata.fragments[0].ensemble[0]
            self.judge.on_ledger(facts, before, [process for process, _ in authors])
        for path, row in others:
            self.judge.on_row(path, row, partial(self._authors_of, path, row and row.value))
            if self.is_telling and path.startswith(_TOLD):
                what = "goes" if row is None else repr(row.value)[:200]
                by = ", ".join(self._authors_of(path, row and row.value))
                self.tell(f"{path}: {what}, by {by}")

    def _authors_of(self, path: str, value: bytes | None) -> list[str]:
        asked = self._asked.get(path, ())
        return list(dict.fromkeys(process for process, wanted, _ in asked if wanted == value))

    def _ledger_of(self, path: str) -> LedgerId | None:
        if not path.startswith(_LEDGERS):
            return None
        return ledger_of_path(Layout.HIERARCHICAL, path[len(_LEDGERS) :])

    # --- What is seen of the product's inside -----------------------------------------------------

    def judged(self) -> list[Patch]:
        """A part of a recovery server that fails is a bug; when walks begin is what they are judged by."""
        run = self

        async def keep_running(
            self: RecoveryServer, part: str, work: Callable[[], Coroutine[Any, Any, Never]]
        ) -> Never:
            try:
                await work()
            except Exception as error:
                run.broken(CRASH, f"{self.name}, {part}: {error!r}")
                raise

        def noting(original: Any) -> Any:
            async def take(*arguments: Any) -> Any:
                run.judge.on_census(run.world.loop.lane().name)
                return await original(*arguments)

            return take

        pause, resume, kill = Node.pause, Node.resume, Node.kill

        def fall_asleep(self: Node) -> None:
            if not run._is_asleep(self.name):
                run._sleeps.setdefault(self.name, []).append((run.world.now, inf))
            pause(self)

        def wake(self: Node) -> None:
            if run._is_asleep(self.name):
                fell_s, _ = run._sleeps[self.name].pop()
                run._sleeps[self.name].append((fell_s, run.world.now))
            resume(self)

        def end_its_sleep(self: Node) -> None:
            if run._is_asleep(self.name):
                fell_s, _ = run._sleeps[self.name].pop()
                run._sleeps[self.name].append((fell_s, run.world.now))
            kill(self)

        heal, fail = HealScheduler._heal, HealScheduler._fail

        async def heal_and_tell(self: HealScheduler, bookie: BookieId, *arguments: Any) -> None:
            run.judge.on_healing(id(self), bookie)
            await heal(self, bookie, *arguments)

        def fail_and_tell(self: HealScheduler, bookie: BookieId, *arguments: Any) -> None:
            run.judge.on_healing_failed(id(self), bookie)
            fail(self, bookie, *arguments)

        class Logger:
            """Of healings: what is reported to a person as lost."""

            def error(self, _: str, *, bookie: BookieId, ledgers: int, **__: Any) -> None:
                run.judge.on_loss_told(run.world.loop.lane().name, bookie, ledgers)

            info = warning = staticmethod(lambda *_, **__: None)

        change = Steward._change

        async def change_at_last(self: Steward, *arguments: Any) -> None:
            run._on_concluded(run.world.loop.lane().name)
            await asyncio.sleep(_MOMENT_S)
            await change(self, *arguments)

        copy = LedgerRepair._copy

        async def copy_and_tell(self: LedgerRepair, metadata: Any, repair: Any, target: Any) -> Any:
            if repair.bookie != target:
                run._on_copying()
            copied = await copy(self, metadata, repair, target)
            if repair.bookie != target:
                await asyncio.sleep(run._on_copied(target, run.world.loop.lane().name))
            return copied

        return [
            (RecoveryServer, "_keep_running", keep_running),
            (LedgerRepair, "_copy", copy_and_tell),
            (HealScheduler, "_heal", heal_and_tell),
            (HealScheduler, "_fail", fail_and_tell),
            (heal_scheduler, "logger", Logger()),
            (Node, "pause", fall_asleep),
            (Node, "resume", wake),
            (Node, "kill", end_its_sleep),
            (Steward, "_change", change_at_last),
            (drain_steward, "take_census", noting(take_census)),
            (bookie_decommission, "take_census", noting(take_census)),
        ]


_LEDGERS: Final = f"{ROOT}/"
_TOLD: Final = ("/rollbook/", f"{ROOT}/underreplication", f"{ROOT}/available/")
_DEAD_S: Final = 0.3
_NEAR: Final = 3  # Bookies of the first of two racks.
_MOMENT_S: Final = 0.001
_ASLEEP_S: Final = 2.6  # Longer than a session lasts.
_LINGERING_S: Final = 3.0  # A bookie that lost its disk is formatted when its session is over.
_WHEN_COPIED: Final = (
    words.WIPE_TARGET,
    words.KILL_TARGET,
    words.WORKER_SLEEPS,
    words.WRITER_CLOSES,
    words.CALLED_OFF,
)
_STANDING_MIN: Final = 3
_LASTING: Final = (Kind.FAR_APART, Kind.JITTER, Kind.SLOW_DISK, Kind.METADATA_LAG)
_OF_METADATA: Final = (Kind.METADATA_DOWN, Kind.METADATA_LAG)


def _told(metadata: Any) -> str:
    fragments = "; ".join(f"{f.first_entry}: {', '.join(f.ensemble)}" for f in metadata.fragments)
    end = f" at {metadata.last_entry}" if metadata.last_entry is not None else ""
    return f"{metadata.state.value}{end}, {fragments}"
