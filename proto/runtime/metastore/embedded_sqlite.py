"""The file of the embedded store: SQLite, with one connection on a thread of its own.

    store     one row: the store's id, the last transaction, the sum of all checksums
    nodes     a row for each node; its children follow from their paths
    sessions  a row for each live session

Beside the file is `P.reserve`, which has `RESERVE_BYTES` bytes. It is removed when the disk is
full, and created again when there is room.

A batch is one SQLite transaction, synced before `keep` returns (write-ahead log,
synchronous=FULL). SQLite's own lock on the file is exclusive: no other program reads or writes
it at the same time. Before an owner depends on the log of the previous owner, it makes this log
durable as it was read: see `_write_again`.

Each row has the CRC-32C of its contents, and `store` has the sum of all of them. So a row that was
changed, lost or restored by another program is noticed when the file is opened. A damaged file is
refused and never repaired (MS7): a missing node is better than a wrong one.
"""

import asyncio
import ctypes
import os
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Self, TypeVar

import google_crc32c
import structlog

from rollbook.proto.errors import (
    BadConfig,
    BadMetadata,
    DirectoryInUse,
    MetadataUnavailable,
    OutcomeUnknown,
    UnsupportedVersion,
)
from rollbook.proto.metastore.core.disk_space_limit import ROOMY_BYTES
from rollbook.proto.metastore.core.metadata_service import CommitGroup, Kept
from rollbook.proto.metastore.core.tree import NodeRow, Tree
from rollbook.proto.ports import SessionId
from rollbook.proto.runtime.system_error_text import MAKE_ROOM

logger = structlog.get_logger()

RESERVE_BYTES: Final = (
    8 * 1024 * 1024
)  # This space is released when there is no other; pending work needs less.
_TRY_AGAIN_S: Final = 0.5
FORMAT: Final = 1  # SQLite's user_version.
# This is "Roll" in ASCII; it distinguishes our files from other SQLite files.
APPLICATION_ID: Final = 0x526F6C6C
_BUSY_S: Final = 1.0
_CHUNK_BYTES: Final = 1024 * 1024
_NOT_PERMITTED: Final = (sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)

T = TypeVar("T")

_SCHEMA: Final = f"""
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FORMAT};
CREATE TABLE store (id TEXT NOT NULL, last_txn INTEGER NOT NULL, checksums INTEGER NOT NULL);
CREATE TABLE nodes (
    path TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL,
    created_txn INTEGER NOT NULL, modified_txn INTEGER NOT NULL,
    created_ms INTEGER NOT NULL, modified_ms INTEGER NOT NULL,
    owner INTEGER NOT NULL, creates INTEGER NOT NULL, checksum INTEGER NOT NULL
);
CREATE TABLE sessions (
    id INTEGER PRIMARY KEY, timeout_ms INTEGER NOT NULL, checksum INTEGER NOT NULL
);
"""
_PUT_NODE: Final = "INSERT OR REPLACE INTO nodes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_PUT_SESSION: Final = "INSERT OR REPLACE INTO sessions VALUES (?, ?, ?)"


