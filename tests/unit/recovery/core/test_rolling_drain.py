"""Many bookies are drained, a few at a time."""

import random

import pytest

from rollbook.proto.formats.lifecycle import LifecycleState
from rollbook.proto.ids import BookieId
from rollbook.recovery.core.rolling_drain import CALLED_OFF, NO_NODE, DrainNotes, next_drains

ACTIVE, DRAINING = LifecycleState.ACTIVE, LifecycleState.DRAINING
DRAINED, FAILED = LifecycleState.DRAINED, LifecycleState.DRAINING_FAILED
A, B, C = map(BookieId, "abc")


def test_drains_start_up_to_the_concurrency_limit() -> None:
    """OP5."""
    seen = {A: (DRAINING, 0), B: (ACTIVE, NO_NODE), C: (ACTIVE, NO_NODE)}
    assert next_drains(seen, DrainNotes(), 1).to_begin == []
    assert next_drains(seen, DrainNotes(), 2).to_begin == [B]
    assert next_drains(seen, DrainNotes(), 9).to_begin == [B, C]


def test_cancelled_drain_is_not_started_again() -> None:
    """OP5."""
    began = DrainNotes(began={"a": NO_NODE, "b": 4})
    step = next_drains({A: (ACTIVE, 1), B: (ACTIVE, 4)}, began, 9)
    assert (step.ended, step.to_begin, step.is_over) == ({A: CALLED_OFF}, [B], False), (
        "b was noted, and its runner died before it started the drain"
    )


def test_queue_is_over_when_every_drain_has_ended() -> None:
    began = DrainNotes(began={"a": NO_NODE, "b": NO_NODE})
    step = next_drains({A: (DRAINED, 1), B: (FAILED, 1)}, began, 1)
    assert (list(step.ended), step.is_over) == ([A, B], True)
    retried = next_drains({B: (FAILED, 1)}, DrainNotes(began={"b": 1}), 1)
    assert retried.to_begin == [B], "its drain had failed before this operation started it"


@pytest.mark.parametrize("seed", range(50))
def test_each_drain_starts_once_despite_dying_runners(seed: int) -> None:
    """OP5: runners die after any step; the next one knows only the notes."""
    draw = random.Random(seed)
    names = [BookieId(f"b{number}") for number in range(5)]
    seen: dict[BookieId, tuple[LifecycleState, int]] = dict.fromkeys(names, (ACTIVE, NO_NODE))
    begun = dict.fromkeys(names, 0)
    notes, at_most = DrainNotes(), draw.randint(1, 3)
    for _ in range(200):
        step = next_drains(seen, notes, at_most)
        if step.is_over:
            break
        if draw.random() < 0.3:
            continue  # The runner died before it noted anything.
        notes = DrainNotes(
            {**notes.began, **{each: seen[each][1] for each in step.to_begin}},
            {**notes.ended, **{str(each): why for each, why in step.ended.items()}},
        )
        for each in step.to_begin:
            if draw.random() < 0.3:
                break  # The runner died half-way.
            seen[each] = DRAINING, seen[each][1] + 1
            begun[each] += 1
        assert sum(state is DRAINING for state, _ in seen.values()) <= at_most
        for each, (state, version) in seen.items():
            if state is DRAINING and draw.random() < 0.4:
                seen[each] = draw.choice([DRAINED, FAILED, ACTIVE]), version + 1
    assert begun == dict.fromkeys(names, 1)
