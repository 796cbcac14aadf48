"""The journal, a sequence of files to which accepted requests are appended. A request is answered
when it is durable.

One task writes. Requests that arrive during a write gather for the next write (natural group
commit). The adds of a lone writer do not wait for others: on a quick disk they are written in the
same step. A file is created, preallocated, synced, and named in the catalog before it gets a
record, and it ends with an END record before its successor gets a record (B3). When a file ends,
its index ends, too, and both are passed to the checkpoint.

A failed write or sync leaves the file's contents unknown. The write is never retried: the journal
is *poisoned*, all waiting requests fail, and the bookie has to stop (B6).
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

import structlog

from rollbook.bookie.cached_record_reader import Cache, RecordFile
from rollbook.bookie.catalog_files import CatalogFiles
from rollbook.bookie.config import StorageConfig
from rollbook.bookie.core import catalog_records as changes
from rollbook.bookie.core.control_records import Control
from rollbook.bookie.core.journal_as_entry_log import JournalShape
from rollbook.bookie.core.journal_index import JournalIndex
from rollbook.bookie.core.journal_prezeroing import ZerosAhead
from rollbook.bookie.core.lone_writer import LoneWriter
from rollbook.bookie.core.record_format import (
    FILE_HEADER_BYTES,
    ID_BYTES,
    SECTOR,
    EntryRow,
    FileHeader,
    Purpose,
    RecordKind,
    align,
)
from rollbook.bookie.core.record_packer import Frames, RecordPacker, Write, size_of
from rollbook.bookie.stats import Stats
from rollbook.proto.errors import BookieFailed
from rollbook.proto.ports import Clock, Disk, OpenMode, Randomness

logger = structlog.get_logger()

# Larger writes would not be faster for the disk, and would delay the first request.
_WRITE_BYTES_MAX: Final = 2 * 1024 * 1024
_FENCE_BYTES: Final = 1024 * 1024
_FIRST_BYTES_MIN: Final = 16 * 1024
_SPARE_RETRY_S: Final = 1.0


OnDone: TypeAlias = Callable[[int, BookieFailed | None], None]
"""How many of the appended items are done, oldest first; or the failure after which nothing is
known."""


def journal_path(directory: str, number: int) -> str:
    return f"{directory}/{number:016}.journal"


class JournalFile:
    """One journal file, and the known facts about its contents."""

    def __init__(self, path: str, records: RecordFile, packer: RecordPacker) -> None:
        self.number = records.header.number
        self.path = path
        self.records = records
        self.packer = packer
        self.index = JournalIndex()
        self.shape = JournalShape()
        self.deleted: dict[int, None] = {}  # Ledgers whose deletion is in this file.
        self.doubts: list[EntryRow] = []  # Ranges of entries in this file that rot destroyed.

    @property
    def end(self) -> int:
        return self.packer.position


class PendingWrite(NamedTuple):
    item: Frames | Control | None  # None if the caller only waits for earlier items.
    is_sync_deferred: bool
    size: int
    on_done: OnDone


class Journal:
    def __init__(
        self,
        disk: Disk,
        config: StorageConfig,
        randomness: Randomness,
        catalog: CatalogFiles,
        cache: Cache,
        clock: Clock,
        stats: Stats,
        until_it_may_fill: Callable[[], Awaitable[None]],
        on_written: Callable[[JournalFile, Write], None],
        on_filled: Callable[[JournalFile], None],
    ) -> None:
        self.active: JournalFile  # Set by `open`.
        self._zeros: ZerosAhead  # How far the active file has zeros after its end.
        self.queued_bytes = 0
        # Whether the next file cannot be allocated: the end of the active file is then kept for
        # fences and recovery.
        self.is_full = False
        self.failure: BaseException | None = None
        self._until_it_may_fill = until_it_may_fill
        self._on_written = on_written
        self._on_filled = on_filled
        self._disk = disk
        self._config = config
        self._randomness = randomness
        self._catalog = catalog
        self._cache = cache
        self._clock = clock
        self._stats = stats
        self._waiting: deque[PendingWrite] = deque()
        self._writing: list[PendingWrite] = []
        # The writing task awaits this future while it has no work.
        self._work: asyncio.Future[None] | None = None
        # The error of a write that failed outside the writing task; the task then ends with this
        # error.
        self._failed_at_once: Exception | None = None
        self._solo = LoneWriter(config.alone_after_chunks)
        self._spare: asyncio.Task[RecordFile] | None = None
        self._is_closing = False
        # Whether the journal has ended: no request waits, and no write is in progress.
        self._is_closed = False
        # Whether bytes were written without a sync, for requests that asked for none.
        self._has_unsynced = False
        # Whether bytes were written that no record calls durable yet.
        self._needs_idle_record = False
        self._is_silent = False  # Whether there are such bytes, and no add has come for a while.
        self._silence_timer: asyncio.TimerHandle | None = None
        self._idle_ns = config.idle_after_ms * 1_000_000
        self._written_ns = 0  # The time of the last write.

    async def open(self, spare: RecordFile | None, number: int, next_sequence: int) -> None:
        """Begins the first file of this process, which may have been prepared before."""
        self.active = self._begin(spare or await self._create_first(number), next_sequence)

    async def _create_first(self, number: int) -> RecordFile:
        """Creates the first file. On a full disk the file is smaller and uses space that the start
        has released, because fences must still be possible (B4)."""
        size = self._config.journal_file_bytes
        while True:
            try:
                return await self._create(number, size)
            except OSError as error:
                if size // 2 < _FIRST_BYTES_MIN:
                    raise
                logger.warning("journal_file_made_smaller", bytes=size // 2, reason=str(error))
                size //= 2

    # --- Used by the storage ------------------------------------------------------------------

    def append(
        self, item: Frames | Control, *, is_sync_deferred: bool = False
    ) -> asyncio.Future[None]:
        """Queues the item. The returned future is done when the item is durable, or, with
        `is_sync_deferred`, when it has been written without a sync.

        The future fails with `BookieFailed` if the outcome is unknown. If the future is cancelled,
        the item is still written.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._enqueue(item, is_sync_deferred, size_of(item), set_when_done(done))
        self._wake()
        return done

    def submit(
        self, item: Frames | Control, on_done: OnDone, *, is_sync_deferred: bool = False
    ) -> None:
        """Queues an item like `append`, but reports to a callback. The caller calls `go_on` in the
        same step, and the write begins then.

        `on_done` is called in the step in which the item becomes durable, never within this call.
        The callback must not read, because readers find the new entries only when the step ends."""
        self._solo.on_adds(on_done)
        self._enqueue(item, is_sync_deferred, size_of(item), on_done)

    def go_on(self) -> None:
        """Writes the submitted requests now, for a lone writer, or in the next turn."""
        if not (self._solo.is_alone and self._write_at_once()):
            self._wake()

    def on_gone(self, on_done: OnDone) -> None:
        """Called when no more items will be submitted with this callback."""
        self._solo.on_gone(on_done)

    @property
    def is_about_to_write(self) -> bool:
        return bool(self._waiting) and not self._writing

    def has_room_for(self, size: int) -> bool:
        """Returns whether the item may be queued. If no other file can be made, the end of this one
        is reserved for fences."""
        allocated = self.active.records.header.allocated_bytes
        kept = min(_FENCE_BYTES, allocated // 8)
        end = self.active.end + self.queued_bytes + size + kept
        return not self.is_full or end <= allocated

    def sync(self) -> asyncio.Future[None]:
        """Returns a future that is done when all items that were appended before this call are
        durable."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._enqueue(None, False, 0, set_when_done(done))
        self._wake()
        return done

    def _enqueue(
        self, item: Frames | Control | None, is_sync_deferred: bool, size: int, on_done: OnDone
    ) -> None:
        if self.failure or self._is_closed:
            asyncio.get_running_loop().call_soon(on_done, 1, _failed(self.failure))
            return
        self._waiting.append(PendingWrite(item, is_sync_deferred, size, on_done))
        self.queued_bytes += size

    def _wake(self) -> None:
        if self._work and not self._work.done():
            self._work.set_result(None)

    # --- The writing task ---------------------------------------------------------------------

    async def run(self) -> None:
        """Writes until `close`. Raises the error that poisoned the journal."""
        self._spare = asyncio.create_task(self._prepare(self.active.number + 1))
        try:
            while not self._is_closed:
                if self._waiting:
                    await self._write_waiting()
                elif self._is_silent or (self._is_closing and self._needs_idle_record):
                    await self._write_idle_record()
                elif self._is_closing:
                    self._is_closed = True
                else:
                    await self._wait_for_work()
        except BaseException as error:
            self._poison(error)
            raise
        finally:
            if self._silence_timer:
                self._silence_timer.cancel()
            self._spare.cancel()
            (spare,) = await asyncio.gather(self._spare, return_exceptions=True)
            if isinstance(spare, RecordFile):
                await spare.file.close()

    def close(self) -> None:
        """Lets `run` write all requests that wait or still arrive, and then end."""
        self._is_closing = True
        self._wake()

    async def _wait_for_work(self) -> None:
        """Waits until items arrive or none has arrived for a while. One timer serves many writes,
        because setting a timer costs as much as packing a lone add."""
        self._expect_silence_if_needed()
        self._work = asyncio.get_running_loop().create_future()
        await self._work
        if self._failed_at_once:
            raise self._failed_at_once

    def _expect_silence_if_needed(self) -> None:
        if self._needs_idle_record and self._silence_timer is None:
            self._expect_silence(self._idle_ns)

    def _expect_silence(self, delay_ns: int) -> None:
        loop = asyncio.get_running_loop()
        self._silence_timer = loop.call_later(delay_ns / 1e9, self._on_silence)

    def _on_silence(self) -> None:
        self._silence_timer = None
        missing_ns = self._written_ns + self._idle_ns - self._clock.monotonic_ns()
        if missing_ns > 0:
            self._expect_silence(missing_ns)
        else:
            self._is_silent = True
            self._wake()

    async def _write_idle_record(self) -> None:
        """Writes the record that tells rot from a torn tail (B3)."""
        if self._needs_idle_record:
            # The sync comes first, because the record must not claim that its own bytes are
            # durable.
            if self._has_unsynced:
                await self._sync()
            await self._write(self.active.packer.pack_empty(RecordKind.IDLE))
            self._needs_idle_record = False
        self._is_silent = False

    async def _write_waiting(self) -> None:
        batch, size = self._take()
        items = [waiting.item for waiting in batch if waiting.item is not None]
        write: Write | None = None
        if items:
            await self._make_room(size)
            write = self.active.packer.pack(items)
            if batch[0].is_sync_deferred:
                await self.active.records.file.write_at(write.position, write.buffers)
                self._has_unsynced = True
            else:
                await self._write(write)
        elif self._has_unsynced:
            await self._sync()
        self._writing = []
        self.queued_bytes -= size
        try:
            # Callers are answered before readers find the entries; no other code runs in between.
            _notify(batch)
        finally:
            if write:
                self._on_found(write)

    def _on_found(self, write: Write) -> None:
        """Lets readers find the written entries."""
        self._on_written(self.active, write)
        self._needs_idle_record, self._is_silent = True, False
        self._written_ns = self._clock.monotonic_ns()

    def _write_at_once(self) -> bool:
        """Writes a single waiting request now, if possible; returns False if the writing task has
        to write it."""
        if not self._work or self._work.done() or len(self._waiting) != 1:
            return False
        waiting = self._waiting[0]
        if waiting.item is None or waiting.is_sync_deferred:
            return False
        if not (self._fits(waiting.size) and self.active.records.file.is_quick(waiting.size)):
            return False
        position = self.active.end
        if not self._zeros.takes_none(position, align(position + waiting.size)):
            return False  # This write adds zeros, which takes a while.
        # The request stays in the queue until it is durable: if the write fails, it fails with all
        # others.
        try:
            write = self.active.packer.pack([waiting.item])
            started_ns = self._clock.monotonic_ns()
            self.active.records.file.write_and_sync_now(write.position, write.buffers)
            took_ns = self._clock.monotonic_ns() - started_ns
            self._waiting.popleft()
            self.queued_bytes -= waiting.size
            try:
                waiting.on_done(1, None)  # The caller is answered before readers find the entry.
                if isinstance(waiting.item, Frames) and waiting.item.is_one_add:
                    # A client that adds one by one waits only for this.
                    self._clock.let_others_run()
            finally:
                self._on_synced(write, took_ns)
                self._on_found(write)
        except Exception as error:  # noqa: BLE001  The task ends with it, and poisons.
            self._failed_at_once = error
            self._wake()  # The call has no effect if the callback has woken the writing task.
        else:
            self._expect_silence_if_needed()
        return True

    def _take(self) -> tuple[list[PendingWrite], int]:
        """Takes the contents of one write: all waiting requests of one kind, in order, up to a
        limit.

        Adds that are answered before the sync get a write of their own, and so do callers that only
        wait.
        """
        batch, size = [self._waiting.popleft()], 0
        kind = (batch[0].is_sync_deferred, batch[0].item is None)
        size = batch[0].size
        while (
            self._waiting
            and kind == (self._waiting[0].is_sync_deferred, self._waiting[0].item is None)
            and size + self._waiting[0].size <= _WRITE_BYTES_MAX
        ):
            batch.append(self._waiting.popleft())
            size += batch[-1].size
        self._writing = batch
        return batch, size

    async def _write(self, write: Write) -> None:
        started_ns = self._clock.monotonic_ns()
        buffers = [*write.buffers, self._zeros.behind(write.position, write.end)]
        await self.active.records.file.write_and_sync(write.position, buffers)
        self._on_synced(write, self._clock.monotonic_ns() - started_ns)

    def _on_synced(self, write: Write, took_ns: int) -> None:
        self._stats.journal_writes.observe(took_ns)
        self._stats.journal_write_bytes.observe(write.end - write.position)
        self.active.packer.on_synced(write)
        self._has_unsynced = False

    async def _sync(self) -> None:
        await self.active.records.file.sync()
        packer = self.active.packer
        packer.last_synced = packer.next_sequence - 1
        self._has_unsynced = False

    # --- Files --------------------------------------------------------------------------------

    async def _make_room(self, size: int) -> None:
        file = self.active
        if self._fits(size):
            return
        if file.end == FILE_HEADER_BYTES:
            return  # This item does not fit even into an empty file, so the file grows.
        assert self._spare
        spare = await self._spare
        await self._until_it_may_fill()
        await self.fill()
        self.active = self._begin(spare, file.packer.next_sequence)
        self._spare = asyncio.create_task(self._prepare(self.active.number + 1))
        self._stats.journal_rolls += 1
        self._on_filled(file)

    def _fits(self, size: int) -> bool:
        file = self.active
        return file.end + size + 2 * SECTOR <= file.records.header.allocated_bytes and (
            self.is_full or file.index.memory_bytes < self._config.index_bytes_max
        )

    async def fill(self) -> None:
        """Ends the active file and passes it to the checkpoint."""
        if self._has_unsynced:
            await self._sync()
        await self._write(self.active.packer.pack_empty(RecordKind.END))
        self._needs_idle_record = False

    def _begin(self, records: RecordFile, next_sequence: int) -> JournalFile:
        packer = RecordPacker(
            records.header.file_id, FILE_HEADER_BYTES, next_sequence, next_sequence - 1
        )
        path = journal_path(self._config.journal_dir, records.header.number)
        self._zeros = ZerosAhead(
            FILE_HEADER_BYTES, records.header.allocated_bytes, self._config.zeros_ahead_bytes
        )
        return JournalFile(path, records, packer)

    async def _prepare(self, number: int) -> RecordFile:
        """Makes the next file; while the disk is full it retries."""
        while True:
            try:
                spare = await self._create(number, self._config.journal_file_bytes)
            except OSError as error:
                if self._is_closing:
                    raise
                if not self.is_full:
                    logger.error("journal_file_not_allocated", number=number, reason=str(error))
                self.is_full = True
                await asyncio.sleep(_SPARE_RETRY_S)
            else:
                self.is_full = False
                return spare

    async def _create(self, number: int, size: int) -> RecordFile:
        path = journal_path(self._config.journal_dir, number)
        if await self._disk.stat(path):
            # The file is incomplete, and the catalog does not list it.
            await self._disk.unlink(path)
        header = FileHeader(
            Purpose.JOURNAL,
            number,
            self._catalog.store_id,
            self._randomness.randbytes(ID_BYTES),
            size,
        )
        file = await self._disk.open(path, OpenMode.CREATE)
        try:
            await file.allocate(0, size)
            await file.write_and_sync(0, [header.pack()])
            await self._disk.sync_directory(self._config.journal_dir)
            await self._catalog.commit([changes.pack_opened(number)])
        except BaseException:
            await file.close()
            raise
        return RecordFile(file, header, self._cache)

    def _poison(self, error: BaseException) -> None:
        self.failure = error
        lost = [*self._writing, *self._waiting]
        self._waiting.clear()
        self._writing = []
        self.queued_bytes = 0
        _notify(lost, error)


def _notify(batch: Sequence[PendingWrite], cause: BaseException | None = None) -> None:
    """Calls each callback once, even if it has several of the items.

    If a callback raises an error, the error is raised again after the last callback was called.
    Otherwise the other callers, or a bookie that stops, would wait for ever.
    """
    counts: dict[OnDone, int] = {}
    for waiting in batch:
        counts[waiting.on_done] = counts.get(waiting.on_done, 0) + 1
    bug: Exception | None = None
    for on_done, count in counts.items():
        try:
            on_done(count, _failed(cause) if cause else None)
        except Exception as error:  # noqa: BLE001  Raised below.
            bug = error
    if bug:
        raise bug


def set_when_done(done: asyncio.Future[None]) -> OnDone:
    def set_done(_count: int, error: BookieFailed | None) -> None:
        if done.done():  # The waiting task was cancelled.
            return
        if error:
            done.set_exception(error)
            # Marks the exception as seen, because the task that waits for it may be gone.
            done.exception()
        else:
            done.set_result(None)

    return set_done


def _failed(cause: BaseException | None) -> BookieFailed:
    error = BookieFailed("the journal has stopped", next_step="restart the bookie")
    error.__cause__ = cause
    return error
