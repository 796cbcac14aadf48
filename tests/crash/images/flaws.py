"""Flaws planted in the storage engine or in a bookie's identity; crash images must find each of
them, or they prove nothing.

The maximum number of images per flaw is at least ten times the average needed to find it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from unittest import mock

from rollbook.bookie import catalog_files, journal_reading, store_opening
from rollbook.bookie.catalog_files import CatalogFiles, _Generation
from rollbook.bookie.checkpoint import Checkpointer
from rollbook.bookie.core import record_format as records
from rollbook.bookie.core.control_records import Control, ControlOperation
from rollbook.bookie.core.fencing import LedgerFacts
from rollbook.bookie.core.identity import MembershipState
from rollbook.bookie.core.record_format import FoundRecord, RecordKind, RecordReader
from rollbook.bookie.core.record_packer import RecordPacker, Write
from rollbook.bookie.core.replay import Replayed
from rollbook.bookie.identity import Identity
from rollbook.bookie.journal import Journal, JournalFile, OnDone
from rollbook.bookie.storage import Storage
from rollbook.proto.formats.bookie_incarnation import BookieRecord
from rollbook.proto.ports import Disk, File, OpenMode
from tests.support.planting import Patch


@dataclass(frozen=True, slots=True)
class Flaw:
    images_max: int
    patches: tuple[Patch, ...]
    is_of_identity: bool = False


async def _do_nothing(*_: Any, **__: Any) -> None:
    pass


# --- The journal --------------------------------------------------------------------------------


async def _write_without_sync(self: Journal, write: Write) -> None:
    started_ns = self._clock.monotonic_ns()
    await self.active.records.file.write_at(write.position, write.buffers)
    self._on_synced(write, started_ns)


_submit = Journal.submit


def _answer_before_the_sync(self: Journal, item: Any, on_done: OnDone, **_: Any) -> None:
    _submit(self, item, on_done, is_sync_deferred=True)


_enqueue = Journal._enqueue


def _answer_controls_before_the_sync(
    self: Journal, item: Any, is_sync_deferred: bool, size: int, on_done: OnDone
) -> None:
    _enqueue(self, item, is_sync_deferred or isinstance(item, Control), size, on_done)


async def _fill_without_sync(self: Journal) -> None:
    end = self.active.packer.pack_empty(RecordKind.END)
    await self.active.records.file.write_at(end.position, end.buffers)
    self._needs_idle_record = False


_pack = RecordPacker.pack


def _pack_as_if_synced(self: RecordPacker, items: Sequence[Any]) -> Write:
    self.last_synced = self.next_sequence
    return _pack(self, items)


# --- Fences, deletions, explicit LACs -----------------------------------------------------------


async def _fence_at_once(self: Storage, ledger_id: int, ledger_key: bytes) -> None:
    """Applies the fence at once and makes it durable later."""
    ledger = self._ledger(ledger_id)
    if ledger.refusal_of_control(ledger_key) is None and not ledger.facts.is_fenced:
        ledger.show_key(ledger_key)
        ledger.fence_is_wanted = True
        self._journal.append(Control(ControlOperation.FENCE, ledger_id, ledger.shown_key))


def _forget(self: LedgerFacts, *_: Any) -> LedgerFacts:
    return self


_with_drop = LedgerFacts.with_drop


def _drop_fence(self: LedgerFacts, journal: int) -> LedgerFacts:
    return replace(_with_drop(self, journal), is_fenced=False)


_learn = store_opening._Boot._learn


def _drop_what_came_later(self: store_opening._Boot, replayed: Replayed, journal: int) -> None:
    """Replay treats a drop like a deletion of everything, including later adds."""
    _learn(self, replayed, journal)
    for control in replayed.controls:
        if control.operation is ControlOperation.DROP:
            replayed.index.drop(control.ledger_id)


def _take_any_lac(self: LedgerFacts, last_add_confirmed: int, packet: bytes) -> LedgerFacts:
    return replace(self, lac_packet=packet, lac_of_packet=last_add_confirmed)


# --- The checkpoint and the catalog -------------------------------------------------------------


_checkpoint = Checkpointer.checkpoint


async def _unlink_before_the_catalog(self: Checkpointer, file: JournalFile, facts: Any) -> Any:
    await self._disk.unlink(file.path)
    await self._disk.sync_directory(self._config.journal_dir)
    return await _checkpoint(self, file, facts)


async def _checkpoint_without_facts(self: Checkpointer, file: JournalFile, _facts: Any) -> Any:
    return await _checkpoint(self, file, list)


_commit_latest = CatalogFiles.commit_latest


async def _commit_the_mark_first(self: CatalogFiles, make: Callable[[], Sequence[bytes]]) -> None:
    news = make()
    await _commit_latest(self, lambda: news[-1:])
    await _commit_latest(self, lambda: news[:-1])


async def _append_unsynced(self: _Generation, body: bytes) -> None:
    await self.append_unsynced(body)


class _Careless:
    """A disk that leaves out some syncs."""

    def __init__(self, disk: Disk, *, file_syncs: bool, name_syncs: bool) -> None:
        self._disk = disk
        self._file_syncs = file_syncs
        self._name_syncs = name_syncs

    async def open(self, path: str, mode: OpenMode) -> File:
        file = await self._disk.open(path, mode)
        if not self._file_syncs:
            file.sync = _do_nothing  # type: ignore[method-assign]  # The flaw.
        return file

    async def sync_directory(self, path: str) -> None:
        if self._name_syncs:
            await self._disk.sync_directory(path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)


_make_log = Checkpointer._make_log


async def _make_log_without_name(self: Checkpointer, file: JournalFile) -> Any:
    careless = _Careless(self._disk, file_syncs=True, name_syncs=False)
    with mock.patch.object(self, "_disk", careless):
        return await _make_log(self, file)


async def _make_log_unsynced(self: Checkpointer, file: JournalFile) -> Any:
    careless = _Careless(self._disk, file_syncs=False, name_syncs=True)
    with (
        mock.patch.object(self, "_disk", careless),
        mock.patch.object(file.records.file, "sync", _do_nothing),
    ):
        return await _make_log(self, file)


# --- Boot ---------------------------------------------------------------------------------------


def _unverified_body(self: RecordReader, record: FoundRecord) -> bytes:
    return self.damaged_body(record)


_read_back = journal_reading.read_back


async def _read_back_as_rot(
    file: Any, header: Any, first_sequence: int, _durable: int, **how: bool
) -> Any:
    return await _read_back(file, header, first_sequence, 2**62, **how)


def _seed_of_nothing(_file_id: bytes, _position: int) -> int:
    return 0


# --- Identity -----------------------------------------------------------------------------------


_replace_stamp = Identity._replace


async def _replace_unsynced(self: Identity, directory: str, name: str, data: bytes) -> None:
    careless = _Careless(self._disk, file_syncs=False, name_syncs=True)
    with mock.patch.object(self, "_disk", careless):
        await _replace_stamp(self, directory, name, data)


async def _replace_without_name(self: Identity, directory: str, name: str, data: bytes) -> None:
    careless = _Careless(self._disk, file_syncs=True, name_syncs=False)
    with mock.patch.object(self, "_disk", careless):
        await _replace_stamp(self, directory, name, data)


async def _write_in_place(self: Identity, directory: str, name: str, data: bytes) -> None:
    path = f"{directory}/{name}"
    is_there = await self._disk.stat(path)
    file = await self._disk.open(path, OpenMode.WRITE if is_there else OpenMode.CREATE)
    await file.truncate(0)
    await file.write_and_sync(0, [data])
    await self._disk.sync_directory(directory)


_stamp_all = Identity._stamp_all


async def _stamp_members_at_once(
    self: Identity, record: BookieRecord, _state: MembershipState
) -> None:
    await _stamp_all(self, record, MembershipState.MEMBER)


async def _stamp_nothing_before_a_format(
    self: Identity, record: BookieRecord, state: MembershipState
) -> None:
    if state is not MembershipState.FORMATTING:
        await _stamp_all(self, record, state)


async def _begin_untold(self: Identity) -> bool:
    with mock.patch.object(self._nodes, "write_record", _do_nothing):
        return await _begin(self)


_begin = Identity.begin


async def _tell_before_it_is_stamped(self: Identity) -> bool:
    found, member = await self._look()
    record = self._draw_record(self.incarnation, found.next_start)
    await self._nodes.write_record(member, self.bookie_id, record)
    await self._stamp_all(record, MembershipState.MEMBER)
    return True


async def _doubt_nothing(*_: Any) -> tuple[int, list[int]]:
    return 0, []


FLAWS: Final = {
    # The journal (B1, B2, B3).
    "the journal never syncs": Flaw(5_000, ((Journal, "_write", _write_without_sync),)),
    "adds are answered before the sync": Flaw(
        5_000, ((Journal, "submit", _answer_before_the_sync),)
    ),
    "a record calls itself durable": Flaw(20_000, ((RecordPacker, "pack", _pack_as_if_synced),)),
    "a file goes on before its predecessor is synced": Flaw(
        90_000, ((Journal, "fill", _fill_without_sync),)
    ),
    "checksums know neither file nor place": Flaw(
        90_000, ((records, "seed_of", _seed_of_nothing),)
    ),
    # Fences (B4), drops (B16), deletions, explicit LACs.
    "fences are answered before they are durable": Flaw(
        45_000, ((Storage, "fence", _fence_at_once),)
    ),
    "all controls are": Flaw(45_000, ((Journal, "_enqueue", _answer_controls_before_the_sync),)),
    "fences are forgotten": Flaw(45_000, ((LedgerFacts, "with_fence", _forget),)),
    "deletions are forgotten": Flaw(90_000, ((LedgerFacts, "with_deletion", _forget),)),
    "a replayed drop takes what was added behind it": Flaw(
        45_000, ((store_opening._Boot, "_learn", _drop_what_came_later),)
    ),
    "drops forget the fence": Flaw(90_000, ((LedgerFacts, "with_drop", _drop_fence),)),
    "explicit LACs go back": Flaw(90_000, ((LedgerFacts, "with_lac_packet", _take_any_lac),)),
    # Checkpoint and catalog (B5).
    "the journal goes before the catalog knows": Flaw(
        45_000, ((Checkpointer, "checkpoint", _unlink_before_the_catalog),)
    ),
    "the facts stay behind": Flaw(
        90_000, ((Checkpointer, "checkpoint", _checkpoint_without_facts),)
    ),
    "a log is not synced": Flaw(45_000, ((Checkpointer, "_make_log", _make_log_unsynced),)),
    "a log's name is not synced": Flaw(
        45_000, ((Checkpointer, "_make_log", _make_log_without_name),)
    ),
    "a catalog record is split": Flaw(
        45_000, ((CatalogFiles, "commit_latest", _commit_the_mark_first),)
    ),
    "the catalog never syncs": Flaw(20_000, ((_Generation, "append", _append_unsynced),)),
    "a new catalog counts before it is synced": Flaw(90_000, ((_Generation, "sync", _do_nothing),)),
    # Boot (B1, B3).
    "bodies are not verified": Flaw(45_000, ((RecordReader, "body", _unverified_body),)),
    "torn tails are taken for rot": Flaw(
        20_000, ((store_opening, "read_back", _read_back_as_rot),)
    ),
    "boot builds on a journal that is not synced": Flaw(
        90_000, ((store_opening, "write_again", _do_nothing),)
    ),
    "boot builds on a catalog that is not synced": Flaw(
        90_000, ((catalog_files, "write_again", _do_nothing),)
    ),
    "new folders are not synced": Flaw(45_000, ((store_opening, "_sync_ancestors", _do_nothing),)),
    # Identity (B8).
    "a stamp is not synced": Flaw(
        20_000, ((Identity, "_replace", _replace_unsynced),), is_of_identity=True
    ),
    "a stamp's name is not synced": Flaw(
        20_000, ((Identity, "_replace", _replace_without_name),), is_of_identity=True
    ),
    "a stamp is written in place": Flaw(
        20_000, ((Identity, "_replace", _write_in_place),), is_of_identity=True
    ),
    "a bookie is a member before others know it": Flaw(
        20_000, ((Identity, "_stamp_all", _stamp_members_at_once),), is_of_identity=True
    ),
    "a format begins unsaid": Flaw(
        20_000, ((Identity, "_stamp_all", _stamp_nothing_before_a_format),), is_of_identity=True
    ),
    "a format doubts nothing": Flaw(
        20_000, ((Identity, "_ledgers_in_doubt", _doubt_nothing),), is_of_identity=True
    ),
    "a start is counted by nobody else": Flaw(
        20_000, ((Identity, "begin", _begin_untold),), is_of_identity=True
    ),
    "a start is told before it is stamped": Flaw(
        20_000, ((Identity, "begin", _tell_before_it_is_stamped),), is_of_identity=True
    ),
}
