"""The mounted forgetful file system, which behaves like any other until the power is cut."""

import errno
import fcntl
import mmap
import os
import random
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import forgetful
from tests.support.forgetful import ForgetfulDisk, Names
from tests.support.processes import REPOSITORY, Family, family

SHORT_S = 10.0


@pytest.fixture(scope="module", autouse=True)
def _mountable() -> None:
    forgetful.require()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[ForgetfulDisk]:
    with forgetful.mount(tmp_path / "forgetful") as mounted:
        yield mounted


@pytest.fixture
def children() -> Iterator[Family]:
    with family() as started:
        yield started


def sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(descriptor)
    os.close(descriptor)


def write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SHORT_S
    while not is_true():
        assert time.monotonic() < deadline


# --- As any other file system ---------------------------------------------------------------------


class Native:
    """File system calls below a folder, which return their result or the error's name."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.open_files: list[int] = []

    def call(self, name: str, *arguments: object) -> object:
        try:
            return getattr(self, name)(*arguments)
        except OSError as error:
            return errno.errorcode[error.errno or 0]

    def open(self, name: str, flags: int) -> int:
        descriptor = os.open(self.root / name, flags, 0o640)
        self.open_files.append(descriptor)
        return len(self.open_files)

    def close(self, index: int) -> None:
        if self.open_files:
            os.close(self.open_files.pop(index % len(self.open_files)))

    def write(self, index: int, position: int, data: bytes) -> int:
        return os.pwrite(self._file(index), data, position)

    def append(self, index: int, data: bytes) -> int:
        return os.write(self._file(index), data)

    def read(self, index: int, position: int, length: int) -> bytes:
        return os.pread(self._file(index), length, position)

    def truncate(self, index: int, size: int) -> None:
        os.ftruncate(self._file(index), size)

    def allocate(self, index: int, position: int, length: int) -> None:
        os.posix_fallocate(self._file(index), position, length)

    def sync(self, index: int) -> None:
        os.fsync(self._file(index))

    def map_and_write(self, index: int, data: bytes) -> bytes:
        found = os.fstat(self._file(index))
        if not stat.S_ISREG(found.st_mode) or found.st_size == 0:
            return b""
        size = found.st_size
        with mmap.mmap(self._file(index), size) as mapped:
            mapped[: len(data)] = data[:size]
            return mapped[:100]

    def stat_open(self, index: int) -> tuple[int, ...]:
        return _comparable(os.fstat(self._file(index)))

    def stat(self, name: str) -> tuple[int, ...]:
        return _comparable(os.lstat(self.root / name))

    def mkdir(self, name: str) -> None:
        (self.root / name).mkdir()

    def rmdir(self, name: str) -> None:
        (self.root / name).rmdir()

    def rename(self, name: str, new_name: str) -> None:
        os.rename(self.root / name, self.root / new_name)

    def link(self, name: str, new_name: str) -> None:
        os.link(self.root / name, self.root / new_name)

    def symlink(self, name: str, target: str) -> None:
        os.symlink(target, self.root / name)

    def readlink(self, name: str) -> str:
        return os.readlink(self.root / name)

    def unlink(self, name: str) -> None:
        os.unlink(self.root / name)

    def chmod(self, name: str, mode: int) -> None:
        os.chmod(self.root / name, mode)

    def listing(self, name: str) -> list[str]:
        return sorted(os.listdir(self.root / name))

    def tree(self) -> list[tuple[str, object]]:
        return [
            (str(path.relative_to(self.root)), path.read_bytes() if path.is_file() else b"")
            for path in sorted(self.root.rglob("*"))
        ]

    def _file(self, index: int) -> int:
        if not self.open_files:
            raise OSError(errno.EBADF, "nothing is open")
        return self.open_files[index % len(self.open_files)]


def _comparable(found: os.stat_result) -> tuple[int, ...]:
    """The size and link count of a directory differ between file systems."""
    sizes = (found.st_size, found.st_nlink) if stat.S_ISREG(found.st_mode) else ()
    return (found.st_mode, *sizes)


NAMES = ["a", "b", "d", "d/a", "d/b", "d/e", "d/e/a", "s"]
OPEN_FLAGS = [
    os.O_RDWR,
    os.O_RDWR | os.O_CREAT,
    os.O_RDWR | os.O_CREAT | os.O_EXCL,
    os.O_RDWR | os.O_CREAT | os.O_TRUNC,
    os.O_RDWR | os.O_CREAT | os.O_APPEND,
    os.O_RDWR | os.O_CREAT | os.O_DSYNC,
    os.O_RDONLY,
]


def random_call(chance: random.Random) -> tuple[object, ...]:
    name, other, index = chance.choice(NAMES), chance.choice(NAMES), chance.randrange(100)
    position = chance.choice((0, 1, 511, 4096, 5000, 70_000))
    data = chance.randbytes(chance.choice((1, 100, 4096, 20_000, 140_000)))
    calls: list[tuple[object, ...]] = [
        *[("write", index, position, data), ("read", index, position, len(data))] * 3,
        *[("open", name, chance.choice(OPEN_FLAGS))] * 3,
        ("close", index),
        ("sync", index),
        ("stat_open", index),
        ("append", index, data),
        ("truncate", index, position),
        ("allocate", index, position, len(data)),
        ("map_and_write", index, data),
        ("stat", name),
        ("listing", name),
        ("mkdir", name),
        ("rmdir", name),
        ("rename", name, other),
        ("link", name, other),
        ("unlink", name),
        ("symlink", "s", other),
        ("readlink", name),
        ("chmod", name, 0o600),
    ]
    return chance.choice(calls)


@pytest.mark.parametrize("seed", range(8))
def test_mount_behaves_like_the_native_file_system(
    seed: int, tmp_path: Path, disk: ForgetfulDisk
) -> None:
    """Every call, also on open files, has the same result or the same error."""
    (tmp_path / "native").mkdir()
    native, ours = Native(tmp_path / "native"), Native(disk.path)
    chance = random.Random(seed)
    for _ in range(600):
        name, *arguments = random_call(chance)
        assert isinstance(name, str)
        expected = native.call(name, *arguments)
        assert ours.call(name, *arguments) == expected, (name, *arguments)
    assert ours.tree() == native.tree()
    for descriptor in (*native.open_files, *ours.open_files):
        os.close(descriptor)


def test_a_long_listing_is_complete(disk: ForgetfulDisk) -> None:
    names = {f"{i:04}-{'x' * (i % 200)}" for i in range(3000)}
    for name in names:
        (disk.path / name).touch()
    assert set(os.listdir(disk.path)) == names
    with os.scandir(disk.path) as entries:
        for entry in entries:
            os.unlink(entry.path)  # Deletes while the listing is read.
    assert os.listdir(disk.path) == []


def test_punched_holes_read_as_zeros(disk: ForgetfulDisk) -> None:
    path = disk.path / "a"
    path.write_bytes(b"x" * 10_000)
    subprocess.run(["fallocate", "-p", "-o", "100", "-l", "5000", path], check=True)
    assert path.read_bytes() == b"x" * 100 + bytes(5000) + b"x" * 4900


def test_socket_can_be_bound_on_the_mount(disk: ForgetfulDisk) -> None:
    path = str(disk.path / "socket")
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(path)
        server.listen()
        client.connect(path)
    assert stat.S_ISSOCK(os.stat(path).st_mode)
    disk.forget()
    assert not os.path.exists(path)


def test_flock_excludes_processes_until_its_holder_dies(
    disk: ForgetfulDisk, children: Family
) -> None:
    path = disk.path / "lock"
    holder = children.start(
        sys.executable,
        "-c",
        "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX);"
        "print('locked', flush=True); input()",
        path,
    )
    assert holder.line() == "locked"
    with path.open("w") as file:
        with pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        holder.kill()
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_killing_a_process_loses_nothing(disk: ForgetfulDisk, children: Family) -> None:
    """The page cache keeps its writes and its mapped writes."""
    writer = children.start(
        sys.executable,
        "-c",
        "import mmap, os, sys; f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT);"
        "os.write(f, bytes(8192)); m = mmap.mmap(f, 8192); m[4096:4100] = b'mmap';"
        "os.pwrite(f, b'write', 0); print('written', flush=True); input()",
        disk.path / "a",
    )
    assert writer.line() == "written"
    writer.kill()
    assert (disk.path / "a").read_bytes() == b"write".ljust(4096, b"\0") + b"mmap".ljust(
        4096, b"\0"
    )


# --- The power cut --------------------------------------------------------------------------------


def test_power_cut_forgets_unsynced_data(disk: ForgetfulDisk) -> None:
    write_synced(disk.path / "a", b"synced")
    (disk.path / "a").write_bytes(b"not synced")
    (disk.path / "b").write_bytes(b"never synced")
    assert (disk.path / "a").read_bytes() == b"not synced"
    statistics = disk.forget()
    assert (disk.path / "a").read_bytes() == b"synced"
    assert os.listdir(disk.path) == ["a"]
    assert statistics["names_forgotten"] == 1
    assert statistics["bytes_forgotten"] > 0
    assert statistics["dirty_bytes"] == statistics["pending_names"] == 0


@pytest.mark.parametrize("seed", range(4))
def test_files_are_as_last_synced_after_each_cut(seed: int, disk: ForgetfulDisk) -> None:
    """This holds for random writes, cuts and reopenings, with the kernel's caches in between."""
    chance, names = random.Random(seed), ["a", "b", "c"]
    now, durable = {}, {}
    for name in names:
        write_synced(disk.path / name, b"")
        now[name], durable[name] = bytearray(), b""
    for _ in range(400):
        name, position = chance.choice(names), chance.randrange(100_000)
        with (disk.path / name).open("r+b", buffering=0) as file:
            match chance.choice("wwwwrrrtsf"):
                case "w":
                    data = chance.randbytes(chance.choice((1, 500, 5000)))
                    now[name].extend(bytes(max(0, position - len(now[name]))))
                    now[name][position : position + len(data)] = data
                    os.pwrite(file.fileno(), data, position)
                case "r":
                    assert file.read() == now[name]
                case "t":
                    now[name] = now[name][:position].ljust(position, b"\0")
                    file.truncate(position)
                case "s":
                    os.fdatasync(file.fileno())
                    durable[name] = bytes(now[name])
                case "f":
                    file.close()
                    disk.forget()
                    now = {name: bytearray(data) for name, data in durable.items()}
                    for each in names:
                        assert (disk.path / each).read_bytes() == durable[each]


