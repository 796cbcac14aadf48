"""Reads entries ahead, in order: a window of runs is in flight, or waits for the iterator.

A run consists of the entries that one batch returns. Entries that did not fit into a run are
requested before later ones. The stream holds at most one window, or one run if that is larger,
however slowly the entries are taken (RD5). The window grows as entries are taken: the bytes read
ahead are at most a quarter of those taken before, and a run has at most half of that. Therefore a
reader that takes a few entries and stops costs a server little. A run has at least one entry, even
a very large one. Later entries are expected to be as large as the last ones; if they are larger,
reads in flight may return more than the window.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Final, Self

from rollbook.proto.errors import RollbookError
from rollbook.proto.ids import EntryId
from rollbook.proto.wire.digest import Entry

_ENTRY_OVERHEAD_BYTES: Final = 64
_SINGLES_MAX: Final = 64  # The limit of concurrent single reads, if bookies have no batches.
_FIRST_BYTES: Final = 256 * 1024  # The size of the first runs; later ones are whole batches.

ReadRun = Callable[[EntryId, int, int], Awaitable[list[Entry]]]
"""Reads consecutive entries; takes the first id, the maximum number of entries (at least one is
returned), and the approximate number of bytes."""


class _PendingRead:
    __slots__ = ("end", "first_entry", "task")

    def __init__(self, first_entry: EntryId, end: int, task: "asyncio.Task[list[Entry]]") -> None:
        self.first_entry = first_entry
        self.end = end
        self.task = task


class EntryStream(AsyncIterator[Entry]):
    """Entries in order, by `async for entry in stream`, or, at less cost, in lists by `await
    stream.next_run()`.

    An error is raised in the place of its entry; earlier entries have been returned. Read the
    stream to its end, call `aclose`, or use it as a context manager: then reads in flight are
    dropped.
    """

    def __init__(
        self,
        first_entry: EntryId,
        last_entry: EntryId,
        read_run: ReadRun,
        *,
        end_of_run: Callable[[EntryId], int],
        has_batches: Callable[[EntryId], bool],
        entry_bytes: int,
        batch_bytes: int,
        window_bytes: int,
        tasks: dict["asyncio.Task[list[Entry]]", None],
        require_open: Callable[[], None],
    ) -> None:
        """`end_of_run(e)` is the end of the fragment of entry `e`; a run that starts at `e` may not
        pass it.

        Reads in flight are in `tasks`, which belongs to the caller. The caller stops them when it
        is closed, because a user that leaves a stream early does not close it. `require_open`
        raises once the caller is closed.
        """
        self._next_to_ask = first_entry
        self._end = last_entry + 1
        self._read_run = read_run
        self._end_of_run = end_of_run
        self._has_batches = has_batches
        self._entry_bytes = max(1, entry_bytes)
        self._batch_bytes = batch_bytes
        self._window_bytes = window_bytes
        self._tasks = tasks
        self._require_open = require_open
        self._runs: deque[_PendingRead] = deque()
        self._run_bytes = min(_FIRST_BYTES, batch_bytes)
        self._taken_bytes = 0
        self._ready: deque[Entry] = deque()
        self._loop = asyncio.get_running_loop()

    async def __anext__(self) -> Entry:
        if not self._ready:
            self._ready.extend(await self.next_run())
            if not self._ready:
                raise StopAsyncIteration
        return self._ready.popleft()

    async def next_run(self) -> list[Entry]:
        """Returns the next run of entries; empty at the end. If the call is cancelled, the next
        call returns the same run."""
        if self._ready:
            ready = list(self._ready)
            self._ready.clear()
            return ready
        self._require_open()
        self._ask(1)
        if not self._runs:
            await self.aclose()
            return []
        run = self._runs[0]
        try:
            entries = await asyncio.shield(run.task)
        except asyncio.CancelledError:
            me = asyncio.current_task()
            if not run.task.cancelled() or (me is not None and me.cancelling()):
                raise
            self._require_open()
            return []  # Another task has closed the stream.
        except RollbookError:
            await self.aclose()
            raise
        self._runs.popleft()
        self._learn(entries)
        rest = EntryId(run.first_entry + len(entries))
        if rest < run.end and self._runs:
            self._runs.appendleft(self._start(rest, run.end))
        elif rest < run.end:  # The rest is requested together with the entries after it.
            self._next_to_ask = rest
        self._ask(0)
        return entries

    def _ask(self, waiting: int) -> None:
        """Starts reads for `waiting` runs, and reads ahead."""
        while self._next_to_ask < self._end:
            has_batches = self._has_batches(self._next_to_ask)
            if has_batches:
                run_bytes = max(self._run_bytes, self._entry_bytes)
                held_max = self._window_bytes // max(self._batch_bytes, self._entry_bytes)
            else:
                run_bytes = self._entry_bytes
                held_max = min(self._window_bytes // self._entry_bytes, _SINGLES_MAX)
            held_max = max(1, held_max)
            if len(self._runs) >= min(held_max, waiting + self._taken_bytes // 4 // run_bytes):
                return
            count = max(1, self._run_bytes // self._entry_bytes) if has_batches else 1
            end = min(self._next_to_ask + count, self._end_of_run(self._next_to_ask), self._end)
            self._runs.append(self._start(self._next_to_ask, end))
            self._next_to_ask = EntryId(end)

    def _start(self, first_entry: EntryId, end: int) -> _PendingRead:
        run_bytes = self._run_bytes

        async def read() -> list[Entry]:
            return await self._read_run(first_entry, end - first_entry, run_bytes)

        task = self._loop.create_task(read())
        self._tasks[task] = None
        task.add_done_callback(self._on_read)
        return _PendingRead(first_entry, end, task)

    def _on_read(self, task: "asyncio.Task[list[Entry]]") -> None:
        del self._tasks[task]
        if not task.cancelled():
            # Marks the error as seen: it does not matter if the iterator never reaches this entry.
            task.exception()

    def _learn(self, entries: list[Entry]) -> None:
        """Updates the estimated entry size: it rises at once with larger entries, and falls slowly."""
        payload_bytes = sum(len(each.payload) for each in entries)
        self._taken_bytes += payload_bytes
        self._run_bytes = min(max(self._taken_bytes // 8, self._run_bytes), self._batch_bytes)
        mean = payload_bytes // len(entries) + _ENTRY_OVERHEAD_BYTES
        self._entry_bytes = max(mean, (3 * self._entry_bytes + mean) // 4)

    async def aclose(self) -> None:
        """Ends the stream, even if the call is cancelled. Idempotent."""
        self._next_to_ask = EntryId(self._end)
        self._ready.clear()
        runs, self._runs = list(self._runs), deque()
        for run in runs:
            run.task.cancel()
        await asyncio.gather(*(run.task for run in runs), return_exceptions=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()
