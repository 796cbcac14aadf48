"""What the system lets one process have."""

import resource


def allow_open_files(wanted: int) -> int:
    """Asks for as many as that; returns how many it may have.

    By default it is a thousand, with leave to take more: programs that use `select` bear no larger numbers.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    return wanted if soft == resource.RLIM_INFINITY else min(soft, wanted)
