"""Keeps a bookie's disks in order: checks their space, deletes collected ledgers, rewrites sparse
logs, scrubs.

    disks       refuses new entries and frees space when full; accepts entries again when there is room
    garbage     deletes ledgers that metadata no longer names, then removes empty logs
    surplus     drops copies of ledgers whose metadata names only other bookies
    compaction  runs, minor or major, when it is due, when space is short, and when damage was found
    scrub       runs round after round

Each ledger directory has a file of zeros, the reserve. When the disk is full, the reserve is
removed, so that the catalog, compaction, fences and recovery have room. The reserve is made again
when there is space.

A failure of the disk or the metadata store ends one run of the work, but not its task: the failure
is logged, and the work is tried again. Only a catalog that could not be written ends the bookie.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog

from rollbook.bookie.compaction import Compactor
from rollbook.bookie.config import SpaceConfig, StorageConfig
from rollbook.bookie.core.disk_usage import DirectoryUsage, DiskUsage, Level
from rollbook.bookie.deleted_ledger_scan import DeletedLedgerScan
from rollbook.bookie.ledger_gc import Garbage
from rollbook.bookie.scrub import Scrubber
from rollbook.bookie.storage import Storage
from rollbook.bookie.surplus import Surplus
from rollbook.proto.cluster.cluster_root import Cluster
from rollbook.proto.errors import BookieFailed, RollbookError
from rollbook.proto.ids import BookieId
from rollbook.proto.ports import Clock, Disk, DiskSpace, MetadataStore, OpenMode, Randomness
from rollbook.proto.tasks import first_failure, stop_tasks

logger = structlog.get_logger()

_TICK_S: Final = 1.0  # How often to check whether something is due.
_SHORT_S: Final = 30.0  # Pause between attempts to free space while it is short.
_RETRY_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class WriteMode:
    """Says whether the bookie accepts new entries, and why not."""

    is_read_only: bool
    reason: str
    directories: tuple[DirectoryUsage, ...]


class Space:
    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        randomness: Randomness,
        storage: Storage,
        storage_config: StorageConfig,
        config: SpaceConfig,
        store: MetadataStore | None,
        cluster: Cluster | None,
        bookie: BookieId | None = None,
        session_timeout_s: float = 10.0,
    ) -> None:
        """Without `store` and `cluster`, no ledger is garbage; without `bookie`, no copy is
        dropped."""
        self._disk = disk
        self._clock = clock
        self._storage = storage
        self._storage_config = storage_config
        self._config = config
        self._usage = DiskUsage(
            storage_config.journal_dir,
            storage_config.ledger_dirs,
            full=config.disk_usage_threshold,
            warning=min(config.disk_usage_warn_threshold, config.disk_usage_threshold),
            low_water=min(config.disk_usage_low_water, config.disk_usage_threshold),
        )
        self.garbage = Garbage(
            storage, clock, config, DeletedLedgerScan(store, cluster) if store and cluster else None
        )
        self.surplus: Surplus | None = None
        if store and cluster and bookie:
            parts = (storage, clock, config.surplus_interval_s, store, cluster, bookie)
            self.surplus = Surplus(*parts, session_timeout_s)
        self.compactor = Compactor(
            disk, clock, randomness, storage, storage_config, config, self._usage
        )
        self.scrubber = Scrubber(storage, clock, config, self.compactor.damaged)
        self._reserved: dict[str, int] = {}  # Bytes of the reserve, by directory.
        self._is_ordered_read_only = False  # Whether an operator made the bookie read-only.
        # The reason why the bookie will leave the cluster; empty if it stays.
        self._leaves_because = ""
        self._tasks: list[asyncio.Task[None]] = []
        self._show_gauges()

    # --- Opening and closing ------------------------------------------------------------------

    async def open(self) -> None:
        """Checks the disks for the first time; the write mode is known when this returns."""
        for directory in self._storage_config.ledger_dirs:
            stat = await self._disk.stat(_reserve_path(directory))
            self._reserved[directory] = stat.size if stat else 0
        await self._look()

    def start(self) -> None:
        works = (
            self._watch_disks,
            self._collect,
            self._compact,
            self._scrub,
            *((self._drop_surplus,) if self.surplus and self._config.surplus_interval_s else ()),
        )
        self._tasks = [asyncio.create_task(work()) for work in works]

    async def failed(self) -> BaseException:
        """Returns the error after which the work cannot go on; then the process has to end."""
        return await first_failure(self._tasks)

    async def close(self) -> None:
        """Stops the work before the storage is closed. A running step is completed first."""
        for task in self._tasks:
            await stop_tasks(task)
        await self.compactor.close()
        await self.scrubber.close()

    # --- Write mode ---------------------------------------------------------------------------

    @property
    def standing(self) -> WriteMode:
        reason = ""
        if self._is_ordered_read_only:
            reason = "an operator made it read-only"
        elif self._leaves_because:
            reason = self._leaves_because
        elif self._usage.is_short:
            reason = "disk full: " + ", ".join(self._usage.full_directories)
        elif not self._storage.may_promise:
            reason = "the disk has no room to count this start: until then nothing is promised"
        elif self._storage.catalog.doubts.everything:
            reason = (
                "any entry or fence may have been lost: format it, or heal it from other copies"
            )
        elif self._storage.is_read_only:
            reason = "the journal has no room for another file, or checkpoints fail"
        return WriteMode(bool(reason), reason, tuple(self._usage.directories.values()))

    def set_read_only(self, is_read_only: bool) -> None:
        """Sets an operator's read-only mode, which lasts until the next start."""
        self._is_ordered_read_only = is_read_only
        self._apply()

    def set_leaving(self, reason: str) -> None:
        """Stops accepting entries because the bookie will leave the cluster; an empty reason means
        that it stays (B15)."""
        self._leaves_because = reason
        self._apply()

    def _apply(self) -> None:
        was_refusing = self._storage.refuses_adds
        self._storage.refuses_adds = bool(
            self._is_ordered_read_only or self._leaves_because or self._usage.is_short
        )
        if was_refusing != self._storage.refuses_adds:
            standing = self.standing
            logger.warning(
                "bookie_became_read_only" if standing.is_read_only else "bookie_became_writable",
                reason=standing.reason,
            )

    def _show_gauges(self) -> None:
        stats, directories = self._storage.stats, self._usage.directories
        stats.disk_free_bytes = lambda: {each: of.free_bytes for each, of in directories.items()}
        stats.disk_total_bytes = lambda: {each: of.total_bytes for each, of in directories.items()}

    # --- Disks --------------------------------------------------------------------------------

    async def _watch_disks(self) -> None:
        next_look_ns = 0
        while True:
            if self._clock.monotonic_ns() >= next_look_ns or self._storage.is_read_only:
                try:
                    await self._look()
                except OSError as error:
                    logger.error("disk_space_unknown", reason=str(error))
                wait_s = self._usage.next_look_s(self._config.disk_check_interval_s)
                next_look_ns = self._clock.monotonic_ns() + int(wait_s * 1e9)
            left_s = (next_look_ns - self._clock.monotonic_ns()) / 1e9
            await asyncio.sleep(min(_TICK_S, max(left_s, 0.01)))

    async def _look(self) -> None:
        spaces: dict[str, DiskSpace] = {}
        for directory in (self._storage_config.journal_dir, *self._storage_config.ledger_dirs):
            space = await self._disk.space(directory)
            # A released reserve counts as used, because otherwise its removal would look like room.
            missing = self._config.reserve_bytes - self._reserved.get(directory, 0)
            if directory not in self._reserved:
                missing = 0
            spaces[directory] = DiskSpace(space.total_bytes, max(0, space.free_bytes - missing))
        for changed in self._usage.on_look(spaces):
            say = logger.info if changed.level is Level.ROOMY else logger.warning
            say(
                "disk_usage_changed",
                path=changed.path,
                level=changed.level.value,
                used_share=round(changed.used_share, 4),
                free_bytes=changed.free_bytes,
            )
        self._apply()
        for directory in self._reserved:
            await self._keep_reserve(directory)

    async def _keep_reserve(self, directory: str) -> None:
        wanted = 0 if self._usage.is_full(directory) else self._config.reserve_bytes
        if self._reserved[directory] == wanted:
            return
        path = _reserve_path(directory)
        try:
            if await self._disk.stat(path):
                await self._disk.unlink(path)
                await self._disk.sync_directory(directory)  # The reserve's space is free now.
            self._reserved[directory] = 0
            if wanted:
                file = await self._disk.open(path, OpenMode.CREATE)
                try:
                    await file.allocate(0, wanted)
                    self._reserved[directory] = wanted
                finally:
                    await file.close()
            else:
                logger.warning("reserve_given_up", path=path)
        except OSError as error:  # The next check of the disks tries again.
            logger.warning("reserve_not_kept", path=path, reason=str(error))

    # --- Background work ----------------------------------------------------------------------

    async def _collect(self) -> None:
        await self._every(self._config.gc_interval_s, self._collect_once, short_s=_SHORT_S)

    async def _collect_once(self) -> None:
        await self.garbage.collect()
        await self.compactor.remove_empty()

    async def _drop_surplus(self) -> None:
        assert self.surplus
        await self._every(self._config.surplus_interval_s, partial(_until_done, self.surplus))

    async def _compact(self) -> None:
        compactor = self.compactor
        while True:
            kind = compactor.schedule.due(
                self._clock.monotonic_ns(),
                is_short=self._usage.is_short,
                has_damage=bool(compactor.damaged),
            )
            pause_s = _TICK_S
            if kind:
                is_major = kind is compactor.schedule.major
                is_done = await self._survive(compactor.compact(major=is_major))
                pause_s = _SHORT_S if is_done else _RETRY_S
            await asyncio.sleep(pause_s)

    async def _scrub(self) -> None:
        await self._every(self._config.scrub_interval_s, self.scrubber.scrub)

    async def _every(
        self,
        interval_s: float,
        work: Callable[[], Awaitable[object]],
        *,
        short_s: float = math.inf,
    ) -> None:
        """Runs `work` again and again, more often while space is short."""
        while True:
            began_ns = self._clock.monotonic_ns()
            is_done = await self._survive(work())
            wait_s = interval_s if is_done else min(_RETRY_S, interval_s)
            while (self._clock.monotonic_ns() - began_ns) / 1e9 < wait_s:
                await asyncio.sleep(_TICK_S)
                if self._usage.is_short:
                    wait_s = min(wait_s, short_s)

    async def _survive(self, work: Awaitable[object]) -> bool:
        """Runs `work`; returns whether it succeeded."""
        try:
            await work
        except BookieFailed:
            raise
        except (OSError, RollbookError) as error:
            logger.error("space_work_failed", reason=str(error))
            return False
        return True


async def _until_done(surplus: Surplus) -> None:
    while True:
        if (await surplus.look()).outcome != "failed":
            return
        await asyncio.sleep(_RETRY_S)


def _reserve_path(directory: str) -> str:
    return f"{directory}/reserve"
