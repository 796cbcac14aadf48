"""Detects lost bookies and marks their ledgers, while its process is the elected auditor.

    registrations, cookies ──► Losses ──► lost bookies ──► index ──► marks, the fewest copies first
    delay, switch, orders  ──►               ▲
                           ──► Schedule ─────┴──► Checks ──► marks of copies that are short, bad or badly placed

The rules are in `core/auditor_rules.py` and `core/ledger_checks.py`. Publishing the same mark twice is harmless, so it does
no harm if an auditor dies half-way, or if two auditors run (AU4). A later look finds what one pass missed: if
a ledger names a lost bookie only after the pass, it is marked as soon as the index learns of it, and each
sweep of the index is followed by another pass.

The leader is elected in the same way as BookKeeper's auditors (`proto/cluster/election.py`).
"""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

import structlog

from rollbook.proto.cluster.bookie_watcher import BookieWatcher, LiveBookies
from rollbook.proto.cluster.cluster_root import Cluster
from rollbook.proto.cluster.cookies import CookieNodes
from rollbook.proto.cluster.election import Vote
from rollbook.proto.cluster.underreplication_marks import Marks
from rollbook.proto.errors import BadMetadata, MetadataConflict, SessionExpired
from rollbook.proto.ids import BookieId, LedgerId
from rollbook.proto.ports import Clock, MetadataStore
from rollbook.proto.tasks import TaskGroup
from rollbook.recovery.check_times import CheckTimes
from rollbook.recovery.config import AuditConfig
from rollbook.recovery.core.auditor_rules import Backlog, Losses
from rollbook.recovery.core.ledger_checks import CheckKind
from rollbook.recovery.core.ledger_index_rows import IndexRow, good_copies
from rollbook.recovery.ledger_checks import Checks, CheckSchedule, CheckState
from rollbook.recovery.ledger_index import LedgerIndex
from rollbook.recovery.metastore_outage_retries import LOOK_AGAIN_S, follow, patiently, until_done
from rollbook.recovery.recovery_orders import AuditOrders

logger = structlog.get_logger()

_MARKS_TOGETHER: Final = 32  # The maximum number of marks in one transaction.

# The maximum number of ledgers that are collected after a pass because they name a lost bookie. If there are
# more, another pass handles all ledgers.
_LATE_MAX: Final = 10_000


@dataclass(slots=True)
class AuditState:
    """The state of the auditor that `status` shows."""

    is_enabled: bool = True
    is_braked: bool = False
    delay_s: int = 0
    missing: list[BookieId] = field(default_factory=list)
    lost: list[BookieId] = field(default_factory=list)
    marked: int = 0  # Marks made since this process became the leader.
    to_mark: int = 0
    passes: int = 0  # Completed passes.
    unreadable: int = 0  # Ledgers and marks that cannot be read.
    checks: dict[str, CheckState] = field(default_factory=dict)


