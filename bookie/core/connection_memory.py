"""Limits how much memory a bookie holds for its clients, and decides which connections it stops
reading (B7).

A bookie holds requests that were received and not answered, partial requests, reads in progress,
and responses that a client has not read. Every connection may hold `floor` bytes. Beyond that, a
connection borrows from a shared pool, up to a limit for each connection. A connection at its limit
is not read from until there is room again.

Partial requests may always hold half of the pool. When the pool is short and they hold more than
that, the connections of stalled requests are closed (`core/partial_request_timeout.py`).

There are two exceptions, which prevent a deadlock. One connection that holds only a partial request
is favoured: it may finish the request even if the pool is empty, since it has nothing else to
release. In addition, one answer at a time is always made for a client that reads. If unread answers
overdraw the pool, a connection is closed (`is_overdrawn`).

A connection is read in chunks; their size doubles while chunks arrive full (`ReadSize`). Chunks
stay small until a client has shown that it adds or reads its responses. As objects, read requests
take many times the memory of their bytes, and a client that reads no responses would leave a large
chunk of them waiting.

If this file is deleted, the following parts are deleted with it: `core/partial_request_timeout.py`,
the tests of both, the settings `held_bytes_max`, `connection_bytes_max` and
`connection_bytes_floor`, what `socket_server.py` does when the pool is short, the account, the gate and
the chunk size in `connection.py`, `Making` in `request_handlers.py`, the pool in
`server_context.py`, and B7 in `DESIGN.md`.
"""

from collections.abc import Callable
from typing import Final

_CHUNK_BYTES_MIN: Final = 2 * 1024
# The largest chunk after a chunk with requests other than adds.
_CHUNK_BYTES_OF_CALLS: Final = 16 * 1024
CHUNK_BYTES_MAX: Final = 256 * 1024


