"""A bookie's storage, which adds, reads and fences, on top of the journal, the entry logs and the
catalog.

A read has one of three results (B1): the entry; `NoSuchEntry` or `NoSuchLedger`, which promises
that the entry was never acknowledged here; or `EntryStateUnknown`, if damage or doubts leave that
open. All entries that can be read are durable, and a fence is acknowledged only when it is durable
(B4).

    add -> fencing -> journal -> index              read <- index | entry logs <- cache
                          |                                          ^
                        filled --------- checkpoint -----------------+

All work runs on one event loop; facts that belong together change without an `await` in between.
"""

import asyncio
import errno
import sys
from array import array
from collections.abc import Callable, Iterable, Sequence
from heapq import merge
from itertools import islice
from typing import Final, NamedTuple

import structlog

from rollbook.bookie.background_yield import Background
from rollbook.bookie.cached_record_reader import Cache
from rollbook.bookie.checkpoint import Checkpointer
from rollbook.bookie.config import StorageConfig
from rollbook.bookie.core import catalog_records as changes
from rollbook.bookie.core.byte_cache import ByteCache
from rollbook.bookie.core.control_records import Control, ControlOperation
from rollbook.bookie.core.entry_salvage import take_frames
from rollbook.bookie.core.fencing import AddLimits, Ledger, LedgerFacts
from rollbook.bookie.core.id_ranges import Ranges
from rollbook.bookie.core.journal_index import IntArray
from rollbook.bookie.core.record_packer import Frames, Write, index_of, size_of
from rollbook.bookie.damage_events import DamageEvents
from rollbook.bookie.entry_log_reader import EntryLogs
from rollbook.bookie.entry_reader import Reading
from rollbook.bookie.journal import Journal, JournalFile, OnDone, set_when_done
from rollbook.bookie.ledger_reports import LedgerViews
from rollbook.bookie.sorted_log_writer import NewLog
from rollbook.bookie.stats import Stats
from rollbook.bookie.store_opening import (
    FoundStore,
    find_store,
    lock_directories,
    log_path,
    make_store,
)
from rollbook.proto.errors import BookieReadOnly, EntryStateUnknown, Superseded
from rollbook.proto.ids import LEDGER_ID_MAX, NO_ENTRY
from rollbook.proto.ports import Clock, Disk, DiskLock, DiskSpace, Randomness
from rollbook.proto.tasks import first_failure, to_its_end
from rollbook.proto.wire.add_columns import AddGroup, Adds
from rollbook.proto.wire.messages import Failure

logger = structlog.get_logger()

_RETRY_S: Final = (0.1, 10.0)  # The first and the longest pause between attempts at a checkpoint.
_FACTS_PER_RECORD: Final = 1024
_IDS_PER_STEP: Final = 4096
# The number of ledger objects in memory; there are more only while their facts are unsaved.
_LEDGERS_MAX: Final = 65_536


class Admission(NamedTuple):
    """Says which adds of a stretch were accepted."""

    refusals: tuple[Failure, ...]  # The refusal of each group, or None if the group is accepted.
    # Done when the accepted adds are durable; None if `on_done` reports that.
    done: asyncio.Future[None] | None


