"""The forgetful file system's rules for power cuts, tested without a mount."""

import errno
import random
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.forgetful.contents import PAGE, SECTOR, Contents
from tests.support.forgetful.volume import Inode, Names, Volume

FILE = stat.S_IFREG | 0o644
FOLDER = stat.S_IFDIR | 0o755


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Volume]:
    yield from fresh_volume(tmp_path, Names.EXT4)


@pytest.fixture
def posix(tmp_path: Path) -> Iterator[Volume]:
    yield from fresh_volume(tmp_path, Names.POSIX)


@pytest.fixture(params=list(Names))
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Volume]:
    yield from fresh_volume(tmp_path, request.param)


def fresh_volume(backing: Path, names: Names) -> Iterator[Volume]:
    volume = Volume(str(backing), names)
    yield volume
    volume.discard()
    assert not list(backing.iterdir())


def new_file(volume: Volume, name: bytes, data: bytes = b"", folder: Inode | None = None) -> Inode:
    inode = volume.create(folder or volume.root, name, FILE, 0, 0)
    volume.write(inode, 0, data)
    return inode


def durable_file(volume: Volume, name: bytes, data: bytes = b"") -> Inode:
    inode = new_file(volume, name, data)
    volume.sync(inode)
    volume.sync_directory(volume.root)
    return inode


def durable_folder(volume: Volume, name: bytes) -> Inode:
    inode = volume.create(volume.root, name, FOLDER, 0, 0)
    volume.sync_directory(volume.root)
    return inode


def content(volume: Volume, name: bytes, folder: Inode | None = None) -> bytes:
    return bytes(volume.read(volume.lookup(folder or volume.root, name), 0, 1 << 30))


def tree(volume: Volume) -> dict[str, bytes]:
    return dict(_walk(volume, volume.root, ""))


def _walk(volume: Volume, folder: Inode, path: str) -> Iterator[tuple[str, bytes]]:
    for name, inode in folder.entries.items():
        below = f"{path}/{name.decode()}"
        if inode.is_directory:
            yield below, b"<folder>"
            yield from _walk(volume, inode, below)
        else:
            yield below, bytes(volume.read(inode, 0, 1 << 30))


# --- Contents -------------------------------------------------------------------------------------


def test_unsynced_write_is_forgotten(either: Volume) -> None:
    inode = durable_file(either, b"a", b"old")
    either.write(inode, 1, b"NEW TEXT")
    assert content(either, b"a") == b"oNEW TEXT"
    either.forget()
    assert content(either, b"a") == b"old"


def test_synced_write_is_kept(either: Volume) -> None:
    inode = durable_file(either, b"a", b"old")
    either.write(inode, 1, b"NEW TEXT")
    either.sync(inode)
    either.forget()
    assert content(either, b"a") == b"oNEW TEXT"


def test_a_truncation_is_undone_unless_synced(volume: Volume) -> None:
    inode = durable_file(volume, b"a", b"0123456789")
    volume.truncate(inode, 3)
    volume.truncate(inode, 6)
    assert content(volume, b"a") == b"012\0\0\0"
    volume.forget()
    assert content(volume, b"a") == b"0123456789"
    volume.truncate(inode, 3)
    volume.truncate(inode, 6)
    volume.sync(inode)
    volume.forget()
    assert content(volume, b"a") == b"012\0\0\0"


def test_failed_sync_loses_the_data_silently_afterwards(volume: Volume) -> None:
    """As in Linux after EIO, the pages count as clean, and a second fsync falsely succeeds."""
    inode = durable_file(volume, b"a", b"old")
    volume.write(inode, 0, b"new")
    volume.fail_sync(1)
    with pytest.raises(OSError, match="failed") as failure:
        volume.sync(inode)
    assert failure.value.errno == errno.EIO
    assert content(volume, b"a") == b"new"
    volume.sync(inode)
    volume.forget()
    assert content(volume, b"a") == b"old"


def test_only_the_nth_sync_fails(volume: Volume) -> None:
    inode = durable_file(volume, b"a")
    volume.fail_sync(3)
    for ends_well in (True, True, False, True):
        volume.write(inode, 0, b"x")
        if ends_well:
            volume.sync(inode)
        else:
            with pytest.raises(OSError, match="failed"):
                volume.sync(inode)


