"""The metadata store on a ZooKeeper ensemble (3.6 or newer: persistent watches).

What each promise of the port rests on:

- *Outcome.* A request that was not sent when the connection broke waits for the next connection
  and has no outcome to doubt; one that was sent is `ConnectionLost`, and nothing here repeats it.
- *Watches.* ZooKeeper keeps a watch per connection. After each reconnection all of them are put
  back, and each tells RESYNC. Servers before 3.9 keep one mode per path: one that is watched in
  both is watched recursively, and its children's comings and goings stand for CHILDREN.
- *Sessions.* SUSPENDED is said when the connection breaks, EXPIRED when a server says so, which
  takes a connection; a new session then follows by itself.
- *Freshness.* `sync` then read. A replica behind what this client has seen does not accept it.

Nodes are plain persistent ones open to all, as BookKeeper makes them; with credentials, only
their creator may use them.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
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
from rollbook.proto.metastore.core.ops import ROOT, check_ops, check_path, parent_of
from rollbook.proto.ports import (
    ANY_VERSION,
    NO_SESSION,
    Check,
    Create,
    CreateMode,
    Delete,
    EventKind,
    Node,
    NodeStat,
    Op,
    OpResult,
    SessionEvent,
    SessionId,
    SessionState,
    Set,
    WatchEvent,
)
from rollbook.proto.runtime.metastore.kazoo_link import (
    AddWatch,
    KazooLink,
    RemoveWatches,
    Reply,
    Request,
)

logger = structlog.get_logger()

_IN_FLIGHT_MAX: Final = 128  # Far more than keep one connection busy.
_RESTART_DELAY_S: Final = 1.0
_EVENTS_MAX: Final = 1000  # Waiting for the reader of one watch.

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
    kazoo.InvalidACLError: Unauthorized,  # CREATOR_ALL, and the server knows no creator.
    kazoo.AuthFailedError: Unauthorized,
    kazoo.SessionClosedRequireSaslError: Unauthorized,
    kazoo.SessionExpiredError: SessionExpired,
    kazoo.SessionMovedError: MetadataUnavailable,  # Ignored by the server we have left.
    kazoo.NotReadOnlyCallError: MetadataUnavailable,
    kazoo.ThrottledOpError: MetadataUnavailable,
    kazoo.ConnectionClosedError: MetadataUnavailable,
    kazoo.QuotaExceededError: Throttled,
    kazoo.ConnectionLoss: ConnectionLost,
    kazoo.OperationTimeoutError: ConnectionLost,
    kazoo.RequestTimeoutError: ConnectionLost,
}
# In the answer to a refused transaction: these ops came before the one to blame, or after it.
_NOT_TO_BLAME: Final = (kazoo.RolledBackError, kazoo.RuntimeInconsistency)

_SAY_ENOUGH: Final = (
    *(NoSuchNode, NodeExists, MetadataConflict, NodeNotEmpty, ConnectionLost, SessionExpired),
)

_EVENT_KINDS: Final = {
    1: EventKind.CREATED,
    2: EventKind.DELETED,
    3: EventKind.CHANGED,
    4: EventKind.CHILDREN,
}


@dataclass(frozen=True, slots=True)
class _Situation:
    state: SessionState
    session: SessionId
    connection: int  # Grows with each one: a loss that is over already can still be told.


class ZooKeeperStore:
    """The `MetadataStore` port; opened by `open`."""

    def __init__(
        self,
        hosts: str,
        *,
        chroot: str = "",
        session_timeout_s: float = 10.0,
        operation_timeout_s: float = 10.0,
        options: dict[str, Any] | None = None,
    ) -> None:
        """`chroot`: the existing node that is our `/`. `options`: see `KazooLink`."""
        options = options or {}
        self._hosts = hosts
        self._chroot = chroot
        self._timeout_s = operation_timeout_s
        has_credentials = options.get("auth_data") or options.get("sasl_options")
        self._acl = CREATOR_ALL_ACL if has_credentials else OPEN_ACL_UNSAFE
        self._link = KazooLink(self, hosts, session_timeout_s, options)
        self._in_flight = asyncio.Semaphore(_IN_FLIGHT_MAX)
        self._now = _Situation(SessionState.SUSPENDED, NO_SESSION, connection=0)
        self._expiries = 0
        self._changed = asyncio.Event()  # Of the situation: set once, then replaced.
        self._refusal: RollbookError | None = None  # Nothing can be asked any more.
        self._watches = _Watches()
        self._keeping: asyncio.Task[None] | None = None
        self._restart: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        hosts: str,
        *,
        chroot: str = "",
        session_timeout_s: float = 10.0,
        operation_timeout_s: float = 10.0,
        options: dict[str, Any] | None = None,
    ) -> Self:
        """With a session. Raises `MetadataUnavailable` or `Unauthorized`."""
        store = cls(
            hosts,
            chroot=chroot,
            session_timeout_s=session_timeout_s,
            operation_timeout_s=operation_timeout_s,
            options=options,
        )
        try:
            store._link.start()
            store._keeping = asyncio.create_task(store._keep_watches())
            await store._ask(Exists(store._full(ROOT), None), repeat=True)
        except BaseException:
            await store.close()
            raise
        return store

    @property
    def session(self) -> SessionId:
        if self._refusal is not None or self._now.state is SessionState.EXPIRED:
            return NO_SESSION
        return self._now.session

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
        if not ops:
            return []
        results = await self._ask(Transaction([self._request(op) for op in ops]))
        for index, (op, result) in enumerate(zip(ops, results, strict=True)):
            if isinstance(result, Exception) and not isinstance(result, _NOT_TO_BLAME):
                raise _translated(result, path=op.path, op=index)
        return [self._result(result) for result in results]

    async def sync(self) -> None:
        await self._ask(Sync(self._full(ROOT)))

    async def _apply(self, op: Op) -> OpResult:
        check_ops([op])
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
            case Exception():  # None was to blame, so nobody knows what this answer means.
                raise _translated(result)
            case _:
                return None

    async def _ask(self, request: Request, *, repeat: bool = False, **ids: Any) -> Any:
        """`repeat`: asking twice does no harm, so a broken connection is no reason to give up."""
        expiries = self._expiries
        reply: Reply | None = None
        try:
            async with asyncio.timeout(self._timeout_s), self._in_flight:
                while True:
                    await self._until_connected(expiries)
                    reply = self._link.send(request, self._now.session)
                    try:
                        return await reply.future
                    except kazoo.ConnectionLoss:
                        if not (reply.take() or repeat):
                            raise
                        reply = None
        except TimeoutError as error:
            waited = f"no answer from {self._hosts} within {self._timeout_s:g} s"
            if reply is None or reply.take():
                raise MetadataUnavailable(f"{waited}; not sent", **ids) from error
            raise ConnectionLost(waited, **ids) from error
        except RollbookError:
            raise
        except Exception as error:  # kazoo's, or of kazoo's making: an answer it cannot read.
            raise _translated(error, **ids) from error
        finally:
            if reply is not None:
                reply.take()  # Whoever is cancelled asks for nothing any more.

    async def _until_connected(self, expiries: int) -> None:
        while True:
            if self._refusal is not None:
                raise type(self._refusal)(self._refusal.message)
            if self._expiries != expiries:
                raise SessionExpired
            if self._now.state is SessionState.CONNECTED:
                return
            await self._changed.wait()

    # --- Watches and the session ---

    async def watch(self, path: str, *, recursive: bool = False) -> "ZooKeeperWatch":
        check_path(path)
        watch = ZooKeeperWatch(path, recursive, self._forget)
        self._watches.add(watch)
        try:
            await self._ask(self._watch_request(path), repeat=True, path=path)
        except BaseException:
            await watch.close()
            raise
        return watch

    def session_events(self) -> AsyncIterator[SessionEvent]:
        return self._session_events(self._now)

    async def _session_events(self, told: _Situation) -> AsyncIterator[SessionEvent]:
        yield SessionEvent(told.state, told.session)
        while self._refusal is None:
            news = _news(told, self._now)
            if news is None:
                await self._changed.wait()
            else:
                told = news
                yield SessionEvent(told.state, told.session)

    def _watch_request(self, path: str) -> AddWatch:
        return AddWatch(self._full(path), self._watches.is_recursive(path))

    def _forget(self, watch: "ZooKeeperWatch") -> None:
        is_last = self._watches.remove(watch)
        # If the connection is broken, the server has forgotten already.
        if is_last and self._now.state is SessionState.CONNECTED and self._refusal is None:
            request = RemoveWatches(self._full(watch.path))
            reply = self._link.send(request, self._now.session)
            reply.future.add_done_callback(_look_away)

    async def _keep_watches(self) -> None:
        """Puts all of them back after each reconnection."""
        armed = 0
        while True:
            connection = self._now.connection
            if connection == armed or self._now.state is not SessionState.CONNECTED:
                await self._changed.wait()
                continue
            try:
                for path in self._watches.paths():
                    if self._watches.is_watched(path):  # Still.
                        await self._ask(self._watch_request(path), path=path)
                    self._watches.tell_resync(path)
            except RollbookError as error:
                logger.warning("zookeeper_watches_not_restored", reason=str(error))
                await asyncio.sleep(_RESTART_DELAY_S)
            else:
                armed = connection

    # --- The end ---

    async def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._refuse(MetadataUnavailable(f"the client of {self._hosts} is closed"))
        if self._restart is not None:
            self._restart.cancel()
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        await self._link.stop(self._timeout_s)

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
        self._refusal = refusal
        self._watches.end()
        self._pulse()

    # --- What the link tells ---

    def on_connected(self, session: SessionId) -> None:
        self._become(SessionState.CONNECTED, session, self._now.connection + 1)
        logger.info("zookeeper_connected", hosts=self._hosts, session=session)

    def on_suspended(self) -> None:
        self._become(SessionState.SUSPENDED, self._now.session, self._now.connection)
        logger.warning("zookeeper_connection_lost", hosts=self._hosts, session=self._now.session)

    def on_expired(self) -> None:
        self._expiries += 1
        self._become(SessionState.EXPIRED, self._now.session, self._now.connection)
        logger.warning("zookeeper_session_expired", hosts=self._hosts, session=self._now.session)

    def on_refused(self) -> None:
        self._refuse(Unauthorized(f"{self._hosts} does not accept these credentials"))
        logger.error("zookeeper_refused_credentials", hosts=self._hosts)

    def on_died(self) -> None:
        """The session can be resumed no more; a server will end it in its own time."""
        self.on_expired()
        loop = asyncio.get_running_loop()
        self._restart = loop.call_later(_RESTART_DELAY_S, self._link.start)

    def on_change(self, event_type: int, path: str) -> None:
        self._watches.tell(WatchEvent(_EVENT_KINDS[event_type], self._short(path)))

    def _become(self, state: SessionState, session: SessionId, connection: int) -> None:
        self._now = _Situation(state, session, connection)
        self._pulse()

    def _pulse(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _full(self, path: str) -> str:
        return (self._chroot if path == ROOT else self._chroot + path) or ROOT

    def _short(self, path: str) -> str:
        return path.removeprefix(self._chroot) or ROOT


class ZooKeeperWatch:
    """The `Watch` port. A reader that is far behind hears RESYNC instead of what it missed."""

    def __init__(
        self, path: str, recursive: bool, forget: Callable[["ZooKeeperWatch"], None]
    ) -> None:
        self.path = path
        self.recursive = recursive
        self._forget = forget
        self._events: deque[WatchEvent] = deque()
        self._news = asyncio.Event()
        self._is_open = True

    def offer(self, event: WatchEvent) -> None:
        if len(self._events) == _EVENTS_MAX:
            self._events.clear()
            event = WatchEvent(EventKind.RESYNC, self.path)
        if not self._events or self._events[-1] != event:
            self._events.append(event)
            self._news.set()

    def end(self) -> None:
        self._is_open = False
        self._news.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> WatchEvent:
        while self._is_open:
            if self._events:
                return self._events.popleft()
            self._news.clear()
            await self._news.wait()
        raise StopAsyncIteration

    async def close(self) -> None:
        if self._is_open:
            self.end()
            self._forget(self)


class _Watches:
    """Who hears of what."""

    def __init__(self) -> None:
        self._by_path: dict[str, list[ZooKeeperWatch]] = {}
        self._recursive: dict[str, bool] = {}  # How the server watches; stays until the last goes.

    def add(self, watch: ZooKeeperWatch) -> None:
        self._by_path.setdefault(watch.path, []).append(watch)
        self._recursive[watch.path] = self._recursive.get(watch.path, False) or watch.recursive

    def remove(self, watch: ZooKeeperWatch) -> bool:
        """True if it was the last one of its path."""
        self._by_path[watch.path].remove(watch)
        if self._by_path[watch.path]:
            return False
        del self._by_path[watch.path], self._recursive[watch.path]
        return True

    def paths(self) -> list[str]:
        return list(self._by_path)

    def is_watched(self, path: str) -> bool:
        return path in self._by_path

    def is_recursive(self, path: str) -> bool:
        return self._recursive[path]

    def tell(self, event: WatchEvent) -> None:
        here = self._by_path.get(event.path, ())
        if event.kind is EventKind.CHILDREN:
            _offer(event, [watch for watch in here if not watch.recursive])
            return
        _offer(event, here)
        if event.path == ROOT:
            return
        parent = parent_of(event.path)
        above = event.path
        while above != ROOT:
            above = parent_of(above)
            _offer(event, [watch for watch in self._by_path.get(above, ()) if watch.recursive])
        if self._recursive.get(parent) and event.kind is not EventKind.CHANGED:
            self.tell(WatchEvent(EventKind.CHILDREN, parent))

    def tell_resync(self, path: str) -> None:
        _offer(WatchEvent(EventKind.RESYNC, path), self._by_path.get(path, ()))

    def end(self) -> None:
        for watches in self._by_path.values():
            for watch in watches:
                watch.end()
        self._by_path.clear()
        self._recursive.clear()


def _offer(event: WatchEvent, watches: Sequence[ZooKeeperWatch]) -> None:
    for watch in watches:
        watch.offer(event)


def _news(told: _Situation, now: _Situation) -> _Situation | None:
    """What to tell next. A loss or an expiry is told even if it is over already; several are one."""
    if now.session != told.session and told.state is not SessionState.EXPIRED:
        return replace(told, state=SessionState.EXPIRED)
    if now.connection != told.connection and told.state is SessionState.CONNECTED:
        return replace(told, state=SessionState.SUSPENDED)
    return now if now != told else None


def _look_away(done: "asyncio.Future[Any]") -> None:
    """Nobody waits for this answer, not even for an error."""
    if not done.cancelled():
        done.exception()


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
