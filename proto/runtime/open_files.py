"""Limits on the files that one process may have open."""

import resource
from typing import Final

# The share of the open files that connections may use. The server's own files need the rest.
_DOORS_MAX: Final = 0.8


def allow_open_files(wanted: int) -> int:
    """Asks the system for `wanted` open files, and returns how many the process may have.

    The default limit is a thousand, since programs that use `select` cannot handle larger numbers;
    a process may raise it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    return wanted if soft == resource.RLIM_INFINITY else min(soft, wanted)


def door_of(part: float, most: int) -> int:
    """Returns how many connections a listener with this share may have. The limit prevents one
    listener with too many connections from leaving the others, or the server itself, without files.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return most
    return max(1, min(most, int(soft * _DOORS_MAX * part)))
