"""The state of a log that its next block depends on: tail, time, exclusive writer, seal, producers.

All of it follows from the blocks of the log in their order, so an owner that replays them knows
what the previous owner knew (LS5). The first entry of each ledger has a snapshot. A large ledger has
more snapshots between other entries, so that a replay is short.

A snapshot, little-endian:

    u16 version · u8 flags, 1: sealed · u8 attempt bytes · u32 lease of the writer (ms)
    i64 tail · i64 timestamp (µs) · i64 writer epoch · i64 its fence offset · u16 holder bytes · holder
    attempt · the producers

Version 1 has no attempt, and is written if there is no attempt. A release that knows only version 1 refuses
version 2.

The following is stored beside a snapshot, little-endian. Older releases neither write nor read it:

    i64 owner epoch of the newest block · the times without an owner (`age_without_downtime.py`)
    how many records each producer has appended (`producers.py`)
"""

import struct
from typing import Final, Self

from rollbook.logservice.core.age_without_downtime import LivedTime
from rollbook.logservice.core.control_blocks import (
    Follows,
    ProducerBegun,
    SealBlock,
    Snapshot,
    WriterAcquired,
    WriterReleased,
    unpack_control,
)
from rollbook.logservice.core.producers import AppendedBatch, Producers
from rollbook.logservice.core.record_block import Block
from rollbook.logservice.ids import FIRST_OFFSET, NO_WRITER_YET, Offset, OwnerEpoch, WriterEpoch
from rollbook.logservice.log_config import LogConfig
from rollbook.proto.errors import BadMetadata, BlockCorrupt
from rollbook.proto.ids import EntryId, LedgerId
from rollbook.proto.ports import Buffer

_WITHOUT_ATTEMPT: Final = 1
_VERSION: Final = 2
_SEALED: Final = 1
_HEAD: Final = struct.Struct("<HBBIqqqqH")
_EPOCH: Final = struct.Struct("<q")
DEFAULT: Final = LogConfig()