class StoreFile:
    """The store's database. The file of a store. All methods that use the connection run on its
    thread, one after the other.
    """

    def __init__(self, path: str) -> None:
        self.may_wait = True  # If True, a write to a full disk waits for room.
        self.is_stuck = False  # True while a write is waiting for room.
        self._path = path
        self._reserve = f"{path}.reserve"
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="metadata-file")
        self._checksums: dict[str | SessionId, int] = {}  # The checksums of the rows, by key.
        self._sum = 0
        self._database: sqlite3.Connection
        # The device and the inode of each file, by path.
        self._found: dict[str, tuple[int, int]] = {}

    @classmethod
    async def open(cls, path: str, new_id: str | None) -> tuple[Self, Kept]:
        """Opens the file. With `new_id`, it creates a missing file with this id.
        The caller must hold the lock.

        Raises `BadMetadata` for a damaged file, `UnsupportedVersion`, `DirectoryInUse`, and
        `BadConfig` if remains of another store are in the way of a new file.
        """
        file = cls(path)
        try:
            return file, await file._run(file._open, new_id)
        except BaseException:
            await file.close()
            raise

    async def keep(self, batch: CommitGroup) -> None:
        """Stores a batch, which is durable on return. If the disk is full, SQLite writes nothing,
        and the write is tried again (MS8). Raises `OutcomeUnknown` if it is not known what the file
        contains.
        """
        while True:
            try:
                await self._run(self._keep, batch)
            except sqlite3.Error as error:
                if not (self.may_wait and _is_full(error)):
                    raise _not_kept(f"cannot write {self._path}: {error}", _mend(error)) from error
            else:
                self.is_stuck = False
                return
            if not await self._run(self._give_up_reserve):
                if not self.is_stuck:
                    logger.error("metadata_disk_full", path=self._path)
                self.is_stuck = True
                await asyncio.sleep(_TRY_AGAIN_S)

    async def free_bytes(self) -> int:
        """Returns the free bytes on the store's disk, and creates the reserve again if there is room for it."""
        return await self._run(self._look_for_room)

    async def close(self) -> None:
        await self._run(self._close)
        self._thread.shutdown()

    async def _run(self, work: Callable[..., T], *arguments: Any) -> T:
        """Runs work on the thread and waits for it, even if cancelled, since the thread finishes
        what it began.
        """
        loop = asyncio.get_running_loop()
        done = asyncio.shield(loop.run_in_executor(self._thread, work, *arguments))
        done.add_done_callback(_note_failure)
        return await done

    # --- On the thread ---

    def _look_for_room(self) -> int:
        space = os.statvfs(os.path.dirname(self._path))
        free = space.f_bavail * space.f_frsize
        if free >= ROOMY_BYTES + RESERVE_BYTES and not os.path.exists(self._reserve):
            descriptor = os.open(self._reserve, os.O_CREAT | os.O_WRONLY, 0o600)
            try:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(descriptor, 0, RESERVE_BYTES)
                else:  # macOS.
                    os.write(descriptor, bytes(RESERVE_BYTES))
            finally:
                os.close(descriptor)
        return free

    def _give_up_reserve(self) -> bool:
        """Removes the reserve, and returns whether there was one."""
        try:
            os.unlink(self._reserve)
        except FileNotFoundError:
            return False
        logger.warning("metadata_reserve_given_up", path=self._path)
        return True

    def _open(self, new_id: str | None) -> Kept:
        if new_id is not None and not os.path.exists(self._path):
            try:
                _create(self._path, new_id)
            except sqlite3.Error as error:  # The usual reason is a full disk.
                raise _unusable(f"cannot make {self._path}", error) from error
        try:
            return self._load()
        except sqlite3.DatabaseError as error:
            # Python itself raises an error without a code, for invalid text.
            kind = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
            if kind == sqlite3.SQLITE_BUSY:
                raise DirectoryInUse(f"another program has {self._path} open") from error
            if kind in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR):
                raise _damaged(self._path, str(error)) from error
            raise _unusable(f"cannot read {self._path}", error) from error

    def _load(self) -> Kept:
        self._database = sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None)
        _NEVER_CLOSED_IN_CHILDREN[id(self._database)] = self._database
        ask = self._database.execute
        ask("PRAGMA locking_mode = EXCLUSIVE")
        if ask("PRAGMA application_id").fetchone() != (APPLICATION_ID,):
            raise _damaged(self._path, "it is not a metadata store")
        # No other process writes the log, since the read above took SQLite's lock.
        _write_again(f"{self._path}-wal")
        (version,) = ask("PRAGMA user_version").fetchone()
        if version != FORMAT:
            raise UnsupportedVersion(
                f"{self._path} has format {version}; this release reads format {FORMAT}"
            )
        (verdict,) = ask("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise _damaged(self._path, verdict)
        rows = [(path, NodeRow(*fields)) for path, *fields in self._checked("nodes")]
        timeouts_ms = [(session, timeout_ms) for session, timeout_ms in self._checked("sessions")]
        ((store, last_txn, checksums),) = ask("SELECT * FROM store").fetchall() or [("", 0, -1)]
        if self._sum != checksums:
            raise _damaged(self._path, "rows are missing or out of date")
        # This is set after all checks, so that a refused file is not changed.
        ask("PRAGMA journal_mode = WAL")
        ask("PRAGMA synchronous = FULL")
        ask("SELECT * FROM store").fetchall()  # This creates the log.
        self._found = {path: _identity(path) for path in (self._path, f"{self._path}-wal")}
        return Kept(store, last_txn, rows, timeouts_ms)

    def _checked(self, table: str) -> Iterator[tuple[Any, ...]]:
        for row in self._database.execute(f"SELECT * FROM {table} ORDER BY 1"):  # noqa: S608  # Ours.
            *contents, checksum = row
            if _checksum(contents) != checksum:
                raise _damaged(self._path, f"checksum of {contents[0]!r} in {table}")
            self._count(contents[0], checksum)
            yield tuple(contents)

    def _keep(self, batch: CommitGroup) -> None:
        run, run_many = self._database.execute, self._database.executemany
        if self._database.in_transaction:  # This is so if the previous attempt found the disk full.
            run("ROLLBACK")
        run("BEGIN IMMEDIATE")
        nodes = [(path, *row) for path, row in batch.rows.items() if row is not None]
        sessions = [item for item in batch.timeouts_ms.items() if item[1] is not None]
        run_many(_PUT_NODE, [(*node, self._count(node[0], _checksum(node))) for node in nodes])
        run_many(_PUT_SESSION, [(*s, self._count(s[0], _checksum(s))) for s in sessions])
        for gone in (path for path, row in batch.rows.items() if row is None):
            self._count(gone, 0)
            run("DELETE FROM nodes WHERE path = ?", (gone,))
        for over in (s for s, timeout_ms in batch.timeouts_ms.items() if timeout_ms is None):
            self._count(over, 0)
            run("DELETE FROM sessions WHERE id = ?", (over,))
        run("UPDATE store SET last_txn = ?, checksums = ?", (batch.last_txn, self._sum))
        run("COMMIT")
        # This check is needed because SQLite would go on writing to a removed file.
        for path, known in self._found.items():
            if not os.path.exists(path) or _identity(path) != known:
                raise _not_kept(f"{path} was removed or replaced", "bring it back")

    def _count(self, key: str | SessionId, checksum: int) -> int:
        self._sum += checksum - self._checksums.pop(key, 0)
        if checksum:
            self._checksums[key] = checksum
        return checksum

    def _close(self) -> None:
        if hasattr(self, "_database"):
            self._database.close()
            _NEVER_CLOSED_IN_CHILDREN.pop(id(self._database), None)


def _is_full(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL


def _mend(error: sqlite3.Error) -> str:
    return MAKE_ROOM if _is_full(error) else "find out what is wrong with that disk"


def _unusable(what: str, error: sqlite3.Error) -> MetadataUnavailable:
    mend = _mend(error)
    if getattr(error, "sqlite_errorcode", 0) & 0xFF in _NOT_PERMITTED:
        mend = "check that the user of this process may read and write it, and its directory"
    return MetadataUnavailable(f"{what}: {error}", next_step=f"{mend}, and start this again")


def _not_kept(reason: str, mend: str) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"{reason}; the changes of that moment may be there or not",
        next_step=f"{mend}, and start this again",
    )


def _note_failure(done: "asyncio.Future[Any]") -> None:
    """Retrieves an error. Its waiter may be cancelled in the same step, and asyncio would then
    report the error.
    """
    if not done.cancelled():
        done.exception()


def _create(path: str, store: str) -> None:
    """Creates a store completely or not at all: the file gets its name when it is durable."""
    for stale in (f"{path}-wal", f"{path}-journal"):
        if os.path.exists(stale):  # SQLite would take a stale log for the log of the new file.
            raise BadConfig(
                f"{stale} was left by a metadata store that is gone",
                next_step="bring that store back, or remove this file",
            )
    unfinished = f"{path}.new"
    for leftover in (unfinished, f"{unfinished}-journal"):
        if os.path.exists(leftover):
            os.unlink(leftover)
    os.close(os.open(unfinished, os.O_CREAT | os.O_EXCL, 0o600))
    database = sqlite3.connect(unfinished, isolation_level=None)
    try:
        # This avoids dozens of syncs of a file that has no name yet.
        database.execute("PRAGMA synchronous = OFF")
        database.executescript(_SCHEMA)
        roots = [(path, *row) for path, row in Tree().rows()]
        checksums = [_checksum(root) for root in roots]
        database.executemany(
            _PUT_NODE, [(*root, checksum) for root, checksum in zip(roots, checksums, strict=True)]
        )
        database.execute("INSERT INTO store VALUES (?, 0, ?)", (store, sum(checksums)))
    finally:
        database.close()
    _sync(unfinished)
    os.rename(unfinished, path)
    _sync(os.path.dirname(path))


def _write_again(path: str) -> None:
    """Makes the log durable as it was read, because the new owner will append to it.

    Unsynced writes of the previous owner may be only in the kernel's memory. If its sync failed,
    the kernel even considers these pages written. SQLite would read them and append to them, but
    sync only what it appended; after a power cut the log would then end at the hole before these
    bytes.
    """
    try:
        log = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return
    try:
        position = 0
        while chunk := os.pread(log, _CHUNK_BYTES, position):
            position += os.pwrite(log, chunk, position)
        os.fsync(log)
    finally:
        os.close(log)
    _sync(os.path.dirname(path))


def _identity(path: str) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _checksum(contents: Any) -> int:
    """Returns the checksum over a row's other fields and their boundaries."""
    parts = [part if isinstance(part, bytes) else repr(part).encode() for part in contents]
    # The checksum 0 means that there is no row.
    return int(google_crc32c.value(b"\0".join(parts))) or 1


def _damaged(path: str, what: str) -> BadMetadata:
    return BadMetadata(
        f"the metadata store {path} is damaged: {what}",
        next_step="restore it from a backup; nothing was changed",
    )


_NEVER_CLOSED_IN_CHILDREN: Final[dict[int, sqlite3.Connection]] = {}
"""Connections that are never closed: if a forked child closed one, even at its own end, it would
remove its parent's log.
"""


def _keep_open_in_child() -> None:
    for database in _NEVER_CLOSED_IN_CHILDREN.values():
        # Otherwise the end of the interpreter would close it.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(database))


os.register_at_fork(after_in_child=_keep_open_in_child)
