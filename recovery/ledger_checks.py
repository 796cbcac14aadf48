"""Runs the elected auditor's checks of all ledgers: when a check runs, at which pace, and which marks follow
from it.

    Schedule ── is it due, or asked for? ── Checks ── every ledger, at a pace ──► marks, bad copies
        ▲                                                                              │
        └── the time of completion, in metadata ◄── all ledgers were judged ◄──────────┘

The rules are in `core/ledger_checks.py`. Each kind of check runs in its own task, so a long check does not delay the
others. If one of a ledger's bookies does not respond, or is neither registered nor marked as lost, the ledger
is checked again after 5 s, doubling to 10 min. The check is completed when no such ledger is left (AU5). A
copy that seems short or bad is checked twice, the second time with fresh metadata, since a writer's last
copies may still be on their way (AU7).
"""

import asyncio
import contextlib
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, Never

import structlog

from rollbook.ledger.concurrent_calls import error_of
from rollbook.ledger.core.copy_comparison import Copy, CopyState
from rollbook.ledger.ledgers import Ledgers, credentials
from rollbook.ledger.verifier import Verifier
from rollbook.proto.cluster.ledger_nodes import LedgerNodes
from rollbook.proto.cluster.underreplication_marks import Marks
from rollbook.proto.errors import (
    BadMetadata,
    BookieFailed,
    EntryStateUnknown,
    Invalid,
    InvalidRequest,
    MetadataConflict,
    Missing,
    NoSuchLedger,
    RollbookError,
)
from rollbook.proto.formats.service_info import BATCH_READ
from rollbook.proto.ids import BookieId, EntryId, LedgerId
from rollbook.proto.metadata import LedgerMetadata
from rollbook.proto.ports import Clock, MetadataStore, Randomness
from rollbook.proto.tasks import TaskGroup
from rollbook.proto.wire.digest import LedgerDigest
from rollbook.proto.wire.entry_list import EntryList
from rollbook.proto.wire.messages import ListEntries, ListEntriesReply
from rollbook.recovery.check_times import CheckTimes
from rollbook.recovery.config import AuditConfig
from rollbook.recovery.copy_limits import Throttle
from rollbook.recovery.core.auditor_rules import is_check_due
from rollbook.recovery.core.ledger_checks import (
    CheckKind,
    ConfirmedReport,
    CopyReport,
    Requests,
    closed_slots,
    confirmed_by,
    is_judged,
    pick_sample,
)
from rollbook.recovery.core.repair_plan import SlotRepair, lacking_in, windows
from rollbook.recovery.ledger_repair import mean_entry_bytes, pick_for_racks
from rollbook.recovery.metastore_outage_retries import AWAY, LOOK_AGAIN_S, patiently, until_done
from rollbook.recovery.repair_failure_nodes import BadCopies

logger = structlog.get_logger()

SECOND_LOOK_S: Final = 2.0
_AT_ONCE: Final = 16  # The maximum number of ledgers that one check looks at concurrently.
_PAUSE_S_MIN: Final = 5.0
_PAUSE_S_MAX: Final = 600.0
_SILENT_S: Final = 60.0  # The pause before a bookie that did not respond is asked again.

Gate = Callable[[], Awaitable[None]]
"""Returns once marks may be made: re-replication is switched on, and the brake is off."""


@dataclass(slots=True)
class CheckState:
    """The state of one check, for `status`. The counts are those of the running check, or of the last one if
    none is running.
    """

    is_running: bool = False
    completed_ms: int | None = None
    ledgers: int = 0  # Ledgers that were checked so far.
    marked: int = 0
    # Ledgers that are checked again, since a registered bookie did not respond.
    undecided: int = 0
    unknown: int = 0  # Ledgers with a bookie that itself doubts its copies.
    unreadable: int = 0  # Ledgers whose metadata or mark cannot be read.
    # Ledgers with too many copies in one rack, for which no bookie of another rack is available.
    without_target: int = 0
    differing: int = 0  # Ledgers whose valid copies differ, without a majority.


