"""The log service at work: chaos, healing, and the reckoning.

Log servers, the service core behind a simulated door, over the product's ledger client; producers,
writers, readers and an administrator that know nothing of each other; a stranger who fences. While they
do what the case tells them its faults come and go. Then they end: whatever producers have sent is
answered, each log takes appends at every server that is asked, readers catch up, each within a deadline;
servers that are asked to stop come to an end. At last each log is read from head to tail, and every response
about it is compared with that.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from rollbook.ledger.ledgers import Ledgers
from rollbook.logservice import clock_skew, membership, orphan_ledgers
from rollbook.logservice import log_ownership as log_server
from rollbook.logservice.append_path import AppendPath
from rollbook.logservice.core import degraded_ensembles
from rollbook.logservice.core.ledger_list import ListedLogState
from rollbook.logservice.ledger_list_store import LedgerListStore
from rollbook.logservice.log_metadata import LogMetadataStore
from rollbook.logservice.messages import AppendAck
from rollbook.logservice.owner import Owner
from rollbook.logservice.segment_roll import SegmentRoll
from rollbook.proto.cluster.cluster_root import initialise, open_cluster
from rollbook.proto.errors import (
    LogDeleted,
    LogReplaced,
    LogSealed,
    NoSuchLog,
    RollbookError,
)
from tests.simulation.checkers.logs import ListRules, Records
from tests.simulation.kernel.metadata import Mail
from tests.simulation.kernel.world import EPOCH_US, Node
from tests.simulation.nemesis import Nemesis
from tests.simulation.schedule import Case, Fault, Kind, Step
from tests.simulation.worlds import Report
from tests.simulation.worlds.logs import plan, words
from tests.simulation.worlds.logs.servers import LEASE_S, LEDGERS, ROOT, STOP_S, Bookies, Servers
from tests.simulation.worlds.logs.users import Caller, Sums, Users
from tests.simulation.worlds.stage import LIVENESS, Stage
from tests.simulation.worlds.whole_bookies import InnerStep, measured
from tests.support.planting import Patch, planted

CHAOS_S: Final = plan.CHAOS_US[1] / 1e6
CALLBACKS_MAX: Final = 600_000  # Many times what a run takes: more is a loop that runs hot.
LAG_S: Final = LEASE_S + 2 * LEDGERS.add_deadline_s  # A lease, and what an append may take.
LIVENESS_S: Final = 20.0  # A pause after a rude take-over, a few attempts.
LEFTOVERS: Final = "leftovers"
LAST: Final = "last"
PROBE: Final = "probe"
_THIRD_COPY_S: Final = 0.5  # It comes after the ack, and an attempt later if a connection was lost.
_FEW: Final = 3  # Bookies of a case that has few.
_NEW_LEDGERS: Final = 32  # More than are made in so short a time.
DECISIVE: Final = ("open", "roll", "change list")


class LogsScene:
    def __init__(self, patches: Sequence[Patch] = (), drill: str | None = None) -> None:
        """`patches` plant a bug for as long as a case runs; all its cases have `drill`."""
        self._patches = patches
        self._drill = drill

    def case(self, seed: int) -> Case:
        return plan.draw_case(seed, self._drill)

    def run(self, case: Case, *, tell: bool = False) -> Report:
        run = _Run(case, tell)
        with (
            planted(_RESTLESS),
            planted(_watched(run)),
            planted(self._patches),
            planted(measured(run.history, _INNER_STEPS)),
        ):
            return run.report()


# Steps that no user sees, by what takes them.
_INNER_STEPS: Final[tuple[InnerStep, ...]] = (
    (Owner, "_close", "hand over"),
    (SegmentRoll, "_roll", "roll"),
    (LedgerListStore, "change", "change list"),
    (log_server.LogServer, "_open", "open"),
)

# What takes minutes in production takes moments here.
_RESTLESS: Final[tuple[Patch, ...]] = (
    (orphan_ledgers, "YOUNG_MS", 0),
    (degraded_ensembles, "VACANT_S", 0.4),
    (log_server, "_LOOK_S", 0.3),
    (log_server, "_COMPARE_S", 0.3),
    (clock_skew, "_AGAIN_NS", 50_000_000),
    (membership, "_LOOK_AGAIN_S", 2.0),
)


def _watched(run: "_Run") -> list[Patch]:
    """So that the checker hears of each ack in the moment in which an owner decides to give it."""
    tell = AppendPath._tell

    def judged_tell(self: AppendPath, item: Any) -> None:
        waiter, result, _ = item
        if waiter is not None and isinstance(result, AppendAck):
            run.lists.on_ack(run.world.loop.lane().host, result, run.world.now)
        tell(self, item)

    return [(AppendPath, "_tell", judged_tell)]


class _Nemesis(Nemesis):
    def __init__(self, run: "_Run") -> None:
        super().__init__(run.world, run.history, run.tell if run.is_telling else None)
        self._lists = run.lists
        self._stopped: dict[str, float] = {}  # Since when, by name.

    def _inflict(self, fault: Fault) -> Any:
        fault = replace(fault, nodes=tuple(map(self._resolve, fault.nodes)))
        if any(name not in self._world.nodes for name in fault.nodes):
            return None  # A server that a smaller cluster does not have.
        undo = super()._inflict(fault)
        if fault.kind is not Kind.PAUSE or undo is None:
            return undo
        (name,) = fault.nodes
        self._stopped.setdefault(name, self._world.now)

        def resume() -> None:
            began_s = self._stopped.pop(name, self._world.now)
            if self._world.now > began_s + LEASE_S:
                self._lists.on_stalled(name, began_s)
            undo()

        return resume

    def _resolve(self, name: str) -> str:
        """Who owns that log now, as far as its list says."""
        kind, _, log = name.partition("-of-")
        listed = self._lists.log(log).listed if kind == words.OWNER else None
        if listed is None or listed.owner is None:
            return words.SERVERS[0] if kind == words.OWNER else name
        return listed.owner.address.partition(":")[0]


class _Run(Stage):
    def __init__(self, case: Case, is_telling: bool) -> None:
        super().__init__(case, is_telling, callbacks_max=CALLBACKS_MAX, decisive=DECISIVE)
        self.records = Records(self.history, self.broken)
        self._bookies = Bookies(self.world, self.live, plan.bookies_of(case))
        self.lists = ListRules(
            ROOT,
            self.broken,
            self.tell,
            on_head=self.records.on_head,
            copies=self._bookies.copies,
            epoch_us=EPOCH_US,
        )
        self._case = case
        self._logs = plan.logs_of(case)
        mail = Mail()
        self._servers = Servers(
            self.world,
            plan.addresses_of(case),
            mail=mail,
            tell=self.tell,
            live=self.live,
        )
        self._sums = Sums(
            self.world,
            self.history,
            self.records,
            case,
            mail,
            self._servers.names,
            tell=self.tell,
            on_broken=self.broken,
            is_deleted=lambda log: self.lists.log(log).is_deleted,
            may_lag=self._may_lag,
            owed=self._owed,
        )
        self._users = Users(self._sums)
        self._nemesis = _Nemesis(self)
        self._probes = 0

    async def scenario(self) -> None:
        world = self.world
        world.metadata.on_commit = self.lists.on_commit
        await world.node(words.OPERATOR).start(self._make_cluster).result
        if plan.has_few_bookies(self._case):
            world.node(words.REGISTRAR).start(partial(self.live, self._bookies.keep_registered))
        self._servers.start()
        await self.within(LIVENESS_S, self._servers.all_serve, "not all servers serve at first")
        acting = dict.fromkeys(step.actor for step in self._case.steps)
        for name, main in self._users.mains().items():
            if name in acting:
                world.node(name).start(partial(self.live, main))
        if words.STRANGER in acting:
            world.node(words.STRANGER).start(partial(self.live, self._estrange))
        for step in self._case.steps:
            if step.what == words.MISTELL:
                continue  # It has done so from the beginning.
            if step.actor in self._servers.names:
                world.at(step.at_us / 1e6, self._on_server_step, step)
            elif step.actor == words.STORAGE and step.what != words.THREE:
                world.at(step.at_us / 1e6, self._on_storage_step, step)
        self._nemesis.schedule(self._case.faults)
        await asyncio.sleep(CHAOS_S - world.now)

        self.tell("the chaos is over")
        self._nemesis.heal()
        self._sums.is_over.set()
        self._bookies.start_all_again()
        self._servers.start_all_again()
        await self._settle()

    # --- Liveness and the reckoning ---------------------------------------------------------------

    async def _settle(self) -> None:
        world, sums = self.world, self._sums
        await self.within(LIVENESS_S, self._servers.all_serve, "not all servers serve")
        if not plan.clocks_are_believed(self._case):  # The only server that is may be drained.
            await world.node(LAST).start(partial(self.live, self._resume_all)).result
        away = self._besiege() if plan.stands_a_siege(self._case) else None
        await self.within(
            LIVENESS_S, lambda: not any(sums.waiting.values()), "a producer has no answer"
        )
        last = world.node(LAST).start(partial(self.live, self._finish))
        await last.result
        if away is not None:
            self._bookies.come_back(away)
            await self.within(LIVENESS_S, self._all_are_full, "logs stay degraded")
        await world.node(LAST).start(partial(self.live, self._write_whole)).result
        self._servers.is_over = True
        for name in self._servers.names:
            self._servers.stop(name)
        stopped = [world.node(name) for name in self._servers.names]
        await self.within(
            STOP_S, lambda: not any(node.is_running for node in stopped), "a server does not stop"
        )
        for name in words.CLIENTS:
            if name in world.nodes:
                world.node(name).kill()
        for log in self._logs:
            self.records.check(log)

    def _besiege(self) -> str:
        """From here on an ack quorum of bookies is alive, and every log changes hands."""
        away = random.Random(self._case.seed).choice(self._bookies.names)
        self.tell(f"{away} is away")
        self._bookies.leave(away)
        for number, log in enumerate(self._logs):
            names = self._servers.names
            self._servers.take(names[(self._case.seed + number) % len(names)], words.LOGS[log])
        return away

    def _all_are_full(self) -> bool:
        """As far as three bookies go."""
        lists = [self.lists.log(log).listed for log in self._logs]
        return not any(
            listed.unclosed[-1].degraded_to and listed.config.quorum.ensemble <= _FEW
            for listed in lists
            if listed is not None and listed.unclosed and listed.state is ListedLogState.OPEN
        )

    async def _write_whole(self, node: Node) -> None:
        """Every log comes to write as many copies as it wants (LS16): enough bookies take new ledgers."""
        caller = Caller(self._sums, node)
        for log in self._logs:
            due_s = self.world.now + LIVENESS_S
            try:
                while not await self._try_to_write_whole(caller, log):
                    if self.world.now > due_s:
                        self.broken(LIVENESS, f"new records of {log} lack copies")
            except (LogSealed, LogDeleted, LogReplaced, NoSuchLog):
                continue  # It takes no records.
        await caller.close()

    async def _try_to_write_whole(self, caller: Caller, log: str) -> bool:
        self._probes += 1
        ack = await self._use_in_time(
            self._users.append_surely(PROBE, caller, log, self._probes, LIVENESS_S),
            f"{log} takes no append",
        )
        copies = partial(self._bookies.copies, ack.ledger_id, ack.entry_id)
        wanted = self._logs[log].quorum.write
        return await self.holds(_THIRD_COPY_S, lambda: copies() >= wanted)

    async def _finish(self, node: Node) -> None:
        """Every log goes on, wherever it is asked for, and can be read at every server."""
        await self._resume_all(node)
        caller = Caller(self._sums, node)
        for log in self._logs:
            try:
                await self._use(caller, log)
            except (LogDeleted, LogReplaced, NoSuchLog) as error:
                if not self.lists.log(log).is_deleted:
                    self.broken(LIVENESS, f"{log} is not deleted: {error!r}")
            if log in self._sums.second_uids:
                await self._use_in_time(
                    self._users.check_second(caller, log), f"what has the name of {log} is not read"
                )
        if plan.clocks_are_believed(self._case):
            await self.within(
                LIVENESS_S, lambda: not self.lists.leftovers(), "ledgers of nobody are left"
            )
        await caller.close()

    async def _resume_all(self, node: Node) -> None:
        """What was drained takes logs again: the administrator may not have come to that."""
        caller = Caller(self._sums, node)
        for drained in self._servers.names:
            await self._use_in_time(
                self._users.resume(caller, drained), f"{drained} does not take logs again"
            )
        await caller.close()

    async def _use(self, caller: Caller, log: str) -> None:
        for index, server in enumerate(self._servers.names):
            await self._append_there(caller, log, server, index)
        able = [name for name in self._servers.names if plan.must_read(self._case, name)]
        # Before any barrier, which would tell bookies of the last record.
        for server in able if not plan.has_liar(self._case) else ():
            await self._use_in_time(
                self._users.read_range(LAST, caller, log, LIVENESS_S, server),
                f"{log} is not known to be read at {server}",
            )
        for server in able:
            await self._read_there(caller, log, server)
        end = await self._use_in_time(
            self._users.barrier(LAST, caller, log, LIVENESS_S), f"{log} has no tail"
        )
        await self.within(
            LIVENESS_S,
            partial(self._have_read, log, end),
            f"readers do not come to {end} of {log}",
        )

    def _have_read(self, log: str, end: int) -> bool:
        positions = self._sums.positions
        return all(positions[key] >= end for key in positions if key.endswith(f" {log}"))

    async def _append_there(self, caller: Caller, log: str, server: str, index: int) -> None:
        caller.found(log, server)
        try:
            await self._use_in_time(
                self._users.append_surely(LAST, caller, log, index, LIVENESS_S),
                f"{log} takes no append at {server}",
            )
        except LogSealed as error:
            self.records.on_sealed(log, error.ids["tail"])

    async def _read_there(self, caller: Caller, log: str, server: str) -> None:
        await self._use_in_time(
            self._users.read_all(LAST, caller, log, LIVENESS_S, server),
            f"{log} is not read at {server}",
        )

    async def _use_in_time(self, work: Any, what: str) -> Any:
        gone = (LogSealed, LogDeleted, LogReplaced, NoSuchLog)
        return await self.in_time(LIVENESS_S, work, what, passes=gone)

    def _may_lag(self, server: str, log: str) -> bool:
        return self._replaced_s(server, log) is not None

    def _replaced_s(self, server: str, log: str) -> float | None:
        """When that server was replaced as the owner, so lately that nothing had to tell it (SV6)."""
        service = self._servers.find(server)
        owner = service.server.find(words.LOGS[log]) if service is not None else None
        if owner is None:
            return None
        replaced_s = self.lists.log(log).listed_at.get(owner.owner_epoch + 1)
        return (
            replaced_s if replaced_s is not None and self.world.now < replaced_s + LAG_S else None
        )

    def _owed(self, log: str) -> int:
        """How far the log goes for a reader that asks now (RL6); where an owner that was replaced may answer, how far it went
        when it was.
        """
        replaced = [self._replaced_s(server, log) for server in self._servers.names]
        known_s = min((each for each in replaced if each is not None), default=self.world.now)
        return self.records.acked_by(log, known_s)

    def tell_who_waits(self) -> None:
        self.tell(f"waiting: {self._sums.waiting} {self._sums.positions}")

    # --- Those who are no users -------------------------------------------------------------------

    async def _make_cluster(self, node: Node) -> None:
        store = await node.metadata()
        cluster = await initialise(store, ROOT, random.Random(0))
        await self._bookies.start(store)
        nodes = LogMetadataStore(store, cluster, node.clock, node.randomness)
        await nodes.start()
        for log, config in self._logs.items():
            stored = await nodes.create(words.LOGS[log], config)
            self._sums.uids[log] = stored.list.uid.hex()
        await store.close()

    def _on_server_step(self, step: Step) -> None:
        if self._sums.is_over.is_set():
            return
        self.tell(f"{step.actor}: {step.what}")
        verb, *rest = step.what.split()
        if verb == words.STOP:
            self._servers.stop(step.actor)
        elif verb == words.WALK:
            self._servers.walk(step.actor)
        elif verb == words.TAKE:
            self._servers.take(step.actor, words.LOGS[rest[0]])

    def _on_storage_step(self, step: Step) -> None:
        """Bookies take nothing for some ledgers: what is sent there is stuck on its way; or for any."""
        if self._sums.is_over.is_set():
            return
        verb, *rest = step.what.split()
        self.tell(f"bookies: {step.what}")
        end: Callable[[], None]
        if verb in (words.AWAY, words.FORMAT):
            self._bookies.leave(rest[0])
            if verb == words.FORMAT:
                self._bookies.format(rest[0], self.lists.next_ledger_id)
            end = partial(self._bookies.come_back, rest[0])
        elif verb == words.FULL:
            end = self._bookies.be_full()
        elif verb == words.DEAF_TO_NEW:
            new = self.lists.next_ledger_id
            end = self._bookies.ignore(range(new, new + _NEW_LEDGERS))
        else:
            listed = self.lists.log(rest[0]).listed
            end = self._bookies.ignore(
                each.ledger_id for each in (listed.unclosed[-1:] if listed is not None else ())
            )
        disturbance = self.history.disturb(verb, words.STORAGE)

        def over() -> None:
            if not self._sums.is_over.is_set():  # Else all is healed, and who is away now stays so.
                end()
            self.history.on_healed(disturbance)

        self.world.at(self.world.now + int(rest[-1]) / 1000, over)

    async def _estrange(self, node: Node) -> None:
        """Recovers what others write, as another program's repair may."""
        store = await node.metadata()
        cluster = await open_cluster(store, ROOT)
        ledgers = Ledgers(node.transport, store, cluster, node.clock, node.randomness, LEDGERS)
        await ledgers.start()
        nodes = LogMetadataStore(store, cluster, node.clock, node.randomness)
        for step in self._case.steps:
            if step.actor != words.STRANGER:
                continue
            await asyncio.sleep(max(0.0, step.at_us / 1e6 - self.world.now))
            try:
                stored = await nodes.read(words.LOGS[step.what.split()[1]])
                for segment in stored.list.unclosed[-1:]:
                    self.tell(f"{node.name} recovers ledger {segment.ledger_id}")
                    await (await ledgers.open_recover(segment.ledger_id)).close()
            except RollbookError as error:
                self.tell(f"{node.name}: {error!r}")
        await ledgers.close()
        await store.close()
