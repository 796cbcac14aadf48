"""Opens a store from its files: first the catalog, then the journal.

The catalog says which files must exist: entry logs by name and size, journal files from the replay
start to the last one opened. If a file is missing or too short, it was removed or cut after it was
durable. In that case the store does not open, and the error names the file. If its loss is
accepted, the store opens, and the file's entries are in doubt (B1). Files that the catalog does not
list were never needed, or are no longer needed, and are removed.

The index of the journal's contents is built in memory again. A file without an END gets one before
anything else is written, so that its torn tail stays cut (B3). If the process dies during a start,
the start can simply be repeated.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import structlog

from rollbook.bookie.cached_record_reader import Cache, RecordFile
from rollbook.bookie.catalog_files import CatalogFiles
from rollbook.bookie.config import StorageConfig
from rollbook.bookie.core import catalog_records as changes
from rollbook.bookie.core.catalog import Catalog
from rollbook.bookie.core.catalog_records import COMPACTED, EntryLogInfo
from rollbook.bookie.core.control_records import ControlOperation
from rollbook.bookie.core.fencing import LedgerFacts
from rollbook.bookie.core.record_format import (
    FILE_HEADER_BYTES,
    FileHeader,
    RecordKind,
    RecordReader,
    unpack_file_header,
)
from rollbook.bookie.core.record_packer import RecordPacker
from rollbook.bookie.core.replay import Replayed
from rollbook.bookie.core.suggested_commands import FORMAT, WRITE_OFF
from rollbook.bookie.entry_log_reader import open_record_file
from rollbook.bookie.journal import JournalFile, journal_path
from rollbook.bookie.journal_reading import ReadBack, is_blank_from, read_back, write_again
from rollbook.proto.errors import BadConfig, DataLost, TornRecord, WrongCluster
from rollbook.proto.ports import Disk, DiskLock, File, FileStat, OpenMode, Randomness

logger = structlog.get_logger()

_FIRST_READ_BYTES = 64 * 1024
# Reasons why a store does not open; the doctor reports them without a start (`inspection.py`).
NEWER_LOG: Final = "an entry log is newer than the catalog"
NEWER_JOURNAL: Final = "a journal file is newer than the catalog"
MISSING_JOURNAL: Final = "a journal file is missing"
HEADLESS_JOURNAL: Final = "a journal file has no header"
SHORT_JOURNAL: Final = "a journal file was cut short"
STRANGE_JOURNAL: Final = "a journal file belongs to another store"
LOSS_REMEDY: Final = f"bring the file back; if it is permanently lost: {WRITE_OFF}"
STRANGE_REMEDY: Final = "put it where it belongs, and this bookie's own file in its place"
_MOUNT = f"mount its disks; if they are permanently lost: {FORMAT}"


def log_path(directory: str, number: int) -> str:
    return f"{directory}/{number:016}.log"


def catalog_directories(config: StorageConfig) -> tuple[str, str]:
    return config.ledger_dirs[0], config.ledger_dirs[-1]


@dataclass(slots=True)
class FoundStore:
    """The state with which a store starts."""

    catalog: CatalogFiles
    files: list[JournalFile] = field(default_factory=list)  # Filled files, oldest first.
    # Facts that are newer than those in the catalog.
    facts: dict[int, LedgerFacts] = field(default_factory=dict)
    next_journal: int = 1
    next_sequence: int = 1
    spare: RecordFile | None = None  # The last file, if it was prepared but never written to.


async def make_directories(disk: Disk, config: StorageConfig) -> None:
    """Makes the directories, durably."""
    for directory in (config.journal_dir, *config.ledger_dirs):
        await disk.make_directory(directory)
        await _sync_ancestors(disk, directory)


async def lock_directories(disk: Disk, config: StorageConfig) -> list[DiskLock]:
    """Locks those directories that exist. Raises `DirectoryInUse`."""
    directories = (config.journal_dir, *config.ledger_dirs)
    return await lock_all(disk, [each for each in directories if await disk.stat(each)])


async def lock_all(disk: Disk, directories: Iterable[str]) -> list[DiskLock]:
    """Locks all directories; if one lock fails, releases the others. Raises `DirectoryInUse`."""
    locks: list[DiskLock] = []
    try:
        for directory in directories:
            lock = await disk.lock(f"{directory}/lock")
            # Each lock is appended at once, so that an error later releases it.
            locks.append(lock)
    except BaseException:
        for lock in locks:
            await lock.release()
        raise
    return locks


async def make_store(
    disk: Disk,
    config: StorageConfig,
    randomness: Randomness,
    doubted: Iterable[int] = (),
    old_below: int = 0,
) -> None:
    """Makes an empty store in new or empty directories, or completes an interrupted attempt."""
    await make_directories(disk, config)
    for directory, suffix in _places(config):
        if await _numbers(disk, directory, suffix):
            raise BadConfig("there is a store in this directory", path=directory)
    directories = catalog_directories(config)
    found = await CatalogFiles.load(disk, directories, randomness)
    if found:
        await found.close()
        raise BadConfig("there is a store in this directory", path=directories[0])
    files = await CatalogFiles.create(disk, directories, randomness, doubted, old_below)
    await files.close()


async def find_store(
    disk: Disk,
    config: StorageConfig,
    randomness: Randomness,
    cache: Cache,
    *,
    accepts_loss: bool = False,
) -> FoundStore:
    """Reads a store. Raises `BadConfig` if there is no store, `DataLost` if durable files are
    missing."""
    for directory in (config.journal_dir, *config.ledger_dirs):
        if await disk.stat(directory) is None:
            raise BadConfig("there is no store here", path=directory, next_step=_MOUNT)
    catalog = await CatalogFiles.load(disk, catalog_directories(config), randomness)
    if catalog is None:
        await refuse_remains(disk, config)
        raise BadConfig("there is no store here", next_step=_MOUNT)
    boot = _Boot(disk, config, cache, catalog, accepts_loss)
    await boot.look_through_logs()
    await boot.read_journal()
    return boot.found


async def refuse_remains(disk: Disk, config: StorageConfig) -> None:
    """Raises `DataLost` if there are files of a store, because without a catalog they are
    unreadable."""
    for directory, suffix in _places(config):
        if await _numbers(disk, directory, suffix):
            raise DataLost(
                "the catalog of this store is missing, or both of its copies are damaged",
                path=config.ledger_dirs[0],
                next_step=f"bring the file back; if it is permanently lost: {FORMAT}",
            )


def why_lost(log: EntryLogInfo, stat: FileStat | None) -> str | None:
    """Returns the flaw of an entry log's file, by its size; None if its size is right."""
    if stat is None:
        return "an entry log is missing"
    if stat.size != log.file_bytes:
        return f"an entry log has {stat.size} of {log.file_bytes} bytes"
    return None


