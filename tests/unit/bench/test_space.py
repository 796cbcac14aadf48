"""The benchmark of space runs and produces its figures, at a minimal size."""

import asyncio

from tests.bench import space


def test_space_is_reclaimed_and_no_wanted_entry_is_lost() -> None:
    figures = {figure.name: figure for figure in asyncio.run(space.reclaim(space.SMALL))}
    assert figures["on disk for each byte wanted"].holds
    assert figures["wanted entries that were lost"].value == 0
    assert figures["on disk when full"].value > 4
