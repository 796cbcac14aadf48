"""Disk states after a power cut: every state found is allowed, and every allowed state is found."""

import itertools
import random
from collections.abc import Iterator

import pytest

from tests.simulation.kernel.filesystem import (
    SECTOR,
    FileSystem,
    Operation,
    every_power_cut,
)

S = SECTOR


def contents_after(system: FileSystem, path: str) -> set[bytes | None]:
    states: set[bytes | None] = set()
    for after in every_power_cut(system):
        number = after.find(path)
        states.add(None if number is None else after.read(number, 0, 1 << 20))
    return states


def durable_file(size: int, fill: bytes = b"-") -> tuple[FileSystem, int]:
    system = FileSystem()
    number = system.create("/f")
    system.write(number, 0, fill * size)
    system.sync(number, 1)
    system.sync_directory("/")
    return system, number


# --- Contents -------------------------------------------------------------------------------------


def test_synced_bytes_survive_and_unsynced_bytes_may() -> None:
    system, number = durable_file(2 * S)
    assert contents_after(system, "/f") == {b"-" * 2 * S}
    system.write(number, 0, b"a" * S)
    assert contents_after(system, "/f") == {b"-" * 2 * S, b"a" * S + b"-" * S}


def test_sectors_may_be_torn_and_reordered() -> None:
    system, number = durable_file(3 * S)
    system.write(number, 0, b"a" * 2 * S)
    system.write(number, S, b"b" * 2 * S)
    expected = {
        first * S + second * S + third * S
        for first in (b"-", b"a")
        for second in (b"-", b"a", b"b")
        for third in (b"-", b"b")
    }
    assert contents_after(system, "/f") == expected


def test_write_within_a_sector_keeps_its_other_bytes() -> None:
    system, number = durable_file(S)
    system.write(number, 10, b"a" * 10)
    system.write(number, 15, b"b" * 10)
    old = b"-" * S
    once = old[:10] + b"a" * 10 + old[20:]
    twice = once[:15] + b"b" * 10 + once[25:]
    assert contents_after(system, "/f") == {old, once, twice}


def test_size_and_contents_are_independent() -> None:
    """A file can have grown over sectors that were never written: they read as zeros."""
    system, number = durable_file(0)
    system.write(number, 0, b"a" * S)
    system.write(number, S, b"b" * S)
    zero, a, b = b"\0" * S, b"a" * S, b"b" * S
    assert contents_after(system, "/f") == {
        b"",
        zero,
        a,
        *(x + y for x in (zero, a) for y in (zero, b)),
    }


def test_truncation_may_be_lost_but_is_never_late() -> None:
    system, number = durable_file(2 * S)
    system.resize(number, S)
    system.resize(number, 2 * S)
    states = contents_after(system, "/f")
    assert states == {b"-" * 2 * S, b"-" * S, b"-" * S + b"\0" * S}
    system.sync(number, system.files[number].changes)
    assert contents_after(system, "/f") == {b"-" * S + b"\0" * S}


def test_write_into_allocated_space_keeps_the_size() -> None:
    system, number = durable_file(0)
    system.resize(number, 4 * S)
    system.sync(number, system.files[number].changes)
    system.write(number, S, b"a" * S)
    zero = b"\0" * S
    assert contents_after(system, "/f") == {zero * 4, zero + b"a" * S + zero * 2}


def test_failed_sync_cleans_pages_that_are_not_on_disk() -> None:
    system, number = durable_file(2 * S)
    system.write(number, 0, b"a" * 2 * S)
    system.fail_sync(number, system.files[number].changes, (1,))
    assert system.read(number, 0, 2 * S) == b"a" * 2 * S, "the cache still has the bytes"
    # The second sync succeeds although the bytes are lost.
    system.sync(number, system.files[number].changes)
    assert contents_after(system, "/f") == {b"a" * S + b"-" * S}
    system.drop_caches()
    assert system.read(number, 0, 2 * S) == b"a" * S + b"-" * S


