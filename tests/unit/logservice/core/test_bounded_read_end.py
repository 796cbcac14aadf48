"""A bounded read ends exactly at its bound, also in the middle of a block."""

import pytest

from rollbook.logservice.core.bounded_read_end import Until, cut_to_size
from rollbook.logservice.core.record_block import pack_block, stamped
from rollbook.logservice.ids import Offset, OwnerEpoch, WriterEpoch
from rollbook.logservice.messages import Records


def block(base: int, count: int, time_us: int = 0) -> bytes:
    return stamped(
        pack_block([b"x"] * count),
        base_offset=Offset(base),
        base_timestamp_us=time_us,
        owner_epoch=OwnerEpoch(1),
        writer_epoch=WriterEpoch(0),
    )


A, B, C = block(10, 3, 100), block(13, 3, 200), block(16, 4, 300)
ALL = Records((A, B, C), Offset(10), Offset(20))


def until(offset: int | None = None, timestamp_us: int | None = None) -> Until:
    return Until(None if offset is None else Offset(offset), timestamp_us)


@pytest.mark.parametrize(
    ("offset", "blocks", "end", "is_over"),
    [
        (None, (A, B, C), 20, False),
        (21, (A, B, C), 20, False),
        (20, (A, B, C), 20, True),
        (17, (A, B, C), 17, True),
        (16, (A, B), 16, True),
        (11, (A,), 11, True),
    ],
)
def test_read_ends_at_an_offset(
    offset: int | None, blocks: tuple[bytes, ...], end: int, is_over: bool
) -> None:
    assert until(offset).cut(ALL) == (Records(blocks, Offset(10), Offset(end)), is_over)


@pytest.mark.parametrize(
    ("time_us", "blocks", "end", "is_over"),
    [(301, (A, B, C), 20, False), (300, (A, B), 16, True), (101, (A,), 13, True)],
)
def test_read_ends_at_a_time(
    time_us: int, blocks: tuple[bytes, ...], end: int, is_over: bool
) -> None:
    assert until(None, time_us).cut(ALL) == (Records(blocks, Offset(10), Offset(end)), is_over)


def test_earlier_of_two_read_bounds_counts() -> None:
    assert until(12, 200).cut(ALL) == (Records((A,), Offset(10), Offset(12)), True)
    assert until(15, 101).cut(ALL) == (Records((A,), Offset(10), Offset(13)), True)


@pytest.mark.parametrize("end", [until(10), until(5), until(None, 100), until(None, 0)])
def test_records_after_the_bound_are_not_returned(end: Until) -> None:
    assert end.cut(ALL) == (None, True)


def test_bound_at_the_start_is_reached_at_once() -> None:
    assert until(10).is_reached(Offset(10))
    assert not until(11).is_reached(Offset(10))
    assert not until(None, 5).is_reached(Offset(10))


@pytest.mark.parametrize(
    ("records_max", "bytes_max", "blocks", "end"),
    [
        (100, 10**6, (A, B, C), 20),
        (10, 10**6, (A, B, C), 20),
        (9, 10**6, (A, B, C), 19),
        (6, 10**6, (A, B), 16),
        (1, 10**6, (A,), 11),
        (100, len(A) + len(B), (A, B), 16),
        (100, 1, (A,), 13),
    ],
)
def test_records_are_cut_to_size_but_keep_at_least_one(
    records_max: int, bytes_max: int, blocks: tuple[bytes, ...], end: int
) -> None:
    found = cut_to_size(ALL, records_max, bytes_max)
    assert found == Records(blocks, Offset(10), Offset(end))


def test_first_block_may_begin_before_the_start_offset() -> None:
    inner = Records((A, B), Offset(12), Offset(16))
    assert cut_to_size(inner, 1, 10**6) == Records((A,), Offset(12), Offset(13))
    assert cut_to_size(inner, 2, 10**6) == Records((A, B), Offset(12), Offset(14))
