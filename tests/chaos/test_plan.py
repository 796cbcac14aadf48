"""Plans are drawn from seeds, have every kind of fault, and leave a quorum of bookies."""

from itertools import pairwise

from tests.chaos.plan import Cast, FaultKind, draw

CAST = Cast(
    bookies=("bk-1", "bk-2", "bk-3", "bk-4", "bk-5"),
    writers=("writer-1", "writer-2"),
    readers=("recoverer-1", "tailer-1"),
    kinds=tuple(FaultKind),
    slow_disk="bk-1",
)
AWAY = (
    FaultKind.KILL_BOOKIE,
    FaultKind.STOP_BOOKIE,
    FaultKind.STOP_LONG,
    FaultKind.POWER_CUT,
    FaultKind.ISOLATE,
)


def test_same_seed_draws_the_same_plan() -> None:
    assert draw(1, 100, CAST) == draw(1, 100, CAST)
    assert draw(1, 100, CAST) != draw(2, 100, CAST)


def test_plan_has_every_fault_kind_and_overlapping_faults() -> None:
    for seed in range(20):
        faults = draw(seed, 60, CAST)
        assert {fault.kind for fault in faults} == set(FaultKind)
        assert any(earlier.at_s + earlier.for_s > later.at_s for earlier, later in pairwise(faults))


def test_plan_keeps_at_most_two_bookies_away() -> None:
    for seed in range(20):
        faults = draw(seed, 200, CAST)
        for fault in faults:
            away = [
                each
                for each in faults
                if each.kind in AWAY and each.at_s <= fault.at_s < each.at_s + each.for_s
            ]
            assert len(away) <= 2


def test_plan_has_only_the_available_fault_kinds() -> None:
    kinds = (FaultKind.KILL_BOOKIE, FaultKind.STOP_WRITER)
    faults = draw(1, 60, Cast(CAST.bookies, CAST.writers, CAST.readers, kinds))
    assert {fault.kind for fault in faults} == set(kinds)
