"""Describes errors of the system for people, without numbers and without the words that asyncio
puts around them.
"""

import errno
import os
import socket
import ssl
from typing import Final

MAKE_ROOM: Final = "make room on that disk"


def describe_error(error: BaseException) -> str:
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError | socket.gaierror):
        if error.errno:
            return os.strerror(error.errno)
    elif isinstance(error, socket.gaierror):
        return error.strerror or str(error)
    return str(error) or type(error).__name__


def is_full(error: BaseException) -> bool:
    """Returns whether a disk, or a user's quota on it, is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
