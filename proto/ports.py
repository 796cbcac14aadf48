"""The ports through which shells use the machine. `proto/runtime` implements them on a real
machine, and the simulator (`tests/simulation/kernel`) on a simulated one. Code above them uses
clocks, sockets, files, threads and random numbers only through them.

Code may use `asyncio.sleep`, `asyncio.timeout` and `loop.call_later` everywhere, since the
simulator's event loop runs on virtual time.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Protocol, Self, TypeVar

T = TypeVar("T")

Randomness = random.Random
"""A source of random numbers: `random.SystemRandom()` in production, seeded in tests and simulations."""

Buffer = bytes | bytearray | memoryview


class Clock(Protocol):
    def monotonic_ns(self) -> int:
        """Returns a time that never goes back. Deadlines and intervals may use only this clock."""

    def wall_us(self) -> int:
        """Returns the microseconds since 1970, which may jump. Use them for timestamps that people
        read, never for safety.
        """

    def let_others_run(self) -> None:
        """Lets other processes that wait for this processor run first, provided that they are quick.

        Call it after waking another process, if the remaining work here is less urgent.
        """


# --- Network ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Address:
    """`host:port`, or the path of a Unix socket (with port 0)."""

    host: str
    port: int

    @property
    def is_unix(self) -> bool:
        return self.host.startswith("/")

    def __str__(self) -> str:
        return self.host if self.is_unix else f"{self.host}:{self.port}"


ProtocolFactory = Callable[[], asyncio.BaseProtocol]


class Listener(Protocol):
    @property
    def address(self) -> Address:
        """The address on which it listens, with the real port if port 0 was requested."""

    async def close(self) -> None:
        """Stops accepting. Accepted connections live on."""


class Transport(Protocol):
    """Streams of bytes between two sides, each an `asyncio.Protocol` or `asyncio.BufferedProtocol`."""

    async def listen(self, factory: ProtocolFactory, address: Address) -> Listener:
        """Listens on the address. Raises `BadConfig` if the address cannot be used."""

    async def connect(
        self, factory: ProtocolFactory, address: Address, timeout_s: float
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Connects to the address. Raises `Unavailable` if there is no response in time."""


# --- Disk -------------------------------------------------------------------------------------


class OpenMode(Enum):
    READ = "read"
    WRITE = "write"  # Opens an existing file for reading and writing.
    CREATE = "create"  # Creates a file, which must not exist yet.


@dataclass(frozen=True, slots=True)
class FileStat:
    size: int
    is_directory: bool
    device: int  # Files can be linked between two directories if their devices are equal.


@dataclass(frozen=True, slots=True)
class DiskSpace:
    total_bytes: int
    free_bytes: int


class File(Protocol):
    """An open file. Writes, syncs and changes of size take effect in the order of their calls.
    Reads may overtake them, but see every write that has returned.

    After a failed write or sync the file's contents are unknown until they are read back and
    verified. The caller marks the file as poisoned, and never tries again.
    """

    async def size(self) -> int: ...

    async def read_at(self, position: int, length: int) -> bytes:
        """Reads bytes, and returns fewer than requested only at the end of the file."""

    async def read_with(self, position: int, length: int, use: Callable[[Buffer], T]) -> T:
        """Reads bytes as `read_at` does, but returns the result of `use` on them.

        The bytes may be a view of memory that is reused once `use` returns, so `use` may keep only
        copies.
        """

    def prefetch(self, position: int, length: int) -> None:
        """Announces a `read_at` of this range or a part of it.

        The machine may read the range while the caller does other work, or ignore the hint.
        """

    async def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        """Writes to the operating system only: a power cut may lose the bytes, whole or in part."""

    async def sync(self) -> None:
        """Makes the file's contents and size durable. Its name becomes durable by `sync_directory`."""

    async def write_and_sync(self, position: int, buffers: Sequence[Buffer]) -> None:
        """Does `write_at` and then `sync`, in one hop to a thread. This is the journal's hot path."""

    def is_quick(self, size: int) -> bool:
        """Returns whether `write_and_sync_now` with `size` bytes would be quick and delay no other
        work.
        """

    def write_and_sync_now(self, position: int, buffers: Sequence[Buffer]) -> None:
        """Does the work of `write_and_sync` without a thread, for disks on which it has been quick."""

    async def truncate(self, size: int) -> None: ...

    async def allocate(self, position: int, length: int) -> None:
        """Reserves space that reads as zeros and extends the file over it, completely or not at all."""

    async def close(self) -> None:
        """Closes the file without a sync. Idempotent."""


