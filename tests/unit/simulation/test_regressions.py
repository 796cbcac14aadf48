"""What was found once stays found."""

import pytest

from tests.simulation.mutants import MUTANTS
from tests.simulation.regressions import Regression, every_regression

KEPT = every_regression()


@pytest.mark.parametrize("regression", KEPT, ids=lambda regression: str(regression.name))
def test_kept_cases_hold(regression: Regression) -> None:
    assert regression.failure() is None


def test_every_planted_bug_is_pinned() -> None:
    pinned = {regression.mutant for regression in KEPT}
    assert pinned >= {mutant.name for mutant in MUTANTS if not mutant.is_equivalent}