def is_newer_log(catalog: Catalog, number: int) -> bool:
    """Returns whether the catalog lists neither this log nor the journal file that it was made
    from: then the catalog is stale.
    """
    return number not in catalog.logs and catalog.opened < number < COMPACTED


async def is_unused(disk: Disk, path: str) -> bool:
    """Returns whether the file is a prepared journal file that was never written to."""
    file = await disk.open(path, OpenMode.READ)
    try:
        return await is_blank_from(file, FILE_HEADER_BYTES)
    finally:
        await file.close()


async def _sync_ancestors(disk: Disk, directory: str) -> None:
    """Syncs all ancestors, because an interrupted attempt may have made any of them."""
    while directory != "/":
        directory = directory.rpartition("/")[0] or "/"
        try:
            await disk.sync_directory(directory)
        except PermissionError:
            return  # Another process has made the contents of this directory.


def _places(config: StorageConfig) -> list[tuple[str, str]]:
    return [(config.journal_dir, ".journal"), *((path, ".log") for path in config.ledger_dirs)]


async def _numbers(disk: Disk, directory: str, suffix: str) -> list[int]:
    names = await disk.list_directory(directory)
    stems = [name.removesuffix(suffix) for name in names if name.endswith(suffix)]
    return sorted(int(stem) for stem in stems if stem.isdecimal())


