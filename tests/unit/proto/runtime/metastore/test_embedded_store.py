"""What only the embedded store has: files, processes, and changes of the owner."""

import asyncio
import contextlib
import errno
import os
import random
import re
import signal
import socket
import sqlite3
import stat
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import structlog

from rollbook.proto.errors import (
    BadConfig,
    BadMetadata,
    DirectoryInUse,
    MetadataUnavailable,
    NoSuchCluster,
    OutcomeUnknown,
    RollbookError,
    UnsupportedVersion,
)
from rollbook.proto.metastore.core.metadata_service import CommitGroup
from rollbook.proto.metastore.service_client import CLOSE_TIMEOUT_S, StoreClient
from rollbook.proto.ports import (
    CreateMode,
    MetadataStore,
    SessionState,
    WatchEvent,
    WatchEventKind,
)
from rollbook.proto.runtime.clock import SystemClock
from rollbook.proto.runtime.metastore import embedded_owner, open_metadata_store
from rollbook.proto.runtime.metastore.embedded_connector import EmbeddedConnector, Role
from rollbook.proto.runtime.metastore.embedded_owner import StoreOwner
from rollbook.proto.runtime.metastore.embedded_sqlite import StoreFile
from rollbook.proto.runtime.storage_failed_exit_code import EXIT_STORAGE_FAILED
from tests.contract.stores import hurried, next_event, until_gone, until_state
from tests.support import processes
from tests.support.processes import Family

SERVING = "tests.unit.proto.runtime.metastore.serving"


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "metadata.db")


@pytest.fixture
def children() -> Iterator[Family]:
    with processes.family() as family:
        yield family


