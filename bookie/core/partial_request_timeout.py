"""Decides how long a partial request may stall, that is, may receive less than 64 KiB more (B7).

The bytes of such a request take memory from other clients, and only time shows whether a connection
is slow or its client will never finish. Therefore the time depends on the memory that the request
holds:

    up to 1 MiB        the full time that is allowed
    above 1 MiB        proportionally less, so that size times time is at most that of 1 MiB
    memory is short    one second, and the slowest request is closed first, until there is room again
"""

from typing import Final

_PROGRESS_BYTES: Final = 64 * 1024
LEAST_NS: Final = 1_000_000_000
_FAIR_BYTES: Final = 1024 * 1024


def patience_ns(allowed_ns: int, begun: int, *, is_short: bool) -> int:
    """Returns how long a partial request may stall after `begun` bytes of it have arrived."""
    least_ns = min(allowed_ns, LEAST_NS)
    if is_short:
        return least_ns
    return max(least_ns, allowed_ns * _FAIR_BYTES // max(begun, _FAIR_BYTES))


class PartialRequestProgress:
    """Decides when the deadline of a partial request restarts."""

    __slots__ = ("_begun_when_timed",)

    def __init__(self) -> None:
        # The bytes of the partial request that had arrived when its deadline started.
        self._begun_when_timed = 0

    def try_restart(self, begun: int, *, is_new: bool) -> bool:
        """Returns whether the deadline restarts with the chunk that brought the request to `begun`
        bytes. `is_new` says that the request began in this chunk."""
        progress = begun if is_new else begun - self._begun_when_timed
        if progress < begun and progress < _PROGRESS_BYTES:
            return False
        self._begun_when_timed = begun
        return True
