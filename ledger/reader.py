"""Reads one ledger: entries that are confirmed, unconfirmed, or still being written.

    read              reads confirmed entries ahead, in batches if the bookies support them
    read_unconfirmed  reads every entry that exists; such an entry may be gone later
    tail, follow      return entries as they are confirmed, up to the end of the ledger

To find the LAC, a reader asks enough bookies that each confirmed entry is known to one of them
(RD1). It reads the metadata at the same time, because after an ensemble change it would have
asked the wrong bookies.
"""

import asyncio
from contextlib import suppress
from typing import Final, Self

from rollbook.ledger.bookie_pool import Bookies
from rollbook.ledger.concurrent_calls import UNTIL_HEARD, ConcurrentCalls
from rollbook.ledger.config import ClientConfig
from rollbook.ledger.core.bookie_quarantine import Health
from rollbook.ledger.core.lac_reply_check import judge_lac
from rollbook.ledger.core.lac_survey import LacSurvey
from rollbook.ledger.follower import EntryTail, Follower
from rollbook.ledger.metadata_view import LedgerView
from rollbook.ledger.read_ahead import EntryStream
from rollbook.ledger.replica_reader import ReplicaReader
from rollbook.proto.cluster.ledger_nodes import LedgerNodes, StoredLedger
from rollbook.proto.errors import (
    DigestMismatch,
    EntryUnavailable,
    InvalidRequest,
    NoSuchEntry,
    OutcomeUnknown,
    Unavailable,
)
from rollbook.proto.ids import FIRST_ENTRY, NO_ENTRY, EntryId, LedgerId
from rollbook.proto.metadata import LedgerMetadata
from rollbook.proto.ports import Clock, Randomness
from rollbook.proto.tasks import stop_tasks
from rollbook.proto.wire.digest import Entry, LedgerDigest
from rollbook.proto.wire.messages import ReadLac

_ENTRY_BYTES_GUESSED: Final = 1024  # The assumed size of an entry until one is known.