class LogMemory:
    def __init__(self, config: LogConfig = DEFAULT) -> None:
        self.tail = FIRST_OFFSET
        # The newest block's time, which is never before an earlier block's.
        self.timestamp_us = 0
        self.owner_epoch: OwnerEpoch | None = None  # The newest block's epoch; None: not known.
        # The time of the newest block with records; 0: no such block since the restored snapshot.
        self.record_us = 0
        self.writer_epoch = NO_WRITER_YET
        self.holder = ""  # The holder of `writer_epoch`; empty: nobody.
        # The attempt that acquired the epoch, kept after the release; empty: the request named no attempt.
        self.attempt = ""
        # How long the writer epoch is held without a renewal; 0: until it is released or stolen.
        self.ttl_ms = 0
        self.fence_offset = FIRST_OFFSET  # The first offset of the writer epoch.
        self.is_sealed = False
        self.producers = Producers(config)

    # --- Facts --------------------------------------------------------------------------------

    def on_time(self, timestamp_us: int, owner_epoch: OwnerEpoch) -> None:
        """Take note of a block's time. The time between two owners does not age producers, whatever the
        owners' clocks show (LT1).
        """
        if owner_epoch != self.owner_epoch and self.owner_epoch is not None:
            self.producers.on_unlived(self.timestamp_us, timestamp_us)
        self.timestamp_us, self.owner_epoch = timestamp_us, owner_epoch

    def on_acquired(self, acquired: WriterAcquired) -> None:
        assert acquired.epoch > self.writer_epoch, "LS8: a writer epoch was granted twice"
        self.writer_epoch, self.holder = acquired.epoch, acquired.holder
        self.ttl_ms, self.attempt = acquired.ttl_ms, acquired.attempt
        self.fence_offset = self.tail

    def on_released(self, epoch: WriterEpoch) -> None:
        if epoch == self.writer_epoch:
            self.holder = ""

    def on_begun(self, begun: ProducerBegun) -> None:
        """Take note of a producer's new epoch, after `on_time` for the same block."""
        self.producers.on_begun(begun, self.tail, self.timestamp_us)

    def replay(self, block: Block, ledger_id: LedgerId, entry_id: EntryId) -> None:
        """Apply a block that an earlier owner has written.

        Raises `BlockCorrupt` if the block does not begin at the tail, its time is before the previous block's,
        or its control cannot be decoded.
        """
        if block.base_offset != self.tail or block.timestamp_us < self.timestamp_us:
            raise BlockCorrupt(
                f"a block at offset {block.base_offset} follows the tail {self.tail}",
                ledger_id=ledger_id,
                entry_id=entry_id,
            )
        self.on_time(block.timestamp_us, block.owner_epoch)
        if block.is_control:
            match unpack_control(block):
                case WriterAcquired() as acquired:
                    self.on_acquired(acquired)
                case WriterReleased(epoch):
                    self.on_released(epoch)
                case ProducerBegun() as begun:
                    self.on_begun(begun)
                case SealBlock():
                    self.is_sealed = True
            return
        self.tail, self.record_us = block.next_offset, block.timestamp_us
        if block.producer is not None:
            batch = AppendedBatch(
                block.base_offset, block.next_offset, block.timestamp_us, ledger_id, entry_id
            )
            self.producers.on_batch(block.producer, batch, block.crc)

    # --- Snapshots ----------------------------------------------------------------------------

    @property
    def packed_bytes(self) -> int:
        """The approximate size of a snapshot."""
        return _HEAD.size + self.producers.packed_bytes

    def pack(self) -> bytes:
        holder, attempt = self.holder.encode(), self.attempt.encode()
        version = _VERSION if attempt else _WITHOUT_ATTEMPT
        head = _HEAD.pack(
            version,
            _SEALED * self.is_sealed,
            len(attempt),
            self.ttl_ms,
            self.tail,
            self.timestamp_us,
            self.writer_epoch,
            self.fence_offset,
            len(holder),
        )
        return b"".join((head, holder, attempt, self.producers.pack()))

    def pack_lived(self) -> bytes:
        """The packed state that is stored beside a snapshot: owner epoch and lived time."""
        if self.owner_epoch is None:
            return b""
        return _EPOCH.pack(self.owner_epoch) + self.producers.lived.pack()

    def pack_counts(self) -> bytes:
        """The packed record counts that are stored beside a snapshot."""
        return self.producers.pack_counts()

    def follows(self, ledger_id: LedgerId, last_entry: EntryId) -> Follows:
        """The content of the control block in a segment's first entry: what it follows, and a snapshot."""
        return Follows(ledger_id, last_entry, self.pack(), self.pack_lived(), self.pack_counts())

    def snapshot(self) -> Snapshot:
        """The content of the control block for a snapshot that is not in a ledger's first entry."""
        return Snapshot(self.pack(), self.pack_lived(), self.pack_counts())

    @classmethod
    def restore(cls, said: Follows | Snapshot, config: LogConfig = DEFAULT) -> Self:
        """The state in a control block. Raises `BadMetadata`."""
        return cls.unpack(said.state, config, said.lived, said.counts)

    @classmethod
    def unpack(
        cls,
        data: Buffer,
        config: LogConfig = DEFAULT,
        lived: Buffer = b"",
        counts: Buffer = b"",
    ) -> Self:
        """The state from its packed form. Raises `BadMetadata`."""
        if len(data) < _HEAD.size:
            raise BadMetadata("a snapshot of a log is cut short")
        version, flags, attempt_size, ttl_ms, tail, timestamp_us, epoch, fence, size = (
            _HEAD.unpack_from(data)
        )
        if not _WITHOUT_ATTEMPT <= version <= _VERSION:
            raise BadMetadata(
                f"a snapshot of a log has version {version}; known versions are 1 to {_VERSION}"
            )
        found, end = cls(config), _HEAD.size + size
        producers_at = end + attempt_size
        found.tail, found.timestamp_us = Offset(tail), timestamp_us
        found.writer_epoch, found.fence_offset = WriterEpoch(epoch), Offset(fence)
        found.ttl_ms = ttl_ms
        found.is_sealed = bool(flags & _SEALED)
        try:
            found.holder = bytes(data[_HEAD.size : end]).decode()
            found.attempt = bytes(data[end:producers_at]).decode()
        except UnicodeDecodeError as error:
            raise BadMetadata(f"the holder in a snapshot of a log: {error}") from None
        found.producers = Producers.unpack(memoryview(data)[producers_at:], config, counts)
        if lived:
            if len(lived) < _EPOCH.size:
                raise BadMetadata("the data beside a snapshot of a log is cut short")
            found.owner_epoch = OwnerEpoch(*_EPOCH.unpack_from(lived))
            found.producers.lived = LivedTime.unpack(memoryview(lived)[_EPOCH.size :])
        return found


def snapshot_in(block: Block) -> Follows | Snapshot | None:
    """The snapshot in a block, from which a replay can begin; None if the block has none."""
    if block.is_control:
        match unpack_control(block):
            case Follows() | Snapshot() as said:
                return said
    return None
