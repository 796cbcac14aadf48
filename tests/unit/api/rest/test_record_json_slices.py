"""Records are sent completely, in pieces of bounded work."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.api.rest.record_json import Encoding
from rollbook.api.rest.record_json_slices import PIECE_BYTES, RecordSlice, pieces
from rollbook.logservice.core.record_block import Block, Record, pack_block, stamped
from rollbook.logservice.ids import Offset

RECORDS_MAX = 256


def block_of(values: list[bytes], base: int) -> bytes:
    headers = [{"h": value[:3]} if len(value) % 3 else None for value in values]
    keys = [value[:50] if len(value) % 2 else None for value in values]
    block = pack_block(values, keys=keys, headers=headers)
    return stamped(block, base_offset=base, base_timestamp_us=1, owner_epoch=1, writer_epoch=0)


def records_in(piece: RecordSlice) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(piece.records)
    return found


SIZES = st.lists(st.sampled_from([0, 1, 100, 5_000, PIECE_BYTES, 40_000]), min_size=1, max_size=40)


@given(st.lists(SIZES, min_size=1, max_size=4), st.integers(0, 100), st.integers(0, 100))
def test_pieces_cover_the_range_and_are_small_or_one_record(
    sizes: list[list[int]], start: int, count: int
) -> None:
    blocks: list[bytes] = []
    values: list[bytes] = []
    for each in sizes:
        blocks.append(block_of([b"x" * size for size in each], len(values)))
        values += [b"x" * size for size in each]
    end = min(start + count, len(values))
    found = list(pieces(blocks, Offset(start), Offset(end), Encoding.AUTO))
    assert [each["offset"] for piece in found for each in records_in(piece)] == list(
        range(start, end)
    )
    at = start
    for piece in found:
        offsets = [each["offset"] for each in records_in(piece)]
        assert (piece.start, piece.next_offset) == (at, offsets[-1] + 1)
        assert sum(len(values[offset]) for offset in offsets[:-1]) < PIECE_BYTES
        at = piece.next_offset


def test_piece_has_at_most_256_records() -> None:
    found = list(pieces([block_of([b""] * 10_000, 0)], Offset(0), Offset(10_000), Encoding.AUTO))
    assert max(len(records_in(piece)) for piece in found) <= RECORDS_MAX
    assert sum(len(records_in(piece)) for piece in found) == 10_000


def test_header_bytes_count_toward_the_piece_size() -> None:
    headers = [{f"name-{number}": bytes(10) for number in range(100)}] * 200
    block = pack_block([b""] * 200, headers=headers)
    told = stamped(block, base_offset=0, base_timestamp_us=1, owner_epoch=1, writer_epoch=0)
    found = list(pieces([told], Offset(0), Offset(200), Encoding.AUTO))
    assert max(len(records_in(piece)) for piece in found) <= 10


def test_small_blocks_share_a_piece() -> None:
    blocks = [block_of([b"x"], number) for number in range(100)]
    (piece,) = pieces(blocks, Offset(0), Offset(100), Encoding.AUTO)
    assert len(records_in(piece)) == 100


def test_records_outside_the_range_are_not_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    damaged = bytearray(block_of([b"x"] * 10, 10))
    damaged[-20] ^= 1
    blocks = [block_of([b"x"] * 10, 0), bytes(damaged)]
    taken = 0
    real = Block.records

    def counted(self: Block, start: int = 0, end: int | None = None) -> list[Record]:
        nonlocal taken
        found = real(self, start, end)
        taken += len(found)
        return found

    monkeypatch.setattr(Block, "records", counted)
    (piece,) = pieces(blocks, Offset(3), Offset(5), Encoding.AUTO)
    assert [each["offset"] for each in records_in(piece)] == [3, 4]
    assert taken == 2
