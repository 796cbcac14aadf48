"""Gives each block its place in the log, or refuses it. Only this module decides the order of blocks.

An append is checked in this order:

 1. Was it appended before? A retry gets the offsets of the first time, even if the log was sealed, the writer was
    fenced or the tail has passed the expected offset since (LS6). A different batch with the same number is refused.
 2. Is the log sealed?
 3. Does the append have the writer epoch that is in force (LS8)?
 4. Is the tail where it was expected?

The response, positive or negative, depends on blocks that are not confirmed yet: see `pending_commits.py`. A
block's time is the server's, and is never before the previous block's (LS7).
"""

from typing import Final, NamedTuple

from rollbook.logservice.core.control_blocks import WriterAcquired
from rollbook.logservice.core.producers import AppendedBatch
from rollbook.logservice.core.record_block import BlockInfo
from rollbook.logservice.core.replayed_state import LogMemory
from rollbook.logservice.ids import (
    FIRST_OFFSET,
    NO_WRITER_YET,
    TIMESTAMP_US_MAX,
    Offset,
    WriterEpoch,
)
from rollbook.logservice.messages import AcquireMode, Condition
from rollbook.proto.errors import (
    InvalidRequest,
    LogSealed,
    OffsetMismatch,
    ProducerGap,
    RollbookError,
    StaleEpoch,
    WriterHeld,
    WriterRequired,
)
from rollbook.proto.ids import EntryId, LedgerId

_NOBODY: Final = Condition()
_GRACE: Final = 2  # A new owner leaves a holder at least its lease divided by this.


_PASSING: Final = (InvalidRequest, OffsetMismatch, ProducerGap, WriterHeld)


def is_passing(refusal: RollbookError) -> bool:
    """Return whether a later state of the log could accept what is refused now.

    Such a refusal holds only if the owner has not been replaced, which only a barrier shows. All other
    refusals are final: a log stays sealed, an epoch stays ended, and a batch stays in the log.
    """
    return isinstance(refusal, _PASSING)


class BlockStamp(NamedTuple):
    """The values that a block is stamped with."""

    base_offset: Offset
    next_offset: Offset
    timestamp_us: int


