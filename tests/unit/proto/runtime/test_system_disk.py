"""The Disk port on a real file system."""

import asyncio
import errno
import math
import os
import random
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from mmap import PAGESIZE
from pathlib import Path
from types import SimpleNamespace

import pytest

from rollbook.proto.errors import DirectoryInUse
from rollbook.proto.ports import OpenMode
from rollbook.proto.runtime.aio_reads import KernelReads
from rollbook.proto.runtime.direct_reads import DirectFiles
from rollbook.proto.runtime.page_cache_probe import probe_page_cache
from rollbook.proto.runtime.system_disk import SystemDisk


@pytest.fixture(params=[0.0, math.inf], ids=["in-threads", "on-the-spot"])
async def disk(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[SystemDisk]:
    monkeypatch.setattr("rollbook.proto.runtime.system_disk._ON_THE_SPOT_S", request.param)
    disk = SystemDisk()
    yield disk
    disk.close()


async def test_written_bytes_are_read_back(disk: SystemDisk, tmp_path: Path) -> None:
    file = await disk.open(str(tmp_path / "f"), OpenMode.CREATE)
    await file.write_at(0, [b"hello ", bytearray(b"wor"), memoryview(b"ld")])
    await file.write_and_sync(11, [b"!"])
    assert await file.read_at(0, 100) == b"hello world!"
    assert await file.read_at(6, 5) == b"world"
    assert await file.read_at(50, 5) == b""
    await file.truncate(5)
    assert await file.size() == 5
    await file.allocate(5, 4)
    assert await file.read_at(0, 100) == b"hello\0\0\0\0"
    await file.close()
    await file.close()


async def test_write_takes_more_buffers_than_one_system_call(
    disk: SystemDisk, tmp_path: Path
) -> None:
    file = await disk.open(str(tmp_path / "f"), OpenMode.CREATE)
    buffers = [b"%05d" % number for number in range(5000)]
    await file.write_at(3, buffers)
    assert await file.read_at(3, 1 << 20) == b"".join(buffers)
    await file.close()


async def test_writes_to_one_file_keep_their_order(disk: SystemDisk, tmp_path: Path) -> None:
    file = await disk.open(str(tmp_path / "f"), OpenMode.CREATE)
    writes = [
        file.write_and_sync(0, [b"%04d" % turn]) if turn % 3 else file.write_at(0, [b"%04d" % turn])
        for turn in range(50)
    ]
    await asyncio.gather(*writes)
    assert await file.read_at(0, 4) == b"0049"
    await file.close()


async def test_cancelling_a_sync_waits_for_the_system_call(
    disk: SystemDisk, tmp_path: Path
) -> None:
    """Otherwise the descriptor could be closed and reused while fdatasync runs."""
    file = await disk.open(str(tmp_path / "f"), OpenMode.CREATE)
    sync = asyncio.ensure_future(file.write_and_sync(0, [b"x" * 1_000_000]))
    await asyncio.sleep(0)
    sync.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sync
    assert await file.size() == 1_000_000
    await file.close()


async def test_repeated_cancellation_of_sync_still_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that finishes its work is cancelled more than once: by its caller, then by the
    caller's caller.
    """
    has_begun, may_end = threading.Event(), threading.Event()

    def fdatasync(_: int) -> None:
        has_begun.set()
        may_end.wait(30)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    disk = SystemDisk()
    file = await disk.open(str(tmp_path / "f"), OpenMode.CREATE)
    sync = asyncio.ensure_future(file.sync())
    assert await asyncio.to_thread(has_begun.wait, 30)
    for _ in range(3):
        sync.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
    assert not sync.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await sync
    await file.close()
    disk.close()


async def test_cancelled_close_after_a_read_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = threading.Event()
    closed, close = [], os.close

    def closing_for_good(descriptor: int) -> None:
        closed.append(descriptor)
        close(descriptor)

    disk = SystemDisk()
    file = await disk.open(str(tmp_path / "f"), OpenMode.CREATE)
    with monkeypatch.context() as patch:
        patch.setattr("rollbook.proto.runtime.system_disk.probe_page_cache", lambda *_: False)
        patch.setattr(os, "pread", lambda *_: b"x" * may_end.wait(30))
        reading = asyncio.ensure_future(file.read_at(0, 1))
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(file.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        may_end.set()
        assert await reading == b"x"
        patch.setattr(os, "close", closing_for_good)
        await file.close()
        await file.close()
    assert len(closed) == 1
    disk.close()


async def test_failed_allocation_gives_space_back(
    disk: SystemDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that kept all remaining space would prevent others from freeing some."""

    def take_all_there_is(descriptor: int, position: int, length: int) -> None:
        os.ftruncate(descriptor, position + length // 2)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", take_all_there_is)
    file = await disk.open(str(tmp_path / "f"), OpenMode.CREATE)
    await file.write_at(0, [b"abc"])
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        await file.allocate(3, 1000)
    assert await file.size() == 3
    await file.close()


async def test_failed_change_names_the_file(
    disk: SystemDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk, `rollbook dev` did not report which of its directories was full."""

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = str(tmp_path / "f")
    file = await disk.open(path, OpenMode.CREATE)
    for name in ("posix_fallocate", "pwritev", "fdatasync", "ftruncate"):
        monkeypatch.setattr(os, name, fail)
    for change in (
        file.allocate(0, 10),
        file.write_at(0, [b"x"]),
        file.write_and_sync(0, [b"x"]),
        file.write_and_sync(0, [b"x" * 1_000_000]),
        file.sync(),
        file.truncate(0),
    ):
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)) as caught:
            await change
        assert caught.value.filename == path
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)) as caught:
        file.write_and_sync_now(0, [b"x"])
    assert caught.value.filename == path
    await file.close()


async def test_open_modes(disk: SystemDisk, tmp_path: Path) -> None:
    path = str(tmp_path / "f")
    with pytest.raises(FileNotFoundError):
        await disk.open(path, OpenMode.WRITE)
    await (await disk.open(path, OpenMode.CREATE)).close()
    assert os.stat(path).st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        await disk.open(path, OpenMode.CREATE)
    reader = await disk.open(path, OpenMode.READ)
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        await reader.write_at(0, [b"x"])
    await reader.close()


async def test_directory_operations(disk: SystemDisk, tmp_path: Path) -> None:
    folder = str(tmp_path / "a" / "b")
    await disk.make_directory(folder)
    await disk.make_directory(folder)
    await (await disk.open(f"{folder}/2", OpenMode.CREATE)).close()
    await disk.link(f"{folder}/2", f"{folder}/1")
    await disk.rename(f"{folder}/2", f"{folder}/3")
    assert await disk.list_directory(folder) == ["1", "3"]
    await disk.unlink(f"{folder}/1")
    await disk.sync_directory(folder)
    assert await disk.stat(f"{folder}/1") is None
    stat, parent = await disk.stat(f"{folder}/3"), await disk.stat(folder)
    assert stat is not None
    assert parent is not None
    assert (stat.size, stat.is_directory, parent.is_directory) == (0, False, True)
    assert stat.device == parent.device
    space = await disk.space(folder)
    assert 0 < space.free_bytes <= space.total_bytes


async def test_lock_excludes_other_processes_until_holder_dies(
    disk: SystemDisk, tmp_path: Path
) -> None:
    path = str(tmp_path / "lock")
    code = "import fcntl,sys; f=open(sys.argv[1],'w'); fcntl.flock(f,2); print('locked',flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(DirectoryInUse):
            await disk.lock(path)
        holder.kill()
    lock = await disk.lock(path)
    await lock.release()
    await lock.release()


async def test_lock_holds_after_its_file_is_removed(disk: SystemDisk, tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    lock = await disk.lock(path)
    (tmp_path / "lock").unlink()
    with pytest.raises(DirectoryInUse):
        await disk.lock(path)
    await lock.release()
    await (await disk.lock(path)).release()


async def test_operations_on_closed_file_raise_ebadf(disk: SystemDisk, tmp_path: Path) -> None:
    file = await disk.open(str(tmp_path / "f"), OpenMode.CREATE)
    await file.close()
    for operation in (file.size(), file.read_at(0, 1), file.write_at(0, [b"x"]), file.sync()):
        with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
            await operation


async def test_error_in_a_thread_reaches_the_caller(
    disk: SystemDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FileNotFoundError):
        await disk.sync_directory(str(tmp_path / "nowhere"))
    is_given_up = threading.Event()

    def fail(*_: object) -> None:
        is_given_up.wait(60)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("rollbook.proto.runtime.system_disk._write_fully", fail)
    reader = await disk.open(str(tmp_path / "f"), OpenMode.CREATE)
    given_up = asyncio.ensure_future(reader.write_and_sync(0, [b"x" * 1_000_000]))
    await asyncio.sleep(0)
    given_up.cancel()
    is_given_up.set()
    # The error is dropped because nobody waits for it any more.
    with pytest.raises(asyncio.CancelledError):
        await given_up
    await reader.close()


async def test_more_files_than_threads_can_sync_at_once(disk: SystemDisk, tmp_path: Path) -> None:
    files = [await disk.open(str(tmp_path / f"{n}"), OpenMode.CREATE) for n in range(20)]
    await asyncio.gather(*(file.write_and_sync(0, [b"%d" % n]) for n, file in enumerate(files)))
    assert [await file.read_at(0, 9) for file in files] == [b"%d" % n for n in range(20)]
    for file in files:
        await file.close()


async def test_only_small_quick_syncs_run_in_the_loop_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large sync runs in a thread, so that the loop continues while a device is slow."""
    monkeypatch.setattr("rollbook.proto.runtime.system_disk._ON_THE_SPOT_S", 1000.0)
    disk, threads = SystemDisk(), []
    real_sync = os.fdatasync

    def sync(descriptor: int) -> None:
        threads.append(threading.current_thread().name)
        real_sync(descriptor)

    monkeypatch.setattr(os, "fdatasync", sync)
    file = await disk.open(str(tmp_path / "f"), OpenMode.CREATE)
    await file.write_and_sync(0, [b"x"])
    assert threads.pop() == threading.main_thread().name
    await file.write_and_sync(0, [b"x" * 100_000])
    assert threads.pop() != threading.main_thread().name
    others = asyncio.ensure_future(file.sync())
    await asyncio.sleep(0)
    other_file = await disk.open(str(tmp_path / "g"), OpenMode.CREATE)
    # Runs in a thread, because it would have to wait for the sync under way.
    await other_file.write_and_sync(0, [b"x"])
    await others
    assert threading.main_thread().name not in threads
    monkeypatch.setattr("rollbook.proto.runtime.system_disk._ON_THE_SPOT_S", 1e-9)
    await file.write_and_sync(0, [b"x"])
    assert threads.pop() != threading.main_thread().name
    await file.close()
    await other_file.close()
    disk.close()


async def test_write_and_sync_now_is_durable_and_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollbook.proto.runtime.system_disk._ON_THE_SPOT_S", 60.0)
    disk, synced = SystemDisk(), list[bytes]()
    now_s, took_s = 0.0, 0.0

    def sync(descriptor: int) -> None:
        nonlocal now_s
        now_s += took_s
        synced.append(os.pread(descriptor, 100, 0))

    monkeypatch.setattr(os, "fdatasync", sync)
    # The clock of the disk alone; the loop's clock continues.
    clock = SimpleNamespace(monotonic=lambda: now_s)
    monkeypatch.setattr("rollbook.proto.runtime.system_disk.time", clock)
    file = await disk.open(str(tmp_path / "f"), OpenMode.CREATE)
    file.write_and_sync_now(0, [b"ab", b"cd"])
    assert synced == [b"abcd"]
    assert file.is_quick(1)
    took_s = 100.0
    file.write_and_sync_now(4, [b"ef"])
    assert synced == [b"abcd", b"abcdef"]
    assert not file.is_quick(1)
    await file.close()
    disk.close()


async def test_uncached_range_is_read_in_a_thread(
    disk: SystemDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A close waits for the reads under way."""
    (tmp_path / "f").write_bytes(b"what there is")
    file = await disk.open(str(tmp_path / "f"), OpenMode.READ)
    threads, may_go_on, real_read = [], threading.Event(), os.pread

    def read(descriptor: int, length: int, position: int) -> bytes:
        threads.append(threading.current_thread())
        if threads[-1] is not threading.main_thread():
            assert may_go_on.wait(30)
        return real_read(descriptor, length, position)

    monkeypatch.setattr(os, "pread", read)
    assert await file.read_at(5, 5) == b"there"
    assert threads == [threading.main_thread()]
    monkeypatch.setattr("rollbook.proto.runtime.system_disk.probe_page_cache", lambda *_: False)
    reading = [asyncio.create_task(file.read_at(at, 4)) for at in (0, 5, 100)]
    await asyncio.sleep(0)
    closing = asyncio.create_task(file.close())
    reading[1].cancel()
    for _ in range(100):
        await asyncio.sleep(0)
    assert not closing.done()
    may_go_on.set()
    assert await reading[0] == b"what"
    assert await reading[2] == b""
    await closing
    assert reading[1].cancelled()
    assert threading.main_thread() not in threads[1:]
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        await file.read_at(0, 4)


async def test_error_of_a_read_in_a_thread_reaches_the_caller(
    disk: SystemDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").write_bytes(b"x")
    file = await disk.open(str(tmp_path / "f"), OpenMode.READ)
    monkeypatch.setattr("rollbook.proto.runtime.system_disk.probe_page_cache", lambda *_: False)

    def fail(*_: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pread", fail)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        await file.read_at(0, 1)
    await file.close()


async def test_large_uncached_range_is_read_past_page_cache(
    disk: SystemDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranges may be unaligned and reach beyond the end of the file; without O_DIRECT, reads go
    through the cache.
    """
    contents = random.Random(1).randbytes(1_000_001)
    (tmp_path / "f").write_bytes(contents)
    file = await disk.open(str(tmp_path / "f"), OpenMode.READ)
    monkeypatch.setattr("rollbook.proto.runtime.system_disk.probe_page_cache", lambda *_: False)
    places = [
        (0, 131_072),
        (4_096, 400_000),
        (777, 800_003),
        (700_000, 300_001),
        (900_000, 200_000),
    ]
    for position, length in places:
        assert await file.read_at(position, length) == contents[position : position + length]

    real_open = os.open

    def refuse(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real_open(path, flags, mode)

    monkeypatch.setattr(os, "open", refuse)
    for position, length in places:
        assert await file.read_at(position, length) == contents[position : position + length]
    await file.close()


@pytest.mark.parametrize("has_kernel", [True, False])
async def test_large_uncached_range_is_prefetched_past_page_cache(
    disk: SystemDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_kernel: bool
) -> None:
    """With and without AIO of the kernel, and with a reader that is cancelled."""
    contents = random.Random(1).randbytes(3_000_001)
    (tmp_path / "f").write_bytes(contents)
    file = await disk.open(str(tmp_path / "f"), OpenMode.READ)
    monkeypatch.setattr("rollbook.proto.runtime.system_disk.probe_page_cache", lambda *_: False)
    if not has_kernel:
        monkeypatch.setattr(KernelReads, "begin", lambda _: None)
    for turn in range(5):
        stretches = [(at + turn, 500_000 - turn) for at in range(0, 3_500_000, 500_000)]
        for position, length in stretches:
            file.prefetch(position, length)
        given_up = asyncio.create_task(file.read_at(*stretches[1]))
        await asyncio.sleep(0)
        given_up.cancel()
        for position, length in [stretches[0], *stretches[2:]]:
            found = await file.read_at(position + turn, length - turn)
            assert found == contents[position + turn : position + length]
        # The read may have completed before the cancellation.
        await asyncio.gather(given_up, return_exceptions=True)
    file.prefetch(0, 500_000)
    file.prefetch(777, 500_000)
    await file.close()  # Waits for the prefetches.


async def test_prefetched_buffer_is_returned_after_use(
    disk: SystemDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The buffer is returned even if its user raises."""
    contents = random.Random(1).randbytes(3_000_001)
    (tmp_path / "f").write_bytes(contents)
    file = await disk.open(str(tmp_path / "f"), OpenMode.READ)
    monkeypatch.setattr("rollbook.proto.runtime.system_disk.probe_page_cache", lambda *_: False)
    for position in range(1, 3_000_000, 200_000):
        file.prefetch(position, 150_000)
        with pytest.raises(ZeroDivisionError):
            await file.read_with(position, 150_000, lambda _: 1 // 0)
        file.prefetch(position + 10, 150_000)
        found = await file.read_with(position + 20, 140_000, bytes)
        assert found == contents[position + 20 : position + 140_020]
        assert await file.read_with(position, 5, bytes) == contents[position : position + 5]
    if kernel := disk._device.ahead._kernel:
        assert kernel._buffers == len(kernel.free)
    await file.close()


@pytest.mark.parametrize("is_told", [True, False])
def test_page_cache_counts_are_trusted_only_if_ever_nonzero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_told: bool
) -> None:
    """A file system on top of another one may always count 0. Trying a page costs more than
    counting, and loads the page.
    """
    there, tried = set[int](), list[int]()

    def count(_descriptor: int, position: int, length: int) -> int:
        pages = range(position // PAGESIZE, (position + length - 1) // PAGESIZE + 1)
        return len(there.intersection(pages)) if is_told else 0

    def read(_descriptor: int, _room: object, position: int, _flags: int) -> int:
        tried.append(position)
        if position // PAGESIZE in there:
            return 1
        there.add(position // PAGESIZE)
        raise BlockingIOError

    monkeypatch.setattr("rollbook.proto.runtime.page_cache_probe._telling_devices", set())
    monkeypatch.setattr("rollbook.proto.runtime.page_cache_probe.cached_pages", count)
    monkeypatch.setattr(os, "preadv", read)
    with (tmp_path / "f").open("wb") as file:
        assert not probe_page_cache(file.fileno(), 0, 1_000_000)
        assert tried.pop() == 0
        assert not probe_page_cache(file.fileno(), 2_000_000, 1_000_000)
        assert tried == ([] if is_told else [2_000_000])
        assert not probe_page_cache(file.fileno(), 4_000_000, 1)  # This page is needed in any case.
        assert tried[-1] == 4_000_000
        there.update(range(10_000_000 // PAGESIZE))
        assert probe_page_cache(file.fileno(), 8_000_000, 1_000_000)
        there.remove(8_500_000 // PAGESIZE)
        assert probe_page_cache(file.fileno(), 8_000_000, 1_000_000) != is_told


@pytest.mark.parametrize("can_ask", [True, False])
def test_range_read_a_second_time_uses_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_ask: bool
) -> None:
    """Ranges are read past the cache again once it has dropped the file's pages."""
    (tmp_path / "f").write_bytes(bytes(1_000_000))
    has_end = True

    def cached_pages(*_: int) -> int | None:
        return int(has_end) if can_ask else None

    monkeypatch.setattr("rollbook.proto.runtime.direct_reads.cached_pages", cached_pages)
    monkeypatch.setattr("rollbook.proto.runtime.direct_reads.probe_page_cache", lambda *_: has_end)
    files = DirectFiles()
    with (tmp_path / "f").open("rb") as file:

        def is_past_it(position: int) -> bool:
            return files.of(file, file.fileno(), position, 500_000) is not None

        assert [is_past_it(at) for at in (0, 500_000, 0, 500_000)] == [True, True, False, False]
        has_end = False
        assert is_past_it(0)
        has_end = True
        assert [is_past_it(at) for at in (0, 500_000, 500_000)] == [False, True, False]
        assert files.of(file, file.fileno(), 7, 1_000) is None


async def test_prefetched_range_is_read_once(
    disk: SystemDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").write_bytes(bytes(300_000) + b"more")
    file = await disk.open(str(tmp_path / "f"), OpenMode.READ)
    reads, real_read = [], os.pread

    def read(descriptor: int, length: int, position: int) -> bytes:
        reads.append(threading.current_thread().name)
        return real_read(descriptor, length, position)

    monkeypatch.setattr(os, "pread", read)
    file.prefetch(300_000, 4)
    file.prefetch(300_000, 4)
    assert await file.read_at(300_000, 4) == b"more"
    assert len(reads) == 1
    assert reads[0].startswith("disk-ahead")
    assert await file.read_at(300_000, 4) == b"more"
    assert len(reads) == 2
    file.prefetch(10**9, 4)
    file.prefetch(0, 4)
    await file.close()  # Waits for the prefetches.


async def test_prefetched_bytes_are_dropped_after_a_write(disk: SystemDisk, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"before")
    file = await disk.open(str(tmp_path / "f"), OpenMode.WRITE)
    changes: tuple[tuple[Callable[[], Awaitable[None]], bytes], ...] = (
        (lambda: file.write_at(0, [b"behind"]), b"behind"),
        (lambda: file.write_and_sync(0, [b"beyond"]), b"beyond"),
        (lambda: file.truncate(2), b"be"),
        (lambda: file.allocate(0, 4), b"be\0\0"),
    )
    for change, expected in changes:
        file._written_s = -1000.0  # The last write was long ago.
        file.prefetch(0, 6)
        await change()
        assert await file.read_at(0, 6) == expected
    await file.close()


async def test_failed_prefetch_is_read_again(
    disk: SystemDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").write_bytes(b"x")
    file = await disk.open(str(tmp_path / "f"), OpenMode.READ)
    real_read, failures = os.pread, [OSError(errno.EIO, os.strerror(errno.EIO))]

    def read(descriptor: int, length: int, position: int) -> bytes:
        if failures:
            raise failures.pop()
        return real_read(descriptor, length, position)

    monkeypatch.setattr(os, "pread", read)
    file.prefetch(0, 1)
    assert await file.read_at(0, 1) == b"x"
    assert not failures
    await file.close()


async def test_prefetched_bytes_are_limited_and_expire(
    disk: SystemDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").write_bytes(b"0123456789")
    now_s, reads, real_read = 100.0, [], os.pread

    def read(descriptor: int, length: int, position: int) -> bytes:
        reads.append(position)
        return real_read(descriptor, length, position)

    monkeypatch.setattr(os, "pread", read)
    monkeypatch.setattr("rollbook.proto.runtime.file_read_ahead._AHEAD_BYTES_MAX", 16)
    monkeypatch.setattr("rollbook.proto.runtime.file_read_ahead.time.monotonic", lambda: now_s)
    file = await disk.open(str(tmp_path / "f"), OpenMode.READ)
    for position in (0, 4, 1, 5):  # There is room for two of these.
        file.prefetch(position, 4)
    async with asyncio.timeout(30):
        while not all(stretch.read.poll() for stretch in disk._device.ahead._stretches.values()):
            await asyncio.sleep(0)
    assert await file.read_at(4, 4) == b"4567"
    file.prefetch(6, 4)
    assert await file.read_at(6, 4) == b"6789"
    assert sorted(reads) == [0, 4, 6]
    now_s += 2.0  # Nobody has read the first one.
    file.prefetch(2, 4)
    file.prefetch(3, 4)
    assert await file.read_at(3, 4) == b"3456"
    assert await file.read_at(0, 4) == b"0123"
    assert sorted(reads) == [0, 0, 2, 3, 4, 6]
    await file.close()


async def test_only_small_syncs_predict_duration_of_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollbook.proto.runtime.system_disk._ON_THE_SPOT_S", 60.0)
    monkeypatch.setattr("rollbook.proto.runtime.system_disk._SLOWNESS_KEPT", 1.0)
    disk, threads = SystemDisk(), list[str]()
    now_s, took_s = 0.0, 0.0

    def sync(_: int) -> None:
        nonlocal now_s
        now_s += took_s
        threads.append(threading.current_thread().name)

    monkeypatch.setattr(os, "fdatasync", sync)
    # The clock of the disk alone; the loop's clock continues.
    clock = SimpleNamespace(monotonic=lambda: now_s)
    monkeypatch.setattr("rollbook.proto.runtime.system_disk.time", clock)
    file = await disk.open(str(tmp_path / "f"), OpenMode.CREATE)
    took_s = 100.0
    await file.write_and_sync(0, [b"x" * 100_000])
    await file.sync()
    took_s = 0.0
    await file.write_and_sync(0, [b"x"])
    assert threads.pop() == threading.main_thread().name
    took_s = 100.0
    await file.write_and_sync(0, [b"x"])
    assert threads.pop() == threading.main_thread().name
    await file.write_and_sync(0, [b"x"])
    assert threads.pop() != threading.main_thread().name
    await file.close()
    disk.close()
