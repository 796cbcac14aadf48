"""The bench of named logs refuses what it does not know, and says why somebody cannot be beside us."""

import pytest

from tests.bench.logs import JOBS, OURS_ALONE, figures
from tests.bench.logs_peers import CannotBeHad, fetch


def test_a_job_that_does_not_exist_is_refused_before_anything_runs() -> None:
    with pytest.raises(SystemExit, match="no such job: nothing; there are small"):
        next(figures(1, only=["nothing"]))
    assert set(OURS_ALONE) < set(JOBS)


def test_what_cannot_be_fetched_is_said_with_its_reason() -> None:
    with pytest.raises(CannotBeHad, match="`sh -c echo no way out >&2; exit 1` failed: no way out"):
        fetch(["sh", "-c", "echo no way out >&2; exit 1"])
    fetch(["true"])