class House:
    """Opens stores and closes them all at the end."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._stores: list[MetadataStore] = []

    async def open(
        self,
        *,
        create: bool = False,
        serve: bool = True,
        visit: bool = False,
        session_timeout_s: float = 10,
        operation_timeout_s: float = 10,
    ) -> MetadataStore:
        store = await open_metadata_store(
            f"sqlite://{self.path}",
            create=create,
            serve=serve and not visit,
            visit=visit,
            session_timeout_s=session_timeout_s,
            operation_timeout_s=operation_timeout_s,
        )
        self._stores.append(store)
        return store

    async def close(self) -> None:
        for store in reversed(self._stores):
            await store.close()


@pytest.fixture
async def house(path: str) -> AsyncIterator[House]:
    own = House(path)
    yield own
    await own.close()


# --- Files --------------------------------------------------------------------------------------


async def test_missing_file_is_created_only_with_create(house: House, path: str) -> None:
    with pytest.raises(NoSuchCluster) as caught:
        await house.open()
    assert "rollbook cluster init" in str(caught.value)
    assert os.listdir(os.path.dirname(path)) == []
    await house.open(create=True)
    assert os.path.exists(path)


async def test_created_files_are_readable_by_their_user_only(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    house = House(str(folder / "metadata.db"))
    before = os.umask(0)
    try:
        await house.open(create=True)
    finally:
        os.umask(before)
    names = sorted(os.listdir(folder))
    endings = ["", "-wal", ".lock", ".reserve", ".sock"]
    assert names == [f"metadata.db{ending}" for ending in endings]
    assert {stat.S_IMODE((folder / name).stat().st_mode) for name in names} == {0o600}
    await house.close()


async def test_reopened_store_has_all_nodes_and_counters(house: House, path: str) -> None:
    store = await house.open(create=True)
    await store.create("/a", b"value")
    await store.set("/a", bytes(range(256)))
    made = await store.create("/a/x-", b"", CreateMode.PERSISTENT_SEQUENTIAL)
    await store.delete(made)
    before = await store.get("/a")
    await store.close()
    assert not os.path.exists(f"{path}-wal")
    store = await house.open()
    assert await store.get("/a") == before
    assert before is not None
    made = await store.create("/a/x-", b"", CreateMode.PERSISTENT_SEQUENTIAL)
    assert made == "/a/x-0000000001"
    node = await store.get(made)
    assert node is not None
    assert node.stat.created_txn > before.stat.modified_txn


async def test_incomplete_new_file_is_replaced(house: House, path: str) -> None:
    Path(f"{path}.new").write_bytes(b"what a crash left")
    store = await house.open(create=True)
    assert await store.children("/") == []


@pytest.mark.parametrize("rest", ["-wal", "-journal"])
async def test_leftover_log_of_deleted_store_blocks_creation(
    house: House, path: str, rest: str
) -> None:
    Path(path + rest).write_bytes(b"commits of another store")
    with pytest.raises(BadConfig, match="left by a metadata store"):
        await house.open(create=True)
    assert not os.path.exists(path)
    os.unlink(path + rest)
    await house.open(create=True)


async def test_new_file_is_synced_once_before_rename(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Syncing each statement took most of a minute on a disk where a sync takes a second."""
    levels: dict[str, int] = {}

    class Watched(sqlite3.Connection):
        def close(self) -> None:
            ((file,),) = self.execute("SELECT file FROM pragma_database_list LIMIT 1")
            levels[file], *_ = self.execute("PRAGMA synchronous").fetchone()
            super().close()

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *to, **how: connect(*to, factory=Watched, **how))
    synced: list[str] = []
    fsync = os.fsync

    def sync(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    file, _ = await StoreFile.open(path, "1")
    await file.close()
    off, full = 0, 2
    assert levels == {f"{path}.new": off, path: full}
    assert synced[:2] == [f"{path}.new", os.path.dirname(path)]


async def test_timeout_in_owner_names_its_slow_disk(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_synced = asyncio.Event()

    async def keep_late(_file: StoreFile, _batch: CommitGroup) -> None:
        await is_synced.wait()

    store = await open_metadata_store(f"sqlite://{path}", create=True, serve=True)
    try:
        monkeypatch.setattr(StoreFile, "keep", keep_late)
        monkeypatch.setattr(store, "_operation_timeout_s", 0.05)
        with pytest.raises(OutcomeUnknown, match=f"this process owns {path}, and its disk is slow"):
            await store.create("/a")
    finally:
        is_synced.set()
        await store.close()


async def test_path_may_be_too_long_for_a_socket_address(tmp_path: Path) -> None:
    folder = tmp_path / ("d" * 100) / ("e" * 100)
    folder.mkdir(parents=True)
    house = House(str(folder / "metadata.db"))
    owner = await house.open(create=True)
    client = await house.open(serve=False)
    await client.create("/a")
    assert await owner.children("/") == ["a"]
    await house.close()


async def test_symbolic_link_opens_the_linked_store(
    house: House, path: str, tmp_path: Path
) -> None:
    store = await house.open(create=True)
    link = tmp_path / "link" / "metadata.db"
    link.parent.mkdir()
    link.symlink_to(path)
    other = House(str(link))
    guest = await other.open()
    await guest.create("/a")
    assert await store.children("/") == ["a"]
    await other.close()
    assert [entry.name for entry in link.parent.iterdir()] == ["metadata.db"]


async def test_path_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(BadConfig):
        await House(str(tmp_path / "file" / "metadata.db")).open(create=True)


# --- Damage -------------------------------------------------------------------------------------


async def fill(house: House) -> None:
    store = await house.open(create=True)
    await store.create("/ledgers", b"")
    for number in range(200):
        await store.create(f"/ledgers/{number:03}", b"value of %03d" % number * 10)
    await store.close()


async def assert_refused(house: House, error: type[RollbookError], text: str) -> None:
    before = Path(house.path).read_bytes()
    for create in (False, True):
        with pytest.raises(error) as caught:
            await house.open(create=create)
        assert text in str(caught.value)
        assert house.path in str(caught.value)
    assert Path(house.path).read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"not a database", bytes(8192)], ids=len)
async def test_file_that_is_not_a_database_is_refused(
    house: House, path: str, content: bytes
) -> None:
    Path(path).write_bytes(content)
    await assert_refused(house, BadMetadata, "damaged")


