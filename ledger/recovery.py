"""Finds the end of a ledger whose writer is gone or unwanted, and closes the ledger there.

    metadata   OPEN ──► IN_RECOVERY                    from here on the writer changes nothing (FR1)
    bookies    fence and return the LAC                until all ack quorums are covered (FR1)
    bookies    return the next entries, or deny them   each request fences; until one is absent (FR2, FR3)
    bookies    store the recovered entries again       with the LAC known at the beginning (FR4, FR5)
    metadata   IN_RECOVERY ──► CLOSED at that entry    also names the replaced bookies (FR6)

The last change is a compare-and-set on the metadata that recovery began with. If another client has
closed the ledger in the meantime, the end that it wrote counts. If fragments have changed, the
wrong bookies may have been asked, and recovery starts again (FR7). Two recoveries of a ledger may
run at the same time, and a recovery may die at any point.
"""

import asyncio
from dataclasses import dataclass
from typing import Final

import structlog

from rollbook.ledger.client_context import ClientContext
from rollbook.ledger.concurrent_calls import (
    BUSY_OR_BROKEN,
    UNTIL_HEARD,
    ConcurrentCalls,
    Passing,
    error_of,
)
from rollbook.ledger.core.entry_checks import unpack_batch, unpack_last
from rollbook.ledger.core.lac_reply_check import judge_lac
from rollbook.ledger.core.lac_survey import LacSurvey
from rollbook.ledger.core.read_plan import BATCH_FACTOR, HedgeDelay
from rollbook.ledger.core.tail_search import TailProbe, TailSearch
from rollbook.ledger.recovery_writer import WriteBacks
from rollbook.ledger.replica_reader import ReplicaReader
from rollbook.proto.cluster.ledger_nodes import StoredLedger
from rollbook.proto.errors import (
    DigestMismatch,
    MetadataConflict,
    Missing,
    RecoveryIncomplete,
    RollbookError,
    Unauthorized,
)
from rollbook.proto.formats.service_info import BATCH_READ
from rollbook.proto.ids import NO_ENTRY, EntryId
from rollbook.proto.metadata import Fragment
from rollbook.proto.quorum import Slots
from rollbook.proto.wire import v3
from rollbook.proto.wire.digest import DigestType, Entry, LedgerDigest, ledger_key
from rollbook.proto.wire.messages import (
    BatchRead,
    BatchReadReply,
    EntryRead,
    ReadLac,
    ReadReply,
    Reply,
    Request,
)

logger = structlog.get_logger()

_NS_PER_S: Final = 1_000_000_000
_RESTARTS_MAX: Final = 20  # Each restart is caused by another client's change of fragments.
# The pause before members whose answers proved nothing are asked again. It doubles each time.
_PAUSE_S: Final = 0.05
_PAUSE_S_MAX: Final = 0.5
_LOOKS_PER_PATIENCE: Final = 4
_AHEAD_MAX: Final = 20_000  # The maximum number of entries to request at a time.
# The same maximum if each entry needs a request of its own.
_AHEAD_MAX_SINGLY: Final = 1_000
_FENCE: Final = NO_ENTRY, 1  # A fencing request for the last entry.
_LAC: Final = NO_ENTRY, 0  # A request for the LAC.
_ENTRY_BYTES_GUESSED: Final = 1024  # The assumed size of an entry until one is known.


