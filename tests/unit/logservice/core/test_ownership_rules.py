"""Which server may take a log, as tables."""

import pytest

from rollbook.logservice.core.ledger_list import LedgerList
from rollbook.logservice.core.owner_placement import Suggestions, server_name
from rollbook.logservice.core.ownership_rules import (
    Claim,
    claim_by_list,
    claim_on_living,
    has_no_owner,
    released_by,
    suggested_server,
)
from rollbook.logservice.ids import ServerId, ServerInfo
from rollbook.proto.errors import NotOwner, OwnerChanging
from tests.unit.logservice.lists import ANNA, BERT, EMPTY, NAME

S = 1_000_000_000


def alive(_: ServerId) -> bool:
    return True


def gone(_: ServerId) -> bool:
    return False


@pytest.mark.parametrize(
    ("owner", "takes_logs", "is_alive", "claim"),
    [
        (None, True, alive, Claim("it had no owner")),
        (ANNA, True, alive, Claim("this server has lost it", needs_suggestion=False)),
        (ANNA, False, alive, Claim("it was lost", releases=True)),
        (BERT, True, gone, Claim("its owner bert~1 is gone")),
        (BERT, False, gone, Claim("its owner bert~1 is gone")),
        (BERT, True, alive, None),
    ],
)
def test_claim_depends_on_the_listed_owner(
    owner: ServerInfo | None, takes_logs: bool, is_alive: object, claim: Claim | None
) -> None:
    assert callable(is_alive)
    assert claim_by_list(owner, ANNA.server_id, is_alive, takes_logs=takes_logs) == claim


def test_responding_owner_is_named_in_not_owner() -> None:
    owned = EMPTY.with_owner(BERT)
    with pytest.raises(NotOwner) as raised:
        claim_on_living(owned, refuses=False, wait_ns=0)
    assert raised.value.ids["owner"] == BERT.address
    assert raised.value.ids["owner_epoch"] == owned.owner_epoch


def test_log_of_an_owner_that_refuses_connections_is_taken_over() -> None:
    claim = claim_on_living(EMPTY.with_owner(BERT), refuses=True, wait_ns=0)
    assert claim.is_rude
    assert claim.needs_suggestion
    assert claim.passed_over == ("bert",)


@pytest.mark.parametrize(("wait_ns", "retry_ms"), [(300_000_000, 300), (60 * S, 1000)])
def test_recently_taken_log_is_not_taken_again(wait_ns: int, retry_ms: int) -> None:
    """SV2."""
    with pytest.raises(OwnerChanging) as raised:
        claim_on_living(EMPTY.with_owner(BERT), refuses=True, wait_ns=wait_ns)
    assert raised.value.ids["retry_after_ms"] == retry_ms


def test_preferred_server_is_suggested_if_alive_and_not_passed_over() -> None:
    suggestions = Suggestions(["anna", "bert", "carl"])
    first = suggestions.server_for(NAME)
    assert suggested_server(NAME, "", suggestions) == first
    other = next(each for each in suggestions.names if each != first)
    assert suggested_server(NAME, other, suggestions) == other
    assert suggested_server(NAME, other, suggestions, (other,)) == first
    assert suggested_server(NAME, "dora", suggestions) == first, "dora is not alive"
    assert suggested_server(NAME, "", suggestions, suggestions.names) is None


def opened_after(listed: LedgerList) -> LedgerList:
    return listed.with_owner(ANNA)


OF_ANNA, OF_BERT = EMPTY.with_owner(ANNA), EMPTY.with_owner(BERT)


@pytest.mark.parametrize(
    ("listed", "is_alive", "is_opening", "seen", "expected"),
    [
        (EMPTY, alive, False, None, True),
        (OF_BERT, alive, False, None, False),
        (OF_BERT, gone, False, None, True),
        (OF_ANNA, alive, False, None, True),  # This server has lost the log.
        (OF_ANNA, alive, True, None, False),  # The list may be that of the opening.
        (OF_ANNA, alive, True, OF_ANNA, True),  # The list is older than the opening.
        (opened_after(OF_ANNA), alive, True, OF_ANNA, False),
    ],
)
def test_lack_of_an_owner_depends_on_list_and_opening(
    listed: LedgerList,
    is_alive: object,
    is_opening: bool,
    seen: LedgerList | None,
    expected: bool,
) -> None:
    """As seen by anna, which does not own the log."""
    assert callable(is_alive)
    found = has_no_owner(listed, ANNA.server_id, is_alive, is_opening=is_opening, seen=seen)
    assert found is expected


def test_only_the_listed_owner_releases_a_list() -> None:
    assert released_by(OF_ANNA, ANNA.server_id).owner is None
    assert released_by(OF_BERT, ANNA.server_id) is OF_BERT
    assert released_by(EMPTY, ANNA.server_id) is EMPTY
    assert server_name(ANNA.server_id) == "anna"
