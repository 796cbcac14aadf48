"""Follows a ledger's writer: returns each entry as soon as a bookie reports it as confirmed.

    long polls    a bookie answers when its LAC rises, and returns the next entry
    metadata      the metadata names new ensembles, and the end of a CLOSED ledger

A follower polls the smallest set of members that together know of every entry. If a member does not
answer soon, others are polled, too, and from then on they are polled first (RD4). A follower is
never silent: it returns entries, reports that there are none, or raises.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final

from rollbook.ledger.bookie_pool import Bookies
from rollbook.ledger.concurrent_calls import ConcurrentCalls, error_of
from rollbook.ledger.core.entry_checks import consecutive, unpack_batch
from rollbook.ledger.core.read_plan import covering_slots
from rollbook.ledger.metadata_view import LedgerView
from rollbook.ledger.read_ahead import EntryStream
from rollbook.proto.errors import (
    DigestMismatch,
    EntryUnavailable,
    Missing,
    RollbookError,
)
from rollbook.proto.ids import NO_ENTRY, EntryId
from rollbook.proto.metadata import Fragment
from rollbook.proto.wire.digest import Entry, LedgerDigest
from rollbook.proto.wire.messages import EntryRead, ReadReply, Reply

_POLL_S: Final = 1.0  # How long a bookie may wait before it answers.
_GRACE_S: Final = 1.0  # The extra time for the response to a poll.
_SECOND_OPINION_S: Final = 0.1
# The pause before a member that answered at once is polled again. It doubles each time.
_PAUSE_S_MIN: Final = 0.002
_HEARTBEAT_S: Final = 1.0  # The longest time without news, except for one poll.
_PAUSE_S_MAX: Final = 0.1
# The maximum number of bytes of entries in a poll's response; further entries are read separately.
_FOLLOWING_BYTES_MAX: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class News:
    """A report of a follower. A report without entries shows that the follower is alive, and how
    far it has read."""

    entries: tuple[Entry, ...]
    last_add_confirmed: EntryId  # The highest known LAC.
    is_closed: bool
    waits_for: str = ""  # The error that delays the follower; empty: it waits for the writer.


class Follower(AsyncIterator[News]):
    """Yields entries as they are confirmed: iterate with `async for news in follower`, and call
    `aclose` to stop early."""

    def __init__(
        self,
        start: EntryId,
        last_add_confirmed: EntryId,
        *,
        view: LedgerView,
        digest: LedgerDigest,
        bookies: Bookies,
        preferred: int,
        silence_s_max: float,
        read: Callable[[EntryId, EntryId], EntryStream],
        require_open: Callable[[], None],
        on_confirmed: Callable[[EntryId], None],
    ) -> None:
        self._next = start
        self._lac = last_add_confirmed
        self._view = view
        self._digest = digest
        self._bookies = bookies
        self._preferred = preferred
        self._silence_s_max = silence_s_max
        self._read = read
        self._require_open = require_open
        self._on_confirmed = on_confirmed
        self._brought: list[Entry] = []  # Entries that came with a poll's response.
        # Reads entries that are confirmed and were not returned yet.
        self._stream: EntryStream | None = None
        self._loop = asyncio.get_running_loop()
        self._heard_at = self._loop.time()
        self._waits_for = ""
        self._pause_s = _PAUSE_S_MIN
        self._is_over = False
        self._wake: Callable[[], None] = _nobody

    async def __anext__(self) -> News:
        """The next news. If the call is cancelled, no news is lost: the next call returns the same
        news."""
        try:
            news = await self._next_news()
        except RollbookError:
            await self.aclose()
            raise
        if news is None:
            await self.aclose()
            raise StopAsyncIteration
        return news

    def confirm(self, entry_id: EntryId) -> None:
        """Takes the writer's word that this entry and all before it are confirmed: they are
        returned before any bookie reports them (RD6)."""
        if entry_id > self._lac:
            self._raise_lac(entry_id)
            self._wake()

    async def aclose(self) -> None:
        """Closes the follower; an iterator that waits for news ends. If the call is cancelled, the
        follower is closed nevertheless. Idempotent."""
        self._is_over = True
        self._wake()
        if self._stream is not None:
            await self._stream.aclose()

    async def _next_news(self) -> News | None:
        """Returns the next news; None after the last entry of a closed ledger."""
        silent_until = self._loop.time() + _HEARTBEAT_S
        while not self._is_over:
            self._require_open()
            if self._stream is not None:
                if entries := await self._stream.next_run():
                    self._heard_at = self._loop.time()
                    return self._hand_out(*entries)
                self._stream = None
            metadata = self._view.metadata
            if metadata.last_entry is not None:
                self._raise_lac(metadata.last_entry)
            elif self._view.failure is not None:
                raise self._view.failure
            self._raise_lac(EntryId(metadata.fragments[-1].first_entry - 1))
            if self._next <= self._lac:
                brought, self._brought = self._brought, []
                if brought and brought[0].entry_id == self._next:
                    return self._hand_out(*brought)
                self._stream = self._read(self._next, self._lac)
            elif metadata.is_closed:
                return None
            else:
                await self._poll()
                if self._next > self._lac and self._loop.time() >= silent_until:
                    return self._hand_out()
        return None

    def _hand_out(self, *entries: Entry) -> News:
        self._next = EntryId(self._next + len(entries))
        return News(entries, self._lac, self._view.metadata.is_closed, self._waits_for)

    def _raise_lac(self, lac: EntryId) -> None:
        if lac > self._lac:
            self._lac = lac
            self._on_confirmed(lac)

    # --- Polling ------------------------------------------------------------------------------

    async def _poll(self) -> None:
        """Polls until the LAC rises, the metadata changes, or a while has passed."""
        began, lac = self._loop.time(), self._lac
        await self._poll_in_waves(began + _POLL_S + _GRACE_S)
        if self._lac > lac:
            self._pause_s = _PAUSE_S_MIN
        elif self._loop.time() < began + _SECOND_OPINION_S:
            # Bookies that do not know the ledger yet, or cannot wait, answer at once.
            await asyncio.sleep(self._pause_s)
            self._pause_s = min(2 * self._pause_s, _PAUSE_S_MAX)
        silence_s = self._loop.time() - self._heard_at
        if silence_s >= self._silence_s_max:
            raise EntryUnavailable(
                f"no bookie of the last fragment has answered for {silence_s:.0f} s"
                f" ({self._waits_for or 'no answer'})",
                ledger_id=self._digest.ledger_id,
                entry_id=self._next,
            )

    async def _poll_in_waves(self, give_up_at: float) -> None:
        metadata = self._view.metadata
        fragment, quorum = metadata.fragments[-1], metadata.quorum
        size = quorum.ensemble
        waves = deque((self._preferred + wave) % size for wave in range(size))
        asked: dict[int, None] = {}
        async with ConcurrentCalls[int](self._bookies) as calls:
            self._wake = calls.wake
            self._view.listen(calls.wake)
            try:
                while self._loop.time() < give_up_at and (waves or calls.is_waiting):
                    for slot in covering_slots(quorum, waves.popleft()) if waves else ():
                        if slot not in asked:
                            asked[slot] = None
                            self._ask(calls, slot, fragment)
                    wait_s = _SECOND_OPINION_S if waves else give_up_at - self._loop.time()
                    await calls.news(wait_s)
                    if (
                        self._is_over
                        or self._next <= self._lac
                        or self._view.is_stopped
                        or self._view.failure is not None
                        or self._view.metadata is not metadata
                    ):
                        return
                    is_done = False
                    for slot, answer in calls.take():
                        is_done |= self._on_answer(slot, answer)
                    if is_done:
                        return
            finally:
                self._wake = _nobody
                self._view.ignore(calls.wake)

    def _ask(self, calls: ConcurrentCalls[int], slot: int, fragment: Fragment) -> None:
        request = EntryRead(
            self._digest.ledger_id,
            NO_ENTRY,
            previous_lac=self._lac,
            timeout_ms=int(_POLL_S * 1000),
            piggyback=True,
            following_bytes_max=_FOLLOWING_BYTES_MAX,
        )
        calls.ask(slot, fragment.ensemble[slot], request, _POLL_S + _GRACE_S)

    def _on_answer(self, slot: int, answer: Reply | RollbookError) -> bool:
        """Takes an answer. Returns whether the wait is over, because the LAC has risen or no answer
        can come."""
        error = error_of(answer)
        if error is None or issubclass(error, Missing):
            self._heard_at = self._loop.time()
            self._waits_for = ""
        else:
            self._waits_for = error.code.reason
        if error is not None or not isinstance(answer, ReadReply):
            self._preferred = (slot + 1) % self._view.metadata.quorum.ensemble
            return error is not None and issubclass(error, Missing)
        lac = NO_ENTRY if answer.last_add_confirmed is None else answer.last_add_confirmed
        if answer.body is not None:
            bodies = (answer.body, *answer.following)
            first, count = answer.entry_id, len(bodies)
            try:
                entries = unpack_batch(self._digest, bodies, first, count)
            except DigestMismatch:
                self._waits_for = DigestMismatch.code.reason
                return False
            lac = max(lac, entries[0].last_add_confirmed)
            if first == self._next <= lac:
                self._brought = entries[: min(consecutive(entries, first), lac - first + 1)]
        self._preferred = slot
        self._raise_lac(lac)
        return True


def _nobody() -> None:
    """Does nothing. This is the callback while the follower does not poll."""


class EntryTail(AsyncIterator[Entry]):
    """The entries of a follower, one by one."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self._ready: deque[Entry] = deque()

    async def __anext__(self) -> Entry:
        while not self._ready:
            self._ready.extend((await anext(self._follower)).entries)
        return self._ready.popleft()

    async def aclose(self) -> None:
        """Ends the iteration, even if the call is cancelled. Idempotent."""
        self._ready.clear()
        await self._follower.aclose()