Work = Callable[[CheckState], Awaitable[None]]


class CheckSchedule:
    """Decides when checks run, while one auditor leads."""

    def __init__(self, times: CheckTimes, clock: Clock, config: AuditConfig) -> None:
        self.states = {kind: CheckState() for kind in CheckKind}
        self._times = times
        self._clock = clock
        self._intervals_s = {
            CheckKind.BOOKIES: config.bookie_check_s,
            CheckKind.PLACEMENT: config.placement_check_s,
            CheckKind.COPIES: config.copies_check_s,
            CheckKind.LEDGERS: config.ledgers_check_s,
        }
        self._requests = Requests()
        self._has_news = asyncio.Event()

    def on_order(self, asked_ms: int | None) -> None:
        """Take note of a person's request for all checks (`AuditOrder.checks_asked_ms`)."""
        if self._requests.on_order(asked_ms):
            self._tell_news()

    def ask(self, kind: CheckKind) -> None:
        self._requests.add(kind)
        self._tell_news()

    def _tell_news(self) -> None:
        self._has_news.set()
        self._has_news = asyncio.Event()

    async def run(self, works: Mapping[CheckKind, Work]) -> Never:
        """Run checks until cancelled. A kind of check without an entry in `works` is never completed."""
        async with TaskGroup() as group:
            for kind, work in works.items():
                group.create_task(patiently(f"check of {kind.value}", self._turn(kind, work)))
            await asyncio.Event().wait()
        raise AssertionError("it is cancelled")

    def _turn(self, kind: CheckKind, work: Work) -> Callable[[], Awaitable[None]]:
        async def turn() -> None:
            await self._until_due(kind)
            await self._run(kind, work)

        return turn

    async def _until_due(self, kind: CheckKind) -> None:
        interval_ms = self._intervals_s[kind] * 1000
        while True:
            news = self._has_news
            completed_ms = await self._times.completed_ms(kind)
            self.states[kind].completed_ms = completed_ms
            now_ms = self._clock.wall_us() // 1000
            if self._requests.is_open(kind, completed_ms):
                return
            if is_check_due(completed_ms, now_ms, interval_ms):
                return
            # Look again regularly: the clock may jump, and Java's auditor may have checked.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_AGAIN_S):
                    await news.wait()

    async def _run(self, kind: CheckKind, work: Work) -> None:
        stamp = self._requests.stamp(kind)
        state = CheckState(is_running=True, completed_ms=self.states[kind].completed_ms)
        self.states[kind] = state
        logger.info("check_started", check=kind.value)
        try:
            await work(state)
        finally:
            state.is_running = False
        state.completed_ms = self._clock.wall_us() // 1000
        completed_ms = state.completed_ms
        await until_done("check", lambda: self._times.write(kind, completed_ms))
        self._requests.on_served(kind, stamp)
        logger.info("check_completed", check=kind.value, ledgers=state.ledgers, marked=state.marked)