def test_flushed_mapped_writes_survive_a_power_cut(disk: ForgetfulDisk) -> None:
    path = disk.path / "a"
    write_synced(path, b"x" * 8192)
    for is_synced in (False, True):
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
            mapped[:3] = b"new"
            if is_synced:
                mapped.flush()
            assert path.read_bytes()[:3] == b"new"
        if is_synced:
            disk.forget()
            assert path.read_bytes()[:3] == b"new"
            return
        write_synced(path, b"x" * 8192)


def test_open_files_do_not_survive_a_power_cut(disk: ForgetfulDisk) -> None:
    descriptor = os.open(disk.path / "a", os.O_RDWR | os.O_CREAT)
    disk.forget()
    with pytest.raises(OSError, match="not connected"):
        os.write(descriptor, b"from a former life")
    with pytest.raises(OSError, match="not connected"):
        os.close(descriptor)
    assert os.listdir(disk.path) == []


def test_synchronous_files_need_no_fsync(disk: ForgetfulDisk) -> None:
    for name, flag in {"d": os.O_DSYNC, "s": os.O_SYNC}.items():
        descriptor = os.open(disk.path / name, os.O_WRONLY | os.O_CREAT | flag)
        os.write(descriptor, b"synced as it is written")
        os.close(descriptor)
    assert disk.statistics()["syncs"] == 2
    disk.forget()
    assert (disk.path / "d").read_bytes() == b"synced as it is written"
    assert (disk.path / "s").read_bytes() == b"synced as it is written"


