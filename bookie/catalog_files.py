"""Reads the catalog's two copies on disk, appends to them, and rewrites them when they have grown.

A change takes effect when both copies have it, so one damaged copy loses nothing. The change is
applied to memory only after that. A change that only one copy has after a crash or damage takes
effect as well, because it was requested. A start adds such a change to the other copy, or writes a
new generation if a copy is damaged. A torn tail is overwritten with zeros in place, because a full
disk has no room for another generation.

Changes go on while a new generation is written: each change is also appended to the new generation.
Changes wait only for the last sync of the new generation.
"""

import asyncio
import errno
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

import structlog

from rollbook.bookie.core.catalog import Catalog
from rollbook.bookie.core.catalog_records import COMPLETE
from rollbook.bookie.core.fencing import LedgerFacts
from rollbook.bookie.core.record_format import (
    FILE_HEADER_BYTES,
    ID_BYTES,
    RECORD_OVERHEAD_BYTES,
    FileHeader,
    Purpose,
    RecordKind,
    RecordReader,
    align,
    is_blank,
    unpack_file_header,
)
from rollbook.bookie.core.record_packer import RecordPacker
from rollbook.bookie.core.suggested_commands import FORMAT
from rollbook.bookie.core.torn_tail import Scan, scan
from rollbook.bookie.journal_reading import write_again
from rollbook.proto.errors import BookieFailed, DataLost, WrongCluster
from rollbook.proto.ids import LEDGER_ID_MAX, NO_ENTRY
from rollbook.proto.ports import Disk, File, OpenMode, Randomness
from rollbook.proto.tasks import stop_tasks

logger = structlog.get_logger()

_PREFIX = "catalog-"
_FENCED = LedgerFacts(is_fenced=True)
# A file grows by this many bytes, so that later writes cannot fail on a full disk.
_STEP_BYTES = 256 * 1024
_SYNC_BYTES = 1024 * 1024
_RECORDS_PER_STEP = 16
_ANEW_BYTES = 4 * 1024 * 1024
_ANEW_GROWTH = 3  # A catalog is rewritten when it has this many times the size that it began with.


class _Copy:
    """One of the two copies, as the start reads it."""

    def __init__(self, contents: bytes, header: FileHeader) -> None:
        self.header = header
        self.reader = RecordReader(contents, header.file_id)
        self.found: Scan = scan(self.reader)
        self.is_torn = not is_blank(contents, self.found.end)

    def bodies(self) -> dict[int, bytes]:
        return {record.sequence: self.reader.body(record) for record in self.found.records}


