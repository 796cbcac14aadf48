"""The adds that a bookie receives, and its replies, a chunk at a time.

Consecutive add frames are journaled as received (W3), so nothing is copied out of them. Their
entries are described by columns, one set for each group of adds that agree in everything except the
entry. A group is checked as a whole, with one look-up of its ledger and one comparison of its key. There is no
object for an entry. For consecutive entries of one size, a range replaces a column.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Final, NamedTuple, cast

from rollbook.proto.errors import EntryTooLarge
from rollbook.proto.ids import EntryId, LedgerId
from rollbook.proto.wire.digest import LAC_AT, LEDGER_KEY_BYTES, LedgerDigest, pack_entry_header
from rollbook.proto.wire.frame_columns import unpack_int64s
from rollbook.proto.wire.frames import LENGTH_BYTES, length_at
from rollbook.proto.wire.messages import Failure

_PACKED_ALIKE_MIN: Final = 16  # With fewer adds, packing them together costs more than it saves.

WRITERS_MAX: Final = 16_384  # The number of ledgers for which the constant part of adds is cached.
RUN_MIN: Final = 32  # With fewer adds, reading them by columns costs more than it saves.
RUN_MAX: Final = 4096  # No chunk holds more adds than this, unless they are empty.
# This many adds are compared first; the others follow only if all of these are alike.
_FEW: Final = 128

WriterFields = tuple[LedgerId, bytes, bool, bool, bool]
"""The fields of an `AddGroup` before its columns."""


class AddColumns(NamedTuple):
    """The columns of adds of one size that follow one another with consecutive entries."""

    entry_ids: Sequence[EntryId]
    lacs: Sequence[EntryId]
    starts: range
    ends: range


def count_run(count_like: Callable[[int], int], rows: int) -> int:
    """Returns how many of `rows` frames are like the first; `count_like(n)` counts them among the
    first `n`.

    A few frames are compared first, and the others only if all of these few are alike. Otherwise a
    hostile writer could cause all later frames to be compared again for each frame.
    """
    few = min(_FEW, rows)
    found = count_like(few)
    return count_like(rows) if found == few < rows else found


def run_at(
    buffer: bytes, entry_start: int, entry_end: int, size: int, rows: int, entry_id: int
) -> AddColumns:
    """Returns the columns of `rows` adds of `size` bytes that are known to be alike. The entry of
    the first add is at `entry_start`.
    """
    by = rows * size
    return AddColumns(
        cast(Sequence[EntryId], range(entry_id, entry_id + rows)),
        cast(Sequence[EntryId], unpack_int64s(buffer, entry_start + LAC_AT, size, rows)),
        range(entry_start, entry_start + by, size),
        range(entry_end, entry_end + by, size),
    )


@dataclass(slots=True)
class AddGroup(ABC):
    """Adds of one writer to one ledger, as columns: position `i` of each column belongs to the same entry."""

    ledger_id: LedgerId
    ledger_key: bytes
    is_recovery: bool  # Adds of a recovery pass a fence.
    is_high_priority: bool
    is_sync_deferred: bool  # The adds may be answered before they are durable.
    entry_ids: Sequence[EntryId] = ()
    lacs: Sequence[EntryId] = ()
    starts: Sequence[int] = ()  # The entries' positions in the buffer.
    ends: Sequence[int] = ()

    @property
    def last_add_confirmed(self) -> EntryId:
        """The highest LAC that any of the entries names."""
        return max(self.lacs)

    @abstractmethod
    def pack_replies(self, error: Failure = None) -> bytes:
        """Packs the replies to all adds, with one result for all of them, in their protocol version."""


@dataclass(slots=True)
class Adds:
    """Consecutive whole add frames of one protocol version, at `buffer[start:end]`."""

    buffer: bytes
    start: int
    end: int
    groups: Sequence[AddGroup]

    @property
    def frames(self) -> memoryview:
        return memoryview(self.buffer)[self.start : self.end]

    @property
    def count(self) -> int:
        return sum(len(group.entry_ids) for group in self.groups)

    def frames_of(self, groups: Sequence[AddGroup]) -> bytes:
        """Returns only the frames of these groups, in the order in which they came.

        It is used if one of the adds is refused, since a refused add must not reach the journal.
        """
        kept: list[bytes] = []
        position = self.start
        for start in sorted(start for group in groups for start in group.starts):
            while (end := position + LENGTH_BYTES + length_at(self.buffer, position)[0]) <= start:
                position = end
            kept.append(self.buffer[position:end])
            position = end
        return b"".join(kept)


class AddReplies(NamedTuple):
    """Equal responses of one bookie to adds of one ledger."""

    error: Failure
    ledger_id: LedgerId
    entry_ids: Sequence[EntryId]  # A range, if there are many entries and they are consecutive.


ENTRY_BYTES_SLACK: Final = 512
"""An entry must be this many bytes below the frame limit: in either protocol, the reply to a read
has more bytes around an entry than its add had.
"""


class AddPacker(ABC):
    """Builds the adds of one writer to one ledger. Each frame is built once, and sent to all bookies.

    If they are adds of a recovery, bookies accept them even for a fenced ledger.
    """

    def __init__(self, ledger_key: bytes, digest: LedgerDigest, frame_bytes_max: int) -> None:
        assert len(ledger_key) == LEDGER_KEY_BYTES
        self._ledger_id = digest.ledger_id
        self._pack_before_payload = digest.pack_before_payload
        self._digests = digest.digests
        self.payload_bytes_max = frame_bytes_max - ENTRY_BYTES_SLACK - digest.overhead_bytes

    @abstractmethod
    def pack(
        self,
        entry_id: EntryId,
        last_add_confirmed: EntryId,
        ledger_length: int,
        payload: bytes,
    ) -> bytes:
        """Returns the frame of an add, with the entry's digest. Raises `EntryTooLarge`."""

    def pack_all(
        self,
        first_entry: EntryId,
        last_add_confirmed: EntryId,
        ledger_lengths: Sequence[int],
        payloads: Sequence[bytes],
    ) -> list[bytes]:
        """Returns the frames of consecutive entries. If there are many, all of one size, each frame costs half
        as much.
        """
        entry_ids = range(first_entry, first_entry + len(payloads))
        heads = None
        if len(payloads) >= _PACKED_ALIKE_MIN and len(set(map(len, payloads))) == 1:
            if len(payloads[0]) > self.payload_bytes_max:
                raise self._too_large(payloads[0])
            heads = self._pack_heads(first_entry, len(payloads), len(payloads[0]))
        if heads is not None:
            ids = repeat(self._ledger_id), entry_ids, repeat(last_add_confirmed)
            headers = [*map(pack_entry_header, *ids, ledger_lengths)]
            digests = self._digests(headers, payloads)
            return [*map(b"".join, zip(heads, headers, digests, payloads, strict=True))]
        pack = self.pack
        return [
            pack(EntryId(entry_id), last_add_confirmed, length, payload)
            for entry_id, length, payload in zip(entry_ids, ledger_lengths, payloads, strict=True)
        ]

    @abstractmethod
    def _pack_heads(
        self, first_entry: EntryId, count: int, payload_bytes: int
    ) -> Iterable[bytes] | None:
        """Returns the bytes before the entry of each frame, or None if the frames are not all of one shape."""

    def _too_large(self, payload: bytes) -> EntryTooLarge:
        return EntryTooLarge(
            f"a payload of {len(payload)} bytes is over the limit of {self.payload_bytes_max}"
        )