class LedgerReader:
    """Reads one ledger and changes nothing. Use it as a context manager, or call `close`."""

    def __init__(
        self,
        stored: StoredLedger,
        digest: LedgerDigest,
        *,
        nodes: LedgerNodes,
        bookies: Bookies,
        health: Health,
        clock: Clock,
        randomness: Randomness,
        config: ClientConfig,
    ) -> None:
        metadata = stored.metadata
        self.is_stopped = False
        self._last_add_confirmed = NO_ENTRY
        self._view = LedgerView(stored, nodes)
        self._digest = digest
        self._bookies = bookies
        self._config = config
        self._preferred = randomness.randrange(metadata.quorum.ensemble)
        self._copies = ReplicaReader(
            metadata.quorum,
            digest,
            bookies,
            health,
            clock,
            config,
            preferred=self._preferred,
        )
        self._tasks: dict[asyncio.Task[list[Entry]], None] = {}  # The reads of all streams.

    @property
    def ledger_id(self) -> LedgerId:
        return self._digest.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        """The metadata that was last read."""
        return self._view.metadata

    @property
    def is_closed(self) -> bool:
        """Whether the ledger is known to be closed; no entry is added to a closed ledger."""
        return self._view.metadata.is_closed

    @property
    def last_add_confirmed(self) -> EntryId:
        """The highest LAC that is known without a request; NO_ENTRY if there is none."""
        last_entry = self._view.metadata.last_entry
        return self._last_add_confirmed if last_entry is None else last_entry

    async def start(self) -> None:
        """Finds out which entries are confirmed, as `read_last_confirmed` does. Raises
        `EntryUnavailable`, `NoSuchLedger`. A cancelled call leaves nothing behind.
        """
        await self.read_last_confirmed()

    async def close(self) -> None:
        """Closes the reader: its iterators raise `InvalidRequest` instead of ending. Idempotent. If
        the call is cancelled, the reader is closed for its users, and its read-ahead ends by
        itself; a second call waits for that."""
        self.is_stopped = True
        await self._view.close()
        await stop_tasks(*self._tasks)

    async def stop(self) -> None:
        """Closes the reader; `close` describes what happens if the call is cancelled."""
        await self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _require_open(self) -> None:
        if self.is_stopped:
            raise InvalidRequest("the reader was closed", ledger_id=self.ledger_id)

    # --- Confirmed entries --------------------------------------------------------------------

    async def read_last_confirmed(self) -> EntryId:
        """Returns the last entry that was confirmed before this call, or a later one; NO_ENTRY if
        there was none.

        In an open ledger the last confirmed entry may be missing from the result until its writer
        reports it: every entry carries the LAC before it, and the writer reports the last LAC
        separately when it is idle. Raises `EntryUnavailable` if too few bookies respond,
        `NoSuchLedger`. A cancelled call leaves nothing behind.
        """
        self._require_open()
        while not self.is_closed:
            before = self.metadata
            refreshing = asyncio.ensure_future(self._view.refresh())
            try:
                lac = await self._ask_lac()
                await refreshing
            finally:
                await stop_tasks(refreshing)
            self._on_confirmed(lac)
            if self.metadata.fragments[-1] == before.fragments[-1]:
                # After an ensemble change the bookies that were asked may not know of the last
                # entries.
                break
        return self.last_add_confirmed

    async def _ask_lac(self) -> EntryId:
        fragment = self.metadata.fragments[-1]
        survey = LacSurvey(self.metadata.quorum, EntryId(fragment.first_entry - 1))
        deadline_s = self._config.read_deadline_s
        async with ConcurrentCalls[int](self._bookies) as calls:
            for slot, bookie in enumerate(fragment.ensemble):
                calls.ask(slot, bookie, ReadLac(self.ledger_id), deadline_s, passing=UNTIL_HEARD)
            while not survey.is_covered:
                if not calls.is_waiting:
                    raise EntryUnavailable(
                        "too few bookies report which entries are confirmed "
                        f"({survey.describe(fragment.ensemble)})",
                        ledger_id=self.ledger_id,
                    )
                await calls.news(deadline_s)
                for slot, answer in calls.take():
                    proof = judge_lac(self._digest, answer)
                    survey.on_lac(proof.last_add_confirmed, proof.highest_entry)
                    if proof.silence is None:
                        survey.on_heard(slot)
                    else:
                        survey.on_silence(slot, proof.silence.code.reason)
        return survey.last_add_confirmed

    def _on_confirmed(self, lac: EntryId) -> None:
        self._last_add_confirmed = max(self._last_add_confirmed, lac)

    # --- Reading ------------------------------------------------------------------------------

    def read(
        self, first_entry: EntryId = FIRST_ENTRY, last_entry: EntryId | None = None
    ) -> EntryStream:
        """Returns the confirmed entries in order, including both ends; by default up to
        `last_add_confirmed`.

        Raises `NoSuchEntry` if the last entry is not known to be confirmed: `read_last_confirmed`
        asks again. Iterating raises `EntryUnavailable` if no copy is available now,
        `DigestMismatch` if no copy is sound, `NoSuchEntry` if every holder says that it has none.
        If a step of the iteration is cancelled, no entry is lost: the next step returns the same
        entries.
        """
        if last_entry is None:
            last_entry = self.last_add_confirmed
        self._require_confirmed(last_entry)
        return self._stream(first_entry, last_entry)

    async def read_few(self, first_entry: EntryId, last_entry: EntryId) -> list[Entry]:
        """Returns the entries of `read` in one list. All of them are in memory at once, so request
        only a few: best, no more than one batch returns, because further batches are read one after
        the other. Raises `NoSuchEntry`, `EntryUnavailable`, `DigestMismatch`. A cancelled call
        leaves nothing behind.
        """
        self._require_open()
        self._require_confirmed(last_entry)
        self._require_possible(first_entry)
        ensemble = self.metadata.fragment_of(last_entry).ensemble
        if not self._copies.has_batches(ensemble):
            async with self.read(first_entry, last_entry) as stream:
                return [entry async for entry in stream]
        found: list[Entry] = []
        while (start := EntryId(first_entry + len(found))) <= last_entry:
            end = min(last_entry + 1, self._end_of_run(start))
            found += await self._read_run(start, end - start, self._config.read_batch_bytes)
        return found

    def _require_confirmed(self, last_entry: EntryId) -> None:
        if last_entry > self.last_add_confirmed:
            raise NoSuchEntry(
                "the entry is not known to be confirmed",
                ledger_id=self.ledger_id,
                entry_id=last_entry,
                last_add_confirmed=self.last_add_confirmed,
                next_step="call `read_last_confirmed()` to ask again, or use `read_unconfirmed`",
            )

    def _require_possible(self, first_entry: EntryId) -> None:
        if first_entry < FIRST_ENTRY:
            raise InvalidRequest(f"there is no entry {first_entry}", ledger_id=self.ledger_id)

    def read_unconfirmed(self, first_entry: EntryId, last_entry: EntryId) -> EntryStream:
        """Reads every entry that exists, confirmed or not. It raises `NoSuchEntry` at the first
        entry that no bookie has.

        An unconfirmed entry may never be confirmed, and then recovery may drop it.
        """
        return self._stream(first_entry, last_entry)

    def _stream(self, first_entry: EntryId, last_entry: EntryId) -> EntryStream:
        self._require_possible(first_entry)
        return EntryStream(
            first_entry,
            last_entry,
            self._read_run,
            end_of_run=self._end_of_run,
            has_batches=lambda each: self._copies.has_batches(
                self.metadata.fragment_of(each).ensemble
            ),
            entry_bytes=self._mean_entry_bytes(),
            batch_bytes=self._config.read_batch_bytes,
            window_bytes=self._config.read_window_bytes,
            tasks=self._tasks,
            require_open=self._require_open,
        )

    def _end_of_run(self, entry_id: EntryId) -> int:
        metadata = self.metadata
        index = metadata.fragments.index(metadata.fragment_of(entry_id))
        if index + 1 < len(metadata.fragments):
            return metadata.fragments[index + 1].first_entry
        return entry_id + 2**31

    def _mean_entry_bytes(self) -> int:
        metadata = self.metadata
        if not metadata.length or not metadata.last_entry:
            return _ENTRY_BYTES_GUESSED
        return self._digest.overhead_bytes + metadata.length // (metadata.last_entry + 1)

    async def _read_run(self, first_entry: EntryId, count: int, bytes_max: int) -> list[Entry]:
        """Reads a run. Copies move when bookies die; therefore the metadata is read again before an
        entry is given up."""
        ensemble = self.metadata.fragment_of(first_entry).ensemble
        try:
            return await self._copies.read_run(first_entry, count, bytes_max, ensemble)
        except (EntryUnavailable, NoSuchEntry, DigestMismatch):
            with suppress(Unavailable, OutcomeUnknown):
                await self._view.refresh()
            moved = self.metadata.fragment_of(first_entry).ensemble
            if moved == ensemble:
                raise
            return [await self._copies.read_one(first_entry, moved)]

    # --- Following ----------------------------------------------------------------------------

    def tail(self, start: EntryId = FIRST_ENTRY) -> EntryTail:
        """Returns entries from `start` on as they are confirmed; it ends after the last entry of a
        closed ledger.

        Raises `EntryUnavailable` when no bookie has responded for `tail_silence_s_max`, rather than
        wait silently for entries that cannot come. Use `follow` to see its progress while it waits.
        If a wait for the next entry is cancelled, no entry is lost.
        """
        return EntryTail(self.follow(start))

    def follow(self, start: EntryId = FIRST_ENTRY) -> Follower:
        """Follows the ledger like `tail`, but yields news at least every two seconds, with or
        without entries."""
        return Follower(
            start,
            self.last_add_confirmed,
            view=self._view,
            digest=self._digest,
            bookies=self._bookies,
            preferred=self._preferred,
            silence_s_max=self._config.tail_silence_s_max,
            read=self._stream,
            require_open=self._require_open,
            on_confirmed=self._on_confirmed,
        )
