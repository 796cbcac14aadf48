"""The load generator: many connections, one thread, prebuilt bytes.

Each connection has up to `window` batches in flight. Closed loop: the next one is sent when a
response is complete. Paced: batches are due at fixed times, independent of responses, and latencies
are measured from the due time, so that a stall counts for all batches that it delays.

Nothing is parsed during the measurement; `Result.successes` counts from the stored responses. They
are received directly into memory that was touched before, so that the generator's cost is only that
of the system calls.
"""

import select
import socket
import time
from array import array
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from math import inf
from statistics import quantiles
from typing import Final

from tests.bench.load.work import FrameBatch, count_successes

SILENCE_S: Final = 60.0
_PIECE_BYTES: Final = 256 * 1024


class Stalled(Exception):
    """The server stopped responding or closed the connection before it had answered everything."""


@dataclass
class Result:
    entries: int
    seconds: float
    cpu_s: float  # The generator's own, while the clock ran.
    latencies_s: Sequence[float]  # Of batches, in the order of their completion, all connections.
    replies: list[bytearray]  # Of each connection.

    @property
    def entries_per_s(self) -> float:
        return self.entries / self.seconds

    @property
    def successes(self) -> int:
        return sum(map(count_successes, self.replies))

    def percentile_us(self, percent: int) -> float:
        return quantiles(self.latencies_s, n=100)[percent - 1] * 1e6


class _Stream:
    """One connection with its unsent batches and awaited responses."""

    def __init__(
        self,
        connection: socket.socket,
        batches: Sequence[FrameBatch],
        window: int,
        interval_s: float,
    ) -> None:
        self.connection = connection
        self.due_s = 0.0  # When the next batch is.
        self.replies = _touched(sum(batch.reply_bytes for batch in batches))
        self.latencies_s: array[float] = array("d")
        self._waiting = deque(batches)
        self._window = window
        self._interval_s = interval_s
        self._rest = memoryview(b"")  # Of the batch being sent.
        self._under_way: deque[tuple[float, int]] = deque()  # Begun, bytes of the answer.
        self._room = memoryview(self.replies)  # For what was not heard yet.
        self._unclaimed_bytes = 0  # Heard of the answer that is not complete yet.
        self._wakes_bytes = 1  # This much has to arrive before we are woken.

    @property
    def is_done(self) -> bool:
        return not self._waiting and not self._under_way

    @property
    def is_blocked(self) -> bool:
        """Whether the server does not read fast enough."""
        return bool(self._rest)

    @property
    def wakes_s(self) -> float:
        """When the next batch is due if no response arrives before."""
        return self.due_s if self._interval_s and self._waiting else inf

    def send(self) -> None:
        """Sends what may be sent now."""
        while True:
            while self._rest:
                try:
                    self._rest = self._rest[self.connection.send(self._rest) :]
                except BlockingIOError:
                    return
            now = time.perf_counter()
            if not self._waiting or len(self._under_way) >= self._window or self.due_s > now:
                return
            batch = self._waiting.popleft()
            self._under_way.append((self.due_s or now, batch.reply_bytes))
            self._sleep_deeper()
            self._rest = memoryview(batch.frames)
            self.due_s += self._interval_s

    def receive(self) -> None:
        count = self.connection.recv_into(self._room)
        if not count:
            raise Stalled(f"the server hung up, {len(self._under_way)} batches unanswered")
        self._room = self._room[count:]
        self._unclaimed_bytes += count
        while self._under_way and self._unclaimed_bytes >= self._under_way[0][1]:
            begun, reply_bytes = self._under_way.popleft()
            self._unclaimed_bytes -= reply_bytes
            self.latencies_s.append(time.perf_counter() - begun)
        self._sleep_deeper()

    def _sleep_deeper(self) -> None:
        """Avoids a wake-up for each segment of a long response, which would cost both sides CPU."""
        missing = self._under_way[0][1] - self._unclaimed_bytes if self._under_way else 1
        wakes_bytes = max(1, min(missing, _PIECE_BYTES))
        if self._wakes_bytes <= wakes_bytes < _PIECE_BYTES // 4:
            return  # Short ones come in one piece. But what is left of a long one may be more than they are.
        if wakes_bytes != self._wakes_bytes:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wakes_bytes)
            self._wakes_bytes = wakes_bytes


def run(
    address: tuple[str, int],
    work: Sequence[Sequence[FrameBatch]],
    *,
    window: int = 2**31,
    interval_s: float = 0.0,
) -> Result:
    """Sends each element of `work` over its own connection; returns when everything is answered.

    `interval_s` is the time between two batches of a connection. Connections send in turns.
    """
    with ExitStack() as stack:
        connections = [stack.enter_context(_connect(address)) for _ in work]
        streams = [
            _Stream(connection, batches, window, interval_s)
            for connection, batches in zip(connections, work, strict=True)
        ]
        started, cpu_started_s = time.perf_counter(), time.process_time()
        if interval_s:
            for at, stream in enumerate(streams):
                stream.due_s = started + at * interval_s / len(streams)
        _drive({stream.connection: stream for stream in streams})
        seconds = time.perf_counter() - started
        cpu_s = time.process_time() - cpu_started_s
    return Result(
        sum(batch.entries for batches in work for batch in batches),
        seconds,
        cpu_s,
        array("d", chain.from_iterable(stream.latencies_s for stream in streams)),
        [stream.replies for stream in streams],
    )


def _touched(size: int) -> bytearray:
    """Memory whose pages the system has already allocated."""
    return bytearray(b"?") * size


def _drive(unfinished: dict[socket.socket, _Stream]) -> None:
    for stream in unfinished.values():
        stream.send()
    while unfinished:
        blocked = [connection for connection, each in unfinished.items() if each.is_blocked]
        wakes_s = min(stream.wakes_s for stream in unfinished.values())
        patience_s = min(max(0.0, wakes_s - time.perf_counter()), SILENCE_S)
        # Not epoll: its shortest wait is a millisecond, which is more than an add takes.
        readable, writable, _ = select.select(list(unfinished), blocked, [], patience_s)
        if not readable and not writable and patience_s == SILENCE_S:
            raise Stalled(f"no answer for {SILENCE_S:g} s")
        for connection in readable:
            unfinished[connection].receive()
        due = (
            unfinished if wakes_s < inf else {**dict.fromkeys(readable), **dict.fromkeys(writable)}
        )
        for connection in due:
            unfinished[connection].send()
        for connection in readable:
            if unfinished[connection].is_done:
                del unfinished[connection]


def _connect(address: tuple[str, int]) -> socket.socket:
    connection = socket.create_connection(address, SILENCE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setblocking(False)
    return connection