class LedgerRecovery:
    """Recovers the ledgers of one cluster."""

    def __init__(self, context: ClientContext) -> None:
        self._context = context
        self._nodes = context.nodes

    async def recover(
        self, stored: StoredLedger, password: bytes, digest_type: DigestType
    ) -> StoredLedger:
        """Closes the ledger, unless another client has closed it, and returns its metadata.

        Raises `RecoveryIncomplete` if too few bookies respond: the ledger stays fenced and in
        recovery, and a retry loses nothing. It also raises `NoSuchLedger`, `Unauthorized`, and the
        metadata store's errors. If the call is cancelled, the ledger is in recovery, or closed.
        """
        for _ in range(_RESTARTS_MAX):
            stored = await self._start(stored)
            if stored.metadata.is_closed:
                return stored
            async with self._attempt(stored, password, digest_type) as attempt:
                end = await attempt.run()
            try:
                closed = stored.metadata.with_recovery_closed(
                    end.last_entry, end.length, end.new_fragments
                )
                stored = await self._nodes.update(stored, closed)
            except MetadataConflict:
                stored = await self._nodes.read(stored.metadata.ledger_id, fresh=True)
                logger.info("recovery_overtaken", ledger_id=stored.metadata.ledger_id)
                continue
            logger.info(
                "ledger_recovered",
                ledger_id=stored.metadata.ledger_id,
                last_entry=end.last_entry,
                recovered_entries=end.recovered,
                new_fragments=len(end.new_fragments),
            )
            return stored
        raise RecoveryIncomplete(
            "the ledger's fragments keep changing", ledger_id=stored.metadata.ledger_id
        )

    async def fence(
        self, stored: StoredLedger, password: bytes, digest_type: DigestType
    ) -> StoredLedger:
        """Fences the ledger: afterwards its writer can neither confirm an entry nor move to other
        bookies.

        The ledger stays in recovery; a closed ledger has no writer, and is not changed. A caller
        that then changes the metadata has to name the returned version, because no other version
        was fenced.
        """
        stored = await self._start(stored)
        if not stored.metadata.is_closed:
            async with self._attempt(stored, password, digest_type) as attempt:
                await attempt.fence()
        return stored

    async def _start(self, stored: StoredLedger) -> StoredLedger:
        """Marks the ledger as in recovery, unless it is closed (FR1)."""
        while not stored.metadata.is_closed:
            try:
                return await self._nodes.update(stored, stored.metadata.with_recovery_started())
            except MetadataConflict:
                # The writer changed the ensemble at the same time. That is rare, because a writer
                # does this only if a bookie has failed.
                stored = await self._nodes.read(stored.metadata.ledger_id, fresh=True)
        return stored

    def _attempt(
        self, stored: StoredLedger, password: bytes, digest_type: DigestType
    ) -> "_Attempt":
        metadata = stored.metadata
        digest = LedgerDigest(digest_type, password, metadata.ledger_id)
        copies = ReplicaReader(
            metadata.quorum,
            digest,
            self._context.bookies,
            self._context.health,
            self._context.clock,
            self._context.config,
            preferred=self._context.randomness.randrange(metadata.quorum.ensemble),
        )
        return _Attempt(
            stored,
            digest,
            ledger_key(password),
            copies,
            self._context,
        )


@dataclass(frozen=True, slots=True)
class _LedgerEnd:
    last_entry: EntryId
    length: int
    new_fragments: list[Fragment]
    recovered: int


