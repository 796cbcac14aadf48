"""LS1, LS4: no response is sent before everything that it depends on is certain."""

import random
from typing import Final

import pytest

from rollbook.logservice.core.pending_commits import PendingCommits
from rollbook.proto.ids import EntryId

N: Final = 0


def appended(settling: PendingCommits[str], *items: str, start: int = 0) -> None:
    for index, item in enumerate(items, start):
        settling.on_appended(EntryId(index), item)


def test_entries_are_settled_in_order_as_they_are_confirmed() -> None:
    settling = PendingCommits[str]()
    appended(settling, "a", "b", "c")
    assert list(settling.on_confirmed(N, EntryId(1))) == ["a", "b"]
    assert not settling.is_certain
    assert list(settling.on_confirmed(N, EntryId(2))) == ["c"]
    assert settling.is_certain


def test_response_waits_for_the_entries_it_depends_on() -> None:
    """Otherwise a client could get the tail 1, and after a take-over it is 0."""
    settling = PendingCommits[str]()
    appended(settling, "a")
    settling.on_answered("the tail is 1")
    appended(settling, "b", start=1)
    assert list(settling.on_confirmed(N, EntryId(0))) == ["a", "the tail is 1"]


def test_nothing_in_the_successor_is_settled_before_the_first_is_closed() -> None:
    """LS1: if another server closes the first at another entry, the successor is dropped with it."""
    settling = PendingCommits[str]()
    appended(settling, "n0", "n1")
    assert settling.on_successor() == 1
    appended(settling, "follows", "m1")
    settling.on_answered("rests on m1")
    assert list(settling.on_confirmed(1, EntryId(1))) == []
    assert list(settling.on_confirmed(0, EntryId(1))) == ["n0", "n1"]
    assert not settling.is_certain
    assert list(settling.on_closed()) == ["follows", "m1", "rests on m1"]
    assert settling.is_certain


def test_roll_with_nothing_in_flight_makes_all_uncertain_until_the_close() -> None:
    """Another server may close the first ledger at that moment and append."""
    settling = PendingCommits[str]()
    appended(settling, "n0")
    settling.on_confirmed(N, EntryId(0))
    settling.on_successor()
    assert not settling.is_certain
    settling.on_answered("the tail is 1")
    assert list(settling.on_confirmed(0, EntryId(0))) == []
    assert list(settling.on_closed()) == ["the tail is 1"]


def test_second_successor_is_rejected() -> None:
    """LS3."""
    settling = PendingCommits[str]()
    settling.on_successor()
    with pytest.raises(AssertionError):
        settling.on_successor()


def test_give_up_returns_all_pending_items() -> None:
    settling = PendingCommits[str]()
    appended(settling, "a", "b")
    settling.on_answered("c")
    assert settling.give_up() == ["a", "b", "c"]
    assert len(settling) == 0
    assert list(settling.on_confirmed(N, EntryId(5))) == []


@pytest.mark.parametrize("seed", range(50))
def test_random_events_settle_each_item_once_and_in_order(seed: int) -> None:
    """Each item is settled exactly once, in the order of decisions, and only when it is certain."""
    chance = random.Random(seed)
    settling = PendingCommits[tuple[str, int, int, int]]()
    decided, told = list[tuple[str, int, int, int]](), list[tuple[str, int, int, int]]()
    ledger, closed = 0, 0
    last, confirmed = {0: -1}, {0: -1}
    for number in range(300):
        match chance.choice("aaaaqqccccrk"):
            case "a":
                last[ledger] += 1
                decided.append(("entry", number, ledger, last[ledger]))
                settling.on_appended(EntryId(last[ledger]), decided[-1])
            case "q":
                decided.append(("answer", number, ledger, last[ledger]))
                told += settling.on_answered(decided[-1])
            case "c":
                which = chance.choice([closed, ledger])
                confirmed[which] = chance.randint(confirmed[which], last[which])
                told += settling.on_confirmed(which, EntryId(confirmed[which]))
            case "r" if ledger == closed:
                ledger = settling.on_successor()
                last[ledger] = confirmed[ledger] = -1
            case "k" if ledger > closed and confirmed[closed] == last[closed]:
                closed += 1
                told += settling.on_closed()
        assert told == decided[: len(told)]
        for _, _, of_ledger, entry in told:
            assert (of_ledger, entry) <= (closed, confirmed[closed])
        waiting = decided[len(told) :]
        assert len(settling) == len(waiting)
        if waiting:
            assert waiting[0][2:] > (closed, confirmed[closed])
