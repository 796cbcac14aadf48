"""Which written bytes stay in the page cache."""

import asyncio
import os
from collections.abc import AsyncIterator
from mmap import PAGESIZE
from pathlib import Path

import pytest

from rollbook.proto.ports import OpenMode
from rollbook.proto.runtime.system_calls import cached_pages
from rollbook.proto.runtime.system_disk import SystemDisk

MIB = 1024 * 1024
BUNCH = 2 * MIB  # Linux has no larger folios.
PIECE = os.urandom(64 * 1024)


@pytest.fixture
async def disk() -> AsyncIterator[SystemDisk]:
    disk = SystemDisk(written_kept_bytes=2 * MIB)
    yield disk
    disk.close()


@pytest.fixture
def let_go(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """For each file, the position up to which its pages were dropped, from its start on."""
    ends: dict[int, int] = {}

    def advise(descriptor: int, position: int, length: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_DONTNEED
        assert position <= max(0, ends.get(descriptor, 0) - BUNCH), (
            "a folio across the end would stay"
        )
        assert (position + length) % PAGESIZE == 0
        ends[descriptor] = position + length

    monkeypatch.setattr(os, "posix_fadvise", advise)
    return ends


async def test_only_last_written_bytes_stay_in_page_cache(
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


async def test_dropped_pages_leave_the_page_cache(disk: SystemDisk, tmp_path: Path) -> None:
    """The kernel keeps pages in folios, which may cross the ends of a dropped range."""
    with (tmp_path / "beside").open("wb+") as beside:
        beside.write(bytes(MIB))
        os.fsync(beside)
        os.posix_fadvise(beside.fileno(), 0, MIB, os.POSIX_FADV_DONTNEED)
        kept = cached_pages(beside.fileno(), 0, MIB)  # A file system in memory keeps all pages.
    file = await disk.open(str(tmp_path / "f"), OpenMode.CREATE)
    for number in range(12):
        await file.write_and_sync(number * len(PIECE) * 10, [PIECE * 10])
        await asyncio.sleep(0)
    with (tmp_path / "f").open("rb") as reader:
        assert cached_pages(reader.fileno(), 0, 4 * MIB) == (kept and 4 * kept)
    await file.close()


async def test_overwritten_bytes_count_once(
    disk: SystemDisk, tmp_path: Path, let_go: dict[int, int]
) -> None:
    """A journal writes zeros first and entries over them."""
    file = await disk.open(str(tmp_path / "f"), OpenMode.CREATE)
    for position in range(0, 2 * MIB, len(PIECE)):
        await file.write_and_sync(position, [PIECE, bytes(2 * MIB - position - len(PIECE))])
        await asyncio.sleep(0)
    assert not let_go
    await file.close()


async def test_bytes_from_before_opening_do_not_count(
    disk: SystemDisk, tmp_path: Path, let_go: dict[int, int]
) -> None:
    (tmp_path / "f").write_bytes(bytes(8 * MIB))
    file = await disk.open(str(tmp_path / "f"), OpenMode.WRITE)
    await file.write_and_sync(8 * MIB, [PIECE * 8])
    await asyncio.sleep(0)
    assert not let_go
    await file.close()


async def test_closed_file_does_not_count(
    disk: SystemDisk, tmp_path: Path, let_go: dict[int, int]
) -> None:
    """Its descriptor may belong to another file by then."""
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


async def test_nothing_is_dropped_without_limit(tmp_path: Path, let_go: dict[int, int]) -> None:
    disk = SystemDisk()
    file = await disk.open(str(tmp_path / "f"), OpenMode.CREATE)
    await file.write_and_sync(0, [PIECE * 100])
    await asyncio.sleep(0)
    assert not let_go
    await file.close()
    disk.close()
