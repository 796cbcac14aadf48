"""Finds out whether the page cache holds a range of a file, and reads a range completely.

A cached range can be read on the loop; `direct_reads.py` and `file_read_ahead.py` read what is not cached.
"""

import mmap
import os
from typing import Final

from rollbook.proto.runtime.system_calls import cached_pages

_NOWAIT: Final[int | None] = getattr(os, "RWF_NOWAIT", None)
DIRECT_BYTES_MIN: Final = 128 * 1024

# Devices that are known to report uncached data as uncached.
_telling_devices: Final[set[int]] = set()


def probe_page_cache(descriptor: int, position: int, length: int) -> bool:
    """Returns whether the page cache holds both ends of this range, or True if the kernel cannot say.

    It also records which devices report their cached pages correctly.
    """
    if _NOWAIT is None or not length:
        return True
    is_large = length >= DIRECT_BYTES_MIN
    if is_large and _is_surely_absent(descriptor, position, length):
        return False
    byte, at = bytearray(1), position
    try:
        for at in (position, position + length - 1):
            os.preadv(descriptor, [byte], at, _NOWAIT)
    except BlockingIOError:
        if is_large and cached_pages(descriptor, at, 1):  # The read above has cached it.
            _telling_devices.add(os.fstat(descriptor).st_dev)
        return False
    except OSError:
        return True
    return True


def _is_surely_absent(descriptor: int, position: int, length: int) -> bool:
    """Returns whether the page cache surely lacks a part of this range. The check reads no page in,
    since that would cost a disk read.

    A file system on top of another one may not know which pages are cached below it, so a device is
    trusted only after it has reported a cached page.
    """
    cached = cached_pages(descriptor, position, length)
    pages = (position + length - 1) // mmap.PAGESIZE - position // mmap.PAGESIZE + 1
    if cached is None or cached >= pages:
        return False
    return cached > 0 or os.fstat(descriptor).st_dev in _telling_devices


def read_fully(descriptor: int, position: int, length: int) -> bytes:
    found = os.pread(descriptor, length, position)
    if len(found) == length or not found:
        return found
    # This is due to a signal or to the end of the file; only another read shows which.
    parts = [found]
    got = len(found)
    while got < length and (found := os.pread(descriptor, length - got, position + got)):
        parts.append(found)
        got += len(found)
    return b"".join(parts)
