"""What is said of how long nobody led."""

import pytest

from tests.chaos.kv.takeover import JUDGED_FROM, TAKEOVER_S, too_slow


@pytest.mark.parametrize("gaps", [[], [TAKEOVER_S] * 100, [1.0] * 90 + [5.0] * 10])
def test_a_late_one_in_ten_may_be(gaps: list[float]) -> None:
    assert not too_slow(gaps)


@pytest.mark.parametrize("gaps", [[2.1] * 100, [1.0] * 89 + [5.0] * 11, [1.0] * 40 + [2.1] * 60])
def test_more_may_not(gaps: list[float]) -> None:
    assert "within 2 s" in too_slow(gaps)


def test_few_prove_nothing() -> None:
    assert not too_slow([5.0] * (JUDGED_FROM - 1))
    assert too_slow([5.0] * JUDGED_FROM)
