"""Reads a bookie's files without changing them, for `rollbook bookie`.

Files are read as a start reads them, with the same readers, but no file is cut, completed or
removed (B10). The files of a running bookie may be read, too: entry logs never change, and the
journal is read in its state at that moment.
"""

from bisect import bisect_right
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from rollbook.bookie.catalog_files import CatalogFiles
from rollbook.bookie.config import StorageConfig
from rollbook.bookie.core.catalog import Catalog
from rollbook.bookie.core.catalog_records import EntryLogInfo
from rollbook.bookie.core.control_records import ControlOperation
from rollbook.bookie.core.entry_log_footer import (
    TRAILER_BYTES,
    PageRow,
    check_page,
    unpack_page,
    unpack_tables,
    unpack_trailer,
)
from rollbook.bookie.core.fencing import LedgerFacts
from rollbook.bookie.core.journal_index import JournalIndex
from rollbook.bookie.core.record_format import (
    FILE_HEADER_BYTES,
    SECTOR,
    FileHeader,
    FoundRecord,
    RecordKind,
    RecordReader,
    is_blank,
    unpack_file_header,
)
from rollbook.bookie.core.replay import Replayed, replay
from rollbook.bookie.core.torn_tail import Rot, Scan, scan
from rollbook.bookie.journal import journal_path
from rollbook.bookie.journal_reading import first_record, read_back
from rollbook.bookie.ledger_reports import LedgerViews, View
from rollbook.bookie.store_opening import (
    HEADLESS_JOURNAL,
    LOSS_REMEDY,
    MISSING_JOURNAL,
    NEWER_JOURNAL,
    NEWER_LOG,
    SHORT_JOURNAL,
    STRANGE_JOURNAL,
    STRANGE_REMEDY,
    catalog_directories,
    is_newer_log,
    is_unused,
    lock_all,
    log_path,
    refuse_remains,
    why_lost,
)
from rollbook.proto.errors import BadConfig, Missing, TornRecord
from rollbook.proto.ports import Disk, DiskLock, OpenMode, Randomness
from rollbook.proto.wire.digest import pack_entry_ids

_ALL_DURABLE: Final = 2**62
_NEEDED: Final = ("needed", "spare", "missing")
_FIRST_BYTES: Final = 64 * 1024
# Attempts to read the catalog, which a running bookie may replace in the meantime.
_LOOKS: Final = 3
_MAKE_ONE: Final = "name the directories of a bookie, as they were given to `rollbook bookie init`"


@dataclass(frozen=True, slots=True)
class Finding:
    """Bytes that have changed since they were written."""

    file: str
    position: int
    what: str
    # The ledgers whose entries may be lost; None if they are not known.
    ledgers: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class StartObstacle:
    """The reasons that keep a store from opening."""

    path: str
    what: str
    remedy: str = LOSS_REMEDY


@dataclass(slots=True)
class Verified:
    """The progress of `verify`, and the damage that it found."""

    files: int = 0
    bytes: int = 0
    records: int = 0
    entries: int = 0
    findings: list[Finding] = field(default_factory=list)


