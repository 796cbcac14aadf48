"""Rules that choose the next step of a drain from the facts about its bookie.

    WAIT      the bookie is registered as writable: it is not read-only yet, and clients may pick it
    COPY      ledgers name it: they are published as tasks, a bounded number at a time
    VERIFY    the index has no ledger that names it: a complete fresh walk decides
    FAIL      retries cannot copy the remaining ledgers: a person decides

A drain does not fail while anything can still be copied, so that as little as possible is left.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from rollbook.proto.errors import NotEnoughBookies
from rollbook.recovery.core.repair_failures import Failure

# The pauses of this many retries in a row add up to ten minutes, in which a bookie may come back.
ATTEMPTS_WITHOUT_TARGET: Final = 8
_NO_TARGET: Final = NotEnoughBookies.code.reason


class Step(Enum):
    WAIT = "wait"
    COPY = "copy"
    VERIFY = "verify"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class DrainFacts:
    is_writable: bool
    named: int  # Ledgers that name the bookie, according to the index.
    stuck: int  # Ledgers that name the bookie, and whose repair failed finally.


def next_step(facts: DrainFacts) -> Step:
    """Return the next step of a drain (LC4)."""
    if facts.is_writable:
        return Step.WAIT
    if facts.named == 0:
        return Step.VERIFY
    return Step.FAIL if facts.stuck >= facts.named else Step.COPY


def is_final(failure: Failure) -> bool:
    """Return whether a retry can hardly help, because no copy is left or because no bookie can take a copy."""
    if failure.is_unrecoverable:
        return True
    return failure.code == _NO_TARGET and failure.in_a_row >= ATTEMPTS_WITHOUT_TARGET


def is_stuck(failure: Failure, token: str) -> bool:
    """Return whether the failure keeps the drain with this token from ending. A failure from an older drain
    does not count, since a person may have started bookies or restored copies before the retry (RP7).
    """
    return is_final(failure) and failure.counts_for([token])
