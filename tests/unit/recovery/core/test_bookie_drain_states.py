"""The allowed lifecycle transitions of a bookie, exhaustively."""

from collections.abc import Callable

import pytest

from rollbook.proto.errors import LifecycleConflict
from rollbook.proto.formats.lifecycle import Lifecycle, LifecycleState
from rollbook.proto.ids import BookieId, EntryId, LedgerId
from rollbook.proto.metadata import Fragment, LedgerMetadata
from rollbook.proto.quorum import Quorum
from rollbook.recovery.core import bookie_drain_states
from rollbook.recovery.core.bookie_drain_states import has_room

ACTIVE, DRAINING = LifecycleState.ACTIVE, LifecycleState.DRAINING
DRAINED, FAILED = LifecycleState.DRAINED, LifecycleState.DRAINING_FAILED
Step = Callable[[Lifecycle], Lifecycle]

STEPS: dict[str, Step] = {
    "drain": lambda found: bookie_drain_states.drain(found, "aa", 9, ledgers=5),
    "retry": lambda found: bookie_drain_states.retry(found, "aa", 9, ledgers=5),
    "cancel": lambda found: bookie_drain_states.cancel(found, "aa", 9),
    "mark_drained": lambda found: bookie_drain_states.mark_drained(found, "aa", 9),
    "finish": lambda found: bookie_drain_states.finish(found, "aa", 9),
    "fail": lambda found: bookie_drain_states.fail(found, "aa", 9, "no copy of ledger 7"),
    "revert": lambda found: bookie_drain_states.revert(found, "aa", 9, "ledger 7 names it"),
}
ALLOWED = {
    ("drain", ACTIVE): DRAINING,
    ("retry", FAILED): DRAINING,
    ("cancel", DRAINING): ACTIVE,
    ("cancel", DRAINED): ACTIVE,
    ("cancel", FAILED): ACTIVE,
    ("mark_drained", FAILED): DRAINED,
    ("finish", DRAINING): DRAINED,
    ("fail", DRAINING): FAILED,
    ("revert", DRAINED): DRAINING,
}


@pytest.mark.parametrize("state", LifecycleState)
@pytest.mark.parametrize("name", STEPS)
def test_only_allowed_lifecycle_steps_succeed(name: str, state: LifecycleState) -> None:
    """LC1, LC2, BL5, BL7, BL9, BL10, BL11, BL17."""
    found = Lifecycle(state, "00", 1, 3)
    if (name, state) in ALLOWED:
        changed = STEPS[name](found)
        assert changed.state is ALLOWED[name, state]
        assert (changed.token, changed.since_ms) == ("aa", 9)
    else:
        with pytest.raises(LifecycleConflict, match=state.value):
            STEPS[name](found)


def test_refused_step_names_the_states_allowed_to_operators() -> None:
    """LC1."""
    for state in LifecycleState:
        steps = ("drain", "retry", "cancel", "mark_drained")
        wanted = {ALLOWED[step, state] for step in steps if (step, state) in ALLOWED}
        assert set(bookie_drain_states.allowed_from(state)) == wanted
    with pytest.raises(LifecycleConflict) as refused:
        STEPS["mark_drained"](Lifecycle(DRAINING, "00", 1))
    assert refused.value.ids["allowed"] == ("active",)


def test_failed_drain_keeps_its_reason_until_retried() -> None:
    """BL8."""
    draining = bookie_drain_states.drain(Lifecycle(), "aa", 1, ledgers=5, is_forced=True)
    failed = bookie_drain_states.fail(draining, "bb", 2, "x" * 10_000)
    assert (failed.ledgers, failed.is_forced, len(failed.reason)) == (5, True, 500)
    again = bookie_drain_states.retry(failed, "cc", 3, ledgers=2)
    assert again == Lifecycle(DRAINING, "cc", 3, 2, True)
    assert bookie_drain_states.cancel(failed, "dd", 4) == Lifecycle(ACTIVE, "dd", 4)


# --- Room for the drained slots ---------------------------------------------------------------

B = [BookieId(f"b{number}:3181") for number in range(6)]


def ledger(*ensembles: tuple[int, ...]) -> LedgerMetadata:
    width = len(ensembles[0])
    fragments = tuple(
        Fragment(EntryId(10 * index), tuple(B[each] for each in ensemble))
        for index, ensemble in enumerate(ensembles)
    )
    return LedgerMetadata(LedgerId(7), Quorum(width, width, 1), fragments)


@pytest.mark.parametrize(
    ("ensembles", "leaving", "targets", "expected"),
    [
        ([(0, 1, 2)], {0}, {1, 2}, False),  # Every target is already a member.
        ([(0, 1, 2)], {0}, {1, 2, 3}, True),
        ([(0, 1, 2)], {0, 1}, {2, 3}, False),  # Two slots, one bookie.
        ([(0, 1, 2)], {0, 1}, {2, 3, 4}, True),
        ([(0, 1, 2)], {0, 3}, {1, 2, 3}, False),  # A bookie that also leaves is no target.
        ([(0, 1, 2), (1, 2, 3)], {0}, {1, 2, 3}, True),
        ([(1, 2, 3), (0, 1, 2)], {0}, {1, 2}, False),  # The second fragment has no target.
        ([(1, 2, 3)], {0}, set(), True),  # The ledger does not name b0.
    ],
)
def test_has_room_needs_a_target_for_every_slot(
    ensembles: list[tuple[int, ...]], leaving: set[int], targets: set[int], expected: bool
) -> None:
    """LC3."""
    metadata = ledger(*ensembles)
    gone, there = {B[each] for each in leaving}, {B[each] for each in targets}
    assert has_room(metadata, gone, there) is expected
