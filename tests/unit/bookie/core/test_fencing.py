"""THE fencing rule, as a table and in every order of events."""

import itertools

import pytest

from rollbook.bookie.core.fencing import Ledger, LedgerFacts
from rollbook.proto.errors import LedgerFenced, NoSuchLedger, Unauthorized
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
def test_whether_an_add_is_refused(
    facts: LedgerFacts, wanted: bool, key: bytes, recovery: bool, expected: Failure
) -> None:
    """B4: asked for is as good as durable, for adds; recovery passes; the deleted stay dead."""
    assert ledger(facts, wanted=wanted).refusal_of_add(key, is_recovery=recovery) is expected


def test_who_may_fence_or_write_a_lac() -> None:
    assert ledger(OPEN).refusal_of_control(KEY) is None
    assert ledger(FENCED).refusal_of_control(KEY) is None
    assert ledger(OPEN).refusal_of_control(OTHER) is Unauthorized
    assert ledger(DELETED).refusal_of_control(KEY) is NoSuchLedger


def test_the_first_key_shown_counts_before_it_is_durable() -> None:
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
def test_facts_come_to_the_same_in_any_order(order: tuple[str, ...]) -> None:
    """B4: nothing unfences; the highest explicit LAC stays. Only the first key is the first."""
    facts = LedgerFacts()
    for index, name in enumerate(order):
        facts = CHANGES[name](facts)
        assert facts.is_fenced == ("fence" in order[: index + 1])
    first_key = min(("key", "other key"), key=order.index)
    assert facts == LedgerFacts(KEY if first_key == "key" else OTHER, True, b"nine", 9)


def test_a_repeated_lac_takes_the_newer_packet() -> None:
    facts = LedgerFacts().with_lac_packet(5, b"old").with_lac_packet(5, b"new")
    assert facts.lac_packet == b"new"


def test_the_durable_lac_only_rises() -> None:
    made = ledger(OPEN.with_lac_packet(3, b"p"))
    assert made.last_add_confirmed == 3
    assert not made.on_durable_lac(2)
    assert made.on_durable_lac(4)
    assert made.last_add_confirmed == 4