class Checks:
    """The checks of placement, entry lists and bytes. Each look or mark first waits at `gate`."""

    def __init__(
        self,
        ledgers: Ledgers,
        store: MetadataStore,
        clock: Clock,
        randomness: Randomness,
        marks: Marks,
        config: AuditConfig,
    ) -> None:
        cluster = ledgers.cluster
        self._ledgers = ledgers
        self._clock = clock
        self._randomness = randomness
        self._marks = marks
        self._config = config
        self._nodes = LedgerNodes(store, cluster.root, cluster.layout)
        self._bad = BadCopies(store, cluster)
        self._bytes = Throttle(config.check_bytes_per_s_max)
        self._silent_until_ns: dict[BookieId, int] = {}

    async def prepare(self) -> None:
        await self._bad.prepare()

    def works(self, gate: Gate) -> dict[CheckKind, Work]:
        looks: dict[CheckKind, Callable[[LedgerId, CheckState, Gate], Awaitable[bool]]] = {
            CheckKind.COPIES: self._look_at_lists,
            CheckKind.LEDGERS: self._look_at_bytes,
        }

        def work_of(look: Callable[[LedgerId, CheckState, Gate], Awaitable[bool]]) -> Work:
            return lambda state: self._look_at_all(
                state, gate, lambda ledger_id: look(ledger_id, state, gate)
            )

        works = {kind: work_of(look) for kind, look in looks.items()}
        if self._ledgers.knows_racks:
            look_at_all = work_of(self._look_at_racks)

            async def look_at_racks(state: CheckState) -> None:
                # A bookie that was away a moment ago may be the only one in its rack (AU10).
                await self._ledgers.pardon_bookies()
                await look_at_all(state)

            works[CheckKind.PLACEMENT] = look_at_racks
        return works

    # --- All ledgers --------------------------------------------------------------------------

    async def _look_at_all(
        self, state: CheckState, gate: Gate, look: Callable[[LedgerId], Awaitable[bool]]
    ) -> None:
        """Call `look` for every ledger, at a limited pace. `look` returns True if the ledger was judged."""
        undecided = array("q")
        pace, pause_s = Throttle(self._config.check_ledgers_per_s_max), _PAUSE_S_MIN

        async def look_at(ledger_id: LedgerId) -> None:
            await gate()
            await pace.pay(1)
            if not await until_done("check", lambda: look(ledger_id)):
                undecided.append(ledger_id)
            state.ledgers += 1

        await _for_each(self._walk(), look_at)
        while undecided:
            state.undecided = len(undecided)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)
            again, undecided = undecided, array("q")
            state.ledgers -= len(again)
            await _for_each(_ids_of(again), look_at)
        state.undecided = 0

    async def _walk(self) -> AsyncIterator[LedgerId]:
        """Yield the ids of all ledgers. After an outage of the metadata store the walk continues where it
        stopped.
        """
        start = LedgerId(0)
        while True:
            try:
                async for ledger_id in self._nodes.ids(start):
                    start = LedgerId(ledger_id + 1)
                    yield ledger_id
                return
            except AWAY as error:
                logger.warning("check_waits", reason=error.code.reason)
                await asyncio.sleep(1.0)

    async def _read(
        self, ledger_id: LedgerId, state: CheckState, *, fresh: bool = False
    ) -> LedgerMetadata | None:
        """Return the ledger's metadata, or None if the ledger was deleted or its metadata is unreadable."""
        try:
            return (await self._nodes.read(ledger_id, fresh=fresh)).metadata
        except NoSuchLedger:
            return None
        except BadMetadata:
            state.unreadable += not fresh
            return None

    async def _mark(
        self, ledger_id: LedgerId, bookies: list[BookieId], state: CheckState, gate: Gate
    ) -> None:
        await gate()
        try:
            now_ms = self._clock.wall_us() // 1000
            state.marked += await self._marks.mark(ledger_id, bookies, now_ms)
        except (BadMetadata, MetadataConflict) as error:
            state.unreadable += 1
            logger.warning("ledger_not_marked", ledger_id=ledger_id, reason=error.message)

    # --- Racks --------------------------------------------------------------------------------

    async def _look_at_racks(self, ledger_id: LedgerId, state: CheckState, gate: Gate) -> bool:
        metadata = await self._read(ledger_id, state)
        if metadata is None:
            return True
        quorum = metadata.quorum
        ensembles = dict.fromkeys(
            fragment.ensemble
            for index, fragment in enumerate(metadata.fragments)
            if metadata.last_entry_of(index) is not None
            and self._ledgers.lacks_racks(quorum, fragment.ensemble)
        )
        if not ensembles:
            return True
        # Mark the ledger if the copies of some fragment could be in more racks (AU10).
        if any(pick_for_racks(self._ledgers, quorum, each) for each in ensembles):
            await self._mark(ledger_id, [], state, gate)
        else:
            state.without_target += 1
        return True

    # --- Copies -------------------------------------------------------------------------------

    async def _look_at_lists(self, ledger_id: LedgerId, state: CheckState, gate: Gate) -> bool:
        return await self._look_twice(ledger_id, state, gate, self._judge_lists)

    async def _look_at_bytes(self, ledger_id: LedgerId, state: CheckState, gate: Gate) -> bool:
        # The start of each slot's sample, so that the second look reads the same entries.
        starts: dict[EntryId, float] = {}
        return await self._look_twice(
            ledger_id, state, gate, lambda metadata: self._judge_bytes(metadata, starts)
        )

    async def _look_twice(
        self,
        ledger_id: LedgerId,
        state: CheckState,
        gate: Gate,
        judge: Callable[[LedgerMetadata], Awaitable[CopyReport]],
    ) -> bool:
        """Mark copies that two looks find short or bad (AU7). Returns whether every member responded each
        time, or is marked as lost.
        """
        metadata = await self._read(ledger_id, state)
        if metadata is None:
            return True
        first = await judge(metadata)
        asks = first.away and not first.silent
        is_heard = is_judged(first, await self._read_marked(ledger_id, state) if asks else ())
        if first.to_mark:
            await asyncio.sleep(SECOND_LOOK_S)
            metadata = await self._read(ledger_id, state, fresh=True)
            if metadata is None:
                return True
            second = await judge(metadata)
            live = self._ledgers.live()
            confirmed = confirmed_by(first, second, lambda each: live.find(each) is not None)
            is_heard = is_heard and confirmed.is_judged
            await self._mark_confirmed(ledger_id, confirmed, state, gate)
        state.unknown += bool(first.unknown)
        if first.differing:
            state.differing += 1
            logger.error("copies_differ", ledger_id=ledger_id, entry_ids=list(first.differing[:10]))
        return is_heard

    async def _mark_confirmed(
        self, ledger_id: LedgerId, confirmed: ConfirmedReport, state: CheckState, gate: Gate
    ) -> None:
        if confirmed.bad:  # Bad copies are recorded before the mark (AU9).
            await self._bad.add(ledger_id, confirmed.bad)
            logger.error(
                "bad_copies_found",
                ledger_id=ledger_id,
                bookies={bookie: len(ids) for bookie, ids in confirmed.bad.items()},
            )
        if confirmed.to_mark:
            await self._mark(ledger_id, confirmed.to_mark, state, gate)

    async def _read_marked(
        self, ledger_id: LedgerId, state: CheckState
    ) -> Collection[BookieId] | None:
        """Return the bookies that the ledger is marked for, or None if its mark is unreadable."""
        try:
            stored = await self._marks.read(ledger_id)
        except BadMetadata:
            state.unreadable += 1
            return None
        return stored.mark.missing if stored is not None else ()

    def _registered_slots(
        self, metadata: LedgerMetadata, found: CopyReport
    ) -> dict[BookieId, list[SlotRepair]]:
        live = self._ledgers.live()
        repairs: dict[BookieId, list[SlotRepair]] = {}
        for repair in closed_slots(metadata):
            if live.find(repair.bookie):
                repairs.setdefault(repair.bookie, []).append(repair)
            else:
                found.away[repair.bookie] = None
        return repairs

    async def _judge_lists(self, metadata: LedgerMetadata) -> CopyReport:
        found = CopyReport()
        repairs = self._registered_slots(metadata, found)
        lists = await asyncio.gather(*(self._list(each, metadata.ledger_id) for each in repairs))
        for (bookie, of_bookie), listed in zip(repairs.items(), lists, strict=True):
            if isinstance(listed, EntryList):
                if await _is_short(metadata, of_bookie, listed):
                    found.short[bookie] = None
            elif issubclass(listed, EntryStateUnknown | BookieFailed):
                found.unknown[bookie] = None
            elif not issubclass(listed, Invalid) and self._can_list(bookie):
                found.silent[bookie] = None
        return found

    def _can_list(self, bookie: BookieId) -> bool:
        """Return whether the bookie can list its entries. BookKeeper's bookies do not respond if their
        storage has no entry lists; their bytes are still read.
        """
        return self._ledgers.bookies.has_extension(bookie, BATCH_READ)

    async def _list(self, bookie: BookieId, ledger_id: LedgerId) -> EntryList | type[RollbookError]:
        if self._is_silent(bookie):
            return RollbookError
        deadline_s = self._ledgers.config.read_deadline_s
        try:
            reply = await self._ledgers.bookies.call(
                bookie, ListEntries(ledger_id), deadline_s=deadline_s
            )
        except RollbookError as error:
            self._on_silence(bookie)
            return type(error)
        if isinstance(reply, ListEntriesReply) and reply.error is None:
            return reply.entries or EntryList(b"")
        error_type = error_of(reply) or BookieFailed
        return EntryList(b"") if issubclass(error_type, Missing) else error_type

    def _is_silent(self, bookie: BookieId) -> bool:
        return self._clock.monotonic_ns() < self._silent_until_ns.get(bookie, 0)

    def _on_silence(self, bookie: BookieId) -> None:
        self._silent_until_ns[bookie] = self._clock.monotonic_ns() + int(_SILENT_S * 1e9)

    async def _judge_bytes(
        self, metadata: LedgerMetadata, starts: dict[EntryId, float]
    ) -> CopyReport:
        found = CopyReport()
        try:
            password, kind = credentials(metadata, None, None)
        except InvalidRequest:
            return found  # The ledger's metadata is too old to name its digest.
        digest = LedgerDigest(kind, password, metadata.ledger_id)
        verifier = Verifier(metadata, digest, self._ledgers.bookies, self._ledgers.config)
        fragments: dict[EntryId, list[SlotRepair]] = {}
        for repairs in self._registered_slots(metadata, found).values():
            for repair in repairs:
                fragments.setdefault(repair.first_entry, []).append(repair)
        for first_entry, repairs in sorted(fragments.items()):
            start = starts.setdefault(first_entry, self._randomness.random())
            reads = (self._read_sample(metadata, verifier, repair, start) for repair in repairs)
            copies: dict[EntryId, dict[BookieId, Copy]] = {}
            for repair, sample in zip(repairs, await asyncio.gather(*reads), strict=True):
                for entry_id, copy in sample.items():
                    copies.setdefault(entry_id, {})[repair.bookie] = copy
            for entry_id in sorted(copies):
                found.on_copies(entry_id, copies[entry_id])
        return found

    async def _read_sample(
        self, metadata: LedgerMetadata, verifier: Verifier, repair: SlotRepair, start: float
    ) -> dict[EntryId, Copy]:
        percent = self._config.ledgers_check_percent
        found: dict[EntryId, Copy] = {}
        for run in pick_sample(metadata.quorum, repair, percent, start):
            if self._is_silent(repair.bookie):
                found.update(dict.fromkeys(run, CopyState.UNREACHABLE))
                continue
            await self._bytes.pay(len(run) * mean_entry_bytes(metadata))
            found.update(await verifier.read_share(repair.bookie, run))
            if all(found[each] is CopyState.UNREACHABLE for each in run):
                self._on_silence(repair.bookie)
        return found


async def _is_short(metadata: LedgerMetadata, repairs: list[SlotRepair], listed: EntryList) -> bool:
    for repair in repairs:
        for window in windows(repair):
            if lacking_in(window, metadata.quorum, repair, listed):
                return True
            await asyncio.sleep(0)
    return False


async def _ids_of(ids: "array[int]") -> AsyncIterator[LedgerId]:
    for each in ids:
        yield LedgerId(each)


async def _for_each(
    ids: AsyncIterator[LedgerId], work: Callable[[LedgerId], Awaitable[None]]
) -> None:
    async def take_turns() -> None:
        while True:
            async with turn:
                ledger_id = await anext(ids, None)
            if ledger_id is None:
                return
            await work(ledger_id)

    turn = asyncio.Lock()
    async with TaskGroup() as group:
        for _ in range(_AT_ONCE):
            group.create_task(take_turns())
