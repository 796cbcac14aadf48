"""The file format of `rollbook log export`: every change of its content is detected."""

import io

import pytest

from rollbook.api.cli.log.export_format import (
    ExportedLog,
    is_ended,
    pack_end,
    pack_frame,
    pack_head,
    read_frames,
    read_head,
)
from rollbook.proto.errors import BlockCorrupt, InvalidRequest, UnsupportedVersion

ORIGIN = ExportedLog("ns/log", "00ff")
FRAMES = [(b"first" * 20, 5, 3), (b"second", 8, 1)]
HEAD = pack_head(ORIGIN)
WHOLE = HEAD + b"".join(pack_frame(*each) for each in FRAMES) + pack_end(9)


def read(data: bytes) -> list[tuple[bytes, int, int]]:
    file = io.BytesIO(data)
    if read_head(file) is None:
        return []
    return [(each.block, each.first_offset, each.records) for each in read_frames(file)]


def test_export_file_is_read_back() -> None:
    file = io.BytesIO(WHOLE)
    assert read_head(file) == ORIGIN
    assert is_ended(file)
    frames = list(read_frames(file))
    assert [each.next_offset for each in frames] == [8, 9]
    assert read(WHOLE) == FRAMES


@pytest.mark.parametrize("at", range(len(WHOLE)))
def test_flipped_bit_is_detected(at: int) -> None:
    """A frame length that is too large must not look like a truncated file."""
    data = bytearray(WHOLE)
    data[at] ^= 1 << at % 8
    with pytest.raises((BlockCorrupt, InvalidRequest, UnsupportedVersion)):
        read(bytes(data))


@pytest.mark.parametrize("size", range(len(WHOLE)))
def test_truncated_file_yields_whole_frames_without_an_end(size: int) -> None:
    data = WHOLE[:size]
    assert not is_ended(io.BytesIO(data))
    found = read(data)
    assert found == FRAMES[: len(found)]
    assert len(found) == sum(size >= len(WHOLE) - rest for rest in _after_frames())


def _after_frames() -> list[int]:
    end = len(pack_end(9))
    return [end + len(pack_frame(*FRAMES[1])), end]


def test_frame_after_the_end_is_refused() -> None:
    with pytest.raises(BlockCorrupt):
        read(WHOLE + pack_frame(*FRAMES[0]))
