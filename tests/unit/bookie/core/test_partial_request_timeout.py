"""The time for which a partial request may stall."""

import pytest

from rollbook.bookie.core.partial_request_timeout import (
    LEAST_NS,
    PartialRequestProgress,
    patience_ns,
)

_MIB = 1024 * 1024
_ALLOWED_NS = 10_000_000_000


def test_requests_up_to_one_mebibyte_get_the_full_timeout() -> None:
    for begun in (1, 500_000, _MIB):
        assert patience_ns(_ALLOWED_NS, begun, is_short=False) == _ALLOWED_NS


def test_timeout_above_one_mebibyte_shrinks_with_request_size() -> None:
    """B7: beyond a mebibyte the product of bytes and time stays the same."""
    for begun in range(_MIB, 10 * _MIB, 77_777):
        patience = patience_ns(_ALLOWED_NS, begun, is_short=False)
        assert patience >= LEAST_NS
        assert patience * begun <= _ALLOWED_NS * _MIB
    assert patience_ns(_ALLOWED_NS, 5 * _MIB, is_short=False) == _ALLOWED_NS // 5


def test_timeout_is_minimal_when_memory_is_short() -> None:
    assert patience_ns(_ALLOWED_NS, 1, is_short=True) == LEAST_NS


def test_timeout_never_exceeds_the_configured_one() -> None:
    for is_short in (False, True):
        assert patience_ns(LEAST_NS // 2, 99 * _MIB, is_short=is_short) == LEAST_NS // 2


_KIB = 1024


@pytest.mark.parametrize(
    ("begun_kib", "restarts"),
    [
        ([1], [True]),  # The request began.
        ([1, 2, 64], [True, False, False]),
        ([1, 65], [True, True]),  # 64 KiB were received.
        ([1, 33, 65, 66], [True, False, True, False]),  # 64 KiB in two chunks count too.
        ([1, 65, 128, 129], [True, True, False, True]),  # Bytes count from the last restart.
    ],
)
def test_timeout_restarts_with_every_64_kib_received(
    begun_kib: list[int], restarts: list[bool]
) -> None:
    """B7."""
    progress = PartialRequestProgress()
    found = [
        progress.try_restart(kib * _KIB, is_new=index == 0) for index, kib in enumerate(begun_kib)
    ]
    assert found == restarts


def test_next_request_restarts_the_timeout() -> None:
    """B7: this holds however little of it has arrived."""
    progress = PartialRequestProgress()
    assert progress.try_restart(100 * _KIB, is_new=True)
    assert progress.try_restart(5, is_new=True)
    assert not progress.try_restart(6, is_new=False)
