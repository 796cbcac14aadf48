"""The plan leaves enough bookies, and deals every kind."""

import pytest

from tests.chaos.cluster.plan import BOOKIES, DELAY_S, RECOVERY, SESSION_S, Kind, draw

DOWN = (Kind.LOSE_BOOKIE, Kind.RESTART_BOOKIE)


@pytest.mark.parametrize("seed", range(50))
def test_one_bookie_is_down_and_another_one_drains(seed: int) -> None:
    faults = draw(seed, 300.0)
    assert {fault.kind for fault in faults} == set(Kind)
    for fault in faults:
        others = [
            each for each in faults if each is not fault and each.at_s <= fault.at_s < each.end_s
        ]
        assert fault.target not in [each.target for each in others]
        if fault.kind in DOWN:
            assert not any(each.kind in DOWN for each in others)
        if fault.kind is Kind.DRAIN:
            assert not any(each.kind is Kind.DRAIN for each in others)


@pytest.mark.parametrize("seed", range(10))
def test_what_is_lost_is_lost_for_longer_than_the_delay(seed: int) -> None:
    for fault in draw(seed, 300.0):
        assert fault.target in {Kind.KILL_RECOVERY: RECOVERY}.get(fault.kind, BOOKIES) or (
            fault.kind is Kind.KILL_WRITER
        )
        if fault.kind is Kind.LOSE_BOOKIE:
            assert fault.for_s > SESSION_S + DELAY_S
