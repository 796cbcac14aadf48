"""The clients of `rollbook demo`. They append records and check every ack, and they read and check every record.

Record number N must get offset N, so that a reader can check each record.
"""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from rollbook.api.cli.latencies import new_latencies
from rollbook.api.client.producer_batch import Submission
from rollbook.api.client.reader import RecordBatch
from rollbook.api.client.writer import Writer
from rollbook.proto.errors import Corrupt
from rollbook.proto.stats import Histogram

RECORD_BYTES: Final = 100
_TICK_S: Final = 0.01


class BrokenPromise(Corrupt):
    """During the demo, Rollbook has broken one of its promises."""


def require(holds: bool, promise: str, **ids: Any) -> None:
    if not holds:
        raise BrokenPromise(f"broken promise: {promise}", **ids)


def make_records(count: int) -> list[bytes]:
    """Returns pseudorandom records, which all differ and cannot be compressed."""
    return [hashlib.shake_128(number.to_bytes(8)).digest(RECORD_BYTES) for number in range(count)]


class Appending:
    """Submits records one after the other through one writer, and checks their acks as they arrive."""

    def __init__(self, writer: Writer, records: Sequence[bytes]) -> None:
        self.acked = 0
        self._writer = writer
        self._records = records
        self._submitted = 0
        # The writer's window bounds this queue.
        self._pending: asyncio.Queue[Submission] = asyncio.Queue()
        self._has_news = asyncio.Event()
        self._last_ack_s = time.monotonic()
        self.longest_gap_s = 0.0  # The longest time between two acks since the last reset.

    async def watch(self) -> None:
        """Checks acks until it is cancelled. Raises the error of a record that was not appended."""
        while True:
            offset = await (await self._pending.get())
            require(offset == self.acked, "acks are in order", told=offset, expected=self.acked)
            now_s = time.monotonic()
            self.longest_gap_s = max(self.longest_gap_s, now_s - self._last_ack_s)
            self._last_ack_s = now_s
            self.acked += 1
            self._has_news.set()

    async def alone(self, count: int) -> Histogram:
        """Appends one record after the other. Returns the time that each append took."""
        took = new_latencies()
        for _ in range(count):
            begun_ns = time.monotonic_ns()
            await self._submit()
            took.observe(time.monotonic_ns() - begun_ns)
        return took

    async def at_speed(self, count: int) -> float:
        """Appends as fast as possible. Returns the total time in seconds."""
        begun_s = time.monotonic()
        for _ in range(count):
            if not self._writer.has_room:
                await self._writer.ready()
            self._submit()
        await self._writer.flush()
        return time.monotonic() - begun_s

    async def at_pace(self, count: int, per_second: int) -> None:
        """Appends at a steady rate, without a burst after a delay."""
        end, at_once = self._submitted + count, round(per_second * _TICK_S)
        while self._submitted < end:
            for _ in range(min(at_once, end - self._submitted)):
                await self._writer.ready()
                self._submit()
            await asyncio.sleep(_TICK_S)
        await self._writer.flush()

    async def reach(self, acked: int) -> None:
        while self.acked < acked:
            self._has_news.clear()
            await self._has_news.wait()

    def _submit(self) -> Submission:
        submission = self._writer.submit(self._records[self._submitted])
        self._pending.put_nowait(submission)
        self._submitted += 1
        return submission

    def reset_gap(self) -> None:
        self._last_ack_s = time.monotonic()
        self.longest_gap_s = 0.0


async def check(
    batches: AsyncIterator[RecordBatch], records: Sequence[bytes], start: int = 0
) -> int:
    """Checks that each record was read exactly once, at its offset and byte for byte. Returns the number of
    records.
    """
    expected = start
    async for batch in batches:
        require(batch.base_offset == expected, "offsets are dense", next=batch.base_offset)
        values = batch.values()
        expected += len(values)
        is_right = values == records[batch.base_offset : expected]
        require(is_right, "records do not change", offset=batch.base_offset)
    return expected - start
