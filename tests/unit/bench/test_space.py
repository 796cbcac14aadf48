"""The benchmark of space measures what it says: at a size that shows nothing but that."""

import asyncio

from tests.bench import space


def test_space_comes_back_and_nothing_is_lost() -> None:
    figures = {figure.name: figure for figure in asyncio.run(space.reclaim(space.SMALL))}
    assert figures["on disk for each byte wanted"].holds
    assert figures["wanted entries that were lost"].value == 0
    assert figures["on disk when full"].value > 4