class StoreFiles:
    def __init__(self, disk: Disk, config: StorageConfig, found: CatalogFiles) -> None:
        self.catalog: Catalog = found.catalog
        self._damaged_catalogs = found.damaged
        self._store_id = found.store_id
        self._disk = disk
        self._config = config

    @classmethod
    async def open(cls, disk: Disk, config: StorageConfig, randomness: Randomness) -> "StoreFiles":
        """Opens the files. Raises `BadConfig` if there is no store, `DataLost` if its catalog
        cannot be read."""
        for directory in (config.journal_dir, *config.ledger_dirs):
            if await disk.stat(directory) is None:
                raise BadConfig("there is no store here", path=directory, next_step=_MAKE_ONE)
        for look in range(_LOOKS):
            try:
                found = await CatalogFiles.look(disk, catalog_directories(config), randomness)
            except FileNotFoundError:
                if look == _LOOKS - 1:
                    raise
                continue
            if found:
                return cls(disk, config, found)
            break
        await refuse_remains(disk, config)
        raise BadConfig("there is no store here", path=config.ledger_dirs[0], next_step=_MAKE_ONE)

    async def lock(self) -> list[DiskLock]:
        """Locks the directories, so that no bookie starts and changes them.

        Raises `DirectoryInUse` if a bookie is running. Only existing files are locked.
        """
        directories = (self._config.journal_dir, *self._config.ledger_dirs)
        there = [each for each in directories if await self._disk.stat(f"{each}/lock")]
        return await lock_all(self._disk, there)

    # --- Journal ------------------------------------------------------------------------------

    async def journal_files(self) -> list[View]:
        """Returns the journal files with name and size, oldest first."""
        numbers = await self._numbers(self._config.journal_dir, ".journal")
        needed = range(self.catalog.replay_start.journal, self.catalog.opened + 1)
        known = sorted({*numbers, *needed} - set(self.catalog.lost))
        return [await self._journal_view(number) for number in known]

    async def _journal_view(self, number: int) -> View:
        path = journal_path(self._config.journal_dir, number)
        stat = await self._disk.stat(path)
        if number < self.catalog.replay_start.journal:
            use = "superfluous"  # An entry log was made from this file.
        elif number > self.catalog.opened:
            use = "half made"
        elif stat is None:
            use = "missing"
        else:
            use = "needed" if await self._has_records(path) else "spare"
        return {"journal": number, "bytes": stat.size if stat else None, "use": use, "path": path}

    async def journal_records(self, number: int) -> AsyncIterator[View]:
        """Yields every record that can be found, sound or not. Raises `Missing`, `TornRecord`."""
        path = journal_path(self._config.journal_dir, number)
        async for view in self._records(path):
            yield view

    async def _records(self, path: str) -> AsyncIterator[View]:
        contents, header = await self._read(path)
        reader = RecordReader(contents, header.file_id)
        for record in _walk(reader):
            yield _record_view(reader, record)

    async def replayed(self) -> AsyncIterator[tuple[str, Replayed]]:
        """Yields the contents of the journal as a start would find them, file by file, oldest
        first."""
        first_sequence = self.catalog.replay_start.first_sequence
        for view in await self.journal_files():
            if view["use"] not in _NEEDED or view["bytes"] is None:
                continue
            contents, header = await self._read(view["path"])
            reader = RecordReader(contents, header.file_id)
            found = scan(reader, first_sequence=first_sequence)
            first_sequence = found.next_sequence
            yield view["path"].rpartition("/")[2], replay(reader, found)

    async def ledgers(self) -> LedgerViews:
        """Returns the ledgers of the store; this reads the whole journal."""
        files: list[tuple[str, JournalIndex]] = []
        facts: dict[int, LedgerFacts] = {}
        async for name, replayed in self.replayed():
            self._learn(replayed, int(name.partition(".")[0]), facts, [each for _, each in files])
            files.insert(0, (name, replayed.index))
        return LedgerViews(self.catalog, files, facts, facts.__getitem__)

    def _learn(
        self,
        replayed: Replayed,
        journal: int,
        facts: dict[int, LedgerFacts],
        earlier: Sequence[JournalIndex],
    ) -> None:
        def before(ledger_id: int) -> LedgerFacts:
            return facts.get(ledger_id) or self.catalog.facts.get(ledger_id) or LedgerFacts()

        for ledger_id, key in replayed.keys.items():
            facts[ledger_id] = before(ledger_id).with_key(key)
        for ledger_id in replayed.fenced_by_damage:
            facts[ledger_id] = before(ledger_id).with_fence()
        for control in replayed.controls:
            facts[control.ledger_id] = control.applied_to(before(control.ledger_id), journal)
            if control.operation is ControlOperation.DROP:
                self.catalog.drop(control.ledger_id, journal)
                for index in earlier:
                    index.drop(control.ledger_id)

    # --- Entry logs ---------------------------------------------------------------------------

    def logs(self) -> list[View]:
        return [self._log_view(log) for log in self.catalog.logs.values()]

    def _log_view(self, log: EntryLogInfo) -> View:
        use = self.catalog.use_of(log.number)
        return {
            "log": log.number,
            "bytes": log.file_bytes,
            "ledgers": use.ledgers,
            "entries": use.entries,
            "entry_bytes": use.entry_bytes,
            "live": round(min(1.0, use.entry_bytes / max(1, log.file_bytes)), 3),
            "path": self._path_of(log),
        }

    def extents(self, number: int) -> list[View]:
        """Returns the log's live entries, by ledger. Raises `Missing`."""
        self._log(number)
        return [
            {
                "ledger_id": ledger_id,
                "first_entry": held.first_entry,
                "last_entry": held.last_entry,
                "entries": held.entries,
                "entry_bytes": held.entry_bytes,
                "last_add_confirmed": held.last_add_confirmed,
            }
            for ledger_id, held in sorted(self.catalog.held_in(number))
        ]

    async def log_records(self, number: int) -> AsyncIterator[View]:
        """Yields every record of the log. Raises `Missing`, `TornRecord`."""
        async for view in self._records(self._path_of(self._log(number))):
            yield view

    def _log(self, number: int) -> EntryLogInfo:
        if log := self.catalog.logs.get(number):
            return log
        raise Missing("there is no such entry log", log=number)

    def _path_of(self, log: EntryLogInfo) -> str:
        return log_path(self._config.ledger_dirs[log.directory], log.number)

    def mark(self) -> View:
        start = self.catalog.replay_start
        return {
            "journal": start.journal,
            "first_sequence": start.first_sequence,
            "last_journal": self.catalog.opened,
            "given_up": list(self.catalog.lost),
        }

    # --- Obstacles to a start -----------------------------------------------------------------

    async def losses(self) -> AsyncIterator[StartObstacle]:
        """Yields all losses that would make a start fail; the start itself (`store_opening.py`) stops at
        the first one."""
        for directory in self._config.ledger_dirs:
            for number in await self._numbers(directory, ".log"):
                if is_newer_log(self.catalog, number):
                    yield StartObstacle(log_path(directory, number), NEWER_LOG)
        for log in self.catalog.logs.values():
            path = self._path_of(log)
            if (what := why_lost(log, await self._disk.stat(path))) and any(
                self.catalog.held_in(log.number)
            ):
                yield StartObstacle(path, what)
        journals = await self.journal_files()
        for at, view in enumerate(journals):
            path, use = view["path"], view["use"]
            if use == "missing":
                yield StartObstacle(path, MISSING_JOURNAL)
            elif use == "half made" and not await is_unused(self._disk, path):
                yield StartObstacle(path, NEWER_JOURNAL)
            elif use in _NEEDED and (loss := await self._loss_of(path, journals[at + 1 :])):
                yield loss

    async def _loss_of(self, path: str, later: list[View]) -> StartObstacle | None:
        file = await self._disk.open(path, OpenMode.READ)
        try:
            header = unpack_file_header(await file.read_at(0, FILE_HEADER_BYTES))
            if header is None:
                return StartObstacle(path, HEADLESS_JOURNAL)
            if header.store_id != self._store_id:
                return StartObstacle(path, STRANGE_JOURNAL, STRANGE_REMEDY)
            if await file.size() >= header.allocated_bytes:
                return None
            proof = await self._durable_through(later)
            first = await first_record(file, header)
            if first and (await read_back(file, header, first.sequence, proof)).is_ended:
                # A file that ends with END is complete, because the space allocated after END was
                # released.
                return None
            return StartObstacle(path, SHORT_JOURNAL)
        finally:
            await file.close()

    # --- Verification -------------------------------------------------------------------------

    async def size(self) -> int:
        """Returns the number of bytes that `verify` reads."""
        journals = [view["bytes"] or 0 for view in await self.journal_files()]
        return sum(journals) + sum(log.file_bytes for log in self.catalog.logs.values())

    async def verify(self) -> AsyncIterator[Verified]:
        """Reads every byte and reports damage. It yields the same object each time, with its
        present state."""
        state = Verified()
        state.findings += [
            Finding(path, 0, "a copy of the catalog is damaged", ())
            for path in self._damaged_catalogs
        ]
        first_sequence = self.catalog.replay_start.first_sequence
        for log in self.catalog.logs.values():
            await self._verify_log(log, state)
            yield state
        journals = [view for view in await self.journal_files() if view["use"] in _NEEDED]
        for at, view in enumerate(journals):
            path = view["path"]
            if view["use"] == "missing":
                state.findings.append(Finding(path, 0, "the file is missing"))
            else:
                proof = await self._durable_through(journals[at + 1 :])
                first_sequence = await self._verify_journal(path, first_sequence, proof, state)
            yield state
        for number in self.catalog.lost:
            path = journal_path(self._config.journal_dir, number)
            state.findings.append(Finding(path, 0, "the loss of the file was accepted earlier"))
        yield state

    async def _verify_journal(
        self, path: str, first_sequence: int, durable_through: int, state: Verified
    ) -> int:
        """Returns the first sequence of the next file."""
        try:
            contents, header = await self._read(path)
        except TornRecord as error:
            state.findings.append(Finding(path, 0, error.message))
            return first_sequence
        reader = RecordReader(contents, header.file_id)
        found = scan(reader, first_sequence=first_sequence, durable_through=durable_through)
        self._count(path, reader, contents, found, state)
        entries = replay(reader, found).index
        state.entries += sum(len(rows.columns.entry_ids) for rows in entries.ledgers.values())
        return found.next_sequence

    async def _verify_log(self, log: EntryLogInfo, state: Verified) -> None:
        path = self._path_of(log)
        stat = await self._disk.stat(path)
        if stat is None or stat.size != log.file_bytes:
            ledgers = tuple(ledger_id for ledger_id, _ in self.catalog.held_in(log.number))
            what = f"it has {stat.size} of {log.file_bytes} bytes" if stat else "it is missing"
            state.findings.append(Finding(path, 0, what, ledgers))
            return
        try:
            contents, header = await self._read(path)
        except TornRecord as error:
            state.findings.append(Finding(path, 0, error.message))
            return
        reader = RecordReader(contents, header.file_id)
        first = reader.next_after(FILE_HEADER_BYTES, 0)
        if first is None:
            state.findings.append(Finding(path, FILE_HEADER_BYTES, "the file has no record"))
            return
        found = scan(reader, first_sequence=first.sequence, durable_through=_ALL_DURABLE)
        self._count(path, reader, contents, found, state)
        try:
            self._verify_index(path, contents, header, found, state)
        except TornRecord as error:
            at = int(error.ids.get("position", len(contents) - TRAILER_BYTES))
            state.findings.append(Finding(path, at, error.message, ()))

    async def _durable_through(self, later: list[View]) -> int:
        """Returns the last sequence known to be durable: a file is durable as a whole before the
        next file gets records."""
        for view in later:
            if view["bytes"] is None:
                continue
            if await self._has_records(view["path"]):
                return _ALL_DURABLE
        return 0

    async def _has_records(self, path: str) -> bool:
        file = await self._disk.open(path, OpenMode.READ)
        try:
            return not is_blank(await file.read_at(FILE_HEADER_BYTES, _FIRST_BYTES), 0)
        finally:
            await file.close()

    def _count(
        self, path: str, reader: RecordReader, contents: bytes, found: Scan, state: Verified
    ) -> None:
        state.files += 1
        state.bytes += len(contents)
        state.records += len(found.records)
        state.findings += [_finding_of(path, rot) for rot in found.rot]
        if contents[:SECTOR] != contents[SECTOR:FILE_HEADER_BYTES]:
            state.findings.append(Finding(path, 0, "one of the two headers is damaged", ()))
        for record in _walk(reader, found.end):
            if reader.is_sound(record) and not reader.is_whole(record):
                what = "a record is damaged, but its other parts make up for the damage"
                state.findings.append(Finding(path, record.position, what, ()))

    def _verify_index(
        self, path: str, contents: bytes, header: FileHeader, found: Scan, state: Verified
    ) -> None:
        """Raises `TornRecord` at the first damage in the footer."""
        trailer_at = len(contents) - TRAILER_BYTES
        trailer = unpack_trailer(contents[trailer_at:], header.file_id, len(contents))
        tables_at = trailer_at - trailer.table_bytes
        tables = unpack_tables(contents[tables_at:trailer_at], header.file_id, tables_at, trailer)
        sound = [(record.body_start, record.body_end) for record in found.records]
        starts = [start for start, _ in sound]
        for ledger_id in tables.ledger_ids:
            for row in tables.pages_of(ledger_id):
                page = contents[row.position : row.position + row.size]
                check_page(page, header.file_id, row, ledger_id)
                wrong = _wrong_entries(contents, page, row, ledger_id, sound, starts)
                state.entries += row.entries
                for position, what in wrong:
                    state.findings.append(Finding(path, position, what, (ledger_id,)))

    # --- Files --------------------------------------------------------------------------------

    async def _read(self, path: str) -> tuple[bytes, FileHeader]:
        """Reads a whole file. Raises `Missing`, `TornRecord` if it has no header, `BadConfig` if it
        belongs to another store."""
        try:
            file = await self._disk.open(path, OpenMode.READ)
        except FileNotFoundError:
            raise Missing("there is no such file", path=path) from None
        try:
            contents = await file.read_at(0, await file.size())
        finally:
            await file.close()
        header = unpack_file_header(contents)
        if header is None:
            raise TornRecord("the file has no header", path=path)
        if header.store_id != self._store_id:
            raise BadConfig("the file belongs to another store", path=path)
        return contents, header

    async def _numbers(self, directory: str, suffix: str) -> list[int]:
        names = await self._disk.list_directory(directory)
        stems = [name.removesuffix(suffix) for name in names if name.endswith(suffix)]
        return sorted(int(stem) for stem in stems if stem.isdecimal())


