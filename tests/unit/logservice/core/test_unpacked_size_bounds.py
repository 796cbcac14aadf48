"""LB3: blocks that are opened together unpack to a bounded size, and quotas count what they unpack to."""

import struct

import pytest

from rollbook.logservice.core.bounded_read_end import cut_to_size
from rollbook.logservice.core.record_block import (
    OPENED_BYTES_MAX,
    Codec,
    opened_bytes_of,
    opened_together,
    pack_block,
)
from rollbook.logservice.ids import Offset
from rollbook.logservice.log_config import BATCH_BYTES_CEILING
from rollbook.logservice.messages import Records
from tests.unit.logservice.core.blocks import stamped_at

MIB = 1024 * 1024
PLAIN = stamped_at(pack_block([b"as it is"]))


def packed(size: int, base_offset: int = 0) -> bytes:
    return stamped_at(pack_block([bytes(size)], codec=Codec.ZSTD), base_offset)


def test_size_is_the_larger_of_stored_and_unpacked() -> None:
    """LB3"""
    assert opened_bytes_of(PLAIN) == len(PLAIN)
    block = packed(MIB)
    assert len(block) < 1000
    assert MIB < opened_bytes_of(block) < MIB + 100
    assert opened_bytes_of(b"too short to have a header") == 26


def test_claimed_size_counts_up_to_what_a_block_may_have() -> None:
    """LB3: a client's claim must not exhaust its principal's quota for an hour."""
    block = bytearray(packed(MIB))
    struct.pack_into("<I", block, 56, 2**32 - 1)
    assert opened_bytes_of(bytes(block)) == BATCH_BYTES_CEILING


def test_runs_unpack_to_no_more_than_the_limit() -> None:
    """LB3"""
    blocks = [packed(MIB, n) for n in range(10)]
    runs = list(opened_together(blocks))
    assert [len(run) for run in runs] == [3, 3, 3, 1]  # Each block also has a directory.
    assert [block for run in runs for block in run] == blocks
    assert all(sum(map(opened_bytes_of, run)) <= OPENED_BYTES_MAX for run in runs)


def test_block_above_the_limit_is_a_run_of_its_own() -> None:
    """LB3"""
    large = packed(OPENED_BYTES_MAX + MIB // 2)
    assert list(opened_together([PLAIN, large, PLAIN])) == [[PLAIN], [large], [PLAIN]]


@pytest.mark.parametrize("stored_max", [1, len(PLAIN), 3 * len(PLAIN)])
def test_runs_are_also_bounded_by_stored_size(stored_max: int) -> None:
    runs = list(opened_together([PLAIN] * 7, stored_max))
    assert sum(map(len, runs)) == 7
    assert all(len(run) == 1 or sum(map(len, run)) <= stored_max for run in runs)


def test_no_blocks_make_no_run() -> None:
    assert list(opened_together([])) == []


def test_answer_to_a_read_is_cut_by_what_it_unpacks_to() -> None:
    """LB3"""
    blocks = tuple(packed(MIB, n) for n in range(4))
    found = cut_to_size(Records(blocks, Offset(0), Offset(4)), 1000, 2 * MIB + 1000)
    assert (len(found.blocks), found.next_offset) == (2, 2)