class Sequencer:
    def __init__(self, memory: LogMemory, *, is_exclusive: bool) -> None:
        self.memory = memory
        self.is_exclusive = is_exclusive
        # The end of the lease, unless it is renewed; None: it has no end.
        self._held_until_ns: int | None = None

    # --- Blocks -------------------------------------------------------------------------------

    def decide(
        self, info: BlockInfo, condition: Condition | None, wall_us: int
    ) -> BlockStamp | AppendedBatch:
        """Return where to place the block or, if it was appended before, where it was placed then. Changes nothing.

        Raises `ProducerFenced`, `ProducerGap`, `DuplicateTooOld`, `DuplicateDiffers`, `LogSealed`,
        `StaleEpoch`, `WriterRequired`, `OffsetMismatch`, `InvalidRequest`.
        """
        memory = self.memory
        tail, now_us = memory.tail, self.time(wall_us)
        if info.producer is not None:
            sent_before = memory.producers.find(info.producer, now_us)
            if sent_before is not None:
                memory.producers.check_same(info.producer, sent_before, info.count, info.crc)
                return sent_before
        if memory.is_sealed:
            raise LogSealed(tail=tail)
        if condition is not None or self.is_exclusive:
            self.check(condition or _NOBODY)
        return BlockStamp(tail, Offset(tail + info.count), now_us)

    def on_placed(
        self, place: BlockStamp, info: BlockInfo, ledger_id: LedgerId, entry_id: EntryId
    ) -> None:
        memory = self.memory
        assert place.base_offset == memory.tail, "LS7: an offset was given twice, or left out"
        assert place.timestamp_us >= memory.timestamp_us, "LS7: the time of a log went back"
        memory.tail = place.next_offset
        memory.timestamp_us = memory.record_us = place.timestamp_us
        if info.producer is not None:
            batch = AppendedBatch(*place, ledger_id, entry_id)
            memory.producers.on_batch(info.producer, batch, info.crc)

    def time(self, wall_us: int) -> int:
        """The time for the next block's stamp."""
        return max(min(wall_us, TIMESTAMP_US_MAX), self.memory.timestamp_us)

    def check(self, condition: Condition) -> None:
        """Check a condition. Raises `StaleEpoch`, `WriterRequired`, `OffsetMismatch`, `InvalidRequest`."""
        memory = self.memory
        if condition.writer_epoch is not None:
            self.check_epoch(condition.writer_epoch)
        elif self.is_exclusive:
            raise WriterRequired(next_step="acquire the writer epoch, and append with it")
        expected = condition.expected_offset
        if condition.must_be_empty and memory.tail:
            expected = FIRST_OFFSET
        if expected is not None and expected != memory.tail:
            raise OffsetMismatch(
                expected=expected, tail=memory.tail, writer_epoch=memory.writer_epoch
            )

    # --- The exclusive writer -----------------------------------------------------------------

    def check_epoch(self, epoch: WriterEpoch) -> None:
        """Check that the writer epoch is in force. Raises `StaleEpoch`, `InvalidRequest`."""
        memory = self.memory
        if epoch > memory.writer_epoch or epoch <= NO_WRITER_YET:
            raise InvalidRequest(f"writer epoch {epoch} was never granted", writer_epoch=epoch)
        if epoch < memory.writer_epoch or not memory.holder:
            raise StaleEpoch(
                "the writer epoch was released"
                if epoch == memory.writer_epoch
                else "a newer writer epoch is in force",
                writer_epoch=epoch,
                current_epoch=memory.writer_epoch,
                holder=memory.holder,
                fenced_at=memory.fence_offset,
            )

    def is_held(self, now_ns: int) -> bool:
        until_ns = self._held_until_ns
        return bool(self.memory.holder) and (until_ns is None or now_ns < until_ns)

    def held_for_ns(self, now_ns: int) -> int | None:
        """How long the writer epoch is held without a renewal; None: until it is released or stolen."""
        return None if self._held_until_ns is None else max(self._held_until_ns - now_ns, 0)

    def was_asked_by(self, holder: str, attempt: str) -> bool:
        """Return whether the newest epoch was granted to this attempt, so that the request is a repetition.

        If another holder uses the same attempt name, this is another attempt; otherwise two holders would
        write under one epoch. The holder of a released epoch is not known, so any holder matches. That
        grants nothing, since the epoch is not in force.
        """
        memory = self.memory
        return bool(attempt) and attempt == memory.attempt and memory.holder in (holder, "")

    def acquire(
        self, holder: str, mode: AcquireMode, ttl_ms: int, now_ns: int, attempt: str = ""
    ) -> WriterAcquired:
        """Return the control that grants a writer epoch. The caller writes it into the log, then passes it
        to `on_acquired`.

        Raises `WriterHeld`, `LogSealed`.
        """
        memory = self.memory
        if memory.is_sealed:
            raise LogSealed(tail=memory.tail)
        if mode is not AcquireMode.STEAL and self.is_held(now_ns):
            raise WriterHeld(holder=memory.holder, writer_epoch=memory.writer_epoch)
        return WriterAcquired(WriterEpoch(memory.writer_epoch + 1), holder, ttl_ms, attempt)

    def on_acquired(self, acquired: WriterAcquired, now_ns: int) -> None:
        self.memory.on_acquired(acquired)
        self.on_renewed(now_ns)

    def on_renewed(self, now_ns: int) -> None:
        ttl_ms = self.memory.ttl_ms
        self._held_until_ns = now_ns + ttl_ms * 1_000_000 if ttl_ms else None

    def on_owner_changed(self, now_ns: int, wall_us: int) -> None:
        """Count the lease from the newest entry, and leave the holder at least half of it.

        Call this before the new owner writes. A renewal depends on an entry (LS10), so no renewal is later
        than the newest entry. A live holder could not renew while the log had no owner, so it gets time to
        renew.
        """
        self.on_renewed(now_ns)
        if self._held_until_ns is not None:
            ttl_ns = self._held_until_ns - now_ns
            unheard_ns = max(wall_us - self.memory.timestamp_us, 0) * 1000
            self._held_until_ns -= min(unheard_ns, ttl_ns - ttl_ns // _GRACE)
