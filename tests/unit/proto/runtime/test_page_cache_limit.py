"""What stays in the system's memory of what was written."""

import asyncio
import os
from collections.abc import AsyncIterator
from mmap import PAGESIZE
from pathlib import Path

import pytest

from rollbook.proto.ports import OpenMode
from rollbook.proto.runtime.disk import SystemDisk
from rollbook.proto.runtime.system_calls import cached_pages

MIB = 1024 * 1024
BUNCH = 2 * MIB  # Linux keeps no larger ones.
PIECE = os.urandom(64 * 1024)


@pytest.fixture
async def disk() -> AsyncIterator[SystemDisk]:
    disk = SystemDisk(written_kept_bytes=2 * MIB)
    yield disk
    disk.close()


@pytest.fixture
def let_go(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """By file, up to where it had to let go of its pages: all of them from its start on."""
    ends: dict[int, int] = {}

    def advise(descriptor: int, position: int, length: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_DONTNEED
        assert position <= max(0, ends.get(descriptor, 0) - BUNCH), "one across the end stays"
        assert (position + length) % PAGESIZE == 0
        ends[descriptor] = position + length

    monkeypatch.setattr(os, "posix_fadvise", advise)
    return ends


async def test_only_what_was_written_last_stays(
    disk: SystemDisk, tmp_path: Path, let_go: dict[int, int]
) -> None:
    file = await disk.open(str(tmp_path / "f"), OpenMode.CREATE)
    end = 100
    for turn in range(200):
        buffers = [PIECE, PIECE[:turn]]
        await (file.write_at if turn % 2 else file.write_and_sync)(end, buffers)
        end += len(PIECE) + turn
        await asyncio.sleep(0)
        gone = max(let_go.values(), default=0)
        assert not gone or gone <= end - 1.5 * MIB
        assert gone >= end - 2.5 * MIB
    assert await file.read_at(100, len(PIECE)) == PIECE
    await file.close()


async def test_the_system_lets_go_of_all_that_it_is_asked_for(
    disk: SystemDisk, tmp_path: Path
) -> None:
    """It keeps pages in bunches, which lie across the ends of what it is asked for at one go."""
    with (tmp_path / "beside").open("wb+") as beside:
        beside.write(bytes(MIB))
        os.fsync(beside)
        os.posix_fadvise(beside.fileno(), 0, MIB, os.POSIX_FADV_DONTNEED)
        kept = cached_pages(beside.fileno(), 0, MIB)  # By a file system that is memory all of them.
    file = await disk.open(str(tmp_path / "f"), OpenMode.CREATE)
    for number in range(12):
        await file.write_and_sync(number * len(PIECE) * 10, [PIECE * 10])
        await asyncio.sleep(0)
    with (tmp_path / "f").open("rb") as reader:
        assert cached_pages(reader.fileno(), 0, 4 * MIB) == (kept and 4 * kept)
    await file.close()


async def test_what_is_written_once_more_counts_once(
    disk: SystemDisk, tmp_path: Path, let_go: dict[int, int]
) -> None:
    """As a journal's zeros, and what comes in their place."""
    file = await disk.open(str(tmp_path / "f"), OpenMode.CREATE)
    for position in range(0, 2 * MIB, len(PIECE)):
        await file.write_and_sync(position, [PIECE, bytes(2 * MIB - position - len(PIECE))])
        await asyncio.sleep(0)
    assert not let_go
    await file.close()


async def test_what_was_there_before_does_not_count(
    disk: SystemDisk, tmp_path: Path, let_go: dict[int, int]
) -> None:
    (tmp_path / "f").write_bytes(bytes(8 * MIB))
    file = await disk.open(str(tmp_path / "f"), OpenMode.WRITE)
    await file.write_and_sync(8 * MIB, [PIECE * 8])
    await asyncio.sleep(0)
    assert not let_go
    await file.close()


async def test_a_file_that_was_closed_takes_nothing_from_others(
    disk: SystemDisk, tmp_path: Path, let_go: dict[int, int]
) -> None:
    """Whatever its descriptor is of by then."""
    closed = await disk.open(str(tmp_path / "closed"), OpenMode.CREATE)
    for number in range(32):
        await closed.write_at(number * len(PIECE), [PIECE])
    await closed.close()
    file = await disk.open(str(tmp_path / "f"), OpenMode.CREATE)
    for number in range(32):
        await file.write_at(number * len(PIECE), [PIECE])
        await asyncio.sleep(0)
    assert not let_go
    await file.close()


async def test_nothing_is_let_go_of_unless_a_bound_is_said(
    tmp_path: Path, let_go: dict[int, int]
) -> None:
    disk = SystemDisk()
    file = await disk.open(str(tmp_path / "f"), OpenMode.CREATE)
    await file.write_and_sync(0, [PIECE * 100])
    await asyncio.sleep(0)
    assert not let_go
    await file.close()
    disk.close()
