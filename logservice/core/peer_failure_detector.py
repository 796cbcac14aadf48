"""Decides from repeated attempts to connect when a server counts as dead, although it is still registered.

A killed server stays registered until its session runs out, but its machine refuses connections immediately. A
server that has refused connections for half a second counts as dead.

A connection that times out proves nothing: it is not a refusal, and the lease decides.
"""

from typing import Final

REFUSED_NS: Final = 500_000_000
_NEWS_NS: Final = 1_000_000_000  # Refusals farther apart than this are not one series.


class Refusals:
    """The results of repeated attempts to connect to one address."""

    def __init__(self) -> None:
        self._first_ns: int | None = None  # When the present series of refusals began.
        self._last_ns = 0

    def on_refused(self, now_ns: int) -> None:
        if self._first_ns is None or now_ns - self._last_ns > _NEWS_NS:
            self._first_ns = now_ns
        self._last_ns = now_ns

    def on_other(self) -> None:
        """Take note of an attempt that was not refused: the next refusal begins a new series."""
        self._first_ns = None

    @property
    def is_refusing(self) -> bool:
        """Return whether the last attempt was refused."""
        return self._first_ns is not None

    @property
    def is_dead(self) -> bool:
        """Return whether all attempts were refused for half a second."""
        return self._first_ns is not None and self._last_ns - self._first_ns >= REFUSED_NS