def test_failed_sync_may_keep_the_size_and_lose_the_contents() -> None:
    system, number = durable_file(S)
    system.write(number, S, b"a" * S)
    system.fail_sync(number, system.files[number].changes, (1,))
    assert contents_after(system, "/f") == {b"-" * S + b"\0" * S}


def test_failed_sync_may_revert_the_cache() -> None:
    system, number = durable_file(2 * S)
    system.write(number, 0, b"a" * 2 * S)
    system.fail_sync(number, system.files[number].changes, (0,), reverts=True)
    assert system.read(number, 0, 2 * S) == b"-" * S + b"a" * S


def test_sync_covers_only_writes_before_it_began() -> None:
    system, number = durable_file(2 * S)
    system.write(number, 0, b"a" * S)
    began = system.files[number].changes
    system.write(number, S, b"b" * S)
    system.sync(number, began)
    assert contents_after(system, "/f") == {b"a" * S + b"-" * S, b"a" * S + b"b" * S}


def test_overlapping_syncs_cover_only_writes_before_they_began() -> None:
    system, number = durable_file(3 * S)
    system.write(number, 0, b"a" * S)
    first = system.files[number].changes
    system.write(number, S, b"b" * S)
    second = system.files[number].changes
    system.write(number, 2 * S, b"c" * S)
    system.sync(number, second)
    system.sync(number, first)
    system.sync(number, second)
    ab = b"a" * S + b"b" * S
    assert contents_after(system, "/f") == {ab + b"-" * S, ab + b"c" * S}


def test_stale_sector_has_its_previous_contents() -> None:
    system, number = durable_file(2 * S)
    system.write(number, 0, b"a" * 2 * S)
    system.sync(number, system.files[number].changes)
    system.revert_write(number, 0)
    assert system.read(number, 0, 2 * S) == b"-" * S + b"a" * S


def test_rot_is_durable() -> None:
    system, number = durable_file(S)
    system.flip(number, 7, 3)
    (state,) = contents_after(system, "/f")
    assert state is not None
    assert [i for i in range(S) if state[i] != ord("-")] == [7]
    assert system.read(number, 7, 1) == bytes([ord("-") ^ 8])


@pytest.mark.parametrize("seed", range(60))
def test_contents_match_a_model_of_single_bytes(seed: int) -> None:
    """After random changes the size is one that the file had, and each byte is zero or from one of
    its versions.
    """
    chance = random.Random(seed)
    system, number = durable_file(chance.randrange(3 * S), b"-")
    durable_size = len(system.files[number].contents)
    versions: list[bytes] = [system.read(number, 0, 8 * S)]  # The file after each change.
    for step in range(chance.randrange(1, 5)):
        if chance.random() < 0.7:
            data = bytes([97 + step]) * chance.randrange(1, 2 * S)
            system.write(number, chance.randrange(3 * S), data)
        else:
            system.resize(number, chance.randrange(4 * S))
        versions.append(system.read(number, 0, 8 * S))
    sizes = {len(version) for version in versions}
    assert durable_size in sizes
    seen_sizes = set()
    for after in itertools.islice(every_power_cut(system), 3000):
        image = after.read(1, 0, 8 * S)
        seen_sizes.add(len(image))
        assert len(image) in sizes
        for start in range(0, len(image), S):
            sector = image[start : start + S]
            parts = [
                version[start : start + S].ljust(S, b"\0")[: len(sector)] for version in versions
            ]
            # Zeros where a size survived without its contents; otherwise bytes of the versions.
            for index, byte in enumerate(sector):
                assert byte == 0 or byte in {part[index] for part in parts}
    assert durable_size in seen_sizes


# --- Names ----------------------------------------------------------------------------------------


def trees_after(system: FileSystem) -> set[tuple[str, ...]]:
    return {tuple(sorted(after._tree())) for after in every_power_cut(system)}


