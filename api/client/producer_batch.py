"""Records that are sent together, and a handle on each for its submitter.

A submission consists only of a batch and an index: a record has no future until a caller waits for
it. A batch is settled once, for all its records together.
"""

import asyncio
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

from rollbook.logservice.core.record_block import Codec, Headers, pack_block, with_producer
from rollbook.logservice.ids import Offset, ProducerRef
from rollbook.logservice.messages import AppendAck
from rollbook.proto.errors import RollbookError


class Batch:
    """One block of records, from its first record to its ack."""

    __slots__ = (
        "ack",
        "block",
        "due",
        "error",
        "event_times",
        "first_sent_at",
        "headers",
        "is_noticed",
        "keys",
        "may_be_applied",
        "packed_records",
        "sent_at",
        "seq",
        "size",
        "values",
        "waiters",
    )

    def __init__(self, due: float) -> None:
        self.values: list[bytes] = []
        self.keys: list[bytes | None] | None = None  # None while no record has a key.
        self.headers: list[Headers | None] | None = None
        self.event_times: list[int | None] | None = None
        self.due = due  # The batch's deadline in the loop's time.
        self.size = 0  # The size of the block; an estimate until it is packed.
        self.block = b""
        self.seq = -1
        self.first_sent_at = self.sent_at = 0.0
        self.may_be_applied = False  # Whether an attempt may have taken effect.
        self.is_noticed = False  # Whether the caller has seen its error.
        self.packed_records = 0  # The number of records in `block`.
        self.ack: AppendAck | None = None
        self.error: RollbookError | None = None
        self.waiters: list[Callable[[], object]] = []

    @property
    def is_settled(self) -> bool:
        return self.ack is not None or self.error is not None

    @property
    def records(self) -> int:
        return self.packed_records or len(self.values)

    def add_extras(
        self,
        index: int,
        key: bytes | None,
        headers: Headers | None,
        event_time_us: int | None,
    ) -> None:
        """Sets the extras of the value that was added last; earlier values had none."""
        if key is not None:
            self.keys = _padded(self.keys, index)
            self.keys.append(key)
        if headers:
            self.headers = _padded(self.headers, index)
            self.headers.append(dict(headers))  # A copy, because the caller may change its dict.
        if event_time_us is not None:
            self.event_times = _padded(self.event_times, index)
            self.event_times.append(event_time_us)

    def pack(self, producer: ProducerRef, codec: Codec) -> None:
        count = len(self.values)
        self.block = pack_block(
            self.values,
            keys=self.keys and _padded(self.keys, count),
            headers=self.headers and _padded(self.headers, count),
            event_times=self.event_times and _padded(self.event_times, count),
            producer=producer,
            codec=codec,
        )
        self.seq = producer.seq
        self.size = len(self.block)
        self.packed_records = count
        self.values = []
        self.keys = self.headers = self.event_times = None

    def renumber(self, producer: ProducerRef) -> None:
        """Makes this the producer's next batch, with the same records."""
        self.block = with_producer(self.block, producer)
        self.seq, self.first_sent_at = producer.seq, 0.0

    def settle(self, ack: AppendAck | None, error: RollbookError | None) -> None:
        assert not self.is_settled
        self.ack, self.error = ack, error
        self.block = b""
        waiters, self.waiters = self.waiters, []
        for tell in waiters:
            tell()

    def offset_of(self, index: int) -> Offset:
        """Returns the offset of a record in a settled batch. Raises the record's error."""
        if self.ack is None:
            assert self.error is not None
            self.is_noticed = True
            raise self.error
        return Offset(self.ack.first_offset + index)

    async def settled(self) -> None:
        """Waits for the result. A cancelled wait does not cancel the batch."""
        if self.is_settled:
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def tell() -> None:
            if not done.done():
                done.set_result(None)

        self.waiters.append(tell)
        await done


def _padded(column: list[Any] | None, count: int) -> list[Any]:
    column = column or []
    column += [None] * (count - len(column))
    return column


class Submission:
    """A submitted record. Awaiting it is optional, and returns the record's offset."""

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: Batch, index: int) -> None:
        self._batch = batch
        self._index = index

    def __await__(self) -> Generator[Any, None, Offset]:
        """Raises the record's error. If the wait is cancelled, the record is still sent."""
        if not self._batch.is_settled:
            yield from self._batch.settled().__await__()
        return self._batch.offset_of(self._index)

    def done(self) -> bool:
        """Returns whether the record's outcome is known."""
        return self._batch.is_settled

    def result(self) -> Offset:
        """Returns the offset of a settled record. Raises the record's error, or `InvalidStateError`
        if it is not settled."""
        batch = self._batch
        if (ack := batch.ack) is not None:  # The code of `offset_of`, to save a call.
            return ack.first_offset + self._index  # type: ignore[return-value]  # The sum is an `Offset`.
        if batch.error is None:
            raise asyncio.InvalidStateError("the record is still being sent")
        return batch.offset_of(self._index)

    def add_done_callback(self, callback: Callable[["Submission"], None]) -> None:
        """Calls `callback` on the loop soon after the record is settled; the loop handles its
        errors."""
        loop = asyncio.get_running_loop()
        if self._batch.is_settled:
            loop.call_soon(callback, self)
        else:
            self._batch.waiters.append(partial(loop.call_soon, callback, self))
