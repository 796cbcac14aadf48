"""Appends a batch to a log exactly once: it first finds out which part of the batch is in the log already.

A cursor of the query records the last batch that is completely in the log. A process that commits for the
first time reads the blocks after that batch: blocks with this query's producer and this batch's number as their
epoch belong to the batch, and only the rest is appended (SK6). The log therefore does not have to remember
producers. If it does, it also detects blocks that another process of the same query appends at the same time.
"""

import json
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from typing import Final

from rollbook.api.client.sync import SyncLog
from rollbook.api.spark.core.exactly_once import LastBatch, WrittenBlock, cut, rows_written
from rollbook.api.spark.rows_to_blocks import ArrowRows
from rollbook.api.spark.shared_client import ServerChannel
from rollbook.logservice import messages
from rollbook.logservice.core.record_block import Block, Codec
from rollbook.logservice.ids import ProducerRef
from rollbook.proto.errors import (
    DuplicateDiffers,
    DuplicateTooOld,
    MetadataConflict,
    NoSuchCursor,
    ProducerGap,
    RollbookError,
    SinkReplayDiverged,
)

_logger: Final = logging.getLogger("rollbook.spark")
_BLOCK_BYTES_MAX: Final = 6 * 1024 * 1024  # The maximum block size, which fits into a gRPC message.
_AHEAD: Final = 4  # The maximum number of blocks in flight.
_ROUNDS: Final = 3
_whole: dict[
    tuple[str, str, str], int
] = {}  # The last batch that this process has appended, for each log and query.


@dataclass(frozen=True)
class MicroBatch:
    """A batch of a query. `query` is the producer's id without the prefix `spark/`, and `number` is the number of
    the batch.
    """

    query: str
    number: int
    is_recorded: bool  # False: if the batch is written again, it is appended again.

    @property
    def producer(self) -> bytes:
        return f"spark/{self.query}".encode()

    @property
    def cursor(self) -> str:
        return f"spark-{self.query}"

    def ref(self, seq: int) -> ProducerRef:
        return ProducerRef(self.producer, self.number, seq)


