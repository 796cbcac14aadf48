"""Reads and verifies everything in entry logs, round after round.

Damaged entries are put in doubt, durably (B1, B12): their readers get UNKNOWN even if the log or
its index changes later. The compactor is notified of the damaged log and moves its sound entries.
The progress of a round is in the catalog, so after a restart the round continues roughly where it
stopped.

The cache is not used, so that all verified bytes come from the disk and nothing is evicted.
"""

import asyncio
import errno
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from rollbook.bookie.cached_record_reader import Cache
from rollbook.bookie.config import SpaceConfig
from rollbook.bookie.core.byte_cache import ByteCache
from rollbook.bookie.core.catalog import LedgerInLog
from rollbook.bookie.core.journal_index import EntryLocation
from rollbook.bookie.core.possible_losses import EVERYTHING, LossRange
from rollbook.bookie.entry_log_reader import EntryLog
from rollbook.bookie.storage import Storage
from rollbook.proto.errors import EntryStateUnknown, TornRecord
from rollbook.proto.pacing import Pace
from rollbook.proto.ports import Clock
from rollbook.proto.tasks import to_its_end

logger = structlog.get_logger()

_CACHE_BYTES: Final = 2 * 1024 * 1024
_LEDGERS_PER_STEP: Final = 256
_DAMAGES_SHOWN_MAX: Final = 100

Doubt = tuple[int, int, int]
"""Ledger, first and last entry of a range in doubt."""


class ScrubStopped(Exception):
    """Raised when the scrubber was closed: the round goes on after the next start."""


@dataclass(frozen=True, slots=True)
class ScrubState:
    is_running: bool
    is_suspended: bool
    log: int  # The last log verified in this round; 0 at its start.
    logs_left: int
    rounds: int  # Rounds that were finished since the start.
    round_ended_ms: int  # Wall time of the end of the last round; 0: never.
    read_bytes: int
    damages: int


@dataclass(frozen=True, slots=True)
class ScrubResult:
    """The state of one ledger's entries on this bookie."""

    ledger_id: int
    entries: int
    entry_bytes: int
    damaged: tuple[tuple[int, int], ...]  # The first few ranges of damaged entries.
    doubts: tuple[tuple[int, int], ...]  # Ranges of entries that this bookie may have had once.


