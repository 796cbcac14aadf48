"""The plan leaves enough bookies and has every kind of fault."""

import pytest

from tests.chaos.cluster.plan import BOOKIES, DELAY_S, RECOVERY, SESSION_S, ClusterFaultKind, draw

DOWN = (ClusterFaultKind.LOSE_BOOKIE, ClusterFaultKind.RESTART_BOOKIE)


@pytest.mark.parametrize("seed", range(50))
def test_at_most_one_bookie_is_down_and_one_drains(seed: int) -> None:
    faults = draw(seed, 300.0)
    assert {fault.kind for fault in faults} == set(ClusterFaultKind)
    for fault in faults:
        others = [
            each for each in faults if each is not fault and each.at_s <= fault.at_s < each.end_s
        ]
        assert fault.target not in [each.target for each in others]
        if fault.kind in DOWN:
            assert not any(each.kind in DOWN for each in others)
        if fault.kind is ClusterFaultKind.DRAIN:
            assert not any(each.kind is ClusterFaultKind.DRAIN for each in others)


@pytest.mark.parametrize("seed", range(10))
def test_lost_bookie_is_away_for_longer_than_the_delay(seed: int) -> None:
    for fault in draw(seed, 300.0):
        assert fault.target in {ClusterFaultKind.KILL_RECOVERY: RECOVERY}.get(
            fault.kind, BOOKIES
        ) or (fault.kind is ClusterFaultKind.KILL_WRITER)
        if fault.kind is ClusterFaultKind.LOSE_BOOKIE:
            assert fault.for_s > SESSION_S + DELAY_S
