"""Parks reads that wait for news until the ledger's LAC rises, the ledger is deleted, or time is
up.

A parked poll is an object and a timer, not a task. Whatever ended the wait, the read is then
answered like a read that did not have to wait.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from rollbook.bookie.storage import Storage
from rollbook.proto.errors import Overloaded
from rollbook.proto.ids import EntryId, LedgerId
from rollbook.proto.ports import Clock
from rollbook.proto.wire.messages import EntryRead

Resume = Callable[["Parked", int | None, bool], None]
"""Called once, with the wall time in milliseconds of the news, or None without news, and whether
the read should be answered at once.

It must not raise, because other requests and adds wait for its return."""

# The number of polls that are answered before the add with the news is written.
_ANSWERED_FIRST: Final = 4


class Parked:
    __slots__ = ("_resume", "ledger_id", "piggyback", "previous_lac", "timer")

    timer: asyncio.TimerHandle

    def __init__(
        self, ledger_id: LedgerId, previous_lac: EntryId, piggyback: bool, resume: Resume
    ) -> None:
        self.ledger_id = ledger_id
        self.previous_lac = previous_lac
        self.piggyback = piggyback
        self._resume = resume

    def wake(self, news_ms: int | None, *, at_once: bool = False) -> None:
        self._resume(self, news_ms, at_once)


class LongPolls:
    def __init__(
        self, storage: Storage, clock: Clock, *, parked_max: int, wait_s_max: float
    ) -> None:
        self.count = 0
        self._storage = storage
        self._clock = clock
        self._parked_max = parked_max
        self._wait_s_max = wait_s_max
        self._of_ledger: dict[int, dict[Parked, None]] = {}
        self._woken: deque[tuple[Parked, int]] = (
            deque()
        )  # Polls that are woken but not answered yet, with the time of their news.
        self._is_closing = False

    def park(self, read: EntryRead, resume: Resume) -> Parked | None:
        """Parks the read; returns None if it does not have to wait. Raises `Overloaded`."""
        if (
            self._is_closing
            or read.previous_lac is None
            or not read.timeout_ms
            or read.timeout_ms < 0
            or not self._storage.knows(read.ledger_id)
            or self._has_news(read.ledger_id, read.previous_lac, read.piggyback)
        ):
            return None
        if self.count >= self._parked_max:
            raise Overloaded("too many long polls", ledger_id=read.ledger_id)
        parked = Parked(read.ledger_id, read.previous_lac, read.piggyback, resume)
        wait_s = min(read.timeout_ms / 1000, self._wait_s_max)
        parked.timer = asyncio.get_running_loop().call_later(wait_s, self._end, parked, None)
        others = self._of_ledger.setdefault(read.ledger_id, {})
        others[parked] = None
        self.count += 1
        self._storage.lac_watchers[read.ledger_id] = self._on_risen
        return parked

    def forget(self, parked: Parked) -> None:
        """Ends a wait without an answer."""
        others = self._of_ledger.get(parked.ledger_id, {})
        if parked not in others:
            return  # The poll has just been woken.
        parked.timer.cancel()
        del others[parked]
        self.count -= 1
        if not others:
            del self._of_ledger[parked.ledger_id]
            self._storage.lac_watchers.pop(parked.ledger_id, None)

    def close(self) -> None:
        """Ends all waits as if their time were up."""
        self._is_closing = True
        for parked in [each for others in self._of_ledger.values() for each in others]:
            self._end(parked, None)

    def _on_risen(self, ledger_id: int) -> None:
        """Wakes the polls of the ledger. The call comes while a write is processed; that write's
        entries can be read only later."""
        news_ms = self._clock.wall_us() // 1000
        is_gone = not self._storage.knows(ledger_id)
        for parked in list(self._of_ledger.get(ledger_id, ())):
            if is_gone or self._has_news(ledger_id, parked.previous_lac, parked.piggyback):
                self.forget(parked)
                if not self._woken:
                    asyncio.get_running_loop().call_soon(self._answer_all)
                self._woken.append((parked, news_ms))

    def answer_first(self) -> None:
        """Answers the first few woken polls before the adds that woke them are written, because a
        lone reader would otherwise spend most of its wait on the sync of these adds."""
        for _ in range(min(len(self._woken), _ANSWERED_FIRST)):
            parked, news_ms = self._woken.popleft()
            parked.wake(news_ms, at_once=True)

    def _answer_all(self) -> None:
        while self._woken:
            parked, news_ms = self._woken.popleft()
            parked.wake(news_ms)

    def _has_news(self, ledger_id: int, previous_lac: int, piggyback: bool) -> bool:
        """Returns whether a poll's wait ends. A poll that wants the entry is answered as soon as
        the entry is known to be confirmed; any other poll is answered when the add with the LAC is
        durable."""
        storage = self._storage
        if storage.last_add_confirmed(ledger_id) > previous_lac:
            return True
        return (
            piggyback
            and storage.received_lac(ledger_id) > previous_lac
            and storage.peek(ledger_id, previous_lac + 1) is not None
        )

    def _end(self, parked: Parked, news_ms: int | None) -> None:
        self.forget(parked)
        parked.wake(news_ms)