def test_posix_names_need_a_folder_sync(tmp_path: Path) -> None:
    with forgetful.mount(tmp_path / "forgetful", Names.POSIX) as disk:
        with (disk.path / "a").open("wb") as file:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
        disk.forget()
        assert os.listdir(disk.path) == []
        write_synced(disk.path / "a", b"x")
        disk.forget()
        assert (disk.path / "a").read_bytes() == b"x"


def test_randomly_kept_data_is_reproducible_by_seed(tmp_path: Path) -> None:
    def image(seed: int) -> dict[str, bytes]:
        with forgetful.mount(tmp_path / "forgetful") as disk:
            for name in "abcdefgh":
                (disk.path / name).write_bytes(name.encode() * 20_000)
            disk.forget(keep=0.5, seed=seed)
            return {path.name: path.read_bytes() for path in sorted(disk.path.iterdir())}

    assert image(1) == image(1)
    assert image(1) != image(2)


# --- Other faults ---------------------------------------------------------------------------------


def test_a_failed_fsync_is_reported_once_and_loses_the_write(disk: ForgetfulDisk) -> None:
    write_synced(disk.path / "a", b"old")
    with (disk.path / "a").open("r+b", buffering=0) as file:
        file.write(b"new")
        disk.fail_sync()
        with pytest.raises(OSError, match="Input/output error"):
            os.fsync(file.fileno())
        os.fsync(file.fileno())
    assert disk.statistics()["syncs_failed"] == 1
    assert (disk.path / "a").read_bytes() == b"new"
    disk.forget()
    assert (disk.path / "a").read_bytes() == b"old"


