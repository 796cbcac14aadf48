"""Empties bookies that should leave, and requests checks of bookies that may have lost ledgers without
knowing it, while its process is the elected steward. The steward is elected apart from BookKeeper's auditor,
which may be Java's and knows of neither task.

    lifecycles ──► core/drain_steps.py ──► drain_task_nodes.py ──► workers copy, the index hears of it
                        │
                        └──► bookie_ledger_scan.py ──► Drained      `core/bookie_drain_states.py`
    incarnations ─────────────────────► tasks ──► known_incarnations.py
    doubts of bookies ────────────────► heal_scheduler.py

- A bookie becomes Drained only when a complete walk finds no ledger that names it; the walk begins after the
  bookie was seen read-only or down. A ledger that names it later makes it Draining again (LC4).
- Each change of a lifecycle fails unless the steward's vote still exists (LC2).
- A drain that failed or was cancelled leaves no task (LC5).
- If a bookie's incarnation is not the one that was last seen whole, all its ledgers are checked (LC6).

A steward may die at any point: the next one reads everything again.
"""

import asyncio
import contextlib
from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import structlog

from rollbook.proto.cluster.bookie_lifecycle_nodes import LifecycleNodes, StoredLifecycle
from rollbook.proto.cluster.bookie_watcher import BookieWatcher, LiveBookies
from rollbook.proto.cluster.cluster_root import Cluster
from rollbook.proto.cluster.cookies import MemberNodes
from rollbook.proto.cluster.election import Vote
from rollbook.proto.cluster.ledger_nodes import LedgerNodes
from rollbook.proto.cluster.uncertain_writes import read_surely
from rollbook.proto.cluster.underreplication_marks import Marks
from rollbook.proto.errors import (
    BadMetadata,
    MetadataConflict,
    NodeExists,
    NoSuchNode,
    UnsupportedVersion,
)
from rollbook.proto.formats.lifecycle import Lifecycle, LifecycleState
from rollbook.proto.formats.paths import AVAILABLE
from rollbook.proto.ids import BookieId, LedgerId
from rollbook.proto.ports import Clock, MetadataStore, Randomness, WatchEventKind
from rollbook.proto.tasks import TaskGroup
from rollbook.recovery.bookie_ledger_scan import take_census
from rollbook.recovery.config import StewardConfig
from rollbook.recovery.core.bookie_drain_states import fail, finish, revert
from rollbook.recovery.core.drain_steps import DrainFacts, Step, is_stuck, next_step
from rollbook.recovery.core.ledger_index_rows import IndexRow
from rollbook.recovery.core.repair_failures import Failure
from rollbook.recovery.drain_task_nodes import DrainTasks
from rollbook.recovery.heal_scheduler import DoubtState, HealScheduler
from rollbook.recovery.known_incarnations import WholeNodes
from rollbook.recovery.ledger_index import LedgerIndex
from rollbook.recovery.metastore_outage_retries import patiently, until_done
from rollbook.recovery.repair_failure_nodes import Failures

logger = structlog.get_logger()

_PUBLISHED_AT_ONCE: Final = 32
_EXAMPLES: Final = 5
# The pause between two rounds, since a drain changes thousands of ledgers per second.
_PAUSE_S: Final = 0.1


@dataclass(slots=True)
class StewardState:
    """The state of the steward that `status` shows: for each draining bookie, its step and the number of
    ledgers that name it.
    """

    drains: dict[BookieId, tuple[str, int]] = field(default_factory=dict)
    # Bookies whose ledgers must be checked, each with the number of these ledgers.
    suspects: dict[BookieId, int] = field(default_factory=dict)
    tasks: int = 0
    # Bookies that are being healed.
    doubts: dict[BookieId, DoubtState] = field(default_factory=dict)


@dataclass(slots=True)
class _Suspect:
    incarnation: str
    pending: "array[int]"  # Ledgers that have not been published as tasks yet.


