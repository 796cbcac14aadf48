"""A tree of files of which only the synced part survives a power cut.

What is durable, and when
- *Contents and length* of a file: after fsync or fdatasync of it (`contents.py`).
- *Names.* Creating, linking, renaming or removing is one atomic change of one or two directories.
  It is pending until a sync makes it durable. How much a sync takes along is `Names`:
  - `EXT4` (default; what applications have come to rely on): fsync of a directory commits all
    changes that touch it; fsync of a file commits those that gave it its names; and the directories
    on the way there become reachable. ext4 with its whole journal often commits more. We do not,
    for that luck hides missing calls.
  - `POSIX`: only fsync of a directory counts, a rename needs both directories, and a new
    directory needs the fsync of its parent. Nothing that POSIX allows to lose is kept.
  Changes of one name stay in order: a later one never becomes durable without the earlier, and
  moving a directory takes everything earlier along. Other changes may arrive in any order.
- sync(2) and syncfs(2) do not reach us and make nothing durable.
- Modes, owners and times are not part of the model: they survive as they last were.

`forget` is the power cut: memory becomes what is durable. Before it, `write_back` may have let any
part of the rest arrive, sector by sector and name by name, as the kernel's flusher might.

Space: a file takes its length or, if that is more, what was allocated for it; a hole costs as much
as data. Writes that stay within it succeed on a full disk.
"""

import errno
import itertools
import os
import random
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from tests.support.forgetful.contents import PAGE, Contents

ROOT: Final = 1
CAPACITY_BYTES: Final = 1 << 40


class Names(Enum):
    EXT4 = "ext4"
    POSIX = "posix"


class Inode:
    """A file, directory, symbolic link or socket."""

    __slots__ = (
        "atime_ns",
        "contents",
        "ctime_ns",
        "durable_entries",
        "durable_links",
        "entries",
        "gid",
        "links",
        "lookups",
        "mode",
        "mtime_ns",
        "number",
        "parent",
        "pending",
        "rdev",
        "target",
        "uid",
    )

    def __init__(self, number: int, mode: int, uid: int, gid: int) -> None:
        self.number, self.mode, self.uid, self.gid, self.rdev = number, mode, uid, gid, 0
        self.atime_ns = self.mtime_ns = self.ctime_ns = time.time_ns()
        self.contents: Contents | None = None  # Of a regular file.
        self.target = b""  # Of a symbolic link; becomes durable with its name.
        self.entries: dict[bytes, Inode] = {}  # Of a directory.
        self.durable_entries: dict[bytes, Inode] = {}
        self.parent: Inode = self  # Of a directory.
        self.links = 0
        self.durable_links = 0
        self.pending = 0  # Number of changes of names about it that are not durable yet.
        self.lookups = 0  # References that the kernel holds.

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def size(self) -> int:
        return self.contents.size if self.contents else len(self.target)


class Change:
    """One atomic change of names: the inode of each name afterwards (None: no inode)."""

    __slots__ = ("directories", "inodes", "is_barrier", "keys", "names", "touched", "unsynced")

    def __init__(self, *names: tuple[Inode, bytes, Inode | None], is_barrier: bool = False) -> None:
        self.names = names
        self.is_barrier = is_barrier  # Depends on everything before it.
        self.keys = {(directory.number, name) for directory, name, _ in names}
        self.directories = {directory.number for directory, _, _ in names}
        self.inodes = {inode.number for _, _, inode in names if inode}
        self.unsynced = set(self.directories)  # For `Names.POSIX`.
        self.touched: list[Inode] = []  # Inodes that gained or lost a name.


@dataclass(slots=True)
class Statistics:
    """Counts since the mount, except for the first two, which are current values."""

    dirty_bytes: int = 0
    pending_names: int = 0
    writes: int = 0
    bytes_written: int = 0
    syncs: int = 0
    bytes_synced: int = 0
    syncs_failed: int = 0
    directory_syncs: int = 0
    requests: int = 0
    forgets: int = 0
    bytes_forgotten: int = 0  # In sectors that were different before.
    names_forgotten: int = 0


