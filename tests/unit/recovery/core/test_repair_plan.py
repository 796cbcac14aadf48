"""Which slots of a ledger are repaired, and how (RP1, RP2; AR22, AR30)."""

import random
from collections.abc import Callable, Collection, Mapping

import pytest

from rollbook.proto.ids import BookieId, EntryId, LedgerId
from rollbook.proto.metadata import Fragment, LedgerMetadata, LedgerState
from rollbook.proto.quorum import Quorum
from rollbook.recovery.core.repair_plan import (
    Action,
    BookiePresence,
    FirstStep,
    GracePeriods,
    RepairOutcome,
    RepairPlan,
    RepairStep,
    RestoreResult,
    SlotRepair,
    plan_repair,
    repair_step,
    sources_of,
)

A, B, C, D, E, F = (BookieId(name) for name in "abcdef")


def ledger(
    *ensembles: tuple[BookieId, ...],
    state: LedgerState = LedgerState.CLOSED,
    last_entry: int | None = 29,
    write: int = 3,
) -> LedgerMetadata:
    """A ledger with one fragment of ten entries for each ensemble."""
    fragments = tuple(
        Fragment(EntryId(10 * number), ensemble) for number, ensemble in enumerate(ensembles)
    )
    is_closed = state is LedgerState.CLOSED
    return LedgerMetadata(
        LedgerId(7),
        Quorum(len(ensembles[0]), write, 2),
        fragments,
        state,
        EntryId(last_entry) if is_closed and last_entry is not None else None,
        3000 if is_closed else None,
    )


def presence_of(**states: BookiePresence) -> Callable[[BookieId], BookiePresence]:
    known: Mapping[str, BookiePresence] = states
    return lambda bookie: known.get(bookie, BookiePresence.WRITABLE)


LOST_B = presence_of(b=BookiePresence.LOST)


def actions(
    metadata: LedgerMetadata,
    in_question: set[BookieId],
    draining: Collection[BookieId] = (),
    presence: Callable[[BookieId], BookiePresence] = LOST_B,
) -> list[object]:
    plan = plan_repair(metadata, in_question, draining, presence)
    return [(repair.first_entry, repair.bookie, repair.action) for repair in plan.repairs]


def test_every_fragment_naming_a_lost_bookie_is_repaired() -> None:
    metadata = ledger((A, B, C), (A, C, D), (B, C, D))
    assert actions(metadata, {B}) == [(0, B, Action.REPLACE), (20, B, Action.REPLACE)]


def test_returned_bookie_is_restored_in_place() -> None:
    metadata = ledger((A, B, C))
    assert actions(metadata, {B}, presence=presence_of()) == [(0, B, Action.RESTORE)]
    read_only = presence_of(b=BookiePresence.READ_ONLY)
    assert actions(metadata, {B}, presence=read_only) == [(0, B, Action.RESTORE)]


def test_unmarked_lost_bookie_keeps_its_slot() -> None:
    """RP2: its loss delay is not over."""
    assert actions(ledger((A, B, C)), {C}, presence=presence_of(b=BookiePresence.LOST)) == [
        (0, C, Action.RESTORE)
    ]


def test_draining_bookie_is_replaced_while_present() -> None:
    metadata = ledger((A, B, C))
    found = actions(metadata, set(), draining={C}, presence=presence_of(c=BookiePresence.READ_ONLY))
    assert found == [(0, C, Action.REPLACE)]


def test_fragments_with_the_fewest_members_present_come_first() -> None:
    metadata = ledger((A, B, C), (B, D, E))
    presence = presence_of(b=BookiePresence.LOST, d=BookiePresence.LOST)
    assert actions(metadata, {B}, presence=presence) == [
        (10, B, Action.REPLACE),
        (0, B, Action.REPLACE),
    ]


def test_empty_fragments_are_repaired() -> None:
    """A bookie is drained only when no ledger names it."""
    metadata = ledger((A, B, C), last_entry=-1)
    (repair,) = plan_repair(metadata, {B}, (), LOST_B).repairs
    assert (repair.first_entry, repair.last_entry) == (0, -1)


@pytest.mark.parametrize(
    ("state", "is_unclaimed", "step"),
    [
        (LedgerState.OPEN, False, FirstStep.AWAIT_WRITER),
        (LedgerState.OPEN, True, FirstStep.MOVE_SLOT),
        (LedgerState.IN_RECOVERY, False, FirstStep.RECOVER),
        (LedgerState.CLOSED, False, FirstStep.NOTHING),
    ],
)
def test_first_step_of_a_repair_follows_the_ledger_state(
    state: LedgerState, is_unclaimed: bool, step: FirstStep
) -> None:
    """AR26, AR27: the open fragment is never repaired while a writer may write to it (LM4)."""
    metadata = ledger((A, C, D), (A, B, C), state=state)
    plan = plan_repair(metadata, {B}, (), LOST_B, is_unclaimed=is_unclaimed)
    assert plan.first_step is step
    open_slots = (1,) if state is not LedgerState.CLOSED else ()
    assert plan.open_slots == open_slots
    assert all(repair.first_entry == 0 or state is LedgerState.CLOSED for repair in plan.repairs)


def test_open_ledger_with_a_sound_end_needs_no_first_step() -> None:
    metadata = ledger((A, B, C), (A, C, D), state=LedgerState.OPEN)
    plan = plan_repair(metadata, {B}, (), LOST_B)
    assert plan.first_step is FirstStep.NOTHING
    assert [repair.first_entry for repair in plan.repairs] == [0]


def test_returned_bookie_causes_no_close() -> None:
    metadata = ledger((A, B, C), state=LedgerState.OPEN)
    assert plan_repair(metadata, {B}, (), presence_of()) == RepairPlan(FirstStep.NOTHING, ())