class DiskLock(Protocol):
    @property
    def token(self) -> str:
        """A text that all holders of this very lock share, and nobody else: a holder that finds it
        knows that the earlier holder is dead or has released the lock. Empty if the system cannot
        identify the lock.
        """

    async def release(self) -> None: ...


class Disk(Protocol):
    """Paths are absolute strings. Errors of the machine are raised as `OSError`."""

    async def open(self, path: str, mode: OpenMode) -> File: ...

    async def stat(self, path: str) -> FileStat | None:
        """Returns a file's size, type and device, or None if the file is missing."""

    async def list_directory(self, path: str) -> list[str]:
        """Returns the names in a directory, sorted."""

    async def make_directory(self, path: str) -> None:
        """Creates a directory and its missing parents. They are durable once their own parents are synced."""

    async def rename(self, source: str, target: str) -> None:
        """Replaces the target atomically. The change is durable after `sync_directory` of both folders."""

    async def link(self, source: str, target: str) -> None: ...

    async def unlink(self, path: str) -> None: ...

    async def sync_directory(self, path: str) -> None:
        """Makes it durable that names in the directory were created, renamed or removed."""

    async def space(self, path: str) -> DiskSpace: ...

    async def lock(self, path: str) -> DiskLock:
        """Locks the file exclusively, until the lock is released or the process dies.

        Creates the file if it is missing. Raises `DirectoryInUse` if another process holds the lock.
        """


# --- Metadata store ---------------------------------------------------------------------------

SessionId = int
NO_SESSION: SessionId = 0
ANY_VERSION: int | None = None


@dataclass(frozen=True, slots=True)
class NodeStat:
    version: int  # The version is 0 when the node is created, and grows by one with each set.
    created_txn: int  # Grows with each write to the store; it distinguishes two lives of a path.
    modified_txn: int
    created_ms: int
    modified_ms: int
    owner: SessionId  # The owner of a persistent node is NO_SESSION.
    children: int


@dataclass(frozen=True, slots=True)
class Node:
    value: bytes
    stat: NodeStat


class CreateMode(Enum):
    PERSISTENT = 0
    EPHEMERAL = 1  # The node is removed with the session that made it, and has no children.
    PERSISTENT_SEQUENTIAL = 2
    EPHEMERAL_SEQUENTIAL = 3

    @property
    def is_ephemeral(self) -> bool:
        return self in (CreateMode.EPHEMERAL, CreateMode.EPHEMERAL_SEQUENTIAL)

    @property
    def is_sequential(self) -> bool:
        return self in (CreateMode.PERSISTENT_SEQUENTIAL, CreateMode.EPHEMERAL_SEQUENTIAL)


@dataclass(frozen=True, slots=True)
class Create:
    path: str  # For a sequential node the store appends ten digits.
    value: bytes = b""
    mode: CreateMode = CreateMode.PERSISTENT


@dataclass(frozen=True, slots=True)
class Set:
    path: str
    value: bytes
    version: int | None = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Delete:
    path: str
    version: int | None = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Check:
    """Succeeds iff the node exists and has this version; with ANY_VERSION it need only exist."""

    path: str
    version: int | None = ANY_VERSION


Op = Create | Set | Delete | Check
OpResult = str | NodeStat | None
"""The result of one operation: the new path for Create, the new stat for Set, and None for Delete and Check."""


