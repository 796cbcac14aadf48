"""Ways to build a bookie wrongly, which fresh seeds of its world must find."""

import asyncio
from dataclasses import dataclass, replace
from typing import Any, Final

from rollbook.bookie import cached_record_reader, store_opening
from rollbook.bookie.connection import Connection
from rollbook.bookie.core.connection_memory import ConnectionMemory
from rollbook.bookie.core.control_records import Control, ControlOperation
from rollbook.bookie.core.equal_length_slices import cut_evenly
from rollbook.bookie.core.fencing import LedgerFacts
from rollbook.bookie.core.journal_index import IntArray
from rollbook.bookie.core.replay import Replayed
from rollbook.bookie.core.surplus import SurplusCopies
from rollbook.bookie.deleted_ledger_scan import DeletedLedgerScan
from rollbook.bookie.entry_reader import Reading
from rollbook.bookie.identity import Identity
from rollbook.bookie.journal import Journal, OnDone
from rollbook.bookie.long_polls import LongPolls
from rollbook.bookie.request_handlers import Answers
from rollbook.bookie.storage import Storage
from rollbook.bookie.surplus import Surplus, _Locked
from rollbook.proto.cluster.registration import BookieRegistration, RegisteredMode
from rollbook.proto.cluster.underreplication_marks import Lock
from rollbook.proto.errors import BookieFailed, EntryStateUnknown, NoSuchEntry, WrongBookie
from rollbook.proto.ids import NO_ENTRY, LedgerId
from rollbook.proto.wire.messages import EntryRead, Reply
from tests.simulation.schedule import EVERYTHING, Focus, Kind
from tests.simulation.worlds.bookie.scene import BookieScene
from tests.support.planting import Patch


@dataclass(frozen=True, slots=True)
class BookieMutant:
    name: str
    what: str
    seeds_max: int  # Within which it must be found.
    patches: tuple[Patch, ...]
    focus: Focus = EVERYTHING
    is_equivalent: bool = False

    def scene(self, rules: frozenset[str] | None = None) -> BookieScene:  # It has one set of rules.
        return BookieScene(self.patches, self.focus)


# --- Storage ------------------------------------------------------------------------------------


_submit = Journal.submit


def _answer_before_the_sync(self: Journal, item: Any, on_done: OnDone, **_: Any) -> None:
    _submit(self, item, on_done, is_sync_deferred=True)


async def _sync_until_it_works(self: Journal, write: Any) -> None:
    file = self.active.records.file
    await file.write_at(write.position, write.buffers)
    while True:
        try:
            await file.sync()
            break
        except OSError:
            await asyncio.sleep(0.01)
    self.active.packer.on_synced(write)
    self._has_unsynced = False


async def _fence_at_once(self: Storage, ledger_id: int, ledger_key: bytes) -> None:
    ledger = self._ledger(ledger_id)
    if ledger.refusal_of_control(ledger_key) is None and not ledger.facts.is_fenced:
        ledger.show_key(ledger_key)
        ledger.fence_is_wanted = True
        self._journal.append(Control(ControlOperation.FENCE, ledger_id, ledger.shown_key))


def _forget_fence(self: LedgerFacts) -> LedgerFacts:
    return self


_read = Reading._read


async def _read_damage_as_absence(self: Reading, ledger_id: int, entry_id: int) -> bytes:
    try:
        return await _read(self, ledger_id, entry_id)
    except EntryStateUnknown:
        raise NoSuchEntry(ledger_id=ledger_id, entry_id=entry_id) from None


_read_last = Reading._read_last


async def _read_last_sound(self: Reading, ledger_id: int) -> bytes:
    """Readers could do with it; but it denies what lies behind."""
    try:
        return await _read_last(self, ledger_id)
    except EntryStateUnknown:
        held = [each.last_entry for each in self._catalog.held(ledger_id)]
        last = max([*held, *(file.index.last_entry(ledger_id) for file in self._files())])
        if last == NO_ENTRY:
            raise
        return await self._read(ledger_id, last)


def _cut_backwards(*arguments: Any) -> tuple[bytes, ...]:
    return cut_evenly(*arguments)[::-1]


# --- Server -------------------------------------------------------------------------------------


async def _read_then_fence(self: Answers, read: EntryRead) -> Reply:
    try:
        if read.entry_id == NO_ENTRY:
            body = await self._storage.read_last(read.ledger_id)
        else:
            body = await self._storage.read(read.ledger_id, read.entry_id)
    finally:
        if read.fence:
            await self._fence(read.ledger_id, read.ledger_key)
    return self.found(read, body)


