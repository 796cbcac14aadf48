"""Words that tests share: what is written, what a reader gets for it, and who is refused."""

import random
from typing import Final

import pytest

from rollbook.proto.errors import AppendUnsettled, LedgerFenced, RollbookError
from tests.interop.puppet import Entry, JavaError, Shape

ALL: Final = Shape(3, 3, 2)
STRIPED: Final = Shape(3, 2, 2)
PAIR: Final = Shape(2, 2, 2)  # Of three bookies: one is left to take over.


def payloads(count: int, size: int) -> list[bytes]:
    chance = random.Random(size)
    return [chance.randbytes(size) for _ in range(count)]


def entries(written: list[bytes]) -> list[Entry]:
    """What a reader gets."""
    found = []
    length = 0
    for entry_id, payload in enumerate(written):
        length += len(payload)
        found.append(Entry(entry_id, length, payload))
    return found


def refused(*names: str) -> pytest.RaisesExc[JavaError]:
    """Around a call that the client must answer with an exception of that name, or of one of these."""

    def is_it(error: JavaError) -> bool:
        assert error.name in names, error
        return True

    return pytest.raises(JavaError, check=is_it)


def java_is_fenced_off() -> pytest.RaisesExc[JavaError]:
    """Around an append of Java's. A third copy of what was confirmed before may meet the fence, too, if its
    bookie is slow: to Java that bookie has failed, for whose place there is no other.
    """
    return refused("BKLedgerFencedException", "BKNotEnoughBookiesException")


def we_are_fenced_off() -> pytest.RaisesExc[RollbookError]:
    """Around an append of ours. A writer that a third copy has notified of the fence takes nothing more."""

    def is_it(error: RollbookError) -> bool:
        told = error.__cause__ if isinstance(error, AppendUnsettled) else error
        assert isinstance(told, LedgerFenced), error
        return True

    return pytest.raises(RollbookError, check=is_it)