def test_full_disk_refuses_writes_until_space_is_freed(disk: ForgetfulDisk) -> None:
    write_synced(disk.path / "a", b"x" * 40_960)
    disk.limit_free(0)
    assert os.statvfs(disk.path).f_bavail == 0
    with (disk.path / "b").open("wb", buffering=0) as file:
        with pytest.raises(OSError, match="No space left"):
            file.write(b"x")
        os.unlink(disk.path / "a")
        # Until the kernel has freed the space.
        wait_until(lambda: os.statvfs(disk.path).f_bavail == 10)
        file.write(b"x")
    disk.limit_free(None)
    (disk.path / "c").write_bytes(bytes(1 << 20))


def test_slow_fsync_does_not_delay_other_writes(disk: ForgetfulDisk) -> None:
    disk.slow_sync(60)
    (disk.path / "other").write_bytes(b"x")
    syncing = threading.Thread(target=write_synced, args=(disk.path / "a", b"x"))
    syncing.start()
    wait_until(lambda: disk.statistics()["writes"] == 2)
    (disk.path / "other").write_bytes(b"y")
    assert syncing.is_alive()
    assert disk.statistics()["syncs"] == 0
    disk.slow_sync(0)
    syncing.join(SHORT_S)
    assert not syncing.is_alive()
    assert disk.statistics()["syncs"] == 1


def test_power_cut_fails_a_running_fsync(disk: ForgetfulDisk) -> None:
    (disk.path / "a").write_bytes(b"x")
    sync_folder(disk.path)
    disk.slow_sync(60)
    failures: list[OSError] = []

    def sync() -> None:
        try:
            write_synced(disk.path / "a", b"new")
        except OSError as error:
            failures.append(error)

    syncing = threading.Thread(target=sync)
    syncing.start()
    wait_until(lambda: disk.statistics()["writes"] == 2)
    disk.forget()
    syncing.join(SHORT_S)
    assert failures
    assert (disk.path / "a").read_bytes() == b""


def test_halt_begins_when_data_is_unsynced(disk: ForgetfulDisk, children: Family) -> None:
    """From then on nothing takes effect, and no call returns."""
    write_synced(disk.path / "a", b"old")
    disk.halt()
    os.stat(disk.path / "a")
    assert not disk.is_halted
    code = "import os, sys; f = os.open(sys.argv[1], os.O_WRONLY); os.write(f, b'new'); os.fsync(f)"
    writer = children.start(sys.executable, "-c", code, disk.path / "a")
    wait_until(lambda: disk.is_halted)
    assert disk.statistics()["dirty_bytes"]
    os.kill(writer.pid, signal.SIGKILL)
    disk.unplug()
    assert writer.wait() == -signal.SIGKILL
    before = disk.statistics()["bytes_forgotten"]
    assert disk.forget()["bytes_forgotten"] == before + 512
    assert (disk.path / "a").read_bytes() == b"old"


