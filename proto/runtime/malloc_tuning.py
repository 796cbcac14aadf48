"""The C library's treatment of large freed blocks of a process's memory.

By default glibc returns them to the system, and the next one of that size is fresh pages again:
touching these costs eight times as much as copying into memory in use. Every answer of a
megabyte paid for it several times, a fifth of all that reading costs a bookie.
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
    import ctypes  # Clients have no use for it, and would wait for it as they start.

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)


@cache
def keep_pieces_of_messages() -> None:
    """For a library, which must not change settings: glibc adapts to the largest block that was freed."""
    bytearray(_LESSON_BYTES)
