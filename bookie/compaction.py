"""Rewrites entry logs that hold few live entries, and removes empty ones.

The live entries of several logs are read, verified and copied to a new, sorted log. The new log is
durable under its name before one catalog record replaces the old logs (B5). If the bookie dies
before that record, the next start removes the new log as a leftover; after it, the next start
removes the old logs. The same record puts damaged entries in doubt (B1): they are neither dropped
nor copied as sound entries.

Compaction is paced, works in steps of one record, and stops between two steps when it is suspended.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from heapq import merge
from itertools import count, groupby, islice, pairwise, repeat
from operator import itemgetter
from typing import Final

import structlog

from rollbook.bookie.background_yield import Background
from rollbook.bookie.cached_record_reader import Cache
from rollbook.bookie.config import SpaceConfig, StorageConfig
from rollbook.bookie.core.byte_cache import ByteCache
from rollbook.bookie.core.catalog import LedgerInLog
from rollbook.bookie.core.catalog_records import COMPACTED
from rollbook.bookie.core.compaction import (
    Candidate,
    CompactionGroup,
    CompactionKind,
    CompactionSchedule,
    candidate,
    hides_younger,
    is_between,
    pick_victims,
)
from rollbook.bookie.core.disk_usage import DiskUsage, pick_directory
from rollbook.bookie.core.journal_index import Columns, EntryLocation
from rollbook.bookie.core.possible_losses import EVERYTHING
from rollbook.bookie.entry_log_reader import EntryLog, EntryLogs
from rollbook.bookie.sorted_log_writer import NewLog, SortedLog, SortedWriter
from rollbook.bookie.storage import Storage
from rollbook.bookie.store_opening import log_path
from rollbook.proto.errors import TornRecord, WrongCluster
from rollbook.proto.ids import NO_ENTRY
from rollbook.proto.pacing import Pace
from rollbook.proto.ports import Clock, Disk, Randomness
from rollbook.proto.tasks import to_its_end

logger = structlog.get_logger()

_CACHE_BYTES: Final = 16 * 1024 * 1024
_ROOM_BYTES: Final = 64 * 1024  # Bytes that must stay free on the disk after a new log was written.
_ENTRY_COST_BYTES: Final = 256  # Handling one entry costs as much as copying this many bytes.
_LEDGERS_PER_STEP: Final = 16
# A rest is this many times as long as a step, because checkpoints need a share of the loop, too.
_RESTS: Final = 4.0
# With this patience compaction gets a thirtieth of a busy loop, about 3 MB a second.
_PATIENCE: Final = 6.0
_RESTS_IN_NEED: Final = 2.0  # While space is short, a rest is this many times as long as a step.
# The pace is multiplied by this while space is short, because adds are refused until there is space.
_EAGERNESS: Final = 8

_ledger_of = itemgetter(0)


class CompactionStopped(Exception):
    """Raised when compaction was suspended or closed; its unfinished work is dropped."""


class Unreadable(Exception):
    """Raised when the disk cannot read a log at present. The failure does not prove a loss."""

    def __init__(self, number: int, reason: BaseException) -> None:
        super().__init__(str(reason))
        self.number = number


@dataclass(frozen=True, slots=True)
class CompactionState:
    running: str  # The compaction that runs: "minor", "major", or empty.
    minor_suspended: bool
    major_suspended: bool
    minor_ended_ms: int  # Wall time at which the last one ended; 0: never.
    major_ended_ms: int
    logs_rewritten: int  # Logs rewritten since the start.
    logs_removed: int
    read_bytes: int
    written_bytes: int
    failures: int


class Compactor:
    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        randomness: Randomness,
        storage: Storage,
        storage_config: StorageConfig,
        config: SpaceConfig,
        usage: DiskUsage,
    ) -> None:
        # Logs with damage, which are rewritten even if they are full.
        self.damaged: dict[int, None] = {}
        self._disk = disk
        self._clock = clock
        self._randomness = randomness
        self._storage = storage
        self._stats = storage.stats
        self._directories = storage_config.ledger_dirs
        self._usage = usage
        self._bytes_per_s = config.compaction_bytes_per_s
        self._pace = Pace(config.compaction_bytes_per_s)
        self._background = Background(clock, lambda: storage.has_filled_files)
        self.schedule = CompactionSchedule(
            CompactionKind(
                "minor", config.minor_compaction_threshold, config.minor_compaction_interval_s
            ),
            CompactionKind(
                "major", config.major_compaction_threshold, config.major_compaction_interval_s
            ),
            clock.monotonic_ns(),
        )
        self._lock = asyncio.Lock()
        self._running: CompactionKind | None = None
        self._is_closing = False
        self._ended_ms = {"minor": 0, "major": 0}
        self._logs_removed = 0
        highest = max(storage.catalog.logs, default=0)
        self._numbers = count(max(highest, COMPACTED) + 1)

    @property
    def state(self) -> CompactionState:
        stats = self._stats
        return CompactionState(
            self._running.name if self._running else "",
            self.schedule.is_suspended("minor"),
            self.schedule.is_suspended("major"),
            self._ended_ms["minor"],
            self._ended_ms["major"],
            sum(stats.compactions.values()),
            self._logs_removed,
            stats.compaction_read_bytes,
            stats.compaction_written_bytes,
            stats.compaction_failures,
        )

    def suspend(self, *, minor: bool = True, major: bool = True) -> None:
        """Suspends compaction: a running compaction ends within a step, and no other one starts by
        itself."""
        if minor:
            self.schedule.suspend("minor", True)
        if major:
            self.schedule.suspend("major", True)

    def resume(self, *, minor: bool = True, major: bool = True) -> None:
        if minor:
            self.schedule.suspend("minor", False)
        if major:
            self.schedule.suspend("major", False)

    async def close(self) -> None:
        """Ends the running compaction within a step, even if an operator started it."""
        self._is_closing = True
        async with self._lock:
            pass

    # --- Runs ---------------------------------------------------------------------------------

    async def compact(self, *, major: bool) -> CompactionState:
        """Runs a compaction like `run`, but returns normally if it is stopped."""
        with suppress(CompactionStopped):
            await self.run(major=major)
        return self.state

    async def run(self, *, major: bool) -> CompactionState:
        """Compacts all logs that are sparse enough now, even if this kind of compaction is never
        scheduled.

        Raises `CompactionStopped`, `BookieFailed`, and `OSError` if the disk has no room for it.
        """
        kind = self.schedule.major if major else self.schedule.minor
        async with self._lock:
            self._running = kind
            try:
                self._check()
                await self._remove_empty()
                await self._rewrite_all(kind)
            except CompactionStopped:
                logger.info("compaction_stopped", kind=kind.name)
                raise
            except OSError:
                self._stats.compaction_failures += 1
                raise
            else:
                self.schedule.on_done(kind, self._clock.monotonic_ns())
                self._ended_ms[kind.name] = self._clock.wall_us() // 1000
            finally:
                self._running = None
        return self.state

    async def remove_empty(self) -> None:
        """Removes logs without live entries. Raises `OSError`."""
        async with self._lock:
            await self._remove_empty()

    async def _remove_empty(self) -> None:
        catalog = self._storage.catalog
        empty = [log.number for log in catalog.whole_logs if not catalog.use_of(log.number).ledgers]
        freed = sum(catalog.logs[number].file_bytes for number in empty)
        if not empty:
            return
        await to_its_end(self._storage.replace_logs(empty))
        self._logs_removed += len(empty)
        self._stats.gc_logs += len(empty)
        self._stats.gc_freed_bytes += freed
        logger.info("empty_logs_removed", logs=len(empty), bytes=freed)

    async def _rewrite_all(self, kind: CompactionKind) -> None:
        # This run neither gives up nor moves the entries of unreadable logs.
        unreadable: dict[int, None] = {}
        while batch := await self._pick(kind, unreadable):
            self._check()
            try:
                await self._rewrite(kind, batch)
            except Unreadable as error:
                logger.error("log_not_compacted", log=error.number, reason=str(error))
                self._stats.compaction_failures += 1
                unreadable[error.number] = None

    async def _pick(
        self, kind: CompactionKind, unreadable: dict[int, None]
    ) -> CompactionGroup | None:
        catalog = self._storage.catalog
        spaces = [await self._disk.space(path) for path in self._directories]
        room = max(space.free_bytes for space in spaces) - _ROOM_BYTES
        logs = [candidate(log, catalog.use_of(log.number)) for log in catalog.whole_logs]
        victims = [
            each
            for each in pick_victims(logs, kind.threshold, self.damaged)
            if each.number not in unreadable and each.sorted_bytes <= room
        ]
        if not victims:
            return None
        batch = CompactionGroup(victims[0])
        for each in victims[1:]:
            if batch.is_full:
                break
            # The more logs there are, the longer it takes to check a candidate.
            await self._give_way()
            if batch.has_room_for(each, room) and not await self._hides(batch, each):
                batch.add(each)
        return batch

    async def _hides(self, batch: CompactionGroup, other: Candidate) -> bool:
        """Returns whether merging would hide entries of other logs. Only a log that gets a younger
        age can hide entries."""
        catalog, taken = self._storage.catalog, [*batch.numbers, other.number]
        together = frozenset(taken)
        oldest, age = min(batch.oldest, other.age), max(batch.age, other.age)
        if not any(
            is_between(log, oldest, age) and log.number not in together
            for log in catalog.logs.values()
        ):
            return False
        for number in taken if other.age > batch.age else [other.number]:
            for done, (ledger_id, _) in enumerate(catalog.held_in(number)):
                if done % _LEDGERS_PER_STEP == 0:
                    await self._give_way()
                held = list(catalog.held(ledger_id))
                if len(held) > 1 and hides_younger(
                    held, lambda log: catalog.logs[log].age, together
                ):
                    return True
        return False

    # --- Writing one new log ------------------------------------------------------------------

    async def _rewrite(self, kind: CompactionKind, batch: CompactionGroup) -> None:
        catalog = self._storage.catalog
        number, numbers = next(self._numbers), batch.numbers
        bytes_before = sum(catalog.logs[each].file_bytes for each in numbers)
        directory = await self._pick_directory(number)
        sources = self._storage.open_logs(Cache(ByteCache(_CACHE_BYTES)))
        target = await SortedLog.create(
            self._disk,
            log_path(self._directories[directory], number),
            number,
            self._storage.store_id,
            self._randomness,
            self._pause,
        )
        new: NewLog | None = None
        try:
            async with AsyncExitStack() as stack:
                logs = {number: await _open(stack, sources, number) for number in numbers}
                doubts = await self._copy_all(logs, target.writer)
            if target.writer.is_empty:
                await target.abandon()
            else:
                new = await target.finish(directory, batch.age, self._storage.cache)
        except BaseException:
            await target.abandon()
            raise
        finally:
            await sources.close()
        try:
            await to_its_end(self._storage.replace_logs(numbers, new, doubts))
        except OSError:
            if number not in catalog.logs:
                await target.abandon()
            raise
        bytes_after = new.log.file_bytes if new else 0
        for each in numbers:
            self.damaged.pop(each, None)
        self._stats.on_compaction(kind.name, len(numbers), bytes_before, bytes_after)
        logger.info(
            "logs_compacted",
            kind=kind.name,
            logs=len(numbers),
            bytes_before=bytes_before,
            bytes=bytes_after,
            doubts=len(doubts),
        )

    async def _pick_directory(self, number: int) -> int:
        spaces = [await self._disk.space(path) for path in self._directories]
        return pick_directory(
            spaces, [self._usage.is_full(path) for path in self._directories], number
        )

    async def _copy_all(
        self, logs: Mapping[int, EntryLog | None], writer: SortedWriter
    ) -> list[tuple[int, int, int]]:
        """Copies the live entries; returns each damaged range as ledger, first and last entry."""
        catalog = self._storage.catalog
        doubts: list[tuple[int, int, int]] = []
        by_ledger = groupby(merge(*map(catalog.held_in, logs), key=_ledger_of), _ledger_of)
        for done, (ledger_id, _) in enumerate(by_ledger):
            if done % _LEDGERS_PER_STEP == 0:
                await self._give_way()
            held = [each for each in catalog.held(ledger_id) if each.log in logs]
            if held:  # A ledger that has no entries was deleted in the meantime.
                lost = await _LedgerCopy(logs, writer, ledger_id, held).run()
                doubts += [(ledger_id, *each) for each in lost]
        return doubts

    async def _pause(self, written: int, entries: int) -> None:
        self._check()
        self._pace.bytes_per_s = self._bytes_per_s * (_EAGERNESS if self._usage.is_short else 1)
        cost = written + _ENTRY_COST_BYTES * entries
        await self._give_way(self._pace.spend(cost, self._clock.monotonic_ns()))

    async def _give_way(self, at_least_s: float = 0.0) -> None:
        if self._usage.is_short:
            await self._background.give_way(_RESTS_IN_NEED, at_least_s)
        else:
            await self._background.give_way(_RESTS, at_least_s, patience=_PATIENCE)

    def _check(self) -> None:
        if self._is_closing:
            raise CompactionStopped("the bookie stops")
        if self._running and self.schedule.is_suspended(self._running.name):
            raise CompactionStopped("compaction is suspended")


async def _open(stack: AsyncExitStack, sources: EntryLogs, number: int) -> EntryLog | None:
    """Returns None if the log's header is lost, because then no entry of the log can be identified."""
    try:
        return await stack.enter_async_context(sources.use(number))
    except TornRecord:
        return None
    except (OSError, WrongCluster) as error:
        raise Unreadable(number, error) from error