class Volume:
    def __init__(self, backing: str, names: Names = Names.EXT4) -> None:
        self.statistics = Statistics()
        self.capacity_bytes = CAPACITY_BYTES
        self.used_bytes = 0
        self.inodes: dict[int, Inode] = {}
        self._backing = backing
        self.names = names
        self._numbers = itertools.count(ROOT)
        self._pending: list[Change] = []
        self._syncs_until_failure = 0
        self.root = self._new_inode(stat.S_IFDIR | 0o755, os.getuid(), os.getgid())
        self.root.links = self.root.durable_links = 1

    # --- Names ----------------------------------------------------------------------------------

    def lookup(self, directory: Inode, name: bytes) -> Inode:
        try:
            return directory.entries[name]
        except KeyError:
            raise OSError(errno.ENOENT, "no such name") from None

    def create(self, directory: Inode, name: bytes, mode: int, uid: int, gid: int) -> Inode:
        """A new file, directory, socket or symbolic link, by the type bits of `mode`."""
        self._check_free(directory, name)
        inode = self._new_inode(mode, uid, gid)
        if stat.S_ISREG(mode):
            inode.contents = Contents(os.path.join(self._backing, str(inode.number)))
        inode.parent = directory
        self._change(Change((directory, name, inode)))
        return inode

    def link(self, inode: Inode, directory: Inode, name: bytes) -> None:
        if inode.is_directory:
            raise OSError(errno.EPERM, "directories have one name")
        self._check_free(directory, name)
        self._change(Change((directory, name, inode)))

    def unlink(self, directory: Inode, name: bytes) -> None:
        inode = self.lookup(directory, name)
        if inode.is_directory:
            raise OSError(errno.EISDIR, "is a directory")
        self._change(Change((directory, name, None)))
        self.drop_if_unused(inode)

    def remove_directory(self, directory: Inode, name: bytes) -> None:
        inode = self.lookup(directory, name)
        self._check_replaceable(inode, by_directory=True)
        self._change(Change((directory, name, None)))
        self.drop_if_unused(inode)

    def rename(
        self, source: Inode, name: bytes, target: Inode, new_name: bytes, *, may_replace: bool
    ) -> None:
        inode = self.lookup(source, name)
        replaced = target.entries.get(new_name)
        if replaced is inode:
            return  # Two names of one file: POSIX requires a no-op.
        if replaced and not may_replace:
            raise OSError(errno.EEXIST, "the name exists")
        if replaced:
            self._check_replaceable(replaced, by_directory=inode.is_directory)
        if inode.is_directory:
            inode.parent = target
        self._change(
            Change((source, name, None), (target, new_name, inode), is_barrier=inode.is_directory)
        )
        if replaced:
            self.drop_if_unused(replaced)

    def _check_free(self, directory: Inode, name: bytes) -> None:
        if len(name) > 255:
            raise OSError(errno.ENAMETOOLONG, "name too long")
        if not directory.links:
            raise OSError(errno.ENOENT, "the directory was removed")
        if name in directory.entries:
            raise OSError(errno.EEXIST, "the name exists")

    def _check_replaceable(self, inode: Inode, *, by_directory: bool) -> None:
        if inode.is_directory != by_directory:
            raise OSError(errno.EISDIR if inode.is_directory else errno.ENOTDIR, "wrong kind")
        if inode.entries:
            raise OSError(errno.ENOTEMPTY, "not empty")

    def _change(self, change: Change) -> None:
        now = time.time_ns()
        for directory, name, inode in change.names:
            if old := directory.entries.pop(name, None):
                old.links -= 1
                change.touched.append(old)
            if inode:
                directory.entries[name] = inode
                inode.links += 1
                change.touched.append(inode)
            directory.mtime_ns = directory.ctime_ns = now
        for inode in change.touched:
            inode.pending += 1
            inode.ctime_ns = now
        self._pending.append(change)

    def discard(self) -> None:
        """Removes the volume and its backing files."""
        for inode in self.inodes.values():
            if inode.contents:
                inode.contents.discard()

    def measure(self) -> Statistics:
        files = (inode.contents for inode in self.inodes.values() if inode.contents)
        self.statistics.dirty_bytes = sum(contents.dirty_bytes for contents in files)
        self.statistics.pending_names = len(self._pending)
        return self.statistics

    # --- Contents -------------------------------------------------------------------------------

    def read(self, inode: Inode, position: int, length: int) -> bytearray:
        return self._file(inode).read(position, length)

    def write(self, inode: Inode, position: int, data: bytes | memoryview) -> None:
        contents = self._file(inode)
        self._reserve(contents, position + len(data))
        contents.write(position, data)
        inode.mtime_ns = inode.ctime_ns = time.time_ns()
        self.statistics.writes += 1
        self.statistics.bytes_written += len(data)

    def truncate(self, inode: Inode, size: int) -> None:
        contents = self._file(inode)
        if size > contents.size:
            self._reserve(contents, size)
        contents.truncate(size)
        self._release_beyond(contents, size)
        inode.mtime_ns = inode.ctime_ns = time.time_ns()

    def allocate(self, inode: Inode, position: int, length: int, *, may_grow: bool) -> None:
        contents = self._file(inode)
        self._reserve(contents, position + length)
        if may_grow and position + length > contents.size:
            contents.truncate(position + length)
        inode.mtime_ns = inode.ctime_ns = time.time_ns()

    def zero(self, inode: Inode, position: int, length: int) -> None:
        self._file(inode).zero(position, length)

    def _file(self, inode: Inode) -> Contents:
        if inode.contents is None:
            raise OSError(errno.EISDIR if inode.is_directory else errno.EINVAL, "not a file")
        return inode.contents

    # --- Space ----------------------------------------------------------------------------------

    @property
    def free_bytes(self) -> int:
        return max(0, self.capacity_bytes - self.used_bytes)

    def limit_free(self, free_bytes: int | None) -> None:
        """Limits the free space; None removes the limit."""
        self.capacity_bytes = (
            CAPACITY_BYTES if free_bytes is None else self.used_bytes + max(0, free_bytes)
        )

    def _reserve(self, contents: Contents, end: int) -> None:
        if end > contents.reserved:
            end = -(-end // PAGE) * PAGE
            if end - contents.reserved > self.free_bytes:
                raise OSError(errno.ENOSPC, "no space left")
            self.used_bytes += end - contents.reserved
            contents.reserved = end

    def _release_beyond(self, contents: Contents, size: int) -> None:
        end = -(-size // PAGE) * PAGE
        if end < contents.reserved:
            self.used_bytes -= contents.reserved - end
            contents.reserved = end

    # --- Durability -----------------------------------------------------------------------------

    def sync(self, inode: Inode) -> None:
        """fsync or fdatasync of a file."""
        self.statistics.syncs += 1
        contents = self._file(inode)
        if self._syncs_until_failure:
            self._syncs_until_failure -= 1
            if not self._syncs_until_failure:
                contents.fail_sync()
                self.statistics.syncs_failed += 1
                raise OSError(errno.EIO, "the disk failed, as it was told to")
        self.statistics.bytes_synced += contents.sync()
        if inode.pending and self.names is Names.EXT4:
            self._commit({inode.number}, lambda change: False)

    def sync_directory(self, inode: Inode) -> None:
        self.statistics.directory_syncs += 1
        number = inode.number
        if self.names is Names.EXT4:
            self._commit({number}, lambda change: number in change.directories)
            return
        for change in self._pending:
            change.unsynced.discard(number)
        self._commit(set(), lambda change: not change.unsynced)

    def fail_sync(self, nth: int) -> None:
        """Makes the nth sync of a file from now on fail with EIO; 0 cancels that."""
        self._syncs_until_failure = nth

    def write_back(self, seed: int, fraction: float) -> None:
        """Writes about `fraction` of the un-synced sectors and names to disk."""
        chance = random.Random(seed)
        for inode in self.inodes.values():
            if inode.contents:
                inode.contents.write_back(chance, fraction)
        self._commit(set(), lambda change: chance.random() < fraction)

    def forget(self) -> None:
        """Cuts the power: everything that was not synced is lost."""
        self.statistics.forgets += 1
        self.statistics.names_forgotten += len(self._pending)
        self._pending.clear()
        for inode in self.inodes.values():
            if inode.contents:
                if inode.links:
                    self.statistics.bytes_forgotten += inode.contents.unsynced_bytes()
                inode.contents.forget()
            inode.links = inode.durable_links = inode.pending = inode.lookups = 0
        self.root.links = self.root.durable_links = 1
        self._restore(self.root)
        self.used_bytes = 0
        for inode in list(self.inodes.values()):
            if inode.contents:
                inode.contents.reserved = -(-inode.contents.size // PAGE) * PAGE
                self.used_bytes += inode.contents.reserved
            self.drop_if_unused(inode)

    def _restore(self, directory: Inode) -> None:
        directory.entries = dict(directory.durable_entries)
        for inode in directory.entries.values():
            inode.links += 1
            inode.durable_links += 1
            if inode.is_directory:
                inode.parent = directory
                self._restore(inode)

    def _commit(self, reached: set[int], is_chosen: Callable[[Change], bool]) -> None:
        """Makes the chosen changes of names durable, and those that they depend on.

        `reached`: the inodes that must be reachable afterwards.
        """
        left: list[Change] = []
        committed: list[Change] = []
        keys: set[tuple[int, bytes]] = set()
        everything = False
        for change in reversed(self._pending):  # A change depends only on earlier ones.
            if not (
                is_chosen(change)
                or everything
                or not keys.isdisjoint(change.keys)
                or not reached.isdisjoint(change.inodes)
            ):
                left.append(change)
                continue
            committed.append(change)
            keys |= change.keys
            everything |= change.is_barrier
            if self.names is Names.EXT4:
                reached |= change.directories
        self._pending = left[::-1]
        for change in reversed(committed):
            self._make_durable(change)

    def _make_durable(self, change: Change) -> None:
        for directory, name, inode in change.names:
            old = directory.durable_entries.pop(name, None)
            if old:
                old.durable_links -= 1
            if inode:
                directory.durable_entries[name] = inode
                inode.durable_links += 1
        for inode in change.touched:
            inode.pending -= 1
            self.drop_if_unused(inode)

    def _new_inode(self, mode: int, uid: int, gid: int) -> Inode:
        number = next(self._numbers)
        inode = self.inodes[number] = Inode(number, mode, uid, gid)
        return inode

    def drop_if_unused(self, inode: Inode) -> None:
        """Frees memory without names and open handles, and the disk's part when that is durable."""
        if inode.links or inode.lookups:
            return
        if inode.contents:
            self.used_bytes -= inode.contents.reserved
            inode.contents.forget()
            inode.contents.reserved = 0
        if not (inode.durable_links or inode.pending) and inode.number in self.inodes:
            del self.inodes[inode.number]
            if inode.contents:
                inode.contents.discard()