async def test_database_without_store_is_refused(house: House, path: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE nodes (path)")
    await assert_refused(house, BadMetadata, "not a metadata store")


async def test_later_format_is_refused(house: House, path: str) -> None:
    await fill(house)
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA user_version = 2")
    await assert_refused(house, UnsupportedVersion, "format 2")


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE nodes SET value = x'00' WHERE path = '/ledgers/007'",
        "UPDATE nodes SET version = version + 1 WHERE path = '/ledgers/007'",
        "UPDATE nodes SET creates = 0 WHERE path = '/ledgers'",
        "DELETE FROM nodes WHERE path = '/ledgers/007'",
        "UPDATE nodes SET path = '/ledgers/new' WHERE path = '/ledgers/007'",
        "UPDATE nodes SET value = CAST(value AS TEXT) WHERE path = '/ledgers/007'",
        "UPDATE store SET checksums = checksums + 1",
        "DELETE FROM store",
        "DROP TABLE sessions",
    ],
)
async def test_changed_rows_are_detected(house: House, path: str, sql: str) -> None:
    await fill(house)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute(sql)
    await assert_refused(house, BadMetadata, "damaged")


async def test_path_that_is_not_utf8_is_detected(house: House, path: str) -> None:
    """MS7."""
    await fill(house)
    damaged = Path(path).read_bytes().replace(b"/ledgers", b"/l\xffdgers")
    Path(path).write_bytes(damaged)
    await assert_refused(house, BadMetadata, "damaged")


async def test_flipped_bit_is_refused_or_harmless(house: House, path: str) -> None:
    """MS7: wherever a bit flips, the store is refused or returns the same nodes."""
    await fill(house)
    store = await house.open()
    expected = {
        name: await store.get(f"/ledgers/{name}") for name in await store.children("/ledgers")
    }
    await store.close()
    clean, chance, refused = Path(path).read_bytes(), random.Random(2), 0
    for _ in range(40):
        damaged = bytearray(clean)
        damaged[chance.randrange(len(clean))] ^= 1 << chance.randrange(8)
        Path(path).write_bytes(damaged)
        try:
            store = await house.open()
        except (BadMetadata, UnsupportedVersion, MetadataUnavailable):
            refused += 1
            continue
        assert await store.children("/ledgers") == list(expected)
        for name, node in expected.items():
            assert await store.get(f"/ledgers/{name}") == node
        await store.close()
    assert refused > 5


async def test_file_locked_by_another_program_is_refused(house: House, path: str) -> None:
    await fill(house)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("BEGIN EXCLUSIVE")
        with pytest.raises(DirectoryInUse):
            await house.open()


# --- Owners -------------------------------------------------------------------------------------


async def test_next_server_takes_over_all_sessions(house: House, path: str) -> None:
    first = await house.open(create=True)
    second, client = await house.open(), await house.open(serve=False)
    session = client.session
    await client.create("/e", b"", CreateMode.EPHEMERAL)
    watch, states = await client.watch("/a"), client.session_events()
    await first.close()
    assert os.path.exists(f"{path}.sock")
    await until_state(states, SessionState.SUSPENDED)
    assert (await until_state(states, SessionState.CONNECTED)).session == session
    # The first owner's session ended with a commit that the client has not heard of.
    assert await next_event(watch) == WatchEvent(WatchEventKind.RESYNC, "/a")
    await second.create("/a")
    assert await next_event(watch) == WatchEvent(WatchEventKind.CREATED, "/a")
    node = await second.get("/e")
    assert node is not None
    assert node.stat.owner == session


async def test_session_that_does_not_reconnect_to_new_owner_expires(house: House) -> None:
    first = await house.open(create=True)
    second = await house.open()
    gone = await house.open(serve=False, session_timeout_s=1)
    await gone.create("/e", b"", CreateMode.EPHEMERAL)
    assert isinstance(gone, StoreClient)
    assert gone._runner is not None
    gone._runner.cancel()  # No farewell is sent, as if the process was killed.
    await asyncio.gather(gone._runner, return_exceptions=True)
    await first.close()
    await until_gone(second, "/e")


async def test_client_without_serve_never_becomes_owner(house: House) -> None:
    owner = await house.open(create=True)
    command = await house.open(serve=False)
    assert isinstance(command, StoreClient)
    await owner.close()
    while "no process serves" not in command._trouble:
        await asyncio.sleep(0.01)
    with hurried(command, 0.5), pytest.raises(MetadataUnavailable) as caught:
        await command.create("/a")
    assert "no process serves" in str(caught.value)
    with pytest.raises(MetadataUnavailable):
        await house.open(serve=False, operation_timeout_s=0.3)


