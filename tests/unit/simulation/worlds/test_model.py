"""What is no bug, and how we know: all interleavings of a small world."""

import pytest

from tests.simulation.worlds.toy.model import Rules, explore


@pytest.mark.parametrize(
    "rules",
    [
        Rules(),
        Rules(lac_answers_needed=1),  # Others are asked, but nobody waits for them.
        Rules(lac_answers_needed=1, lac_questions=1),
        Rules(lac_answers_needed=0, lac_questions=0),
    ],
    ids=["all", "wait-for-one", "ask-one", "ask-nobody"],
)
def test_reads_that_fence_keep_the_promise_alone(rules: Rules) -> None:
    verdict = explore(rules)
    assert verdict.broken is None
    assert verdict.states > 2_000


@pytest.mark.parametrize(
    "rules",
    [Rules(reads_fence=False), Rules(negatives_needed=1), Rules(entries=1, reads_fence=False)],
    ids=["reads-do-not-fence", "one-negative", "one-entry"],
)
def test_the_model_can_fail(rules: Rules) -> None:
    assert explore(rules).broken is not None