class Scrubber:
    def __init__(
        self, storage: Storage, clock: Clock, config: SpaceConfig, damaged: dict[int, None]
    ) -> None:
        self._storage = storage
        self._stats = storage.stats
        self._clock = clock
        self._pace = Pace(config.scrub_bytes_per_s)
        self._damaged = damaged  # Logs with damage, which the compactor rewrites.
        self._lock = asyncio.Lock()
        self._may_run = asyncio.Event()
        self._may_run.set()
        self._is_closing = False
        self._rounds = 0
        self._round_ended_ms = 0

    @property
    def state(self) -> ScrubState:
        scrubbed = self._storage.catalog.scrubbed
        return ScrubState(
            self._lock.locked(),
            not self._may_run.is_set(),
            scrubbed,
            len(self._left()),
            self._rounds,
            self._round_ended_ms,
            self._stats.scrub_bytes,
            self._stats.scrub_damages,
        )

    def suspend(self) -> None:
        self._may_run.clear()

    def resume(self) -> None:
        self._may_run.set()

    async def close(self) -> None:
        """Ends the running round within a step."""
        self._is_closing = True
        self._may_run.set()
        async with self._lock:
            pass

    # --- Rounds -------------------------------------------------------------------------------

    async def scrub(self) -> ScrubState:
        """Verifies logs until the round ends. Raises `OSError` if the disk cannot be read or is
        full."""
        async with self._lock:
            try:
                while left := self._left():
                    await self._scrub_log(left[0])
                await self._scrub_catalog()
                await to_its_end(self._storage.note_scrubbed(0))
            except ScrubStopped:
                return self.state
            self._rounds += 1
            self._stats.scrub_runs += 1
            self._round_ended_ms = self._clock.wall_us() // 1000
        return self.state

    def _left(self) -> list[int]:
        catalog = self._storage.catalog
        return sorted(log.number for log in catalog.whole_logs if log.number > catalog.scrubbed)

    async def _scrub_catalog(self) -> None:
        if damaged := await self._storage.scrub_catalog():
            logger.error("catalog_rotten", paths=damaged)
            self._stats.scrub_damages += len(damaged)

    async def _scrub_log(self, number: int) -> None:
        doubts = await self._doubts_in(number)
        news = [each for each in doubts if not self._storage.catalog.doubts.covers(*each)]
        if doubts:
            self._damaged[number] = None
        if news:
            logger.error("log_rotten", log=number, ranges=len(news), first_ledger=news[0][0])
            self._stats.scrub_damages += len(news)
            await to_its_end(self._storage.doubt(news))
        await to_its_end(self._storage.note_scrubbed(number))

    async def _doubts_in(self, number: int) -> list[Doubt]:
        catalog = self._storage.catalog
        held = list(catalog.held_in(number)) if number in catalog.logs else []
        logs = self._storage.open_logs(Cache(ByteCache(_CACHE_BYTES)))
        try:
            async with logs.use(number) as log:
                return await self._verify(log, held)
        except TornRecord:  # The log's header is lost, so nothing in it can be identified.
            return [(ledger_id, each.first_entry, each.last_entry) for ledger_id, each in held]
        except OSError as error:
            if number not in catalog.logs:
                return []  # The log was removed in the meantime.
            if error.errno != errno.EIO:
                raise
            return [(ledger_id, each.first_entry, each.last_entry) for ledger_id, each in held]
        finally:
            await logs.close()

    async def _verify(self, log: EntryLog, held: Sequence[tuple[int, LedgerInLog]]) -> list[Doubt]:
        await log.load()
        bad = [
            at for at in range(len(log.records.records)) if not await self._verify_record(log, at)
        ]
        doubts: list[Doubt] = []
        for done, (ledger_id, extent) in enumerate(held):
            if done % _LEDGERS_PER_STEP == 0:
                await self._pause(0)
            doubts += await self._verify_ledger(log, ledger_id, extent, bad)
        if not log.has_sound_footer:
            self._on_bad_footer(log)
        return doubts

    async def _verify_record(self, log: EntryLog, at: int) -> bool:
        try:
            size = await log.records.verify(at)
        except TornRecord:
            return False
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return False
        self._stats.scrub_bytes += size
        await self._pause(size)
        return True

    async def _verify_ledger(
        self, log: EntryLog, ledger_id: int, extent: LedgerInLog, bad: Sequence[int]
    ) -> list[Doubt]:
        """Verifies the ledger's index, and those of its entries that are in the records at `bad`;
        their own digests may prove some of them."""
        columns, unknown = await log.all_of(ledger_id)
        if len(columns.entry_ids) < extent.entries and not unknown:
            unknown = EVERYTHING
        doubts = _within(extent, unknown, ledger_id)
        if not bad:
            return doubts
        bad_ones = dict.fromkeys(bad)
        for entry_id, *place in zip(*columns, strict=True):
            if log.records.number_at(place[0]) in bad_ones:
                await self._pause(place[1])
                if not await _proves_itself(log, ledger_id, entry_id, EntryLocation(*place)):
                    doubts.append((ledger_id, entry_id, entry_id))
        return _joined(doubts)

    def _on_bad_footer(self, log: EntryLog) -> None:
        """Reports a log whose footer is damaged. No entry is lost: until the log is rewritten, it
        is indexed in memory whenever it is opened."""
        if log.number not in self._damaged:
            logger.warning("footer_rotten", log=log.number)
            self._stats.scrub_damages += 1
            self._damaged[log.number] = None

    async def _pause(self, size: int) -> None:
        await asyncio.sleep(self._pace.spend(size, self._clock.monotonic_ns()))
        if not self._may_run.is_set():
            await self._may_run.wait()
        if self._is_closing:
            raise ScrubStopped

    # --- One ledger ---------------------------------------------------------------------------

    async def verify(self, ledger_id: int) -> ScrubResult:
        """Verifies all entries of the ledger in entry logs by reading them from the disk now.

        Raises `NoSuchLedger`, `OSError`.
        """
        held_by_log = list(self._storage.catalog.held(ledger_id))
        try:
            entries = len(await self._storage.entry_ids(ledger_id))
        except EntryStateUnknown:
            entries = sum(held.entries for held in held_by_log)
        damaged: list[Doubt] = []
        logs = self._storage.open_logs(Cache(ByteCache(_CACHE_BYTES)))
        try:
            for held in held_by_log:
                try:
                    async with logs.use(held.log) as log:
                        damaged += await self._damaged_in(log, ledger_id, held)
                except TornRecord:
                    damaged.append((ledger_id, held.first_entry, held.last_entry))
        finally:
            await logs.close()
        return ScrubResult(
            ledger_id,
            entries,
            sum(held.entry_bytes for held in held_by_log),
            tuple((first, last) for _, first, last in _joined(damaged)[:_DAMAGES_SHOWN_MAX]),
            tuple((first, last) for first, last in self._storage.catalog.doubts.of(ledger_id)),
        )

    async def _damaged_in(self, log: EntryLog, ledger_id: int, extent: LedgerInLog) -> list[Doubt]:
        """Returns the ranges of entries that are sound neither in this log nor elsewhere."""
        columns, unknown = await log.all_of(ledger_id)
        damaged = _within(extent, unknown, ledger_id)
        for entry_id, *place in zip(*columns, strict=True):
            await self._pause(place[1])
            if await _proves_itself(log, ledger_id, entry_id, EntryLocation(*place)):
                continue
            try:
                await self._storage.read(ledger_id, entry_id)
            except EntryStateUnknown:
                damaged.append((ledger_id, entry_id, entry_id))
        return damaged


async def _proves_itself(
    log: EntryLog, ledger_id: int, entry_id: int, place: EntryLocation
) -> bool:
    try:
        await log.records.read(ledger_id, entry_id, place)
    except TornRecord:
        return False
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return False
    return True


def _within(extent: LedgerInLog, ranges: Sequence[LossRange], ledger_id: int) -> list[Doubt]:
    return [
        (ledger_id, max(first, extent.first_entry), min(last, extent.last_entry))
        for first, last in ranges
        if first <= extent.last_entry and extent.first_entry <= last
    ]


def _joined(doubts: Sequence[Doubt]) -> list[Doubt]:
    """Merges the adjacent ranges of one ledger."""
    joined: list[Doubt] = []
    for ledger_id, first, last in sorted(doubts):
        if joined and joined[-1][2] + 1 >= first:
            first, last = joined[-1][1], max(last, joined.pop()[2])
        joined.append((ledger_id, first, last))
    return joined