_on_adds = Connection._on_adds


def _accept_what_was_refused(self: Connection, adds: Any, now_ns: int) -> None:
    refusals = self._shared.storage.add(adds).refusals
    for group, refusal in zip(adds.groups, refusals, strict=True):
        if refusal:
            self._send(group.pack_replies(None))
    if not any(refusals):
        _on_adds(self, adds, now_ns)


_on_added = Connection._on_added


def _answer_twice(self: Connection, chunks: int, failure: BookieFailed | None) -> None:
    if failure is None:
        for group in self._adds[0].groups:
            self._send(group.pack_replies(None))
    _on_added(self, chunks, failure)


def _never_end(_self: LongPolls, _parked: Any, _news_ms: int | None) -> None:
    pass


_give = ConnectionMemory.give


def _keep_a_byte(self: ConnectionMemory, size: int) -> None:
    _give(self, size - (size > 1))


# --- Membership and space -----------------------------------------------------------------------


_establish = BookieRegistration._establish


async def _leave_then_enter(self: BookieRegistration, standing: RegisteredMode) -> None:
    for each in RegisteredMode:
        if each is not standing:
            await self._remove(each)
    await _establish(self, standing)


async def _do_nothing(*_: Any) -> None:
    pass


async def _count_nothing(_: Identity) -> bool:
    return True


_establish_identity = Identity._establish


async def _let_in(self: Identity) -> None:
    """A bookie with empty directories."""
    try:
        await _establish_identity(self)
    except WrongBookie:
        await Storage.make(self._disk, self._config, self._randomness)
        self.incarnation = self._draw_incarnation()


