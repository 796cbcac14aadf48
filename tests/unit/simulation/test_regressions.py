"""Minimal cases of failures that were found before."""

import pytest

from tests.simulation.mutants import MUTANTS
from tests.simulation.regressions import Regression, every_regression

KEPT = every_regression()


@pytest.mark.parametrize("regression", KEPT, ids=lambda regression: str(regression.name))
def test_kept_cases_do_not_fail(regression: Regression) -> None:
    assert regression.failure() is None


def test_every_mutant_has_a_kept_case() -> None:
    pinned = {regression.mutant for regression in KEPT}
    assert pinned >= {mutant.name for mutant in MUTANTS if not mutant.is_equivalent}