class Pool:
    def __init__(self, *, bytes_max: int, floor: int, ceiling: int) -> None:
        self.bytes_max = bytes_max
        self.floor = floor
        self.ceiling = ceiling
        self.held = 0
        self.lent = 0  # The part of the held bytes that exceeds the floors.
        self.begun = 0  # The part of the held bytes that belongs to partial requests.
        self.has_news = False  # Whether a connection in `waiting` may read again.
        self.waiting: dict[ConnectionMemory, None] = {}
        self._roomy = bytes_max - bytes_max // 8
        self._was_exhausted = False
        self._favoured: ConnectionMemory | None = None

    @property
    def is_exhausted(self) -> bool:
        return self.lent >= self.bytes_max

    @property
    def is_roomy(self) -> bool:
        return self.lent <= self._roomy

    @property
    def room(self) -> int:
        """The bytes that may be lent before the pool is no longer roomy; negative if it is not."""
        return self._roomy - self.lent

    @property
    def overdue(self) -> int:
        """Bytes of stalled partial requests that have to be released before other connections may continue."""
        return min(self.lent - self._roomy, self.begun - self.bytes_max // 2)

    @property
    def is_overdrawn(self) -> bool:
        return self.lent >= self.bytes_max + self.bytes_max // 4

    def lend(self, size: int) -> None:
        self.lent += size
        self._was_exhausted |= self.is_exhausted

    def take_back(self, size: int) -> None:
        self.lent -= size
        if self._was_exhausted and self.is_roomy:
            self._was_exhausted = False
            self.has_news = True

    def try_favour(self, account: "ConnectionMemory") -> bool:
        """Favours this account if no account is favoured and it holds a partial request; returns
        whether it is favoured."""
        if self._favoured is None and account.is_half_a_request:
            self._favoured = account
        return self._favoured is account

    def is_favoured(self, account: "ConnectionMemory") -> bool:
        return self._favoured is account

    def favour_no_more(self, account: "ConnectionMemory") -> None:
        if self._favoured is account:
            self._favoured = None
            self.has_news = True

    def take_ready(self) -> "list[ConnectionMemory]":
        """Returns the connections that may read again, in the order in which they began to wait."""
        self.has_news = False
        ready = [account for account in self.waiting if account.try_resume()]
        for account in ready:
            del self.waiting[account]
        return ready


class Making:
    """The memory of an answer in progress. This memory does not count for the connection, so it
    does not stop reads from it."""

    __slots__ = ("_pool", "_size")

    def __init__(self, pool: Pool, size: int) -> None:
        self._pool = pool
        self._size = 0
        self.grow(size)

    @property
    def may_grow(self) -> bool:
        """Returns whether the answer may become larger. The answer stops growing before the pool is
        empty, so that adds do not wait for long."""
        return self._pool.is_roomy

    @property
    def room(self) -> int:
        """The bytes by which the answer may grow while `may_grow` is true."""
        return max(0, self._pool.room)

    def grow(self, size: int) -> None:
        self._size += size
        self._pool.held += size
        self._pool.lend(size)

    def end(self) -> None:
        self._pool.held -= self._size
        self._pool.take_back(self._size)
        self._size = 0


class ConnectionMemory:
    """The memory that one connection holds."""

    __slots__ = ("begun", "held", "on_room", "pool", "unread")

    def __init__(self, pool: Pool, on_room: Callable[[], None]) -> None:
        self.pool = pool
        self.on_room = on_room
        self.held = 0
        self.begun = 0  # The part of `held` that belongs to a partial request.
        # The part of `held` that belongs to responses that the client has not read.
        self.unread = 0

    def try_take(self) -> bool:
        """Returns whether the connection may read more. May make it the favoured one."""
        if self.held < self.pool.floor:
            return True
        if self.held >= self.pool.ceiling:
            return False
        return not self.pool.is_exhausted or self.pool.try_favour(self)

    @property
    def is_half_a_request(self) -> bool:
        """Returns whether the connection holds only a partial request, which waiting does not
        reduce."""
        return 0 < self.begun == self.held

    @property
    def room(self) -> int:
        """The bytes that the connection may receive before it has to stop."""
        pool, held = self.pool, self.held
        # Small pieces for the rest of the request would take as long and cost much more work.
        if pool.is_favoured(self):
            return pool.ceiling - held
        return max(pool.floor - held, min(pool.ceiling - held, pool.bytes_max - pool.lent))

    def try_resume(self) -> bool:
        """Returns whether a paused connection may read again. May make it the favoured connection.

        The threshold is lower than in `try_take`, because a connection that paused and resumed in
        each turn would be slower.
        """
        if self.held <= self.pool.floor // 2:
            return True
        # Waiting does not make a partial request smaller.
        if self.held >= self.pool.ceiling or self.held - self.begun > self.pool.ceiling // 2:
            return False
        return self.pool.is_roomy or self.pool.try_favour(self)

    def take(self, size: int) -> None:
        before = self.held
        self.held = before + size
        self.pool.held += size
        if self.held > self.pool.floor:
            self.pool.lend(self.held - max(before, self.pool.floor))

    def give(self, size: int) -> None:
        before = self.held
        self.held = before - size
        assert self.held >= 0, "B7: more bytes were returned than taken"
        self.pool.held -= size
        if before > self.pool.floor:
            self.pool.take_back(before - max(self.held, self.pool.floor))

    def set_begun(self, size: int) -> None:
        is_over = size < self.begun
        self._change(size - self.begun)
        self.pool.begun += size - self.begun
        self.begun = size
        if is_over:
            self.pool.favour_no_more(self)

    def set_unread(self, size: int) -> None:
        self._change(size - self.unread)
        self.unread = size

    def _change(self, size: int) -> None:
        if size > 0:
            self.take(size)
        elif size:
            self.give(-size)


class ReadGate:
    """The gate of a connection, which is read from only while the gate is open. While the gate is
    closed, the connection waits for the pool.

    If `is_blocked` is set, the connection is not read from, whatever it holds.
    """

    __slots__ = ("_account", "_calls_max", "_is_closed")

    def __init__(self, account: ConnectionMemory, calls_max: int) -> None:
        """The gate closes when more than `calls_max` calls wait, and opens again at half of
        them."""
        self._account = account
        self._calls_max = calls_max
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def try_open(self, calls: int, *, is_blocked: bool) -> bool:
        """Opens a closed gate if possible; returns whether it did."""
        waiting = self._account.pool.waiting
        has_room = self._account.try_resume() and calls <= self._calls_max // 2
        if is_blocked or not has_room:
            waiting[self._account] = None
            return False
        waiting.pop(self._account, None)
        self._is_closed = False
        return True

    def try_close(self, calls: int, *, is_blocked: bool) -> bool:
        """Closes an open gate if necessary; returns whether it did."""
        if not is_blocked and calls <= self._calls_max and self._account.try_take():
            return False
        self._account.pool.waiting[self._account] = None
        self._is_closed = True
        return True


class ReadSize:
    """The number of bytes that are read from a connection at once."""

    __slots__ = ("_account", "_chunk_bytes")

    def __init__(self, account: ConnectionMemory) -> None:
        self._account = account
        self._chunk_bytes = _CHUNK_BYTES_MIN

    def next_bytes(self) -> int:
        """Returns the maximum size of the next chunk. A small chunk is read even if there is no
        room, because the gate has already decided to read from the connection."""
        return min(self._chunk_bytes, max(self._account.room, _CHUNK_BYTES_MIN))

    def on_chunk(self, size: int, *, has_calls: bool, calls_waiting: int) -> None:
        """`has_calls` says whether the chunk had requests other than adds."""
        if calls_waiting:
            self._chunk_bytes = _CHUNK_BYTES_MIN
        elif size == self._chunk_bytes:
            bytes_max = _CHUNK_BYTES_OF_CALLS if has_calls else CHUNK_BYTES_MAX
            self._chunk_bytes = min(2 * size, bytes_max)