def test_written_back_sectors_are_whole_and_old_or_new(volume: Volume) -> None:
    sectors = 64
    outcomes = set()
    for seed in range(20):
        name = b"%d" % seed
        inode = durable_file(volume, name, b"o" * sectors * SECTOR)
        volume.write(inode, 0, b"n" * sectors * SECTOR)
        volume.write_back(seed, 0.5)
        # Reads before the cut see the new data.
        assert content(volume, name) == b"n" * sectors * SECTOR
        volume.forget()
        after = content(volume, name)
        kinds = [after[i : i + SECTOR] for i in range(0, len(after), SECTOR)]
        assert set(kinds) == {b"o" * SECTOR, b"n" * SECTOR}
        outcomes.add(after)
    assert len(outcomes) == 20


def test_written_back_growth_leaves_holes_of_zeros(volume: Volume) -> None:
    sizes, saw_hole = set(), False
    for seed in range(40):
        name = b"%d" % seed
        inode = durable_file(volume, name, b"o" * 100)
        volume.write(inode, 100, b"n" * 5000)
        volume.write_back(seed, 0.5)
        volume.forget()
        after = content(volume, name)
        sizes.add(len(after))
        assert after[:100] == b"o" * 100
        assert set(after[100:]) <= {0, ord("n")}
        saw_hole |= 0 in after[100:]
    assert {100, 5100} < sizes
    assert saw_hole


def test_old_data_is_never_mixed_with_writes_after_truncation(volume: Volume) -> None:
    """Otherwise a reused file would mix old and new contents that were never on disk together."""
    for seed in range(40):
        name = b"%d" % seed
        inode = durable_file(volume, name, b"o" * 3 * PAGE)
        volume.truncate(inode, 0)
        volume.write(inode, 0, b"n" * 2 * PAGE)
        volume.write_back(seed, 0.5)
        volume.forget()
        after = content(volume, name)
        assert after == b"o" * 3 * PAGE or b"o" not in after


