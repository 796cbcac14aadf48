"""Named logs in the simulator: a run without faults, random faults, drills and planted bugs."""

import pytest

from rollbook.proto.errors import Outcome
from tests.simulation.run import simulate
from tests.simulation.schedule import Case, Step
from tests.simulation.worlds.logs import words
from tests.simulation.worlds.logs.flaws import LOG_MUTANTS
from tests.simulation.worlds.logs.plan import DRILLS, PEACE_US, draw_case
from tests.simulation.worlds.logs.scene import LogsScene


def step(ms: int, actor: str, what: str) -> Step:
    return Step(PEACE_US + 1000 * ms, actor, what)


def test_run_without_faults_acks_appends_and_refuses_a_wrong_guard() -> None:
    producer, writer = words.PRODUCERS[0], words.WRITERS[0]
    steps = (
        Step(0, words.CLUSTER, "2 servers 3 3 2 a=open"),
        step(0, words.READERS[0], "follow a"),
        step(0, producer, "append a 12"),
        step(50, producer, "again a"),
        step(100, writer, "barrier a"),
        step(200, writer, "expect a 2"),
        step(240, producer, "append a 12"),
        step(290, writer, "expect a 1"),
        step(293, writer, "acquire a"),
        step(296, writer, "append a 2"),
        step(300, words.ADMIN, "mark a 10"),
        step(320, words.ADMIN, "roll a"),
        step(350, words.ADMIN, "truncate a 20"),
        step(400, words.ADMIN, "truncate a 0"),
        step(500, "s1", "stop"),
        step(900, producer, "append a 3"),
        step(1500, words.ADMIN, "seal a"),
    )
    report = LogsScene().run(Case("logs", 1, steps, ()), tell=True)
    assert report.broke is None, report.detail
    outcomes = [append.outcome for append in report.history.appends if append.client == producer]
    assert len(outcomes) > 27
    assert set(outcomes) == {Outcome.APPLIED}
    by_writer = [each.outcome for each in report.history.appends if each.client == writer]
    assert by_writer == [Outcome.APPLIED] * 2 + [Outcome.NOT_APPLIED] + [Outcome.APPLIED] * 2
    story = "\n".join(report.story)
    assert "Guarded" in story
    assert "sealed" in story
    steps_taken = {call.step for call in report.history.calls}
    assert steps_taken == {"open", "roll", "hand over", "change list"}


def test_seeds_pass_and_at_least_4_of_6_are_not_weak() -> None:
    said: list[str] = []
    tally = simulate(range(6), "logs", lambda _done, _total: None, said.append)
    assert tally.failed == 0
    assert tally.passed >= 4
    assert any("while a fault was in force" in line for line in said)


def test_all_steps_are_drawn() -> None:
    steps = [step for seed in range(300) for step in draw_case(seed).steps]
    assert {each.what.split()[0] for each in steps if each.actor != words.CLUSTER} == {
        words.APPEND,
        words.AGAIN,
        words.EXPECT,
        words.ACQUIRE,
        words.RELEASE,
        words.BARRIER,
        words.FOLLOW,
        words.READ,
        words.TRUNCATE,
        words.MARK,
        words.UNMARK,
        words.ROLL,
        words.SEAL,
        words.DRAIN,
        words.RESUME,
        words.TRANSFER,
        words.TAKE,
        words.STOP,
        words.FENCE,
        words.DEAF,
        words.DEAF_TO_NEW,
        words.FULL,
        words.FORMAT,
        words.DELETE,
        words.REPLACE,
        words.UNDELETE,
        words.WALK,
        words.MISTELL,
        words.THREE,
        words.AWAY,
        words.RANGE,
        words.TO_TAIL,
    }


@pytest.mark.parametrize("drill", DRILLS)
def test_log_service_passes_every_drill(drill: str) -> None:
    report = LogsScene(drill=drill).run(draw_case(1, drill))
    assert report.broke is None, report.detail


def test_drills_of_planted_bugs_exist() -> None:
    assert {mutant.drill for mutant in LOG_MUTANTS if mutant.drill} <= set(DRILLS)
    assert len({mutant.name for mutant in LOG_MUTANTS}) == len(LOG_MUTANTS)
