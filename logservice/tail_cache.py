"""The newest blocks of a log in its owner's memory: readers at the tail are served from here at ack time.

Only confirmed blocks are in it, so no reader sees a block that may vanish (LS4). A reader holds
a position and no bytes: one that never reads costs nothing. If its blocks are no longer cached
when it comes back, it reads them from the bookies.

Each log has a bound of bytes, and all logs of a server share the bound of `TailMemory` (LS11):
beyond it the oldest block is dropped, of those logs that have more than a sixteenth. If there is
none, the log whose last append is oldest drops its oldest block.
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

_BLOCK_BYTES: Final = 200  # Memory of a block besides its bytes.
# A log keeps what it has beyond one of these shares while no other log needs it.
_SHARES: Final = 16
_DROP_AT: Final = 64  # The list is cut when it has this many dropped blocks.

_Confirmed = tuple[Offset, Offset, bytes]
# Start, end, the block, and `TailMemory.added` when it came.
_Kept = tuple[Offset, Offset, bytes, int]
_END: Final = itemgetter(1)
_OLDEST: Final = attrgetter("oldest")


class TailMemory:
    """The shared bound of the tail caches of all logs of a server."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self._share_bytes = bytes_max // _SHARES
        self.added = 0  # All bytes ever added: an older block came at a smaller count.
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
        self.end: RollbookError | None = None  # The error after which no block follows.
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
        """The number of readers that wait for more."""
        return len(self._waiting)

    @property
    def oldest(self) -> int:
        """`TailMemory.added` when the first cached block came."""
        return self._kept[self._dropped][3]

    def add(self, blocks: Sequence[_Confirmed]) -> None:
        """Add confirmed blocks, which follow each other and the tail. Waiters are notified once."""
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
        # This log's own bound is first: a block beyond it takes no memory from others.
        while self.bytes > self.bytes_max:
            self.drop_oldest()
        self._memory.make_room()
        if self._waiting:
            self.wake()
        if self.on_grown is not None:
            self.on_grown()

    def drop_oldest(self) -> bool:
        """Drop the oldest block; returns whether another one is left."""
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
        """End the cache: waiters get `end`, since no block follows. Idempotent."""
        if self.end is None:
            self.end = end
            held, self.bytes = self.bytes, 0
            self._memory.on_dropped(self, held)
            self._kept, self._dropped = [], 0
            self._memory.on_closed(self)
            self.wake()

    def read(self, offset: Offset, bytes_max: int) -> tuple[list[bytes], Offset] | None:
        """Blocks from the one on that holds `offset`, as many as fit but at least one, and where they
        end; none at the tail. None if that block is not here.
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
        """Returns when the log has grown beyond the tail or has ended, or at the deadline."""
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
        """Make all waiters check the log again."""
        waiting, self._waiting = self._waiting, {}
        for turn in waiting:
            _wake(turn)


class Subscription:
    """A reader's position in the tail of a log. Costs nothing while it is not used."""

    def __init__(self, cache: TailCache, offset: Offset) -> None:
        self.offset = offset  # The next offset to hand out.
        self._cache = cache

    @property
    def tail(self) -> Offset:
        return self._cache.tail

    async def next(self, deadline_s: float, bytes_max: int) -> list[bytes] | None:
        """The next blocks; an empty list if none came in time. The first one may begin before `offset`.

        None if it is no longer cached: then read from the bookies, and subscribe again. Raises
        the error that ended the owner.
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
