"""Each rule of the ledger list: changes that keep it are allowed, changes that break it are refused."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rollbook.logservice.core.ledger_list import (
    LEDGER_OF_LOG,
    LEDGER_OF_NAME,
    LEDGER_OF_VERSION,
    FlawedList,
    LedgerList,
    ListedLogState,
    custom_metadata,
)
from rollbook.logservice.ids import Offset, OwnerEpoch, SegmentId
from rollbook.logservice.log_config import LogConfig
from rollbook.proto.errors import (
    InvalidRequest,
    LogDeleted,
    LogSealed,
    MetadataConflict,
    NoSuchLog,
    OwnerFenced,
)
from rollbook.proto.ids import LedgerId
from tests.unit.logservice.lists import ANNA, BERT, EMPTY, NAME, UID, closed, rolled

L7 = LedgerId(7)
Change = Callable[[], LedgerList]


def ledgers(listed: LedgerList) -> list[int]:
    return [segment.ledger_id for segment in listed.segments]


# --- Rolling ----------------------------------------------------------------------------------


def test_a_log_grows_segment_by_segment_without_a_gap() -> None:
    listed = rolled(10, 10, 30)
    assert [(s.base_offset, s.next_offset) for s in listed.segments] == [
        (0, 10),
        (10, 10),
        (10, 30),
        (30, None),
    ]
    assert [s.segment_id for s in listed.segments] == [0, 1, 2, 3]
    assert listed.tail is None
    assert closed(listed, 3, 31).tail == 31


def test_at_most_two_segments_are_unclosed() -> None:
    """LL1: a second roll waits until the predecessor of the first is closed."""
    twice = rolled(10).with_successor(L7, "size", 0)
    assert [s.segment_id for s in twice.unclosed] == [1, 2]
    with pytest.raises(MetadataConflict):
        twice.with_successor(LedgerId(8), "size", 0)
    closed(twice, 1, 20).with_successor(LedgerId(8), "size", 0)


def test_base_offset_needs_a_closed_predecessor() -> None:
    """LL1."""
    twice = rolled(10).with_successor(L7, "size", 0)
    assert twice.segments[-1].base_offset is None
    with pytest.raises(MetadataConflict):
        closed(twice, 2, 30)
    assert closed(twice, 1, 20).segments[-1].base_offset == 20


def test_a_segment_is_closed_once() -> None:
    """LL2."""
    listed = closed(rolled(10), 1, 20)
    assert closed(listed, 1, 20) is listed
    with pytest.raises(MetadataConflict):
        closed(listed, 1, 21)
    with pytest.raises(MetadataConflict):
        closed(listed, 9, 21)
    with pytest.raises(InvalidRequest):
        closed(rolled(10), 1, 9)


def test_discarding_includes_later_segments_and_bars_reuse() -> None:
    """LL2, LL3."""
    twice = rolled(10).with_successor(L7, "size", 0)
    with pytest.raises(MetadataConflict):
        twice.with_discarded(SegmentId(2))  # The predecessor must be CLOSED first.
    both = twice.with_discarded(SegmentId(1))  # Segments listed after it are discarded with it.
    assert (both.tail, len(both.discarded), both.discarded[-1]) == (10, 2, L7)
    listed = closed(twice, 1, 20).with_discarded(SegmentId(2))
    assert (listed.tail, listed.discarded) == (20, (L7,))
    with pytest.raises(MetadataConflict):
        listed.with_discarded(SegmentId(1))  # A CLOSED segment cannot be discarded.
    with pytest.raises(MetadataConflict):
        listed.with_successor(L7, "size", 0)  # A discarded ledger cannot be listed again.
    again = listed.with_successor(LedgerId(8), "opened", 0)
    assert again.segments[-1].segment_id == 3  # Segment ids are not reused.
    assert again.without_discarded([L7, LedgerId(99)]).discarded == ()


def test_the_first_segment_is_discarded_only_while_nothing_was_written() -> None:
    first = EMPTY.with_owner(ANNA).with_successor(L7, "created", 0)
    assert first.with_discarded(SegmentId(0)).with_successor(LedgerId(8), "opened", 0).tail is None
    truncated = rolled(10).with_head(Offset(10), Offset(10), is_begun=True)
    assert len(truncated.segments) == 1
    with pytest.raises(MetadataConflict):
        truncated.with_discarded(SegmentId(1))


def test_time_never_goes_back_from_segment_to_segment() -> None:
    listed = closed(rolled(10), 1, 20, at_us=500_000)
    listed = listed.with_successor(L7, "age", 3)
    assert listed.segments[-1].first_timestamp_us == 500_000


# --- The head ---------------------------------------------------------------------------------


def test_truncation_is_exact_and_takes_whole_ledgers() -> None:
    """LL3, LL4."""
    listed = rolled(10, 20, 30).with_head(Offset(25), Offset(30))
    assert (listed.head, ledgers(listed), listed.discarded) == (25, [102, 103], (100, 101))


def test_head_never_moves_back_or_beyond_the_confirmed_tail() -> None:
    """LL4."""
    listed = rolled(10, 20).with_head(Offset(15), Offset(20))
    assert listed.with_head(Offset(15), Offset(20)) is listed
    assert listed.with_head(Offset(3), Offset(20)) is listed
    with pytest.raises(InvalidRequest):
        listed.with_head(Offset(26), Offset(25))
    assert (
        listed.with_head(Offset(25), Offset(25)).head == 25
    )  # The new head is in the open segment.


def test_truncation_keeps_the_newest_log_memory() -> None:
    """LL4: each segment starts with the log's memory; an unclosed one may not have started yet."""
    begun = rolled(10, 20)
    assert ledgers(begun.with_head(Offset(20), Offset(20))) == [101, 102]
    assert ledgers(begun.with_head(Offset(20), Offset(20), is_begun=True)) == [102]
    rolling = begun.with_successor(L7, "size", 0)  # 101 is closed, 102 and 7 are not.
    assert ledgers(rolling.with_head(Offset(20), Offset(20))) == [101, 102, 7]
    assert ledgers(rolling.with_head(Offset(20), Offset(20), is_begun=True)) == [102, 7]
    all_closed = closed(begun, 2, 30)
    assert ledgers(all_closed.with_head(Offset(30), Offset(30))) == [102]
    one = closed(EMPTY.with_owner(ANNA).with_successor(L7, "created", 0), 0, 5)
    assert ledgers(one.with_head(Offset(5), Offset(5), is_begun=True)) == [7]


