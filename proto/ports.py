"""The ports through which shells use the machine. `proto/runtime` implements them on a real machine,
the simulator (`tests/simulation/kernel`) on a simulated one; no code above them uses a clock, a
socket, a file, a thread or a random number in any other way.

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
        """A time that never goes back; the only clock that deadlines and intervals may use."""

    def wall_us(self) -> int:
        """Microseconds since 1970; may jump. Use it for timestamps that people read, never for safety."""

    def let_others_run(self) -> None:
        """Lets other processes that wait for this processor run first, as long as they are quick.

        Call it after waking such a process, if the work that is left is less urgent.
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
        """The listening address, with the real port if 0 was requested."""

    async def close(self) -> None:
        """Stops accepting. Accepted connections live on."""


class Transport(Protocol):
    """Streams of bytes. Both sides are `asyncio.Protocol` or `asyncio.BufferedProtocol`."""

    async def listen(self, factory: ProtocolFactory, address: Address) -> Listener:
        """Listens at the address. Raises `BadConfig` if it cannot be used."""

    async def connect(
        self, factory: ProtocolFactory, address: Address, timeout_s: float
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Connects to the address. Raises `Unavailable` if there is no response in time."""


# --- Disk -------------------------------------------------------------------------------------


class OpenMode(Enum):
    READ = "read"
    WRITE = "write"  # Existing file, for reading and writing.
    CREATE = "create"  # Must not exist yet.


@dataclass(frozen=True, slots=True)
class FileStat:
    size: int
    is_directory: bool
    device: int  # Two paths can be linked to one file if their devices are equal.


@dataclass(frozen=True, slots=True)
class DiskSpace:
    total_bytes: int
    free_bytes: int


class File(Protocol):
    """An open file. Writes, syncs and changes of size take effect in the order of their calls;
    reads may overtake them, but see every write that has returned.

    After a failed write or sync the file's contents are unknown until they are read back and
    verified: the caller poisons it and never tries again.
    """

    async def size(self) -> int: ...

    async def read_at(self, position: int, length: int) -> bytes:
        """Reads bytes; fewer than requested only at the end of the file."""

    async def read_with(self, position: int, length: int, use: Callable[[Buffer], T]) -> T:
        """Like `read_at`, but returns the result of `use` on the bytes.

        They may be a view of memory that the next reader gets once `use` returns, so `use` may
        keep only copies.
        """

    def prefetch(self, position: int, length: int) -> None:
        """Announces a `read_at` of this range or a part of it.

        The machine may read it while the caller does other work, or ignore the hint.
        """

    async def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        """Writes to the operating system only: a power cut may lose the bytes, whole or in part."""

    async def sync(self) -> None:
        """Makes contents and size durable. The name needs `sync_directory`."""

    async def write_and_sync(self, position: int, buffers: Sequence[Buffer]) -> None:
        """`write_at` and then `sync`, in one hop to a thread: the journal's hot path."""

    def is_quick(self, size: int) -> bool:
        """Whether writing `size` bytes and syncing them would delay no other work: nothing is queued
        before it."""

    def write_and_sync_now(self, position: int, buffers: Sequence[Buffer]) -> None:
        """`write_and_sync` without a thread, if that has been quick on this disk."""

    async def truncate(self, size: int) -> None: ...

    async def allocate(self, position: int, length: int) -> None:
        """Reserves space that reads as zeros, and grows the file over it; completely, or not at all."""

    async def close(self) -> None:
        """Closes the file without a sync. Idempotent."""


class DiskLock(Protocol):
    @property
    def token(self) -> str:
        """Equal for all holders of this very lock, and only for them: a holder knows
        that earlier holders are dead or have released it. Empty if that is not known.
        """

    async def release(self) -> None: ...


class Disk(Protocol):
    """Paths are absolute strings. Errors of the machine are raised as `OSError`."""

    async def open(self, path: str, mode: OpenMode) -> File: ...

    async def stat(self, path: str) -> FileStat | None:
        """A file's facts; None if it is missing."""

    async def list_directory(self, path: str) -> list[str]:
        """The names in a directory, sorted."""

    async def make_directory(self, path: str) -> None:
        """Creates a directory with its parents; existing ones are fine. Durable once the parents are synced."""

    async def rename(self, source: str, target: str) -> None:
        """Replaces the target atomically. Durable after `sync_directory` of both folders."""

    async def link(self, source: str, target: str) -> None: ...

    async def unlink(self, path: str) -> None: ...

    async def sync_directory(self, path: str) -> None:
        """Makes names created, renamed and removed in the directory durable."""

    async def space(self, path: str) -> DiskSpace: ...

    async def lock(self, path: str) -> DiskLock:
        """Holds the file exclusively until released or until the process dies.

        Creates it if need be. Raises `DirectoryInUse` if another process has it.
        """


# --- Metadata store ---------------------------------------------------------------------------

SessionId = int
NO_SESSION: SessionId = 0
ANY_VERSION: int | None = None


@dataclass(frozen=True, slots=True)
class NodeStat:
    version: int  # 0 when created, +1 with each set.
    created_txn: (
        int  # Grows from write to write in the whole store; distinguishes two lives of a path.
    )
    modified_txn: int
    created_ms: int
    modified_ms: int
    owner: SessionId  # NO_SESSION for a persistent node.
    children: int


@dataclass(frozen=True, slots=True)
class Node:
    value: bytes
    stat: NodeStat


class CreateMode(Enum):
    PERSISTENT = 0
    EPHEMERAL = 1  # Removed with the session that made it; has no children.
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
    path: str  # A sequential node's name is this and ten digits.
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
    """Succeeds iff the node exists and, unless any will do, has this version."""

    path: str
    version: int | None = ANY_VERSION


Op = Create | Set | Delete | Check
OpResult = str | NodeStat | None
"""The result of one operation. Create: the path that was made; Set: the new stat; Delete, Check: None."""


class WatchEventKind(Enum):
    CREATED = "created"
    CHANGED = "changed"
    DELETED = "deleted"
    CHILDREN = "children"  # A child of the watched node came or went; never under `recursive`.
    RESYNC = "resync"  # Events may have been missed (a lost connection): read everything again.


@dataclass(frozen=True, slots=True)
class WatchEvent:
    kind: WatchEventKind
    path: str


class Watch(Protocol):
    """A stream of events, in the order of their commits; equal ones may be merged.

    From the return of `watch()` on, every change is followed by its event or by RESYNC, and a
    read made after the event sees that change or a later state. The stream ends only by `close`
    of the watch or of the store.
    """

    def __aiter__(self) -> AsyncIterator[WatchEvent]: ...

    async def __anext__(self) -> WatchEvent: ...

    async def close(self) -> None: ...


class SessionState(Enum):
    CONNECTED = "connected"
    SUSPENDED = "suspended"  # Connection lost: the session may be over already. Stop acting on it.
    EXPIRED = "expired"  # Over: its ephemeral nodes are gone. CONNECTED with a new id follows.


@dataclass(frozen=True, slots=True)
class SessionEvent:
    state: SessionState
    session: SessionId


class MetadataStore(Protocol):
    """A tree of versioned nodes with compare-and-swap, sessions and watches.

    The three stores behave alike: ZooKeeper is the model, and one contract suite holds them to it.

    Paths are `/a/b`, never with a trailing slash; which requests are valid (names, sizes,
    versions) is in `rollbook.proto.metastore.core.ops`, and others are refused before anything
    is sent. Reads may be answered from a replica that lags; `sync()` first where freshness
    matters. A client always sees its own writes, and its calls are served in the order in which
    it made them.

    A request made while the connection is down waits for it. Then, by the families of
    `rollbook.proto.errors`:

    - the answer came: the result, or `NoSuchNode`, `NodeExists`, `MetadataConflict`,
      `NodeNotEmpty`, `InvalidRequest`: nothing was changed;
    - the connection broke, or the operation timeout passed, after it was sent:
      `ConnectionLost`. A write may have been applied; a read is only late;
    - it was never sent: `MetadataUnavailable`;
    - the session expired before it was sent: `SessionExpired`.

    Cancelling a write leaves its outcome unknown, like `ConnectionLost`.
    """

    @property
    def session(self) -> SessionId:
        """The current session; NO_SESSION before the first one and after `close`."""

    async def get(self, path: str) -> Node | None: ...

    async def children(self, path: str) -> list[str]:
        """The children's names, sorted. Raises `NoSuchNode`."""

    async def create(
        self, path: str, value: bytes = b"", mode: CreateMode = CreateMode.PERSISTENT
    ) -> str:
        """Creates a node; returns its path. Raises `NoSuchNode` (parent), `NodeExists`, `InvalidRequest`."""

    async def set(self, path: str, value: bytes, version: int | None = ANY_VERSION) -> NodeStat: ...

    async def delete(self, path: str, version: int | None = ANY_VERSION) -> None: ...

    async def transaction(self, ops: Sequence[Op]) -> list[OpResult]:
        """Applies all operations or none, in one commit.

        If the store refuses them, raises the error that the first failing op would have raised
        alone, with `op=INDEX` in its `ids`.
        """

    async def watch(self, path: str, *, recursive: bool = False) -> Watch:
        """Watches one node and its children's creation and deletion, or a whole subtree.

        The node need not exist. `recursive` gives CREATED, CHANGED and DELETED of the node and of
        everything below it.
        """

    def session_events(self) -> AsyncIterator[SessionEvent]:
        """Session events from now on; the first one is the current state."""

    async def sync(self) -> None:
        """Reads that start after this see every write acknowledged before this began."""

    async def close(self) -> None:
        """Ends the session at once: its ephemeral nodes are gone when it returns, if the store
        is reachable."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
