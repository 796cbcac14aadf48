"""Ways to build the ledger client wrongly, or a bookie beneath it, which fresh seeds must find.

Each is a patch of a real class. They are the corpus of what went wrong in such systems: fences that
were lost, negatives that proved nothing, acknowledgements that did not count, ends found too early.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

from rollbook.bookie import cached_record_reader
from rollbook.bookie.core import catalog_records
from rollbook.bookie.core.equal_length_slices import cut_evenly
from rollbook.bookie.core.fencing import LedgerFacts
from rollbook.bookie.entry_reader import Reading
from rollbook.bookie.identity import Identity
from rollbook.bookie.journal import Journal
from rollbook.bookie.request_handlers import Answers
from rollbook.bookie.storage import Storage
from rollbook.ledger import recovery
from rollbook.ledger import recovery_writer as write_backs
from rollbook.ledger.concurrent_calls import error_of
from rollbook.ledger.core.acks import AckTracker
from rollbook.ledger.core.ensemble_change import OpenEnsemble
from rollbook.ledger.core.lac_survey import LacSurvey
from rollbook.ledger.core.read_plan import CopySearch
from rollbook.ledger.core.tail_search import TailProbe, TailSearch
from rollbook.ledger.core.write_back import WriteBack
from rollbook.ledger.explicit_lac import ExplicitLac
from rollbook.ledger.follower import Follower
from rollbook.ledger.metadata_writer import MetadataWriter
from rollbook.ledger.recovery import LedgerRecovery, _Attempt
from rollbook.ledger.recovery_writer import WriteBacks
from rollbook.ledger.writer import LedgerWriter
from rollbook.proto.cluster import ledger_nodes
from rollbook.proto.cluster.ledger_nodes import StoredLedger
from rollbook.proto.errors import (
    AppendUnsettled,
    BookieTimeout,
    BookieUnreachable,
    ConnectionLost,
    EntryStateUnknown,
    Missing,
    Outcome,
    OutcomeUnknown,
    RollbookError,
)
from rollbook.proto.ids import NO_ENTRY, EntryId
from rollbook.proto.metadata import Fragment, LedgerMetadata, LedgerState
from rollbook.proto.quorum import Ensemble, Quorum
from rollbook.proto.wire import messages
from rollbook.proto.wire.digest import Entry
from rollbook.proto.wire.entry_batches import join_bodies, unpack_bodies
from rollbook.proto.wire.v2_adds import V2AddPacker
from rollbook.proto.wire.v3_adds import V3AddPacker
from rollbook.recovery.recovery_adds import Restorer
from tests.simulation.worlds.bookie import flaws as bookie_flaws
from tests.simulation.worlds.ledger.scene import LedgerScene
from tests.simulation.worlds.ledger.words import BOOKIES
from tests.support.planting import Patch


@dataclass(frozen=True, slots=True)
class LedgerMutant:
    name: str
    what: str
    seeds_max: int  # Within which it must be found.
    patches: tuple[Patch, ...]
    drill: str | None = None  # Cases are drawn from it alone.
    is_equivalent: bool = False

    def scene(self, rules: frozenset[str] | None = None) -> LedgerScene:  # It has one set of rules.
        return LedgerScene(self.patches, self.drill)


# --- The writer ---------------------------------------------------------------------------------


def _mute(self: AckTracker, slot: int) -> None:
    self._withdrawn |= 1 << slot


def _inherit(self: AckTracker, slot: int, first_entry: EntryId) -> None:
    self._withdrawn &= ~(1 << slot)
    self._excused &= ~(1 << slot)


_init_acks = AckTracker.__init__


def _need_one_less(self: AckTracker, quorum: Quorum, *rest: Any) -> None:
    _init_acks(self, quorum, *rest)
    self._ack = max(1, self._ack - 1)


_move_tail = MetadataWriter.move


def _begin_behind_all(self: MetadataWriter, picks: Any, next_unconfirmed: Any) -> Any:
    """The new fragment begins behind what was sent, be it confirmed or not."""
    pipeline = next_unconfirmed.__self__._pipeline
    return _move_tail(self, picks, lambda: pipeline.next_entry)


def _begin_at_the_lac(self: MetadataWriter, picks: Any, next_unconfirmed: Any) -> Any:
    return _move_tail(self, picks, lambda: EntryId(max(0, next_unconfirmed() - 1)))


def _write_anyhow(self: LedgerMetadata, first_entry: EntryId, ensemble: Ensemble) -> LedgerMetadata:
    return replace(self, fragments=self._tailed((Fragment(first_entry, ensemble),)))


def _find_nothing(self: OpenEnsemble, found: LedgerMetadata, attempts: Sequence[Fragment]) -> None:
    return None


def _close_anyhow(self: LedgerMetadata, last_entry: EntryId, length: int) -> LedgerMetadata:
    if self.state is LedgerState.CLOSED:
        return self
    return self._closed(last_entry, length, self.fragments)


_make_packer = LedgerWriter._make_packer


def _tell_more(self: LedgerWriter) -> Any:
    """Each entry calls the one before it confirmed."""
    packer = _make_packer(self)
    pack = packer.pack

    class Optimist:
        def __getattr__(self, name: str) -> Any:
            return getattr(packer, name)

        def pack_all(
            self, first: EntryId, _lac: EntryId, lengths: Sequence[int], payloads: Sequence[bytes]
        ) -> list[bytes]:
            entry_ids = map(EntryId, range(first, first + len(payloads)))
            lacs = map(EntryId, range(first - 1, first - 1 + len(payloads)))
            return [*map(pack, entry_ids, lacs, lengths, payloads)]

    return Optimist()


_tell_lac = ExplicitLac._tell


def _tell_of_all(self: ExplicitLac, lac: EntryId) -> None:
    _tell_lac(self, EntryId(self._pipeline.next_entry - 1))


def _tell_nobody(self: ExplicitLac) -> None:
    pass


async def _believe_in_success(store: Any, path: str, value: bytes, version: int) -> int:
    try:
        return int((await store.set(path, value, version)).version)
    except OutcomeUnknown:
        return version + 1


# --- Recovery -----------------------------------------------------------------------------------


def _one_is_enough(self: TailSearch) -> bool:
    sought = self._sought.get(self._next)
    return sought is not None and sought.negatives != 0


def _failures_are_negatives(*kinds: type[RollbookError]) -> Any:
    reasons = [kind.code.reason for kind in kinds]
    original = TailSearch.on_failure

    def on_failure(self: TailSearch, ask: TailProbe, reason: str) -> None:
        if reason in reasons:
            self.on_negative(ask)
        else:
            original(self, ask, reason)

    return on_failure


def _doubt_is_nothing(self: _Attempt, slot: int, answer: Any) -> Any:
    if error_of(answer) is not EntryStateUnknown:
        return _judge_fence(self, slot, answer)
    self._fences.pop(slot, None)
    self._lasts[slot] = None
    return None, None


_judge_fence: Final = _Attempt._judge_fence


def _look_without_fence(original: Any) -> Any:
    def make(*arguments: Any, **keywords: Any) -> Any:
        asked = original(*arguments, **keywords)
        first = asked.first_entry if hasattr(asked, "first_entry") else asked.entry_id
        if first == NO_ENTRY:
            return asked
        fenceless = {"fence": False, "ledger_key": None}
        return (
            asked._replace(**fenceless)
            if hasattr(asked, "_replace")
            else replace(asked, **fenceless)
        )

    return make


_init_survey = LacSurvey.__init__


def _start_at_zero(self: LacSurvey, quorum: Quorum, *_: Any) -> None:
    _init_survey(self, quorum)


_on_lac = LacSurvey.on_lac


def _take_the_highest(self: LacSurvey, lac: EntryId, highest_entry: EntryId = NO_ENTRY) -> None:
    _on_lac(self, max(lac, highest_entry), highest_entry)


def _pack_moving(self: WriteBacks, entry: Entry) -> bytes:
    return self._packer.pack(
        entry.entry_id, EntryId(entry.entry_id - 1), entry.ledger_length, entry.payload
    )


def _release_at_one(self: WriteBack) -> None:
    for entry_id in [e for e, copies in self._copies.items() if copies.acked]:
        self.entry_bytes -= len(self._copies.pop(entry_id).entry.payload)


def _write_nothing_back(self: WriteBacks, entries: list[Entry]) -> None:
    pass


def _is_complete(self: WriteBacks) -> bool:
    return True


def _no_fragments(self: WriteBack) -> list[Fragment]:
    return []


async def _recover_in_public(
    self: LedgerRecovery, stored: StoredLedger, password: bytes, digest_type: Any
) -> StoredLedger:
    """New fragments are written before the ledger is closed."""
    stored = await self._start(stored)
    if stored.metadata.is_closed:
        return stored
    async with self._attempt(stored, password, digest_type) as attempt:
        end = await attempt.run()
    metadata = stored.metadata
    if end.new_fragments:
        moved = replace(metadata, fragments=metadata._tailed(end.new_fragments))
        stored = await self._nodes.update(stored, moved)
    closed = stored.metadata.with_recovery_closed(end.last_entry, end.length)
    return await self._nodes.update(stored, closed)


async def _start_unmarked(self: LedgerRecovery, stored: StoredLedger) -> StoredLedger:
    return stored


_recovery_closed = LedgerMetadata.with_recovery_closed


def _close_open(
    self: LedgerMetadata, last_entry: EntryId, length: int, new: Sequence[Fragment] = ()
) -> LedgerMetadata:
    state = LedgerState.IN_RECOVERY if self.state is LedgerState.OPEN else self.state
    return _recovery_closed(replace(self, state=state), last_entry, length, new)


def _pack_ordinary(original: Any) -> Any:
    def make(*arguments: Any, **keywords: Any) -> Any:
        return original(*arguments, **{**keywords, "is_recovery": False})

    return make


async def _no_length(self: _Attempt, last_entry: EntryId) -> int:
    return 0


async def _fence_nobody(
    self: LedgerRecovery, stored: StoredLedger, password: bytes, digest_type: Any
) -> StoredLedger:
    return stored


# --- Readers ------------------------------------------------------------------------------------


_on_copy_failure = CopySearch.on_failure


def _first_no_is_final(self: CopySearch, slot: int, error: type[RollbookError]) -> None:
    if issubclass(error, Missing):
        self._untried.clear()
        self._errors.clear()
    _on_copy_failure(self, slot, error)


_on_poll_answer = Follower._on_answer


def _show_what_comes(self: Follower, slot: int, answer: Any) -> bool:
    """Whatever a bookie holds next is taken for confirmed."""
    if getattr(answer, "body", None) is not None:
        answer = answer._replace(last_add_confirmed=answer.entry_id)
    elif getattr(answer, "last_add_confirmed", None) is not None:
        answer = answer._replace(last_add_confirmed=EntryId(answer.last_add_confirmed + 1))
    return _on_poll_answer(self, slot, answer)


# --- Bookies ------------------------------------------------------------------------------------


async def _bring_nothing_back(
    _restorer: Restorer, _entries: Sequence[Entry], unacked_bytes_max: int
) -> None:
    pass


async def _doubt_nothing(
    self: Identity, _old_below: int, _on_progress: Any
) -> tuple[int, list[int]]:
    return 0, []


_pack_old = catalog_records.pack_old


def _pack_nothing_old(_ledger_id: int) -> bytes:
    return _pack_old(0)


_read_last = Reading._read_last


async def _name_the_first_last(self: Reading, ledger_id: int) -> bytes:
    known: dict[int, int] = self.__dict__.setdefault("first_lasts", {})
    if (last := known.get(ledger_id)) is not None:
        return await self._read(ledger_id, last)
    body = await _read_last(self, ledger_id)
    ledger = self._ledger(ledger_id)
    if ledger is not None and ledger.facts.is_fenced:
        known[ledger_id] = int.from_bytes(body[8:16])
    return body


def _spoil_at_one(*arguments: Any) -> tuple[bytes, ...]:
    loop: Any = asyncio.get_running_loop()
    entries = cut_evenly(*arguments)
    if loop.lane().host != BOOKIES[0]:
        return entries
    return tuple(entry[:-1] + bytes((entry[-1] ^ 1,)) for entry in entries)


_batch_read = Answers._batch_read


async def _widen_gaps(self: Answers, batch: messages.BatchRead, making: Any) -> Any:
    reply = await _batch_read(self, batch, making)
    if not batch.is_sparse or not isinstance(reply, messages.PackedBatch):
        return reply
    data = b"".join(reply.pieces)
    bodies = [*unpack_bodies(data, 0, len(data))]
    ids = [int.from_bytes(body[8:16]) for body in bodies]
    gaps = [0, *(later - entry_id - 1 for entry_id, later in pairwise(ids))]
    kept = [body for body, gap in zip(bodies, gaps, strict=True) if not gap]
    return replace(reply, pieces=(join_bodies(kept),))


# None takes more than about ten on average: a bug that gets away is no bad luck.
_BUDGET: Final = 400

LEDGER_MUTANTS: Final = (
    LedgerMutant(
        "ledger-heirs-of-copies",
        "A successor inherits the copies of the bookie that it replaces (WR2).",
        _BUDGET,
        ((AckTracker, "withdraw", _mute), (AckTracker, "admit", _inherit)),
        drill="thin_copies",
    ),
    LedgerMutant(
        "ledger-one-ack-less",
        "An entry is confirmed with one copy less than its ack quorum (WR1).",
        _BUDGET,
        ((AckTracker, "__init__", _need_one_less),),
    ),
    LedgerMutant(
        "ledger-late-fragment",
        "A new fragment begins behind entries that are not confirmed (WR2).",
        _BUDGET,
        ((MetadataWriter, "move", _begin_behind_all),),
    ),
    LedgerMutant(
        "ledger-early-fragment",
        "A new fragment begins with the last confirmed entry, which it does not get (WR2).",
        _BUDGET,
        ((MetadataWriter, "move", _begin_at_the_lac),),
        drill="thin_copies",
    ),
    LedgerMutant(
        "ledger-writes-in-recovery",
        "A writer changes the ensemble of a ledger that is being recovered (WR4, LM2, LM3).",
        _BUDGET,
        (
            (LedgerMetadata, "with_writer_ensemble", _write_anyhow),
            (OpenEnsemble, "find_made", _find_nothing),
        ),
        drill="duel",
    ),
    LedgerMutant(
        "ledger-closes-in-recovery",
        "A writer closes a ledger that is being recovered (WR4, LM2, LM3).",
        _BUDGET,
        ((LedgerMetadata, "with_close", _close_anyhow),),
        drill="duel",
    ),
    LedgerMutant(
        "ledger-hasty-lac",
        "Each entry calls the one before it confirmed (RD1).",
        _BUDGET,
        ((LedgerWriter, "_make_packer", _tell_more),),
    ),
    LedgerMutant(
        "ledger-hasty-explicit-lac",
        "A resting writer calls everything confirmed that it has sent (WR7, RD1).",
        _BUDGET,
        ((ExplicitLac, "_tell", _tell_of_all),),
        drill="rest",
    ),
    LedgerMutant(
        "ledger-silent-rest",
        "A resting writer tells nobody of its last entry (WR7).",
        _BUDGET,
        ((ExplicitLac, "on_confirmed", _tell_nobody),),
    ),
    LedgerMutant(
        "ledger-lost-reply-is-success",
        "A change of metadata whose reply was lost is taken for made (LR1).",
        _BUDGET,
        ((ledger_nodes, "set_surely", _believe_in_success),),
        drill="lost_words",
    ),
    LedgerMutant(
        "ledger-pending-is-refused",
        "A writer that is stopped calls what is pending refused.",
        _BUDGET,
        ((AppendUnsettled, "outcome", Outcome.NOT_APPLIED),),
    ),
    LedgerMutant(
        "ledger-one-negative",
        "Recovery takes one negative answer for proof that an entry is absent (FR2, FR3).",
        _BUDGET,
        ((TailSearch, "is_absence_proven", property(_one_is_enough)),),
        drill="lonely_tail",
    ),
    LedgerMutant(
        "ledger-silence-is-absence",
        "Recovery takes bookies that do not answer for bookies that deny (FR3).",
        _BUDGET,
        (
            (
                TailSearch,
                "on_failure",
                _failures_are_negatives(BookieTimeout, BookieUnreachable, ConnectionLost),
            ),
        ),
        drill="lonely_tail",
    ),
    LedgerMutant(
        "ledger-doubt-is-absence",
        "Recovery takes UNKNOWN for absent (FR3).",
        _BUDGET,
        ((TailSearch, "on_failure", _failures_are_negatives(EntryStateUnknown)),),
        drill="erased_tail",
    ),
    LedgerMutant(
        "ledger-doubt-is-no-last",
        "Recovery takes a bookie that cannot tell which entry is its last for one that has none (FR3).",
        _BUDGET,
        ((_Attempt, "_judge_fence", _doubt_is_nothing),),
        drill="erased_tail",
    ),
    LedgerMutant(
        "ledger-reads-do-not-fence",
        "Recovery fences with its first question only, as BookKeeper did until issue 2614 (FR1).",
        _BUDGET,
        (
            (recovery, "EntryRead", _look_without_fence(messages.EntryRead)),
            (recovery, "BatchRead", _look_without_fence(messages.BatchRead)),
        ),
        drill="unheard_fence",
    ),
    LedgerMutant(
        "ledger-starts-too-low",
        "Recovery looks for earlier fragments' entries on the last one's bookies (FR1; issue 2615).",
        _BUDGET,
        ((LacSurvey, "__init__", _start_at_zero),),
        drill="revolving_door",
    ),
    LedgerMutant(
        "ledger-highest-is-confirmed",
        "The highest entry that anybody holds is taken for confirmed (RD1).",
        _BUDGET,
        ((LacSurvey, "on_lac", _take_the_highest),),
        drill="broken_recovery",
    ),
    LedgerMutant(
        "ledger-moving-lac",
        "Recovery's write-backs call what it has written back so far confirmed (FR4).",
        _BUDGET,
        ((WriteBacks, "_pack", _pack_moving),),
        drill="broken_recovery",
    ),
    LedgerMutant(
        "ledger-one-copy",
        "Recovery closes when one copy of each entry is written back (FR5).",
        _BUDGET,
        ((WriteBack, "_release", _release_at_one),),
        drill="broken_recovery",
    ),
    LedgerMutant(
        "ledger-no-write-back",
        "Recovery closes over entries as it found them (FR5).",
        _BUDGET,
        ((WriteBacks, "add", _write_nothing_back),),
        drill="broken_recovery",
    ),
    LedgerMutant(
        "ledger-impatient-close",
        "Recovery closes before what it has written back is acknowledged (FR5).",
        _BUDGET,
        ((WriteBacks, "is_complete", property(_is_complete)),),
        drill="broken_recovery",
    ),
    LedgerMutant(
        "ledger-unnamed-bookies",
        "The close does not name the bookies that recovery has written to (FR5).",
        _BUDGET,
        ((WriteBack, "new_fragments", _no_fragments),),
        drill="broken_recovery",
    ),
    LedgerMutant(
        "ledger-publishes-early",
        "Recovery publishes its bookies before the end is known to all (FR6, LM3).",
        _BUDGET,
        ((LedgerRecovery, "recover", _recover_in_public),),
        drill="broken_recovery",
    ),
    LedgerMutant(
        "ledger-unmarked",
        "Recovery does not take the metadata from the writer first (FR1).",
        _BUDGET,
        (
            (LedgerRecovery, "_start", _start_unmarked),
            (LedgerMetadata, "with_recovery_closed", _close_open),
        ),
    ),
    LedgerMutant(
        "ledger-ordinary-write-backs",
        "Recovery's adds do not say what they are, and are refused.",
        _BUDGET,
        (
            (write_backs, "V3AddPacker", _pack_ordinary(V3AddPacker)),
            (write_backs, "V2AddPacker", _pack_ordinary(V2AddPacker)),
        ),
        drill="broken_recovery",
    ),
    LedgerMutant(
        "ledger-no-length",
        "Recovery forgets how long the ledger is.",
        _BUDGET,
        ((_Attempt, "_length_at", _no_length),),
    ),
    LedgerMutant(
        "ledger-deletes-unfenced",
        "A ledger is deleted though its writer goes on (LG1).",
        _BUDGET,
        ((LedgerRecovery, "fence", _fence_nobody),),
        drill="deletion",
    ),
    LedgerMutant(
        "ledger-first-no-is-final",
        "A reader asks no second bookie when one says that it has no such entry (RD3).",
        _BUDGET,
        ((CopySearch, "on_failure", _first_no_is_final),),
    ),
    LedgerMutant(
        "ledger-shows-what-comes",
        "A follower shows what is not confirmed (RD1).",
        _BUDGET,
        ((Follower, "_on_answer", _show_what_comes),),
    ),
    LedgerMutant(
        "ledger-early-ack",
        "Bookies answer adds before they are durable (B1).",
        _BUDGET,
        ((Journal, "submit", bookie_flaws._answer_before_the_sync),),
    ),
    LedgerMutant(
        "ledger-early-fence",
        "Bookies answer a fence before it is durable (B4).",
        _BUDGET,
        ((Storage, "fence", bookie_flaws._fence_at_once),),
    ),
    LedgerMutant(
        "ledger-fence-in-memory",
        "Bookies forget fences when they restart (B4).",
        _BUDGET,
        ((LedgerFacts, "with_fence", bookie_flaws._forget_fence),),
        drill="sleeper",
    ),
    LedgerMutant(
        "ledger-stale-last",
        "A bookie names for ever what it called a ledger's last entry when it was first fenced (B1).",
        _BUDGET,
        ((Reading, "_read_last", _name_the_first_last),),
    ),
    LedgerMutant(
        "ledger-spoilt-at-one",
        "One bookie spoils small entries that it cuts out of a record together (RD3).",
        _BUDGET,
        ((cached_record_reader, "cut_evenly", _spoil_at_one),),
    ),
    LedgerMutant(
        "ledger-wide-gaps",
        "A batch that passes over gaps passes over the entry behind each, too (B1).",
        _BUDGET,
        ((Answers, "_batch_read", _widen_gaps),),
    ),
    LedgerMutant(
        "ledger-wiped-and-sure",
        "A bookie whose disk was erased denies what it had (B8; issues 2612, 4812).",
        _BUDGET,
        ((Identity, "_ledgers_in_doubt", _doubt_nothing),),
        drill="erasure",
    ),
    LedgerMutant(
        "ledger-fences-gone-with-disks",
        "A bookie that was formatted lets writers in that an earlier life of it had kept out (B13).",
        _BUDGET,
        ((catalog_records, "pack_old", _pack_nothing_old),),
        drill="late_return",
    ),
    LedgerMutant(
        "ledger-heals-in-words",
        "What a bookie has lost is settled, and not brought back (HL1).",
        _BUDGET,
        ((Restorer, "put", _bring_nothing_back),),
        drill="erasure",
    ),
)
