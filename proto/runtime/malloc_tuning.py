"""Sets whether the C library keeps large freed blocks of memory.

By default glibc returns them to the system, and the next block of that size gets fresh pages:
touching these costs eight times as much as copying into memory in use. A response of a megabyte
paid this cost several times: a fifth of a bookie's total cost of reading.
"""

from functools import cache
from typing import Final

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # Parameter numbers of `mallopt`.
_KEPT_BYTES: Final = 64 * 1024 * 1024  # Free memory that is kept at the end of the heap, at most.
# Larger blocks always come from the system. The most allowed.
_LARGE_BYTES: Final = 32 * 1024 * 1024
# Far above a message of ours, and gRPC's copies of it.
_LESSON_BYTES: Final = 4 * 1024 * 1024


def keep_freed_memory() -> None:
    """Makes this process keep freed memory; without glibc it does nothing."""
    import ctypes  # Clients do not need it, and importing it would delay their start.

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)


@cache
def keep_pieces_of_messages() -> None:
    """For a library, which must not change settings: glibc adapts to the largest block that was freed."""
    bytearray(_LESSON_BYTES)
