"""Heals bookies that have doubts automatically: reads the doubts, and lets `PossibleLossHealer` restore the entries.

    registered bookies ──► one page of doubts each, now and then ──► a healing for each that has any ──► again, later

- Each bookie has one healing at a time, and only a few healings run at once, each at the pace of `HealConfig`
  (DH1).
- A healing that leaves doubts is repeated after 5 s, doubling to 10 min, since copies may turn up and open
  ledgers may be closed (DH2).
- No writer that is alive is fenced (DH3). A ledger with a writer is healed up to its open end. The ledger is
  closed only if its open end still names, after the grace period, a bookie that doubts everything or was
  formatted since: such a bookie says so in its registration, so live writers have left it by then.
- Entries without a copy anywhere are reported once, and wait for a person: `rollbook recovery heal
  --accept-loss` (DH4).

The bookie keeps its doubts and shows them on its admin pages, so a bookie without admin pages is not healed
automatically.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Never

import structlog

from rollbook.ledger.ledgers import Ledgers
from rollbook.proto.cluster.bookie_watcher import BookieWatcher
from rollbook.proto.cluster.underreplication_marks import Marks
from rollbook.proto.errors import RollbookError
from rollbook.proto.ids import BookieId
from rollbook.proto.ports import Clock
from rollbook.proto.tasks import TaskGroup
from rollbook.recovery.config import HealConfig
from rollbook.recovery.core.repair_failures import Failure, after_failure, next_look_s
from rollbook.recovery.core.repair_plan import GracePeriods
from rollbook.recovery.ledger_loss_healer import HealingOutcome
from rollbook.recovery.metastore_outage_retries import patiently
from rollbook.recovery.possible_loss_healer import Healing, PossibleLossHealer
from rollbook.recovery.possible_losses_port import BookieDoubts

logger = structlog.get_logger()

_AT_ONCE: Final = 4
_ANYTHING: Final = 1  # The page size of a request that only asks whether there are doubts.
_LEDGERS_NAMED: Final = 5
_LOOK_S_MIN: Final = 0.02

DoubtsOf = Callable[[BookieId], BookieDoubts | None]
"""Returns the doubts of a bookie; None: they cannot be requested."""


@dataclass(slots=True)
class DoubtState:
    """The state of one bookie that has doubts, for `status`."""

    is_running: bool = False
    doubts_everything: bool = False
    ledgers_done: int = 0
    ledgers: int = 0
    lost: int = 0  # Ledgers with entries that have no copy anywhere.
    attempts: int = 0  # The number of attempts that left doubts.
    next_try_ms: int | None = None
    last_error: str = ""


class HealScheduler:
    def __init__(
        self,
        ledgers: Ledgers,
        watcher: BookieWatcher,
        marks: Marks,
        clock: Clock,
        doubts_of: DoubtsOf,
        config: HealConfig,
    ) -> None:
        """Create an object that heals the bookies of a started `watcher`."""
        self.states: dict[BookieId, DoubtState] = {}
        self._ledgers = ledgers
        self._watcher = watcher
        self._marks = marks
        self._clock = clock
        self._doubts_of = doubts_of
        self._config = config
        self._failures: dict[BookieId, Failure] = {}
        # The grace period of each bookie that has doubts. The period begins again if the bookie was
        # formatted, which shows in the oldest ledger whose writer it admits.
        self._grace: GracePeriods[BookieId, int] = GracePeriods(config.grace_s)
        self._running: dict[BookieId, asyncio.Task[None]] = {}

    async def run(self) -> Never:
        """Heals until cancelled."""
        self._running.clear()
        async with TaskGroup() as group:
            await patiently("doubts", lambda: self._turn(group))
        raise AssertionError("it is cancelled")

    async def _turn(self, group: TaskGroup) -> None:
        live = self._watcher.current
        registered = [*live.writable, *live.read_only]
        self._forget_others(registered)
        if await self._marks.is_enabled():
            for bookie in registered:
                if len(self._running) >= _AT_ONCE:
                    break
                if bookie not in self._running and self._is_due(bookie):
                    await self._look_at(bookie, group)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._pause_s()):
                await self._watcher.changed(live)

    def _forget_others(self, registered: list[BookieId]) -> None:
        """Forget bookies that are not registered. A bookie that comes back may be a different bookie, which a
        running healing detects by itself.
        """
        kept = {*registered, *self._running}
        for bookie in [each for each in self.states if each not in kept]:
            del self.states[bookie]
            self._failures.pop(bookie, None)
            self._grace.forget(bookie)

    def _is_due(self, bookie: BookieId) -> bool:
        failure = self._failures.get(bookie)
        return failure is None or failure.is_due(self._now_ms())

    def _pause_s(self) -> float:
        now_ms, longest_s = self._now_ms(), self._config.look_again_s
        # The time of the next attempt is not known before the running healing ends.
        if self._running:
            longest_s = min(longest_s, 1.0)
        due = [each.next_try_ms for each in self._failures.values() if each.next_try_ms is not None]
        left_s = ((each - now_ms) / 1000 for each in due)
        return next_look_s(left_s, shortest_s=_LOOK_S_MIN, longest_s=longest_s)

    async def _look_at(self, bookie: BookieId, group: TaskGroup) -> None:
        doubts = self._doubts_of(bookie)
        if doubts is None:
            return
        try:
            page = await doubts.page(-1, _ANYTHING)
        except RollbookError as error:
            self._fail(bookie, error.code.reason, error.message or str(error))
            return
        if not page.everything and not page.ledgers:
            self._settle(bookie)
            return
        state = self.states.setdefault(bookie, DoubtState())
        state.is_running, state.doubts_everything = True, page.everything
        is_grace_over = self._count_grace(bookie)
        task = group.create_task(self._heal(bookie, doubts, state, is_grace_over))
        self._running[bookie] = task
        task.add_done_callback(lambda _: self._running.pop(bookie, None))

    def _count_grace(self, bookie: BookieId) -> bool:
        """Return whether the grace period for writers to leave the bookie is over. The period begins with the
        first doubt.
        """
        info = self._watcher.current.find(bookie)
        writers_from = info.writers_from if info else 0
        return self._grace.left_s(bookie, writers_from, self._clock.monotonic_ns()) <= 0

    async def _heal(
        self, bookie: BookieId, doubts: BookieDoubts, state: DoubtState, is_grace_over: bool
    ) -> None:
        def on_progress(done: int, of: int) -> None:
            state.ledgers_done, state.ledgers = done, of

        logger.info("bookie_healing_started", bookie=bookie, everything=state.doubts_everything)
        healer = PossibleLossHealer(
            self._ledgers,
            bookie,
            doubts,
            self._config,
            spares_writers=True,
            closes_open_ends=is_grace_over,
        )
        try:
            healing = await healer.heal(on_progress)
        except RollbookError as error:
            self._fail(bookie, error.code.reason, error.message or str(error))
            return
        finally:
            state.is_running = False
        self._on_healing(bookie, state, healing)

    def _on_healing(self, bookie: BookieId, state: DoubtState, healing: Healing) -> None:
        state.doubts_everything = healing.doubts_everything
        lost = healing.ledgers[HealingOutcome.LOST]
        if lost and lost != state.lost:
            named = [each.ledger_id for each in healing.remarkable if each.lost]
            logger.error(
                "bookie_entries_lost",
                bookie=bookie,
                ledgers=lost,
                examples=named[:_LEDGERS_NAMED],
                next_step=f"rollbook recovery heal {bookie} --accept-loss LEDGER",
            )
        state.lost = lost
        if healing.are_ledgers_whole and not healing.doubts_everything:
            self._settle(bookie)
            return
        first = next((each for each in healing.remarkable if each.reason), None)
        reason = f"ledger {first.ledger_id}: {first.reason}" if first else "entries have no copy"
        self._fail(bookie, "DOUBTS_LEFT", reason)

    def _settle(self, bookie: BookieId) -> None:
        self._failures.pop(bookie, None)
        self._grace.forget(bookie)
        if self.states.pop(bookie, None) is not None:
            logger.info("bookie_healed", bookie=bookie)

    def _fail(self, bookie: BookieId, code: str, message: str) -> None:
        before = self._failures.get(bookie)
        pause_s = self._config.retry_pause_s
        failure = after_failure(before, self._now_ms(), code, message, first_pause_s=pause_s)
        self._failures[bookie] = failure
        state = self.states.setdefault(bookie, DoubtState())
        state.attempts = failure.attempts
        if failure.next_try_ms is not None:
            left_ms = failure.next_try_ms - failure.failed_ms
            state.next_try_ms = self._clock.wall_us() // 1000 + left_ms
        state.last_error = f"{code}: {message}"
        if before is None or before.message != message:
            logger.warning("bookie_not_healed", bookie=bookie, code=code, reason=message)

    def _now_ms(self) -> int:
        """Return the monotonic clock in milliseconds. Only this file uses these times."""
        return self._clock.monotonic_ns() // 1_000_000
