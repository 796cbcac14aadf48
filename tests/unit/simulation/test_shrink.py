"""Shrinking, on invented failures whose smallest case is known."""

import pytest

from tests.simulation.schedule import Case, Fault, Kind, Step
from tests.simulation.shrink import shrink

STEPS = tuple(Step(1_234 * n, "writer", "append") for n in range(1, 13))
FAULTS = tuple(
    Fault(10_000 * n, kind, (f"b{n % 5}",), for_us=77_777)
    for n, kind in enumerate([Kind.KILL, Kind.PAUSE, Kind.POWER_CUT, Kind.SYNC_ERROR] * 5)
)
CASE = Case("invented", 99, STEPS, FAULTS)


def kinds(case: Case) -> list[Kind]:
    return [fault.kind for fault in case.faults]


def test_shrinking_removes_irrelevant_steps_and_faults() -> None:
    def run(case: Case) -> str | None:
        guilty = kinds(case).count(Kind.KILL) >= 2 and Kind.SYNC_ERROR in kinds(case)
        return "broken" if guilty and len(case.steps) >= 3 else None

    shrunk = shrink(CASE, run)
    assert sorted(kinds(shrunk.case)) == [Kind.KILL, Kind.KILL, Kind.SYNC_ERROR]
    assert len(shrunk.case.steps) == 3
    assert shrunk.broke == "broken"
    assert run(shrunk.case) == "broken"


def test_durations_of_faults_become_short_and_round() -> None:
    def run(case: Case) -> str | None:
        return "slow" if any(fault.for_us >= 1_500 for fault in case.faults) else None

    (fault,) = shrink(CASE, run).case.faults
    assert fault.for_us in range(1_500, 3_000)
    assert fault.for_us % 100 == 0


def test_shrinking_keeps_the_same_failure() -> None:
    def run(case: Case) -> str | None:
        if len(case.faults) > 10:
            return "first"
        return "second" if case.faults else None

    shrunk = shrink(CASE, run)
    assert shrunk.broke == "first"
    assert len(shrunk.case.faults) == 11


def test_shrinking_may_change_the_seed() -> None:
    """Removing a step changes all later random draws, so the shrunk case names the seed that fails."""

    def run(case: Case) -> str | None:
        if case == CASE:
            return "broken"
        return "broken" if case.seed == 2 and Kind.PAUSE in kinds(case) else None

    shrunk = shrink(CASE, run)
    assert shrunk.case.seed == 2
    assert kinds(shrunk.case) == [Kind.PAUSE]
    assert shrunk.case.steps == ()


def test_shrinking_stops_at_time_limit_with_best_case() -> None:
    shrunk = shrink(CASE, lambda case: "broken" if case.faults else None, seconds_max=0.0)
    assert shrunk.case == CASE
    assert not shrunk.is_least
    assert shrink(CASE, lambda case: "broken" if case.faults else None, seconds_max=600.0).is_least


def test_shrinking_stops_at_limit_of_runs() -> None:
    shrunk = shrink(CASE, lambda case: "broken" if len(case.faults) > 5 else None, runs_max=20)
    assert shrunk.runs == 20
    assert not shrunk.is_least
    assert 5 < len(shrunk.case.faults) <= len(CASE.faults)


def test_passing_case_cannot_be_shrunk() -> None:
    with pytest.raises(ValueError, match="does not fail"):
        shrink(CASE, lambda case: None)