def test_kept_data_is_not_counted_as_forgotten(disk: ForgetfulDisk) -> None:
    write_synced(disk.path / "a", b"old")
    with (disk.path / "a").open("r+b") as file:
        file.write(b"new")
    assert disk.forget(keep=1.0)["bytes_forgotten"] == 0
    assert (disk.path / "a").read_bytes() == b"new"


# --- Use in tests ---------------------------------------------------------------------------------


def mount_points() -> str:
    return Path("/proc/self/mounts").read_text()


def test_mount_is_removed_when_its_server_is_killed(tmp_path: Path) -> None:
    with forgetful.mount(tmp_path / "forgetful") as disk:
        assert str(disk.path) in mount_points()
        os.kill(disk.server_pid, signal.SIGKILL)
    assert str(tmp_path) not in mount_points()


def test_mount_is_removed_when_the_test_is_killed(tmp_path: Path, children: Family) -> None:
    test = children.start(
        sys.executable,
        "-c",
        "import sys; from pathlib import Path; from tests.support import forgetful\n"
        "with forgetful.mount(Path(sys.argv[1])) as disk: print(disk.path, flush=True); input()",
        tmp_path / "forgetful",
    )
    path = test.line()
    assert path in mount_points()
    test.kill()
    wait_until(lambda: path not in mount_points())


JOURNAL = """
import os, sys
path, how = sys.argv[1:]
journal = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
for number in range(1 << 30):
    os.write(journal, b"%08d" % number)
    if how == "synced":
        os.fdatasync(journal)
    os.write(1, b"%d\\n" % number)
"""


@pytest.mark.parametrize(("how", "loses"), [("synced", False), ("unsynced", True)])
def test_power_cuts_lose_data_only_of_an_unsynced_journal(
    how: str, loses: bool, disk: ForgetfulDisk, children: Family
) -> None:
    lost = []
    for cut in range(5):
        path = disk.path / f"{how}-{cut}"
        writer = children.start(sys.executable, "-c", JOURNAL, path, how)
        while int(last := writer.line()) < 100:
            pass
        writer.kill()
        acked = max(map(int, [last, *writer.take_lines()]))
        disk.forget(keep=0.3, seed=cut)
        image = path.read_bytes() if path.exists() else b""
        expected = b"".join(b"%08d" % number for number in range(acked + 1))
        lost.append(image[: len(expected)] != expected)
    assert any(lost) == loses


def test_sqlite_loses_commits_only_without_syncs(disk: ForgetfulDisk) -> None:
    def commits_after_cut(name: str, synchronous: str, exclusive: bool) -> int:
        path = disk.path / name
        database = sqlite3.connect(path, isolation_level=None)
        if exclusive:  # Otherwise SQLite maps a file of shared memory.
            database.execute("PRAGMA locking_mode=EXCLUSIVE")
        database.execute("PRAGMA journal_mode=WAL")
        database.execute(f"PRAGMA synchronous={synchronous}")
        database.execute("CREATE TABLE t (x)")
        sync_folder(disk.path)
        for number in range(50):
            database.execute("INSERT INTO t VALUES (?)", (number,))
        disk.forget()
        try:
            database.close()
        except sqlite3.Error:
            pass  # Its open files are from before the cut.
        database = sqlite3.connect(path, isolation_level=None)
        try:
            return int(database.execute("SELECT count(*) FROM t").fetchone()[0])
        except sqlite3.Error:
            return 0
        finally:
            database.close()

    for exclusive in (False, True):
        assert commits_after_cut(f"full-{exclusive}", "FULL", exclusive) == 50
        assert commits_after_cut(f"off-{exclusive}", "OFF", exclusive) < 50


def test_failed_mount_reports_its_reason() -> None:
    code = "from tests.support import forgetful; print(forgetful.why_not())"
    unprivileged = ["setpriv", "--reuid", "65534", "--clear-groups", sys.executable, "-c", code]
    done = subprocess.run(unprivileged, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("the Python of this test cannot be run by another user")
    assert "cannot mount: " in done.stdout