async def _see_half(self: DeletedLedgerScan, ids: IntArray) -> IntArray:
    """A listing that breaks off counts as complete."""
    return ids[len(ids) // 2 :]


async def _believe(_self: DeletedLedgerScan, ids: IntArray) -> IntArray:
    return ids


async def _forget_all_deletions(self: Storage, *ledger_ids: int) -> None:
    """What was deleted is as if it had never been."""
    await _delete(self, *ledger_ids)
    for file in self._files():
        file.deleted.clear()
    await self.save_facts(ledger_ids)
    await self.forget(*ledger_ids)


_delete = Storage.delete


def _agree_at_once(self: SurplusCopies, ledger_id: int, _asked_ns: int) -> bool:
    return ledger_id in self._quiet


_make_copies = SurplusCopies.__init__


def _hear_of_no_adds(
    self: SurplusCopies, interval_ns: int, session_timeout_s: float, _quiet: dict[int, int]
) -> None:
    _make_copies(self, interval_ns, session_timeout_s, {})


async def _look_without_a_lock(self: Surplus, ledger_id: int) -> _Locked:
    lock = Lock(LedgerId(ledger_id), "", self._store.session)
    asked_ns = self._clock.monotonic_ns()
    return _Locked(ledger_id, lock, await self._is_surplus(ledger_id), asked_ns)


_with_drop = LedgerFacts.with_drop


def _drop_fence(self: LedgerFacts, journal: int) -> LedgerFacts:
    return replace(_with_drop(self, journal), is_fenced=False)


_learn = store_opening._Boot._learn


def _drop_what_came_later(self: store_opening._Boot, replayed: Replayed, journal: int) -> None:
    _learn(self, replayed, journal)
    for control in replayed.controls:
        if control.operation is ControlOperation.DROP:
            replayed.index.drop(control.ledger_id)


# Budgets are ten times what it takes on average, or more: a bug that gets away is not bad luck.
BOOKIE_MUTANTS: Final = (
    BookieMutant(
        "early-ack",
        "Adds are answered before they are durable (B1).",
        100,
        ((Journal, "submit", _answer_before_the_sync),),
    ),
    BookieMutant(
        "failed-sync-again",
        "A journal whose sync failed syncs again, and believes the second answer (B6).",
        300,
        ((Journal, "_write", _sync_until_it_works),),
        Focus((Kind.SYNC_ERROR, Kind.POWER_CUT), verbs=("add",)),
    ),
    BookieMutant(
        "early-fence",
        "A fence is answered before it is durable (B4).",
        300,
        ((Storage, "fence", _fence_at_once),),
        Focus((Kind.POWER_CUT, Kind.SLOW_DISK), verbs=("fence",)),
    ),
    BookieMutant(
        "fence-in-memory",
        "A fence does not outlive the process (B4).",
        300,
        ((LedgerFacts, "with_fence", _forget_fence),),
    ),
    BookieMutant(
        "damage-is-absence",
        "What cannot be read is called absent (B1).",
        600,
        ((Reading, "_read", _read_damage_as_absence),),
        Focus((Kind.ROT, Kind.READ_ERROR), verbs=("read", "batch")),
    ),
    BookieMutant(
        "last-before-doubts",
        "The last entry is named though some behind it may have been lost (B1).",
        600,
        ((Reading, "_read_last", _read_last_sound),),
        Focus((Kind.ROT,), verbs=("read", "fence")),
    ),
    BookieMutant(
        "backward-cuts",
        "Small entries that are cut out of a record together come in the wrong order (B1).",
        50,
        ((cached_record_reader, "cut_evenly", _cut_backwards),),
    ),
    BookieMutant(
        "read-then-fence",
        "A fencing read looks first and fences then (B4).",
        1_500,
        ((Answers, "_read", _read_then_fence),),
        Focus((Kind.SLOW_DISK,), verbs=("fence",)),
    ),
    BookieMutant(
        "refusals-are-acks",
        "Adds that were refused are answered like the others (B1, B4).",
        100,
        ((Connection, "_on_adds", _accept_what_was_refused),),
    ),
    BookieMutant(
        "two-answers",
        "An add is answered twice.",
        50,
        ((Connection, "_on_added", _answer_twice),),
    ),
    BookieMutant(
        "endless-poll",
        "A long poll whose time is up goes on.",
        150,
        ((LongPolls, "_end", _never_end),),
        Focus(verbs=("poll",)),
    ),
    BookieMutant(
        "leaky-budget",
        "Of what a client gives back, a byte stays on its account (B7).",
        100,
        ((ConnectionMemory, "give", _keep_a_byte),),
    ),
    BookieMutant(
        "unseen-between",
        "A bookie that turns read-only leaves one folder before it is in the other (RG1).",
        600,
        ((BookieRegistration, "_establish", _leave_then_enter),),
    ),
    BookieMutant(
        "lost-session",
        "A bookie does not register again when its session was lost.",
        300,
        ((BookieRegistration, "keep", _do_nothing),),
        Focus((Kind.METADATA_EXPIRY,)),
    ),
    BookieMutant(
        "anybody",
        "An id may be used from empty directories (B8).",
        150,
        (
            (Identity, "_establish", _let_in),
            (Identity, "_require_fit", _do_nothing),
            (Identity, "begin", _count_nothing),
            (BookieRegistration, "await_others", _do_nothing),
        ),
    ),
    BookieMutant(
        "uncounted-starts",
        "Directories that were restored from a snapshot pass for the latest (B8).",
        600,
        ((Identity, "begin", _count_nothing),),
        Focus((Kind.ROLLBACK,), verbs=("lac",)),
    ),
    BookieMutant(
        "half-a-listing",
        "A listing of the metadata that broke off decides what is garbage (B11).",
        100,
        (
            (DeletedLedgerScan, "absent_of", _see_half),
            (DeletedLedgerScan, "still_absent", _believe),
        ),
    ),
    BookieMutant(
        "dropped-at-once",
        "Copies are dropped at the first look that finds them surplus (B16).",
        400,
        ((SurplusCopies, "_is_due", _agree_at_once),),
        Focus(verbs=("move",)),
    ),
    BookieMutant(
        "deaf-to-copies",
        "Copies are dropped though others came in since the first look (B16).",
        700,
        ((SurplusCopies, "__init__", _hear_of_no_adds),),
        Focus(verbs=("move",)),
    ),
    BookieMutant(
        "dropped-unlocked",
        "Copies are dropped without their ledger's lock (B16).",
        400,
        ((Surplus, "_look_locked", _look_without_a_lock), (Surplus, "_release", _do_nothing)),
        Focus(verbs=("move", "list")),
    ),
    BookieMutant(
        "dropped-fence",
        "With the entries the fence is dropped (B4, B16).",
        300,
        ((LedgerFacts, "with_drop", _drop_fence),),
        Focus((Kind.KILL, Kind.POWER_CUT), verbs=("move", "fence", "add")),
    ),
    BookieMutant(
        "dropped-again",
        "A replay of the journal drops what was added behind the drop, too (B16).",
        500,
        ((store_opening._Boot, "_learn", _drop_what_came_later),),
        Focus((Kind.KILL, Kind.POWER_CUT), verbs=("move",)),
    ),
    BookieMutant(
        "forgotten-deletion",
        "A deletion is forgotten as soon as it is done.",
        100,
        ((Storage, "delete", _forget_all_deletions),),
    ),
)
