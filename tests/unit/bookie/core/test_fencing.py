"""THE fencing rule, as a table and in every order of events; and the other refusals of adds."""

import itertools

import pytest

from rollbook.bookie.core.fencing import AddLimits, Ledger, LedgerFacts
from rollbook.proto.errors import (
    BookieReadOnly,
    LedgerFenced,
    NoSuchLedger,
    Overloaded,
    Unauthorized,
)
from rollbook.proto.ids import LedgerId
from rollbook.proto.wire.add_columns import AddGroup
from rollbook.proto.wire.messages import Failure

KEY, OTHER = b"k" * 20, b"o" * 20


def ledger(facts: LedgerFacts, *, wanted: bool = False) -> Ledger:
    made = Ledger(7, facts)
    made.fence_is_wanted = made.fence_is_wanted or wanted
    return made


OPEN = LedgerFacts(KEY)
FENCED = OPEN.with_fence()
DELETED = OPEN.with_deletion(1000)


@pytest.mark.parametrize(
    ("facts", "wanted", "key", "recovery", "expected"),
    [
        (LedgerFacts(), False, KEY, False, None),
        (OPEN, False, KEY, False, None),
        (OPEN, False, OTHER, False, Unauthorized),
        (OPEN, True, KEY, False, LedgerFenced),
        (OPEN, True, KEY, True, None),
        (FENCED, False, KEY, False, LedgerFenced),
        (FENCED, False, KEY, True, None),
        (FENCED, False, OTHER, True, Unauthorized),
        (DELETED, False, KEY, False, LedgerFenced),
        (DELETED, False, KEY, True, LedgerFenced),
    ],
)
def test_refusal_of_adds_by_ledger_state(
    facts: LedgerFacts, wanted: bool, key: bytes, recovery: bool, expected: Failure
) -> None:
    """B4: a requested fence already refuses adds but not recovery; deleted ledgers refuse all adds."""
    assert ledger(facts, wanted=wanted).refusal_of_add(key, is_recovery=recovery) is expected


def test_fence_and_lac_writes_need_the_key_and_a_live_ledger() -> None:
    assert ledger(OPEN).refusal_of_control(KEY) is None
    assert ledger(FENCED).refusal_of_control(KEY) is None
    assert ledger(OPEN).refusal_of_control(OTHER) is Unauthorized
    assert ledger(DELETED).refusal_of_control(KEY) is NoSuchLedger


def test_first_key_shown_is_binding_before_it_is_durable() -> None:
    made = Ledger(7, LedgerFacts())
    made.show_key(KEY)
    made.show_key(OTHER)
    assert made.refusal_of_add(OTHER, is_recovery=False) is Unauthorized


CHANGES = {
    "key": lambda facts: facts.with_key(KEY),
    "other key": lambda facts: facts.with_key(OTHER),
    "fence": lambda facts: facts.with_fence(),
    "lac 5": lambda facts: facts.with_lac_packet(5, b"five"),
    "lac 9": lambda facts: facts.with_lac_packet(9, b"nine"),
}


@pytest.mark.parametrize("order", list(itertools.permutations(CHANGES)))
def test_facts_do_not_depend_on_the_order_of_changes(order: tuple[str, ...]) -> None:
    """B4: no change removes a fence; the highest explicit LAC and the first key stay."""
    facts = LedgerFacts()
    for index, name in enumerate(order):
        facts = CHANGES[name](facts)
        assert facts.is_fenced == ("fence" in order[: index + 1])
    first_key = min(("key", "other key"), key=order.index)
    assert facts == LedgerFacts(KEY if first_key == "key" else OTHER, True, b"nine", 9)


def test_repeated_lac_keeps_the_newer_packet() -> None:
    facts = LedgerFacts().with_lac_packet(5, b"old").with_lac_packet(5, b"new")
    assert facts.lac_packet == b"new"


def test_durable_lac_never_falls() -> None:
    made = ledger(OPEN.with_lac_packet(3, b"p"))
    assert made.last_add_confirmed == 3
    assert not made.on_durable_lac(2)
    assert made.on_durable_lac(4)
    assert made.last_add_confirmed == 4


class Group(AddGroup):
    def pack_replies(self, error: Failure = None) -> bytes:
        raise NotImplementedError


def group(*, is_recovery: bool = False, is_urgent: bool = False, key: bytes = KEY) -> AddGroup:
    return Group(
        LedgerId(7),
        key,
        is_recovery=is_recovery,
        is_high_priority=is_urgent,
        is_sync_deferred=False,
    )


ORDINARY, URGENT = group(), group(is_urgent=True)
RECOVERY, URGENT_RECOVERY = group(is_recovery=True), group(is_recovery=True, is_urgent=True)
LIMITS = AddLimits(
    is_read_only=False,
    takes_urgent=False,
    may_have_lost_fences=False,
    old_below=0,
    queued_bytes=100,
    queued_bytes_max=100,
)
READ_ONLY = LIMITS._replace(is_read_only=True)
ON_RESERVE = READ_ONLY._replace(takes_urgent=True)
LOST_FENCES = LIMITS._replace(may_have_lost_fences=True)
LOST_ON_RESERVE = ON_RESERVE._replace(may_have_lost_fences=True)


@pytest.mark.parametrize(
    ("limits", "ordinary", "urgent", "recovery", "urgent_recovery"),
    [
        (LIMITS, None, None, None, None),
        (READ_ONLY, BookieReadOnly, BookieReadOnly, BookieReadOnly, BookieReadOnly),
        (ON_RESERVE, BookieReadOnly, None, BookieReadOnly, None),
        (LOST_FENCES, BookieReadOnly, BookieReadOnly, None, None),
        (LOST_ON_RESERVE, BookieReadOnly, BookieReadOnly, BookieReadOnly, None),
        (LIMITS._replace(queued_bytes=101), Overloaded, None, None, None),
        (LIMITS._replace(queued_bytes=200), Overloaded, None, None, None),
        (LIMITS._replace(queued_bytes=201), Overloaded, Overloaded, Overloaded, Overloaded),
    ],
)
def test_refusal_of_adds_by_bookie_state(
    limits: AddLimits,
    ordinary: Failure,
    urgent: Failure,
    recovery: Failure,
    urgent_recovery: Failure,
) -> None:
    assert limits.refusal_of_group(ORDINARY) is ordinary
    assert limits.refusal_of_group(URGENT) is urgent
    assert limits.refusal_of_group(RECOVERY) is recovery
    assert limits.refusal_of_group(URGENT_RECOVERY) is urgent_recovery


def test_ledgers_below_the_old_limit_accept_only_recovery_adds() -> None:
    """B13: fences of ledgers below this id may be lost. A known key or fence is reported first."""
    limits = LIMITS._replace(old_below=8)
    assert limits.refusal_of_add(ORDINARY, ledger(OPEN)) is BookieReadOnly
    assert limits.refusal_of_add(URGENT, ledger(OPEN)) is BookieReadOnly
    assert limits.refusal_of_add(RECOVERY, ledger(OPEN)) is None
    assert limits.refusal_of_add(group(key=OTHER), ledger(OPEN)) is Unauthorized
    assert limits.refusal_of_add(ORDINARY, ledger(FENCED)) is LedgerFenced
    assert LIMITS._replace(old_below=7).refusal_of_add(ORDINARY, ledger(OPEN)) is None


def test_add_to_a_suspect_ledger_is_refused_as_overloaded() -> None:
    suspect = ledger(OPEN)
    suspect.is_suspect = True
    assert LIMITS.refusal_of_add(ORDINARY, suspect) is Overloaded
