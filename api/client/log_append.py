"""Implements `log.append`: one batch, and its ack.

Each append in flight has a producer of its own, so that the failure of one append does not affect
others; a later append reuses the producer. A producer whose append has an unknown outcome continues
in a new epoch, which fences that append. A producer that the log has forgotten does the same
(`producer_numbering.py`).
"""

import asyncio
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final, cast

from rollbook.api.client.append_stream import AppendStreamPool, ClientAppendStream
from rollbook.api.client.config import LogClientConfig
from rollbook.api.client.core.retries_and_outcomes import RequestAttempts, begins_epoch, may_repeat
from rollbook.api.client.owner_cache import OwnerCache
from rollbook.api.client.producer_numbering import Producer
from rollbook.api.client.record_field_encoding import (
    Text,
    TextHeaders,
    as_bytes,
    as_us,
    headers_as_bytes,
)
from rollbook.api.client.retry_pauses import Pauses
from rollbook.api.rpc_methods import MESSAGE_BYTES_MAX
from rollbook.logservice.core.record_block import Codec, Headers, pack_block, with_producer
from rollbook.logservice.ids import LogName, ProducerRef
from rollbook.logservice.messages import AppendAck, Condition
from rollbook.proto.errors import (
    ClientClosed,
    EntryTooLarge,
    InvalidRequest,
    Outcome,
    ProducerGap,
    QuorumTimeout,
    RollbookError,
    ServerUnreachable,
)

_IDLE_MAX: Final = 64
# Leaves room for the rest of the gRPC message.
_BLOCK_BYTES_MAX: Final = MESSAGE_BYTES_MAX - 1024 * 1024


@dataclass(frozen=True, slots=True)
class PlainBatch:
    """The records of one batch."""

    values: Sequence[bytes]
    keys: Sequence[Text | None] | None = None
    headers: Sequence[TextHeaders | None] | None = None
    event_times: Sequence[int | datetime | None] | None = None

    def pack(self, producer: ProducerRef, codec: Codec) -> bytes:
        try:
            return _packed(self, producer, codec)
        except (TypeError, InvalidRequest):  # For speed, types are checked after a failure.
            _require_bytes("record", self.values)
            plain = self._plain()
            _require_bytes("key", [each for each in plain.keys or () if each is not None])
            for headers in plain.headers or ():
                _require_bytes("header", (headers or {}).values())
            return _packed(plain, producer, codec)

    def _plain(self) -> "PlainBatch":
        """Returns the same records, with text and datetimes converted."""
        keys, headers, times = self.keys, self.headers, self.event_times
        return PlainBatch(
            self.values,
            None if keys is None else [as_bytes(each) for each in keys],
            None if headers is None else [each and headers_as_bytes(each) for each in headers],
            None if times is None else [as_us(each) for each in times],
        )


def _packed(records: PlainBatch, producer: ProducerRef, codec: Codec) -> bytes:
    return pack_block(
        records.values,
        keys=cast("Sequence[bytes | None] | None", records.keys),
        headers=cast("Sequence[Headers | None] | None", records.headers),
        event_times=cast("Sequence[int | None] | None", records.event_times),
        producer=producer,
        codec=codec,
    )


@dataclass(frozen=True, slots=True)
class FramedBatch:
    """A batch that was framed by another program."""

    block: bytes

    def pack(self, producer: ProducerRef, _: Codec) -> bytes:
        return with_producer(self.block, producer)


def _require_bytes(what: str, column: Iterable[object]) -> None:
    for each in column:
        if not isinstance(each, bytes | bytearray | memoryview):
            hint = ": call .encode()" if isinstance(each, str) else ""
            raise TypeError(f"a {what} is bytes, not {type(each).__name__}{hint}") from None