class _Generation:
    """The two files of one generation, open for writing."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.files: list[tuple[File, RecordPacker]] = []
        self.bytes = 0
        self.bytes_at_first = 0
        self.failure: OSError | None = None  # The error of a failed write to this generation.
        self._allocated = 0
        self._unsynced = 0

    def add(self, file: File, packer: RecordPacker, size: int) -> None:
        self.files.append((file, packer))
        self.bytes = self.bytes_at_first = packer.position
        self._allocated = size

    @property
    def is_due(self) -> bool:
        return self.bytes > max(_ANEW_BYTES, _ANEW_GROWTH * self.bytes_at_first)

    async def reserve(self, body_bytes: int) -> None:
        needed = align(self.bytes + body_bytes + RECORD_OVERHEAD_BYTES)
        if needed <= self._allocated:
            return
        end = -(-needed // _STEP_BYTES) * _STEP_BYTES
        for file, _ in self.files:
            await file.allocate(self._allocated, end - self._allocated)
        self._allocated = end

    async def append(self, body: bytes) -> None:
        for file, packer in self.files:
            write = packer.pack_body(RecordKind.CHANGES, body)
            await file.write_and_sync(write.position, write.buffers)
            packer.on_synced(write)
            self.bytes = write.end

    async def append_unsynced(self, body: bytes) -> None:
        """Appends without a sync. The change is durable after `sync`, which has at most
        `_SYNC_BYTES` left to write."""
        await self.reserve(len(body))
        for file, packer in self.files:
            write = packer.pack_body(RecordKind.CHANGES, body)
            await file.write_at(write.position, write.buffers)
            self.bytes = self.bytes_at_first = write.end
        self._unsynced += len(body)
        if self._unsynced >= _SYNC_BYTES:
            self._unsynced = 0
            for file, _ in self.files:
                await file.sync()

    async def sync(self) -> None:
        for file, packer in self.files:
            await file.sync()
            packer.last_synced = packer.next_sequence - 1

    async def close(self) -> None:
        for file, _ in self.files:
            await file.close()


class CatalogFiles:
    def __init__(
        self,
        disk: Disk,
        directories: tuple[str, str],
        store_id: bytes,
        randomness: Randomness,
    ) -> None:
        self.catalog = Catalog()
        self.store_id = store_id
        self.damaged: list[str] = []  # Paths of copies that were found damaged.
        self._disk = disk
        self._directories = directories
        self._randomness = randomness
        self._lock = asyncio.Lock()
        self._current = _Generation(0)
        self._next: _Generation | None = None  # The generation that is being written, if any.
        self._writing: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        self._has_failed = asyncio.Event()
        # This callback runs between steps, so that adds go first.
        self.give_way: Callable[[], Awaitable[None]] = _next_turn

    # --- Opening ------------------------------------------------------------------------------

    @classmethod
    async def create(
        cls,
        disk: Disk,
        directories: tuple[str, str],
        randomness: Randomness,
        doubted: Iterable[int] = (),
        old_below: int = 0,
    ) -> "CatalogFiles":
        """Creates the catalog of a new store.

        All entries and fences of the `doubted` ledgers are in doubt, so these ledgers are fenced.
        Ledgers below `old_below` may have lost their fences (B13).
        """
        files = cls(disk, directories, randomness.randbytes(ID_BYTES), randomness)
        files.catalog.old_below = old_below
        for ledger_id in doubted:
            files.catalog.doubts.add(ledger_id, NO_ENTRY, LEDGER_ID_MAX)
            files.catalog.facts[ledger_id] = _FENCED
        # These files are left from a creation that was interrupted.
        for generation in await files._generations():
            await files._remove(generation)
        await files._begin_anew()
        return files

    @classmethod
    async def load(
        cls, disk: Disk, directories: tuple[str, str], randomness: Randomness
    ) -> "CatalogFiles | None":
        """Returns None if no catalog was ever completed, because then no request was ever
        acknowledged."""
        files = cls(disk, directories, b"", randomness)
        copies = await files._find()
        if copies is None:
            return None
        generation = files._current.number
        await files._write_again(generation, copies)
        for other in await files._generations():
            if other != generation:
                await files._remove(other)
        await files._go_on(copies)
        return files

    @classmethod
    async def look(
        cls, disk: Disk, directories: tuple[str, str], randomness: Randomness
    ) -> "CatalogFiles | None":
        """Reads the catalog like `load`, but changes nothing."""
        files = cls(disk, directories, b"", randomness)
        return None if await files._find() is None else files

    async def _find(self) -> list[_Copy | None] | None:
        """Returns the copies of the newest completed generation."""
        for generation in reversed(await self._generations()):
            copies = await self._read(generation)
            if len({copy.header.store_id for copy in copies if copy}) > 1:
                raise WrongCluster(
                    "the two copies of the catalog belong to different stores",
                    path=self._directories[1],
                    next_step="mount the disks that belong together",
                )
            catalog = _merge(copies)
            if catalog.is_complete:
                self.catalog = catalog
                self.store_id = next(copy.header.store_id for copy in copies if copy)
                self._current = _Generation(generation)
                self.damaged = [
                    path
                    for path, copy in zip(self._paths(generation), copies, strict=True)
                    if copy is None or copy.found.rot
                ]
                return copies
        return None

    async def _generations(self) -> list[int]:
        found: dict[int, None] = {}
        for directory in dict.fromkeys(self._directories):
            for name in await self._disk.list_directory(directory):
                number = name.removeprefix(_PREFIX).partition(".")[0]
                if name.startswith(_PREFIX) and number.isdecimal():
                    found[int(number)] = None
        return sorted(found)

    def _paths(self, generation: int) -> list[str]:
        return [
            f"{directory}/{_PREFIX}{generation:010}.{copy}"
            for directory, copy in zip(self._directories, "ab", strict=True)
        ]

    async def _read(self, generation: int) -> list[_Copy | None]:
        copies: list[_Copy | None] = []
        for path in self._paths(generation):
            if await self._disk.stat(path) is None:
                copies.append(None)
                continue
            file = await self._disk.open(path, OpenMode.READ)
            contents = await file.read_at(0, await file.size())
            await file.close()
            header = unpack_file_header(contents)
            copies.append(_Copy(contents, header) if header else None)
        return copies

    async def _write_again(self, generation: int, copies: Sequence[_Copy | None]) -> None:
        """Makes unsynced data of a dead process durable, because this start will depend on it."""
        for path, copy in zip(self._paths(generation), copies, strict=True):
            if copy:
                file = await self._disk.open(path, OpenMode.WRITE)
                await write_again(file, copy.found.unproven_at, copy.found.end)
                await file.close()
        for directory in dict.fromkeys(self._directories):
            await self._disk.sync_directory(directory)

    async def _go_on(self, copies: Sequence[_Copy | None]) -> None:
        first, second = copies
        if first is None or second is None or first.found.rot or second.found.rot:
            logger.info("catalog_begun_anew", generation=self._current.number + 1)
            await self._begin_anew()
            return
        bodies = first.bodies() | second.bodies()
        for path, copy in zip(self._paths(self._current.number), (first, second), strict=True):
            file = await self._disk.open(path, OpenMode.WRITE)
            found, file_id = copy.found, copy.header.file_id
            if copy.is_torn:  # Zeros replace the torn tail before anything is written here (B3).
                await file.write_and_sync(found.end, [bytes(await file.size() - found.end)])
            last = found.next_sequence - 1
            packer = RecordPacker(file_id, found.end, found.next_sequence, last)
            # Copies the changes that only the other copy has; space for them is reserved, even on a
            # full disk.
            while body := bodies.get(packer.next_sequence):
                write = packer.pack_body(RecordKind.CHANGES, body)
                await file.write_and_sync(write.position, write.buffers)
                packer.on_synced(write)
            # Counts from the end of the records, because the space that is reserved after them may
            # differ by file.
            self._current.add(file, packer, packer.position)

    # --- Scrubbing ----------------------------------------------------------------------------

    async def scrub(self) -> list[str]:
        """Reads both copies again, up to their present ends, and returns the paths of damaged ones.
        If a copy is damaged, the catalog is rewritten from memory, because a start needs one sound
        copy.

        Raises any `OSError` except EIO, which counts as damage.
        """
        async with self._lock:
            generation = self._current
            end, following = generation.bytes, generation.files[0][1].next_sequence
        damaged = [
            path
            for path in self._paths(generation.number)
            if not await self._is_sound(path, end, following)
        ]
        if generation is not self._current:
            return []  # A newer generation has replaced the damaged one.
        if damaged and (self._writing is None or self._writing.done()):
            self._writing = asyncio.create_task(self._begin_anew())
        return damaged

    async def _is_sound(self, path: str, end: int, following: int) -> bool:
        """Returns whether the copy consists of sound consecutive records."""
        try:
            file = await self._disk.open(path, OpenMode.READ)
        except FileNotFoundError:
            return False
        try:
            contents = await file.read_at(0, end)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return False
        finally:
            await file.close()
        header = unpack_file_header(contents)
        if header is None:
            return False
        reader, position, sequence = RecordReader(contents, header.file_id), FILE_HEADER_BYTES, 1
        while position < end:
            record = reader.at(position)
            if record is None or record.sequence != sequence or not reader.is_whole(record):
                return False
            position, sequence = align(record.end), sequence + 1
            if sequence % _RECORDS_PER_STEP == 0:
                await self.give_way()
        return sequence == following

    # --- Changes ------------------------------------------------------------------------------

    async def commit(self, changes: Sequence[bytes]) -> None:
        """Commits all of these changes or none. Raises `OSError` if the disk is full, `BookieFailed`
        if the outcome is unknown."""
        await self.commit_latest(lambda: changes)

    async def commit_latest(self, make: Callable[[], Sequence[bytes]]) -> None:
        """Commits the changes that `make` returns. `make` is called when no other commit is in
        progress, and no other commit comes in between.

        Raises `OSError` if nothing was done because the disk is full, and `BookieFailed` if the
        outcome is unknown; then this process must end. If it is cancelled, the outcome is unknown,
        too.
        """
        async with self._lock:
            if self._failure:
                raise _unwritten(self._failure) from self._failure
            body = b"".join(make())
            if not body:
                return
            await self._current.reserve(len(body))
            try:
                await self._current.append(body)
                await self._append_to_next(body)
                for _ in self.catalog.applying(body):
                    await self.give_way()
            except BaseException as error:
                self._fail(error)
                if isinstance(error, OSError):
                    raise _unwritten(error) from error
                raise
            if self._current.is_due and (self._writing is None or self._writing.done()):
                self._writing = asyncio.create_task(self._begin_anew())

    async def until_failed(self) -> None:
        """Waits until the catalog fails, then raises `BookieFailed`. The caller must be able to end
        the process; a caller of `commit` may be unable to do that."""
        await self._has_failed.wait()
        assert self._failure
        raise _unwritten(self._failure) from self._failure

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        # After a cancelled commit nothing is reported, because the process is ending.
        if isinstance(error, Exception):
            self._has_failed.set()

    async def _append_to_next(self, body: bytes) -> None:
        new = self._next
        if new and not new.failure:
            try:
                await new.append_unsynced(body)
            except OSError as error:
                new.failure = error

    async def _begin_anew(self) -> None:
        """Writes a new generation. The older one stays in force until both copies of the new one
        are durable."""
        former, new = self._current, _Generation(self._current.number + 1)
        parts = self.catalog.pack_all()
        try:
            while self._current is former:
                async with self._lock:
                    try:
                        await self._write_part(new, parts)
                    except OSError as error:
                        if not former.files:
                            raise
                        await self._give_up(new, error)
                        return
                await self.give_way()
        except BaseException as error:
            self._fail(error)
            self._next = None
            await new.close()
            raise
        await former.close()
        if former.number:
            try:
                await self._remove(former.number)
            except OSError as error:  # The next start removes the old generation.
                logger.warning("catalog_not_removed", number=former.number, reason=str(error))

    async def _write_part(self, new: _Generation, parts: Iterator[bytes]) -> None:
        """Writes the next part of a new generation. The generation takes effect with its last part."""
        if failure := self._failure or new.failure:
            raise failure
        if not new.files:
            await self._create(new)
            self._next = new
        part = next(parts)
        if part:
            await new.append_unsynced(part)
        if part == COMPLETE:
            await new.sync()
            for directory in dict.fromkeys(self._directories):
                await self._disk.sync_directory(directory)
            self._current, self._next = new, None
            self.catalog.is_complete = True

    async def _create(self, new: _Generation) -> None:
        for path in self._paths(new.number):
            file = await self._disk.open(path, OpenMode.CREATE)
            file_id = self._randomness.randbytes(ID_BYTES)
            header = FileHeader(Purpose.CATALOG, new.number, self.store_id, file_id)
            new.add(file, RecordPacker(file_id, FILE_HEADER_BYTES, 1, 0), FILE_HEADER_BYTES)
            await file.write_at(0, [header.pack()])

    async def _give_up(self, new: _Generation, error: OSError) -> None:
        """Removes the new generation: the present one is still in use, and a start must not find a
        newer one."""
        self._next = None
        await new.close()
        await self._remove_or_fail(new.number)
        self._current.bytes_at_first = self._current.bytes
        logger.warning("catalog_not_begun_anew", reason=str(error))

    async def _remove_or_fail(self, generation: int) -> None:
        try:
            await self._remove(generation)
        except OSError as error:
            self._fail(error)
            raise BookieFailed("an incomplete catalog could not be removed") from error

    async def _remove(self, generation: int) -> None:
        for path in self._paths(generation):
            if await self._disk.stat(path):
                await self._disk.unlink(path)
        for directory in dict.fromkeys(self._directories):
            await self._disk.sync_directory(directory)

    async def close(self) -> None:
        await stop_tasks(self._writing)
        await self._current.close()


def _unwritten(cause: BaseException) -> BookieFailed:
    return BookieFailed(
        f"the catalog could not be written: {cause}", next_step="restart the bookie"
    )


async def _next_turn() -> None:
    await asyncio.sleep(0)


def _merge(copies: Sequence[_Copy | None]) -> Catalog:
    """Returns the merged contents of both copies. Raises `DataLost` if both copies lack something
    that was durable."""
    catalog = Catalog()
    bodies: dict[int, bytes] = {}
    last_synced = 0
    for copy in copies:
        if copy:
            bodies |= copy.bodies()
            last_synced = max([last_synced, *(r.last_synced for r in copy.found.records)])
    sequence = 1
    while sequence in bodies:
        catalog.apply(bodies[sequence])
        sequence += 1
    if sequence <= max([last_synced, *bodies]):
        raise DataLost(
            "both copies of the catalog are damaged",
            record=sequence,
            next_step=f"restore an undamaged copy; if there is none: {FORMAT}",
        )
    return catalog
