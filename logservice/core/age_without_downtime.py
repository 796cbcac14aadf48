"""The time in which log servers were present. Retention and the memory of producers count only this time.

A wall clock can be set, and a cluster can be off for a month. Neither counts as age of a record or as
silence of a producer. So an age is the wall-clock time between two moments minus the gaps in between, which
are the times without a log server:

    a log        from its owner's last block to the next owner's first one         core/producers.py
    a cluster    when no log server has reported for five minutes                  `Witness`

At most 64 gaps are kept. When there are more, the two oldest become one gap of their total length, which
ends where the later one ended. So an age may be too small, but never too large (LT1).

Packed, little-endian: u32 gaps · for each: i64 start (µs) · i64 end (µs)
"""

import struct
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Self

from rollbook.proto.errors import BadMetadata
from rollbook.proto.ports import Buffer

GAPS_MAX: Final = 64
# A longer time without a report counts as time without servers.
UNWITNESSED_US_MAX: Final = 300 * 1_000_000
# The shortest time between two reports that are written. Larger: fewer writes to the metadata store.
_BEAT_US: Final = 30 * 1_000_000

_COUNT: Final = struct.Struct("<I")
_GAP: Final = struct.Struct("<qq")
_INT64: Final = struct.Struct("<q")


class LivedTimeGap(NamedTuple):
    start_us: int
    end_us: int


@dataclass(frozen=True, slots=True)
class LivedTime:
    gaps: tuple[LivedTimeGap, ...] = ()  # In order, without overlaps.

    def age_us(self, since_us: int, now_us: int) -> int:
        """The part of this time span in which servers were present."""
        unlived = sum(
            max(0, min(gap.end_us, now_us) - max(gap.start_us, since_us)) for gap in self.gaps
        )
        return now_us - since_us - unlived

    def with_gap(self, start_us: int, end_us: int) -> Self:
        gaps = (*self.gaps, LivedTimeGap(start_us, end_us))
        if len(gaps) > GAPS_MAX:
            first, second, *rest = gaps
            length_us = first.end_us - first.start_us + second.end_us - second.start_us
            gaps = (LivedTimeGap(second.end_us - length_us, second.end_us), *rest)
        return replace(self, gaps=gaps)

    def pack(self) -> bytes:
        return b"".join((_COUNT.pack(len(self.gaps)), *(_GAP.pack(*gap) for gap in self.gaps)))

    @classmethod
    def unpack(cls, data: Buffer) -> Self:
        """The lived time in these bytes. Raises `BadMetadata`."""
        try:
            (count,) = _COUNT.unpack_from(data)
            if len(data) != _COUNT.size + count * _GAP.size or count > GAPS_MAX:
                raise BadMetadata(f"lived time with {count} gaps has {len(data)} bytes")
            return cls(
                tuple(map(LivedTimeGap._make, _GAP.iter_unpack(memoryview(data)[_COUNT.size :])))
            )
        except struct.error as error:
            raise BadMetadata(f"lived time is cut short: {error}") from None


NO_GAPS: Final = LivedTime()


@dataclass(frozen=True, slots=True)
class Witness:
    """The time in which a cluster had log servers."""

    last_us: int  # When a log server last reported.
    lived: LivedTime = NO_GAPS

    def is_close(self, now_us: int) -> bool:
        """Return whether a server was present until `now_us`. If not, nothing expires before the next report."""
        return now_us <= self.last_us + UNWITNESSED_US_MAX

    def on_beat(self, now_us: int) -> "Witness":
        """The witness after a report at `now_us`; the same object if there is nothing to write."""
        if now_us < self.last_us + _BEAT_US:
            return self
        if self.is_close(now_us):
            return replace(self, last_us=now_us)
        return Witness(now_us, self.lived.with_gap(self.last_us, now_us))

    def pack(self) -> bytes:
        return _INT64.pack(self.last_us) + self.lived.pack()

    @classmethod
    def unpack(cls, data: Buffer) -> "Witness":
        """The witness in these bytes. Raises `BadMetadata`."""
        if len(data) < _INT64.size:
            raise BadMetadata("the last report of a log server is cut short")
        (last_us,) = _INT64.unpack_from(data)
        return cls(last_us, LivedTime.unpack(memoryview(data)[_INT64.size :]))
