"""A segment that is written to fewer bookies than its log wants (LS13, LS16).

    made with too few     no full ensemble was available when the segment began
    with vacant slots     a bookie of the ensemble failed or has left, and no other bookie can take its slot in
                          this ledger. A bookie that was formatted since the ledger began takes entries of new
                          ledgers only

An ack promises as many copies as the log's ack quorum, which never shrinks. A degraded segment lacks only
copies beyond the ack quorum. A ledger that is made with too few bookies has the smaller quorum in its
metadata, so readers, recovery and re-replication treat it as any other ledger.

A ledger never gets more slots. So in both cases the log begins a new segment as soon as enough bookies for a
better one take new ledgers. Repair makes the missing copies of a closed segment.
"""

from typing import Final, NamedTuple

from rollbook.proto.quorum import Quorum

# The reasons for beginning a new segment after a degraded one.
FULL_ENSEMBLE: Final = "full ensemble"  # The segment was made with too few bookies.
# The segment was made with too few bookies for all copies of an entry; the next one needs enough bookies for all
# copies, but no full ensemble.
ALL_COPIES: Final = "all copies"
VACANT_SLOT: Final = "vacant seat"  # A slot was vacant for `VACANT_S`. The reason is stored.

# How long slots must be vacant before the log begins a new segment for them: longer than a bookie takes to
# restart, and as long as a writer waits before it gives up a slot (WR11). Larger: more records lack a copy.
# Smaller: the restart of a bookie rolls all logs in which it has a slot.
VACANT_S: Final = 15.0
# The wait after a first attempt if the segment was made with too few bookies; each further attempt doubles it.
_AGAIN_S: Final = 1.0
_AGAIN_S_MAX: Final = 600.0


def degraded_quorum(wanted: Quorum, usable: int) -> Quorum | None:
    """The quorum of a ledger on `usable` bookies. Returns None if these are enough for `wanted`, or fewer
    than its ack quorum.
    """
    if not wanted.ack <= usable < wanted.ensemble:
        return None
    return Quorum(ensemble=usable, write=min(wanted.write, usable), ack=wanted.ack)


def degraded_to(wanted: Quorum, made: Quorum) -> int:
    """The number of bookies of a ledger that was made with fewer bookies than wanted; 0 for any other ledger."""
    return made.ensemble if made.ensemble < wanted.ensemble else 0


def bookies_for_better(wanted: Quorum, made: Quorum, reason: str) -> int:
    """The number of bookies that must take new ledgers for a new segment to be better than the present one.

    It is the write quorum if entries lack copies now; otherwise the full ensemble.
    """
    lacks_copies = reason == VACANT_SLOT or made.write < wanted.write
    return wanted.write if lacks_copies else wanted.ensemble


class BetterSegment(NamedTuple):
    """The segment to begin after a degraded one."""

    reason: str
    bookies_min: int  # The segment is begun only if this many bookies take new ledgers.


def better_segment(
    wanted: Quorum, made: Quorum, reason: str, *, allows_degraded: bool
) -> BetterSegment:
    """The segment to begin after one that was made with the quorum `made` and is left for `reason`.

    `allows_degraded`: whether the log may have segments with fewer bookies than it wants; otherwise only a full
    ensemble is better.
    """
    bookies_min = bookies_for_better(wanted, made, reason) if allows_degraded else wanted.ensemble
    if reason == FULL_ENSEMBLE and bookies_min < wanted.ensemble:
        reason = ALL_COPIES
    return BetterSegment(reason, bookies_min)


class RollToMoreBookies:
    """Decides when the owner of a degraded segment begins a new one, if enough bookies take new ledgers (LS16).

    The owner asks every one or two seconds while the segment is degraded. Vacant slots are a reason
    `VACANT_S` after the first slot became vacant. This time starts again only after all slots were taken
    for `VACANT_S` or the latest wait, whichever is longer. If a new segment loses a slot, too (for example
    because a bookie responds but takes no entries), or cannot be begun, each further attempt waits twice as
    long as the one before.
    """

    def __init__(self) -> None:
        self.attempts = 0  # Attempts since all slots were last taken for long enough.
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
            return VACANT_SLOT
        return FULL_ENSEMBLE if is_made_short else None

    @property
    def is_over(self) -> bool:
        """Return whether there is nothing to watch until a slot becomes vacant. If the segment was made
        with too few bookies, the caller continues to watch it.
        """
        return self._vacant_since_s is None and self.attempts == 0

    def on_attempt(self, now_s: float, reason: str) -> None:
        """Take note of an attempt to begin a segment, successful or not."""
        first_s = VACANT_S if reason == VACANT_SLOT else _AGAIN_S
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
