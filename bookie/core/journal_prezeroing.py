"""Decides how far ahead of its end a journal file is written with zeros.

The first write to a block that was only allocated changes the file system's metadata, and the sync
must commit that change, too: for a small write this takes up to half of the sync. Therefore a small
write to a fresh block also writes zeros to a whole stretch after it, and later writes find blocks
that were written before. A large write gains nothing from zeros, which would only make it take
longer.

The zeros change only the speed: unwritten blocks read as zeros, too.
"""

from functools import cache
from typing import Final

from rollbook.proto.ports import Buffer

# A write that is larger than this share of a stretch gets no zeros, because they would cost as much
# as they save.
_LARGE_SHARE: Final = 8


class ZerosAhead:
    def __init__(self, end: int, allocated_bytes: int, stretch_bytes: int) -> None:
        """The file has been written up to `end`. Zeros are added in stretches of `stretch_bytes`;
        0: never."""
        self._end = end
        self._allocated_bytes = allocated_bytes
        self._stretch_bytes = stretch_bytes

    def takes_none(self, position: int, end: int) -> bool:
        """Returns whether the write from `position` to `end` is made without zeros."""
        is_large = end - position > self._stretch_bytes // _LARGE_SHARE
        return end <= self._end or is_large or not self._stretch_bytes

    def behind(self, position: int, end: int) -> Buffer:
        """Returns the zeros to add after the write from `position` to `end`."""
        if self.takes_none(position, end):
            return b""
        stretches = -(-end // self._stretch_bytes)
        self._end = max(end, min(stretches * self._stretch_bytes, self._allocated_bytes))
        return memoryview(_zeros(self._stretch_bytes))[: self._end - end]


@cache
def _zeros(length: int) -> bytes:
    return bytes(length)