class Appender:
    def __init__(
        self,
        log: LogName,
        streams: AppendStreamPool,
        owners: OwnerCache,
        config: LogClientConfig,
        uid: str = "",
        memory_s: float = math.inf,
    ) -> None:
        """`memory_s` says how long the log remembers a producer."""
        self._log, self._uid = log, uid
        self._streams = streams
        self._owners = owners
        self._config, self._memory_s = config, memory_s
        self._codec = Codec.ZSTD if config.compresses else Codec.NONE
        self._idle: list[Producer] = []
        self._stream: ClientAppendStream | None = None
        self._ref = 0

    async def append_as(
        self,
        ref: ProducerRef,
        records: PlainBatch | FramedBatch,
        condition: Condition | None,
        timeout_s: float | None,
    ) -> AppendAck:
        """Appends a batch under the caller's number, and tries no other number. If the call is
        cancelled, the batch may or may not have been appended."""
        return await self.append_framed(
            records.pack(ref, self._codec), ref.seq, condition, timeout_s
        )

    async def append_framed(
        self, block: bytes, seq: int, condition: Condition | None, timeout_s: float | None
    ) -> AppendAck:
        """Appends a block, which contains the number `seq`. If the call is cancelled, the block may
        or may not have been appended."""
        due = asyncio.get_running_loop().time() + self._config.timeout_of(timeout_s)
        try:
            with self._owners.outages.waiting():
                return await self._append(_checked(block), seq, condition, due)
        except RollbookError as error:
            self._owners.outages.explained(error)
            raise

    async def append(
        self,
        records: PlainBatch | FramedBatch,
        condition: Condition | None,
        timeout_s: float | None,
    ) -> AppendAck:
        """Appends a batch under a producer of its own. If the call is cancelled, the records may or
        may not have been appended."""
        due = asyncio.get_running_loop().time() + self._config.timeout_of(timeout_s)
        producer = self._idle.pop() if self._idle else Producer()
        try:
            with self._owners.outages.waiting():
                ack = await self._append_as(producer, records, condition, due)
        except RollbookError as error:
            self._owners.outages.explained(error)
            if error.outcome is not Outcome.NOT_APPLIED:
                producer.begin_epoch()
            raise
        except BaseException:
            producer.begin_epoch()
            raise
        else:
            producer.advance()
            return ack
        finally:
            if len(self._idle) < _IDLE_MAX:
                self._idle.append(producer)

    async def _append_as(
        self,
        producer: Producer,
        records: PlainBatch | FramedBatch,
        condition: Condition | None,
        due: float,
    ) -> AppendAck:
        """Appends the records. If the log has forgotten the producer and no outcome is unknown, it
        retries once in a new epoch."""
        while True:
            ref = producer.next_ref
            block = _checked(records.pack(ref, self._codec))
            try:
                return await self._append(block, ref.seq, condition, due)
            except ProducerGap as error:
                if not begins_epoch(error, is_unknown=error.outcome is not Outcome.NOT_APPLIED):
                    raise
                producer.begin_epoch()

    async def _append(
        self, block: bytes, seq: int, condition: Condition | None, due: float
    ) -> AppendAck:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        pauses, attempts = Pauses(self._config), RequestAttempts(due, due, is_change=True)
        why = ""
        while True:
            try:
                stream = self._bound_stream()
            except ClientClosed as error:
                raise attempts.result(error) from None
            result: asyncio.Future[AppendAck] = loop.create_future()
            number = stream.submit(self._ref, block, condition, partial(_tell, result))
            try:
                async with asyncio.timeout_at(min(due, loop.time() + self._config.attempt_s)):
                    ack = await result
            except TimeoutError:
                failure: RollbookError = QuorumTimeout(f"not acked in time{why}")
                if stream.withdraw(number):
                    failure.outcome = Outcome.NOT_APPLIED
            except RollbookError as error:
                failure, why = error, f"; the last attempt: {error.message}"
            else:
                self._owners.learn(self._log, stream.address, ack.owner_epoch)
                return ack
            attempts.note_failure(failure)
            is_known = self._owners.on_error(self._log, stream.address, failure)
            pause_s = pauses.next_s(failure, is_known=is_known)
            again_s = loop.time() + pause_s
            is_recognised = not attempts.may_be_applied or may_repeat(
                seq, began_s, again_s, self._memory_s
            )
            if not is_recognised or not attempts.may_continue(failure, again_s, was_answered=True):
                if isinstance(failure, ServerUnreachable):
                    failure = self._owners.nobody_answers(failure)
                raise attempts.result(failure)
            await asyncio.sleep(pause_s)

    def _bound_stream(self) -> ClientAppendStream:
        stream = self._streams.to(self._owners.address_of(self._log))
        if stream is not self._stream:
            self._stream, self._ref = (
                stream,
                stream.bind(self._log, is_ordered=False, uid=self._uid),
            )
        return stream


def _checked(block: bytes) -> bytes:
    """Refuses a block that gRPC would not send, because that would break the stream for other
    appends, too."""
    if len(block) > _BLOCK_BYTES_MAX:
        raise EntryTooLarge("a batch is too large", got=len(block), limit=_BLOCK_BYTES_MAX)
    return block


def _tell(
    result: "asyncio.Future[Any]", ack: AppendAck | None, error: RollbookError | None
) -> None:
    if result.done():
        return  # The caller has stopped waiting.
    if error is not None:
        result.set_exception(error)
    else:
        result.set_result(ack)
