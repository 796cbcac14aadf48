"""The minimal ledger client on bare bookies (`bare_bookie`): the twin of `ledger_worker` for
`adds`.

    python -m tests.bench.load.bare_worker PORT…

Frames of one size with a number in each are made by one join and sent to all bookies. Responses
move the window; only their length is used. An entry is confirmed when two of three bookies have
acknowledged it and all before it. There are no futures, digests or deadlines, only blocking sockets
and one poll.
"""

import asyncio
import select
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final

from tests.bench.load import jobs
from tests.bench.load.jobs import ADDS_BURSTS, ADDS_SAMPLED, Found, Job, Stopwatch, percentiles
from tests.bench.load.work import add_batches, entry_bytes

_ACK_QUORUM: Final = 2
# The last bookie's, as with our client: then all wait for it.
_BEHIND_BYTES_MAX: Final = 16 * 1024 * 1024
_SILENCE_S: Final = 60.0
_ANSWERS_BYTES: Final = 1024 * 1024
_LEDGER: Final = 4711
_FIRST_ENTRY: Final = 100_000  # An add that is as long as most would be: its answer is the answer.
_pack_number: Final = struct.Struct(">q").pack
_NUMBER_BYTES: Final = 8


class _Writer:
    def __init__(self, ports: Sequence[int], payload_bytes: int, stack: ExitStack) -> None:
        (model,) = add_batches([_LEDGER], 1, payload_bytes, 1, version=3, first_entry=_FIRST_ENTRY)
        frame, self._answer_bytes = model.frames, model.reply_bytes
        at = len(frame) - entry_bytes(payload_bytes) + _NUMBER_BYTES  # Behind its ledger's.
        self._head, self._tail = frame[:at], frame[at + _NUMBER_BYTES :]
        self._between = self._tail + self._head
        self._behind_max = _BEHIND_BYTES_MAX // len(frame)
        self._lines = [stack.enter_context(_connect(port)) for port in ports]
        self._by_number = {line.fileno(): line for line in self._lines}
        self._answered_bytes = dict.fromkeys(self._by_number, 0)
        self._poll = stack.enter_context(select.epoll())
        for line in self._lines:
            self._poll.register(line, select.EPOLLIN)
        self._sampled: deque[tuple[int, int]] = deque()  # Under way: which, and since when.
        self.latencies_ns: list[int] = []
        self.sent = self.confirmed = 0

    @property
    def may_send(self) -> bool:
        return (
            self.sent - min(self._answered_bytes.values()) // self._answer_bytes < self._behind_max
        )

    def send(self, count: int) -> None:
        since_ns = time.perf_counter_ns()
        numbers = range(_FIRST_ENTRY + self.sent, _FIRST_ENTRY + self.sent + count)
        frames = b"".join((self._head, self._between.join(map(_pack_number, numbers)), self._tail))
        for line in self._lines:
            line.sendall(frames)
        self._sampled.extend((self.sent + at, since_ns) for at in range(0, count, ADDS_SAMPLED))
        self.sent += count

    def hear(self) -> None:
        """Reads from the servers that have answered, at least one."""
        ready = self._poll.poll(_SILENCE_S)
        if not ready:
            raise TimeoutError(f"no bare bookie has answered for {_SILENCE_S:g} s")
        for number, _ in ready:
            answers = self._by_number[number].recv(_ANSWERS_BYTES)
            if not answers:
                raise ConnectionError(
                    "a bare bookie hung up; what it said is in the bench's output"
                )
            self._answered_bytes[number] += len(answers)
        fewest = sorted(self._answered_bytes.values())[-_ACK_QUORUM]
        self.confirmed = fewest // self._answer_bytes
        now_ns = time.perf_counter_ns()
        while self._sampled and self._sampled[0][0] < self.confirmed:
            self.latencies_ns.append(now_ns - self._sampled.popleft()[1])

    def hang_up(self) -> None:
        """Closes when all bookies have answered everything, so that the next job finds them idle."""
        for line in self._lines:
            line.shutdown(socket.SHUT_WR)
            while line.recv(_ANSWERS_BYTES):
                pass


def _add(ports: Sequence[int], job: Job) -> Found:
    burst = max(1, job["window"] // ADDS_BURSTS)
    window = job["window"] // burst * burst
    with ExitStack() as stack:
        writer = _Writer(ports, job["size"], stack)
        stopwatch = Stopwatch()
        end_s = time.perf_counter() + job["seconds"]
        while (is_on := writer.sent < job["count"] and time.perf_counter() < end_s) or (
            writer.confirmed < writer.sent
        ):
            room = (window - writer.sent + writer.confirmed) // burst * burst
            if is_on and room and writer.may_send:
                writer.send(room)
            writer.hear()
        found = stopwatch.read()
        writer.hang_up()
    return found | {"count": writer.sent} | percentiles(writer.latencies_ns)


def _connect(port: int) -> socket.socket:
    line = socket.create_connection(("127.0.0.1", port), _SILENCE_S)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    line.setblocking(True)
    return line


async def _run(job: Job) -> Found:
    assert job["do"] == "adds", job
    return _add([int(port) for port in sys.argv[1:]], job)


if __name__ == "__main__":
    asyncio.run(jobs.serve(_run))