class _Boot:
    def __init__(
        self,
        disk: Disk,
        config: StorageConfig,
        cache: Cache,
        catalog: CatalogFiles,
        accepts_loss: bool,
    ) -> None:
        self.found = FoundStore(catalog)
        self._disk = disk
        self._config = config
        self._cache = cache
        self._catalog = catalog
        self._accepts_loss = accepts_loss
        # Journal files without a record; the whole file has to be read to find that out.
        self._blank: set[int] = set()

    # --- Entry logs ---------------------------------------------------------------------------

    async def look_through_logs(self) -> None:
        logs = self._catalog.catalog.logs
        for index, directory in enumerate(self._config.ledger_dirs):
            for number in await _numbers(self._disk, directory, ".log"):
                log = logs.get(number)
                if log is None or log.directory != index:
                    path = log_path(directory, number)
                    if is_newer_log(self._catalog.catalog, number):
                        await self._give_up_catalog(NEWER_LOG, path)
                    await self._drop(path)
        for log in list(logs.values()):
            await self._require(log)

    async def _require(self, log: EntryLogInfo) -> None:
        if log.directory < len(self._config.ledger_dirs):
            path = log_path(self._config.ledger_dirs[log.directory], log.number)
            what = why_lost(log, await self._disk.stat(path))
            if what is None:
                return
        else:
            path = f"log {log.number}"
            what = "an entry log is in a ledger directory that is not configured"
        lost = list(self._catalog.catalog.held_in(log.number))
        if lost:  # A log without live entries was about to be removed.
            ids = [ledger_id for ledger_id, _ in lost]
            ends = {"ledgers": len(ids), "first": min(ids), "last": max(ids)}
            self._refuse(what, path=path, **ends)
        doubts = [
            changes.pack_doubt(each, held.first_entry, held.last_entry) for each, held in lost
        ]
        await self._catalog.commit([*doubts, changes.pack_unlog(log.number)])

    async def _give_up_catalog(self, what: str, path: str) -> None:
        """Accepts a stale catalog. Such a catalog lacks a journal file that was in use, so
        everything is in doubt."""
        self._refuse(what, path=path)
        await self._catalog.commit([changes.DOUBT_ALL])

    def _refuse(self, message: str, **ids: object) -> None:
        if not self._accepts_loss:
            raise DataLost(
                message,
                next_step=LOSS_REMEDY,
                **ids,
            )
        logger.error("loss_accepted", what=message, **ids)

    async def _drop(self, path: str) -> None:
        """Removes a file of ours that is not needed."""
        try:
            file, _ = await open_record_file(
                self._disk, path, OpenMode.READ, self._catalog.store_id
            )
        except TornRecord:
            pass  # The process that made the file died before it wrote the header.
        else:
            await file.close()
        logger.info("leftover_removed", path=path)
        await self._disk.unlink(path)

    # --- Journal ------------------------------------------------------------------------------

    async def read_journal(self) -> None:
        catalog, directory = self._catalog.catalog, self._config.journal_dir
        needed = range(catalog.replay_start.journal, catalog.opened + 1)
        there = await _numbers(self._disk, directory, ".journal")
        for number in there:
            if number not in needed:
                path = journal_path(directory, number)
                if number > catalog.opened and not await is_unused(self._disk, path):
                    await self._give_up_catalog(NEWER_JOURNAL, path)
                await self._drop(path)
        self.found.next_sequence = catalog.replay_start.first_sequence
        for number in needed:
            if number in catalog.lost:
                continue
            if number in there:
                await self._read_file(number, needed)
            else:
                self._refuse(MISSING_JOURNAL, path=journal_path(directory, number))
                await self._give_up(number)
        self.found.next_journal = needed.stop

    async def _give_up(self, number: int) -> None:
        """Accepts the loss of a journal file. The ledgers of the file are not known, so everything
        is in doubt."""
        await self._catalog.commit([changes.DOUBT_ALL, changes.pack_lost(number)])

    async def _read_file(self, number: int, needed: range) -> None:
        path = journal_path(self._config.journal_dir, number)
        file = await self._disk.open(path, OpenMode.WRITE)
        header = unpack_file_header(await file.read_at(0, FILE_HEADER_BYTES))
        if header is None:
            # Both copies of the header were durable before any record: without them no record can
            # be identified.
            self._refuse(HEADLESS_JOURNAL, path=path)
            await self._give_up(number)
            await file.close()
            return
        if header.store_id != self._catalog.store_id:
            await file.close()
            raise WrongCluster(STRANGE_JOURNAL, path=path, next_step=STRANGE_REMEDY)
        durable_through = await self._durable_through(range(number + 1, needed.stop))
        found = await read_back(
            file,
            header,
            self.found.next_sequence,
            durable_through,
            is_blank=number in self._blank,
        )
        is_whole = await file.size() == header.allocated_bytes
        if number == needed[-1] and is_whole and found.is_blank:
            self.found.spare = RecordFile(file, header, self._cache)
            return
        if await file.size() < header.allocated_bytes and not found.is_ended:
            self._refuse(SHORT_JOURNAL, path=path)
            found.replayed.doubts_everything = True
        await self._take_in(file, header, path, found)

    async def _durable_through(self, later: range) -> int:
        """Returns the last sequence known to be durable, from the first record of a later file; 0
        if there is none."""
        for number in later:
            if number in self._blank:
                continue
            if (last_synced := await self._read_first_synced(number)) is not None:
                return last_synced
        return 0

    async def _read_first_synced(self, number: int) -> int | None:
        path = journal_path(self._config.journal_dir, number)
        if await self._disk.stat(path) is None:
            return None
        file = await self._disk.open(path, OpenMode.READ)
        try:
            contents = await file.read_at(0, _FIRST_READ_BYTES)
            header = unpack_file_header(contents)
            if header is None:
                return None
            record = RecordReader(contents, header.file_id).at(FILE_HEADER_BYTES)
            if record is None:  # The file is usually empty; otherwise its first head is damaged.
                if await is_blank_from(file, FILE_HEADER_BYTES):
                    self._blank.add(number)
                    return None
                contents = await file.read_at(0, await file.size())
                record = RecordReader(contents, header.file_id).next_after(FILE_HEADER_BYTES, 0)
            return record.last_synced if record else None
        finally:
            await file.close()

    async def _take_in(self, file: File, header: FileHeader, path: str, found: ReadBack) -> None:
        packer = RecordPacker(
            header.file_id, found.end, found.next_sequence, found.next_sequence - 1
        )
        # Nothing may depend on data that a power cut can still destroy, and an END depends on the
        # data before it.
        await write_again(file, found.unproven_at, found.end)
        if not found.is_ended:
            end = packer.pack_empty(RecordKind.END)
            await file.write_and_sync(end.position, end.buffers)
            packer.on_synced(end)
        # Releases the space that was allocated after the END, because a bookie may have to start on
        # a full disk.
        await file.truncate(packer.position)
        self.found.next_sequence = packer.next_sequence
        replayed = found.replayed
        if found.rotten_places:
            logger.error("journal_rotten", path=path, places=found.rotten_places)
        if replayed.doubts_everything:
            await self._catalog.commit([changes.DOUBT_ALL])
        for doubt in replayed.doubts:
            self._catalog.catalog.doubts.add(*doubt)
        records = RecordFile(file, header, self._cache)
        records.records, records.end = replayed.records, packer.position
        journal_file = JournalFile(path, records, packer)
        journal_file.index, journal_file.shape = replayed.index, replayed.shape
        journal_file.deleted = {
            each.ledger_id: None
            for each in replayed.controls
            if each.operation is ControlOperation.DELETE
        }
        journal_file.doubts = replayed.doubts
        self._learn(replayed, header.number)
        self.found.files.append(journal_file)

    def _learn(self, replayed: Replayed, journal: int) -> None:
        for ledger_id, key in replayed.keys.items():
            self._set_facts(ledger_id, self._facts(ledger_id).with_key(key))
        for ledger_id in replayed.fenced_by_damage:
            self._set_facts(ledger_id, self._facts(ledger_id).with_fence())
        for control in replayed.controls:
            before = self._facts(control.ledger_id)
            self._set_facts(control.ledger_id, control.applied_to(before, journal))
            is_dropped = control.operation is ControlOperation.DROP
            # A drop is applied at once: otherwise entries would be listed that the next checkpoint
            # removes.
            if is_dropped:
                self._catalog.catalog.drop(control.ledger_id, journal)
            if is_dropped or self._facts(control.ledger_id).deleted_ms is not None:
                for earlier in self.found.files:
                    earlier.index.drop(control.ledger_id)

    def _facts(self, ledger_id: int) -> LedgerFacts:
        known = self.found.facts.get(ledger_id) or self._catalog.catalog.facts.get(ledger_id)
        return known or LedgerFacts()

    def _set_facts(self, ledger_id: int, facts: LedgerFacts) -> None:
        if facts != self._facts(ledger_id) or ledger_id not in self._catalog.catalog.facts:
            self.found.facts[ledger_id] = facts
