"""Copies entries of a closed part of one ledger from bookies that have them to a bookie that lacks them.

    entry ids ──► chunks of about 1 MiB ──► read, a few chunks ahead ──► written in order, acknowledged when durable
                                             one source per chunk,        (`recovery_adds.py`)
                                             the next one for what
                                             it could not give

Only the requested entries are read. Each entry is verified by its digest and written unchanged. Entries that
no source returns are reported with each source's answer.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from rollbook.ledger.bookie_pool import Bookies
from rollbook.ledger.concurrent_calls import BUSY_OR_BROKEN, ConcurrentCalls, error_of
from rollbook.ledger.config import ClientConfig
from rollbook.ledger.core.copy_comparison import CopyState, state_after
from rollbook.ledger.core.entry_checks import consecutive, unpack_batch
from rollbook.proto.errors import (
    BookieFailed,
    EntryStateUnknown,
    Invalid,
    Missing,
    RollbookError,
)
from rollbook.proto.ids import BookieId, EntryId, LedgerId
from rollbook.proto.wire.digest import Entry, LedgerDigest
from rollbook.proto.wire.entry_list import EntryList
from rollbook.proto.wire.messages import (
    BatchRead,
    BatchReadReply,
    EntryRead,
    ListEntriesReply,
    ReadReply,
    Reply,
)
from rollbook.recovery.copy_limits import ByteBudget, Throttle
from rollbook.recovery.core.entry_spans import ranges_of
from rollbook.recovery.recovery_adds import Restorer

_CHUNKS_AHEAD: Final = 4  # Chunks that are read while earlier ones are written.
_UNACKED_BYTES_MAX: Final = 8 * 1024 * 1024  # The maximum number of bytes in flight to one target.
ENTRIES_AT_ONCE: Final = 10_000
# The maximum number of single entries that are requested from one bookie at a time.
_SINGLES_MAX: Final = 64
_ENTRY_OVERHEAD_BYTES: Final = 64

Sources = Callable[[EntryId], Sequence[BookieId]]
"""The bookies that may have an entry, in the order in which they are asked."""


@dataclass(slots=True)
class Copied:
    """The result of one `copy`."""

    entries: int = 0
    entry_bytes: int = 0
    # The entries that no source returned, with each source's answer.
    missing: dict[EntryId, dict[BookieId, CopyState]] = field(default_factory=dict)


@dataclass(slots=True)
class _Chunk:
    budgeted: int
    entries: list[Entry]
    missing: dict[EntryId, dict[BookieId, CopyState]]


class Copier:
    """Copies entries of one ledger."""

    def __init__(
        self,
        bookies: Bookies,
        config: ClientConfig,
        digest: LedgerDigest,
        ledger_key: bytes,
        *,
        mean_entry_bytes: int,
        budget: ByteBudget,
        throttle: Throttle,
        entries_at_once: int = ENTRIES_AT_ONCE,
    ) -> None:
        self._bookies = bookies
        self._config = config
        self._digest = digest
        self._key = ledger_key
        self._entry_bytes = mean_entry_bytes + _ENTRY_OVERHEAD_BYTES
        self._budget = budget
        self._throttle = throttle
        self._entries_max = entries_at_once

    async def copy(
        self,
        target: BookieId,
        entry_ids: Iterable[EntryId],
        sources: Sources,
        *,
        is_urgent: bool = False,
        on_progress: Callable[[int], None] = lambda _: None,
    ) -> Copied:
        """Copy these entries, in ascending order, to the target. Entries that are reported as copied are
        durable there. `on_progress` is called with the number of bytes that were copied.

        Raises the target's errors. After a cancelled call, any of the entries may be on the target.
        """
        copied = Copied()
        owed = 0  # The bytes that entries in flight have taken from the budget.

        def return_budget() -> None:
            nonlocal owed
            returned = max(0, owed - restorer.unacked_bytes)
            owed -= returned
            self._budget.give(returned)

        restorer = Restorer(
            target,
            self._digest,
            self._key,
            self._bookies,
            self._config,
            is_urgent=is_urgent,
            on_durable=return_budget,
        )
        reading: deque[asyncio.Task[_Chunk]] = deque()
        chunks = self._chunks(iter(entry_ids))
        try:
            while True:
                for ids in islice(chunks, _CHUNKS_AHEAD - len(reading)):
                    reading.append(asyncio.create_task(self._read(ids, sources)))
                if not reading:
                    break
                await restorer.until_done(reading[0])
                chunk = await reading[0]
                reading.popleft()
                owed += chunk.budgeted
                copied.missing.update(chunk.missing)
                size = sum(len(each.payload) + _ENTRY_OVERHEAD_BYTES for each in chunk.entries)
                await self._throttle.pay(size)
                await restorer.put(chunk.entries, _UNACKED_BYTES_MAX)
                copied.entries += len(chunk.entries)
                copied.entry_bytes += size
                on_progress(size)
                return_budget()
            await restorer.flush()
            return copied
        finally:
            for task in reading:
                task.cancel()
            for outcome in await asyncio.gather(*reading, return_exceptions=True):
                owed += outcome.budgeted if isinstance(outcome, _Chunk) else 0
            self._budget.give(owed)
            restorer.close()

    def _chunks(self, entry_ids: Iterator[EntryId]) -> Iterator[list[EntryId]]:
        count = max(1, min(self._entries_max, self._config.read_batch_bytes // self._entry_bytes))
        while chunk := list(islice(entry_ids, count)):
            yield chunk

    # --- Reading ------------------------------------------------------------------------------

    async def _read(self, entry_ids: list[EntryId], sources: Sources) -> _Chunk:
        budgeted = len(entry_ids) * self._entry_bytes
        await self._budget.take(budgeted)
        try:
            found, missing = await self._find(entry_ids, sources)
        except BaseException:
            self._budget.give(budgeted)
            raise
        return _Chunk(budgeted, [found[each] for each in entry_ids if each in found], missing)

    async def _find(
        self, entry_ids: list[EntryId], sources: Sources
    ) -> tuple[dict[EntryId, Entry], dict[EntryId, dict[BookieId, CopyState]]]:
        """Return the entries, and why some are missing. Each source is asked for the entries that the
        earlier sources did not return.
        """
        found: dict[EntryId, Entry] = {}
        said: dict[EntryId, dict[BookieId, CopyState]] = {}
        pending = entry_ids
        while pending:
            shares: dict[BookieId, list[EntryId]] = {}
            for entry_id in pending:
                heard = said.get(entry_id, {})
                source = next((each for each in sources(entry_id) if each not in heard), None)
                if source is not None:
                    shares.setdefault(source, []).append(entry_id)
            if not shares:
                break
            answers = await asyncio.gather(
                *(self._read_share(source, share) for source, share in shares.items())
            )
            for source, (entries, states) in zip(shares, answers, strict=True):
                found.update((entry.entry_id, entry) for entry in entries)
                for entry_id, state in states.items():
                    said.setdefault(entry_id, {})[source] = state
            pending = [each for each in pending if each not in found]
        return found, {each: said.get(each, {}) for each in pending}

    async def _read_share(
        self, source: BookieId, entry_ids: list[EntryId]
    ) -> tuple[list[Entry], dict[EntryId, CopyState]]:
        """Return the entries that one bookie returns, and the reasons why others are missing."""
        entries: list[Entry] = []
        states: dict[EntryId, CopyState] = {}
        rest: list[EntryId] = []
        for first, last in ranges_of(entry_ids):
            count = last - first + 1
            taken = 0
            if count > 1 and self._bookies.has_batches(source):
                run = await self._read_run(source, EntryId(first), count)
                taken = len(run)
                entries += run
            rest += [EntryId(each) for each in range(first + taken, last + 1)]
        while rest:
            asked, rest = rest[:_SINGLES_MAX], rest[_SINGLES_MAX:]
            entries_before = len(entries)
            await self._read_singles(source, asked, entries, states)
            is_silent = all(states.get(each) is CopyState.UNREACHABLE for each in asked)
            if is_silent and len(entries) == entries_before:
                states.update(dict.fromkeys(rest, CopyState.UNREACHABLE))
                break
        return entries, states

    async def _read_run(self, source: BookieId, first_entry: EntryId, count: int) -> list[Entry]:
        """Return consecutive entries, up to the first missing or invalid entry."""
        entries: list[Entry] = []
        while len(entries) < count:
            start = EntryId(first_entry + len(entries))
            request = BatchRead(
                ledger_id=self._digest.ledger_id,
                first_entry=start,
                request_id=next(self._bookies.txn_ids),
                count_max=count - len(entries),
                bytes_max=self._config.read_batch_bytes,
            )
            try:
                reply = await self._bookies.call(
                    source, request, deadline_s=self._config.read_deadline_s
                )
                if not isinstance(reply, BatchReadReply) or reply.error or not reply.bodies:
                    break
                batch = unpack_batch(self._digest, reply.bodies, start, count - len(entries))
            except RollbookError:
                break
            usable = consecutive(batch, start)
            entries += batch[:usable]
            if not usable:
                break
        return entries

    async def _read_singles(
        self,
        source: BookieId,
        entry_ids: Sequence[EntryId],
        entries: list[Entry],
        states: dict[EntryId, CopyState],
    ) -> None:
        deadline_s = self._config.read_deadline_s
        async with ConcurrentCalls[EntryId](self._bookies) as calls:
            for entry_id in entry_ids:
                request = EntryRead(self._digest.ledger_id, entry_id)
                calls.ask(entry_id, source, request, deadline_s, passing=BUSY_OR_BROKEN)
            while calls.is_waiting:
                await calls.news(deadline_s)
                for entry_id, answer in calls.take():
                    found = self._judge(entry_id, answer)
                    if isinstance(found, CopyState):
                        states[entry_id] = found
                    else:
                        entries.append(found)

    def _judge(self, entry_id: EntryId, answer: Reply | RollbookError) -> Entry | CopyState:
        error = error_of(answer)
        if error is None and isinstance(answer, ReadReply) and answer.body is not None:
            try:
                return self._digest.unpack_entry(answer.body, entry_id)
            except RollbookError as flaw:
                return state_after(type(flaw))
        return state_after(error or BookieFailed)


def listed_in(reply: Reply, ledger_id: LedgerId) -> EntryList:
    """Return the entries that a bookie has, by its response to `ListEntries`. The list is empty if the bookie
    cannot list them: then existing entries may be written again.

    Raises the error that prevents an answer.
    """
    if isinstance(reply, ListEntriesReply) and reply.error is None and reply.entries:
        return reply.entries
    error = error_of(reply)
    if error is not None and not issubclass(error, Missing | EntryStateUnknown | Invalid):
        raise error("the bookie does not list its entries", ledger_id=ledger_id)
    return EntryList(b"")
