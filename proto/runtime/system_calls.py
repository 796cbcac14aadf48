"""Linux system calls for which Python has no function."""

import ctypes
import sys
from collections.abc import Callable
from typing import Final

# The number of this call on all types of machines; Linux has had it since 6.5.
_CACHESTAT: Final = 451


def _find_call() -> Callable[..., int] | None:
    """Finds `call(number, up to five numbers or addresses)`. The call returns a number below zero if it fails.

    It does not release the interpreter, so use it only for system calls that do not block.
    """
    if sys.platform != "linux" or sys.maxsize < 2**32:
        return None
    found = getattr(ctypes.PyDLL(None), "syscall", None)
    if found is None:
        return None
    found.restype = ctypes.c_long
    found.argtypes = [ctypes.c_long] * 6
    call: Callable[..., int] = found
    return call


call: Final = _find_call()


class _FileRange(ctypes.Structure):
    _fields_ = (("position", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Pages(ctypes.Structure):
    _fields_ = (
        ("cached", ctypes.c_uint64),
        ("dirty", ctypes.c_uint64),
        ("being_written", ctypes.c_uint64),
        ("evicted", ctypes.c_uint64),
        ("evicted_lately", ctypes.c_uint64),
    )


def cached_pages(descriptor: int, position: int, length: int) -> int | None:
    """Returns how many pages of the range are cached or being read, or None if the system cannot
    say. It reads no pages in.
    """
    if call is None:
        return None
    asked, found = _FileRange(position, length), _Pages()
    addresses = ctypes.addressof(asked), ctypes.addressof(found)
    if call(_CACHESTAT, descriptor, *addresses, 0, 0) < 0:
        return None
    pages: int = found.cached
    return pages
