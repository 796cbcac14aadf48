"""The checker reports impossible histories and accepts possible ones."""

import random

import pytest

from tests.chaos.kv.checker import unexplained, violations
from tests.chaos.kv.history import NEVER, Op


def op(do: str, called: int, returned: int = NEVER, **told: object) -> Op:
    return Op("c", do, "k", called, returned, **told)  # type: ignore[arg-type]  # Fields of Op.


RIGHT = {
    "overlapping writes in either order": [
        op("put", 0, 10, value="a", found="b"),
        op("put", 1, 9, value="b"),
        op("get", 11, 12, found="a"),
    ],
    "a write that nobody knows of, seen late": [
        op("put", 0, value="a"),
        op("get", 1, 2),
        op("get", 3, 4, found="a"),
    ],
    "one that never was": [op("put", 0, value="a"), op("get", 5, 6), op("get", 7, 8)],
    "compare-and-set, lost": [
        op("put", 0, 1, value="a"),
        op("cas", 2, 5, value="b", expect="a", found="a"),
        op("cas", 2, 5, value="c", expect="a", found="b", is_done=False),
    ],
    "a deletion in doubt": [
        op("put", 0, 1, value="a"),
        op("delete", 2),
        op("get", 3, 4, found="a"),
        op("get", 5, 6),
    ],
}
WRONG = {
    "a lost write": [op("put", 0, 1, value="a"), op("get", 2, 3)],
    "a read of the past": [
        op("put", 0, 1, value="a"),
        op("put", 2, 3, value="b", found="a"),
        op("get", 4, 5, found="a"),
    ],
    "seen, then gone": [
        op("put", 0, value="a"),
        op("get", 1, 2, found="a"),
        op("get", 3, 4),
    ],
    "nobody wrote it": [op("get", 0, 1, found="x")],
    "two winners": [
        op("put", 0, 1, value="a"),
        op("cas", 2, 5, value="b", expect="a", found="a"),
        op("cas", 2, 5, value="c", expect="a", found="a"),
    ],
    "applied twice": [
        op("put", 0, 1, value="a"),
        op("put", 2, 3, value="b", found="a"),
        op("put", 4, 5, value="c", found="a"),
    ],
    "seen before it was asked for": [op("get", 0, 1, found="a"), op("put", 2, 3, value="a")],
}


@pytest.mark.parametrize("story", RIGHT)
def test_linearizable_history_has_no_violation(story: str) -> None:
    assert violations(RIGHT[story]) == []


@pytest.mark.parametrize("story", WRONG)
def test_impossible_history_is_a_violation(story: str) -> None:
    (told,) = violations(WRONG[story])
    assert "key k" in told


@pytest.mark.parametrize("seed", range(30))
def test_random_history_is_explained_until_a_read_is_falsified(seed: int) -> None:
    """Many overlapping calls, some of them without a known outcome."""
    chance, state, ops = random.Random(seed), None, []
    for number in range(120):
        moment = number * 10
        called, returned = moment - chance.randrange(40), moment + chance.randrange(40)
        do = chance.choice(("get", "put", "cas", "delete"))
        value = f"v{number}" if do in ("put", "cas") else None
        expect = chance.choice((state, "other")) if do == "cas" else None
        made = op(do, called, returned, value=value, expect=expect)
        is_done = do != "cas" or expect == state
        told = op(do, called, returned, value=value, expect=expect, is_done=is_done, found=state)
        if chance.random() < 0.1:
            told = op(do, called, value=value, expect=expect)
        ops.append(told)
        state = made.after(state)
    chance.shuffle(ops)
    assert unexplained(ops) == []
    reads = [index for index, each in enumerate(ops) if each.do == "get" and each.is_known]
    liar = ops[chance.choice(reads)]
    ops[ops.index(liar)] = op("get", liar.called_ns, liar.returned_ns, found="nobody wrote it")
    assert unexplained(ops)