class Auditor:
    def __init__(
        self,
        store: MetadataStore,
        cluster: Cluster,
        clock: Clock,
        watcher: BookieWatcher,
        index: LedgerIndex,
        marks: Marks,
        config: AuditConfig,
        checks: Checks | None = None,
    ) -> None:
        """Create an auditor that uses a started `watcher`, and an `index` that its owner updates. Without
        `checks` the auditor only looks for lost bookies.
        """
        self._store = store
        self._clock = clock
        self._watcher = watcher
        self._index = index
        self._marks = marks
        self._config = config
        self._cookies = CookieNodes(store, cluster.root)
        self._orders = AuditOrders(store, cluster)
        self._times = CheckTimes(store, cluster, marks)
        self._checks = checks
        self._reset()

    def _reset(self) -> None:
        self.state = AuditState(delay_s=self._config.lost_bookie_delay_s)
        self._losses = Losses(self._config.lost_bookie_delay_s)
        self._has_members = False
        self._is_enabled: bool | None = None
        # The value and the version of the delay when it was last read.
        self._delay: tuple[int, int] | None = None
        self._passed: set[BookieId] = set()  # Lost bookies whose ledgers were all marked.
        self._late: dict[LedgerId, None] = {}
        self._bad_marks: set[LedgerId] = set()
        self._has_news = asyncio.Event()
        # The event is set while the ledgers of all lost bookies are marked.
        self._is_idle = asyncio.Event()
        self._may_go_on = asyncio.Event()
        self._schedule = CheckSchedule(self._times, self._clock, self._config)

    async def lead(self, vote: Vote) -> None:
        """Audits until cancelled."""
        self._reset()
        logger.info("auditor_leads", vote=vote.path)
        forget = self._index.on_change(self._on_ledger)
        try:
            await until_done("auditor", self._prepare)
            async with TaskGroup() as group:
                group.create_task(self._follow_members())
                group.create_task(follow("switch", self._marks.watch_switch, self._look_at_switch))
                group.create_task(follow("delay", self._marks.watch_delay, self._look_at_delay))
                group.create_task(follow("orders", self._orders.watch, self._look_at_orders))
                group.create_task(self._follow_sweeps())
                group.create_task(patiently("auditor", self._audit))
                group.create_task(self._make_checks())
        finally:
            forget()

    async def _prepare(self) -> None:
        await self._marks.prepare()
        if self._checks is not None:
            await self._checks.prepare()
        with contextlib.suppress(BadMetadata):
            if await self._marks.delay() is None:
                await self._marks.set_delay(self._config.lost_bookie_delay_s)

    # --- Facts --------------------------------------------------------------------------------

    async def _follow_members(self) -> None:
        """Follow which bookies are registered, named by a cookie, or named by a ledger."""

        async def look() -> None:
            seen = await self._look_at_members()
            wait_s = LOOK_AGAIN_S
            if (next_ns := self._losses.next_look_ns()) is not None:
                wait_s = min(next_ns / 1e9, LOOK_AGAIN_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._watcher.changed(seen)

        await patiently("members", look)

    async def _look_at_members(self) -> LiveBookies:
        """Look at all bookies once. Raises `SessionExpired` if not everything was seen in one
        session, `Unavailable`, `OutcomeUnknown`.
        """
        session = self._store.session
        known = await self._cookies.list()
        await self._index.catch_up()
        # The clock is read before the look, since the observed state may be old when it is processed.
        now_ns = self._clock.monotonic_ns()
        live = await self._watcher.look()
        if self._store.session != session:
            raise SessionExpired(session=session)
        registered = {*live.writable, *live.read_only}
        before = set(self._losses.missing)
        self._losses.on_members(known, self._index.bookies(), registered, session, now_ns)
        missing = set(self._losses.missing)
        for bookie in sorted(missing - before):
            logger.warning("bookie_missed", bookie=bookie, ledgers=self._index.count(bookie))
        for bookie in sorted(before - missing):
            logger.info("bookie_returned", bookie=bookie)
        self._passed &= missing
        self._has_members = True
        self._has_news.set()
        return live

    async def _look_at_switch(self) -> None:
        is_enabled = await self._marks.is_enabled()
        if is_enabled is not self._is_enabled:
            self._is_enabled = is_enabled
            logger.info("autorecovery_enabled" if is_enabled else "autorecovery_disabled")
            self._has_news.set()

    async def _look_at_delay(self) -> None:
        try:
            found = await self._marks.delay()
        except BadMetadata as error:
            logger.warning("delay_unreadable", reason=error.message)
            found = self._delay or (self._config.lost_bookie_delay_s, -1)
        before, self._delay = self._delay, found
        if found is None or found == before:
            return
        seconds, _ = found
        self._losses.on_delay(seconds)
        if before is not None:
            # A requested audit judges the present state, so all bookies are looked at now.
            await until_done("delay", self._look_at_members)
        if before is not None and (seconds == before[0] or seconds == 0):
            logger.info("audit_asked_for")
            self._losses.on_asked()
            self._passed.clear()
            self._schedule.ask(CheckKind.BOOKIES)
        self._has_news.set()

    async def _look_at_orders(self) -> None:
        order = await self._orders.read()
        self._losses.on_approved(order.approved)
        self._schedule.on_order(order.checks_asked_ms)
        self._has_news.set()

    async def _follow_sweeps(self) -> None:
        """After each sweep, make another pass, which marks the ledgers that the sweep found."""
        sweeps = self._index.sweeps
        while True:
            sweeps = await self._index.swept(sweeps)
            self._passed.clear()
            self._has_news.set()

    def _on_ledger(self, ledger_id: LedgerId, row: IndexRow) -> None:
        if self._passed.isdisjoint(row):
            return
        if len(self._late) < _LATE_MAX:
            self._late[ledger_id] = None
        else:
            self._passed.clear()
        self._has_news.set()

    # --- Checks -------------------------------------------------------------------------------

    async def _make_checks(self) -> None:
        works = self._checks.works(self._until_it_may_mark) if self._checks else {}
        await self._schedule.run({CheckKind.BOOKIES: self._check_bookies, **works})

    async def _check_bookies(self, state: CheckState) -> None:
        """Run the check of bookies: read all metadata again, then mark every ledger that names a lost
        bookie.
        """
        marked, sweeps = self.state.marked, self._index.sweeps
        self._index.request_sweep()
        await self._index.swept(sweeps)
        self._passed.clear()
        self._is_idle.clear()
        self._has_news.set()
        await self._is_idle.wait()
        state.ledgers, state.marked = len(self._index), self.state.marked - marked
        state.unreadable = len(self._index.unreadable)

    @property
    def _may_mark(self) -> bool:
        return self._has_members and bool(self._is_enabled) and not self._losses.is_braked

    async def _until_it_may_mark(self) -> None:
        while not self._may_mark:
            self._may_go_on.clear()
            await self._may_go_on.wait()

    # --- Marking ------------------------------------------------------------------------------

    async def _audit(self) -> None:
        """Look for lost bookies once, and mark ledgers that are not marked yet."""
        self._has_news.clear()
        if not self._has_members or not self._is_enabled or self._delay is None:
            self._tell()
            await self._has_news.wait()
            return
        lost = self._losses.lost()
        self._tell()
        if new := lost - self._passed:
            await self._pass(new)
        elif self._late:
            late = list(self._late)
            await self._mark_all(late, lost)
            for ledger_id in late:
                self._late.pop(ledger_id, None)
        else:
            if self._may_mark:
                self._is_idle.set()
            await self._has_news.wait()

    async def _pass(self, lost: frozenset[BookieId]) -> None:
        await self._index.catch_up()
        backlog = Backlog()
        async for ledger_id, row in self._index.naming(lost):
            backlog.add(ledger_id, good_copies(row, self._losses.missing))
        logger.info("audit_started", lost=sorted(lost), ledgers=len(backlog))
        self._passed |= lost  # Ledgers that name them later are found after the pass.
        try:
            is_complete = await self._mark_all(backlog, lost)
        except BaseException:
            self._passed -= lost
            raise
        if not is_complete:
            self._passed -= lost
            return
        self.state.passes += 1
        logger.info("audit_completed", lost=sorted(lost), ledgers=len(backlog))

    async def _mark_all(self, ids: Backlog | list[LedgerId], lost: frozenset[BookieId]) -> bool:
        """Mark these ledgers. Returns False if re-replication was switched off, or the brake was put on,
        before all were marked.
        """
        remaining = iter(ids)
        self.state.to_mark = len(ids)
        is_stopped = False

        async def work() -> None:
            nonlocal is_stopped
            while chunk := list(islice(remaining, _MARKS_TOGETHER)):
                try:
                    is_stopped = is_stopped or not await self._mark_chunk(chunk, lost)
                except BaseException:
                    is_stopped = True
                    raise
                if is_stopped:
                    return
                self.state.to_mark -= len(chunk)

        chunks_at_once = max(1, self._config.marks_at_once // _MARKS_TOGETHER)
        works = (work() for _ in range(chunks_at_once))
        for result in await asyncio.gather(*works, return_exceptions=True):
            if result is not None:
                raise result
        self.state.to_mark = 0
        return not is_stopped

    async def _mark_chunk(self, ids: Sequence[LedgerId], lost: frozenset[BookieId]) -> bool:
        """Mark all in one transaction if none is marked yet, otherwise one by one. Returns False if marking
        has to stop.
        """
        if not self._may_mark:
            return False
        marks = {each: gone for each in ids if (gone := self._gone_from(each, lost))}
        if len(marks) > 1 and await self._marks.mark_new(marks, self._now_ms()):
            self.state.marked += len(marks)
            return True
        for ledger_id in marks:
            if not self._may_mark:
                return False
            await self._mark(ledger_id, lost)
        return True

    def _gone_from(self, ledger_id: LedgerId, lost: frozenset[BookieId]) -> tuple[BookieId, ...]:
        """Return the lost bookies that the ledger names. The result is empty if the ledger was deleted or no
        longer names them, or if they are back.
        """
        missing = self._losses.missing
        row = self._index.row(ledger_id) or ()
        names = [BookieId(each) for each in row if isinstance(each, str)]
        return tuple([each for each in dict.fromkeys(names) if each in lost and each in missing])

    async def _mark(self, ledger_id: LedgerId, lost: frozenset[BookieId]) -> None:
        gone = self._gone_from(ledger_id, lost)
        if not gone:
            return
        try:
            is_new = await self._marks.mark(ledger_id, gone, self._now_ms())
        except (BadMetadata, MetadataConflict) as error:
            if ledger_id not in self._bad_marks:
                logger.warning("ledger_not_marked", ledger_id=ledger_id, reason=error.message)
                self._bad_marks.add(ledger_id)
            return
        self.state.marked += is_new

    def _now_ms(self) -> int:
        return self._clock.wall_us() // 1000

    def _tell(self) -> None:
        state, losses = self.state, self._losses
        was_braked, state.is_braked = state.is_braked, losses.is_braked
        state.is_enabled = bool(self._is_enabled)
        state.delay_s = self._delay[0] if self._delay else self._config.lost_bookie_delay_s
        state.missing = list(losses.missing)
        state.lost = sorted(losses.lost())
        state.unreadable = len(self._index.unreadable) + len(self._bad_marks)
        state.checks = {kind.value: each for kind, each in self._schedule.states.items()}
        if self._may_mark:
            self._may_go_on.set()
        if state.is_braked and not was_braked:
            logger.error(
                "audit_braked",
                missing=state.missing,
                next_step="rollbook recovery audit --anyway",
            )