def test_name_is_durable_only_after_sync_of_its_directory() -> None:
    system = FileSystem()
    system.make_directory("/d")
    system.sync_directory("/")
    number = system.create("/d/f")
    system.write(number, 0, b"data")
    system.sync(number, 1)
    assert contents_after(system, "/d/f") == {None, b"data"}
    system.sync_directory("/d")
    assert contents_after(system, "/d/f") == {b"data"}
    system.unlink("/d/f")
    assert contents_after(system, "/d/f") == {None, b"data"}


def test_loss_of_a_directory_loses_everything_in_it() -> None:
    system = FileSystem()
    system.make_directory("/d/e")
    system.create("/d/e/f")
    system.sync_directory("/d/e")
    system.sync_directory("/d")
    assert trees_after(system) == {(), ("/d", "/d/e", "/d/e/f")}


def test_renames_are_atomic_and_replace() -> None:
    system = FileSystem()
    old = system.create("/f")
    system.write(old, 0, b"old")
    system.sync(old, 1)
    system.sync_directory("/")
    new = system.create("/f.new")
    system.write(new, 0, b"new")
    system.sync(new, 1)
    system.rename("/f.new", "/f")
    assert contents_after(system, "/f") == {b"old", b"new"}
    assert trees_after(system) == {("/f",), ("/f", "/f.new")}


def test_rename_of_an_unsynced_file_can_lose_both_files() -> None:
    """The classic mistake: no sync of the new file before the rename."""
    system, _ = durable_file(3, b"o")
    new = system.create("/f.new")
    system.write(new, 0, b"new")
    system.rename("/f.new", "/f")
    assert contents_after(system, "/f") == {b"ooo", b"new", b"", b"\0\0\0"}


def test_directories_sync_independently_but_a_rename_is_atomic() -> None:
    system = FileSystem()
    system.make_directory("/a")
    system.make_directory("/b")
    system.create("/a/f")
    for path in ("/", "/a"):
        system.sync_directory(path)
    system.rename("/a/f", "/b/f")
    assert trees_after(system) == {("/a", "/a/f", "/b"), ("/a", "/b", "/b/f")}
    system.sync_directory("/b")
    assert trees_after(system) == {("/a", "/b", "/b/f")}


def test_sync_of_a_directory_includes_renames_into_it() -> None:
    system = FileSystem()
    system.make_directory("/a")
    system.make_directory("/b")
    system.sync_directory("/")
    system.create("/a/f")
    system.create("/a/g")
    system.rename("/a/f", "/b/f")
    system.create("/b/h")
    system.sync_directory("/b")
    assert trees_after(system) == {
        ("/a", "/a/g", "/b", "/b/f", "/b/h"),
        ("/a", "/b", "/b/f", "/b/h"),
    }


def test_links_share_contents_until_the_last_name_is_gone() -> None:
    system, number = durable_file(3, b"x")
    system.link("/f", "/g")
    system.unlink("/f")
    system.forget_unnamed(())
    assert system.find("/g") == number
    assert contents_after(system, "/g") == {None, b"xxx"}
    system.unlink("/g")
    system.forget_unnamed(())
    assert number in system.files, "its first name is still durable"
    assert contents_after(system, "/f") == {None, b"xxx"}
    system.sync_directory("/")
    system.forget_unnamed((number,))
    assert system.used_bytes == 3, "the file is still open"
    system.forget_unnamed(())
    assert system.used_bytes == 0


def model_of_names(
    durable: dict[str, int], changes: list[dict[str, int | None]]
) -> Iterator[dict[str, int]]:
    """The same rule in another form: any subset of the changes that contains, with each change, all
    earlier changes of its names.
    """
    for chosen in itertools.product((False, True), repeat=len(changes)):
        if any(
            chosen[later]
            and not chosen[earlier]
            and changes[earlier].keys() & changes[later].keys()
            for later in range(len(changes))
            for earlier in range(later)
        ):
            continue
        names = dict(durable)
        for change, happened in zip(changes, chosen, strict=True):
            if happened:
                for name, number in change.items():
                    if number is None:
                        names.pop(name, None)
                    else:
                        names[name] = number
        yield names


