"""A log's memory of its producers: a batch that is sent again is recognised, and not appended again.

A producer numbers the batches of each of its epochs from 0. For each producer, the log remembers where the
last 64 batches (`dedupe_batches`) are:

    the next batch          is appended
    a remembered batch      was sent again: it gets the offsets of the first time (LS6)
    an older batch          is in the log, but its offsets are forgotten: refused
    a later batch           has overtaken another one: refused
    a batch of an           comes from a session that another one has replaced: refused
      older epoch
    a batch of a            begins the epoch if it is number 0, and the older epoch is forgotten; otherwise refused
      newer epoch

A batch that repeats a remembered number with another number of records, or the newest number with other content,
is not a retry but a mistake. It is refused, since its sender would take the first batch's offsets for its own.
Other content is recognised by the block's CRC, which is not in a snapshot: for batches from a snapshot only the
record counts are compared.

An unknown producer has to begin with batch 0, too: its earlier batches may still be in flight. A producer is
forgotten after 24 hours (`dedupe_age_s`) of the log's time, not counting the time between two owners (LT1), or
when too many others were used later. All of this memory follows from the blocks in the log alone, so a replay of
the blocks yields the same memory (LS5).

A **named** producer requests each of its epochs from the log. The response has the epoch, the number of
records that the producer has appended, and the offset of the last one (LS15). These epochs are at least
`NAMED_EPOCH_MIN`. Silence does not make the log forget a named producer: it remembers the `NAMED_MAX` that
were used last. When all named producers together have too many batches, those unused the longest keep only
their newest one.

If all logs of a server exceed its memory for producers, it forgets producers sooner (`producer_memory_budget.py`).
The next owner may still know such a producer from an older snapshot, and then recognises it.

The format in a snapshot, little-endian. Unnamed producers come first; in each kind, those unused the
longest come first:

    u32 producers · for each: u8 id bytes · id · u32 epoch · i64 last seq · u16 batches · batches
    batch: i64 base offset · i64 next offset · i64 timestamp (µs) · i64 ledger id · i64 entry id

A named producer that has begun an epoch and appended nothing in it has -1 as its last seq. It keeps its
last batch, or a batch without records if it has none. The following is stored beside the snapshot. Older
releases neither write nor read it:

    u8 1 · for each producer with more records than the batches above: u32 index · i64 records, -1: not known
"""

import struct
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, NamedTuple, Self

from rollbook.logservice.core.age_without_downtime import NO_GAPS
from rollbook.logservice.core.control_blocks import NO_LEDGER, ProducerBegun
from rollbook.logservice.ids import (
    NAMED_EPOCH_MIN,
    PRODUCER_EPOCH_MAX,
    Offset,
    ProducerRef,
)
from rollbook.logservice.log_config import LogConfig
from rollbook.proto.errors import (
    BadMetadata,
    DuplicateDiffers,
    DuplicateTooOld,
    InvalidRequest,
    ProducerFenced,
    ProducerGap,
)
from rollbook.proto.ids import NO_ENTRY, EntryId, LedgerId
from rollbook.proto.ports import Buffer

PRODUCERS_MAX: Final = 8192  # The most producers of a log: one snapshot of 4 MiB has room for them.
# The most remembered batches of a log: one snapshot of 4 MiB has room for them, too.
BATCHES_MAX: Final = 65_536

NAMED_MAX: Final = PRODUCERS_MAX // 2
_NAMED_BATCHES_MAX: Final = BATCHES_MAX // 2
_COUNTS_VERSION: Final = 1
_NOT_KNOWN: Final = (
    -1
)  # The record count is unknown: an owner of an older release, which does not count, had the log.

DEFAULT: Final = LogConfig()

# A shorter time between two owners counts as silence: it is too short to make the log forget a producer.
_UNLIVED_US_MIN: Final = 1_000_000
_NUMBERS: Final = 5  # How many numbers are kept for each batch.
_BATCH_BYTES: Final = 8 * _NUMBERS
_LONE_BYTES: Final = 160  # Memory of a producer with one batch, besides its id and that batch.
_MORE_BYTES: Final = (
    240  # Memory of a producer with several batches, besides its id and these batches.
)
_COUNT: Final = struct.Struct("<I")
_LONE: Final = struct.Struct("<IqIB5q")  # Epoch, sequence number, CRC, flags, the batch.
_HAS_CRC: Final = 1
_UNCOUNTED: Final = 2
_HEAD: Final = struct.Struct("<IqH")
_COUNTED: Final = struct.Struct("<Iq")
_BEGIN_ANEW: Final = "begin a new epoch of this producer, with batch 0"


