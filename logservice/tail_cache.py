"""Caches a log's newest blocks in its owner's memory, and serves readers at the tail as soon as a block is confirmed.

The cache holds confirmed blocks only, so no reader sees a block that may vanish (LS4). A reader holds a
position and no bytes, so a reader that never reads takes no memory. If its next block is no longer cached, it
reads from the bookies.

Each log's cache has a bound of bytes, and all caches of a server share the bound of `TailMemory` (LS11). If the
shared bound is exceeded, the oldest block of all logs that use more than a sixteenth of the bound is dropped. If
no log uses that much, the log whose last append is oldest drops its oldest block.
"""

import asyncio
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import islice
from operator import attrgetter, itemgetter
from typing import Final

from rollbook.logservice.ids import Offset
from rollbook.proto.errors import RollbookError

_BLOCK_BYTES: Final = 200  # The memory that each block takes in addition to its own bytes.
# The number of shares of the shared bound. A log may use more than one share while the bound is not reached.
_SHARES: Final = 16
# Dropped blocks are removed from the list when at least this many, and half of the list, are dropped.
_DROP_AT: Final = 64

_Confirmed = tuple[Offset, Offset, bytes]
# Start, end, the block, and the value of `TailMemory.added` just before the block was added.
_Kept = tuple[Offset, Offset, bytes, int]
_END: Final = itemgetter(1)
_OLDEST: Final = attrgetter("oldest")


