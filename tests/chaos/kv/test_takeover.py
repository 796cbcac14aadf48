"""What is said of how long nobody led."""

import pytest

from tests.chaos.kv.takeover import TAKEOVER_S, too_slow


@pytest.mark.parametrize("gaps", [[], [TAKEOVER_S], [1.0] * 9 + [5.0]])
def test_a_late_one_in_ten_may_be(gaps: list[float]) -> None:
    assert not too_slow(gaps)


@pytest.mark.parametrize("gaps", [[2.1], [1.0] * 8 + [5.0] * 2, [1.0, 2.1, 2.2]])
def test_more_may_not(gaps: list[float]) -> None:
    assert "within 2 s" in too_slow(gaps)
