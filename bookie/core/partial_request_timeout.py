"""How long a partial request may stall, that is, bring less than 64 KiB more (B7).

Its bytes take memory from others, and only time tells a slow connection from a client that will
never finish. So stalled memory is bounded:

    up to 1 MiB        the whole time that is allowed
    beyond             in proportion less: none costs more than 1 MiB for that time would
    memory is short    a second, the slowest first, until there is room again
"""

from typing import Final

PROGRESS_BYTES: Final = 64 * 1024
LEAST_NS: Final = 1_000_000_000
_FAIR_BYTES: Final = 1024 * 1024


def patience_ns(allowed_ns: int, begun: int, *, is_short: bool) -> int:
    """How long a partial request may stall of which `begun` bytes have arrived."""
    least_ns = min(allowed_ns, LEAST_NS)
    if is_short:
        return least_ns
    return max(least_ns, allowed_ns * _FAIR_BYTES // max(begun, _FAIR_BYTES))