class Steward:
    def __init__(
        self,
        store: MetadataStore,
        cluster: Cluster,
        clock: Clock,
        randomness: Randomness,
        watcher: BookieWatcher,
        index: LedgerIndex,
        marks: Marks,
        config: StewardConfig,
        doubts: HealScheduler | None = None,
    ) -> None:
        """Create a steward that uses a started `watcher`, an `index` that its owner updates, and `marks` with
        the locks of this session. Without `doubts`, no bookie in doubt is healed.
        """
        self._store = store
        self._root = cluster.root
        self._clock = clock
        self._randomness = randomness
        self._watcher = watcher
        self._index = index
        self._marks = marks
        self._config = config
        self._doubts = doubts
        self._nodes = LedgerNodes(store, cluster.root, cluster.layout)
        self._lifecycles = LifecycleNodes(store, cluster)
        self._members = MemberNodes(store, cluster)
        self._drain_tasks = DrainTasks(store, cluster)
        self._failures = Failures(store, cluster)
        self._whole = WholeNodes(store, cluster)
        self._has_news = asyncio.Event()
        self._reset()

    def _reset(self) -> None:
        self.state = StewardState(doubts=self._doubts.states if self._doubts else {})
        self._tasks: dict[LedgerId, frozenset[BookieId]] = {}
        self._are_tasks_known = False
        self._suspects: dict[BookieId, _Suspect] = {}
        self._cared_for: frozenset[BookieId] = frozenset()  # Bookies that are not Active.
        self._draining: frozenset[BookieId] = frozenset()
        self._failed: frozenset[BookieId] = frozenset()
        self._failing: dict[LedgerId, Failure] = {}
        self._looked_at: tuple[LiveBookies, list[str]] | None = None
        self._look_again_ns = 0

    async def lead(self, vote: Vote) -> None:
        """Drains and checks bookies until cancelled."""
        self._reset()
        logger.info("steward_leads", vote=vote.path)
        forget = self._index.on_change(self._on_ledger)
        try:
            await until_done("steward", self._marks.prepare)
            await until_done("steward", self._drain_tasks.prepare)
            await until_done("steward", self._failures.prepare)
            async with TaskGroup() as group:
                group.create_task(patiently("drain tasks", self._follow_tasks))
                group.create_task(patiently("lifecycles", self._follow_lifecycles))
                group.create_task(patiently("members", self._follow_members))
                if self._doubts is not None:
                    group.create_task(self._doubts.run())
                group.create_task(patiently("steward", lambda: self._round(vote)))
        finally:
            forget()

    # --- Facts --------------------------------------------------------------------------------

    async def _follow_tasks(self) -> None:
        watch = await self._drain_tasks.watch()
        try:
            self._are_tasks_known = False
            await self._list_tasks()
            self._are_tasks_known = True
            self._has_news.set()
            async for event in watch:
                if event.kind is WatchEventKind.RESYNC:
                    return
                if event.kind is WatchEventKind.DELETED:
                    ledger_id = self._drain_tasks.ledger_of(event.path)
                    if ledger_id is not None and self._tasks.pop(ledger_id, None) is not None:
                        self._has_news.set()
        finally:
            await watch.close()

    async def _list_tasks(self) -> None:
        tasks: dict[LedgerId, frozenset[BookieId]] = {}
        async for ledger_id in self._drain_tasks.ids():
            try:
                found = await self._drain_tasks.read(ledger_id)
            except BadMetadata as error:
                logger.warning("drain_task_unreadable", ledger_id=ledger_id, reason=error.message)
                tasks[ledger_id] = self._tasks.get(ledger_id, frozenset())
                continue
            if found is not None:
                tasks[ledger_id] = frozenset(found.mark.missing)
        self._tasks = tasks

    async def _follow_lifecycles(self) -> None:
        watch = await self._lifecycles.watch()
        try:
            async for _ in watch:
                self._has_news.set()
        finally:
            await watch.close()

    async def _follow_members(self) -> None:
        live = self._watcher.current
        while True:
            live = await self._watcher.changed(live)
            self._has_news.set()

    def _on_ledger(self, _: LedgerId, row: IndexRow) -> None:
        if not self._cared_for.isdisjoint(row):
            self._has_news.set()

    # --- Rounds -------------------------------------------------------------------------------

    async def _round(self, vote: Vote) -> None:
        self._has_news.clear()
        if self._are_tasks_known:
            await self._index.catch_up()
            lifecycles = await self._lifecycles.list()
            self._cared_for = frozenset(
                each.bookie for each in lifecycles if not each.lifecycle.takes_entries
            )
            failed = _in_state(lifecycles, LifecycleState.DRAINING_FAILED)
            self._failed = frozenset(each.bookie for each in failed)
            await self._look_at_what_nobody_tells(lifecycles)
            await self._drain_all(vote, _in_state(lifecycles, LifecycleState.DRAINING))
            await self._guard(vote, _in_state(lifecycles, LifecycleState.DRAINED))
            await self._look_after_suspects()
            await self._remove_tasks()
            self.state.tasks = len(self._tasks)
        await asyncio.sleep(min(_PAUSE_S, self._config.look_again_s))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.look_again_s):
                await self._has_news.wait()

    async def _look_at_what_nobody_tells(self, lifecycles: list[StoredLifecycle]) -> None:
        now_ns = self._clock.monotonic_ns()
        seen = self._watcher.current, [each.lifecycle.token for each in lifecycles]
        if seen == self._looked_at and now_ns < self._look_again_ns:
            return
        self._looked_at = seen
        await self._look_at_incarnations()
        await self._look_at_failures()
        self._look_again_ns = now_ns + round(self._config.look_again_s * 1e9)

    async def _look_at_failures(self) -> None:
        failures: dict[LedgerId, Failure] = {}
        async for ledger_id in self._failures.ids():
            with contextlib.suppress(BadMetadata, UnsupportedVersion):
                failure = await self._failures.read(ledger_id)
                if failure is None:
                    continue
                is_kept = self._is_for_people(ledger_id, failure)
                if not is_kept and not await self._is_owed(ledger_id):
                    await self._forget_failure(ledger_id)
                    continue
                failures[ledger_id] = failure
        self._failing = failures

    def _is_for_people(self, ledger_id: LedgerId, failure: Failure) -> bool:
        """Return whether people need to see the failure, because entries are lost or because the failure
        explains why a drain failed.
        """
        row = self._index.row(ledger_id) or ()
        return failure.is_unrecoverable or not self._failed.isdisjoint(row)

    async def _is_owed(self, ledger_id: LedgerId) -> bool:
        for tree in (self._drain_tasks, self._marks):
            if await tree.read(ledger_id) is not None:
                return True
        return False

    async def _forget_failure(self, ledger_id: LedgerId) -> None:
        """Remove a failure that no longer counts (RP7). The lock is taken, since only its holder may write
        failures.
        """
        lock = await self._marks.take(ledger_id, "steward")
        if lock is None:
            return
        try:
            if not await self._is_owed(ledger_id):
                await self._failures.clear(ledger_id)
        finally:
            await self._marks.release(lock)

    # --- Drains -------------------------------------------------------------------------------

    async def _drain_all(self, vote: Vote, draining: list[StoredLifecycle]) -> None:
        self._draining = frozenset(each.bookie for each in draining)
        self.state.drains = {}
        to_verify: list[StoredLifecycle] = []
        stuck = self._count_stuck(draining)
        for stored in draining:
            bookie = stored.bookie
            facts = DrainFacts(
                is_writable=bookie in self._watcher.current.writable,
                named=self._index.count(bookie),
                stuck=stuck[bookie],
            )
            step = next_step(facts)
            self.state.drains[bookie] = step.value, facts.named
            match step:
                case Step.WAIT:
                    pass
                case Step.VERIFY:
                    to_verify.append(stored)
                case Step.FAIL:
                    await self._fail(vote, stored, facts)
                case Step.COPY:
                    await self._publish_drain(bookie)
        if to_verify:
            await self._verify(vote, to_verify)

    def _count_stuck(self, draining: list[StoredLifecycle]) -> "Counter[BookieId]":
        """Return for each draining bookie the number of its ledgers whose failure is final."""
        stuck: Counter[BookieId] = Counter()
        for ledger_id, failure in self._failing.items():
            row = self._index.row(ledger_id) or ()
            stuck.update(
                each.bookie
                for each in draining
                if each.bookie in row and is_stuck(failure, each.lifecycle.token)
            )
        return stuck

    @property
    def _room(self) -> int:
        """Return the number of further tasks that may be published. Ledgers that wait for a retry do not
        count, so that they do not delay first attempts.
        """
        waiting = sum(ledger_id in self._tasks for ledger_id in self._failing)
        return max(self._config.tasks_max - len(self._tasks) + waiting, 0)

    async def _publish_drain(self, bookie: BookieId) -> None:
        room = self._room
        to_publish: list[LedgerId] = []
        async for ledger_id, _ in self._index.naming([bookie]):
            if len(to_publish) >= room:
                break
            if bookie not in self._tasks.get(ledger_id, ()):
                to_publish.append(ledger_id)
        await self._publish(to_publish, self._draining)

    async def _publish(self, ids: Iterable[LedgerId], bookies: frozenset[BookieId]) -> None:
        remaining = iter(ids)

        async def work() -> None:
            for ledger_id in remaining:
                row = self._index.row(ledger_id)
                named = [each for each in sorted(bookies) if row and each in row]
                if not named:
                    continue
                now_ms = self._clock.wall_us() // 1000
                before = self._tasks.get(ledger_id, frozenset())
                self._tasks[ledger_id] = before.union(named)
                try:
                    await self._drain_tasks.mark(ledger_id, named, now_ms)
                except (BadMetadata, MetadataConflict) as error:
                    logger.warning("task_not_published", ledger_id=ledger_id, reason=error.message)
                except BaseException:
                    self._tasks.pop(ledger_id, None)
                    raise

        works = (work() for _ in range(_PUBLISHED_AT_ONCE))
        for result in await asyncio.gather(*works, return_exceptions=True):
            if result is not None:
                raise result

    async def _verify(self, vote: Vote, drains: list[StoredLifecycle]) -> None:
        """Look for ledgers that still name the bookies. The walk begins after each bookie was seen read-only
        or down (LC4).
        """
        drains = [each for each in drains if not await self._is_writable(each.bookie)]
        census = await take_census(self._nodes, [each.bookie for each in drains])
        for stored in drains:
            if census.naming[stored.bookie]:
                # The index does not know the present state of a ledger that the walk has found.
                self._index.request_sweep()
            elif census.unreadable:
                named = ", ".join(map(str, sorted(census.unreadable)[:_EXAMPLES]))
                reason = (
                    f"the metadata of {len(census.unreadable)} ledgers cannot be read, and may name "
                    f"it: {named}"
                )
                await self._change(vote, stored, fail(stored.lifecycle, *self._draw(), reason))
            elif not await self._is_writable(stored.bookie):
                await self._change(vote, stored, finish(stored.lifecycle, *self._draw()))

    async def _is_writable(self, bookie: BookieId) -> bool:
        """Return whether the bookie is registered as writable. The store is asked, since the watcher may not
        know the present state yet. A bookie in both folders is just changing its state.
        """
        folder = f"{self._root}/{AVAILABLE}"
        return await read_surely(self._store, f"{folder}/{bookie}") is not None

    async def _fail(self, vote: Vote, stored: StoredLifecycle, facts: DrainFacts) -> None:
        reason = (
            f"{facts.named} ledgers still name it, and none of them can be copied: "
            "rollbook recovery ls --failed"
        )
        await self._change(vote, stored, fail(stored.lifecycle, *self._draw(), reason))

    async def _guard(self, vote: Vote, drained: list[StoredLifecycle]) -> None:
        """Make a Drained bookie Draining again if a ledger names it: the client picked its ensemble before
        the drain, but created its ledger after the walk (LC4).
        """
        for stored in drained:
            if not self._index.count(stored.bookie):
                continue
            async for ledger_id, _ in self._index.naming([stored.bookie]):
                reason = f"ledger {ledger_id} names it since"
                await self._change(vote, stored, revert(stored.lifecycle, *self._draw(), reason))
                break

    async def _change(self, vote: Vote, stored: StoredLifecycle, lifecycle: Lifecycle) -> None:
        """Change a lifecycle if this steward's vote still exists (LC2)."""
        try:
            await self._lifecycles.write(
                stored, lifecycle, checks=[vote.check], session=vote.session
            )
        except (MetadataConflict, NodeExists, NoSuchNode):
            # A person changed the lifecycle, or another steward leads. The next round or the election shows
            # which.
            logger.info("lifecycle_not_changed", bookie=stored.bookie)
            return
        logger.info(
            "lifecycle_changed",
            bookie=stored.bookie,
            before=stored.lifecycle.state.value,
            after=lifecycle.state.value,
            reason=lifecycle.reason,
        )
        self._has_news.set()

    def _draw(self) -> tuple[str, int]:
        return f"{self._randomness.getrandbits(128):032x}", self._clock.wall_us() // 1000

    async def _remove_tasks(self) -> None:
        """Remove tasks that name no bookie that drains or is checked (LC5)."""
        wanted = self._draining.union(self._suspects)
        for ledger_id, bookies in list(self._tasks.items()):
            if not wanted.isdisjoint(bookies):
                continue
            lock = await self._marks.take(ledger_id, "steward")
            if lock is None:
                # A worker holds the lock, and will notice by itself that the task is no longer wanted.
                continue
            try:
                found = await self._drain_tasks.read(ledger_id)
                if found is None or await self._drain_tasks.unmark(found, lock):
                    self._tasks.pop(ledger_id, None)
            finally:
                await self._marks.release(lock)

    # --- Bookies that may have lost ledgers without knowing it --------------------------------

    async def _look_at_incarnations(self) -> None:
        """Find bookies with another incarnation than the one that was last seen whole (LC6)."""
        live = self._watcher.current
        for bookie in (*live.writable, *live.read_only):
            try:
                record = (await self._members.read(bookie)).record
            except (BadMetadata, UnsupportedVersion):
                # A person has to repair an unreadable cookie; the `bookie` commands give advice.
                continue
            if record is None:
                continue  # A Java bookie has no such record.
            suspect = self._suspects.get(bookie)
            if suspect is not None and suspect.incarnation == record.incarnation:
                continue
            whole = await self._whole.read(bookie)
            if whole == record.incarnation:
                self._suspects.pop(bookie, None)
            elif whole is None:
                await self._whole.write(bookie, record.incarnation)
            else:
                pending = array("q")
                async for ledger_id, _ in self._index.naming([bookie]):
                    pending.append(ledger_id)
                logger.warning("bookie_may_not_be_whole", bookie=bookie, ledgers=len(pending))
                self._suspects[bookie] = _Suspect(record.incarnation, pending)

    async def _look_after_suspects(self) -> None:
        outstanding = Counter(each for bookies in self._tasks.values() for each in sorted(bookies))
        self.state.suspects = {}
        seem_whole: list[BookieId] = []
        for bookie, suspect in list(self._suspects.items()):
            pending = suspect.pending
            keep = max(len(pending) - self._room, 0)
            ids = list(map(LedgerId, pending[keep:]))
            await self._publish(ids, frozenset([bookie]))
            del pending[keep:]
            self.state.suspects[bookie] = keep + len(ids) + outstanding[bookie]
            if not ids and not pending and not outstanding[bookie]:
                seem_whole.append(bookie)
        if not seem_whole:
            return
        # Tasks are listed again, since an event may be late: a removed task may have been published
        # again for another bookie.
        await self._list_tasks()
        named = {bookie for bookies in self._tasks.values() for bookie in bookies}
        for bookie in seem_whole:
            if bookie not in named:
                await self._whole.write(bookie, self._suspects[bookie].incarnation)
                logger.info("bookie_is_whole", bookie=bookie)
                del self._suspects[bookie]


def _in_state(found: list[StoredLifecycle], state: LifecycleState) -> list[StoredLifecycle]:
    return [each for each in found if each.lifecycle.state is state]