class _Attempt:
    """One attempt at a recovery, which begins with one version of the metadata."""

    def __init__(
        self,
        stored: StoredLedger,
        digest: LedgerDigest,
        key: bytes,
        copies: ReplicaReader,
        context: ClientContext,
    ) -> None:
        self._metadata = stored.metadata
        self._ledger_id = stored.metadata.ledger_id
        self._quorum = stored.metadata.quorum
        self._ensemble = stored.metadata.fragments[-1].ensemble  # It is the same for all requests.
        self._first_entry = stored.metadata.fragments[-1].first_entry
        self._digest = digest
        self._key = key
        self._copies = copies
        self._context = context
        self._bookies = bookies = context.bookies
        self._config = config = context.config
        self._loop = asyncio.get_running_loop()
        self._calls = ConcurrentCalls[TailProbe](bookies)
        self._batch_slots: Slots = sum(
            1 << slot
            for slot, bookie in enumerate(self._ensemble)
            if bookies.has_extension(bookie, BATCH_READ)
        )
        self._hedge = HedgeDelay(config.read_hedge_ms_min, BATCH_FACTOR)
        # When each request was sent, oldest first; members that are late are left out.
        self._asked_at: dict[TailProbe, float] = {}
        # When the next entry's absence was proven; other members may still answer.
        self._proven_at: float | None = None
        self._stuck_at: float | None = None
        self._pause_s = _PAUSE_S
        self._entry_bytes = 0  # The approximate size of one entry.
        self._last: Entry | None = None  # The highest entry that was returned.
        # The last entry of each slot, as the answer to the fence reported it.
        self._lasts: dict[int, Entry | None] = {}
        self._fences: dict[int, None] = {}  # Slots whose fencing request is outstanding.
        # The time from which members that were not fenced yet are also asked entry by entry.
        self._fences_due = 0.0

    async def __aenter__(self) -> "_Attempt":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._calls.close()

    # --- Fencing ------------------------------------------------------------------------------

    async def fence(self, *, asks_lac: bool = False) -> LacSurvey:
        """Fences members until no entry can be confirmed without a fenced one (FR1).

        The answer to a fence has the LAC that came with the member's last entry. An idle writer
        may have sent all members a higher LAC since. One member is asked for that LAC at the same
        time, which saves writing entries again.
        """
        survey = LacSurvey(self._quorum, EntryId(self._first_entry - 1))
        if asks_lac and self._bookies.protocol_version == v3.VERSION:
            self._ask(TailProbe(self._who_tells_the_lac(), *_LAC))
        for slot in range(self._quorum.ensemble):
            if self._ask(TailProbe(slot, *_FENCE), passing=UNTIL_HEARD):
                self._fences[slot] = None
        while not survey.is_covered:
            if not self._calls.is_waiting:
                raise RecoveryIncomplete(
                    f"too few bookies could be fenced ({survey.describe(self._ensemble)})",
                    ledger_id=self._ledger_id,
                )
            await self._calls.news(self._config.read_deadline_s)
            for ask, answer in self._calls.take():
                if ask.span:
                    self._on_fenced(ask.slot, answer, survey)
                else:
                    proof = judge_lac(self._digest, answer)
                    survey.on_lac(proof.last_add_confirmed, proof.highest_entry)
        return survey

    def _who_tells_the_lac(self) -> int:
        """Returns the slot of the registered member to ask for the LAC; it differs from ledger to
        ledger."""
        live, size = self._bookies.live(), self._quorum.ensemble
        first = self._ledger_id % size
        slots = (*range(first, size), *range(first))
        return next((slot for slot in slots if live.find(self._ensemble[slot])), first)

    def _on_fenced(self, slot: int, answer: Reply | RollbookError, survey: LacSurvey) -> None:
        last, silence = self._judge_fence(slot, answer)
        if silence is not None:
            survey.on_silence(slot, silence)
            return
        survey.on_heard(slot)
        if last is not None:
            survey.on_lac(last.last_add_confirmed, last.entry_id)
            self._entry_bytes = max(self._entry_bytes, _entry_bytes(last))
            if self._last is None or last.entry_id > self._last.entry_id:
                self._last = last

    def _judge_fence(
        self, slot: int, answer: Reply | RollbookError
    ) -> tuple[Entry | None, str | None]:
        """Returns the member's last entry, if any, and the reason why the member does not count as
        heard, if any."""
        self._fences.pop(slot, None)
        error = error_of(answer)
        self._refuse_wrong_password(error)
        last: Entry | None = None
        if error is None and isinstance(answer, ReadReply) and answer.body is not None:
            try:
                last = unpack_last(self._digest, answer.body)
            except DigestMismatch:
                error = DigestMismatch
        elif error is None or not issubclass(error, Missing):
            error = error or RollbookError
        else:
            error = None
        if error is not None:
            return None, error.code.reason
        self._lasts[slot] = last
        return last, None

    # --- Searching the end --------------------------------------------------------------------

    async def run(self) -> _LedgerEnd:
        survey = await self.fence(asks_lac=True)
        start = survey.last_add_confirmed  # At least the last entry of earlier fragments.
        entry_bytes = self._entry_bytes or _ENTRY_BYTES_GUESSED
        search = TailSearch(
            self._quorum,
            start,
            survey.highest_entry,
            batch_slots=self._batch_slots,
            batch_entries_max=max(1, self._config.read_batch_bytes // entry_bytes),
        )
        write_backs = WriteBacks(
            self._quorum,
            EntryId(start + 1),
            self._ensemble,
            start,
            digest=self._digest,
            ledger_key=self._key,
            context=self._context,
            on_news=self._calls.wake,
        )
        try:
            if survey.highest_entry > start:
                write_backs.open()
            self._tell_lasts(search)
            self._take_found(search, write_backs)
            await self._find_and_write_back(search, write_backs)
        finally:
            write_backs.close()
        last_entry = EntryId(search.next_entry - 1)
        return _LedgerEnd(
            last_entry,
            await self._length_at(last_entry),
            write_backs.new_fragments(),
            last_entry - start,
        )

    async def _find_and_write_back(self, search: TailSearch, write_backs: WriteBacks) -> None:
        look_every_s = self._config.recovery_patience_s / _LOOKS_PER_PATIENCE
        look_at = self._loop.time() + look_every_s
        while True:
            if not search.is_over:
                for ask in search.plan(self._room(write_backs)):
                    self._ask(ask)
            if search.is_over and write_backs.is_complete:
                return
            if search.is_stuck:
                await self._ask_again(search)
                continue
            await self._calls.news(self._next_step_at(search, look_at) - self._loop.time())
            for ask, answer in self._calls.take():
                self._on_answer(search, ask, answer)
            self._take_found(search, write_backs)
            self._hurry(search)
            self._lose_patience(search)
            if self._loop.time() >= look_at:
                write_backs.look()
                look_at = self._loop.time() + look_every_s
            if write_backs.error is not None:
                raise write_backs.error

    def _tell_lasts(self, search: TailSearch) -> None:
        """Passes the last entries from fences to the search. Members that are fenced over open
        connections answer soon, because no other request delays the answer."""
        if self._last is not None:
            search.on_fenced(self._last)
        for slot, last in self._lasts.items():
            if self._is_word_good(slot):
                search.on_last(slot, last)
        self._fences_due = self._loop.time() + self._hedge.delay_s
        for slot in self._fences:
            if self._is_word_good(slot):
                search.expect_last(slot)

    def _is_word_good(self, slot: int) -> bool:
        """Returns whether the last entry that the member names is reliable. Before a bookie of ours
        names its last entry, it checks whether it may have lost later ones (B1); bookies with this
        check announce `BATCH_READ`. Other bookies may not check.
        """
        return bool(self._batch_slots >> slot & 1)

    def _on_late_fence(self, search: TailSearch, slot: int, answer: Reply | RollbookError) -> None:
        last, silence = self._judge_fence(slot, answer)
        if silence is None and self._is_word_good(slot):
            search.on_last(slot, last)
            self._proven_at = (
                None  # The member may be asked for more entries now, so the wait starts again.
            )
        else:
            search.on_no_last(slot)

    def _take_found(self, search: TailSearch, write_backs: WriteBacks) -> None:
        if found := search.take_found():
            self._last = found[-1]
            self._entry_bytes = max(map(_entry_bytes, found))
            write_backs.add(found)
            self._stuck_at = None

    def _next_step_at(self, search: TailSearch, look_at: float) -> float:
        """Returns the time at which to act even without news."""
        due = look_at
        if not search.is_over:
            if self._asked_at:
                due = min(due, next(iter(self._asked_at.values())) + self._hedge.delay_s)
            if self._fences:
                due = min(due, self._fences_due)
            if self._proven_at is not None:
                due = min(due, self._proven_at + self._config.recovery_patience_s)
        return due

    def _hurry(self, search: TailSearch) -> None:
        """Asks other members if one member takes long."""
        now = self._loop.time()
        while self._asked_at:
            ask, asked_at = next(iter(self._asked_at.items()))
            if now < asked_at + self._hedge.delay_s:
                break
            del self._asked_at[ask]
            search.on_delay(ask)
        if self._fences and now >= self._fences_due:
            for slot in self._fences:
                search.on_no_last(slot)
            self._fences.clear()

    def _lose_patience(self, search: TailSearch) -> None:
        if not search.is_absence_proven or search.is_over:
            self._proven_at = None
        elif self._proven_at is None:
            self._proven_at = self._loop.time()
        elif self._loop.time() >= self._proven_at + self._config.recovery_patience_s:
            search.stop_waiting()

    async def _ask_again(self, search: TailSearch) -> None:
        """Asks again all members whose answers proved nothing: they may have restarted, or their
        connections may be back."""
        if self._stuck_at is None:
            self._stuck_at, self._pause_s = self._loop.time(), _PAUSE_S
        if self._loop.time() + self._pause_s > self._stuck_at + self._config.read_deadline_s:
            raise RecoveryIncomplete(
                f"the bookies cannot prove whether the entry exists ({search.describe(self._ensemble)})",
                ledger_id=self._ledger_id,
                entry_id=search.next_entry,
            )
        await asyncio.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _PAUSE_S_MAX)
        search.ask_again()

    def _on_answer(self, search: TailSearch, ask: TailProbe, answer: Reply | RollbookError) -> None:
        if ask.first_entry == NO_ENTRY:
            if ask.span:
                self._on_late_fence(search, ask.slot, answer)
            return  # The LAC is no longer needed.
        if (asked_at := self._asked_at.pop(ask, None)) is not None:
            self._hedge.observe(int((self._loop.time() - asked_at) * _NS_PER_S))
        error = error_of(answer)
        self._refuse_wrong_password(error)
        if error is not None and issubclass(error, Missing):
            search.on_negative(ask)
            return
        try:
            entries = self._entries(ask, answer)
        except DigestMismatch:
            error = DigestMismatch
            entries = []
        if entries:
            search.on_entries(ask, entries)
        else:
            search.on_failure(ask, (error or RollbookError).code.reason)

    def _entries(self, ask: TailProbe, answer: Reply | RollbookError) -> list[Entry]:
        if isinstance(answer, ReadReply) and not answer.error and answer.body is not None:
            return [self._digest.unpack_entry(answer.body, ask.first_entry)]
        if isinstance(answer, BatchReadReply) and not answer.error:
            return unpack_batch(self._digest, answer.bodies, ask.first_entry, ask.span)
        return []

    def _room(self, write_backs: WriteBacks) -> int:
        """Returns how many entries may be requested; at least one if none is in flight."""
        left = self._config.recovery_window_bytes - write_backs.kept_bytes
        ahead_max = _AHEAD_MAX if self._batch_slots else _AHEAD_MAX_SINGLY
        entries = min(ahead_max, left // (self._entry_bytes or _ENTRY_BYTES_GUESSED))
        return max(entries, int(write_backs.is_complete))

    # ------------------------------------------------------------------------------------------

    async def _length_at(self, last_entry: EntryId) -> int:
        """Returns the payload bytes of the ledger up to this entry. Each entry carries this sum for
        all entries up to and including itself."""
        if last_entry == NO_ENTRY:
            return 0
        if self._last is None or self._last.entry_id != last_entry:
            ensemble = self._metadata.fragment_of(last_entry).ensemble
            self._last = await self._copies.read_one(last_entry, ensemble)
        return self._last.ledger_length

    def _ask(self, ask: TailProbe, passing: Passing = BUSY_OR_BROKEN) -> bool:
        """Sends a request. Returns whether it was sent at once."""
        request: Request
        if ask.span == 0:
            request = ReadLac(self._ledger_id)
        elif ask.span == 1:
            request = EntryRead(self._ledger_id, ask.first_entry, self._key, fence=True)
        else:
            request = BatchRead(
                ledger_id=self._ledger_id,
                first_entry=ask.first_entry,
                request_id=next(self._bookies.txn_ids),
                count_max=ask.span,
                bytes_max=self._config.read_batch_bytes,
                ledger_key=self._key,
                fence=True,
                is_sparse=self._quorum.ensemble > self._quorum.write,
            )
        if ask.first_entry != NO_ENTRY:
            self._asked_at[ask] = self._loop.time()
        return self._calls.ask(
            ask,
            self._ensemble[ask.slot],
            request,
            self._config.read_deadline_s,
            is_high_priority=True,
            passing=passing,
        )

    def _refuse_wrong_password(self, error: type[RollbookError] | None) -> None:
        if error is not None and issubclass(error, Unauthorized):
            raise Unauthorized("the bookies do not accept this password", ledger_id=self._ledger_id)


def _entry_bytes(entry: Entry) -> int:
    return 64 + len(entry.payload)
