"""The open files that the system allows one process."""

import resource
from typing import Final

_DOORS_MAX: Final = 0.8  # Connections' share of all files. The server itself opens the rest.


def allow_open_files(wanted: int) -> int:
    """Asks the system for `wanted` open files; returns how many the process may have.

    By default it is a thousand, and may be raised: programs that use `select` cannot handle larger
    numbers.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    return wanted if soft == resource.RLIM_INFINITY else min(soft, wanted)


def door_of(part: float, most: int) -> int:
    """Returns how many connections a listener with this share may have, so that too many at one listener do not
    leave the others, or the server itself, without files.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return most
    return max(1, min(most, int(soft * _DOORS_MAX * part)))