class TailMemory:
    """Holds the tail caches of all logs of a server within one shared bound."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self._share_bytes = bytes_max // _SHARES
        self.added = 0  # All bytes ever added. Since it never decreases, it orders blocks by age.
        self._caches = OrderedDict[TailCache, None]()  # In the order of their last additions.
        self._large: dict[TailCache, None] = {}  # Logs that have more than their share.

    def on_added(self, cache: "TailCache", count: int) -> None:
        self.bytes += count
        self.added += count
        self._caches[cache] = None
        self._caches.move_to_end(cache)
        if cache.bytes > self._share_bytes:
            self._large[cache] = None

    def make_room(self) -> None:
        while self.bytes > self.bytes_max and self._caches:
            giver = min(self._large, key=_OLDEST, default=None) or next(iter(self._caches))
            if not giver.drop_oldest():
                del self._caches[giver]

    def on_dropped(self, cache: "TailCache", count: int) -> None:
        self.bytes -= count
        if cache.bytes <= self._share_bytes:
            self._large.pop(cache, None)

    def on_closed(self, cache: "TailCache") -> None:
        self._caches.pop(cache, None)


class TailCache:
    def __init__(self, tail: Offset, bytes_max: int, memory: TailMemory) -> None:
        self.tail = tail
        self.bytes_max = bytes_max
        self.end: RollbookError | None = None  # The error with which the cache was closed.
        self.on_grown: Callable[[], None] | None = None  # Set while tails are watched.
        self._memory = memory
        self.bytes = 0  # Bytes of the cached blocks.
        self._kept: list[_Kept] = []
        self._dropped = 0  # The number of dropped blocks at the start of `_kept`.
        self._waiting: dict[asyncio.Future[None], None] = {}

    @property
    def start(self) -> Offset:
        """The first cached offset; the tail if no block is cached."""
        return self._kept[self._dropped][0] if self._dropped < len(self._kept) else self.tail

    @property
    def waiting(self) -> int:
        """The number of callers that wait until the log grows."""
        return len(self._waiting)

    @property
    def oldest(self) -> int:
        """The value of `TailMemory.added` just before the first cached block was added."""
        return self._kept[self._dropped][3]

    def add(self, blocks: Sequence[_Confirmed]) -> None:
        """Add confirmed blocks, which continue the tail without a hole. Waiters are notified once."""
        if not blocks:
            return
        added, since = 0, self._memory.added
        for base_offset, next_offset, block in blocks:
            assert base_offset == self.tail, "offsets are dense"
            self.tail = next_offset
            added += len(block) + _BLOCK_BYTES
            self._kept.append((base_offset, next_offset, block, since))
        self.bytes += added
        self._memory.on_added(self, added)
        # Apply this log's own bound first, so that blocks beyond it take no memory from other logs.
        while self.bytes > self.bytes_max:
            self.drop_oldest()
        self._memory.make_room()
        if self._waiting:
            self.wake()
        if self.on_grown is not None:
            self.on_grown()

    def drop_oldest(self) -> bool:
        """Drop the oldest block, if there is one; returns whether another one is left."""
        if self._dropped == len(self._kept):
            return False
        base_offset, next_offset, block, since = self._kept[self._dropped]
        cost = len(block) + _BLOCK_BYTES
        self._kept[self._dropped] = (base_offset, next_offset, b"", since)
        self._dropped += 1
        self.bytes -= cost
        self._memory.on_dropped(self, cost)
        if self._dropped >= _DROP_AT and 2 * self._dropped >= len(self._kept):
            del self._kept[: self._dropped]
            self._dropped = 0
        return self._dropped < len(self._kept)

    def close(self, end: RollbookError) -> None:
        """Close the cache: no block follows, and readers get the error `end`. Idempotent."""
        if self.end is None:
            self.end = end
            held, self.bytes = self.bytes, 0
            self._memory.on_dropped(self, held)
            self._kept, self._dropped = [], 0
            self._memory.on_closed(self)
            self.wake()

    def read(self, offset: Offset, bytes_max: int) -> tuple[list[bytes], Offset] | None:
        """Return blocks, beginning with the block that holds `offset`, and the offset after them. The blocks fit
        into `bytes_max`, but at least one is returned, except at the tail. Returns None if the block that holds
        `offset` is not cached.
        """
        if offset >= self.tail:
            return [], self.tail
        kept = self._kept
        index = bisect_right(kept, offset, lo=self._dropped, key=_END)
        if index == len(kept) or kept[index][0] > offset:
            return None
        blocks: list[bytes] = []
        for _, next_offset, block, _ in islice(kept, index, None):
            bytes_max -= len(block)
            if blocks and bytes_max < 0:
                break
            blocks.append(block)
            end = next_offset
        return blocks, end

    async def grown(self, tail: Offset, deadline_s: float) -> None:
        """Wait until the log has grown beyond `tail` or the cache is closed or woken, at most `deadline_s`."""
        if self.tail > tail or self.end is not None or deadline_s <= 0:
            return
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(deadline_s, _wake, turn)
        self._waiting[turn] = None
        try:
            await turn
        finally:
            timer.cancel()
            self._waiting.pop(turn, None)

    def wake(self) -> None:
        """Make all waiters return, so that they check the log again."""
        waiting, self._waiting = self._waiting, {}
        for turn in waiting:
            _wake(turn)


class Subscription:
    """A reader's position in a log's tail cache. It costs nothing while it is not used."""

    def __init__(self, cache: TailCache, offset: Offset) -> None:
        self.offset = offset  # The next offset to return.
        self._cache = cache

    @property
    def tail(self) -> Offset:
        return self._cache.tail

    async def next(self, deadline_s: float, bytes_max: int) -> list[bytes] | None:
        """Return the next blocks, or an empty list if none is added within `deadline_s`. The first block may
        begin before `offset`.

        Returns None if the block that holds `offset` is no longer cached: read it from the bookies, and
        subscribe again. Raises the error with which the cache was closed.
        """
        cache = self._cache
        if self.offset >= cache.tail:
            await cache.grown(self.offset, deadline_s)
        if cache.end is not None:
            raise type(cache.end)(cache.end.message, **cache.end.ids)
        found = cache.read(self.offset, bytes_max)
        if found is None:
            return None
        blocks, end = found
        self.offset = max(self.offset, end) if blocks else self.offset
        return blocks


def _wake(turn: "asyncio.Future[None]") -> None:
    if not turn.done():
        turn.set_result(None)
