"""Reads every copy of a ledger's entries, each from the bookie that should have it.

A reader needs one good copy. The verifier checks all copies and repairs nothing;
`core/copy_comparison.py` judges them. It checks one window of entries after the other, on all members
of an ensemble at once: in batches if these succeed, otherwise entry by entry. It keeps only the
digest of an entry's payload.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import google_crc32c

from rollbook.ledger.bookie_pool import Bookies
from rollbook.ledger.concurrent_calls import BUSY_OR_BROKEN, ConcurrentCalls, error_of
from rollbook.ledger.config import ClientConfig
from rollbook.ledger.core.copy_comparison import Copy, CopyState, LedgerVerification, state_after
from rollbook.ledger.core.entry_checks import unpack_batch
from rollbook.proto.errors import BookieFailed, RollbookError
from rollbook.proto.formats.service_info import BATCH_READ
from rollbook.proto.ids import BookieId, EntryId
from rollbook.proto.metadata import Fragment, LedgerMetadata
from rollbook.proto.wire.digest import Entry, LedgerDigest
from rollbook.proto.wire.messages import BatchRead, BatchReadReply, EntryRead, ReadReply, Reply

_WINDOW_ENTRIES: Final = 2000
_SINGLES_MAX: Final = 64  # Single entries requested from one bookie at a time.


class Verifier:
    def __init__(
        self,
        metadata: LedgerMetadata,
        digest: LedgerDigest,
        bookies: Bookies,
        config: ClientConfig,
    ) -> None:
        self._metadata = metadata
        self._quorum = metadata.quorum
        self._digest = digest
        self._bookies = bookies
        self._deadline_s = config.read_deadline_s
        self._batch_bytes = config.read_batch_bytes

    async def verify(
        self, last_entry: EntryId, on_progress: Callable[[int], None] = lambda _: None
    ) -> LedgerVerification:
        """Verifies all entries up to `last_entry`. It calls `on_progress` with the number of
        entries checked since the last call."""
        verdict = LedgerVerification(self._quorum)
        fragments = self._metadata.fragments
        for index, fragment in enumerate(fragments):
            end = last_entry + 1
            if index + 1 < len(fragments):
                end = min(end, fragments[index + 1].first_entry)
            for first in range(fragment.first_entry, end, _WINDOW_ENTRIES):
                window = range(first, min(first + _WINDOW_ENTRIES, end))
                await self._verify_window(fragment, window, verdict)
                on_progress(len(window))
        return verdict

    async def _verify_window(
        self, fragment: Fragment, window: range, verdict: LedgerVerification
    ) -> None:
        shares = [
            [EntryId(e) for e in window if self._quorum.holds(slot, EntryId(e))]
            for slot in range(self._quorum.ensemble)
        ]
        found = await asyncio.gather(
            *(
                self.read_share(bookie, share)
                for bookie, share in zip(fragment.ensemble, shares, strict=True)
            )
        )
        for entry_id in map(EntryId, window):
            slots = self._quorum.write_slots(entry_id)
            copies = {slot: found[slot][entry_id] for slot in slots}
            verdict.on_entry(fragment, entry_id, copies)

    async def read_share(self, bookie: BookieId, share: Sequence[EntryId]) -> dict[EntryId, Copy]:
        """Reads a bookie's copies of these entries, which are in ascending order, and all of which
        it should have."""
        found: dict[EntryId, Copy] = {}
        if self._has_batches(bookie):
            await self._read_batches(bookie, share, found)
        rest = [entry_id for entry_id in share if entry_id not in found]
        while rest:
            await self._read_singles(bookie, rest[:_SINGLES_MAX], found)
            if all(found[e] is CopyState.UNREACHABLE for e in rest[:_SINGLES_MAX]):
                found.update(dict.fromkeys(rest, CopyState.UNREACHABLE))
            rest = rest[_SINGLES_MAX:]
        return found

    def _has_batches(self, bookie: BookieId) -> bool:
        if self._quorum.ensemble > self._quorum.write:
            return self._bookies.has_extension(bookie, BATCH_READ)
        return self._bookies.has_batches(bookie)

    async def _read_batches(
        self, bookie: BookieId, share: Sequence[EntryId], found: dict[EntryId, Copy]
    ) -> None:
        """Reads in batches until a batch fails or is incomplete."""
        expected = list(share)
        while expected:
            count = expected[-1] - expected[0] + 1
            request = BatchRead(
                ledger_id=self._digest.ledger_id,
                first_entry=expected[0],
                request_id=next(self._bookies.txn_ids),
                count_max=count,
                bytes_max=self._batch_bytes,
                is_sparse=self._quorum.ensemble > self._quorum.write,
            )
            try:
                reply = await self._bookies.call(bookie, request, deadline_s=self._deadline_s)
                if not isinstance(reply, BatchReadReply) or reply.error or not reply.bodies:
                    return
                entries = unpack_batch(self._digest, reply.bodies, expected[0], count)
            except RollbookError:
                return
            taken = 0
            for entry, entry_id in zip(entries, expected, strict=False):
                if entry.entry_id != entry_id:
                    break
                found[entry_id] = _digest_of(entry)
                taken += 1
            if not taken:
                return
            expected = expected[taken:]

    async def _read_singles(
        self, bookie: BookieId, entry_ids: Sequence[EntryId], found: dict[EntryId, Copy]
    ) -> None:
        ledger_id = self._digest.ledger_id
        async with ConcurrentCalls[EntryId](self._bookies) as calls:
            for entry_id in entry_ids:
                request = EntryRead(ledger_id, entry_id)
                calls.ask(entry_id, bookie, request, self._deadline_s, passing=BUSY_OR_BROKEN)
            while calls.is_waiting:
                await calls.news(self._deadline_s)
                for entry_id, answer in calls.take():
                    found[entry_id] = self._judge(entry_id, answer)

    def _judge(self, entry_id: EntryId, answer: Reply | RollbookError) -> Copy:
        error = error_of(answer)
        if error is None and isinstance(answer, ReadReply) and answer.body is not None:
            try:
                return _digest_of(self._digest.unpack_entry(answer.body, entry_id))
            except RollbookError as flaw:
                return state_after(type(flaw))
        return state_after(error or BookieFailed)


def _digest_of(entry: Entry) -> int:
    return int(google_crc32c.value(entry.payload)) << 32 | len(entry.payload)
