"""Which segments have expired, and which need an owner. Segments end at 999 µs, 1999 µs, …"""

from dataclasses import replace

import pytest

from rollbook.logservice.core.ledger_list import LedgerList
from rollbook.logservice.core.retention import Expiry, find_expired, is_free, roll_age_s
from rollbook.logservice.ids import Offset
from rollbook.logservice.log_config import LogConfig
from tests.unit.logservice.lists import EMPTY, closed, rolled

S = 1_000_000
DAY = LogConfig(retention_age_s=86_400, roll_age_s=3600)


def aged(*ends: int, config: LogConfig = DAY) -> LedgerList:
    return replace(rolled(*ends), config=config)


def test_without_retention_nothing_expires() -> None:
    assert find_expired(aged(10, 20, config=LogConfig()), 10**18, None) is None
    assert find_expired(replace(EMPTY, config=DAY), 10**18, None) is None


def test_segments_expire_from_the_front_with_their_youngest_record() -> None:
    listed = aged(10, 20, 30)
    assert find_expired(listed, 86_400 * S + 998, None) is None
    assert find_expired(listed, 86_400 * S + 999, None) == Expiry(Offset(10), needs_owner=False)
    assert find_expired(listed, 86_400 * S + 1999, None) == Expiry(Offset(20), needs_owner=False)


def test_young_segment_protects_later_segments() -> None:
    listed = aged(10, 20, 30)
    young = replace(listed.segments[1], last_timestamp_us=10**15)
    listed = replace(listed, segments=(listed.segments[0], young, *listed.segments[2:]))
    expiry = find_expired(listed, 86_400 * S + 2999, None)
    assert expiry is not None
    assert expiry.head == 10


def test_size_retention_never_cuts_below_its_limit() -> None:
    """Segments of 1000, 2000 and 3000 bytes, and an open one."""

    def head(bytes_max: int) -> int | None:
        listed = aged(10, 20, 30, config=LogConfig(retention_bytes=bytes_max))
        expiry = find_expired(listed, 0, None)
        return None if expiry is None else expiry.head

    assert [head(size) for size in (6000, 5001, 5000, 3001, 3000, 1)] == [
        None,
        None,
        10,
        10,
        20,
        20,
    ]
    assert head(0) == 30  # All closed segments expire.


def test_mark_keeps_its_segment_and_later_ones() -> None:
    """LL6."""
    listed, late = aged(10, 20, 30), 86_400 * S + 2999
    assert find_expired(listed, late, Offset(0)) is None
    assert find_expired(listed, late, Offset(9)) is None
    for mark, head in ((10, 10), (19, 10), (20, 20)):
        expiry = find_expired(listed, late, Offset(mark))
        assert expiry is not None
        assert expiry.head == head


def test_expiry_of_the_last_closed_segment_needs_an_owner() -> None:
    """LL4: the last closed segment is freed once another one has begun."""
    late = 86_400 * S + 2999
    written = aged(10, 20, 30)
    assert find_expired(written, late, None) == Expiry(Offset(30), needs_owner=True)
    idle = closed(written, 3, 40, at_us=3999)
    assert find_expired(idle, late, None) == Expiry(Offset(30), needs_owner=False)
    assert find_expired(idle, late + 1000, None) == Expiry(Offset(40), needs_owner=True)


def test_log_with_only_an_empty_segment_does_not_expire() -> None:
    late = 86_400 * S * 10
    idle = closed(aged(10), 1, 10, at_us=1999).with_head(Offset(10), Offset(10))
    assert [segment.records for segment in idle.segments] == [0]
    assert find_expired(idle, late, None) is None


def test_segment_left_open_by_a_dead_owner_is_closed_by_another() -> None:
    lonely = aged()
    opened_for_s = 2 * 3600 + 86_400
    assert find_expired(lonely, opened_for_s * S - 1, None) is None
    assert find_expired(lonely, opened_for_s * S, None) == Expiry(Offset(0), needs_owner=True)


def test_a_sealed_log_expires_without_an_owner() -> None:
    sealed = closed(aged(10), 1, 20, at_us=1999).with_sealed(Offset(20))
    late = 86_400 * S + 1999
    assert find_expired(sealed, late, None) == Expiry(Offset(20), needs_owner=False)
    assert find_expired(sealed.with_head(Offset(20), Offset(20)), late, None) is None


def test_a_deleted_log_is_free_after_its_grace() -> None:
    deleted = aged(10).with_deleted(1000)
    assert (is_free(deleted, 999), is_free(deleted, 1000)) == (False, True)
    assert not is_free(aged(10), 10**18)
    assert find_expired(deleted, 10**18, None) is None


@pytest.mark.parametrize(
    ("retention_s", "rolls_s"), [(None, 3600), (7200, 3600), (60, 60)], ids=str
)
def test_segment_rolls_no_later_than_its_retention_age(
    retention_s: int | None, rolls_s: int
) -> None:
    assert roll_age_s(LogConfig(roll_age_s=3600, retention_age_s=retention_s)) == rolls_s
