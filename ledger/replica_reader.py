"""Reads entries of one ledger, from the copy that responds first.

One member of the write set is asked. Another member is asked, too, when the first one fails or
takes longer than most recent answers. Responses that were overtaken are dropped, and the overtaken
member is asked after the others from then on.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

import structlog

from rollbook.ledger.bookie_pool import Bookies
from rollbook.ledger.concurrent_calls import ConcurrentCalls, error_of
from rollbook.ledger.config import ClientConfig
from rollbook.ledger.core.bookie_quarantine import Health
from rollbook.ledger.core.entry_checks import consecutive, unpack_batch
from rollbook.ledger.core.read_plan import (
    BATCH_FACTOR,
    CopySearch,
    CoverSearch,
    HedgeDelay,
    slots_in_order,
)
from rollbook.proto.errors import (
    BookieFailed,
    DigestMismatch,
    RollbookError,
)
from rollbook.proto.formats.service_info import BATCH_READ
from rollbook.proto.ids import BookieId, EntryId
from rollbook.proto.ports import Clock
from rollbook.proto.quorum import Ensemble, Quorum
from rollbook.proto.wire.digest import Entry, LedgerDigest
from rollbook.proto.wire.messages import (
    BatchRead,
    BatchReadReply,
    EntryRead,
    ReadReply,
    Reply,
    Request,
)

logger = structlog.get_logger()

_NS_PER_S: Final = 1_000_000_000
_PASSING_NS: Final = _NS_PER_S  # The duration of a restart or a lost connection.
_GONE_RANK: Final = 3  # The rank of unregistered bookies; they are asked last.
_PAUSE_S: Final = 0.02  # The pause before all are asked again; it doubles.


class ReplicaReader:
    """Reads entries, and measures how fast the bookies respond; all reads of one ledger share it."""

    def __init__(
        self,
        quorum: Quorum,
        digest: LedgerDigest,
        bookies: Bookies,
        health: Health,
        clock: Clock,
        config: ClientConfig,
        preferred: int,
    ) -> None:
        """`preferred` is the slot asked first, so that one reader uses one bookie's cache."""
        self._quorum = quorum
        self._digest = digest
        self._bookies = bookies
        self._health = health
        self._clock = clock
        self._deadline_s = config.read_deadline_s
        self._batch_bytes = config.read_batch_bytes
        self._preferred = preferred % quorum.ensemble
        self._hedges = {
            False: HedgeDelay(config.read_hedge_ms_min),
            True: HedgeDelay(config.read_hedge_ms_min, BATCH_FACTOR),
        }

    async def read_one(self, entry_id: EntryId, ensemble: Ensemble) -> Entry:
        """Reads one entry. Raises `NoSuchEntry`, `DigestMismatch`, `EntryUnavailable`."""
        slots = self._slots_in_order(entry_id, ensemble)
        return (await self._read(slots, entry_id, 1, self._batch_bytes, ensemble))[0]

    async def read_run(
        self, first_entry: EntryId, count: int, bytes_max: int, ensemble: Ensemble
    ) -> list[Entry]:
        """Reads consecutive entries from `first_entry` on: at least one, at most as many as one
        batch returns.

        Raises `NoSuchEntry`, `DigestMismatch`, `EntryUnavailable` for the first entry.
        """
        if count == 1 or not self.has_batches(ensemble):
            return [await self.read_one(first_entry, ensemble)]
        if self._quorum.ensemble == self._quorum.write:
            slots = self._slots_in_order(first_entry, ensemble)
            return await self._read(slots, first_entry, count, bytes_max, ensemble)
        return await self._read_stripes(first_entry, count, bytes_max, ensemble)

    def has_batches(self, ensemble: Ensemble) -> bool:
        """Returns whether to read in batches. Striped runs have gaps, and only bookies with our
        extension skip them."""
        if self._quorum.ensemble == self._quorum.write:
            return any(map(self._bookies.has_batches, ensemble))
        live = self._bookies.live()
        return all(
            self._bookies.has_extension(bookie, BATCH_READ) or live.find(bookie) is None
            for bookie in ensemble
        )

    # ------------------------------------------------------------------------------------------

    async def _read_stripes(
        self, first_entry: EntryId, count: int, bytes_max: int, ensemble: Ensemble
    ) -> list[Entry]:
        """Reads from the fewest members that together hold all entries; others replace members that
        fail."""
        found: dict[EntryId, Entry] = {}
        run = range(first_entry, first_entry + count)
        search = CoverSearch(
            self._quorum, run, self._preferred, self._ranks(ensemble), self._hedges[True]
        )
        async with ConcurrentCalls[int](self._bookies) as calls:
            while True:
                for slot, held in search.next_requests(self._clock.monotonic_ns()):
                    request = self._batch_request(EntryId(held.start), len(held), bytes_max)
                    calls.ask(slot, ensemble[slot], request, self._deadline_s)
                if not (waits_for := search.waits_for):
                    break
                await calls.news((search.due_ns - self._clock.monotonic_ns()) / _NS_PER_S)
                now_ns = self._clock.monotonic_ns()
                for slot, answer in calls.take():
                    entries = self._unpack(ensemble[slot], answer, first_entry, count)
                    found.update((entry.entry_id, entry) for entry in entries)
                    search.on_answer(slot, now_ns, is_useful=bool(entries))
                for slot in search.take_late(waits_for, now_ns):
                    self._health.on_slow(ensemble[slot], now_ns)
        entries = [found[entry_id] for entry_id in sorted(found)]
        if usable := consecutive(entries, first_entry):
            return entries[:usable]
        return [await self.read_one(first_entry, ensemble)]

    def _unpack(
        self, bookie: BookieId, answer: Reply | RollbookError, first_entry: EntryId, count: int
    ) -> list[Entry]:
        if not isinstance(answer, BatchReadReply) or answer.error:
            return []
        try:
            return unpack_batch(self._digest, answer.bodies, first_entry, count)
        except DigestMismatch as error:
            self._note_failure(bookie, error)
            return []

    async def _read(
        self,
        slots: Sequence[int],
        first_entry: EntryId,
        count: int,
        bytes_max: int,
        ensemble: Ensemble,
    ) -> list[Entry]:
        """Reads the entries from any member. If all members fail, and a failure may be temporary,
        such as a restart, it waits and asks all of them once more."""
        give_up_ns = self._clock.monotonic_ns() + _PASSING_NS
        pause_s = _PAUSE_S
        while True:
            search = CopySearch(slots, self._hedges[count > 1])
            entries = await self._search(search, first_entry, count, bytes_max, ensemble)
            if entries is not None:
                return entries
            if not search.may_pass or self._clock.monotonic_ns() >= give_up_ns:
                raise search.error(self._digest.ledger_id, first_entry, ensemble)
            await asyncio.sleep(pause_s)
            pause_s *= 2

    async def _search(
        self,
        search: CopySearch,
        first_entry: EntryId,
        count: int,
        bytes_max: int,
        ensemble: Ensemble,
    ) -> list[Entry] | None:
        """Asks one member after the other. Returns None if all were asked without success."""
        hedge = self._hedges[count > 1]
        async with ConcurrentCalls[int](self._bookies) as calls:
            while True:
                slot = search.next_slot(self._clock.monotonic_ns())
                if slot is not None:
                    request = self._request(ensemble[slot], first_entry, count, bytes_max)
                    calls.ask(slot, ensemble[slot], request, self._deadline_s)
                elif not calls.is_waiting:
                    return None
                wait_s = self._deadline_s if slot is None else hedge.delay_s
                await calls.news(wait_s)
                for answered, answer in calls.take():
                    try:
                        entries = self._judge(answer, first_entry, count)
                    except RollbookError as error:
                        search.on_failure(answered, type(error))
                        self._note_failure(ensemble[answered], error)
                        continue
                    now_ns = self._clock.monotonic_ns()
                    self._health.on_answer(ensemble[answered])
                    for overtaken in search.on_success(answered, now_ns):
                        self._health.on_slow(ensemble[overtaken], now_ns)
                    return entries

    def _note_failure(self, bookie: BookieId, error: RollbookError) -> None:
        if isinstance(error, DigestMismatch):
            logger.warning("damaged_copy_met", bookie=bookie, detail=error.message, **error.ids)

    def _slots_in_order(self, entry_id: EntryId, ensemble: Ensemble) -> list[int]:
        return slots_in_order(self._quorum, entry_id, self._preferred, self._ranks(ensemble))

    def _ranks(self, ensemble: Ensemble) -> list[int]:
        """Returns the rank of each slot; low ranks are asked first, and unregistered bookies last."""
        now_ns = self._clock.monotonic_ns()
        live = self._bookies.live()
        return [
            self._health.read_rank(bookie, now_ns) + _GONE_RANK * (live.find(bookie) is None)
            for bookie in ensemble
        ]

    def _request(
        self, bookie: BookieId, first_entry: EntryId, count: int, bytes_max: int
    ) -> Request:
        if count > 1 and self._bookies.has_batches(bookie):
            return self._batch_request(first_entry, count, bytes_max)
        return EntryRead(self._digest.ledger_id, first_entry)

    def _batch_request(self, first_entry: EntryId, count: int, bytes_max: int) -> BatchRead:
        return BatchRead(
            ledger_id=self._digest.ledger_id,
            first_entry=first_entry,
            request_id=next(self._bookies.txn_ids),
            count_max=count,
            bytes_max=bytes_max,
            is_sparse=self._quorum.ensemble > self._quorum.write,
        )

    def _judge(
        self, answer: Reply | RollbookError, first_entry: EntryId, count: int
    ) -> list[Entry]:
        """Returns the entries of an answer. Raises the reason if there are none."""
        if isinstance(answer, RollbookError):
            raise answer
        if (error := error_of(answer)) is not None:
            raise error(ledger_id=self._digest.ledger_id, entry_id=first_entry)
        if isinstance(answer, ReadReply) and answer.body is not None:
            return [self._digest.unpack_entry(answer.body, first_entry)]
        if isinstance(answer, BatchReadReply) and answer.bodies:
            entries = unpack_batch(self._digest, answer.bodies, first_entry, count)
            if usable := consecutive(entries, first_entry):
                return entries[:usable]
        raise BookieFailed("its answer holds nothing", ledger_id=self._digest.ledger_id)