@pytest.mark.parametrize("seed", range(50))
def test_shares_and_sources_agree_with_the_write_sets(seed: int) -> None:
    chance = random.Random(seed)
    size = chance.randint(1, 6)
    quorum = Quorum(size, chance.randint(1, size), 1)
    fragment = Fragment(EntryId(0), (A, B, C, D, E, F)[:size])
    action = chance.choice(list(Action))
    repair = SlotRepair(fragment, EntryId(29), chance.randrange(size), action)
    share = repair.share(quorum, range(30))
    for entry_id in map(EntryId, range(30)):
        members = quorum.write_set(entry_id, fragment.ensemble)
        assert (entry_id in share) == (repair.bookie in members)
        if entry_id not in share:
            continue
        sources = sources_of(quorum, repair, entry_id, presence_of(a=BookiePresence.LOST))
        others = set(members) - {repair.bookie}
        assert set(sources) == (others | {repair.bookie} if action is Action.REPLACE else others)
        if A in sources:
            assert sources[-1] == A, "a lost bookie is the last source"


def test_fragment_is_read_from_a_single_source() -> None:
    repair = SlotRepair(Fragment(EntryId(0), (A, B, C)), EntryId(99), 0, Action.RESTORE)
    first = {sources_of(Quorum(3, 3, 2), repair, EntryId(e), presence_of())[0] for e in range(100)}
    assert len(first) == 1


def test_checked_bookie_keeps_its_slots() -> None:
    """RP2: it may be absent briefly; the open fragment is up to the writer."""
    for presence in (presence_of(), LOST_B):
        plan = plan_repair(ledger((A, B, C)), (), (), presence, looked_at={B})
        assert [repair.action for repair in plan.repairs] == [Action.RESTORE]
        opened = ledger((A, B, C), state=LedgerState.OPEN)
        plan = plan_repair(opened, (), (), presence, looked_at={B})
        assert plan == RepairPlan(FirstStep.NOTHING, ())


# --- The step for one slot ------------------------------------------------------------------------


@pytest.mark.parametrize("is_draining", [False, True])
@pytest.mark.parametrize("is_registered", [None, False, True])
@pytest.mark.parametrize(
    ("restored", "expected"),
    [
        (None, RepairStep.RESTORE),
        (RestoreResult.COMPLETE, RepairOutcome.WHOLE),
        (RestoreResult.INCOMPLETE, RepairOutcome.STUCK),
        (RestoreResult.NO_ROOM, RepairStep.REPLACE_PRESENT),
    ],
)
def test_restored_slot_is_replaced_only_without_room(
    is_draining: bool,
    is_registered: bool | None,
    restored: RestoreResult | None,
    expected: RepairStep | RepairOutcome,
) -> None:
    """RP2: registration does not matter, since the slot's own bookie responded."""
    found = repair_step(
        Action.RESTORE, is_draining=is_draining, restored=restored, is_registered=is_registered
    )
    assert found is expected


@pytest.mark.parametrize(
    ("is_draining", "is_registered", "expected"),
    [
        (False, None, RepairStep.LOOK_UP),
        (False, True, RepairOutcome.CHANGED),
        (False, False, RepairStep.REPLACE_LOST),
        (True, None, RepairStep.REPLACE_PRESENT),
        (True, True, RepairStep.REPLACE_PRESENT),
        (True, False, RepairStep.REPLACE_PRESENT),
    ],
)
def test_slot_is_replaced_if_its_bookie_drains_or_is_lost(
    is_draining: bool, is_registered: bool | None, expected: RepairStep | RepairOutcome
) -> None:
    """RP2."""
    found = repair_step(Action.REPLACE, is_draining=is_draining, is_registered=is_registered)
    assert found is expected


# --- The grace period -----------------------------------------------------------------------------

S = 1_000_000_000  # A second, in nanoseconds.


@pytest.mark.parametrize(
    ("looks", "left_s"),
    [
        ([(0, "x", 100)], 30),  # The first look starts the period, whatever the clock.
        ([(0, "x", 100), (0, "x", 110)], 20),
        ([(0, "x", 100), (0, "x", 130)], 0),
        ([(0, "x", 100), (0, "x", 131)], -1),
        ([(0, "x", 100), (0, "x", 110), (0, "x", 125)], 5),
        ([(0, "x", 100), (1, "x", 120)], 30),  # Each ledger has its own period.
        ([(0, "x", 100), (0, "y", 120)], 30),  # Another loss starts another period.
        ([(0, "x", 100), (0, "y", 120), (0, "x", 140)], 30),
        ([(0, "x", 100), (1, "x", 120), (0, "x", 121)], 9),
    ],
)
def test_grace_period_is_per_ledger_and_loss(
    looks: list[tuple[int, str, int]], left_s: float
) -> None:
    """RP4."""
    periods: GracePeriods[int, str] = GracePeriods(30.0)
    found = [periods.left_s(ledger, lost, at_s * S) for ledger, lost, at_s in looks]
    assert found[-1] == left_s


def test_forgotten_grace_period_restarts() -> None:
    """RP4: a writer that moved in time gets a full period at the next loss."""
    periods: GracePeriods[int, str] = GracePeriods(30.0)
    for ledger in range(3):
        periods.left_s(ledger, "x", 0)
    periods.forget(0)
    periods.forget(7)  # Ledger 7 has no period.
    assert [periods.left_s(each, "x", 10 * S) for each in range(3)] == [30, 20, 20]
    assert periods.begun() == {0, 1, 2}


def test_zero_grace_period_is_over_at_once() -> None:
    assert GracePeriods[int, str](0.0).left_s(0, "x", 5) <= 0
