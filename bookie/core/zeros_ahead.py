"""Zeros that a write takes along behind it, over what is allocated and still blank.

A file's blocks are allocated before it gets a record, so that no write finds the disk full. But the first
write to such a block also has to tell the file system that something lies there, and its sync waits for
that, too: a third longer for writes of 10 or 20 KiB. Blocks that were written before, with zeros, are
without that. So one write in a dozen or more takes along zeros for those that follow it, and they are
quick. What a reader finds is the same whether they reach the disk or not.

Only where that pays. A write within one block comes to a new one but seldom; one of many blocks waits for
the disk, and zeros would be as much again for that to do.
"""

from typing import Final

_BLOCK_BYTES: Final = 4096
_WRITE_BYTES_MAX: Final = 32 * 1024
ZEROED_BYTES: Final = 256 * 1024


class ZerosAhead:
    """Of one file, whose writes follow one another."""

    def __init__(self, file_bytes: int) -> None:
        self._file_bytes = file_bytes
        self._zeroed = 0  # Up to where zeros have been written.

    def is_due(self, start: int, end: int) -> bool:
        """Whether a write from here to there takes zeros along."""
        return (
            _BLOCK_BYTES < end - start <= _WRITE_BYTES_MAX and self._zeroed < end < self._file_bytes
        )

    def take(self, start: int, end: int) -> int:
        """How many bytes of them this write takes along."""
        if not self.is_due(start, end):
            return 0
        self._zeroed = min(end + ZEROED_BYTES, self._file_bytes)
        return self._zeroed - end
