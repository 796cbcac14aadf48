"""How long a request that has begun may stand still."""

from rollbook.bookie.core.partial_request_timeout import LEAST_NS, patience_ns

_MIB = 1024 * 1024
_ALLOWED_NS = 10_000_000_000


def test_up_to_a_mebibyte_has_all_the_time_there_is() -> None:
    for begun in (1, 500_000, _MIB):
        assert patience_ns(_ALLOWED_NS, begun, is_short=False) == _ALLOWED_NS


def test_stalled_request_holds_at_most_a_mebibyte_for_the_time_allowed() -> None:
    """B7: beyond a mebibyte the product of bytes and time stays the same."""
    for begun in range(_MIB, 10 * _MIB, 77_777):
        patience = patience_ns(_ALLOWED_NS, begun, is_short=False)
        assert patience >= LEAST_NS
        assert patience * begun <= _ALLOWED_NS * _MIB
    assert patience_ns(_ALLOWED_NS, 5 * _MIB, is_short=False) == _ALLOWED_NS // 5


def test_when_memory_is_short_a_second_is_enough() -> None:
    assert patience_ns(_ALLOWED_NS, 1, is_short=True) == LEAST_NS


def test_nobody_gets_more_than_is_allowed() -> None:
    for is_short in (False, True):
        assert patience_ns(LEAST_NS // 2, 99 * _MIB, is_short=is_short) == LEAST_NS // 2
