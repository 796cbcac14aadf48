"""Makes bytes durable and reserves space for them, also on systems that lack Linux's calls for this.

macOS has neither `fdatasync` nor `posix_fallocate`, and its `fsync` leaves the bytes in the
disk's own cache: `F_FULLFSYNC` does not. If a file system refuses this, only `fsync` is left.
"""

import fcntl
import os
from typing import Final

_FULL_SYNC: Final[int | None] = getattr(fcntl, "F_FULLFSYNC", None)
_ZEROS: Final = bytes(1024 * 1024)


def sync_data(descriptor: int) -> None:
    """Returns when the written bytes and the file's length would survive a power cut."""
    if hasattr(os, "fdatasync"):
        os.fdatasync(descriptor)
        return
    if _FULL_SYNC is not None:
        try:
            fcntl.fcntl(descriptor, _FULL_SYNC)
        except OSError:
            pass  # Some file systems, such as network file systems, lack this call.
        else:
            return
    os.fsync(descriptor)


def reserve(descriptor: int, position: int, length: int) -> None:
    """Reserves disk space for these bytes. Bytes beyond the file's end become zeros."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, position, length)
        return
    start, end = max(position, os.fstat(descriptor).st_size), position + length
    while start < end:
        start += os.pwrite(descriptor, _ZEROS[: end - start], start)