async def test_command_without_server_fails_fast_with_next_step(house: House) -> None:
    await (await house.open(create=True)).close()
    with pytest.raises(MetadataUnavailable, match="no process serves") as caught:
        await house.open(serve=False, operation_timeout_s=3600)
    assert "start a server" in caught.value.next_step


async def test_visit_needs_no_server_and_does_not_serve(house: House, path: str) -> None:
    first = await house.open(create=True, serve=False)
    await first.create("/a")
    assert not os.path.exists(f"{path}.sock")
    with pytest.raises(MetadataUnavailable, match=f"process {os.getpid()}, which holds"):
        await house.open(serve=False, operation_timeout_s=0.2)
    await first.close()
    second = await house.open(visit=True)
    assert await second.children("/") == ["a"]


async def test_visit_to_owned_store_acts_as_client(house: House) -> None:
    owner = await house.open(create=True)
    visitor = await house.open(visit=True)
    await visitor.create("/a")
    assert await owner.children("/") == ["a"]
    await owner.close()
    states = visitor.session_events()
    await until_state(states, SessionState.CONNECTED)
    assert await visitor.children("/") == ["a"]  # The visitor owns the store now.


async def test_open_during_a_visit_waits_until_it_ends(house: House) -> None:
    visitor = await house.open(create=True, serve=False)
    await visitor.create("/visited")
    coming = [
        asyncio.ensure_future(house.open(visit=True)),
        asyncio.ensure_future(house.open(serve=True)),
    ]
    with pytest.raises(MetadataUnavailable, match="does not answer"):
        await house.open(visit=True, operation_timeout_s=0.3)
    assert not any(opening.done() for opening in coming)
    await visitor.close()
    for opening in asyncio.as_completed(coming):
        store = await opening
        assert await store.children("/") == ["visited"]
        await store.close()


async def test_killed_owner_loses_no_acknowledged_write(
    house: House, path: str, children: Family
) -> None:
    owner = children.start_module(SERVING, path, "create")
    assert owner.line() == "ready"
    heir = await house.open(session_timeout_s=60)
    states, session = heir.session_events(), heir.session
    await heir.create("/e", b"", CreateMode.EPHEMERAL)
    for number in range(20):
        await heir.create(f"/{number:02}")
    calls = [asyncio.ensure_future(heir.create(f"/late-{number}")) for number in range(10)]
    await asyncio.sleep(0)
    owner.kill()
    results = await asyncio.gather(*calls, return_exceptions=True)
    names = await heir.children("/")
    assert names[:20] == [f"{number:02}" for number in range(20)]
    for result in results:
        if isinstance(result, str):
            assert result[1:] in names
        else:
            assert isinstance(result, OutcomeUnknown)
    assert (await until_state(states, SessionState.CONNECTED)).session == session == heir.session
    assert "e" in names


async def test_stopped_owner_is_named_and_keeps_the_store(
    house: House, path: str, children: Family
) -> None:
    owner = children.start_module(SERVING, path, "create")
    assert owner.line() == "ready"
    waiting = await house.open(session_timeout_s=1.5)
    states = waiting.session_events()
    await waiting.create("/e", b"", CreateMode.EPHEMERAL)
    session = waiting.session
    owner.stop()
    await until_state(states, SessionState.SUSPENDED)
    with hurried(waiting, 1.5), pytest.raises(MetadataUnavailable) as caught:
        await waiting.get("/e")
    assert f"held by stopped process {owner.pid}" in str(caught.value)
    with pytest.raises(MetadataUnavailable) as caught:
        await house.open(operation_timeout_s=0.5)
    assert f"held by stopped process {owner.pid}" in str(caught.value)
    owner.resume()
    owner.say("owner?")
    assert owner.line() == "yes"
    # The owner stood still for longer than the time-out, but reads waiting requests before it
    # expires sessions.
    assert await waiting.get("/e") is not None
    assert waiting.session == session


async def test_forked_child_does_not_hold_the_lock(
    house: House, path: str, children: Family
) -> None:
    owner = children.start_module(SERVING, path, "create")
    assert owner.line() == "ready"
    heir = await house.open(session_timeout_s=60)
    states = heir.session_events()
    owner.say("fork")
    orphan = int(owner.line())
    try:
        owner.kill()
        async with asyncio.timeout(60):
            await until_state(states, SessionState.SUSPENDED)
            await heir.create("/a")
    finally:
        os.kill(orphan, signal.SIGKILL)


