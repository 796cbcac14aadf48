"""LS2, LS3: what a new owner does with the last two ledgers."""

import random
from typing import Final

import pytest

from rollbook.logservice.core.control_blocks import NO_LEDGER, Follows
from rollbook.logservice.core.ledger_list import LedgerList, draw_log_uid
from rollbook.logservice.core.segments_kept_at_takeover import (
    Ended,
    judge,
    pause_s,
    stands_down,
    to_end,
)
from rollbook.logservice.ids import Offset, OwnerEpoch, SegmentId
from rollbook.logservice.log_config import LogConfig
from rollbook.proto.ids import NO_ENTRY, EntryId, LedgerId

N: Final = LedgerId(10)
M: Final = LedgerId(11)
EMPTY: Final = LedgerList(draw_log_uid(random.Random(1)), LogConfig(), created_us=0)


def listed(*ledgers: LedgerId) -> LedgerList:
    found = EMPTY
    for ledger_id in ledgers:
        found = found.with_successor(ledger_id, "", 0)
    return found


def ended(ledger_id: LedgerId, last_entry: int, follows: tuple[int, int] | None) -> Ended:
    segment = next(each for each in listed(N, M).segments if each.ledger_id == ledger_id)
    said = Follows(LedgerId(follows[0]), EntryId(follows[1]), b"") if follows else None
    return Ended(segment, EntryId(last_entry), said, bytes=0)


def kept_of(*found: Ended) -> list[LedgerId]:
    kept, discarded = judge(found)
    assert [*kept, *discarded] == list(found)
    return [each.segment.ledger_id for each in kept]


FIRST: Final = ended(N, 41, (NO_LEDGER, NO_ENTRY))


def test_successor_that_names_its_predecessors_end_is_kept() -> None:
    assert kept_of(FIRST, ended(M, 7, (N, 41))) == [N, M]


@pytest.mark.parametrize("named", [40, 42])
def test_a_successor_that_names_another_end_is_discarded_as_a_whole(named: int) -> None:
    """Recovery dropped an entry that the writer had sent, or kept one that it did not know of.

    If the successor were kept, a record would be missing or be there twice.
    """
    assert kept_of(FIRST, ended(M, 7, (N, named))) == [N]


def test_a_successor_of_another_ledger_is_discarded() -> None:
    assert kept_of(FIRST, ended(M, 7, (99, 41))) == [N]


def test_a_ledger_without_an_entry_is_discarded() -> None:
    assert kept_of(FIRST, ended(M, -1, None)) == [N]
    assert kept_of(ended(M, -1, None)) == []


def test_successor_of_a_discarded_ledger_is_discarded() -> None:
    assert kept_of(ended(N, -1, None), ended(M, 7, (N, -1))) == []


def test_single_unclosed_ledger_is_kept() -> None:
    """The server that listed its predecessor as CLOSED has checked it."""
    assert kept_of(ended(M, 7, (N, 41))) == [M]
    assert kept_of(ended(M, 7, None)) == [M]


def test_last_and_unclosed_ledgers_have_to_be_ended() -> None:
    """The last ledger always, its predecessor unless it is listed as CLOSED."""
    assert list(to_end(listed())) == []
    one = listed(N)
    assert list(to_end(one)) == list(one.segments)
    two = listed(N, M)
    assert list(to_end(two)) == list(two.segments)
    settled = two.with_closed(SegmentId(0), next_offset=Offset(5), last_timestamp_us=0, bytes=9)
    assert list(to_end(settled)) == list(settled.segments[1:])
    three = settled.with_successor(LedgerId(12), "", 0)
    assert list(to_end(three)) == list(three.segments[1:])


def test_fencing_owner_yields_only_to_a_newer_owner() -> None:
    """If two owners that fenced each other both yielded, the log would have no owner."""
    assert stands_down(OwnerEpoch(3), OwnerEpoch(4))
    assert not stands_down(OwnerEpoch(3), OwnerEpoch(3))


def test_retry_pauses_of_two_owners_differ() -> None:
    pauses = [[pause_s(attempt, random.Random(seed)) for attempt in range(10)] for seed in (1, 2)]
    assert pauses[0] != pauses[1]
    assert all(0.005 <= each[0] <= 0.02 for each in pauses)
    assert all(0.25 <= each[-1] <= 1.0 for each in pauses)
    assert pause_s(10_000, random.Random(1)) <= 1.0
