"""Cases are data: drawn from a seed, written and read."""

import random

import pytest

from tests.simulation.schedule import Case, Fault, Kind, Recipe, Step, draw

STEPS = [Step(500, "writer", "append")]
RECIPES = [
    Recipe(Kind.KILL, [("b1",), ("b2",)], for_us=(1_000, 1_000_000)),
    Recipe(Kind.SLOW_LINK, [("b1", "b2")], amount=(10, 1000), odds=1.0, from_start=True),
    Recipe(Kind.RESET, [("b1", "writer")], times=(0, 4)),
]


@pytest.mark.parametrize("seed", range(50))
def test_case_survives_json(seed: int) -> None:
    faults = draw(random.Random(seed), RECIPES, (200, 1000), STEPS)
    case = Case("toy", seed, (Step(5, "writer", "append"),), faults)
    assert Case.loads(case.dumps()) == case


def test_case_of_another_format_is_refused() -> None:
    text = Case("toy", 1, (), ()).dumps().replace('"format": 1', '"format": 2')
    with pytest.raises(ValueError, match="format 2"):
        Case.loads(text)


def test_each_seed_draws_its_own_kinds_of_faults() -> None:
    drawn = [draw(random.Random(seed), RECIPES, (200, 1000), STEPS) for seed in range(200)]
    kills = sum(any(fault.kind is Kind.KILL for fault in faults) for faults in drawn)
    assert 60 < kills < 140
    assert all(any(fault.kind is Kind.SLOW_LINK for fault in faults) for faults in drawn)
    assert drawn == [draw(random.Random(seed), RECIPES, (200, 1000), STEPS) for seed in range(200)]


def test_faults_stay_within_their_recipe() -> None:
    for seed in range(200):
        for fault in draw(random.Random(seed), RECIPES, (200, 1000), STEPS):
            assert 200 <= fault.at_us <= 1000
            if fault.kind is Kind.KILL:
                assert fault.nodes in (("b1",), ("b2",))
                assert 1_000 <= fault.for_us <= 1_000_000
            if fault.kind is Kind.SLOW_LINK:
                assert fault.at_us == 200
                assert 10 <= fault.amount <= 1000


def test_lines_of_a_case_are_in_order_of_time() -> None:
    faults = (
        Fault(2_000, Kind.SLOW_LINK, ("b1", "b2"), 5_000, 300),
        Fault(1_000, Kind.POWER_CUT, ("b1", "b2"), 1_500),
    )
    case = Case("toy", 1, (Step(1_500, "writer", "append"),), faults)
    assert [line.strip() for line in str(case).splitlines()] == [
        "0.0010s power cut b1, b2 for 1.5 ms",
        "0.0015s writer: append",
        "0.0020s slow link b1 → b2 by 300 µs for 5 ms",
    ]
