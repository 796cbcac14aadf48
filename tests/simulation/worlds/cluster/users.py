"""Who works on the cluster, each a process of its own: writers, recovery servers, an operator.

A writer fills ledgers and closes them, and holds others open, idle for most of the time, as an owner of
many logs does. A recovery server is the product's, with all its parts. The operator drains bookies, calls
that off, takes those away that may go.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from rollbook.ledger.config import ClientConfig
from rollbook.ledger.ledgers import Ledgers
from rollbook.ledger.writer import LedgerWriter
from rollbook.proto.cluster.bookie_lifecycle_nodes import LifecycleNodes
from rollbook.proto.cluster.cluster_root import open_cluster
from rollbook.proto.cluster.underreplication_marks import Marks
from rollbook.proto.errors import RollbookError
from rollbook.proto.formats.lifecycle import LifecycleState
from rollbook.proto.formats.paths import own_root
from rollbook.proto.formats.replication import VOTE_PREFIX, pack_vote
from rollbook.proto.ids import FIRST_ENTRY, NO_ENTRY, BookieId, LedgerId
from rollbook.proto.ports import Clock, CreateMode, MetadataStore
from rollbook.proto.tasks import TaskGroup
from rollbook.proto.wire.digest import DigestType, Entry, LedgerDigest, ledger_key
from rollbook.recovery.autorecovery import (
    ProcessIdentity,
    RecoveryConfig,
    RecoveryPorts,
    RecoveryServer,
)
from rollbook.recovery.bookie_decommission import Departures
from rollbook.recovery.config import AuditConfig, HealConfig, StewardConfig, WorkerConfig
from rollbook.recovery.drain_task_nodes import STEWARD
from rollbook.recovery.known_incarnations import WholeNodes
from rollbook.recovery.recovery_adds import Restorer
from rollbook.recovery.recovery_orders import AuditOrders
from tests.simulation.checkers.cluster import ClusterChecker, HeldLedger
from tests.simulation.history import NEVER
from tests.simulation.kernel.world import Main, Node
from tests.simulation.schedule import Step
from tests.simulation.worlds.cluster import words
from tests.simulation.worlds.ledger import users
from tests.simulation.worlds.ledger.bookies import ROOT
from tests.simulation.worlds.ledger.users import PASSWORD, Sums, Users

DELAY_S: Final = 2
GRACE_S: Final = 4.0
RETRY_PAUSE_S: Final = 1.0
_PAUSE_S: Final = 0.1
_LOOK_S: Final = 0.2
_DOUBTS_MAX: Final = 100
_STEP_S: Final = 8.0  # A step that takes longer is given up, for what comes next.

CONFIG: Final = RecoveryConfig(
    audit=AuditConfig(lost_bookie_delay_s=DELAY_S, bookie_check_s=0, marks_at_once=4),
    worker=WorkerConfig(
        bytes_per_s_max=256 * 1024,
        bytes_in_memory_max=16 * 1024,
        ledgers_at_once=4,
        grace_s=GRACE_S,
        look_again_s=5.0,
        locked_pause_s=0.5,
        retry_pause_s=RETRY_PAUSE_S,
        settle_s=0.05,
    ),
    steward=StewardConfig(tasks_max=4, look_again_s=1.0),
    heal=HealConfig(look_again_s=0.5, grace_s=GRACE_S, retry_pause_s=RETRY_PAUSE_S),
)


@dataclass
class Work:
    """What the processes of a run share, and what others may ask of it."""

    sums: Sums
    judge: ClusterChecker
    resolve: Callable[[str], str]  # Who `member-1` is.
    may_lose: Callable[[str], bool]  # Whether this bookie may lose some of its copies.
    stop_for_good: Callable[[str], bool]  # A bookie that may go; False: too few others are left.
    held: dict[str, dict[LedgerId, LedgerWriter]] = field(default_factory=dict)  # By writer.
    made: dict[str, dict[LedgerId, None]] = field(default_factory=dict)
    servers: dict[str, RecoveryServer] = field(default_factory=dict)
    is_healing: bool = False  # Recovery servers ask bookies what they doubt.
    is_over: bool = False  # The chaos.


class Staff(Users):
    def __init__(self, work: Work) -> None:
        super().__init__(work.sums)
        self.work = work
        self.call_off = asyncio.Event()  # Set when the operator is to call the first drain off.
        self.to_forget: asyncio.Queue[str] = asyncio.Queue()  # Bookies whose loss nobody is to see.
        self._closing: list[asyncio.Task[None]] = []

    def mains(self) -> dict[str, Main]:
        return {
            **dict.fromkeys(words.WRITERS, self.write),
            **dict.fromkeys(words.RECOVERIES, self.recover_all),
            words.OPERATOR: self.operate,
        }

    # --- Writers ------------------------------------------------------------------------------

    async def write(self, node: Node) -> None:
        self.forget(node.name)
        held = self.work.held[node.name] = {}
        async with self.client(node) as ledgers:
            async for step in self._steps(node):
                try:
                    async with asyncio.timeout(_STEP_S):
                        await self._do(node, ledgers, step, held)
                except (RollbookError, TimeoutError) as error:
                    self._sums.tell(f"{node.name}: {error!r}")
            await asyncio.Event().wait()  # Until it is killed: answers may still come.

    async def _do(
        self, node: Node, ledgers: Ledgers, step: Step, held: dict[LedgerId, LedgerWriter]
    ) -> None:
        verb, *rest = step.what.split()
        numbers = [int(each) for each in rest]
        if verb in (words.FILL, words.HOLD):
            how_many, count, size, *quorum = numbers
            for _ in range(how_many):
                writer = await self._make(ledgers, quorum)
                self.work.made.setdefault(node.name, {})[writer.ledger_id] = None
                if verb == words.HOLD:
                    held[writer.ledger_id] = writer
                    self.work.judge.writers[writer.ledger_id] = HeldLedger(
                        node.name, partial(getattr, writer, "is_stopped")
                    )
                for _ in range(count):
                    await self.append(writer, size)
                await (writer.close() if verb == words.FILL else writer.flush())
            return
        if not held:
            return
        ledger_id, writer = list(held.items())[numbers[0] % len(held)]
        if verb == words.APPEND:
            for _ in range(numbers[1]):
                await self.append(writer, 24)
        elif verb == words.CLOSE:
            del held[ledger_id]
            self.work.judge.writers.pop(ledger_id, None)
            await self._timed("close", writer.close())

    async def _make(self, ledgers: Ledgers, quorum: list[int]) -> LedgerWriter:
        ensemble, write, ack = quorum
        call = self._history.call("create")
        writer = await ledgers.create(
            ensemble=ensemble,
            write=write,
            ack=ack,
            digest=DigestType.CRC32C,
            password=PASSWORD,
        )
        self._history.on_answered(call)
        self._sums.ledgers.append(writer.ledger_id)
        return writer

    def forget(self, name: str) -> None:
        """The process of this writer is gone: nobody writes what it held."""
        for ledger_id in self.work.held.pop(name, {}):
            self.work.judge.writers.pop(ledger_id, None)
        made = self.work.made.pop(name, {})
        for (ledger_id, _), append in self._sums.appends.items():
            if ledger_id in made and append.returned == NEVER:
                self._history.on_unknown(append, "its process was killed")

    def close_first(self) -> None:
        """The first ledger that some writer holds is closed by it now."""
        for name, held in self.work.held.items():
            for ledger_id in list(held)[:1]:
                writer = held.pop(ledger_id)
                self.work.judge.writers.pop(ledger_id, None)
                node = self._world.node(name)
                task = self._world.loop.create_task(
                    self._close(writer), context=node.context.copy()
                )
                self._closing.append(task)
                return

    async def _close(self, writer: LedgerWriter) -> None:
        try:
            await writer.close()
        except RollbookError as error:
            self._sums.tell(f"closing ledger {writer.ledger_id} fails: {error!r}")

    async def append_to_all(self, name: str) -> None:
        """Every ledger that the writer holds takes one more entry: nobody has fenced it."""
        for ledger_id, writer in self.work.held.get(name, {}).items():
            if writer.failure is None:
                self._sums.tell(f"{name} appends to ledger {ledger_id} in peace")
                await self.append(writer, 24)

    # --- Recovery -----------------------------------------------------------------------------

    def _config(self, node: Node) -> ClientConfig:
        """Writers know of no racks."""
        config = super()._config(node)
        if node.name not in words.RECOVERIES:
            return config
        racks = (f"{bookie}={rack}" for bookie, rack in self.work.judge.racks.items())
        return replace(config, racks=tuple(racks))

    async def recover_all(self, node: Node) -> None:
        async with self._connection(node) as (ledgers, store):
            server = RecoveryServer(
                ledgers,
                store,
                node.clock,
                node.randomness,
                CONFIG,
                ProcessIdentity(BookieId(node.name)),
                RecoveryPorts(self._sums.doubts_of if self.work.is_healing else None),
            )
            self.work.servers[node.name] = server
            await server.run()

    @asynccontextmanager
    async def _connection(self, node: Node) -> AsyncIterator[tuple[Ledgers, MetadataStore]]:
        while True:
            try:
                store = await node.metadata(
                    session_timeout_s=users.SESSION_S, operation_timeout_s=1.0
                )
                break
            except RollbookError:
                await asyncio.sleep(_PAUSE_S)
        ledgers = await self._connected(node, store)
        try:
            yield ledgers, store
        finally:
            await ledgers.close()
            await store.close()

    # --- The operator -------------------------------------------------------------------------

    async def operate(self, node: Node) -> None:
        async with self._connection(node) as (ledgers, store):
            desk = await Desk.open(node, store, ledgers)
            async with TaskGroup() as group:
                group.create_task(self._call_off(desk))
                group.create_task(self._forget_whole(desk))
                async for step in self._steps(node):  # None of them waits for another.
                    group.create_task(self._act(desk, step.what))
                await asyncio.Event().wait()

    async def _call_off(self, desk: "Desk") -> None:
        await self.call_off.wait()
        for stored in await desk.lifecycles.list():
            await self._act(desk, f"{words.UNDRAIN} {stored.bookie}")

    async def _forget_whole(self, desk: "Desk") -> None:
        while True:
            bookie = await self.to_forget.get()
            await desk.store.delete(desk.whole.path(BookieId(bookie)))

    async def _act(self, desk: "Desk", what: str, *, is_forced: bool = False) -> None:
        verb, *rest = what.split()
        bookies = [BookieId(self.work.resolve(each)) for each in rest]
        try:
            match verb:
                case words.DRAIN:
                    await desk.departures.drain(bookies, is_forced=is_forced)
                case words.FORCE:
                    await desk.departures.drain(bookies, is_forced=True)
                case words.UNDRAIN:
                    await desk.departures.undrain(bookies[0])
                case words.RETIRE:
                    await self._retire(desk, bookies[0])
                case words.SAFE:
                    await self._is_safe(desk, bookies[0])
                case words.DISABLE:
                    await desk.marks.disable()
                case words.ENABLE:
                    await desk.marks.enable()
                case words.ORPHAN:
                    await desk.leave_votes()
                case words.SPOIL:
                    await self._spoil(desk, bookies[0])
                case words.CHECK:
                    now_ms = desk.clock.wall_us() // 1000
                    self.work.judge.on_checks_asked()
                    await desk.orders.ask_for_checks(now_ms, f"{now_ms:032x}")
                    self.work.judge.on_checks_ordered()
                case words.AUDIT:
                    await desk.marks.set_delay(DELAY_S)
        except RollbookError as error:
            self._sums.tell(f"operator: {what}: {error!r}")

    async def _retire(self, desk: "Desk", bookie: BookieId) -> None:
        """The bookie is drained; when it may go it is gone, with its disk, unless others were lost meanwhile."""
        await desk.departures.drain([bookie])
        while not self.work.is_over:
            await asyncio.sleep(_LOOK_S)
            try:
                found = (await desk.departures.status([bookie]))[bookie]
                if found.lifecycle.state is LifecycleState.ACTIVE:
                    return  # Called off.
                if found.lifecycle.state is not LifecycleState.DRAINED:
                    continue
                if await self._is_safe(desk, bookie):
                    break
            except RollbookError as error:
                self._sums.tell(f"operator: {error!r}")
        else:
            return
        if not self.work.stop_for_good(bookie):
            await desk.departures.undrain(bookie)
            return
        while True:
            try:
                await desk.departures.remove([bookie])
                return
            except RollbookError as error:  # Its session has not ended yet, perhaps.
                self._sums.tell(f"operator: {error!r}")
                await asyncio.sleep(_LOOK_S)

    async def _spoil(self, desk: "Desk", bookie: BookieId) -> None:
        """It takes bytes that fail the digest of their writer, for the first entry: it cannot know."""
        ledger_id = self._sums.ledgers[0]
        if not self.work.may_lose(bookie):
            return
        while not self.work.is_over:
            self.work.judge.on_spoiled(bookie, ledger_id, FIRST_ENTRY)
            wrong = LedgerDigest(DigestType.CRC32, PASSWORD, ledger_id)
            restorer = Restorer(
                bookie, wrong, ledger_key(PASSWORD), desk.ledgers.bookies, desk.ledgers.config
            )
            try:
                entry = Entry(ledger_id, FIRST_ENTRY, NO_ENTRY, 100, b"x" * 100)
                await restorer.put([entry], 0)
                await restorer.flush()
                return
            except RollbookError as error:
                self._sums.tell(f"operator: {error!r}")
                await asyncio.sleep(_LOOK_S)
            finally:
                restorer.close()

    async def _is_safe(self, desk: "Desk", bookie: BookieId) -> bool:
        asked_s = self._world.now
        verdict = await desk.departures.judge([bookie])
        if verdict.is_safe:
            self.work.judge.on_safe(verdict.bookies, asked_s)
        self._sums.tell(f"{bookie} may {'go' if verdict.is_safe else 'not go'}")
        return verdict.is_safe

    async def set_right(self, node: Node) -> None:
        """What people did is undone or brought to its end: a drain that failed is tried once more, then called off, as
        are all others while copies wait for a bookie to go to.
        """
        async with self._connection(node) as (ledgers, store):
            desk = await Desk.open(node, store, ledgers)
            await desk.marks.enable()
            if self.work.judge.needs_checks:
                await self._act(desk, words.CHECK)
            tried: dict[BookieId, None] = {}
            while True:
                for stored in await desk.lifecycles.list():
                    if stored.lifecycle.state is LifecycleState.DRAINING_FAILED:
                        again = words.DRAIN if stored.bookie not in tried else words.UNDRAIN
                        tried[stored.bookie] = None
                        await self._act(desk, f"{again} {stored.bookie}", is_forced=True)
                    elif self.work.judge.without_target:
                        await self._act(desk, f"{words.UNDRAIN} {stored.bookie}")
                await asyncio.sleep(_LOOK_S)

    async def close_everything(self, node: Node) -> None:
        async with self.client(node) as ledgers:
            for ledger_id in list(self._sums.ledgers):
                if not self._checker.facts.ledger(ledger_id).is_doomed:
                    await self.close_for_good(ledgers, ledger_id)

    async def await_certainty(self, _: Node) -> None:
        """No bookie doubts anything any more (DH1), but entries that have no copy (DH4)."""
        judge = self.work.judge
        for bookie in list(judge.writable):
            while (doubts := self._sums.doubts_of(bookie)) is not None:
                page = await doubts.page(-1, _DOUBTS_MAX)
                if not page.everything and judge.is_given_up_of(bookie, page.ledgers):
                    break
                await asyncio.sleep(_LOOK_S)

    async def read_everything(self, node: Node) -> None:
        async with self.client(node) as ledgers:
            for ledger_id in self._sums.ledgers:
                if self._checker.facts.ledger(ledger_id).is_doomed:
                    continue
                last = await self.close_for_good(ledgers, ledger_id)
                await self.read_for_sure(ledgers, ledger_id, last)


@dataclass(frozen=True)
class Desk:
    """What an operator's commands go through."""

    departures: Departures
    lifecycles: LifecycleNodes
    marks: Marks
    store: MetadataStore
    clock: Clock
    whole: WholeNodes
    orders: AuditOrders
    ledgers: Ledgers

    async def leave_votes(self) -> None:
        """Of no session, as a backup that was put back leaves them."""
        for folder in (self.marks.election_folder, f"{own_root(ROOT)}/{STEWARD}"):
            vote = pack_vote(BookieId("nobody"))
            path = f"{folder}/{VOTE_PREFIX}"
            await self.store.create(path, vote, CreateMode.PERSISTENT_SEQUENTIAL)

    @classmethod
    async def open(cls, node: Node, store: MetadataStore, ledgers: Ledgers) -> "Desk":
        while True:
            try:
                cluster = await open_cluster(store, ROOT)
                break
            except RollbookError:
                await asyncio.sleep(_PAUSE_S)
        departures = Departures(store, cluster, node.clock, node.randomness)
        return cls(
            departures,
            LifecycleNodes(store, cluster),
            Marks(store, ROOT),
            store,
            node.clock,
            WholeNodes(store, cluster),
            AuditOrders(store, cluster),
            ledgers,
        )
