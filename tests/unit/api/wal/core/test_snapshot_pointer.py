"""The mark that says where a snapshot is stored, and its checksum."""

import json
from dataclasses import replace

import google_crc32c
import pytest

from rollbook.api.wal.core.snapshot_pointer import SnapshotPointer, is_due, pieces_of
from rollbook.logservice.ids import Offset, WriterEpoch
from rollbook.proto.errors import DigestMismatch

SNAPSHOT = SnapshotPointer(
    WriterEpoch(2), Offset(3), Offset(4), "00ff", 5, google_crc32c.value(b"state")
)


def test_snapshot_pointer_survives_packing() -> None:
    """WK6"""
    assert SnapshotPointer.unpack(SNAPSHOT.pack()) == SNAPSHOT
    assert json.loads(SNAPSHOT.pack())["first"] == 3


@pytest.mark.parametrize("blob", [b"", b"x", b"7", b"{}", b'{"token": "x"}', b'{"token":"","a":1}'])
def test_damaged_snapshot_pointer_is_refused(blob: bytes) -> None:
    with pytest.raises(DigestMismatch):
        SnapshotPointer.unpack(blob)


@pytest.mark.parametrize("data", [b"stat", b"statf", b"statee"])
def test_snapshot_with_wrong_content_is_refused(data: bytes) -> None:
    """WK6"""
    assert SNAPSHOT.check(b"state") == b"state"
    with pytest.raises(DigestMismatch):
        SNAPSHOT.check(data)
    with pytest.raises(DigestMismatch):
        replace(SNAPSHOT, length=6).check(b"state")


@pytest.mark.parametrize("size", [0, 1, 256 * 1024, 256 * 1024 + 1, 1_000_000])
def test_pieces_join_to_the_whole_snapshot(size: int) -> None:
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)
    pieces = list(pieces_of(data))
    assert b"".join(pieces) == data
    assert pieces
    assert max(map(len, pieces)) <= 256 * 1024


def test_snapshot_is_due_after_its_number_of_records() -> None:
    assert not is_due(Offset(109), Offset(10), 100)
    assert is_due(Offset(110), Offset(10), 100)
