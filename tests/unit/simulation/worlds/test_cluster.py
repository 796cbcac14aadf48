"""A cluster that repairs itself, in the simulator: one planned run, random faults, drills and
planted bugs.
"""

import pytest

from tests.simulation.mutants import search
from tests.simulation.run import simulate
from tests.simulation.schedule import Case, Fault, Kind, Step
from tests.simulation.worlds.cluster import words
from tests.simulation.worlds.cluster.drills import DRILLS, DRILLS_ALONE
from tests.simulation.worlds.cluster.flaws import CLUSTER_MUTANTS
from tests.simulation.worlds.cluster.plan import PEACE_US, draw_case
from tests.simulation.worlds.cluster.scene import ClusterScene
from tests.simulation.worlds.toy.oracle import EVERY_RULE


def step(ms: int, actor: str, what: str) -> Step:
    return Step(PEACE_US + 1000 * ms, actor, what)


def test_loss_of_one_bookie_while_another_retires_breaks_no_rule() -> None:
    steps = (
        Step(0, words.CLUSTER, "6 bookies window 8 v3"),
        step(0, words.WRITERS[0], "fill 2 5 24 3 3 2"),
        step(50, words.WRITERS[0], "hold 1 3 24 3 3 2"),
        step(900, words.OPERATOR, f"{words.RETIRE} b1"),
    )
    report = ClusterScene().run(
        Case("cluster", 1, steps, (Fault(PEACE_US + 200_000, Kind.WIPE, ("b2",)),)), tell=True
    )
    assert report.broke is None, report.detail
    assert [append.outcome.value for append in report.history.appends] == ["applied"] * 14
    assert any("b1 may go" in line for line in report.story)
    assert report.history.weakness() is None


def test_seeds_pass_and_at_least_5_of_8_are_not_weak() -> None:
    said: list[str] = []
    tally = simulate(range(8), "cluster", lambda _done, _total: None, said.append)
    assert tally.failed == 0, said
    assert tally.passed >= 5


def test_all_steps_and_faults_are_drawn() -> None:
    cases = [draw_case(seed) for seed in range(300)]
    verbs = {each.what.split()[0] for case in cases for each in case.steps}
    assert verbs >= {words.FILL, words.HOLD, words.APPEND, words.CLOSE, words.DRAIN, words.UNDRAIN}
    assert verbs >= {words.RETIRE, words.SAFE, words.DISABLE, words.ENABLE, words.AUDIT}
    kinds = {fault.kind for case in cases for fault in case.faults}
    elsewhere = {Kind.STALE_SECTOR, Kind.CLOCK_JUMP, Kind.ROLLBACK, Kind.PARTIAL_LISTING}
    elsewhere |= {Kind.STALL, Kind.SLOW_LINK, Kind.TAIL_LATENCY, Kind.WRITE_ERROR, Kind.READ_ERROR}
    assert kinds >= set(Kind) - elsewhere


@pytest.mark.parametrize("drill", DRILLS | DRILLS_ALONE)
def test_recovery_passes_every_drill(drill: str) -> None:
    scene = ClusterScene(drill=drill)
    for seed in range(2):
        report = scene.run(scene.case(seed))
        assert report.broke is None, (seed, report.detail)


def test_drills_of_planted_bugs_exist() -> None:
    assert {mutant.drill for mutant in CLUSTER_MUTANTS} <= set(DRILLS | DRILLS_ALONE)


@pytest.mark.parametrize(
    "name", ["cluster-trusts-the-target", "cluster-grace-of-old", "cluster-stale-steward"]
)
def test_planted_bugs_are_found(name: str) -> None:
    found = search((name, 0, EVERY_RULE))
    assert found.seed is not None, name