class WatchEventKind(Enum):
    CREATED = "created"
    CHANGED = "changed"
    DELETED = "deleted"
    # A child of the watched node was created or deleted; never sent with `recursive`.
    CHILDREN = "children"
    # Events may have been missed, as when a connection was lost: read everything again.
    RESYNC = "resync"


@dataclass(frozen=True, slots=True)
class WatchEvent:
    kind: WatchEventKind
    path: str


class Watch(Protocol):
    """A stream of events in the order of their commits. Equal events may be merged.

    From the return of `watch()` on, every change is followed by its event or by RESYNC, and a
    read made after the event sees that change or a later state. The stream ends only when the watch
    or the store is closed.
    """

    def __aiter__(self) -> AsyncIterator[WatchEvent]: ...

    async def __anext__(self) -> WatchEvent: ...

    async def close(self) -> None: ...


class SessionState(Enum):
    CONNECTED = "connected"
    # The connection is lost, and the session may be over already: stop acting on it.
    SUSPENDED = "suspended"
    # The session is over, and its ephemeral nodes are gone. CONNECTED with a new id follows.
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class SessionEvent:
    state: SessionState
    session: SessionId


class MetadataStore(Protocol):
    """A tree of versioned nodes with compare-and-swap, sessions and watches.

    The three stores behave alike: ZooKeeper is the model, and one contract suite tests all of them.

    Paths look like `/a/b`, without a trailing slash. `rollbook.proto.metastore.core.request_checks` defines
    which requests are valid (names, sizes, versions); others are refused before anything is sent.
    Reads may be answered by a replica that lags; call `sync()` first where freshness matters. A
    client always sees its own writes, and its calls are served in the order in which it made them.

    A request made while the connection is down waits for the connection. Its result then depends on
    what happened to it (errors are classes of `rollbook.proto.errors`):

    - the answer came: it returns the result, or raises `NoSuchNode`, `NodeExists`,
      `MetadataConflict`, `NodeNotEmpty` or `InvalidRequest`, and nothing was changed;
    - the connection broke, or the operation time-out passed, after the request was sent: it raises
      `ConnectionLost`. A write may have been applied;
    - it was never sent: it raises `MetadataUnavailable`;
    - the session expired before it was sent: it raises `SessionExpired`.

    Cancelling a write leaves its outcome unknown, like `ConnectionLost`.
    """

    @property
    def session(self) -> SessionId:
        """The id of the current session; NO_SESSION before the first session and after `close`."""

    async def get(self, path: str) -> Node | None: ...

    async def children(self, path: str) -> list[str]:
        """Returns the children's names, sorted. Raises `NoSuchNode`."""

    async def create(
        self, path: str, value: bytes = b"", mode: CreateMode = CreateMode.PERSISTENT
    ) -> str:
        """Creates a node and returns its path. Raises `NoSuchNode` (about the parent),
        `NodeExists`, `InvalidRequest`.
        """

    async def set(self, path: str, value: bytes, version: int | None = ANY_VERSION) -> NodeStat: ...

    async def delete(self, path: str, version: int | None = ANY_VERSION) -> None: ...

    async def transaction(self, ops: Sequence[Op]) -> list[OpResult]:
        """Applies all operations or none of them, in one commit.

        If the store refuses them, it raises the error that the first failing operation would have
        raised alone, with `op=INDEX` in its `ids`.
        """

    async def watch(self, path: str, *, recursive: bool = False) -> Watch:
        """Watches one node and its children's creation and deletion, or a whole subtree.

        The node need not exist. With `recursive`, the events are CREATED, CHANGED and DELETED of
        the node and of all nodes below it.
        """

    def session_events(self) -> AsyncIterator[SessionEvent]:
        """Returns the events of the session from now on; the first event is the current state."""

    async def sync(self) -> None:
        """Returns when later reads will see every write that was acknowledged before this call."""

    async def close(self) -> None:
        """Ends the session at once. If the store is reachable, the session's ephemeral nodes are
        gone on return.
        """

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
