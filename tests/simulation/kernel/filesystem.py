"""Files as the page cache shows them and as the disk will after a power cut. Pure: no time, no loop.

Each file has its contents, the contents that are durable, and the changes in between, in order. A
sync makes the changes durable. A power cut decides, as `choose` says, for what is not synced:

- each 512-byte sector holds one of the versions that were written to it since, or the durable one,
  independently of its neighbours: writes are torn and reordered;
- changes of size happen in order up to some point, sectors that were never written read as zeros;
- names change in order up to some point for each name alone; a rename happens whole or not at all.
  A file's name is durable only after its directory was synced, whatever was done to the file.

`choose(n)` picks one of `0 … n-1`, 0 being the oldest state and n-1 the newest: drawn from a seed in
a simulation, counted through by `every_power_cut`.

Every method that changes something can be recorded by its name and arguments; `replay` does it
again, so that the file system can be rebuilt as it was at any moment of a run.
"""

import errno
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, TypeAlias, TypeVar

from rollbook.proto.ports import Buffer

T = TypeVar("T")

SECTOR: Final = 512
ROOT: Final = 0
POWER_CUT: Final = "power_cut"

Operation: TypeAlias = tuple[Any, ...]
"""The name of a method of FileSystem and its arguments; or POWER_CUT and what was chosen."""

Choose: TypeAlias = Callable[[int], int]


def lend(contents: bytes, use: Callable[[Buffer], T]) -> T:
    """What `use` makes of it, in memory that is somebody else's right behind that."""
    lent = bytearray(contents)
    try:
        return use(memoryview(lent))
    finally:
        lent[:] = bytes(len(lent))