class Storage:
    def __init__(
        self,
        disk: Disk,
        config: StorageConfig,
        clock: Clock,
        randomness: Randomness,
        found: FoundStore,
        cache: Cache,
        locks: Sequence[DiskLock],
        stats: Stats,
    ) -> None:
        # This method is long because it makes all state of a store and explains it.
        self.stats = stats
        # For each ledger, callbacks that wait for its LAC. They are called when the LAC was
        # reported or rose, or the ledger was deleted, and must return quickly. A read right after
        # the call may see an older LAC, but a read in the loop's next turn does not.
        self.lac_watchers: dict[int, Callable[[int], None]] = {}
        # Ledgers to which no add was accepted since they were put here; an accepted add removes its
        # ledger.
        self.quiet: dict[int, int] = {}
        self.refuses_adds = False  # Whether all adds are refused, except urgent ones.
        # While False, no request that would have to be durable is accepted, not even a fence (B8).
        self.may_promise = True
        self._disk = disk
        self._config = config
        self._clock = clock
        self._catalog_files = found.catalog
        self._catalog_files.give_way = Background(clock).give_way
        self.catalog = found.catalog.catalog  # Other classes only read the catalog.
        self.store_id = found.catalog.store_id
        self.cache = cache
        self._locks = locks
        self._filled = found.files  # Filled journal files, oldest first.
        self._has_filled = asyncio.Event()
        # Set if another file may be filled, or if checkpoints fail, so that no more files will be
        # filled.
        self._has_room = asyncio.Event()
        self._checkpoints_fail = False
        self._ledgers: dict[int, Ledger] = {}  # Ledgers that were used lately or are busy.
        # Fences that are on their way to the disk.
        self._fences: dict[int, asyncio.Future[None]] = {}
        # Drops that are on their way to the disk.
        self._drops: dict[int, asyncio.Future[None]] = {}
        self._unsaved: dict[int, None] = {}  # Ledgers with facts that the catalog does not have.
        # The start replayed all files with lower numbers.
        self._first_journal = found.next_journal
        self._opened_us = clock.wall_us()
        parts = (disk, config, randomness, found.catalog, cache)
        self._logs = EntryLogs(disk, found.catalog.store_id, self._path_of_log, cache)
        self._reading = Reading(
            self.catalog,
            self._logs,
            self._files,
            self._known_ledger,
            stats,
            has_failed=lambda: self._journal.failure is not None,
        )
        self.peek, self.read = self._reading.peek, self._reading.read
        self.read_run, self.read_last = self._reading.read_run, self._reading.read_last
        self._damage_events = DamageEvents(clock)
        self._checkpointer = Checkpointer(
            *parts, clock, self._damage_events, lambda: len(self._filled)
        )
        self._journal = Journal(
            *parts, clock, stats, self._until_it_may_fill, self._on_written, self._on_filled
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._show_gauges(cache)

    # --- Opening and closing ------------------------------------------------------------------

    @staticmethod
    async def make(
        disk: Disk,
        config: StorageConfig,
        randomness: Randomness,
        *,
        doubted: Iterable[int] = (),
        old_below: int = 0,
    ) -> None:
        """Makes an empty store. Raises `BadConfig` if there is a store already.

        The `doubted` ledgers are fenced and UNKNOWN from the start, never ABSENT; ordinary adds to
        ledgers below `old_below` are refused (B13).
        """
        await make_store(disk, config, randomness, doubted, old_below)

    @classmethod
    async def open(
        cls,
        disk: Disk,
        config: StorageConfig,
        clock: Clock,
        randomness: Randomness,
        *,
        accepts_loss: bool = False,
        locks: Sequence[DiskLock] | None = None,
        stats: Stats | None = None,
    ) -> "Storage":
        """Opens the store: when this returns, everything that was ever acknowledged can be read.
        The caller then calls `start`.

        `locks` are the result of `lock_directories`, if the caller has it; they are released with
        the store.

        Raises `BadConfig` if there is no store, `DataLost` if durable files are missing,
        `DirectoryInUse`, `WrongCluster`, `OSError`.
        """
        cache = Cache(ByteCache(config.cache_bytes))
        if locks is None:
            locks = await lock_directories(disk, config)
        try:
            found = await find_store(disk, config, randomness, cache, accepts_loss=accepts_loss)
            stats = stats or Stats()
            storage = cls(disk, config, clock, randomness, found, cache, locks, stats)
            await storage._journal.open(found.spare, found.next_journal, found.next_sequence)
        except BaseException:
            for lock in locks:
                await lock.release()
            raise
        for ledger_id, facts in found.facts.items():
            storage._ledgers[ledger_id] = storage._make_ledger(ledger_id, facts)
            storage._unsaved[ledger_id] = None
        return storage

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._journal.run()),
            asyncio.create_task(self._catalog_files.until_failed()),
            asyncio.create_task(self._run_checkpoints()),
        ]

    async def failed(self) -> BaseException:
        """Returns the error after which the storage cannot go on; the process then has to end."""
        return await first_failure(self._tasks)

    async def close(self) -> None:
        """Makes pending writes durable, and closes the store."""
        self._journal.close()
        for task in self._tasks:
            if task is not self._tasks[0]:
                task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        for file in (*self._filled, self._journal.active):
            await file.records.retire()
        await self._logs.close()
        await self._catalog_files.close()
        for lock in self._locks:
            await lock.release()

    def _show_gauges(self, cache: Cache) -> None:
        """Registers the values that a scrape reads and that are not counted."""
        stats, catalog = self.stats, self.catalog
        stats.journal_queue_bytes = lambda: self._journal.queued_bytes
        stats.journal_files_waiting = lambda: len(self._filled)
        stats.memtable_bytes = lambda: sum(file.index.memory_bytes for file in self._files())
        stats.cache_hits = lambda: cache.bodies.hits
        stats.cache_misses = lambda: cache.bodies.misses
        stats.cache_bytes = lambda: cache.bodies.bytes
        stats.ledgers = lambda: (
            len(catalog.facts) + len(self._unsaved.keys() - catalog.facts.keys())
        )
        stats.entries = lambda: (
            sum(catalog.use_of(number).entries for number in catalog.logs)
            + sum(file.index.entries for file in self._files())
        )
        stats.entry_logs = lambda: len(catalog.logs)
        stats.entry_log_bytes = lambda: sum(log.file_bytes for log in catalog.logs.values())
        stats.doubtful_ledgers = lambda: catalog.doubts.ledgers
        stats.doubts_everything = lambda: catalog.doubts.everything
        stats.read_only = lambda: self.is_read_only

    def _path_of_log(self, number: int) -> str:
        log = self.catalog.logs.get(number)
        if log is None:
            raise FileNotFoundError(f"entry log {number} was removed")
        return log_path(self._config.ledger_dirs[log.directory], number)

    # --- Adding -------------------------------------------------------------------------------

    def add(self, adds: Adds, on_done: OnDone | None = None) -> Admission:
        """Checks the groups of a stretch, and queues the accepted ones in the journal in the same
        step.

        `on_done` is called before an awaiting task resumes: see `Journal.submit`. The caller calls
        `go_on` after its last add, in the same step.
        """
        limits = self._limits_of(adds)
        refusals = tuple([self._refusal_of(group, limits) for group in adds.groups])
        accepted = adds.groups
        if any(refusals):
            accepted = [g for g, refusal in zip(accepted, refusals, strict=True) if not refusal]
            if not accepted:
                return Admission(refusals, None)
        done: asyncio.Future[None] | None = None
        if on_done is None:
            done = asyncio.get_running_loop().create_future()
            on_done = set_when_done(done)
        self._submit(adds, accepted, on_done)
        if done is not None:
            self._journal.go_on()
        return Admission(refusals, done)

    def go_on(self) -> None:
        """Called after the last add of a step, so that the journal may write."""
        self._journal.go_on()

    def on_adder_gone(self, on_done: OnDone) -> None:
        """Called when no more adds come with this callback; earlier adds are still reported."""
        self._journal.on_gone(on_done)

    def _limits_of(self, adds: Adds) -> AddLimits:
        size, is_read_only = adds.end - adds.start, self.is_read_only
        return AddLimits(
            is_read_only=is_read_only,
            takes_urgent=is_read_only and self.may_promise and self._journal.has_room_for(size),
            may_have_lost_fences=self.catalog.doubts.everything,
            old_below=self.catalog.old_below,
            queued_bytes=self._journal.queued_bytes + size,
            queued_bytes_max=self._config.queued_bytes_max,
        )

    def _refusal_of(self, group: AddGroup, limits: AddLimits) -> Failure:
        if refusal := limits.refusal_of_group(group):
            return refusal
        ledger = self._ledger(group.ledger_id)
        if refusal := limits.refusal_of_add(group, ledger):
            return refusal
        ledger.show_key(group.ledger_key)
        if self.quiet:
            self.quiet.pop(group.ledger_id, None)
        if ledger.on_lac(group.lacs[-1]) and self.lac_watchers:
            self._notify_lac_watcher(group.ledger_id)
        return None

    def _submit(self, adds: Adds, groups: Sequence[AddGroup], on_done: OnDone) -> None:
        is_deferred = all(group.is_sync_deferred and not group.is_recovery for group in groups)
        # Refused adds are cut out, because they must not reach the journal.
        if len(groups) < len(adds.groups):
            (adds,) = take_frames(adds.frames_of(groups))
        is_all = not adds.start and adds.end == len(adds.buffer)
        frames = Frames(
            adds.buffer if is_all else bytes(adds.frames), -adds.start, tuple(adds.groups)
        )
        self._journal.submit(frames, on_done, is_sync_deferred=is_deferred)

    def _on_written(self, file: JournalFile, write: Write) -> None:
        """Lets readers find the entries of a write, which is durable unless its caller did not want
        a sync."""
        entries, entry_bytes = 0, 0
        for record in write.records:
            for control in record.controls:
                self._on_control(control, file)
            if not record.adds:
                continue
            file.records.on_written(record.position, record.body, write.end)
            file.shape.on_record(len(record.body), record.ledgers)
            bytes_before = file.index.entry_bytes
            for placed in record.adds:
                for group, positions, lengths in index_of(placed):
                    lac = group.last_add_confirmed
                    # The ledger is looked up before its LAC rises, because a new LAC is news.
                    ledger = self._ledger(group.ledger_id)
                    file.index.add_group(group.ledger_id, lac, group.entry_ids, positions, lengths)
                    entries += len(group.entry_ids)
                    if ledger.on_durable_lac(lac) and self.lac_watchers:
                        self._notify_lac_watcher(group.ledger_id)
                    if ledger.facts.ledger_key is None:
                        self._set_facts(ledger, ledger.facts.with_key(group.ledger_key))
            entry_bytes += file.index.entry_bytes - bytes_before
        self.stats.on_entries(entries, entry_bytes)

    def _on_control(self, control: Control, file: JournalFile) -> None:
        ledger = self._ledger(control.ledger_id)
        if control.operation is ControlOperation.FENCE and not ledger.facts.is_fenced:
            logger.info("ledger_fenced", ledger_id=control.ledger_id)
        self._set_facts(ledger, control.applied_to(ledger.facts, file.number))
        if control.operation is ControlOperation.LAC and ledger.on_durable_lac(control.number):
            self._notify_lac_watcher(control.ledger_id)
        if control.operation in (ControlOperation.DELETE, ControlOperation.DROP):
            for each in self._files():
                each.index.drop(control.ledger_id)
        if control.operation is ControlOperation.DELETE:
            file.deleted[control.ledger_id] = None
            self._notify_lac_watcher(control.ledger_id)
        if control.operation is ControlOperation.DROP:
            self.catalog.drop(control.ledger_id, file.number)
            self._reading.moves += 1

    def _notify_lac_watcher(self, ledger_id: int) -> None:
        if on_risen := self.lac_watchers.get(ledger_id):
            on_risen(ledger_id)

    def _set_facts(self, ledger: Ledger, facts: LedgerFacts) -> None:
        if facts is not ledger.facts:
            ledger.on_facts(facts)
            self._unsaved[ledger.ledger_id] = None

    # --- Ledgers ------------------------------------------------------------------------------

    async def fence(self, ledger_id: int, ledger_key: bytes) -> None:
        """Fences the ledger: ordinary adds are refused from now on. The fence is durable when this
        returns.

        Raises `Unauthorized`, `NoSuchLedger` if the ledger was deleted, `BookieFailed`, and
        `BookieReadOnly` if the bookie may not promise anything.
        """
        ledger = self._ledger(ledger_id)
        if refusal := ledger.refusal_of_control(ledger_key):
            raise refusal(ledger_id=ledger_id)
        ledger.show_key(ledger_key)
        if ledger.facts.is_fenced:
            return
        if not self.may_promise:
            raise BookieReadOnly(ledger_id=ledger_id)
        ledger.fence_is_wanted = True
        fence = self._fences.get(ledger_id)
        if fence is None:
            fence = self._journal.append(
                Control(ControlOperation.FENCE, ledger_id, ledger.shown_key)
            )
            self._fences[ledger_id] = fence
            fence.add_done_callback(lambda _: self._fences.pop(ledger_id, None))
        await asyncio.shield(fence)

    async def write_lac(
        self, ledger_id: int, ledger_key: bytes, last_add_confirmed: int, packet: bytes
    ) -> None:
        """Makes the explicit LAC durable. Raises `Unauthorized`, `NoSuchLedger`,
        `BookieFailed`, and `BookieReadOnly` while the bookie is read-only."""
        ledger = self._ledger(ledger_id)
        if refusal := ledger.refusal_of_control(ledger_key):
            raise refusal(ledger_id=ledger_id)
        if self.is_read_only:
            raise BookieReadOnly(ledger_id=ledger_id)
        ledger.show_key(ledger_key)
        control = Control(
            ControlOperation.LAC, ledger_id, ledger.shown_key, last_add_confirmed, bytes(packet)
        )
        await self._journal.append(control)

    def lac_packet(self, ledger_id: int) -> bytes | None:
        """Returns the explicit LAC as its writer packed it. Raises `EntryStateUnknown`."""
        if self.catalog.doubts.about(ledger_id, NO_ENTRY):
            raise EntryStateUnknown(ledger_id=ledger_id)
        ledger = self._known_ledger(ledger_id)
        return ledger.facts.lac_packet if ledger else None

    def last_add_confirmed(self, ledger_id: int) -> int:
        """Returns the highest durable LAC that this bookie knows from an entry or an explicit LAC.
        If entries are in doubt, the true LAC can only be higher."""
        ledger = self._known_ledger(ledger_id)
        return ledger.last_add_confirmed if ledger else NO_ENTRY

    def received_lac(self, ledger_id: int) -> int:
        """Returns the highest LAC that was reported here, which is true but may not be durable.
        After a restart, a lower one may be returned."""
        ledger = self._known_ledger(ledger_id)
        return ledger.received_lac if ledger else NO_ENTRY

    def expect_deletion(self, ledger_ids: Iterable[int], *, is_wanted: bool) -> None:
        """While `is_wanted`, refuses new adds to these ledgers, so that the result of a check of
        their metadata stays true."""
        for ledger_id in ledger_ids:
            self._ledger(ledger_id).is_suspect = is_wanted

    async def delete(self, *ledger_ids: int) -> None:
        """Deletes the ledgers' entries, durably; from now on late adds are refused.

        Does nothing and raises `OSError` if the rest of the journal is for fences and recovery.
        """
        wall_ms = self._clock.wall_us() // 1000
        ledgers = list(map(self._ledger, ledger_ids))
        controls = [
            Control(ControlOperation.DELETE, each.ledger_id, each.shown_key, wall_ms)
            for each in ledgers
        ]
        self._require_room_for(controls)
        for ledger, control in zip(ledgers, controls, strict=True):
            ledger.fence_is_wanted = ledger.deletion_is_wanted = True
            deletion = self._journal.append(control)
        await deletion

    async def drop(self, *ledger_ids: int) -> None:
        """Drops all entries that were added before, durably; later adds are accepted (B16).

        The key, the fence and the explicit LAC stay. Raises `OSError` as `delete` does, and
        `BookieFailed`.
        """
        ledgers = list(map(self._ledger, ledger_ids))
        controls = [
            Control(ControlOperation.DROP, each.ledger_id, each.shown_key) for each in ledgers
        ]
        self._require_room_for(controls)
        drops = list(map(self._journal.append, controls))
        self._drops.update(zip(ledger_ids, drops, strict=True))

        async def until_durable() -> None:
            await asyncio.gather(*drops)

        try:
            await to_its_end(until_durable())
        finally:
            for ledger_id in ledger_ids:
                del self._drops[ledger_id]

    def _require_room_for(self, controls: Sequence[Control]) -> None:
        if not self._journal.has_room_for(sum(map(size_of, controls))):
            raise OSError(errno.ENOSPC, "the rest of the journal is for fences and recovery")

    async def space(self) -> DiskSpace:
        """Returns the space of all ledger directories; a disk that has several of them counts once."""
        disks: dict[int, DiskSpace] = {}
        for directory in self._config.ledger_dirs:
            if stat := await self._disk.stat(directory):
                disks[stat.device] = await self._disk.space(directory)
        return DiskSpace(
            sum(disk.total_bytes for disk in disks.values()),
            sum(disk.free_bytes for disk in disks.values()),
        )

    @property
    def is_about_to_write(self) -> bool:
        """Returns whether adds will be written in the next turn of the loop. Reads wait only in
        this case."""
        return self._journal.is_about_to_write

    async def force(self) -> None:
        """Makes all requests durable that were acknowledged before the call."""
        await self._journal.sync()

    async def entry_ids(self, ledger_id: int) -> list[int]:
        """Returns single ids instead of the ranges of `entry_ranges`."""
        ranges = await self.entry_ranges(ledger_id)
        return [entry_id for first, last in ranges for entry_id in range(first, last + 1)]

    async def entry_ranges(self, ledger_id: int, ranges_max: int = sys.maxsize) -> Ranges:
        """Returns the ranges of all entries here. A copier relies on this list, which has no entry
        that will be dropped.

        Raises `NoSuchLedger`, `EntryStateUnknown`, and `EntryTooLarge` if there are too many ranges.
        """
        if drop := self._drops.get(ledger_id):
            await asyncio.shield(drop)
        return await self._reading.entry_ranges(ledger_id, ranges_max)

    def holds_entries_of(self, ledger_id: int) -> bool:
        """Returns whether entries of the ledger are here and the ledger was not deleted."""
        return not self._is_deleted(ledger_id) and self._has_entries(ledger_id)

    def entry_bytes_of(self, ledger_id: int) -> int:
        """Returns the bytes of the ledger's entries; an entry that is here twice counts twice."""
        rows = [file.index.ledgers.get(ledger_id) for file in self._files()]
        held = sum(each.entry_bytes for each in self.catalog.held(ledger_id))
        return held + sum(each.entry_bytes for each in rows if each)

    def knows(self, ledger_id: int) -> bool:
        """Returns whether a request to this bookie named the ledger, and the ledger was not
        deleted."""
        ledger = self._known_ledger(ledger_id)
        return ledger is not None and not ledger.is_deleted

    def is_fenced(self, ledger_id: int) -> bool:
        """Returns whether the ledger is fenced durably."""
        ledger = self._known_ledger(ledger_id)
        return bool(ledger and ledger.facts.is_fenced)

    def _known_ledger(self, ledger_id: int) -> Ledger | None:
        """Returns the ledger, or None if no request to this bookie ever named it."""
        ledger = self._ledgers.get(ledger_id)
        if ledger is not None:
            return ledger
        facts = self.catalog.facts.get(ledger_id)
        if facts is None and not self._has_entries(ledger_id):
            return None
        return self._ledger(ledger_id)

    def _ledger(self, ledger_id: int) -> Ledger:
        ledger = self._ledgers.get(ledger_id)
        if ledger is None:
            facts = self.catalog.facts.get(ledger_id) or LedgerFacts()
            self._make_room_for_ledgers()
            ledger = self._ledgers[ledger_id] = self._make_ledger(ledger_id, facts)
        return ledger

    def _make_room_for_ledgers(self) -> None:
        """Drops one or two ledger objects that can be made again from durable facts."""
        for _ in range(2 if len(self._ledgers) >= _LEDGERS_MAX else 0):
            ledger_id, ledger = next(iter(self._ledgers.items()))
            del self._ledgers[ledger_id]
            if ledger_id in self._unsaved or not ledger.is_at_rest:
                self._ledgers[ledger_id] = ledger  # The ledger goes to the end of the order.

    def _make_ledger(self, ledger_id: int, facts: LedgerFacts) -> Ledger:
        ledger = Ledger(ledger_id, facts)
        ledger.on_durable_lac(self.catalog.last_add_confirmed(ledger_id))
        for file in self._files():
            if rows := file.index.ledgers.get(ledger_id):
                ledger.on_durable_lac(rows.last_add_confirmed)
        return ledger

    def _has_entries(self, ledger_id: int) -> bool:
        return any(ledger_id in file.index.ledgers for file in self._files()) or any(
            True for _ in self.catalog.held(ledger_id)
        )

    def _files(self) -> list[JournalFile]:
        """Returns the journal files with entries that are in no entry log yet, newest first."""
        return [self._journal.active, *reversed(self._filled)]

    # --- For operators ------------------------------------------------------------------------

    @property
    def failure(self) -> BaseException | None:
        """The error that poisoned the journal: no request is acknowledged any more."""
        return self._journal.failure

    @property
    def end_of_journal(self) -> tuple[int, int]:
        """The number of the active journal file, and the position of its end."""
        return self._journal.active.number, self._journal.active.end

    def views(self) -> LedgerViews:
        files = [(file.path.rpartition("/")[2], file.index) for file in self._files()]
        return LedgerViews(
            self.catalog, files, self._unsaved, lambda each: self._ledgers[each].facts
        )

    # --- Space --------------------------------------------------------------------------------

    async def ledger_ids(self) -> IntArray:
        """Returns all known ledgers that are not deleted, ascending."""
        runs: list[list[int]] = []
        background = Background(self._clock)
        for known in (self.catalog.facts, self.catalog.held_ledgers, self._unsaved):
            ids = list(known)
            for start in range(0, len(ids), _IDS_PER_STEP):
                part = ids[start : start + _IDS_PER_STEP]
                runs.append(sorted(each for each in part if not self._is_deleted(each)))
                await background.give_way()
        found = array("q")
        for number, ledger_id in enumerate(merge(*runs)):
            if number % _IDS_PER_STEP == 0:
                await background.give_way()
            if not found or found[-1] != ledger_id:
                found.append(ledger_id)
        return found

    def _is_deleted(self, ledger_id: int) -> bool:
        ledger = self._ledgers.get(ledger_id)
        return ledger.is_deleted if ledger else self.catalog.is_deleted(ledger_id)

    async def distrust(self, ledger_ids: Sequence[int], old_below: int = 0) -> None:
        """Puts all entries and the fences of these ledgers in doubt, durably: the ledgers are
        fenced, and their entries are UNKNOWN.

        All ledgers below `old_below` may have lost a fence, so their writers have to use other
        bookies (B13).
        """
        saved: dict[int, LedgerFacts] = {}
        for ledger_id in ledger_ids:
            self._ledger(ledger_id).fence_is_wanted = True

        def pack() -> list[bytes]:
            for each in ledger_ids:
                saved[each] = self._ledger(each).facts.with_fence()
            doubts = (changes.pack_doubt(each, NO_ENTRY, LEDGER_ID_MAX) for each in ledger_ids)
            fences = (changes.pack_ledger(*each) for each in saved.items())
            return [changes.pack_old(old_below), *fences, *doubts]

        await self._catalog_files.commit_latest(pack)
        for each, facts in saved.items():
            ledger = self._ledger(each)
            self._set_facts(ledger, ledger.facts.with_fence())
            if ledger.facts == facts:
                self._unsaved.pop(each, None)

    async def forget(self, *ledger_ids: int) -> None:
        """Forgets deleted ledgers completely. Raises `OSError`.

        Keeps ledgers whose deletion is still in the journal, because its replay would also delete a
        new ledger under the same id.
        """
        deleted = [
            each
            for each in ledger_ids
            if self._is_deleted(each) and not any(each in file.deleted for file in self._files())
        ]
        await self._catalog_files.commit([changes.pack_forget(each) for each in deleted])
        for ledger_id in deleted:
            self._ledgers.pop(ledger_id, None)
            self._unsaved.pop(ledger_id, None)

    def open_logs(self, cache: Cache) -> EntryLogs:
        """Opens the logs for a caller that reads many of them and must not evict everything from
        the cache."""
        return EntryLogs(self._disk, self.store_id, self._path_of_log, cache)

    async def doubt(self, doubts: Sequence[tuple[int, int, int]]) -> None:
        """Puts damaged entries in doubt; each range is given as ledger, first and last entry.
        Raises `OSError`."""
        await self._catalog_files.commit([changes.pack_doubt(*each) for each in doubts])
        self._damage_events.log(doubts)

    @property
    def doubts_stamp(self) -> str:
        """A text that changes with each start and each new doubt."""
        return f"{self._opened_us:x}-{self.catalog.doubts.news:x}"

    async def settle(self, stamp: str, ledger_id: int, ranges: Iterable[tuple[int, int]]) -> None:
        """Ends doubts about entries that were restored or will never be needed; durable when it
        returns.

        `stamp` is the stamp of the doubts that the caller saw. Raises `Superseded` if more came
        into doubt since then, because the new doubts may be about the same entries. Also raises
        `OSError`.
        """
        await self._until_replay_is_saved()
        settled = list(ranges)

        def pack() -> list[bytes]:
            self._require_stamp(stamp == self.doubts_stamp)
            return [changes.pack_trust(ledger_id, *each) for each in settled]

        await self._catalog_files.commit_latest(pack)
        logger.info("doubts_settled", ledger_id=ledger_id, ranges=settled)

    async def settle_everything(self, stamp: str, old_below: int) -> None:
        """Ends the doubt about everything; entries of single ledgers may still be in doubt. Raises
        `Superseded` if more came into doubt since the caller looked, and `OSError`.

        Fences of ledgers that were not checked stay lost: all of them are below `old_below`
        (B13).
        """
        await self._until_replay_is_saved()

        def pack() -> list[bytes]:
            # While a bookie runs, only single entries come into doubt, never everything.
            self._require_stamp(stamp.partition("-")[0] == f"{self._opened_us:x}")
            return [changes.pack_old(old_below), changes.TRUST_ALL]

        await self._catalog_files.commit_latest(pack)
        logger.warning("everything_settled")

    def _require_stamp(self, is_right: bool) -> None:
        if not is_right:
            raise Superseded("more came into doubt in the meantime", next_step="look again")

    async def _until_replay_is_saved(self) -> None:
        """Waits until the replayed files are checkpointed, because otherwise the next start would
        find the same damage in them."""
        while self._filled and self._filled[0].number < self._first_journal:
            self._has_room.clear()
            await self._has_room.wait()

    async def scrub_catalog(self) -> list[str]:
        """Scrubs the catalog; returns its damaged copies, which will be replaced. Raises
        `OSError`."""
        return await self._catalog_files.scrub()

    async def note_scrubbed(self, number: int) -> None:
        await self._catalog_files.commit([changes.pack_scrubbed(number)])

    async def replace_logs(
        self,
        numbers: Sequence[int],
        new: NewLog | None = None,
        doubts: Sequence[tuple[int, int, int]] = (),
    ) -> None:
        """Removes logs whose live entries are in the new log or are in doubt (B5).

        Raises `OSError` if nothing has changed.
        """
        parts: list[bytes] = []
        if new:
            background = Background(self._clock)
            for part in changes.pack_log(new.log, new.extents):
                parts.append(part)
                await background.give_way()
        paths = [self._path_of_log(number) for number in numbers]
        parts += [changes.pack_doubt(*each) for each in doubts]
        parts += map(changes.pack_unlog, numbers)
        news = [each for each in doubts if not self.catalog.doubts.covers(*each)]
        await self._catalog_files.commit(parts)
        self._damage_events.log(news)
        if new:
            await self._logs.put(new.log.number, new.records)
        for number, path in zip(numbers, paths, strict=True):
            await self._logs.remove(number)
            try:
                await self._disk.unlink(path)
            except OSError as error:  # The next start removes the file.
                logger.warning("entry_log_not_removed", path=path, reason=str(error))

    # --- Checkpoints --------------------------------------------------------------------------

    @property
    def is_read_only(self) -> bool:
        """Returns whether entries are refused, because space is short, checkpoints fail, fences may
        have been lost, an operator wants it, or the bookie may not promise anything.

        While everything is in doubt, it is not known which ledgers were fenced (B4): writers use
        other bookies, but recovery gets its answers as before.
        """
        is_stuck = self._checkpoints_fail and not self._may_fill
        return (
            self.refuses_adds
            or not self.may_promise
            or self._journal.is_full
            or is_stuck
            or self.catalog.doubts.everything
        )

    @property
    def has_filled_files(self) -> bool:
        """Returns whether a checkpoint is in progress or due."""
        return bool(self._filled) and not self._checkpoints_fail

    @property
    def _may_fill(self) -> bool:
        return len(self._filled) < self._config.waiting_files_max

    async def _until_it_may_fill(self) -> None:
        """Waits while too many files wait for a checkpoint; if checkpoints fail, adds are refused
        instead."""
        while not (self._may_fill or self._checkpoints_fail):
            self._has_room.clear()
            await self._has_room.wait()

    async def checkpoint(self) -> bool:
        """Checkpoints the oldest filled file; returns False if there is none. Raises `OSError` if
        the checkpoint can be tried again."""
        if not self._filled:
            return False
        file = self._filled[0]
        started_ns = self._clock.monotonic_ns()
        while len(self._unsaved) > _FACTS_PER_RECORD:
            await self.save_facts(list(islice(self._unsaved, _FACTS_PER_RECORD)))
        saved: dict[int, LedgerFacts] = {}
        records = await self._checkpointer.checkpoint(
            file, lambda: self._pack_facts(self._unsaved, saved)
        )
        # No other task runs until `put` has added the log, so readers find each entry in exactly
        # one place.
        del self._filled[0]
        self._reading.moves += 1
        self._on_saved(saved)
        if records:
            await self._logs.put(file.number, records)
        if records is not file.records:
            await file.records.retire()
        await self._checkpointer.forget(file)
        how = "adopted" if records is file.records else "rewritten" if records else "empty"
        self.stats.on_checkpoint(how, self._clock.monotonic_ns() - started_ns)
        return True

    async def save_facts(self, ledger_ids: Sequence[int]) -> None:
        """Saves in the catalog the facts about these ledgers that only the journal has. Raises
        `OSError`."""
        saved: dict[int, LedgerFacts] = {}
        await self._catalog_files.commit_latest(lambda: self._pack_facts(ledger_ids, saved))
        self._on_saved(saved)

    def _pack_facts(self, ledger_ids: Iterable[int], saved: dict[int, LedgerFacts]) -> list[bytes]:
        saved |= {each: self._ledgers[each].facts for each in ledger_ids if each in self._unsaved}
        return [changes.pack_ledger(*each) for each in saved.items()]

    def _on_saved(self, saved: dict[int, LedgerFacts]) -> None:
        for ledger_id, facts in saved.items():
            ledger = self._ledgers.get(ledger_id)
            if ledger and ledger.facts is facts:
                self._unsaved.pop(ledger_id, None)

    def _on_filled(self, file: JournalFile) -> None:
        logger.info("journal_file_filled", number=file.number, bytes=file.end)
        self._filled.append(file)
        self._has_filled.set()

    async def _run_checkpoints(self) -> None:
        try:
            await self._checkpoint_forever()
        finally:
            self._on_checkpointed(fails=True)

    async def _checkpoint_forever(self) -> None:
        pause_s = _RETRY_S[0]
        while True:
            try:
                if await self.checkpoint():
                    self._on_checkpointed(fails=False)
                else:
                    self._has_filled.clear()
                    await self._has_filled.wait()
                pause_s = _RETRY_S[0]
            except OSError as error:
                self.stats.checkpoint_failures += 1
                logger.error("checkpoint_failed", reason=str(error), waiting=len(self._filled))
                self._on_checkpointed(fails=True)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _RETRY_S[1])

    def _on_checkpointed(self, *, fails: bool) -> None:
        self._checkpoints_fail = fails
        self._has_room.set()
