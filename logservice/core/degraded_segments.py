"""A segment that is written to fewer bookies than its log wants (LS13, LS16).

    made with too few     no full ensemble could be had when it began
    with vacant seats     a member failed, or has gone, and no other bookie can take its seat in this ledger: one
                          that was formatted since takes the entries of new ledgers only

The log's ack quorum is what an ack promises, and it never shrinks. Only the copies beyond it are
given up: a ledger that is made with too few bookies says so in its metadata, so readers,
recovery and re-replication treat it as any other ledger.

No ledger gets more seats, so in both cases the log begins a new segment as soon as enough bookies for a better one
take new ledgers. Repair makes the missing copies of a closed segment.
"""

from typing import Final, NamedTuple

from rollbook.proto.quorum import Quorum

# Why the segment after a degraded one was begun.
FULL_ENSEMBLE: Final = "full ensemble"  # The segment was made with too few bookies.
# The segment was made with too few bookies; no full ensemble is available, but enough bookies for
# all copies are.
ALL_COPIES: Final = "all copies"
VACANT_SEAT: Final = "vacant seat"  # The segment lost a bookie.

# A seat is vacant for longer than a restart of its bookie takes, as for a writer that leaves a seat
# (WR11). Larger: more records lack a copy. Smaller: a restart rolls all logs.
VACANT_S: Final = 15.0
_AGAIN_S: Final = 1.0  # The wait after a first failed attempt; each further one doubles it.
_AGAIN_S_MAX: Final = 600.0


def degraded_quorum(wanted: Quorum, usable: int) -> Quorum | None:
    """The quorum of a ledger on `usable` bookies. Returns None if they suffice for `wanted`, or if they are
    fewer than its ack quorum.
    """
    if not wanted.ack <= usable < wanted.ensemble:
        return None
    return Quorum(ensemble=usable, write=min(wanted.write, usable), ack=wanted.ack)


def degraded_to(wanted: Quorum, made: Quorum) -> int:
    """The number of bookies of a ledger that was made with fewer than wanted; 0 if it has all of them."""
    return made.ensemble if made.ensemble < wanted.ensemble else 0


def bookies_for_better(wanted: Quorum, made: Quorum, reason: str) -> int:
    """The number of bookies that must take new ledgers for a new segment to be better than the present one.

    As many as an entry has copies, if entries lack copies now; otherwise it is about the rest of the ensemble.
    """
    lacks_copies = reason == VACANT_SEAT or made.write < wanted.write
    return wanted.write if lacks_copies else wanted.ensemble


class BetterSegment(NamedTuple):
    """The segment to begin after a degraded one."""

    reason: str
    bookies_min: int  # It is begun only if this many bookies take new ledgers.


def better_segment(
    wanted: Quorum, made: Quorum, reason: str, *, allows_degraded: bool
) -> BetterSegment:
    """`reason`: why the present segment, made with the quorum `made`, is left. `allows_degraded`: whether the
    log may have segments with fewer bookies than it wants; otherwise only a full ensemble is better.
    """
    bookies_min = bookies_for_better(wanted, made, reason) if allows_degraded else wanted.ensemble
    if reason == FULL_ENSEMBLE and bookies_min < wanted.ensemble:
        reason = ALL_COPIES
    return BetterSegment(reason, bookies_min)


class RollToMoreBookies:
    """When the owner of a degraded segment begins a new one, if enough bookies take new ledgers (LS16).

    It is asked about every second while the segment is degraded. Vacant seats count once they have been vacant for
    `VACANT_S`; a shorter return of the member does not end that. If a new segment loses a seat, too (to a bookie
    that responds and takes no entries), or cannot be begun, each further attempt waits twice as long as the last.
    """

    def __init__(self) -> None:
        self.attempts = 0  # Attempts since the segment last had all its seats for long enough.
        self._wait_s = 0.0  # How long to wait after the latest attempt.
        self._not_before_s = 0.0
        self._vacant_since_s: float | None = None
        self._whole_since_s: float | None = None

    def reason_to_roll(self, now_s: float, *, is_made_short: bool, vacant: int) -> str | None:
        if vacant:
            self._on_vacant(now_s)
        elif not is_made_short:
            self._on_whole(now_s)
        if now_s < self._not_before_s:
            return None
        since_s = self._vacant_since_s
        if vacant and since_s is not None and now_s >= since_s + VACANT_S:
            return VACANT_SEAT
        return FULL_ENSEMBLE if is_made_short else None

    @property
    def is_over(self) -> bool:
        """Return whether nothing has to be watched before a seat is vacant. The caller continues to watch
        if the segment was made with too few bookies.
        """
        return self._vacant_since_s is None and self.attempts == 0

    def on_attempt(self, now_s: float, reason: str) -> None:
        """Take note of an attempt to begin a segment, with or without success."""
        first_s = VACANT_S if reason == VACANT_SEAT else _AGAIN_S
        self._wait_s = min(first_s * 2.0**self.attempts, _AGAIN_S_MAX)
        self._not_before_s = now_s + self._wait_s
        self.attempts += 1

    def _on_vacant(self, now_s: float) -> None:
        self._whole_since_s = None
        if self._vacant_since_s is None:
            self._vacant_since_s = now_s

    def _on_whole(self, now_s: float) -> None:
        if self._whole_since_s is None:
            self._whole_since_s = now_s
        if now_s >= self._whole_since_s + max(VACANT_S, self._wait_s):
            self.attempts, self._wait_s, self._vacant_since_s = 0, 0.0, None
