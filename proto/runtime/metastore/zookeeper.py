"""The metadata store on a ZooKeeper ensemble (3.6 or newer: persistent watches).

The module keeps the promises of the port as follows:

- *Outcome.* A request that was not yet sent when the connection broke waits for the next
  connection, and its outcome is certain. A request that was sent raises `ConnectionLost`, and is
  not repeated here.
- *Watches.* ZooKeeper keeps watches for each connection. After each reconnection all of them are
  set again, and each reports RESYNC. Servers before 3.9 keep one mode for each path: a path that is
  watched in both modes is watched recursively, and when a child is created or deleted, CHILDREN is
  reported.
- *Sessions.* SUSPENDED is reported when the connection breaks. EXPIRED is reported once the client
  has reconnected and a server has said that the session is over. A new session then begins by
  itself.
- *Freshness.* To read fresh data, a caller calls `sync` and then reads. A replica whose state is
  older than the one that this client has seen refuses its connection.

All clients may use the nodes, as in BookKeeper; if credentials are given, only the creator of a
node may use it.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

import structlog
from kazoo import exceptions as kazoo
from kazoo.protocol.serialization import (
    CheckVersion,
    Exists,
    GetChildren,
    GetData,
    SetData,
    Sync,
    Transaction,
)
from kazoo.protocol.serialization import Create as KazooCreate
from kazoo.protocol.serialization import Delete as KazooDelete
from kazoo.protocol.states import ZnodeStat
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from rollbook.proto.errors import (
    ConnectionLost,
    InvalidRequest,
    MetadataConflict,
    MetadataUnavailable,
    NodeExists,
    NodeNotEmpty,
    NoSuchNode,
    OutcomeUnknown,
    RollbookError,
    SessionExpired,
    Throttled,
    Unauthorized,
    UnsupportedVersion,
)
from rollbook.proto.metastore.core.request_checks import ROOT, check_ops, check_path, parent_of
from rollbook.proto.metastore.core.watches import WatchTable
from rollbook.proto.metastore.service_client import OPERATION_TIMEOUT_S, SESSION_TIMEOUT_S
from rollbook.proto.metastore.url import ZooKeeperOptions
from rollbook.proto.metastore.watch_and_session_streams import SessionWatchers, WatchStream
from rollbook.proto.ports import (
    ANY_VERSION,
    NO_SESSION,
    Check,
    Create,
    CreateMode,
    Delete,
    Node,
    NodeStat,
    Op,
    OpResult,
    SessionEvent,
    SessionId,
    SessionState,
    Set,
    WatchEvent,
    WatchEventKind,
)
from rollbook.proto.runtime.metastore.kazoo_link import (
    IN_FLIGHT_MAX,
    AddWatch,
    KazooLink,
    RemoveWatches,
    Reply,
    Request,
)
from rollbook.proto.tasks import stop_tasks

logger = structlog.get_logger()

_RETRY_DELAY_S: Final = 1.0
# The longest wait for the end of the session; after this time, the session lasts until it expires.
_CLOSE_TIMEOUT_S: Final = 5.0
_ADVICE: Final = "check the metadata URL, and whether its servers are running"
_NO_OPTIONS: Final = ZooKeeperOptions()

_ERRORS: Final[dict[type[Exception], type[RollbookError]]] = {
    kazoo.NoNodeError: NoSuchNode,
    kazoo.NodeExistsError: NodeExists,
    kazoo.BadVersionError: MetadataConflict,
    kazoo.NotEmptyError: NodeNotEmpty,
    kazoo.NoChildrenForEphemeralsError: InvalidRequest,
    kazoo.BadArgumentsError: InvalidRequest,
    kazoo.MarshallingError: InvalidRequest,
    kazoo.EphemeralOnLocalSessionError: InvalidRequest,
    kazoo.UnimplementedError: UnsupportedVersion,
    kazoo.NoAuthError: Unauthorized,
    kazoo.InvalidACLError: Unauthorized,  # Raised for CREATOR_ALL if the server knows no creator.
    kazoo.SessionClosedRequireSaslError: Unauthorized,
    kazoo.SessionExpiredError: SessionExpired,
    # The server that we have left ignored the request.
    kazoo.SessionMovedError: MetadataUnavailable,
    kazoo.NotReadOnlyCallError: MetadataUnavailable,
    kazoo.ThrottledOpError: MetadataUnavailable,
    kazoo.ConnectionClosedError: MetadataUnavailable,
    kazoo.QuotaExceededError: Throttled,
    kazoo.ConnectionLoss: ConnectionLost,
    kazoo.OperationTimeoutError: ConnectionLost,
    kazoo.RequestTimeoutError: ConnectionLost,
}
# The errors of operations before or after the failing one, in the response to a refused transaction.
_NOT_TO_BLAME: Final = (kazoo.RolledBackError, kazoo.RuntimeInconsistency)

_SAY_ENOUGH: Final = (
    NoSuchNode,
    NodeExists,
    MetadataConflict,
    NodeNotEmpty,
    ConnectionLost,
    SessionExpired,
)

_EVENT_KINDS: Final = {
    1: WatchEventKind.CREATED,
    2: WatchEventKind.DELETED,
    3: WatchEventKind.CHANGED,
    4: WatchEventKind.CHILDREN,
}


class ZooKeeperStore:
    """Implements the `MetadataStore` port. It must be made and opened on the event loop.

    `hosts`: `host:port,host:port`. `chroot` is an existing node that becomes our `/`.
    """

    def __init__(
        self,
        hosts: str,
        options: ZooKeeperOptions = _NO_OPTIONS,
        *,
        chroot: str = "",
        session_timeout_s: float = SESSION_TIMEOUT_S,
        operation_timeout_s: float = OPERATION_TIMEOUT_S,
    ) -> None:
        self._hosts = hosts
        self._chroot = chroot
        self._timeout_s = operation_timeout_s
        self._acl = CREATOR_ALL_ACL if options.auth or options.sasl else OPEN_ACL_UNSAFE
        self._link = KazooLink(self, hosts, options, session_timeout_s)
        self._in_flight = asyncio.Semaphore(IN_FLIGHT_MAX)
        self._states = SessionWatchers()
        self._connection = 0  # The number of the present connection.
        self._expiries = 0
        # Set when any of the fields above changes, and then replaced.
        self._changed = asyncio.Event()
        # The error of all requests, once none is possible any more.
        self._refusal: RollbookError | None = None
        self._watches: WatchTable[WatchStream] = WatchTable()
        self._watched: dict[str, _WatchedPath] = {}
        self._keeping: asyncio.Task[None] | None = None
        self._restart: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None

    async def open(self, within_s: float | None = None) -> Self:
        """Returns when there is a session. If it gets none, it closes the store and raises the reason."""
        try:
            self._link.start()
            self._keeping = asyncio.create_task(self._keep_watches())
            await self._ask(Exists(self._full(ROOT), None), repeat=True, within_s=within_s)
        except BaseException:
            await self.close()
            raise
        return self

    @property
    def session(self) -> SessionId:
        if self._refusal is not None or self._states.now.state is SessionState.EXPIRED:
            return NO_SESSION
        return self._states.now.session

    # --- Operations ---

    async def get(self, path: str) -> Node | None:
        check_path(path)
        try:
            value, stat = await self._ask(GetData(self._full(path), None), path=path)
        except NoSuchNode:
            return None
        return Node(value or b"", _stat(stat))

    async def children(self, path: str) -> list[str]:
        check_path(path)
        return sorted(await self._ask(GetChildren(self._full(path), None), path=path))

    async def create(
        self, path: str, value: bytes = b"", mode: CreateMode = CreateMode.PERSISTENT
    ) -> str:
        made = await self._apply(Create(path, value, mode))
        assert isinstance(made, str)
        return made

    async def set(self, path: str, value: bytes, version: int | None = ANY_VERSION) -> NodeStat:
        stat = await self._apply(Set(path, value, version))
        assert isinstance(stat, NodeStat)
        return stat

    async def delete(self, path: str, version: int | None = ANY_VERSION) -> None:
        await self._apply(Delete(path, version))

    async def transaction(self, ops: Sequence[Op]) -> list[OpResult]:
        check_ops(ops)
        results = await self._ask(Transaction([self._request(op) for op in ops]))
        for index, (op, result) in enumerate(zip(ops, results, strict=True)):
            if isinstance(result, Exception) and not isinstance(result, _NOT_TO_BLAME):
                raise _translated(result, path=op.path, op=index)
        return [self._result(result) for result in results]

    async def sync(self) -> None:
        await self._ask(Sync(self._full(ROOT)))

    async def _apply(self, op: Op) -> OpResult:
        try:
            check_ops((op,))
        except RollbookError as error:
            error.ids.pop("op", None)  # The transaction has only one operation.
            raise
        return self._result(await self._ask(self._request(op), path=op.path))

    def _request(self, op: Op) -> Any:
        path = self._full(op.path)
        match op:
            case Create(value=value, mode=mode):
                flags = mode.is_ephemeral | mode.is_sequential << 1
                return KazooCreate(path, value, self._acl, flags)
            case Set(value=value, version=version):
                return SetData(path, value, _version(version))
            case Delete(version=version):
                return KazooDelete(path, _version(version))
            case Check(version=version):
                return CheckVersion(path, _version(version))

    def _result(self, result: object) -> OpResult:
        match result:
            case str():
                return self._short(result)
            case ZnodeStat():
                return _stat(result)
            case Exception():  # No operation failed, so the meaning of this response is not known.
                raise _translated(result)
            case _:
                return None

    async def _ask(
        self, request: Request, *, repeat: bool = False, within_s: float | None = None, **ids: Any
    ) -> Any:
        """Sends a request. With `repeat` the request may be repeated, so it is retried after a lost
        connection.
        """
        within_s = within_s or self._timeout_s
        expiries = self._expiries
        reply: Reply | None = None
        try:
            async with asyncio.timeout(within_s), self._in_flight:
                while True:
                    await self._until_connected(expiries)
                    reply = self._link.send(request, self.session)
                    try:
                        return await reply.future
                    except (kazoo.ConnectionLoss, kazoo.ConnectionClosedError):
                        if not (reply.take() or repeat):
                            raise
                        reply = None
        except TimeoutError as error:
            waited = f"no answer from {self._hosts} within {within_s:g} s"
            if reply is None or reply.take():
                raise MetadataUnavailable(
                    f"{waited}: {self._link.trouble}", next_step=_ADVICE, **ids
                ) from error
            raise ConnectionLost(waited, **ids) from error
        except RollbookError:
            raise
        except kazoo.AuthFailedError as error:
            raise self._unauthorized() from error
        # kazoo raises these errors, also for a response that it cannot read.
        except Exception as error:
            raise _translated(error, **ids) from error
        finally:
            if reply is not None:
                reply.take()  # A cancelled request is not sent any more.

    async def _until_connected(self, expiries: int) -> None:
        while True:
            if self._refusal is not None:
                raise type(self._refusal)(self._refusal.message)
            if self._expiries != expiries:
                raise SessionExpired
            if self._is_connected():
                return
            await self._changed.wait()

    # --- Watches and the session ---

    async def watch(self, path: str, *, recursive: bool = False) -> WatchStream:
        check_path(path)

        async def forget() -> None:
            await self._forget(path, stream)

        stream = WatchStream(path, forget)
        self._watches.add(stream, path, recursive=recursive)
        watched = self._watched.setdefault(path, _WatchedPath())
        watched.streams[stream] = None
        watched.recursive |= recursive
        connection = None
        try:
            # The loop repeats if the connection was lost after the response.
            while connection != self._connection:
                connection = self._connection
                await self._add_watch(path, watched)
        except BaseException:
            await stream.close()
            raise
        watched.streams[stream] = connection
        return stream

    def session_events(self) -> AsyncIterator[SessionEvent]:
        return self._states.follow()

    async def _forget(self, path: str, stream: WatchStream) -> None:
        self._watches.remove(stream)
        del self._watched[path].streams[stream]
        if self._watched[path].streams:
            return
        del self._watched[path]
        if not self._is_connected():
            return  # The server has forgotten the watch, too.
        async with self._in_flight:
            if self._is_connected() and self._refusal is None and path not in self._watched:
                reply = self._link.send(RemoveWatches(self._full(path)), self.session)
                await asyncio.gather(reply.future, return_exceptions=True)

    async def _keep_watches(self) -> None:
        """Sets all watches again after each reconnection."""
        armed = 0
        while True:
            connection = self._connection
            if connection == armed or not self._is_connected():
                await self._changed.wait()
                continue
            try:
                for path in list(self._watched):
                    await self._restore_watch(path, connection)
            except RollbookError as error:
                if self._connection == connection and self._is_connected():
                    logger.warning("zookeeper_watches_not_restored", reason=str(error))
                    await asyncio.sleep(_RETRY_DELAY_S)
            else:
                armed = connection

    async def _restore_watch(self, path: str, connection: int) -> None:
        watched = self._watched.get(path, _WatchedPath())
        behind = [
            stream for stream, since in watched.streams.items() if since not in (None, connection)
        ]
        if not behind:
            return
        await self._add_watch(path, watched)
        for stream in behind:
            if stream in watched.streams:
                watched.streams[stream] = connection
                stream.offer(WatchEvent(WatchEventKind.RESYNC, path))

    async def _add_watch(self, path: str, watched: "_WatchedPath") -> None:
        await self._ask(AddWatch(self._full(path), watched.recursive), repeat=True, path=path)

    # --- The end ---

    async def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._refuse(MetadataUnavailable(f"the client of {self._hosts} is closed"))
        if self._restart is not None:
            self._restart.cancel()
        await stop_tasks(self._keeping)
        reachable = self._is_connected()
        await self._link.stop(min(_CLOSE_TIMEOUT_S, self._timeout_s) if reachable else 0)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def _refuse(self, refusal: RollbookError) -> None:
        """Refuses all requests from now on."""
        self._refusal = refusal
        for watched in self._watched.values():
            for stream in watched.streams:
                stream.end()
        self._watched.clear()
        self._states.end()
        self._pulse()

    # --- Reports of the link ---

    def on_connected(self, session: SessionId) -> None:
        self._connection += 1
        self._become(SessionState.CONNECTED, session)
        logger.info("zookeeper_connected", hosts=self._hosts, session=session)

    def on_suspended(self) -> None:
        self._become(SessionState.SUSPENDED, self._states.now.session)
        logger.warning("zookeeper_connection_lost", hosts=self._hosts, session=self.session)

    def on_expired(self) -> None:
        expired = self._states.now.session
        self._expiries += 1
        self._become(SessionState.EXPIRED, expired)
        logger.warning("zookeeper_session_expired", hosts=self._hosts, session=expired)

    def on_refused(self) -> None:
        self._refuse(self._unauthorized())
        logger.error("zookeeper_refused_credentials", hosts=self._hosts)

    def _unauthorized(self) -> Unauthorized:
        return Unauthorized(f"{self._hosts} does not accept these credentials")

    def on_died(self) -> None:
        """Handles the end of the thread. The session cannot be kept, and a server will end it when
        its time-out is over.
        """
        self.on_expired()
        loop = asyncio.get_running_loop()
        self._restart = loop.call_later(_RETRY_DELAY_S, self._link.start)

    def on_change(self, event_type: int, path: str) -> None:
        event = WatchEvent(_EVENT_KINDS[event_type], self._short(path))
        self._tell(event)
        parent = self._watched.get(parent_of(event.path))
        comes_or_goes = event.kind in (WatchEventKind.CREATED, WatchEventKind.DELETED)
        if parent and parent.recursive and comes_or_goes and event.path != ROOT:
            self._tell(WatchEvent(WatchEventKind.CHILDREN, parent_of(event.path)))

    def _tell(self, event: WatchEvent) -> None:
        for stream in self._watches.watching(event):
            stream.offer(event)

    def _become(self, state: SessionState, session: SessionId) -> None:
        if self._refusal is None:
            self._states.become(state, session)
            self._pulse()

    def _pulse(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _is_connected(self) -> bool:
        return self._states.now.state is SessionState.CONNECTED

    def _full(self, path: str) -> str:
        return (self._chroot if path == ROOT else self._chroot + path) or ROOT

    def _short(self, path: str) -> str:
        return path.removeprefix(self._chroot) or ROOT


@dataclass(slots=True)
class _WatchedPath:
    # Each stream, with the number of the connection since which it has received all events, or None
    # while it is starting.
    streams: dict[WatchStream, int | None] = field(default_factory=dict)
    # Whether the server watches the path recursively. This stays until the last stream closes.
    recursive: bool = False


def _version(version: int | None) -> int:
    return -1 if version is None else version


def _stat(stat: ZnodeStat) -> NodeStat:
    return NodeStat(
        version=stat.version,
        created_txn=stat.czxid,
        modified_txn=stat.mzxid,
        created_ms=stat.ctime,
        modified_ms=stat.mtime,
        owner=stat.ephemeralOwner,
        children=stat.numChildren,
    )


def _translated(error: Exception, **ids: Any) -> RollbookError:
    kind = _ERRORS.get(type(error), OutcomeUnknown)
    message = "" if kind in _SAY_ENOUGH else f"ZooKeeper says {type(error).__name__}"
    return kind(message, **ids)
