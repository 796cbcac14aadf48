"""Hostile connections against a real bookie: each costs little, all together too, and others go on.

Figures: `python -m tests bench hostile`.
"""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.hostile.attacks import Attack, attacks, unfinished
from tests.hostile.run import PATIENCE_S, bookie, cost_of, cost_of_all
from tests.support.bookies import RunningBookie

_MIB: Final = 1024 * 1024
_LARGEST_BYTES: Final = 5 * _MIB - 1024
_SOON: Final = {
    "ROLLBOOK_SERVER_FRAME_TIMEOUT_S": "2",
    "ROLLBOOK_SERVER_UNREAD_TIMEOUT_S": "5",
}


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBookie]:
    with bookie(tmp_path_factory.mktemp("bookie"), _SOON) as found:
        yield found


@pytest.mark.parametrize("attack", attacks(), ids=lambda attack: attack.name)
def test_an_attack_costs_little_and_ends(attack: Attack, victim: RunningBookie) -> None:
    cost = cost_of(victim, attack, 20)
    assert cost.ended == cost.connections
    assert cost.bytes_each <= _MIB
    assert cost.cpu_ms_each <= 10.0


def test_large_requests_that_stay_unfinished_share_one_pool(victim: RunningBookie) -> None:
    """Each may be as large as a request may be; all together they may not."""
    cost = cost_of(victim, unfinished(_LARGEST_BYTES), 60)
    assert cost.ended == cost.connections
    assert cost.grown_bytes <= 64 * _MIB


def test_a_thousand_attackers_at_once_keep_nobody_from_working(tmp_path: Path) -> None:
    with bookie(tmp_path, _SOON) as found:
        files = found.open_files
        cost, good = asyncio.run(cost_of_all(found, 1_000))
        assert cost.ended == cost.connections
        assert cost.grown_bytes <= 64 * _MIB
        assert good.added > 0
        assert good.refused == 0
        assert found.is_running
        deadline = time.monotonic() + PATIENCE_S
        while found.open_files > files + 20:  # The attackers' are closed, all of them.
            assert time.monotonic() < deadline
            time.sleep(0.05)
