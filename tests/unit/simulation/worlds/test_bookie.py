"""Whole bookies in the simulator: runs without faults, random faults, and planted bugs."""

from dataclasses import replace

import pytest

from tests.simulation.mutants import search
from tests.simulation.run import simulate
from tests.simulation.schedule import Case, Fault, Kind, Step
from tests.simulation.worlds.bookie.plan import CLIENTS, LEDGERS, RECIPES, VERBS, draw_case
from tests.simulation.worlds.bookie.scene import BookieScene
from tests.simulation.worlds.toy.oracle import EVERY_RULE


def steps_of(*texts: str) -> tuple[Step, ...]:
    return tuple(Step(400_000 + 20_000 * at, "c1", text) for at, text in enumerate(texts))


def test_run_without_faults_acks_all_adds_and_answers_all_calls() -> None:
    texts = ("add b1 1 20 v2", "add b1 2 8 v3", "force b1 1", "lac b1 1", "fence b1 2 v3")
    asks = (
        "add b1 2 1 v3",
        "read b1 1 v2",
        "batch b1 1",
        "list b1 1",
        "poll b1 1 50",
        "ask-lac b1 1",
    )
    report = BookieScene().run(Case("bookie", 1, steps_of(*texts, *asks), ()))
    assert report.broke is None
    outcomes = [append.outcome.value for append in report.history.appends]
    assert outcomes[:29] == ["applied"] * 28 + ["not_applied"]
    assert all(call.returned for call in report.history.calls)
    assert {call.step for call in report.history.calls} >= {
        "start",
        "read",
        "batch",
        "fence",
        "lac",
    }
    assert report.history.weakness() == "no fault overlapped an append"


def test_equal_sized_entries_are_cut_from_their_record_together() -> None:
    report = BookieScene().run(Case("bookie", 1, steps_of("even b1 1 40 v2"), ()))
    assert report.broke is None
    outcomes = [append.outcome.value for append in report.history.appends]
    assert outcomes[:40] == ["applied"] * 40
    assert {call.step for call in report.history.calls} >= {"batch", "cut evenly"}


def test_seeds_pass_and_at_least_3_of_6_are_not_weak() -> None:
    said: list[str] = []
    tally = simulate(range(6), "bookie", lambda _done, _total: None, said.append)
    assert tally.failed == 0
    assert tally.passed >= 3
    assert any("while a fault was in force" in line for line in said)


def test_all_steps_and_faults_are_drawn() -> None:
    cases = [draw_case(seed) for seed in range(200)]
    verbs = {step.what.split()[0] for case in cases for step in case.steps}
    assert verbs >= {*VERBS, "delete", "start"}
    assert {fault.kind for case in cases for fault in case.faults} == {r.kind for r in RECIPES}
    assert {step.actor for case in cases for step in case.steps} >= set(CLIENTS)
    assert len(LEDGERS) > 3


@pytest.mark.parametrize(
    "name", ["early-ack", "fence-in-memory", "two-answers", "refusals-are-acks", "backward-cuts"]
)
def test_planted_bug_is_found_with_fresh_seeds(name: str) -> None:
    """`python -m tests mutants` tries all of them."""
    assert search((name, 0, EVERY_RULE)).seed is not None


def test_power_cut_of_all_bookies_during_adds_breaks_no_rule() -> None:
    case = replace(draw_case(3), faults=(Fault(450_000, Kind.POWER_CUT, ("b1", "b2"), 100_000),))
    report = BookieScene().run(case, tell=True)
    assert report.broke is None
    assert sum("serves" in line for line in report.story) >= 6