def test_later_truncation_removes_segments_an_earlier_one_kept() -> None:
    listed = rolled(10, 20).with_head(Offset(20), Offset(20))
    listed = closed(listed, 2, 30).with_successor(L7, "size", 0)
    assert ledgers(listed.with_head(Offset(21), Offset(30))) == [102, 7]
    assert ledgers(listed.with_head(Offset(0), Offset(30))) == [102, 7]


# --- Owners, final states -----------------------------------------------------------------------------


def test_each_owner_gets_the_next_epoch() -> None:
    """LL5."""
    listed = EMPTY.with_owner(ANNA)
    assert (listed.owner, listed.owner_epoch) == (ANNA, 1)
    released = listed.with_released()
    assert (released.owner, released.owner_epoch) == (None, 1)
    taken = released.with_owner(BERT)
    assert taken.with_successor(L7, "opened", 0).segments[0].owner_epoch == 2
    taken.check_owner(OwnerEpoch(2))
    with pytest.raises(OwnerFenced) as fenced:
        taken.check_owner(OwnerEpoch(1))
    assert fenced.value.ids["owner"] == "bert:7400"


def test_log_is_sealed_at_its_tail_and_permanently() -> None:
    open_, done = rolled(10), closed(rolled(10), 1, 20)
    with pytest.raises(MetadataConflict):
        open_.with_sealed(Offset(10))
    with pytest.raises(MetadataConflict):
        done.with_sealed(Offset(10))
    sealed = done.with_sealed(Offset(20))
    assert sealed.with_sealed(Offset(20)) is sealed
    changes: list[Change] = [
        lambda: sealed.with_owner(BERT),
        lambda: sealed.with_successor(L7, "size", 0),
        lambda: sealed.with_sealed(Offset(21)),
    ]
    for change in changes:
        with pytest.raises(LogSealed):
            change()
    assert sealed.with_head(Offset(20), Offset(20)).head == 20  # Truncation is still allowed.
    assert sealed.with_config(LogConfig(description="archive")).state is ListedLogState.SEALED


def test_deleted_log_refuses_changes_and_condemns_all_ledgers() -> None:
    """LL3."""
    deleted = rolled(10, 20).with_head(Offset(15), Offset(20)).with_deleted(5)
    assert deleted.with_deleted(99) is deleted
    changes: list[Change] = [
        lambda: deleted.with_owner(BERT),
        lambda: deleted.with_successor(L7, "size", 0),
        lambda: deleted.with_head(Offset(20), Offset(20)),
        lambda: deleted.with_config(LogConfig()),
        lambda: deleted.with_sealed(Offset(20)),
    ]
    for change in changes:
        with pytest.raises(LogDeleted):
            change()
    rolled(10).require_living(NAME)
    with pytest.raises(LogDeleted) as refused:
        deleted.require_living(NAME)
    assert refused.value.ids == {"log": str(NAME), "free_at_us": 5}
    condemned = deleted.with_ledgers_condemned()
    with pytest.raises(NoSuchLog):  # The log cannot be undeleted.
        condemned.require_living(NAME)
    assert (ledgers(condemned), condemned.discarded) == ([], (100, 101, 102))
    with pytest.raises(MetadataConflict):
        rolled(10).with_ledgers_condemned()


def test_ledger_metadata_names_its_log_and_list_version() -> None:
    assert custom_metadata(NAME, UID, 12) == {
        LEDGER_OF_LOG: b"30313233343536373839616263646566",
        LEDGER_OF_VERSION: b"12",
        LEDGER_OF_NAME: b"default/orders",
    }


# --- Values -----------------------------------------------------------------------------------


def test_list_that_breaks_a_rule_is_rejected() -> None:
    """LL1, LL2, LL4."""
    listed = rolled(10, 20, 30)
    first, second, third, last = listed.segments
    for segments in (
        (replace(first, next_offset=None), second, third, last),
        (first, replace(second, base_offset=Offset(9)), third, last),
        (first, third, last),
        (second, first, third, last),
        (first, second, third, replace(last, segment_id=SegmentId(2))),
        (first, second, third, replace(last, segment_id=SegmentId(4))),
        (first, second, third, replace(last, ledger_id=first.ledger_id)),
        (first, second, third, replace(last, base_offset=Offset(31))),
        (replace(first, bytes=-1), second, third, last),
        (replace(first, last_timestamp_us=-1), second, third, last),
    ):
        with pytest.raises(FlawedList):
            replace(listed, segments=segments)
    wrongs: list[dict[str, Any]] = [
        {"head": Offset(-1)},
        {"uid": b""},
        {"state": ListedLogState.SEALED},
        {"state": ListedLogState.DELETED},
        {"free_at_us": 1},
        {"discarded": (first.ledger_id,)},
        {"next_segment_id": SegmentId(3)},
        {"segments": (third, last)},
    ]
    for wrong in wrongs:
        with pytest.raises(FlawedList):
            replace(listed, **wrong)
