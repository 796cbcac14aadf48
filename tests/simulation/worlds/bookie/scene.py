"""Two whole bookies, their clients and what goes wrong: chaos, healing, a power cut, the reckoning.

A bookie is what `rollbook server bookie` runs, `Bookie.open` on the ports of its node: identity,
registration, storage, server, garbage collection, compaction, scrub. Ledgers live on one bookie each as
far as the clients are concerned, so whatever a bookie says is judged by itself.

While clients do what the case tells them, its faults come and go. Then they end: within a deadline the
bookies serve and are registered, every request to a bookie that lived on has its answer, and
what the bookies held for clients is given back. At last all machines lose power and come back, and
everything that was ever written is asked for.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from rollbook.bookie import bookie as bookie_module
from rollbook.bookie import catalog_files as catalog_module
from rollbook.bookie import disk_maintenance as space_module
from rollbook.bookie.bookie import Bookie, Settings
from rollbook.bookie.catalog_files import CatalogFiles
from rollbook.bookie.checkpoint import Checkpointer
from rollbook.bookie.compaction import Compactor
from rollbook.bookie.config import BookieConfig, SpaceConfig
from rollbook.bookie.core import catalog as core_catalog
from rollbook.bookie.core import equal_length_slices
from rollbook.bookie.identity import Identity
from rollbook.bookie.ledger_gc import Garbage
from rollbook.bookie.scrub import Scrubber
from rollbook.proto.cluster.cluster_root import initialise, open_cluster
from rollbook.proto.cluster.ledger_ids import LedgerIds
from rollbook.proto.cluster.ledger_nodes import LedgerNodes
from rollbook.proto.cluster.registration import BookieRegistration
from rollbook.proto.errors import (
    Missing,
    RollbookError,
    WrongBookie,
)
from rollbook.proto.formats.layout import Layout
from rollbook.proto.formats.paths import AVAILABLE, READ_ONLY
from rollbook.proto.ids import BookieId, EntryId, LedgerId
from rollbook.proto.metadata import Fragment, LedgerMetadata
from rollbook.proto.quorum import Quorum
from rollbook.proto.wire.digest import DigestType
from tests.simulation.checkers.bookie import BookieChecker
from tests.simulation.kernel.disk import SimulatedDisk
from tests.simulation.kernel.world import Node
from tests.simulation.nemesis import Nemesis
from tests.simulation.schedule import EVERYTHING, Case, Fault, Focus, Kind
from tests.simulation.worlds import Report
from tests.simulation.worlds.bookie.client import PORT, Client, Sums
from tests.simulation.worlds.bookie.moves import Mover
from tests.simulation.worlds.bookie.plan import (
    BOOKIES,
    CHAOS_US,
    CLIENTS,
    LEDGERS,
    OPERATOR,
    REPAIRER,
    TWIN,
    draw_case,
)
from tests.simulation.worlds.bookie.registrations import RegistrationChecker
from tests.simulation.worlds.stage import LIVENESS, Stage
from tests.simulation.worlds.whole_bookies import (
    NEVER_AT_START,
    SMALL_SERVER,
    SMALL_STORAGE,
    InnerStep,
    measured,
)
from tests.support.planting import Patch, planted

ROOT: Final = "/ledgers"
SESSION_S: Final = 2.0
PEACE_S: Final = CHAOS_US[0] / 1e6
CHAOS_S: Final = CHAOS_US[1] / 1e6
LIVENESS_S: Final = 12.0  # A session that runs out, a cut that TCP notices late, a few restarts.
RESTART_S: Final = 0.2  # After a bookie has stopped by itself.
AUDITOR: Final = "auditor"

START: Final = "start"
MEMORY: Final = "memory"
TWINS: Final = "twins"

STORAGE: Final = replace(
    SMALL_STORAGE,
    ledger_dirs=("/bookie/ledgers1", "/bookie/ledgers2"),
    idle_after_ms=50,
    alone_after_chunks=1,  # Else nobody ever would be.
)
SPACE: Final = SpaceConfig(
    gc_interval_s=0.3,
    gc_quarantine_s=0.2,
    surplus_interval_s=1.0,
    minor_compaction_interval_s=1.0,
    major_compaction_interval_s=2.0,
    scrub_interval_s=1.5,
    disk_check_interval_s=0.2,
    reserve_bytes=4096,
)


class BookieScene:
    def __init__(self, patches: Sequence[Patch] = (), focus: Focus = EVERYTHING) -> None:
        """`patches` plant a bug for as long as a case runs; `focus`: what its cases are about."""
        self._patches, self._focus = patches, focus

    def case(self, seed: int) -> Case:
        return draw_case(seed, self._focus)

    def run(self, case: Case, *, tell: bool = False) -> Report:
        run = _Run(case, tell)
        with (
            planted(_RESTLESS),
            planted(self._patches),
            planted(measured(run.history, _INNER_STEPS)),
        ):
            return run.report()


# Steps that no client sees, by what takes them.
_INNER_STEPS: Final[tuple[InnerStep, ...]] = (
    (Checkpointer, "checkpoint", "checkpoint"),
    (CatalogFiles, "_begin_anew", "catalog anew"),
    (BookieRegistration, "_establish", "register"),
    (Garbage, "_delete", "collect"),
    (Compactor, "_rewrite", "compact"),
    (Compactor, "_remove_empty", "remove"),
    (Scrubber, "scrub", "scrub"),
    (equal_length_slices, "_cut_of", "cut evenly"),
)
# What takes minutes takes moments, and what is done in one go takes turns.
_RESTLESS: Final[tuple[Patch, ...]] = (
    (bookie_module, "_COUNT_AGAIN_S", 0.1),
    (space_module, "_TICK_S", 0.2),
    (space_module, "_SHORT_S", 1.0),
    (space_module, "_RETRY_S", 1.0),
    (catalog_module, "_STEP_BYTES", 4096),
    (catalog_module, "_ANEW_BYTES", 16 * 1024),
    (core_catalog, "_STEP_BYTES", 64),
)


class _Nemesis(Nemesis):
    """Rots where something is proven durable: what rots in a journal's last group before a crash is
    taken for torn, as `bookie/DESIGN.md` says.
    """

    def __init__(self, run: "_Run") -> None:
        super().__init__(run.world, run.history, run.tell if run.is_telling else None)
        self._run = run

    def _inflict(self, fault: Fault) -> Any:
        if fault.kind in (Kind.ROT, Kind.READ_ERROR):
            self._run.checker.on_damaged(fault.nodes[0])
        if fault.kind is Kind.ROLLBACK:
            return self._run.roll_back(super()._inflict(fault), fault.nodes[0])
        if fault.kind is Kind.DISK_FULL:
            node = self._world.node(fault.nodes[0])
            return self._set([node.disk], capacity_bytes=node.disk.system.used_bytes)
        return super()._inflict(fault)

    def _in_some_file(self, node: Node, damage: Callable[[SimulatedDisk, str], int]) -> None:
        logs = [path for path in _files(node.disk) if path.endswith(".log")]
        if logs:
            damage(node.disk, self._chance.choice(logs))


def _files(disk: SimulatedDisk) -> Iterator[str]:
    for folder in (STORAGE.journal_dir, *STORAGE.ledger_dirs):
        if disk.system.find(folder) is not None:
            for name in disk.system.list_directory(folder):
                yield f"{folder}/{name}"


class _Run(Stage):
    def __init__(self, case: Case, is_telling: bool) -> None:
        super().__init__(case, is_telling)
        self.checker = BookieChecker(self.broken)
        self._case = case
        self._serving: dict[str, Bookie] = {}
        self._rolled_back: dict[str, None] = {}  # And not yet in service again.
        self._is_peaceful = False
        self._mover: Mover | None = None
        self._nemesis = _Nemesis(self)
        self._sums = Sums(
            self.checker,
            self.history,
            self.world.random("clients"),
            self.broken,
            process_of=self._process_of,
        )
        self._registrations = RegistrationChecker(ROOT, self._lives, self.broken)
        for name in BOOKIES:
            self._registrations.watch(name)

    async def scenario(self) -> None:
        world = self.world
        await world.node(OPERATOR).start(self._make_cluster).result
        world.metadata.on_commit = self._registrations.on_commit
        for number, name in enumerate(BOOKIES):
            world.node(name).disk.quick_odds = 0.8 * (number % 2)  # Every second disk.
            world.node(name).start(self._keep)
        for name in CLIENTS:
            world.at(PEACE_S - 0.05, world.node(name).start, self._work)
        world.at(PEACE_S - 0.05, world.node(OPERATOR).start, self._operate)
        world.at(PEACE_S - 0.05, world.node(REPAIRER).start, self._move_ledgers)
        for step in self._case.steps:
            if step.actor == TWIN:
                world.at(step.at_us / 1e6, self._start_twin)
        self._nemesis.schedule(self._case.faults)
        await asyncio.sleep(CHAOS_S - world.now)

        self.tell("the chaos is over")
        self._nemesis.heal()
        self._is_peaceful = True
        for name in BOOKIES:
            self._start_again(world.node(name))
        await self._settle()

        await world.node(AUDITOR).start(self._audit_deleted).result
        self.tell("the whole cluster loses power")
        for name in BOOKIES:
            world.node(name).power_cut()
        self._serving.clear()
        for name in BOOKIES:
            world.node(name).restart()
        await self.within(LIVENESS_S, lambda: len(self._serving) == len(BOOKIES), "not all serve")
        await world.node(AUDITOR).start(self._audit).result

    async def _settle(self) -> None:
        world = self.world
        await self.within(LIVENESS_S, self._all_registered, "not all bookies are registered")
        await self.within(LIVENESS_S, self._all_answered, "somebody has no answer")
        await self.within(LIVENESS_S, self._all_collected, "a deleted ledger is still there")
        world.node(REPAIRER).kill()
        for name in CLIENTS:
            world.node(name).kill()
        await self.within(LIVENESS_S, self._all_dropped, "a copy that is surplus is still there")
        await self.within(LIVENESS_S, self._nothing_held, "bookies hold what nobody waits for")

    def roll_back(
        self, undo: Callable[[], object] | None, name: str
    ) -> Callable[[], object] | None:
        if undo is None:
            return None

        def replace_and_note() -> None:
            self._rolled_back[name] = None
            self.checker.on_put_back(name)
            undo()

        return replace_and_note

    def _all_registered(self) -> bool:
        tree = self.world.metadata.tree
        return len(self._serving) == len(BOOKIES) and all(
            any(tree.get(f"{ROOT}/{folder}/{name}") for folder in (AVAILABLE, READ_ONLY))
            for name in BOOKIES
        )

    def _all_answered(self) -> bool:
        """By bookies that have lived since they were asked; of others nobody need hear any more."""
        return not any(waiting.is_due(self._process_of) for waiting in self._sums.unanswered)

    def _all_collected(self) -> bool:
        """Of bookies that hold something; others may have heard of it, and need not let it go."""
        return len(self._serving) == len(BOOKIES) and all(
            bookie.storage.catalog.is_deleted(ledger_id) or not bookie.storage.knows(ledger_id)
            for name, bookie in self._serving.items()
            for ledger_id in LEDGERS
            if self.checker.is_doomed(ledger_id) and self.checker.has_acked(name, ledger_id)
        )

    def _all_dropped(self) -> bool:
        """Of ledgers that were moved away and stay away; doubts have to be healed first."""
        return all(
            not bookie.storage.holds_entries_of(ledger_id)
            for name, bookie in self._serving.items()
            for ledger_id in LEDGERS
            if self._mover and (name, ledger_id) in self._mover.gone
            if not bookie.storage.catalog.doubts
        )

    def _nothing_held(self) -> bool:
        return not any(bookie.stats.buffered_bytes() for bookie in self._serving.values())

    def tell_who_waits(self) -> None:
        for waiting in self._sums.unanswered:
            self.tell(f"waiting: {waiting}")

    def _process_of(self, name: str) -> int:
        """The number of the one that runs there; -1 for none."""
        node = self.world.node(name)
        return node.process.number if node.process is not None and node.is_running else -1

    def _lives(self, session: int) -> bool:
        """The process that opened it."""
        name = self.world.metadata.openers[session]
        process = self.world.node(name.partition("#")[0]).process
        return process is not None and process.is_alive and process.lane.name == name

    # --- Bookies ------------------------------------------------------------------------------

    async def _keep(self, node: Node) -> None:
        """One life of a bookie's process."""
        starting = self.history.call("start")
        error: BaseException | None = None
        bookie: Bookie | None = None
        try:
            store = await node.metadata(session_timeout_s=SESSION_S, operation_timeout_s=1.0)
            bookie = await Bookie.open(node, store, _settings(node.name))
            self.history.on_answered(starting)
            self.tell(f"{node.name} serves")
            self._serving[node.name] = bookie
            self._rolled_back.pop(node.name, None)
            error = await self._serve(bookie)
        except WrongBookie as refusal:
            error = refusal
            if node.name in self._rolled_back:
                error = await self._write_off(node)
        except (RollbookError, OSError) as failure:
            error = failure
        if isinstance(error, NEVER_AT_START) and bookie is None:
            self.broken(START, f"{node.name} does not start: {error!r}")
        self.tell(f"{node.name} stops: {error!r}")
        self._serving.pop(node.name, None)
        if bookie is not None:
            await bookie.close()
        self.world.at(self.world.now + RESTART_S, self._start_again, node)

    async def _write_off(self, node: Node) -> BaseException | None:
        """What an operator does who reads why the bookie does not start."""
        self.tell(f"{node.name} is as it was before, and is told to go on")
        self.checker.on_rolled_back(node.name)
        try:
            store = await node.metadata(session_timeout_s=SESSION_S, operation_timeout_s=1.0)
            cluster = await open_cluster(store, ROOT)
            identity = Identity(
                node.disk, STORAGE, node.randomness, store, cluster, BookieId(node.name)
            )
            await identity.write_off(node.clock)
            await store.close()
        except (RollbookError, OSError) as failure:
            return failure
        return None

    async def _serve(self, bookie: Bookie) -> BaseException:
        """Registers it, and returns what ends it."""
        watching = asyncio.ensure_future(self._watch_memory(bookie))
        failed = asyncio.ensure_future(bookie.failed())
        try:
            await bookie.register()
            failed.cancel()
            return await bookie.failed()
        finally:
            watching.cancel()
            failed.cancel()

    async def _watch_memory(self, bookie: Bookie) -> None:
        while True:
            await asyncio.sleep(0.02)
            connections = bookie.stats.connections()
            bound = SMALL_SERVER.held_bytes_max + connections * SMALL_SERVER.connection_bytes_floor
            # One answer may be under way to each.
            slack = SMALL_SERVER.frame_bytes_max * (connections + 1)
            if (held := bookie.stats.buffered_bytes()) > bound + slack:
                self.broken(MEMORY, f"{bookie.bookie_id} holds {held} bytes for {connections}")

    def _start_again(self, node: Node) -> None:
        if not node.is_running and (self._is_peaceful or node.is_up):
            node.restart()

    # --- The twin -----------------------------------------------------------------------------

    def _start_twin(self) -> None:
        self.world.node(TWIN).start(self._be_the_other)

    async def _be_the_other(self, node: Node) -> None:
        """An empty machine under the id of a bookie that exists: it must be turned away."""
        try:
            store = await node.metadata(session_timeout_s=SESSION_S, operation_timeout_s=1.0)
            bookie = await Bookie.open(node, store, _settings(BOOKIES[0], host=TWIN))
        except (RollbookError, OSError) as error:
            self.tell(f"the twin is turned away: {error!r}")
            return
        self.broken(TWINS, f"{bookie.bookie_id} is served by two machines")

    # --- Clients ------------------------------------------------------------------------------

    async def _make_cluster(self, node: Node) -> None:
        store = await node.metadata()
        cluster = await initialise(store, ROOT, node.randomness)
        await LedgerIds(store, ROOT).skip()  # The ids of this world's ledgers were all given out.
        ledgers = LedgerNodes(store, ROOT, cluster.layout)
        for ledger_id in LEDGERS:
            await ledgers.create(_metadata(ledger_id))
        await store.close()

    async def _operate(self, node: Node) -> None:
        """Deletes what the case says; tries until it is done."""
        for step in self._case.steps:
            if step.actor != OPERATOR:
                continue
            await asyncio.sleep(max(0.0, step.at_us / 1e6 - self.world.now))
            ledger_id = int(step.what.split()[1])
            self.tell(f"operator: {step.what}")
            self.checker.on_doomed(ledger_id)
            while True:
                try:
                    store = await node.metadata()
                    await LedgerNodes(store, ROOT, Layout.HIERARCHICAL).delete(LedgerId(ledger_id))
                    await store.close()
                    break
                except Missing:
                    break
                except RollbookError:
                    await asyncio.sleep(0.2)

    async def _move_ledgers(self, node: Node) -> None:
        self._mover = mover = Mover(
            node,
            Client(node.name, node.transport, self._sums),
            self.checker,
            self.world.random("moves"),
            root=ROOT,
            session_s=SESSION_S,
            unlocked_s_max=SPACE.surplus_interval_s * 0.8,
        )
        for step in self._case.steps:
            if step.actor == REPAIRER:
                await asyncio.sleep(max(0.0, step.at_us / 1e6 - self.world.now))
                self.tell(f"repairer: {step.what}")
                await mover.do(step.what)

    async def _work(self, node: Node) -> None:
        client = Client(node.name, node.transport, self._sums)
        doing: dict[asyncio.Task[None], None] = {}
        for step in self._case.steps:
            if step.actor != node.name or step.at_us / 1e6 < self.world.now - 0.001:
                continue  # Somebody else's, or of an earlier life.
            await asyncio.sleep(step.at_us / 1e6 - self.world.now)
            self.tell(f"{node.name}: {step.what}")
            task = asyncio.ensure_future(client.do(step.what))
            doing[task] = None
            task.add_done_callback(lambda task: (doing.pop(task), task.result()))
        await asyncio.Event().wait()  # Until it is killed: answers may still come.

    async def _audit_deleted(self, node: Node) -> None:
        """Before a restart: replaying a deletion would repair it."""
        await self._ask_for(node, [each for each in LEDGERS if self.checker.is_doomed(each)])

    async def _audit(self, node: Node) -> None:
        await self._ask_for(node, LEDGERS)

    async def _ask_for(self, node: Node, ledger_ids: Sequence[int]) -> None:
        client = Client(node.name, node.transport, self._sums)
        for bookie in BOOKIES:
            for ledger_id in ledger_ids:
                deadline = self.world.now + LIVENESS_S
                while not await client.audit(bookie, ledger_id):
                    if self.world.now > deadline:
                        self.broken(LIVENESS, f"{bookie} does not answer the auditor")
                    await asyncio.sleep(0.1)
        client.close()


def _settings(name: str, host: str | None = None) -> Settings:
    return Settings(
        BookieConfig(
            metadata=f"zk://metadata{ROOT}",
            bookie_id=name,
            listen=f"{host or name}:{PORT}",
            insecure=True,
            session_timeout_s=SESSION_S,
            drain_s=0.5,
        ),
        STORAGE,
        SMALL_SERVER,
        SPACE,
    )


def _metadata(ledger_id: int) -> LedgerMetadata:
    return LedgerMetadata(
        LedgerId(ledger_id),
        Quorum(2, 2, 1),
        (Fragment(EntryId(0), tuple(map(BookieId, BOOKIES))),),
        digest_type=DigestType.CRC32C,
        password=b"secret",
        created_ms=0,
        creation_token=ledger_id,
    )