@pytest.mark.parametrize("seed", range(100))
def test_names_match_a_model(seed: int) -> None:
    chance = random.Random(seed)
    system = FileSystem()
    durable: dict[str, int] = {}
    changes: list[dict[str, int | None]] = []
    now: dict[str, int] = {}
    while len(changes) < 2 + seed % 6:
        name, other = chance.sample("abc", 2)
        match chance.choice(("create", "unlink", "rename", "rename", "link", "sync")):
            case "create" if name not in now:
                now[name] = system.create(f"/{name}")
                changes.append({name: now[name]})
            case "unlink" if name in now:
                system.unlink(f"/{name}")
                changes.append({name: None})
                del now[name]
            case "rename" if name in now and now.get(other) != now[name]:
                system.rename(f"/{name}", f"/{other}")
                now[other] = now.pop(name)
                changes.append({name: None, other: now[other]})
            case "link" if name in now and other not in now:
                system.link(f"/{name}", f"/{other}")
                now[other] = now[name]
                changes.append({other: now[name]})
            case "sync" if not durable:
                system.sync_directory("/")
                durable, changes = dict(now), []
    expected = {tuple(sorted(names.items())) for names in model_of_names(durable, changes)}
    found = {tuple(sorted(after.directories[0].names.items())) for after in every_power_cut(system)}
    assert found == expected


# --- Errors and records ---------------------------------------------------------------------------


def test_errors_are_those_of_the_real_system() -> None:
    system = FileSystem()
    system.make_directory("/d")
    system.make_directory("/d")
    system.create("/f")
    for error, act in (
        (FileExistsError, lambda: system.create("/f")),
        (FileExistsError, lambda: system.make_directory("/f")),
        (FileExistsError, lambda: system.make_directory("/f/g")),
        (FileNotFoundError, lambda: system.create("/x/f")),
        (FileNotFoundError, lambda: system.unlink("/x")),
        (FileNotFoundError, lambda: system.rename("/x", "/y")),
        (FileNotFoundError, lambda: system.link("/x", "/y")),
        (FileNotFoundError, lambda: system.sync_directory("/x")),
        (FileExistsError, lambda: system.link("/f", "/f")),
        (PermissionError, lambda: system.link("/d", "/e")),
        (IsADirectoryError, lambda: system.unlink("/d")),
        (IsADirectoryError, lambda: system.rename("/f", "/d")),
        (NotADirectoryError, lambda: system.rename("/d", "/f")),
        (NotADirectoryError, lambda: system.list_directory("/f")),
    ):
        with pytest.raises(error):
            act()
    system.rename("/f", "/f")
    assert system.list_directory("/") == ["d", "f"]


def test_record_rebuilds_every_step() -> None:
    record: list[Operation] = [
        ("make_directory", "/d"),
        ("sync_directory", "/"),
        ("create", "/d/f"),
        ("write", 2, 0, b"a" * S),
        ("sync_directory", "/d"),
        ("sync", 2, 1),
        ("write", 2, S, b"b" * S),
        ("power_cut", 1, 1),
        ("write", 2, 0, b"c"),
    ]
    sizes = []
    for count in range(len(record) + 1):
        system = FileSystem.replay(record[:count])
        number = system.find("/d/f")
        sizes.append(None if number is None else len(system.files[number].contents))
    assert sizes == [None, None, None, 0, S, S, S, 2 * S, 2 * S, 2 * S]
    assert FileSystem.replay(record).same_as(FileSystem.replay(record))


def test_copy_has_unsynced_changes_and_is_independent() -> None:
    system, number = durable_file(S)
    system.write(number, 0, b"a" * S)
    twin = system.copy()
    assert contents_after(twin, "/f") == contents_after(system, "/f") == {b"-" * S, b"a" * S}
    twin.write(number, 0, b"b" * S)
    twin.rename("/f", "/g")
    assert system.read(number, 0, S) == b"a" * S
    assert system.list_directory("/") == ["f"]
    assert contents_after(system, "/f") == {b"-" * S, b"a" * S}