class AppendedBatch(NamedTuple):
    """Where an earlier batch was placed."""

    base_offset: Offset
    next_offset: Offset
    timestamp_us: int
    ledger_id: LedgerId
    entry_id: EntryId


@dataclass(frozen=True, slots=True)
class BegunEpoch:
    """The epoch that a named producer begins, and how many records it has appended so far."""

    begun: ProducerBegun
    records: int | None  # Records that it has appended, in all its epochs; None: not known.
    last_offset: Offset | None  # The offset of its latest record.


@dataclass(slots=True)
class _Producer:
    """A producer with several batches, or a named one. Most producers have one batch and are kept as
    `_LONE`, which takes half as much memory.
    """

    epoch: int
    last_seq: int
    last_crc: int | None = None  # The CRC of the latest batch's block; None: not known.
    # `_NUMBERS` numbers for each batch, the oldest batch first.
    batches: "array[int]" = field(default_factory=lambda: array("q"))
    records: int = (
        0  # The records in all its batches, including forgotten ones; `_NOT_KNOWN`: not known.
    )

    @property
    def count(self) -> int:
        return len(self.batches) // _NUMBERS

    @property
    def last_used_us(self) -> int:
        return self.batches[2 - _NUMBERS]

    @property
    def remembered(self) -> int:
        """The number of records in the remembered batches."""
        return sum(self.batches[1::_NUMBERS]) - sum(self.batches[::_NUMBERS])

    def keep_newest(self) -> None:
        del self.batches[:-_NUMBERS]


def _opened(known: "bytes | _Producer") -> _Producer:
    if isinstance(known, _Producer):
        return known
    epoch, seq, crc, flags, *batch = _LONE.unpack(known)
    records = _NOT_KNOWN if flags & _UNCOUNTED else batch[1] - batch[0]
    return _Producer(epoch, seq, crc if flags & _HAS_CRC else None, array("q", batch), records)


def _memory_bytes(producer_id: bytes, known: "bytes | _Producer") -> int:
    """The approximate memory of a producer."""
    if isinstance(known, _Producer):
        return _MORE_BYTES + len(producer_id) + _BATCH_BYTES * known.count
    return _LONE_BYTES + len(producer_id) + len(known)


