"""Sets whether the C library keeps large freed blocks of memory.

By default glibc returns these blocks to the system, and the next block of that size gets new pages.
Touching new pages costs eight times as much as copying into memory that is in use. A response of a
megabyte paid this cost several times, which was a fifth of a bookie's total cost of reading.
"""

from functools import cache
from typing import Final

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # The numbers of two parameters of `mallopt`.
# At most this much free memory is kept at the end of the heap.
_KEPT_BYTES: Final = 64 * 1024 * 1024
# Larger blocks always come from the system. No higher value is allowed.
_LARGE_BYTES: Final = 32 * 1024 * 1024
# This is far above the size of a message and gRPC's copies of it.
_LESSON_BYTES: Final = 4 * 1024 * 1024


def keep_freed_memory() -> None:
    """Makes this process keep freed memory. Without glibc it does nothing."""
    import ctypes  # Clients do not need ctypes, and importing it would delay their start.

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)


@cache
def keep_pieces_of_messages() -> None:
    """Makes glibc keep freed memory without a change of its settings, which belong to the program
    that uses this library: glibc adapts to the largest block that was freed.
    """
    bytearray(_LESSON_BYTES)