@dataclass(frozen=True, slots=True)
class Write:
    position: int
    data: bytes

    @property
    def end(self) -> int:
        return self.position + len(self.data)

    def sectors(self) -> range:
        return range(self.position // SECTOR, -(-self.end // SECTOR))

    def within(self, sector: int) -> "Write":
        """The part of it that lies in one sector."""
        start = max(self.position, sector * SECTOR)
        end = min(self.end, (sector + 1) * SECTOR)
        return Write(start, self.data[start - self.position : end - self.position])


@dataclass(frozen=True, slots=True)
class Resize:
    size: int


@dataclass(slots=True)
class Inode:
    contents: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending: list[Write | Resize] = field(default_factory=list)
    synced: int = 0  # Changes that were taken out of `pending`, ever.
    replaced: list[Write] = field(default_factory=list)
    """What the last sync overwrote: a stale sector is one of these come back."""

    @property
    def changes(self) -> int:
        return self.synced + len(self.pending)

    def copy(self) -> "Inode":
        return Inode(
            bytearray(self.contents),
            bytearray(self.durable),
            list(self.pending),
            self.synced,
            list(self.replaced),
        )


@dataclass(slots=True)
class Directory:
    names: dict[str, int] = field(default_factory=dict)
    durable: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Naming:
    """One change of names: (directory, name, what it then means or None). A rename makes two."""

    effects: tuple[tuple[int, str, int | None], ...]

    def keys(self) -> list[tuple[int, str]]:
        return [(directory, name) for directory, name, _ in self.effects]


class FileSystem:
    def __init__(self) -> None:
        self.files: dict[int, Inode] = {}
        self.directories: dict[int, Directory] = {ROOT: Directory()}
        self.used_bytes = 0
        self._namings: list[Naming] = []  # Not durable yet, in order.
        self._next_number = 1
        self._may_forget = False  # Some file has lost a name, and nobody has looked since.

    @staticmethod
    def replay(operations: Iterable[Operation]) -> "FileSystem":
        system = FileSystem()
        for name, *arguments in operations:
            if name == POWER_CUT:
                picks = iter(arguments)
                system = system.after_power_cut(lambda _count: next(picks))  # noqa: B023  # Used at once.
            else:
                getattr(system, name)(*arguments)
        return system

    def copy(self) -> "FileSystem":
        """With all that is not durable yet; changes are values, which both may hold."""
        twin = FileSystem()
        twin.files = {number: inode.copy() for number, inode in self.files.items()}
        twin.directories = {
            number: Directory(dict(each.names), dict(each.durable))
            for number, each in self.directories.items()
        }
        twin.used_bytes = self.used_bytes
        twin._namings = list(self._namings)
        twin._next_number = self._next_number
        twin._may_forget = self._may_forget
        return twin

    # --- Looking ------------------------------------------------------------------------------

    def find(self, path: str) -> int | None:
        """The number of what has this name."""
        return self._walk(path, durable=False)

    def find_durable(self, path: str) -> int | None:
        return self._walk(path, durable=True)

    def _walk(self, path: str, *, durable: bool) -> int | None:
        number: int | None = ROOT
        for name in _parts(path):
            directory = self.directories.get(number) if number is not None else None
            if directory is None:
                return None
            number = (directory.durable if durable else directory.names).get(name)
        return number

    def read(self, number: int, position: int, length: int) -> bytes:
        return bytes(self.files[number].contents[position : position + length])

    def list_directory(self, path: str) -> list[str]:
        return sorted(self._directory(path)[1].names)

    # --- Contents -----------------------------------------------------------------------------

    def write(self, number: int, position: int, data: bytes) -> None:
        inode = self.files[number]
        change = Write(position, data)
        self.used_bytes += max(0, change.end - len(inode.contents))
        _apply(inode.contents, change)
        inode.pending.append(change)

    def resize(self, number: int, size: int) -> None:
        inode = self.files[number]
        change = Resize(size)
        self.used_bytes += size - len(inode.contents)
        _apply(inode.contents, change)
        inode.pending.append(change)

    def sync(self, number: int, changes: int) -> None:
        """Makes the first `count` changes of the file's life durable."""
        self.fail_sync(number, changes, (), reverts=False)

    def fail_sync(
        self, number: int, changes: int, lost: tuple[int, ...], reverts: bool = False
    ) -> None:
        """These sectors did not get to the disk, and nobody will try again: the pages are clean.

        The cache goes on showing what was written, or (`reverts`) what is on the disk.
        """
        inode = self.files[number]
        count = max(0, changes - inode.synced)
        done, inode.pending = inode.pending[:count], inode.pending[count:]
        inode.synced += len(done)
        if done:
            inode.replaced = []
        for change in done:
            if isinstance(change, Resize):
                _apply(inode.durable, change)
                continue
            for piece in _pieces(change, lost):
                old = bytes(inode.durable[piece.position : piece.end])
                inode.replaced.append(Write(piece.position, old))
                _apply(inode.durable, piece)
            if len(inode.durable) < change.end:
                _apply(inode.durable, Resize(change.end))
        if reverts:
            for sector in lost:
                self._revert(inode, sector)

    def _revert(self, inode: Inode, sector: int) -> None:
        start, end = sector * SECTOR, min((sector + 1) * SECTOR, len(inode.contents))
        on_disk = bytes(inode.durable[start:end]).ljust(end - start, b"\0")
        inode.contents[start:end] = on_disk

    def drop_caches(self) -> None:
        """Clean pages are read from the disk again: what a failed sync lost is gone for readers, too."""
        for inode in self.files.values():
            contents = bytearray(inode.durable)
            for change in inode.pending:
                _apply(contents, change)
            self.used_bytes += len(contents) - len(inode.contents)
            inode.contents = contents

    # --- Damage -------------------------------------------------------------------------------

    def flip(self, number: int, position: int, bit: int) -> None:
        """One bit rots on the disk, under the cache's eyes."""
        inode = self.files[number]
        for image in (inode.durable, inode.contents):
            if position < len(image):
                image[position] ^= 1 << bit

    def revert_write(self, number: int, index: int) -> None:
        """A write that the last sync covered was lost: the sector has its former contents."""
        inode = self.files[number]
        former = inode.replaced.pop(index)
        end = min(former.position + SECTOR, former.position // SECTOR * SECTOR + SECTOR)
        for image in (inode.durable, inode.contents):
            length = min(end, len(image)) - former.position
            if length > 0:
                image[former.position : former.position + length] = former.data[:length].ljust(
                    length, b"\0"
                )

    # --- Names --------------------------------------------------------------------------------

    def create(self, path: str) -> int:
        parent, name = self._place(path)
        if name in self.directories[parent].names:
            raise _error(FileExistsError, errno.EEXIST, path)
        number = self._next_number
        self._next_number += 1
        self.files[number] = Inode()
        self._rename(Naming(((parent, name, number),)))
        return number

    def make_directory(self, path: str) -> None:
        """With its parents."""
        number = ROOT
        for name in _parts(path):
            directory = self.directories.get(number)
            if directory is None:
                raise _error(FileExistsError, errno.EEXIST, path)
            if name not in directory.names:
                child = self._next_number
                self._next_number += 1
                self.directories[child] = Directory()
                self._rename(Naming(((number, name, child),)))
            number = directory.names[name]
        if number not in self.directories:
            raise _error(FileExistsError, errno.EEXIST, path)

    def rename(self, source: str, target: str) -> None:
        parent, name = self._place(source)
        target_parent, target_name = self._place(target)
        number = self.directories[parent].names.get(name)
        if number is None:
            raise _error(FileNotFoundError, errno.ENOENT, source)
        replaced = self.directories[target_parent].names.get(target_name)
        if replaced == number:
            return
        if replaced in self.directories:
            raise _error(IsADirectoryError, errno.EISDIR, target)
        if replaced is not None and number in self.directories:
            raise _error(NotADirectoryError, errno.ENOTDIR, target)
        self._rename(Naming(((parent, name, None), (target_parent, target_name, number))))

    def link(self, source: str, target: str) -> None:
        number = self.find(source)
        if number is None:
            raise _error(FileNotFoundError, errno.ENOENT, source)
        if number in self.directories:
            raise _error(PermissionError, errno.EPERM, source)
        parent, name = self._place(target)
        if name in self.directories[parent].names:
            raise _error(FileExistsError, errno.EEXIST, target)
        self._rename(Naming(((parent, name, number),)))

    def unlink(self, path: str) -> None:
        parent, name = self._place(path)
        number = self.directories[parent].names.get(name)
        if number is None:
            raise _error(FileNotFoundError, errno.ENOENT, path)
        if number in self.directories:
            raise _error(IsADirectoryError, errno.EISDIR, path)
        self._rename(Naming(((parent, name, None),)))

    def sync_directory(self, path: str) -> None:
        """Changes of its names are durable, and with them what happened to those names before."""
        synced, _ = self._directory(path)
        wanted: dict[tuple[int, str], None] = {}
        chosen: list[Naming] = []
        rest: list[Naming] = []
        for naming in reversed(self._namings):
            keys = naming.keys()
            if any(directory == synced or (directory, name) in wanted for directory, name in keys):
                chosen.append(naming)
                wanted.update(dict.fromkeys(keys))
            else:
                rest.append(naming)
        for naming in reversed(chosen):
            for directory, name, number in naming.effects:
                _set_name(self.directories[directory].durable, name, number)
        self._namings = rest[::-1]

    def forget_unnamed(self, opened: Iterable[int]) -> None:
        """Frees files that have no name, no pending name and are not open."""
        if not self._may_forget:
            return
        used = dict.fromkeys(opened)
        for directory in self.directories.values():
            used.update(dict.fromkeys(directory.names.values()))
            used.update(dict.fromkeys(directory.durable.values()))
        for naming in self._namings:
            used.update((number, None) for _, _, number in naming.effects if number is not None)
        for number in [number for number in self.files if number not in used]:
            self.used_bytes -= len(self.files[number].contents)
            del self.files[number]
        named = {number for d in self.directories.values() for number in d.names.values()}
        self._may_forget = any(number not in named for number in self.files)

    def _rename(self, naming: Naming) -> None:
        for directory, name, number in naming.effects:
            names = self.directories[directory].names
            self._may_forget = self._may_forget or name in names
            _set_name(names, name, number)
        self._namings.append(naming)

    def _directory(self, path: str) -> tuple[int, Directory]:
        number = self.find(path)
        if number is None:
            raise _error(FileNotFoundError, errno.ENOENT, path)
        directory = self.directories.get(number)
        if directory is None:
            raise _error(NotADirectoryError, errno.ENOTDIR, path)
        return number, directory

    def _place(self, path: str) -> tuple[int, str]:
        """The directory that the path's last name is in, and that name."""
        parent, _, name = path.rpartition("/")
        if not name:
            raise _error(IsADirectoryError, errno.EISDIR, path)
        return self._directory(parent)[0], name

    # --- Power cuts ---------------------------------------------------------------------------

    def after_power_cut(self, choose: Choose) -> "FileSystem":
        """What is found when the power is back. This one is left as it is."""
        names = {number: dict(d.durable) for number, d in self.directories.items()}
        blocked: dict[tuple[int, str], None] = {}
        for naming in self._namings:
            keys = naming.keys()
            if not any(key in blocked for key in keys) and choose(2):
                for directory, name, number in naming.effects:
                    _set_name(names[directory], name, number)
            else:
                blocked.update(dict.fromkeys(keys))
        after = FileSystem()
        after._next_number = self._next_number
        pending = [ROOT]
        for directory in pending:  # Grows while it is walked: what is reachable from the root.
            after.directories[directory] = Directory(dict(names[directory]), names[directory])
            for number in names[directory].values():
                if number in self.directories:
                    pending.append(number)
                elif number not in after.files:
                    image = image_after_power_cut(self.files[number], choose)
                    after.files[number] = Inode(image, bytearray(image))
                    after.used_bytes += len(image)
        return after

    def same_as(self, other: "FileSystem") -> bool:
        """For readers: the same tree of names with the same contents."""
        return self._tree() == other._tree()

    def _tree(self) -> dict[str, bytes | None]:
        tree: dict[str, bytes | None] = {}
        pending = [("", ROOT)]
        for path, number in pending:
            for name, child in self.directories[number].names.items():
                if child in self.directories:
                    tree[f"{path}/{name}"] = None
                    pending.append((f"{path}/{name}", child))
                else:
                    tree[f"{path}/{name}"] = bytes(self.files[child].contents)
        return tree


def image_after_power_cut(inode: Inode, choose: Choose) -> bytearray:
    """One file's contents: some of its changes happened, sector by sector."""
    if not inode.pending:
        return bytearray(inode.durable)
    size, sizes_changed = len(inode.durable), 0
    versions: dict[int, int] = {}  # By sector: how often it was written.
    reached = size
    for change in inode.pending:
        if isinstance(change, Resize):
            reached = change.size
            sizes_changed += 1
            continue
        if change.end > reached:
            reached = change.end
            sizes_changed += 1
        for sector in change.sectors():
            versions[sector] = versions.get(sector, 0) + 1
    sizes_kept = choose(sizes_changed + 1)
    kept = {sector: choose(count + 1) for sector, count in versions.items()}

    image = bytearray(inode.durable)
    reached = size
    for change in inode.pending:
        if isinstance(change, Resize):
            reached = change.size
            if sizes_kept:
                sizes_kept -= 1
                size = change.size
                _apply(image, change)
            continue
        if change.end > reached:
            reached = change.end
            if sizes_kept:
                sizes_kept -= 1
                size = change.end
        for sector in change.sectors():
            if kept[sector]:
                kept[sector] -= 1
                _apply(image, change.within(sector))
    # Sectors beyond the size that the file got to keep are not its own.
    _apply(image, Resize(size))
    return image


def every_power_cut(system: FileSystem) -> Iterator[FileSystem]:
    """Each state that a power cut may leave, once per way to get there. Mind the number of ways."""
    digits: list[int] = []
    bases: list[int] = []
    while True:
        used = 0

        def choose(count: int) -> int:
            nonlocal used
            if used == len(digits):
                digits.append(0)
                bases.append(count)
            used += 1
            return digits[used - 1]

        yield system.after_power_cut(choose)
        while digits and digits[-1] + 1 == bases[-1]:
            digits.pop()
            bases.pop()
        if not digits:
            return
        digits[-1] += 1


def _apply(image: bytearray, change: Write | Resize) -> None:
    if isinstance(change, Resize):
        if change.size < len(image):
            del image[change.size :]
        else:
            image.extend(bytes(change.size - len(image)))
        return
    if change.position > len(image):
        image.extend(bytes(change.position - len(image)))
    image[change.position : change.end] = change.data


def _pieces(change: Write, lost: tuple[int, ...]) -> Iterator[Write]:
    """The whole, or what is left of it without the lost sectors."""
    if not lost:
        yield change
        return
    for sector in change.sectors():
        if sector not in lost:
            yield change.within(sector)


def _set_name(names: dict[str, int], name: str, number: int | None) -> None:
    if number is None:
        names.pop(name, None)
    else:
        names[name] = number


@lru_cache(1024)
def _parts(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.split("/") if part)


def _error(kind: type[OSError], number: int, path: str) -> OSError:
    return kind(number, kind.__name__, path)