class LogSink:
    """Appends a batch's rows to one log."""

    def __init__(self, channel: ServerChannel, name: str, batch: MicroBatch, codec: Codec) -> None:
        self._channel, self._name, self._batch, self._codec = channel, name, batch, codec
        self._log: SyncLog = channel.patiently(lambda: channel.client.open(name))
        config = self._log.config
        self._bytes_max = min(config.batch_bytes_max, _BLOCK_BYTES_MAX)
        self._records_max = config.batch_records_max
        self._key = (channel.access.endpoint, self._log.uid, batch.query)
        self._first = self._end = -1  # The range of the batch's offsets in the log.
        # The appends in flight, by block number.
        self._sent: dict[int, Future[messages.AppendAck]] = {}

    def append(self, rows: ArrowRows) -> None:
        """Appends the rows, and returns when the whole batch is in the log. Raises `SinkReplayDiverged`."""
        batch = self._batch
        if not batch.is_recorded:
            self._append_rest(rows, 0, 0)
            return
        known = _whole.pop(self._key, None)
        # True: no part of this batch can be in the log.
        goes_on = known is not None and known < batch.number
        if goes_on and self._try_append(lambda: self._append_rest(rows, 0, 0)):
            self._on_whole()
            return
        last = self._last_batch()
        for round_ in range(_ROUNDS):
            is_last = round_ == _ROUNDS - 1
            if self._try_append(lambda: self._complete(rows, last), raises=is_last):
                break
        self._on_whole()

    def last_whole(self) -> int:
        """Returns the number of the query's last batch that is completely in the log, or -1."""
        return self._last_batch().batch

    def _try_append(self, act: Callable[[], None], *, raises: bool = False) -> bool:
        """Returns False if the log may have blocks of this batch that this process does not know. The caller then has
        to read the log.
        """
        try:
            act()
        except (DuplicateDiffers, DuplicateTooOld, ProducerGap, _Doubtful) as error:
            if raises:
                raise SinkReplayDiverged(
                    f"{self._name} has records of batch {self._batch.number} that this query did not write: {error}",
                    next_step="make sure that no other copy of the query is running",
                    log=self._name,
                ) from error
            _logger.info("batch_looked_up: %s of %s: %s", self._batch.number, self._name, error)
            return False
        return True

    def _complete(self, rows: ArrowRows, known: LastBatch) -> None:
        written, last_seq = self._written(known.looks_from(self._batch.number, self._name))
        blocks: dict[int, Block] = {block.base_offset: block for block in written}
        found = [
            WrittenBlock(block.base_offset, block.count, _ref_of(block).seq) for block in written
        ]
        done = rows_written(
            found,
            len(rows),
            lambda each, at: self._is_same(blocks[each.offset], rows, at),
            self._name,
        )
        if found:
            self._first, self._end = found[0].offset, found[-1].offset + found[-1].count
            _logger.info("batch_resumed: %d of %d rows were in the log", done, len(rows))
        self._append_rest(rows, done, last_seq + 1)

    def _append_rest(self, rows: ArrowRows, start: int, seq: int) -> None:
        runs = cut(start, len(rows), rows.size, self._bytes_max, self._records_max)
        try:
            for index, (first, last) in enumerate(runs):
                if index:  # The log has accepted one block, so it accepts the following ones.
                    self._send_ahead(rows, runs[index : index + _AHEAD], seq)
                seq = self._append_block(rows, first, last, seq) + 1
        finally:
            self._await_sent()

    def _append_block(self, rows: ArrowRows, first: int, last: int, seq: int) -> int:
        """Appends a block, and returns its number, which is 0 if the log has forgotten the producer."""
        while True:
            try:
                ack = self._sent_before(seq) or self._append_alone(rows, first, last, seq)
            except ProducerGap as error:
                if error.ids.get("expected") != 0 or seq == 0 or first == 0:
                    raise
                seq = 0
                continue
            if ack.is_duplicate and self._batch.is_recorded:
                raise _Doubtful(f"block {seq} was in the log")
            if self._first < 0:
                self._first = ack.first_offset
            self._end = ack.next_offset
            return seq

    def _append_alone(self, rows: ArrowRows, first: int, last: int, seq: int) -> messages.AppendAck:
        block = rows.pack(first, last, self._batch.ref(seq), self._codec)
        return self._channel.patiently(partial(self._log.append_block, block))

    def _send_ahead(self, rows: ArrowRows, runs: Sequence[tuple[int, int]], seq: int) -> None:
        """Sends blocks before the previous block is acknowledged. If one of them fails, the log refuses the later ones,
        since it accepts a producer's blocks only in order.
        """
        thread, log = self._log.inside()
        for number, (first, last) in enumerate(runs, seq):
            if number not in self._sent:
                block = rows.pack(first, last, self._batch.ref(number), self._codec)
                self._sent[number] = thread.submit(log.append_block(block))

    def _sent_before(self, seq: int) -> messages.AppendAck | None:
        """Returns the ack of a block that was sent ahead. Returns None if it was not sent or has failed; then
        the caller sends it alone.
        """
        sent = self._sent.pop(seq, None)
        try:
            return None if sent is None else sent.result()
        except RollbookError as error:
            _logger.info("block_sent_again: %d of %s: %s", seq, self._name, error)
            self._await_sent()
            return None

    def _await_sent(self) -> None:
        sent, self._sent = self._sent, {}
        wait(sent.values())

    # --- Blocks in the log --------------------------------------------------------------------

    def _written(self, start: int) -> tuple[list[Block], int]:
        """Returns this batch's blocks in the log, in order, and the number of the last one."""
        found: list[Block] = []
        head = self._channel.tail_of(self._log.name, self._log.uid).head
        for batch in self._log.read_batches(max(start, head)):
            for block in batch.blocks:
                ref = block.producer
                if ref and (ref.id, ref.epoch) == (self._batch.producer, self._batch.number):
                    found.append(block)
        if head > start and found and _ref_of(found[0]).seq > 0:
            raise SinkReplayDiverged(
                f"{self._name} was truncated at {head}, within batch {self._batch.number}",
                next_step="start the query with another checkpoint",
                log=self._name,
            )
        return found, _ref_of(found[-1]).seq if found else -1

    def _is_same(self, block: Block, rows: ArrowRows, start: int) -> bool:
        """Returns whether a block of the log equals the one to be written. Compares the checksums, and if
        they differ, the records.
        """
        end = start + block.count
        if end > len(rows):
            return False
        if Block(rows.pack(start, end, block.producer, block.codec)).crc == block.crc:
            return True
        have = zip(block.values(), block.keys(), block.headers(), block.event_times(), strict=True)
        return [(v, k, dict(h), t) for v, k, h, t in have] == rows.records(start, end)

    # --- The last batch -----------------------------------------------------------------------

    def _last_batch(self) -> LastBatch:
        """Returns the last batch that the cursor names. If there is no cursor, creates it at the tail
        before any append.
        """
        cursor = self._log.cursor(self._batch.cursor)
        try:
            return _last_batch_of(self._channel.patiently(cursor.get))
        except NoSuchCursor:
            pass
        tail = self._channel.patiently(lambda: self._log.tail_offset("read_barrier"))
        blob = _blob_of(LastBatch(-1, tail, tail))
        try:
            return _last_batch_of(cursor.commit(tail, blob=blob, version=-1))
        except MetadataConflict:
            return _last_batch_of(self._channel.patiently(cursor.get))

    def _on_whole(self) -> None:
        number = self._batch.number
        if self._end >= 0:
            last = LastBatch(number, self._first, self._end)
            cursor = self._log.cursor(self._batch.cursor)
            try:
                cursor.commit(last.end, blob=_blob_of(last), may_rewind=True)
            except RollbookError as error:
                # The batch is in the log. The cursor still names an earlier batch, so a later search for a
                # batch's blocks has to read more.
                _logger.warning("mark_not_moved: %s of %s: %s", cursor, self._name, error)
        _whole[self._key] = number


class _Doubtful(Exception):
    """The log has a block that this process did not know."""


def _ref_of(block: Block) -> ProducerRef:
    assert block.producer is not None
    return block.producer


def _blob_of(last: LastBatch) -> bytes:
    return json.dumps({"batch": last.batch, "start": last.start}).encode()


def _last_batch_of(cursor: messages.Cursor) -> LastBatch:
    found = json.loads(cursor.blob or b'{"batch": -1}')
    return LastBatch(int(found["batch"]), int(found.get("start", cursor.offset)), cursor.offset)
