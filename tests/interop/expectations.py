"""Words that tests share: what is written, what a reader gets for it, and who is refused."""

import random
from typing import Final

import pytest

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


def refused(name: str) -> pytest.RaisesExc[JavaError]:
    """Around a call that the client must answer with an exception of that name."""

    def is_it(error: JavaError) -> bool:
        assert error.name == name, error
        return True

    return pytest.raises(JavaError, check=is_it)