@pytest.mark.parametrize("seed", range(20))
def test_contents_equal_a_plain_model_under_random_use(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    contents = Contents(str(tmp_path / "file"))
    now, disk, versions = bytearray(), b"", [b""]
    for _ in range(200):
        position, length = chance.randrange(20_000), chance.choice((1, 100, 4096, 9000))
        match chance.choice("wwwwwwrrttzssbf"):
            case "w":
                data = chance.randbytes(length)
                now.extend(bytes(max(0, position - len(now))))
                now[position : position + length] = data
                contents.write(position, data)
            case "r":
                assert contents.read(position, length) == now[position : position + length]
            case "t":
                now = now[:position] + bytes(max(0, position - len(now)))
                contents.truncate(position)
            case "z":
                span = max(0, min(length, len(now) - position))
                now[position : position + span] = bytes(span)
                contents.zero(position, length)
            case "s":
                contents.sync()
                disk, versions = bytes(now), []
            case "b":
                contents.write_back(chance, chance.random())
            case "f":
                contents.forget()
                after = bytes(contents.read(0, 1 << 30))
                _check_mixture(after, [disk, *versions])
                now, disk, versions = bytearray(after), after, []
        assert contents.size == len(now)
        versions.append(bytes(now))
    contents.discard()
    assert not list(tmp_path.iterdir())


def _check_mixture(after: bytes, versions: list[bytes]) -> None:
    """Each sector equals that of a version since the last sync, with zeros beyond its end."""
    assert len(after) <= max(map(len, versions))
    for start in range(0, len(after), SECTOR):
        sector = after[start : start + SECTOR]
        held = {
            version[start : start + len(sector)].ljust(len(sector), b"\0") for version in versions
        }
        cuts = {bytes(len(sector))} | {
            v[: len(v) - n] + bytes(n) for v in held for n in range(len(sector) + 1)
        }
        assert sector in cuts


# --- Names ----------------------------------------------------------------------------------------


def test_a_new_name_needs_the_folder_synced_under_posix(posix: Volume) -> None:
    posix.sync(new_file(posix, b"a", b"x"))
    posix.forget()
    assert tree(posix) == {}
    posix.sync(new_file(posix, b"a", b"x"))
    posix.sync_directory(posix.root)
    posix.forget()
    assert tree(posix) == {"/a": b"x"}


def test_fsync_of_a_new_file_makes_it_reachable_on_ext4(volume: Volume) -> None:
    folder = volume.create(volume.root, b"d", FOLDER, 0, 0)
    below = volume.create(folder, b"e", FOLDER, 0, 0)
    inode = new_file(volume, b"a", b"x", below)
    new_file(volume, b"other", b"y", below)
    volume.sync(inode)
    volume.forget()
    assert tree(volume) == {"/d": b"<folder>", "/d/e": b"<folder>", "/d/e/a": b"x"}


def test_fsync_of_one_file_makes_no_other_name_durable(volume: Volume) -> None:
    """On ext4 the journal often includes other names, but tests must not rely on that."""
    one, _ = durable_file(volume, b"one"), durable_file(volume, b"two", b"2")
    volume.rename(volume.root, b"two", volume.root, b"three", may_replace=True)
    volume.write(one, 0, b"1")
    volume.sync(one)
    volume.forget()
    assert tree(volume) == {"/one": b"1", "/two": b"2"}


def test_a_file_with_a_durable_name_and_no_sync_is_empty(either: Volume) -> None:
    new_file(either, b"a", b"contents")
    either.sync_directory(either.root)
    either.forget()
    assert tree(either) == {"/a": b""}


def test_replacing_rename_leaves_the_old_or_the_new_file(either: Volume) -> None:
    durable_file(either, b"a", b"old")
    outcomes = set()
    for seed in range(20):
        temporary = new_file(either, b"a.tmp", b"new")
        either.sync(temporary)
        either.rename(either.root, b"a.tmp", either.root, b"a", may_replace=True)
        either.write_back(seed, 0.5)
        either.forget()
        outcomes.add(content(either, b"a"))
        if b"a.tmp" in either.root.entries:
            either.unlink(either.root, b"a.tmp")
            either.sync_directory(either.root)
        if content(either, b"a") == b"new":
            inode = either.lookup(either.root, b"a")
            either.write(inode, 0, b"old")
            either.sync(inode)
    assert outcomes == {b"old", b"new"}


def test_a_rename_is_undone_as_a_whole(either: Volume) -> None:
    durable_file(either, b"a", b"1")
    folder = durable_folder(either, b"d")
    either.rename(either.root, b"a", folder, b"b", may_replace=True)
    assert tree(either) == {"/d": b"<folder>", "/d/b": b"1"}
    either.forget()
    assert tree(either) == {"/a": b"1", "/d": b"<folder>"}


def test_a_rename_between_folders_needs_both_synced_under_posix(posix: Volume) -> None:
    durable_file(posix, b"a", b"1")
    folder = durable_folder(posix, b"d")
    for synced in ([posix.root], [folder]):
        posix.rename(posix.root, b"a", folder, b"b", may_replace=True)
        for directory in synced:
            posix.sync_directory(directory)
        posix.forget()
        assert tree(posix) == {"/a": b"1", "/d": b"<folder>"}
    posix.rename(posix.root, b"a", folder, b"b", may_replace=True)
    posix.sync_directory(folder)
    posix.sync_directory(posix.root)
    posix.forget()
    assert tree(posix) == {"/d": b"<folder>", "/d/b": b"1"}


def test_unsynced_unlink_restores_name_and_contents(either: Volume) -> None:
    durable_file(either, b"a", b"1")
    either.unlink(either.root, b"a")
    assert tree(either) == {}
    either.forget()
    assert tree(either) == {"/a": b"1"}
    either.unlink(either.root, b"a")
    either.sync_directory(either.root)
    either.forget()
    assert tree(either) == {}
    assert len(either.inodes) == 1


def test_synced_file_replaces_an_unlinked_one_of_the_same_name(volume: Volume) -> None:
    durable_file(volume, b"a", b"first")
    volume.unlink(volume.root, b"a")
    second = new_file(volume, b"a", b"second")
    volume.sync(second)  # This makes the name durable, so the unlink must be durable too.
    volume.forget()
    assert tree(volume) == {"/a": b"second"}


def test_hard_links_share_contents(either: Volume) -> None:
    inode = durable_file(either, b"a", b"1")
    either.link(inode, either.root, b"b")
    either.sync_directory(either.root)
    either.unlink(either.root, b"a")
    either.sync_directory(either.root)
    either.write(inode, 0, b"2")
    either.sync(inode)
    either.forget()
    assert tree(either) == {"/b": b"2"}
    assert either.lookup(either.root, b"b").links == 1


def test_moved_folders_never_form_a_ring(volume: Volume) -> None:
    for seed in range(30):
        a, b = durable_folder(volume, b"a%d" % seed), durable_folder(volume, b"b%d" % seed)
        inside = volume.create(a, b"inside", FOLDER, 0, 0)
        volume.rename(a, b"inside", volume.root, b"out%d" % seed, may_replace=True)
        volume.rename(volume.root, b"a%d" % seed, inside, b"a", may_replace=True)
        volume.rename(volume.root, b"b%d" % seed, a, b"b", may_replace=True)
        volume.write_back(seed, 0.4)
        volume.forget()
        paths = " ".join(tree(volume))
        assert b.number in volume.inodes
        assert a.number in volume.inodes
        assert f"b{seed}" in paths or "/b" in paths


@pytest.mark.parametrize("seed", range(20))
def test_names_after_a_cut_are_the_durable_or_a_later_state(seed: int, either: Volume) -> None:
    """In one folder, each name has its inode of the last sync, or of some moment since."""
    volume, root, chance = either, either.root, random.Random(seed)
    since: dict[bytes, set[int | None]] = {}  # Possible inodes of each name after a cut.
    pool = [b"a", b"b", b"c", b"d"]
    for _ in range(150):
        one, two = chance.choice(pool), chance.choice(pool)
        try:
            match chance.choice("ccrrlusd bf"):
                case "c":
                    volume.create(root, one, FILE, 0, 0)
                case "r":
                    volume.rename(root, one, root, two, may_replace=True)
                case "l":
                    volume.link(volume.lookup(root, one), root, two)
                case "u":
                    volume.unlink(root, one)
                case "s":
                    inode = volume.lookup(root, one)
                    volume.sync(inode)
                    if volume.names is Names.EXT4:
                        since[one] = {inode.number}
                case "d":
                    volume.sync_directory(root)
                    since = {name: {_meaning(root, name)} for name in pool}
                case "b":
                    volume.write_back(chance.randrange(1 << 30), 0.3)
                case "f":
                    volume.forget()
                    for name in pool:
                        assert _meaning(root, name) in since.get(name, {None})
                    since = {name: {_meaning(root, name)} for name in pool}
        except (FileNotFoundError, FileExistsError):
            pass  # Some random calls must fail like this.
        for name in pool:
            since.setdefault(name, {None}).add(_meaning(root, name))
    volume.forget()
    assert set(volume.inodes) == {1, *(inode.number for inode in root.entries.values())}


def _meaning(folder: Inode, name: bytes) -> int | None:
    inode = folder.entries.get(name)
    return inode.number if inode else None


# --- Space ----------------------------------------------------------------------------------------


def test_full_disk_accepts_only_writes_to_allocated_space(volume: Volume) -> None:
    inode = new_file(volume, b"a")
    volume.allocate(inode, 0, 10 * PAGE, may_grow=False)
    assert inode.size == 0
    volume.limit_free(0)
    volume.write(inode, 0, bytes(10 * PAGE))
    with pytest.raises(OSError, match="no space") as failure:
        volume.write(inode, 10 * PAGE, b"x")
    assert failure.value.errno == errno.ENOSPC
    volume.truncate(inode, PAGE)
    volume.write(inode, PAGE, bytes(9 * PAGE))


def test_space_is_freed_when_files_are_removed(either: Volume) -> None:
    inode = new_file(either, b"a", bytes(10 * PAGE))
    assert either.used_bytes == 10 * PAGE
    either.unlink(either.root, b"a")
    assert either.used_bytes == 0
    inode = new_file(either, b"b", bytes(10 * PAGE))
    inode.lookups = 1  # The file is still open.
    either.unlink(either.root, b"b")
    assert either.used_bytes == 10 * PAGE
    either.forget()
    assert either.used_bytes == 0
