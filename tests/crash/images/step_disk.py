"""A disk without an event loop: nothing in it ever waits, so recovery can be stepped by hand.

Opening an image takes half a millisecond this way; with an event loop it would take ten times that.
"""

import errno
import os
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from rollbook.proto.ports import Buffer, DiskSpace, FileStat, OpenMode
from tests.simulation.kernel.filesystem import FileSystem, Operation, lend

T = TypeVar("T")

_PLENTY = 1 << 40


class StepFile:
    def __init__(self, disk: "StepDisk", number: int) -> None:
        self._disk = disk
        self._number = number

    async def size(self) -> int:
        return len(self._disk.system.files[self._number].contents)

    async def read_at(self, position: int, length: int) -> bytes:
        return self._disk.system.read(self._number, position, length)

    async def read_with(self, position: int, length: int, use: Callable[[Buffer], T]) -> T:
        return lend(await self.read_at(position, length), use)

    def prefetch(self, position: int, length: int) -> None:
        pass

    async def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        data = b"".join(buffers)
        self._disk.take(position + len(data) - await self.size())
        self._disk.do("write", self._number, position, data)

    async def sync(self) -> None:
        self._disk.do("sync", self._number, self._disk.system.files[self._number].changes)

    async def write_and_sync(self, position: int, buffers: Sequence[Buffer]) -> None:
        await self.write_at(position, buffers)
        await self.sync()

    def is_quick(self, size: int) -> bool:
        return False

    def write_and_sync_now(self, position: int, buffers: Sequence[Buffer]) -> None:
        raise AssertionError

    async def truncate(self, size: int) -> None:
        self._disk.do("resize", self._number, size)

    async def allocate(self, position: int, length: int) -> None:
        grows = position + length - await self.size()
        if grows > 0:
            self._disk.take(grows)
            self._disk.do("resize", self._number, position + length)

    async def close(self) -> None:
        pass


class StepLock:
    token = ""

    async def release(self) -> None:
        pass


class StepDisk:
    """The Disk port over a file system in memory, which records its operations."""

    def __init__(self, system: FileSystem, free_bytes: int = _PLENTY) -> None:
        self.system = system
        self.operations: list[Operation] = []
        self._free_bytes = free_bytes

    def do(self, name: str, *arguments: Any) -> Any:
        self.operations.append((name, *arguments))
        return getattr(self.system, name)(*arguments)

    def take(self, grows: int) -> None:
        if grows > self._free_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._free_bytes -= max(0, grows)

    async def open(self, path: str, mode: OpenMode) -> StepFile:
        number = self.do("create", path) if mode is OpenMode.CREATE else self.system.find(path)
        if number is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return StepFile(self, number)

    async def stat(self, path: str) -> FileStat | None:
        number = self.system.find(path)
        if number is None:
            return None
        inode = self.system.files.get(number)
        return FileStat(0 if inode is None else len(inode.contents), inode is None, device=1)

    async def list_directory(self, path: str) -> list[str]:
        return self.system.list_directory(path)

    async def make_directory(self, path: str) -> None:
        self.do("make_directory", path)

    async def rename(self, source: str, target: str) -> None:
        self.do("rename", source, target)

    async def link(self, source: str, target: str) -> None:
        self.do("link", source, target)

    async def unlink(self, path: str) -> None:
        self.do("unlink", path)

    async def sync_directory(self, path: str) -> None:
        self.do("sync_directory", path)

    async def space(self, path: str) -> DiskSpace:
        return DiskSpace(_PLENTY, self._free_bytes)

    async def lock(self, path: str) -> StepLock:
        return StepLock()


def step(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs the coroutine to its end; it may yield, but not wait."""
    try:
        while True:
            assert coroutine.send(None) is None
    except StopIteration as stop:
        result: T = stop.value
        return result
