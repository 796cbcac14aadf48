"""All interleavings of a small world show which rules are needed and which are not."""

import pytest

from tests.simulation.worlds.toy.model import Rules, explore


@pytest.mark.parametrize(
    "rules",
    [
        Rules(),
        Rules(lac_answers_needed=1),  # All bookies are asked, but one answer is enough.
        Rules(lac_answers_needed=1, lac_questions=1),
        Rules(lac_answers_needed=0, lac_questions=0),
    ],
    ids=["all", "wait-for-one", "ask-one", "ask-nobody"],
)
def test_fencing_reads_alone_keep_confirmed_entries(rules: Rules) -> None:
    verdict = explore(rules)
    assert verdict.broken is None
    assert verdict.states > 2_000


@pytest.mark.parametrize(
    "rules",
    [Rules(reads_fence=False), Rules(negatives_needed=1), Rules(entries=1, reads_fence=False)],
    ids=["reads-do-not-fence", "one-negative", "one-entry"],
)
def test_model_without_a_needed_rule_fails(rules: Rules) -> None:
    assert explore(rules).broken is not None
