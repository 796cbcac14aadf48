"""Turns a filled journal file into an entry log, and moves the replay start after it.

A journal file is adopted or rewritten (`core/journal_as_entry_log.py` decides). To adopt the file, a
footer is written after its END, and its name is linked into a ledger directory. To rewrite the
file, its entries are written to a new log, sorted by ledger and entry. In both cases the log is
durable, under its name, before the catalog lists it. One catalog record has the log, the facts
about its ledgers, the ranges lost to rot, and the replay start (B5). If the bookie dies before that
record, the next start removes the log as a leftover; after it, the next start removes the journal
file.

After a failed write the replay start does not move and the checkpoint is retried. Filled files wait
in the meantime, and new adds are refused once too many files wait. If checkpoints are merely slow,
adds wait for them. The bookie has to stop only if the catalog cannot be written.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import structlog

from rollbook.bookie.background_yield import Background
from rollbook.bookie.cached_record_reader import Cache, RecordFile
from rollbook.bookie.catalog_files import CatalogFiles
from rollbook.bookie.config import StorageConfig
from rollbook.bookie.core import catalog_records as changes
from rollbook.bookie.core.catalog_records import EntryLogInfo, ReplayStart
from rollbook.bookie.core.disk_usage import pick_directory
from rollbook.bookie.core.entry_log_footer import FooterBuilder
from rollbook.bookie.core.entry_salvage import proves_itself
from rollbook.bookie.core.journal_index import Columns
from rollbook.bookie.core.record_format import HEAD_BYTES
from rollbook.bookie.damage_events import DamageEvents
from rollbook.bookie.journal import JournalFile
from rollbook.bookie.sorted_log_writer import Indexed, NewLog, SortedLog, SortedWriter, write_footer
from rollbook.bookie.store_opening import log_path
from rollbook.proto.ports import Clock, Disk, Randomness

logger = structlog.get_logger()

_FILES_IN_A_HURRY: Final = 3
_STEPS_IN_A_HURRY: Final = 4
_LEDGERS_PER_STEP: Final = 64


class Checkpointer:
    def __init__(
        self,
        disk: Disk,
        config: StorageConfig,
        randomness: Randomness,
        catalog: CatalogFiles,
        cache: Cache,
        clock: Clock,
        damage_events: DamageEvents,
        waiting: Callable[[], int],
    ) -> None:
        """`waiting()` returns the number of files that wait for a checkpoint, including the present
        one."""
        self._disk = disk
        self._config = config
        self._randomness = randomness
        self._catalog = catalog
        self._cache = cache
        self._background = Background(clock)
        self._damage_events = damage_events
        self._waiting = waiting
        self._steps = 0

    async def checkpoint(
        self, file: JournalFile, facts: Callable[[], list[bytes]]
    ) -> RecordFile | None:
        """Turns the journal file into an entry log. Returns the file that holds its entries now,
        which may be the same file, or None if there are no entries.

        `facts` returns packed changes that are durable in the journal. Raises `OSError` if nothing
        has changed; the caller can try again.
        """
        new = await self._make_log(file)
        news: list[bytes] = []
        if new:
            for part in changes.pack_log(new.log, new.extents):
                news.append(part)
                await self._give_way()
        # Doubts are settled before new ones are added, because rot may have destroyed some of the
        # same entries.
        news += self._settle_doubts(file)
        doubts = [*file.doubts, *(new.doubts if new else ())]
        news += [changes.pack_doubt(*each) for each in doubts]
        news.append(
            changes.pack_replay_start(ReplayStart(file.number + 1, file.packer.next_sequence))
        )
        await self._catalog.commit_latest(lambda: [*facts(), *news])
        self._damage_events.log(doubts)
        return new.records if new else None

    def _settle_doubts(self, file: JournalFile) -> Iterator[bytes]:
        """Ends doubts about entries that were added again."""
        doubts = self._catalog.catalog.doubts
        for ledger_id in file.index.ledgers if doubts else ():
            if doubts.of(ledger_id):
                entry_ids = file.index.ledgers[ledger_id].sorted_columns().entry_ids
                for run in doubts.settled_by(ledger_id, entry_ids):
                    yield changes.pack_trust(ledger_id, *run)

    async def forget(self, file: JournalFile) -> None:
        """Removes the journal file's name; if this fails, the next start removes it."""
        try:
            await self._disk.unlink(file.path)
        except OSError as error:
            logger.warning("journal_file_not_removed", path=file.path, reason=str(error))

    async def _make_log(self, file: JournalFile) -> NewLog | None:
        entry_bytes = file.index.entry_bytes
        if not any(rows.columns.entry_ids for rows in file.index.ledgers.values()):
            return None
        directory, may_link = await self._pick_directory(file.number)
        for each in self._config.ledger_dirs:
            if await self._disk.stat(log_path(each, file.number)):
                # Removes the log of an attempt that failed.
                await self._disk.unlink(log_path(each, file.number))
        path = log_path(self._config.ledger_dirs[directory], file.number)
        if may_link and file.shape.is_worth_adopting(entry_bytes, file.end):
            return await self._adopt(file, directory, path)
        return await self._rewrite(file, directory, path)

    async def _pick_directory(self, number: int) -> tuple[int, bool]:
        """Picks the log's directory, and says whether the journal file can be linked there."""
        directories = self._config.ledger_dirs
        spaces = [await self._disk.space(path) for path in directories]
        directory = pick_directory(spaces, [False] * len(directories), number)
        ours = await self._disk.stat(self._config.journal_dir)
        theirs = await self._disk.stat(directories[directory])
        return directory, bool(ours and theirs and ours.device == theirs.device)

    # --- Adopting the journal file ------------------------------------------------------------

    async def _adopt(self, file: JournalFile, directory: int, path: str) -> NewLog:
        records = file.records
        builder = FooterBuilder(records.header.file_id, file.end)
        size = await write_footer(
            records.file, builder, _indexed(file), records.records, self._give_way
        )
        await records.file.truncate(size)
        await records.file.sync()
        try:
            await self._disk.link(file.path, path)
        except OSError as error:  # Without hard links the entries are rewritten.
            logger.warning("journal_file_not_linked", number=file.number, reason=str(error))
            return await self._rewrite(file, directory, path)
        await self._disk.sync_directory(self._config.ledger_dirs[directory])
        logger.info("journal_file_adopted", number=file.number, bytes=size)
        return NewLog(
            EntryLogInfo(file.number, directory, size, age=file.number), builder.extents, records
        )

    # --- Rewriting the entries ----------------------------------------------------------------

    async def _rewrite(self, file: JournalFile, directory: int, path: str) -> NewLog:
        target = await SortedLog.create(
            self._disk,
            path,
            file.number,
            self._catalog.store_id,
            self._randomness,
            pause=self._give_way,
        )
        try:
            doubts = await self._copy(file, target.writer)
            new = await target.finish(directory, file.number, self._cache)
        except BaseException:
            await target.abandon()
            raise
        logger.info("journal_file_rewritten", number=file.number, bytes=new.log.file_bytes)
        new.doubts = doubts
        return new

    async def _copy(self, file: JournalFile, writer: SortedWriter) -> list[tuple[int, int, int]]:
        """Copies all sound entries, sorted, and returns the damaged ones."""
        records = file.records
        bodies, damaged = await self._bodies(records)
        starts = [position + HEAD_BYTES for position in records.records]
        lost: list[tuple[int, int, int]] = []
        done = 0
        for ledger_id, rows in file.index.by_ledger():
            columns = rows.sorted_columns()
            if not columns.entry_ids:
                continue
            writer.begin_ledger(ledger_id, rows.last_add_confirmed)
            for run in writer.runs(columns):
                entries = _cut(run, bodies, starts)
                if not damaged:
                    await writer.add(run.entry_ids, entries)
                    continue
                for entry_id, position, entry in zip(*run[:2], entries, strict=True):
                    is_damaged = records.number_at(position) in damaged
                    if is_damaged and not proves_itself(entry, ledger_id, entry_id):
                        lost.append((ledger_id, entry_id, entry_id))
                    else:
                        await writer.add((entry_id,), (entry,))
            done += 1
            if done % _LEDGERS_PER_STEP == 0:
                await self._give_way()
        return lost

    async def _bodies(self, records: RecordFile) -> tuple[list[bytes], dict[int, None]]:
        """Returns the bodies of all records, and the numbers of the damaged records. The bodies of
        damaged records are returned as stored."""
        bodies: list[bytes] = []
        damaged: dict[int, None] = {}
        while len(bodies) < len(records.records):
            await self._give_way()
            for body in await records.bodies_from(len(bodies)):
                if body is None:
                    damaged[len(bodies)] = None
                    bodies.append(await records.damaged_body(len(bodies)))
                else:
                    bodies.append(body)
        if damaged:
            logger.error("journal_rotten", number=records.header.number, records=len(damaged))
        return bodies, damaged

    async def _give_way(self, _written: int = 0, _entries: int = 0) -> None:
        """Lets adds run. Rests between steps. If more files wait, rests are shorter and adds are
        slower."""
        self._steps += 1
        waiting = self._waiting()
        if waiting <= _FILES_IN_A_HURRY or self._steps % _STEPS_IN_A_HURRY == 0:
            await self._background.give_way(max(0, _FILES_IN_A_HURRY - waiting))


def _cut(run: Columns, bodies: Sequence[bytes], starts: Sequence[int]) -> list[bytes]:
    """Cuts entries from the bodies of the records that start at `starts`."""
    numbers = [bisect_right(starts, position) - 1 for position in run.positions]
    rows = zip(numbers, run.positions, run.lengths, strict=True)
    return [bodies[n][(at := position - starts[n]) : at + length] for n, position, length in rows]


def _indexed(file: JournalFile) -> Indexed:
    for ledger_id, rows in file.index.by_ledger():
        if rows.columns.entry_ids:
            yield ledger_id, rows.sorted_columns(), rows.last_add_confirmed, rows.entry_bytes
