"""Helpers that tests share: payloads, expected entries and expected exceptions."""

import random
from typing import Final

import pytest

from rollbook.proto.errors import AppendUnsettled, LedgerFenced, RollbookError
from tests.interop.puppet import Entry, JavaError, Shape

ALL: Final = Shape(3, 3, 2)
STRIPED: Final = Shape(3, 2, 2)
PAIR: Final = Shape(2, 2, 2)  # Leaves one of three bookies to replace another.


def payloads(count: int, size: int) -> list[bytes]:
    chance = random.Random(size)
    return [chance.randbytes(size) for _ in range(count)]


def entries(written: list[bytes]) -> list[Entry]:
    """The entries that a reader gets."""
    found = []
    length = 0
    for entry_id, payload in enumerate(written):
        length += len(payload)
        found.append(Entry(entry_id, length, payload))
    return found


def refused(*names: str) -> pytest.RaisesExc[JavaError]:
    """Expects an exception of the Java client with one of these names."""

    def is_it(error: JavaError) -> bool:
        assert error.name in names, error
        return True

    return pytest.raises(JavaError, check=is_it)


def java_is_fenced_off() -> pytest.RaisesExc[JavaError]:
    """Expects that an append by Java's client is fenced. The third copy of an entry confirmed before may meet
    the fence, too, if its bookie is slow. Java's client then takes that bookie for failed and finds no other.
    """
    return refused("BKLedgerFencedException", "BKNotEnoughBookiesException")


def we_are_fenced_off() -> pytest.RaisesExc[RollbookError]:
    """Expects that an append by our client is fenced. A third copy may have reported the fence before."""

    def is_it(error: RollbookError) -> bool:
        told = error.__cause__ if isinstance(error, AppendUnsettled) else error
        assert isinstance(told, LedgerFenced), error
        return True

    return pytest.raises(RollbookError, check=is_it)