class _LedgerCopy:
    """Copies one ledger's entries from all logs that hold it, youngest first."""

    def __init__(
        self,
        logs: Mapping[int, EntryLog | None],
        writer: SortedWriter,
        ledger_id: int,
        held: Sequence[LedgerInLog],
    ) -> None:
        """`logs` has None for each log in which no entry can be identified."""
        self._logs = logs
        self._writer = writer
        self._ledger_id = ledger_id
        self._held = held
        self._lost: list[tuple[int, int]] = []

    async def run(self) -> list[tuple[int, int]]:
        """Returns the ranges of damaged entries. Raises `Unreadable`."""
        lac = max(each.last_add_confirmed for each in self._held)
        self._writer.begin_ledger(self._ledger_id, lac)
        parts: list[tuple[EntryLog, Columns]] = []
        for held in self._held:
            if log := self._logs[held.log]:
                columns = await self._columns_of(log, held)
                if columns.entry_ids:
                    parts.append((log, columns))
            else:
                self._lost.append((held.first_entry, held.last_entry))
        in_order = sorted(parts, key=lambda part: part[1].entry_ids[0])
        ends = [(columns.entry_ids[0], columns.entry_ids[-1]) for _, columns in in_order]
        if all(last < first for (_, last), (first, _) in pairwise(ends)):
            for log, columns in in_order:
                await self._copy(log, columns)
        else:
            await self._copy_merged(parts)
        return self._lost

    async def _columns_of(self, log: EntryLog, held: LedgerInLog) -> Columns:
        try:
            columns, unknown = await log.all_of(self._ledger_id)
        except OSError as error:
            raise Unreadable(log.number, error) from error
        if len(columns.entry_ids) < held.entries and not unknown:
            unknown = EVERYTHING
        for first, last in unknown:
            first, last = max(first, held.first_entry), min(last, held.last_entry)
            if first <= last:
                self._lost.append((first, last))
        return columns

    async def _copy(self, log: EntryLog, columns: Columns) -> None:
        """Copies entries that only this log has."""
        for run in self._writer.runs(columns):
            try:
                entries = await log.records.read_run(run.positions, run.lengths)
            except OSError as error:
                raise Unreadable(log.number, error) from error
            if entries:
                await self._writer.add(run.entry_ids[: len(entries)], entries)
            # After the first damaged record, entries are copied one by one: some entries of that
            # record may have a valid digest, and later records may be sound.
            for row in islice(zip(*run, strict=True), len(entries), None):
                if not await self._copy_one(log, *row):
                    self._lost.append((row[0], row[0]))

    async def _copy_merged(self, parts: Sequence[tuple[EntryLog, Columns]]) -> None:
        """Copies the youngest sound copy of each entry."""
        rows = [
            zip(columns.entry_ids, repeat(rank), columns.positions, columns.lengths, strict=False)
            for rank, (_, columns) in enumerate(parts)
        ]
        copied: int = NO_ENTRY
        sought: int = NO_ENTRY
        for entry_id, rank, position, length in merge(*rows):
            if entry_id == copied:
                continue
            if sought not in (copied, entry_id):
                self._lost.append((sought, sought))
            sought = entry_id
            if await self._copy_one(parts[rank][0], entry_id, position, length):
                copied = entry_id
        if sought != copied:
            self._lost.append((sought, sought))

    async def _copy_one(self, log: EntryLog, entry_id: int, position: int, length: int) -> bool:
        """Copies one entry; returns False if it is damaged."""
        try:
            entry = await log.records.read(
                self._ledger_id, entry_id, EntryLocation(position, length)
            )
        except TornRecord:
            return False
        except OSError as error:
            raise Unreadable(log.number, error) from error
        await self._writer.add((entry_id,), (entry,))
        return True