async def test_exit_of_forked_child_loses_no_acknowledged_write(
    house: House, path: str, children: Family
) -> None:
    owner = children.start_module(SERVING, path, "create")
    assert owner.line() == "ready"
    owner.say("fork and end")
    owner.line()
    owner.say("create /a")
    assert owner.line() == "made"
    owner.kill()
    store = await house.open()
    assert await store.children("/") == ["a"]


async def test_failed_commit_ends_the_process_without_answer(
    house: House, path: str, children: Family, capfd: pytest.CaptureFixture[str]
) -> None:
    owner = children.start_module(SERVING, path, "create", "full")
    assert owner.line() == "ready"
    heir = await house.open()
    states = heir.session_events()
    made = 0
    owner.say(f"create /{made}")
    with contextlib.suppress(processes.ChildFailed):
        while owner.line() == "made":
            made += 1
            owner.say(f"create /{made}")
    assert owner.wait() == EXIT_STORAGE_FAILED
    told = capfd.readouterr().err
    assert f"cannot write {path}: " in told
    assert "may be there or not" in told
    assert "and start this again" in told
    assert made > 5
    await until_state(states, SessionState.SUSPENDED)
    names = await heir.children("/")
    assert {str(number) for number in range(made)} <= set(names)


def sqlite_error(code: int) -> sqlite3.Error:
    error = sqlite3.OperationalError("it cannot")
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (OSError(errno.ENOSPC, "no room"), "make room on that disk, and start this again"),
        (OSError(errno.EDQUOT, "no room"), "make room on that disk, and start this again"),
        (OSError(errno.EACCES, "no"), "its directory must be there"),
        (sqlite_error(sqlite3.SQLITE_FULL), "make room on that disk, and start this again"),
        (sqlite_error(sqlite3.SQLITE_IOERR), "find out what is wrong with that disk"),
        (
            sqlite_error(sqlite3.SQLITE_CANTOPEN),
            "check that the user of this process may read and write it",
        ),
        (
            sqlite_error(sqlite3.SQLITE_READONLY),
            "check that the user of this process may read and write it",
        ),
    ],
    ids=repr,
)
async def test_failed_creation_has_next_step_for_its_cause(
    path: str, error: Exception, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk the error had no advice, or the advice to check the directory."""

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("rollbook.proto.runtime.metastore.embedded_sqlite._create", fail)
    store = StoreClient(
        EmbeddedConnector(path, SystemClock(), random.Random(0), Role.SERVER, create=True),
        random.Random(0),
    )
    with pytest.raises((BadConfig, MetadataUnavailable), match=re.escape(path)) as caught:
        await store.open(0.001)
    assert caught.value.next_step.startswith(advice)


async def test_failed_commit_is_fatal_at_once(path: str) -> None:
    fatal: list[BaseException] = []
    connector = EmbeddedConnector(
        path, SystemClock(), random.Random(0), Role.SERVER, create=True, on_fatal=fatal.append
    )
    store = await StoreClient(connector, random.Random(0)).open()
    assert connector._owner is not None

    async def fail(batch: CommitGroup) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    connector._owner._file.keep = fail  # type: ignore[method-assign]  # A disk that fails.
    with hurried(store, 0.3), pytest.raises(OutcomeUnknown):
        await store.create("/a")
    del connector._owner._file.keep  # The disk works again, but nobody knows what is on it.
    with hurried(store, 0.3), pytest.raises(OutcomeUnknown):
        await store.get("/a")
    assert [str(error) for error in fatal] == ["disk I/O error"]
    await store.close()


@pytest.mark.parametrize("gone", ["", "-wal"])
async def test_removed_file_ends_the_process_without_answer(
    path: str, children: Family, gone: str
) -> None:
    owner = children.start_module(SERVING, path, "create")
    assert owner.line() == "ready"
    os.rename(f"{path}{gone}", f"{path}.moved")
    owner.say("create /a")
    assert owner.wait() == EXIT_STORAGE_FAILED


async def test_take_returns_none_while_another_owner_holds_the_store(path: str) -> None:
    """MS2."""
    first = await StoreOwner.take(path, SystemClock(), random.Random(0), create=True)
    assert first is not None
    assert await StoreOwner.take(path, SystemClock(), random.Random(0), create=True) is None
    await first.close()
    second = await StoreOwner.take(path, SystemClock(), random.Random(0), create=False)
    assert second is not None
    await second.close()


async def test_owner_closing_under_load_loses_no_acknowledged_write(house: House) -> None:
    owner, client = await house.open(create=True), await house.open(serve=False)
    heir = await house.open()
    stop = asyncio.Event()
    acknowledged: list[str] = []

    async def load(name: str) -> None:
        number = 0
        while not stop.is_set():
            with contextlib.suppress(OutcomeUnknown):
                acknowledged.append(await client.create(f"/{name}-{number}"))
            number += 1

    tasks = [asyncio.create_task(load(f"task{number}")) for number in range(50)]
    while len(acknowledged) < 200:
        await asyncio.sleep(0)
    async with asyncio.timeout(60):
        await owner.close()
    stop.set()
    await asyncio.gather(*tasks)
    assert set(acknowledged) <= {f"/{name}" for name in await heir.children("/")}


async def test_interrupted_close_can_be_repeated(
    house: House, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await house.open(create=True)
    begun, disk = threading.Event(), threading.Event()
    keep = StoreFile._keep

    def keep_late(file: StoreFile, batch: CommitGroup) -> None:
        begun.set()
        disk.wait()
        keep(file, batch)

    monkeypatch.setattr(StoreFile, "_keep", keep_late)
    writing = asyncio.create_task(store.create("/a"))
    while not begun.is_set():
        await asyncio.sleep(0.01)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(CLOSE_TIMEOUT_S + 0.2):
            await store.close()
    disk.set()
    await store.close()
    await asyncio.gather(writing, return_exceptions=True)
    assert await (await house.open()).children("/") == ["a"]


# --- Invalid clients on the socket --------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff\xff\xff\xff",
        b"\0\0\0\6\0\0\0\2{}",
        b'\0\0\0\x0d\0\0\0\x09["get",1]',
    ],
)
async def test_invalid_bytes_close_connection_with_one_log_line(
    house: House, path: str, data: bytes
) -> None:
    store = await house.open(create=True)
    loop = asyncio.get_running_loop()
    with structlog.testing.capture_logs() as logs, socket.socket(socket.AF_UNIX) as stranger:
        stranger.setblocking(False)
        stranger.connect(f"{path}.sock")
        await loop.sock_sendall(stranger, data)
        async with asyncio.timeout(60):
            try:
                assert await loop.sock_recv(stranger, 100) == b""
            except ConnectionResetError:
                pass
    assert [line["event"] for line in logs] == ["metadata_connection_refused"]
    await store.create("/a")


async def test_request_before_hello_closes_connection(house: House, path: str) -> None:
    await house.open(create=True)
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.setblocking(False)
        stranger.connect(f"{path}.sock")
        head = b'["sync",1]'
        body = len(head).to_bytes(4) + head
        await loop.sock_sendall(stranger, len(body).to_bytes(4) + body)
        async with asyncio.timeout(60):
            assert await loop.sock_recv(stranger, 100) == b""


async def test_client_that_does_not_read_is_disconnected_and_resynced(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its events would fill the owner's memory; on reconnecting it gets a RESYNC."""
    monkeypatch.setattr(
        "rollbook.proto.runtime.metastore.embedded_owner.UNREAD_EVENT_BYTES_MAX", 64 * 1024
    )
    owner, reader = await house.open(create=True), await house.open(serve=False)
    states = reader.session_events()
    watch = await reader.watch("/", recursive=True)
    transport = transport_of(reader)
    transport.pause_reading()
    for number in range(0, 20_000, 500):
        await asyncio.gather(*(owner.create(f"/{number + n}") for n in range(500)))
    transport.resume_reading()
    await until_state(states, SessionState.SUSPENDED)
    await until_state(states, SessionState.CONNECTED)
    assert await next_event(watch) == WatchEvent(WatchEventKind.RESYNC, "/")
    assert len(await reader.children("/")) == 20_000


async def test_owner_buffers_few_large_answers_at_a_time(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much is requested at once, the owner holds a few answers, not all of them."""
    served: list[embedded_owner._Served] = []

    class Watched(embedded_owner._Served):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            served.append(self)

    monkeypatch.setattr(embedded_owner, "_Served", Watched)
    monkeypatch.setattr(embedded_owner, "UNANSWERED_MAX", 4)
    owner = await house.open(create=True)
    client = await house.open(serve=False)
    value = os.urandom(500_000)
    await client.create("/large", value)
    transport = transport_of(client)
    transport.pause_reading()
    calls = [asyncio.ensure_future(client.get("/large")) for _ in range(60)]
    while served[0]._transport.get_write_buffer_size() == 0:
        await owner.sync()
    for _ in range(10):
        await owner.sync()
    assert served[0]._transport.get_write_buffer_size() <= 5 * len(value)
    assert not any(call.done() for call in calls)
    transport.resume_reading()
    nodes = await asyncio.gather(*calls)
    assert all(node is not None and node.value == value for node in nodes)
    assert len(served) == 1


def transport_of(store: MetadataStore) -> asyncio.Transport:
    assert isinstance(store, StoreClient)
    assert store._link is not None
    transport = store._link.channel._transport  # type: ignore[attr-defined]  # A socket's transport.
    assert isinstance(transport, asyncio.Transport)
    return transport


async def test_number_of_connections_is_limited(
    house: House, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_owner, "CONNECTIONS_MAX", 3)  # The owner's own connection counts.
    await house.open(create=True)
    clients = [await house.open(serve=False) for _ in range(2)]
    with pytest.raises(MetadataUnavailable):
        await house.open(serve=False, operation_timeout_s=0.2)
    await clients[0].close()
    await house.open(serve=False)


async def test_connection_without_hello_is_closed(
    house: House, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_owner, "HELLO_TIMEOUT_S", 0.1)
    await house.open(create=True)
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.setblocking(False)
        stranger.connect(f"{path}.sock")
        async with asyncio.timeout(60):
            assert await loop.sock_recv(stranger, 100) == b""


async def test_failed_listen_releases_the_lock(house: House, path: str) -> None:
    os.mkdir(f"{path}.sock")
    with pytest.raises(BadConfig, match="cannot listen"):
        await house.open(create=True)
    os.rmdir(f"{path}.sock")
    await house.open()


async def test_invalid_owner_is_disconnected_and_reported(path: str) -> None:
    """The client retries, and reports the reason when it gives up."""

    class Nonsense(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            transport.write(b"SSH-2.0-OpenSSH_9.2 and so on")

    Path(path).write_bytes(b"")
    server = await asyncio.get_running_loop().create_unix_server(Nonsense, f"{path}.sock")
    with pytest.raises(MetadataUnavailable, match="frame"):
        await open_metadata_store(f"sqlite://{path}", operation_timeout_s=0.3)
    server.close()


async def test_unusable_socket_path_is_refused(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Path(path).write_bytes(b"")
    os.symlink(f"{path}.sock", f"{path}.sock")  # A link to itself fails for root, too.
    with pytest.raises(BadConfig, match="cannot use"):
        await open_metadata_store(f"sqlite://{path}")


async def test_session_does_not_continue_in_another_store_at_same_path(
    house: House, path: str
) -> None:
    """The ids of the two stores are unrelated, even where they are equal."""
    owner, client = await house.open(create=True), await house.open(serve=False)
    states, watch = client.session_events(), await client.watch("/")
    session = client.session
    await client.create("/e", b"", CreateMode.EPHEMERAL)
    assert await next_event(watch) == WatchEvent(WatchEventKind.CHILDREN, "/")
    await owner.close()
    await until_state(states, SessionState.SUSPENDED)
    os.unlink(path)
    other = await house.open(create=True)
    await house.open(serve=False)  # Creates a session with the same number.
    assert (await until_state(states, SessionState.EXPIRED)).session == session
    await until_state(states, SessionState.CONNECTED)
    assert await next_event(watch) == WatchEvent(WatchEventKind.RESYNC, "/")
    assert await client.children("/") == await other.children("/") == []
