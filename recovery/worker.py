"""The replication worker, which repairs marked ledgers and ledgers of drain tasks, each under its lock.

    marks + drain tasks ──► those that are due, most missing bookies first ──► lock ──► LedgerRepair ──► un-mark
              ▲                                                                              │
              └── a watch, or the time of the next try ◄── failures in our own tree ◄────────┘

A failed repair is retried after 5 s, doubling to 10 min; a repair that cannot succeed is reported once and
waits for a person (RP5). A mark is removed only after a fresh look at the ledger has found every slot whole,
and only in the version that was read under the lock (RP6).

While re-replication is switched off (`Marks.is_enabled`), no repair begins.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Never

import structlog

from rollbook.ledger.ledgers import Ledgers
from rollbook.proto.cluster.bookie_lifecycle_nodes import LifecycleNodes, StoredLifecycle
from rollbook.proto.cluster.underreplication_marks import Lock, Marks, MarkTree, StoredMark
from rollbook.proto.errors import (
    BadMetadata,
    NoSuchLedger,
    NoSuchNode,
    RollbookError,
    SessionExpired,
    UnsupportedVersion,
)
from rollbook.proto.formats.lifecycle import LifecycleState
from rollbook.proto.ids import BookieId, LedgerId
from rollbook.proto.ports import Check, Clock, MetadataStore
from rollbook.proto.tasks import TaskGroup
from rollbook.recovery.config import WorkerConfig
from rollbook.recovery.copy_limits import ByteBudget, Throttle
from rollbook.recovery.core.repair_failures import after_failure, next_look_s
from rollbook.recovery.core.repair_plan import GracePeriods
from rollbook.recovery.drain_task_nodes import DrainTasks
from rollbook.recovery.ledger_repair import LedgerRepair, OpenEnd, Repair, RepairLimits, RepairOrder
from rollbook.recovery.metastore_outage_retries import AWAY, follow, patiently, until_done
from rollbook.recovery.recovery_orders import RateOrder
from rollbook.recovery.repair_failure_nodes import BadCopies, Failures

logger = structlog.get_logger()

# The maximum number of tasks in a page, which is sorted so that the most urgent tasks come first. The first
# page is as small as the number of concurrent repairs, so that work begins early; each page is twice as large
# as the previous one.
_PAGE_MAX: Final = 1000
_READ_AT_ONCE: Final = 32
_NS_PER_S: Final = 1_000_000_000


@dataclass(slots=True)
class WorkerStats:
    repaired: int = 0  # Ledgers whose mark or drain task was removed.
    failed: int = 0  # Failed attempts.
    unrecoverable: int = 0  # Ledgers that were found to have lost entries.
    entries: int = 0
    entry_bytes: int = 0
    # The bytes that were copied so far for each ledger.
    running: dict[LedgerId, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Task:
    ledger_id: LedgerId
    missing: int  # The number of bookies that the task names as missing or draining.


class Worker:
    """The part of a process that repairs ledgers. The owner calls `run` once, in a separate task."""

    def __init__(
        self,
        ledgers: Ledgers,
        store: MetadataStore,
        clock: Clock,
        config: WorkerConfig,
        *,
        name: str,
        local_bookie: BookieId | None = None,
        marks: Marks | None = None,
    ) -> None:
        """Create a worker. `name` is written into locks, for people to see. A local bookie is preferred as
        the target. `marks` knows the locks of this session, so all users of locks in the process have to
        share it.
        """
        self.stats = WorkerStats()
        self.throttle = Throttle(config.bytes_per_s_max)
        self._ledgers = ledgers
        self._store = store
        self._clock = clock
        self._config = config
        self._name = name
        self._local_bookie = local_bookie
        self._budget = ByteBudget(config.bytes_in_memory_max)
        self._marks = marks or Marks(store, ledgers.cluster.root)
        self._drains = DrainTasks(store, ledgers.cluster)
        self._failures = Failures(store, ledgers.cluster)
        self._lifecycles = LifecycleNodes(store, ledgers.cluster)
        self._bad = BadCopies(store, ledgers.cluster)
        self._rate = RateOrder(store, ledgers.cluster)
        # The time at which each postponed ledger is due.
        self._not_before_ns: dict[LedgerId, int] = {}
        self._grace: GracePeriods[LedgerId, OpenEnd] = GracePeriods(config.grace_s)
        self._reported: dict[LedgerId, None] = {}  # Unrecoverable ledgers that were reported.
        self._news = asyncio.Event()

    async def run(self) -> Never:
        """Work until cancelled, or until a bug ends the work. Repairs in progress are then abandoned."""
        await until_done("worker", self._prepare)

        async def hear() -> None:
            self._news.set()

        async with TaskGroup() as group:
            for part, watch in (
                ("marks", self._marks.watch),
                ("drain tasks", self._drains.watch),
                ("switch", self._marks.watch_switch),
            ):
                group.create_task(follow(part, watch, hear))
            group.create_task(follow("rate", self._rate.watch, self._look_at_rate))
            await patiently("worker", self._work)

    async def _look_at_rate(self) -> None:
        found = await self._rate.read()
        rate = self._config.bytes_per_s_max if found is None else found
        if rate != self.throttle.bytes_per_s:
            self.throttle.bytes_per_s = rate
            logger.info("copy_rate_changed", bytes_per_s=rate)

    async def _work(self) -> None:
        self._news.clear()
        await self.work_once()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._pause_s()):
                await self._news.wait()
                # Wait for further marks, which are made in large numbers.
                await asyncio.sleep(self._config.settle_s)

    async def work_once(self) -> None:
        """Try each task that is due now once. Raises `MetadataUnavailable`, `ConnectionLost`,
        `SessionExpired`.
        """
        running: dict[asyncio.Task[None], None] = {}
        bugs: list[BaseException] = []
        has_room = asyncio.Event()

        def on_done(task: asyncio.Task[None]) -> None:
            del running[task]
            has_room.set()
            if not task.cancelled() and (bug := task.exception()) is not None:
                bugs.append(bug)

        try:
            async for due in self._due():
                while len(running) >= self._config.ledgers_at_once:
                    has_room.clear()
                    await has_room.wait()
                if not await self._marks.is_enabled():
                    break
                task = asyncio.create_task(self._try(due.ledger_id))
                running[task] = None
                task.add_done_callback(on_done)
            await asyncio.gather(*running, return_exceptions=True)
        finally:
            for task in list(running):
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        if bugs:
            raise bugs[0]

    # --- What is due --------------------------------------------------------------------------

    async def _prepare(self) -> None:
        await self._marks.prepare()
        await self._drains.prepare()
        await self._failures.prepare()

    async def _due(self) -> AsyncGenerator[_Task, None]:
        # If this session left locks behind, their ledgers would look locked by another worker (MK5).
        await self._marks.release_strays()
        if not await self._marks.is_enabled():
            return
        locked = await self._marks.locked()
        failed = {ledger_id async for ledger_id in self._failures.ids()}
        page: list[_Task] = []
        page_size = min(self._config.ledgers_at_once, _PAGE_MAX)
        seen: set[LedgerId] = set()
        unmet = self._grace.begun()  # Repairs may begin further grace periods during this walk.
        for tree in (self._drains, self._marks):
            async for ids in _batches(tree.ids()):
                unmet.difference_update(ids)
                wanted = [each for each in ids if each not in locked and each not in seen]
                wanted = [
                    each
                    for each in wanted
                    if self._is_due(each) and (each not in failed or await self._check_due(each))
                ]
                for stored in await _read_all(tree, wanted):
                    if not stored.mark.missing and not self._ledgers.knows_racks:
                        # A mark without bookies is about racks, which another worker may know.
                        continue
                    seen.add(stored.ledger_id)
                    page.append(_Task(stored.ledger_id, len(stored.mark.missing)))
                if len(page) >= page_size:
                    for task in _most_missing_first(page):
                        yield task
                    page, page_size = [], min(2 * page_size, _PAGE_MAX)
        for ledger_id in unmet:
            # The task was removed. If it is published again, the writer has a full grace period
            # again.
            self._grace.forget(ledger_id)
        for task in _most_missing_first(page):
            yield task

    def _is_due(self, ledger_id: LedgerId) -> bool:
        return self._not_before_ns.get(ledger_id, 0) <= self._clock.monotonic_ns()

    async def _check_due(self, ledger_id: LedgerId) -> bool:
        """Return whether to try the ledger now, by its recorded failure, which another worker may have
        written. If not, postpone the ledger.
        """
        try:
            failure = await self._failures.read(ledger_id)
        except (BadMetadata, UnsupportedVersion) as error:
            logger.warning("failure_unreadable", ledger_id=ledger_id, reason=error.message)
            return True  # The next result replaces the unreadable failure.
        now_ms = self._wall_ms()
        if failure is None or failure.is_due(now_ms):
            return True
        task = await _read(self._drains, ledger_id)
        if not failure.counts_for(_tokens(await self._draining(task))):
            return True  # A drain has begun, or is retried.
        self._put_off(ledger_id, failure.pause_s(now_ms, self._config.look_again_s))
        return False

    def _put_off(self, ledger_id: LedgerId, pause_s: float) -> None:
        self._not_before_ns[ledger_id] = self._clock.monotonic_ns() + int(pause_s * _NS_PER_S)

    def _pause_s(self) -> float:
        """Return the seconds until the next task is due, but at most until the next regular look at all
        tasks.
        """
        now_ns = self._clock.monotonic_ns()
        self._not_before_ns = {
            ledger_id: due_ns
            for ledger_id, due_ns in self._not_before_ns.items()
            if due_ns > now_ns
        }
        return next_look_s(
            ((due_ns - now_ns) / _NS_PER_S for due_ns in self._not_before_ns.values()),
            shortest_s=self._config.settle_s,
            longest_s=self._config.look_again_s,
        )

    # --- One ledger ---------------------------------------------------------------------------

    async def _try(self, ledger_id: LedgerId) -> None:
        try:
            lock = await self._marks.take(ledger_id, self._name)
            if lock is None:
                self._put_off(ledger_id, self._config.locked_pause_s)
                return
            try:
                # Another worker's repair may have failed just before (RP5).
                if await self._check_due(ledger_id):
                    await self._repair(ledger_id, lock)
            finally:
                await self._marks.release(lock)
        except (*AWAY, NoSuchNode) as error:
            # The metadata store is unavailable, or the lock was lost: nothing can be recorded.
            self._put_off(ledger_id, self._config.locked_pause_s)
            logger.info("repair_given_up", ledger_id=ledger_id, reason=error.message or str(error))

    async def _repair(self, ledger_id: LedgerId, lock: Lock) -> None:
        mark = await _read(self._marks, ledger_id)
        drain = await _read(self._drains, ledger_id)
        if mark is None and drain is None:
            return  # Another worker has repaired the ledger.
        draining = await self._draining(drain)
        drains = _tokens(draining)
        bad = await self._bad.read_stored(ledger_id)
        self.stats.running[ledger_id] = 0
        order = RepairOrder(
            in_question=mark.mark.missing if mark else (),
            draining=self._checks(draining),
            looked_at=[each for each in drain.mark.missing if each not in draining]
            if drain
            else (),
            checks_placement=mark is not None and not mark.mark.missing,
            bad=bad[0] if bad else {},
        )
        repair = LedgerRepair(
            self._ledgers,
            self._store,
            lock,
            order,
            RepairLimits(self._budget, self.throttle, self._config.entries_at_once),
            is_grace_over=lambda end: self._check_grace_over(ledger_id, end),
            local_bookie=self._local_bookie,
            on_progress=self._progress_of(ledger_id),
        )
        try:
            found = await repair.run()
        except NoSuchLedger:
            found = Repair(ledger_id)  # A deleted ledger lacks no copies.
        except (SessionExpired, NoSuchNode):
            raise  # The lock is lost, and another worker may hold it.
        except RollbookError as error:
            message = error.message or str(error)
            await self._fail(ledger_id, repair.found, error.code.reason, message, drains)
            return
        finally:
            del self.stats.running[ledger_id]
            self.stats.entries += repair.found.entries
            self.stats.entry_bytes += repair.found.entry_bytes
        if found.awaited is None:
            self._grace.forget(ledger_id)
        if found.is_complete:
            if bad is not None:
                await self._bad.clear(ledger_id, bad[1])
            await self._finish(ledger_id, lock, mark, drain, found)
        elif found.awaited and not found.losses and not found.unavailable:
            self._put_off(ledger_id, self._grace_left_s(ledger_id, found.awaited))
        else:
            await self._fail(ledger_id, found, "ENTRY_UNAVAILABLE", found.unavailable, drains)

    async def _draining(self, task: StoredMark | None) -> dict[BookieId, StoredLifecycle]:
        """Return the bookies of the task that are draining, each with its lifecycle."""
        draining: dict[BookieId, StoredLifecycle] = {}
        for bookie in task.mark.missing if task else ():
            try:
                found = await self._lifecycles.read(bookie)
            except (BadMetadata, UnsupportedVersion) as error:
                logger.warning("lifecycle_unreadable", bookie=bookie, reason=error.message)
                continue
            if found.lifecycle.state is LifecycleState.DRAINING:
                draining[bookie] = found
        return draining

    def _checks(self, draining: Mapping[BookieId, StoredLifecycle]) -> dict[BookieId, Check | None]:
        """Return checks for the swap of a slot, which fail if its bookie no longer drains as before."""
        return {
            bookie: Check(self._lifecycles.path(bookie), found.version)
            for bookie, found in draining.items()
        }

    def _progress_of(self, ledger_id: LedgerId) -> Callable[[int], None]:
        def on_progress(size: int) -> None:
            self.stats.running[ledger_id] += size

        return on_progress

    async def _finish(
        self,
        ledger_id: LedgerId,
        lock: Lock,
        mark: StoredMark | None,
        drain: StoredMark | None,
        found: Repair,
    ) -> None:
        self._reported.pop(ledger_id, None)
        # Failures are cleared before the marks: a ledger without a mark is not visited (RP7).
        await self._failures.clear(ledger_id)
        if drain is not None:
            await self._drains.unmark(drain, lock)
        if mark is not None:
            await self._marks.unmark(mark, lock)
        self.stats.repaired += 1
        logger.info(
            "ledger_repaired",
            ledger_id=ledger_id,
            entries=found.entries,
            entry_bytes=found.entry_bytes,
            seats=found.slots,
        )

    async def _fail(
        self,
        ledger_id: LedgerId,
        found: Repair,
        code: str,
        message: str,
        drains: tuple[str, ...],
    ) -> None:
        self.stats.failed += 1
        try:
            before = await self._failures.read(ledger_id)
        except (BadMetadata, UnsupportedVersion):
            before = None
        if found.losses:
            code, message = "DATA_LOST", "no holder has a good copy of these entries"
        failure = after_failure(
            before,
            self._wall_ms(),
            code,
            message,
            found.losses,
            drains=drains,
            first_pause_s=self._config.retry_pause_s,
        )
        await self._failures.write(ledger_id, failure)
        await self._check_due(ledger_id)
        if found.losses and ledger_id not in self._reported:
            self._reported[ledger_id] = None
            self.stats.unrecoverable += 1
            logger.error(
                "ledger_unrecoverable",
                ledger_id=ledger_id,
                losses=[
                    {"entries": f"{loss.first_entry}-{loss.last_entry}", "holders": loss.holders}
                    for loss in found.losses
                ],
            )
        elif not found.losses:
            logger.warning(
                "repair_failed",
                ledger_id=ledger_id,
                attempts=failure.attempts,
                reason=message,
            )

    # --- The grace period ---------------------------------------------------------------------

    def _check_grace_over(self, ledger_id: LedgerId, end: OpenEnd) -> bool:
        """Return whether the writer's grace period to leave this open end is over. The first call begins the
        period.
        """
        return self._grace_left_s(ledger_id, end) <= 0

    def _grace_left_s(self, ledger_id: LedgerId, end: OpenEnd) -> float:
        return self._grace.left_s(ledger_id, end, self._clock.monotonic_ns())

    # ------------------------------------------------------------------------------------------

    def _wall_ms(self) -> int:
        return self._clock.wall_us() // 1000


def _tokens(draining: Mapping[BookieId, StoredLifecycle]) -> tuple[str, ...]:
    return tuple(found.lifecycle.token for found in draining.values())


async def _read(tree: MarkTree, ledger_id: LedgerId) -> StoredMark | None:
    """Return the ledger's mark, or None if it has none. An unreadable mark is logged, and also counts as
    None.
    """
    try:
        return await tree.read(ledger_id)
    except BadMetadata as error:
        logger.warning("mark_unreadable", ledger_id=ledger_id, reason=error.message)
        return None


async def _read_all(tree: MarkTree, ledger_ids: Sequence[LedgerId]) -> list[StoredMark]:
    """Return the marks of these ledgers in the same order, leaving out ledgers without a mark."""
    reads = (_read(tree, each) for each in ledger_ids)
    marks = []
    for found in await asyncio.gather(*reads, return_exceptions=True):
        if isinstance(found, BaseException):
            raise found
        if found is not None:
            marks.append(found)
    return marks


async def _batches(ledger_ids: AsyncIterator[LedgerId]) -> AsyncIterator[list[LedgerId]]:
    """Yield batches of ledgers whose marks are read together."""
    batch: list[LedgerId] = []
    async for ledger_id in ledger_ids:
        batch.append(ledger_id)
        if len(batch) == _READ_AT_ONCE:
            yield batch
            batch = []
    if batch:
        yield batch


def _most_missing_first(tasks: list[_Task]) -> list[_Task]:
    return sorted(tasks, key=lambda task: -task.missing)