def _walk(reader: RecordReader, end: int = _ALL_DURABLE) -> Iterator[FoundRecord]:
    """Yields all records whose head or trailer can be found, up to the END."""
    position, sequence = FILE_HEADER_BYTES, 0
    while (record := reader.next_after(position, sequence)) and record.position < end:
        yield record
        position, sequence = record.end, record.sequence + 1
        if record.kind is RecordKind.END:
            return


def _record_view(reader: RecordReader, record: FoundRecord) -> View:
    rows = reader.rows(record)
    return {
        "position": record.position,
        "sequence": record.sequence,
        "kind": record.kind.name.lower(),
        "last_synced": record.last_synced,
        "body_bytes": record.body_end - record.body_start,
        "is_sound": reader.is_sound(record),
        "ledgers": None if rows is None else [list(row) for row in rows],
    }


def _finding_of(path: str, rot: Rot) -> Finding:
    if rot.rows is None:
        return Finding(path, rot.position, "records cannot be read")
    ledgers = tuple(dict.fromkeys(row.ledger_id for row in rot.rows))
    return Finding(path, rot.position, "a record is damaged", ledgers)


def _wrong_entries(
    contents: bytes,
    page: bytes,
    row: PageRow,
    ledger_id: int,
    sound: list[tuple[int, int]],
    starts: list[int],
) -> Iterator[tuple[int, str]]:
    """Yields entries that a log's index names but that are not at their places."""
    for entry_id, position, length in zip(*unpack_page(page, row), strict=True):
        at = bisect_right(starts, position) - 1
        if at < 0 or position + length > sound[at][1]:
            continue  # The record is damaged and has been reported.
        if not contents.startswith(pack_entry_ids(ledger_id, entry_id), position):
            yield position, f"the index says that entry {entry_id} is here, but it is not"
