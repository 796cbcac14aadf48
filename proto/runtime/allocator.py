"""What the C library does with large pieces of memory that a server has let go of.

Left alone, glibc gives them back to the system, and the next one of that size is fresh pages again: to
touch these costs eight times as much as to copy into memory that is there. Every answer of a megabyte
paid for it several times, a fifth of all that reading costs a bookie.
"""

import ctypes
from typing import Final

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # As `mallopt` knows them.
_KEPT_BYTES: Final = 64 * 1024 * 1024  # At most, of what is free at the end of the heap.
# From here on pieces are the system's, always. The most allowed.
_LARGE_BYTES: Final = 32 * 1024 * 1024


def keep_freed_memory() -> None:
    """Of this process; elsewhere than on glibc it does nothing."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
