"""The judgement of the times without a leader."""

import pytest

from tests.chaos.kv.takeover import JUDGED_FROM, TAKEOVER_S, too_slow


@pytest.mark.parametrize("gaps", [[], [TAKEOVER_S] * 100, [1.0] * 90 + [5.0] * 10])
def test_one_late_takeover_in_ten_is_allowed(gaps: list[float]) -> None:
    assert not too_slow(gaps)


@pytest.mark.parametrize("gaps", [[2.1] * 100, [1.0] * 89 + [5.0] * 11, [1.0] * 40 + [2.1] * 60])
def test_more_late_takeovers_are_too_slow(gaps: list[float]) -> None:
    assert "within 2 s" in too_slow(gaps)


def test_few_takeovers_are_not_judged() -> None:
    assert not too_slow([5.0] * (JUDGED_FROM - 1))
    assert too_slow([5.0] * JUDGED_FROM)