class Producers:
    def __init__(self, config: LogConfig = DEFAULT) -> None:
        self.configure(config)
        # Unnamed producers, the one unused the longest first.
        self._producers: OrderedDict[bytes, bytes | _Producer] = OrderedDict()
        # Named producers, the one unused the longest first.
        self._named: OrderedDict[bytes, _Producer] = OrderedDict()
        self._batches = self._named_batches = 0
        self.bytes = 0  # The approximate memory of all producers.
        self.on_grown: Callable[[int], None] = _nobody  # Called with each change of `bytes`.
        self.lived = NO_GAPS

    def configure(self, config: LogConfig) -> None:
        """Apply the configuration. A narrower window takes effect with each producer's next batch."""
        self._window_batches = config.dedupe_batches
        self._window_us = config.dedupe_age_s * 1_000_000
        self._stale_after_us = 0  # No producer is stale before this time; 0: not yet computed.

    def __len__(self) -> int:
        return len(self._producers) + len(self._named)

    @property
    def packed_bytes(self) -> int:
        """The approximate size of a snapshot."""
        return len(self) * 48 + self._batches * _NUMBERS * 8

    def find(self, ref: ProducerRef, now_us: int) -> AppendedBatch | None:
        """Where this batch was placed, if it was appended before; None if it is the next batch.

        Raises `ProducerFenced`, `ProducerGap`, `DuplicateTooOld`.
        """
        known = self._known(ref.id)
        if known is None or self._is_stale(known, now_us) or ref.epoch > known.epoch:
            if ref.seq:
                raise ProducerGap(
                    "an unknown producer has to begin with batch 0",
                    next_step=_BEGIN_ANEW,
                    expected=0,
                    seq=ref.seq,
                )
            return None
        if ref.epoch < known.epoch:
            raise ProducerFenced(epoch=known.epoch, producer_epoch=ref.epoch)
        back = known.last_seq - ref.seq
        if back == -1:
            return None
        if back < 0:
            raise ProducerGap(expected=known.last_seq + 1, seq=ref.seq)
        if back >= known.count:
            raise DuplicateTooOld(seq=ref.seq, first_remembered=known.last_seq - known.count + 1)
        start = len(known.batches) - (back + 1) * _NUMBERS
        base, end, timestamp_us, ledger_id, entry_id = known.batches[start : start + _NUMBERS]
        return AppendedBatch(
            Offset(base), Offset(end), timestamp_us, LedgerId(ledger_id), EntryId(entry_id)
        )

    def check_same(self, ref: ProducerRef, found: AppendedBatch, count: int, crc: int) -> None:
        """Check that a repeated batch is the same as the batch that was found, as far as is known. Raises
        `DuplicateDiffers`.
        """
        known = self._known(ref.id)
        assert known is not None
        is_known = ref.seq == known.last_seq and known.last_crc is not None
        if count != found.next_offset - found.base_offset or (is_known and crc != known.last_crc):
            raise DuplicateDiffers(
                seq=ref.seq,
                first_offset=found.base_offset,
                next_offset=found.next_offset,
                next_step="give each new batch its own number or key",
            )

    def on_batch(self, ref: ProducerRef, batch: AppendedBatch, crc: int) -> None:
        """Take note of an appended batch, for which `find` returned None: now, or when its block
        was written.
        """
        if ref.epoch >= NAMED_EPOCH_MIN:
            self._on_named_batch(ref, batch, crc)
            return
        producers = self._producers
        found = producers.get(ref.id)
        if found is None:
            self._take(ref.id)  # Drops a named producer that an earlier owner had forgotten.
            lone = producers[ref.id] = _LONE.pack(ref.epoch, ref.seq, crc, _HAS_CRC, *batch)
            self._batches += 1
            self._grow(_memory_bytes(ref.id, lone))
        else:
            producers.move_to_end(ref.id)
            known = found if isinstance(found, _Producer) else _opened(found)
            before = after = known.count
            if ref.seq == 0:  # A new epoch, or a new beginning after the producer was forgotten.
                del known.batches[:]
                after = 0
            elif (surplus := before + 1 - self._window_batches) > 0:
                del known.batches[: surplus * _NUMBERS]
                after -= surplus
            known.epoch, known.last_seq, known.last_crc = ref.epoch, ref.seq, crc
            known.batches.extend(batch)
            _count(known, batch)
            after += 1
            self._batches += after - before
            if known is not found:  # The producer had one batch until now.
                grown = _memory_bytes(ref.id, known) - _memory_bytes(ref.id, found)
                producers[ref.id] = known
                self._grow(grown)
            elif after != before:
                self._grow(_BATCH_BYTES * (after - before))
        if (
            batch.timestamp_us > self._stale_after_us
            or len(self) > PRODUCERS_MAX
            or self._batches > BATCHES_MAX
        ):
            self._forget(batch.timestamp_us)

    # --- Named producers ----------------------------------------------------------------------

    def begin(self, producer_id: bytes, now_us: int) -> BegunEpoch:
        """The next epoch of a named producer (LS15). This changes nothing; call `on_begun` once the epoch is
        in the log.

        Raises `InvalidRequest` if there is no further epoch.
        """
        known = self._known(producer_id)
        epoch = max(now_us // 1_000_000, NAMED_EPOCH_MIN)
        if known is None or self._is_stale(known, now_us):
            return BegunEpoch(ProducerBegun(producer_id, epoch, is_new=True), 0, None)
        epoch = max(epoch, known.epoch + 1)
        if epoch > PRODUCER_EPOCH_MAX:
            raise InvalidRequest(
                f"the producer has used epoch {known.epoch}, the highest possible epoch",
                next_step="choose another name",
            )
        base, end = known.batches[-_NUMBERS], known.batches[1 - _NUMBERS]
        return BegunEpoch(
            ProducerBegun(producer_id, epoch, is_new=False),
            None if known.records == _NOT_KNOWN else known.records,
            Offset(end - 1) if end > base else None,
        )

    def on_begun(self, begun: ProducerBegun, tail: Offset, timestamp_us: int) -> None:
        """Take note that an epoch is in the log: blocks of an older epoch are refused, and batch 0 is next."""
        known = self._take(begun.producer)
        if known is None or begun.is_new:
            nothing = array("q", (tail, tail, timestamp_us, NO_LEDGER, NO_ENTRY))
            records = 0 if begun.is_new else _NOT_KNOWN
            known = _Producer(begun.epoch, -1, None, nothing, records)
        known.epoch, known.last_seq, known.last_crc = begun.epoch, -1, None
        known.keep_newest()
        self._put(begun.producer, known)
        self._forget(timestamp_us)

    def _on_named_batch(self, ref: ProducerRef, batch: AppendedBatch, crc: int) -> None:
        known = self._take(ref.id) or _Producer(ref.epoch, -1)
        if ref.seq == 0:
            del known.batches[:]
        elif (surplus := known.count + 1 - self._window_batches) > 0:
            del known.batches[: surplus * _NUMBERS]
        known.epoch, known.last_seq, known.last_crc = ref.epoch, ref.seq, crc
        known.batches.extend(batch)
        _count(known, batch)
        self._put(ref.id, known)
        if (
            batch.timestamp_us > self._stale_after_us
            or len(self) > PRODUCERS_MAX
            or len(self._named) > NAMED_MAX
            or self._batches > BATCHES_MAX
        ):
            self._forget(batch.timestamp_us)

    def _known(self, producer_id: bytes) -> _Producer | None:
        found = self._producers.get(producer_id)
        if found is None:
            return self._named.get(producer_id)
        return _opened(found) if isinstance(found, bytes) else found

    def _take(self, producer_id: bytes) -> _Producer | None:
        """Remove a producer from all tables; returns what was known of it."""
        known = self._known(producer_id)
        if known is not None:
            self._forget_one(producer_id)
        return known

    def _put(self, producer_id: bytes, known: _Producer) -> None:
        """Store a producer as the most recently used one."""
        self._named[producer_id] = known
        self._batches += known.count
        self._named_batches += known.count
        if self._named_batches > _NAMED_BATCHES_MAX:
            self._trim_named()
        self._grow(_memory_bytes(producer_id, known))

    def _trim_named(self) -> None:
        """Keep only the newest batch of the named producers unused the longest, until half of the room is free."""
        for known in self._named.values():
            if self._named_batches <= _NAMED_BATCHES_MAX // 2:
                return
            before = known.count
            known.keep_newest()
            self._batches -= before - known.count
            self._named_batches -= before - known.count
            self._grow(-_BATCH_BYTES * (before - known.count))

    # --- Forgetting ---------------------------------------------------------------------------

    def forget_half(self) -> None:
        """Forget half of the memory, first the unnamed producers unused the longest, then named ones. One
        producer is always kept.
        """
        wanted = self.bytes // 2
        while self.bytes > wanted and len(self) > 1:
            self._forget_one(next(iter(self._producers or self._named)))

    def _forget_one(self, producer_id: bytes) -> None:
        known = self._producers.pop(producer_id, None)
        if known is None:
            known = self._named.pop(producer_id)
            self._named_batches -= known.count
        self._batches -= _opened(known).count
        self._grow(-_memory_bytes(producer_id, known))

    def _grow(self, grown: int) -> None:
        self.bytes += grown
        self.on_grown(grown)

    def on_unlived(self, start_us: int, end_us: int) -> None:
        """Take note that the log had no owner in that time, or that a clock was set: the time does not count
        as silence of a producer."""
        if end_us - start_us >= _UNLIVED_US_MIN:
            self.lived = self.lived.with_gap(start_us, end_us)

    def _is_stale(self, known: _Producer, now_us: int) -> bool:
        since_us = known.last_used_us
        return known.epoch < NAMED_EPOCH_MIN and (
            since_us + self._window_us < now_us
            and self.lived.age_us(since_us, now_us) > self._window_us
        )

    def _forget(self, now_us: int) -> None:
        producers, named = self._producers, self._named
        while len(named) > NAMED_MAX:
            self._forget_one(next(iter(named)))
        self._stale_after_us = now_us + self._window_us
        while producers:
            producer_id, found = next(iter(producers.items()))
            oldest = _opened(found)
            if (
                len(self) <= PRODUCERS_MAX
                and self._batches <= BATCHES_MAX
                and not self._is_stale(oldest, now_us)
            ):
                age_us = self.lived.age_us(oldest.last_used_us, now_us)
                self._stale_after_us = now_us + max(self._window_us - age_us, 0)
                return
            self._forget_one(producer_id)

    # --- Snapshots ----------------------------------------------------------------------------

    def pack(self) -> bytes:
        return b"".join((_COUNT.pack(len(self)), *self._pack_each()))

    def pack_counts(self) -> bytes:
        """The packed record counts that are stored beside a snapshot."""
        counts = bytearray((_COUNTS_VERSION,))
        for place, (_, found) in enumerate(self._in_order()):
            known = _opened(found)
            if known.records != known.remembered:
                counts += _COUNTED.pack(place, known.records)
        return bytes(counts)

    def _in_order(self) -> Iterator[tuple[bytes, bytes | _Producer]]:
        return chain(self._producers.items(), self._named.items())

    def _pack_each(self) -> Iterator[bytes]:
        for producer_id, found in self._in_order():
            known = _opened(found)
            yield bytes((len(producer_id),))
            yield producer_id
            yield _HEAD.pack(known.epoch, known.last_seq, known.count)
            yield struct.pack(f"<{len(known.batches)}q", *known.batches)

    @classmethod
    def unpack(cls, data: Buffer, config: LogConfig = DEFAULT, counts: Buffer = b"") -> Self:
        """Raises `BadMetadata`."""
        found, view, position = cls(config), memoryview(data), _COUNT.size
        try:
            counted = _unpack_counts(counts)
            (count,) = _COUNT.unpack_from(view)
            for place in range(count):
                end = position + 1 + view[position]
                producer_id = bytes(view[position + 1 : end])
                epoch, last_seq, batches = _HEAD.unpack_from(view, end)
                position = end + _HEAD.size
                numbers = struct.unpack_from(f"<{batches * _NUMBERS}q", view, position)
                position += batches * _NUMBERS * 8
                if not batches:
                    raise BadMetadata("a producer in a snapshot has no batch")
                known = _Producer(epoch, last_seq, None, array("q", numbers))
                has_all = bool(counts) or (not epoch and last_seq + 1 == batches)
                known.records = counted.get(place, known.remembered if has_all else _NOT_KNOWN)
                if epoch >= NAMED_EPOCH_MIN:
                    found._put(producer_id, known)
                    continue
                kept: bytes | _Producer = known
                if batches == 1 and known.records in (known.remembered, _NOT_KNOWN):
                    flags = _UNCOUNTED if known.records == _NOT_KNOWN else 0
                    kept = _LONE.pack(epoch, last_seq, 0, flags, *numbers)
                found._producers[producer_id] = kept
                found._batches += batches
                found.bytes += _memory_bytes(producer_id, kept)
        except (struct.error, IndexError) as error:
            raise BadMetadata(f"a snapshot of producers is cut short: {error}") from None
        if position != len(view):
            raise BadMetadata(
                f"{len(view) - position} unexpected bytes follow a snapshot of producers"
            )
        return found


def _count(known: _Producer, batch: AppendedBatch) -> None:
    if known.records != _NOT_KNOWN:
        known.records += batch.next_offset - batch.base_offset


def _unpack_counts(counts: Buffer) -> dict[int, int]:
    """Raises `BadMetadata`, `struct.error`."""
    if not counts:
        return {}
    if counts[0] != _COUNTS_VERSION:
        raise BadMetadata(f"counts of producers have version {counts[0]}, known is 1")
    return dict(_COUNTED.iter_unpack(memoryview(counts)[1:]))


def _nobody(grown: int) -> None:
    """Do nothing: the callback while the producers count towards no budget."""
