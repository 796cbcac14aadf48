"""A segment with fewer bookies than its log wants, made while no full ensemble can be had (LS13).

The log's ack quorum is what an ack promises, and it never shrinks. Only the copies beyond it are
given up: the new ledger has as many bookies as are available, and its metadata says so, so readers,
recovery and re-replication treat it as any other ledger.
"""

from typing import Final

from rollbook.proto.quorum import Quorum

FULL_ENSEMBLE: Final = "full ensemble"  # Why the segment after a degraded one was begun.


def degraded_quorum(wanted: Quorum, usable: int) -> Quorum | None:
    """The quorum of a ledger on `usable` bookies. None if they suffice for `wanted`, or if there are
    fewer of them than its ack quorum.
    """
    if not wanted.ack <= usable < wanted.ensemble:
        return None
    return Quorum(ensemble=usable, write=min(wanted.write, usable), ack=wanted.ack)


def degraded_to(wanted: Quorum, made: Quorum) -> int:
    """The bookies of a ledger that was made with fewer than wanted; 0 if it has all of them."""
    return made.ensemble if made.ensemble < wanted.ensemble else 0
