"""The client of a metadata service. It keeps one session over a sequence of connections.

A call that cannot be sent waits for the connection. A request that is in flight when the connection
breaks has an unknown outcome (`ConnectionLost`), and is never sent again. Once the session
continues on a new connection, no request that was sent on an old one takes effect any more (MS6),
so a read then shows the outcome.

Watches outlive connections and sessions. Each watch is started again from the last commit number
that it received, so it misses nothing (MS5).
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Protocol, Self, cast

import structlog

from rollbook.proto.errors import (
    ConnectionLost,
    MetadataUnavailable,
    Overloaded,
    RollbookError,
    SessionExpired,
    Unavailable,
)
from rollbook.proto.metastore.core.request_checks import check_ops, check_path
from rollbook.proto.metastore.core.service_messages import (
    Answer,
    Ask,
    Children,
    EndSession,
    Expired,
    FromClient,
    FromService,
    Get,
    Hello,
    Question,
    Result,
    StartWatch,
    StopWatch,
    Sync,
    Transact,
    WatchNotice,
    Welcome,
)
from rollbook.proto.metastore.watch_and_session_streams import SessionWatchers, WatchStream
from rollbook.proto.ports import (
    ANY_VERSION,
    NO_SESSION,
    Create,
    CreateMode,
    Delete,
    Node,
    NodeStat,
    Op,
    OpResult,
    Randomness,
    SessionEvent,
    SessionId,
    SessionState,
    Set,
)
from rollbook.proto.tasks import stop_tasks

logger = structlog.get_logger()

SESSION_TIMEOUT_S: Final = 10.0
OPERATION_TIMEOUT_S: Final = 10.0
CLOSE_TIMEOUT_S: Final = 1.0  # Replacing a dead owner takes less time.
CALLS_MAX: Final = 10_000
_OPENING_PARTS: Final = 10  # The time limit of an opening is divided into this many steps.
PAUSE_S_MIN: Final = 0.01  # The pause between attempts to connect; it doubles, with jitter.
PAUSE_S_MAX: Final = 0.5


class Receiver(Protocol):
    def on_messages(self, messages: Sequence[FromService]) -> None: ...

    def on_lost(self, reason: str) -> None:
        """Called when the connection is gone."""


class ServiceChannel(Protocol):
    def send(self, messages: Sequence[FromClient]) -> None:
        """Sends messages. After the connection broke they are dropped, and the receiver is notified of that."""

    def close(self) -> None: ...


class Connector(Protocol):
    """Finds the service."""

    async def connect(self, receiver: Receiver, timeout_s: float) -> ServiceChannel:
        """Connects to the service. Raises `Unavailable` with a reason, which waiting callers get."""

    def why_silent(self) -> str:
        """Returns why a service that accepted the connection does not respond."""

    async def close(self) -> None: ...


class StoreClient:
    """The `MetadataStore` port over a `Connector`."""

    def __init__(
        self,
        connector: Connector,
        randomness: Randomness,
        *,
        session_timeout_s: float = SESSION_TIMEOUT_S,
        operation_timeout_s: float = OPERATION_TIMEOUT_S,
    ) -> None:
        self._connector = connector
        self._randomness = randomness
        self._session_timeout_s = session_timeout_s
        self._operation_timeout_s = operation_timeout_s
        self._store = ""
        self._session: SessionId = NO_SESSION
        self._states = SessionWatchers()
        self._heard_commit = 0
        # The calls that have no response yet, by request id.
        self._calls: dict[int, _PendingQuestion] = {}
        self._unsent: dict[int, _PendingQuestion] = {}
        self._watches: dict[int, _RunningWatch] = {}
        self._timer: asyncio.TimerHandle | None = None  # The timer of the call that is due first.
        self._last_id = 0
        self._link: _Link | None = None
        self._flushing = False
        self._trouble, self._advice = "it did not answer", ""
        self._connecting = False
        self._closed = False
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._runner: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    async def open(self, timeout_s: float | None = None) -> Self:
        """Returns when there is a session. If it gets none, it closes the client and raises the reason."""
        self._runner = asyncio.get_running_loop().create_task(self._run())
        self._limit_opening(timeout_s or self._operation_timeout_s)
        try:
            await self._opened
        except BaseException:
            await self.close()
            raise
        return self

    def _limit_opening(self, timeout_s: float, parts: int = _OPENING_PARTS) -> None:
        """Limits the time of opening. The time is divided into steps that begin one after the
        other, so that only one of them passes while this process is stopped.
        """
        step_s = timeout_s / _OPENING_PARTS
        loop = asyncio.get_running_loop()
        loop.call_later(step_s, self._on_opening_waits, timeout_s, parts - 1)

    def _on_opening_waits(self, timeout_s: float, parts_left: int) -> None:
        if self._opened.done():
            return
        if parts_left:
            self._limit_opening(timeout_s, parts_left)
        elif self._connecting:  # Waits longer, since the owner may be reading a large file.
            self._limit_opening(timeout_s)
        else:
            self._opened.set_exception(self._unreachable())

    # --- The port ---

    @property
    def session(self) -> SessionId:
        return self._session

    async def get(self, path: str) -> Node | None:
        check_path(path)
        return cast(Node | None, await self._call(Get(path)))

    async def children(self, path: str) -> list[str]:
        check_path(path)
        return cast(list[str], await self._call(Children(path)))

    async def create(
        self, path: str, value: bytes = b"", mode: CreateMode = CreateMode.PERSISTENT
    ) -> str:
        return cast(str, await self._one(Create(path, value, mode)))

    async def set(self, path: str, value: bytes, version: int | None = ANY_VERSION) -> NodeStat:
        return cast(NodeStat, await self._one(Set(path, value, version)))

    async def delete(self, path: str, version: int | None = ANY_VERSION) -> None:
        await self._one(Delete(path, version))

    async def _one(self, op: Op) -> OpResult:
        try:
            return (await self.transaction((op,)))[0]
        except RollbookError as error:
            error.ids.pop("op", None)  # The transaction has only one operation.
            raise

    async def transaction(self, ops: Sequence[Op]) -> list[OpResult]:
        check_ops(ops)
        return cast(list[OpResult], await self._call(Transact(tuple(ops))))

    async def watch(self, path: str, *, recursive: bool = False) -> WatchStream:
        check_path(path)
        watch_id = self._next_id()
        stream = WatchStream(path, lambda: self._on_watch_closed(watch_id))
        self._watches[watch_id] = _RunningWatch(path, recursive, stream)
        try:
            await self._call(StartWatch(watch_id, path, recursive, since=None))
        except BaseException:
            self._stop_watch(watch_id)  # The service may have started the watch.
            raise
        return stream

    def session_events(self) -> AsyncIterator[SessionEvent]:
        return self._states.follow()

    async def sync(self) -> None:
        await self._call(Sync())

    async def close(self) -> None:
        """Closes the store, even if the caller is cancelled, since a half-closed store would keep its file."""
        if self._closing is None:
            self._closed = True
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        try:
            if self._session != NO_SESSION:
                async with asyncio.timeout(min(CLOSE_TIMEOUT_S, self._operation_timeout_s)):
                    await self._ask(EndSession())
        except (RollbookError, TimeoutError):
            pass  # The service ends the session when its time-out is over.
        finally:
            await self._end()

    async def _end(self) -> None:
        await stop_tasks(self._runner)
        self._session = NO_SESSION
        self._fail(self._unsent, MetadataUnavailable(_CLOSED))
        if self._timer is not None:
            self._timer.cancel()
        for watch in self._watches.values():
            watch.stream.end()
        self._watches.clear()
        self._states.end()
        await self._connector.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    # --- Calls ---

    async def _call(self, question: Question) -> Result:
        if self._closed:
            raise MetadataUnavailable(_CLOSED)
        if len(self._calls) >= CALLS_MAX:
            raise Overloaded(
                f"{CALLS_MAX} calls to the metadata store are waiting for their answers"
            )
        return await self._ask(question)

    async def _ask(self, question: Question) -> Result:
        loop = asyncio.get_running_loop()
        request_id = self._next_id()
        due = loop.time() + self._operation_timeout_s
        call = _PendingQuestion(question, loop.create_future(), self._session, due)
        self._calls[request_id] = self._unsent[request_id] = call
        if self._timer is None:
            self._timer = loop.call_at(due, self._on_due)
        if not self._flushing:  # All calls of one turn of the loop are sent as one.
            self._flushing = True
            loop.call_soon(self._flush)
        try:
            return await call.answer
        finally:  # This also runs on cancellation, since a later response has no waiter.
            del self._calls[request_id]
            self._unsent.pop(request_id, None)

    def _flush(self) -> None:
        self._flushing = False
        link = self._link
        if link is None or not link.welcomed or not self._unsent:
            return
        asks = []
        for request_id, call in self._unsent.items():
            if call.answer.done():  # The caller already knows that the call was not sent.
                continue
            asks.append(Ask(request_id, call.question))
            if isinstance(call.question, StartWatch):
                link.starting[request_id] = self._watches[call.question.watch_id]
        self._unsent.clear()
        link.channel.send(asks)

    def _on_due(self) -> None:
        """Handles the timer that all calls share. They have equal time-outs, so the oldest call is
        due first.
        """
        self._timer = None
        loop = asyncio.get_running_loop()
        for request_id, call in self._calls.items():
            if call.due > loop.time():
                self._timer = loop.call_at(call.due, self._on_due)
                break
            if not call.answer.done():
                self._on_late(request_id, call)

    def _on_late(self, request_id: int, call: "_PendingQuestion") -> None:
        late = {request_id: call}
        if request_id in self._unsent:
            self._fail(late, self._unreachable())
        else:
            waited = f"no answer from the metadata store within {self._operation_timeout_s:g} s"
            self._fail(late, ConnectionLost(f"{waited}: {self._connector.why_silent()}"))

    def _fail(self, calls: dict[int, "_PendingQuestion"], error: RollbookError) -> None:
        for call in calls.values():
            if not call.answer.done():
                call.answer.set_exception(error.copy())

    def _unreachable(self) -> MetadataUnavailable:
        trouble = self._trouble if self._link is None else self._connector.why_silent()
        what = f"the metadata store cannot be reached: {trouble}"
        return MetadataUnavailable(what, next_step=self._advice if self._link is None else "")

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    # --- Watches ---

    async def _on_watch_closed(self, watch_id: int) -> None:
        self._stop_watch(watch_id)

    def _stop_watch(self, watch_id: int) -> None:
        if self._watches.pop(watch_id, None) is not None and self._link is not None:
            self._link.ask(self._next_id(), StopWatch(watch_id))

    def _start_watches_again(self, link: "_Link") -> None:
        for watch_id, watch in self._watches.items():
            if watch.since is not None:
                request_id = self._next_id()
                link.starting[request_id] = watch
                start = StartWatch(watch_id, watch.path, watch.recursive, watch.since)
                link.ask(request_id, start)

    def _pause_watches(self) -> None:
        for watch in self._watches.values():
            if watch.running:
                watch.running, watch.since = False, self._heard_commit

    # --- The connection ---

    async def _run(self) -> None:
        try:
            await self._keep_connected()
        except Exception as error:  # The task ends here, and no other code would see its error.
            self._trouble, self._advice = str(error), ""
            if not self._opened.done():
                self._opened.set_exception(error)
                return
            logger.exception("metadata_client_failed")

    async def _keep_connected(self) -> None:
        failures = 0
        while True:
            link = _Link(self)
            try:
                link.channel = await self._connect(link)
                self._link = link
                try:
                    link.hello(self._store, self._session, self._session_timeout_s)
                    self._trouble, self._advice = await self._attend(link), ""
                finally:
                    self._lose(link)
            except Unavailable as error:
                self._trouble, self._advice = error.message, error.next_step
            except RollbookError as error:
                # While the client opens, a permanent error is raised.
                if not self._opened.done():
                    raise
                self._trouble, self._advice = error.message, error.next_step
                logger.error("metadata_store_failed", reason=str(error))
            failures = 0 if link.welcomed else failures + 1
            pause_s = min(PAUSE_S_MIN * 2.0 ** min(failures, 10), PAUSE_S_MAX)
            await asyncio.sleep(pause_s * self._randomness.uniform(0.5, 1.0))

    async def _connect(self, link: "_Link") -> ServiceChannel:
        self._connecting = True
        try:
            return await self._connector.connect(link, self._session_timeout_s / 3)
        finally:
            self._connecting = False

    async def _attend(self, link: "_Link") -> str:
        """Keeps the session alive until the connection is lost; returns the reason."""
        while True:
            interval_s = self._session_timeout_s / 3
            try:
                async with asyncio.timeout(interval_s):
                    await link.lost.wait()
                return link.reason
            except TimeoutError:
                pass
            silent_s = asyncio.get_running_loop().time() - link.heard_at_s
            if silent_s >= (2 if link.welcomed else 1) * interval_s:
                return self._connector.why_silent()
            if link.welcomed:
                link.ask(self._next_id(), Sync())

    def _lose(self, link: "_Link") -> None:
        self._link = None
        link.lost.set()
        link.channel.close()
        self._pause_watches()
        sent = {i: call for i, call in self._calls.items() if i not in self._unsent}
        lost = f"the connection to the metadata store broke before the answer came: {self._trouble}"
        self._fail(sent, ConnectionLost(lost))
        if self._states.now.state is SessionState.CONNECTED:
            self._states.become(SessionState.SUSPENDED, self._session)
            if not self._closed:
                logger.warning("metadata_connection_lost", session=self._session)

    def on_message(self, link: "_Link", message: FromService) -> None:
        match message:
            case Answer(request_id, commit, result):
                self._heard_commit = commit
                self._on_answer(link, request_id, result)
            case WatchNotice(watch_id, commit, event):
                self._heard_commit = commit
                if (watch := self._watches.get(watch_id)) is not None:
                    watch.stream.offer(event)
            case Welcome():
                self._on_welcome(link, message)
            case Expired(session):
                self._on_expired(link, session)

    def _on_answer(self, link: "_Link", request_id: int, result: Result | RollbookError) -> None:
        refused = isinstance(result, RollbookError)
        if (watch := link.starting.pop(request_id, None)) is not None:
            watch.running = not refused
        call = self._calls.get(request_id)
        if call is None or call.answer.done():
            return
        if isinstance(result, RollbookError):
            call.answer.set_exception(result)
        else:
            call.answer.set_result(result)

    def _on_welcome(self, link: "_Link", welcome: Welcome) -> None:
        if welcome.store != self._store:  # Commit numbers of another store mean nothing here.
            for watch in self._watches.values():
                watch.since = None if watch.since is None else 0
        self._store, self._session = welcome.store, welcome.session
        self._session_timeout_s = welcome.timeout_ms / 1000
        link.welcomed = True
        self._states.become(SessionState.CONNECTED, self._session)
        if not self._opened.done():
            self._opened.set_result(None)
        self._start_watches_again(link)
        self._flush()

    def _on_expired(self, link: "_Link", session: SessionId) -> None:
        logger.warning("metadata_session_expired", session=session)
        self._pause_watches()
        self._session = NO_SESSION
        link.welcomed = False
        self._states.become(SessionState.EXPIRED, session)
        made_in_it = {i: call for i, call in self._unsent.items() if call.session == session}
        self._fail(made_in_it, SessionExpired(session=session))
        for request_id in made_in_it:
            del self._unsent[request_id]
        link.hello("", NO_SESSION, self._session_timeout_s)


_CLOSED: Final = "this metadata store was closed"


class _Link:
    """One connection, from its creation to its loss."""

    def __init__(self, client: StoreClient) -> None:
        self.channel: ServiceChannel
        self.lost = asyncio.Event()
        self.reason = ""
        self.welcomed = False
        self.heard_at_s = asyncio.get_running_loop().time()
        # The watches that are being started on this connection, by request id.
        self.starting: dict[int, _RunningWatch] = {}
        self._client = client

    def hello(self, store: str, session: SessionId, timeout_s: float) -> None:
        self.channel.send([Hello(store, session, round(timeout_s * 1000))])

    def ask(self, request_id: int, question: Question) -> None:
        self.channel.send([Ask(request_id, question)])

    def on_messages(self, messages: Sequence[FromService]) -> None:
        self.heard_at_s = asyncio.get_running_loop().time()
        for message in messages:
            if not self.lost.is_set():
                self._client.on_message(self, message)

    def on_lost(self, reason: str) -> None:
        self.reason = self.reason or reason
        self.lost.set()


@dataclass(eq=False, slots=True)
class _PendingQuestion:
    question: Question
    answer: asyncio.Future[Result]
    session: SessionId  # The session in which the call was made.
    due: float  # The call's deadline in the loop's time.


@dataclass(eq=False, slots=True)
class _RunningWatch:
    path: str
    recursive: bool
    stream: WatchStream
    running: bool = False  # True while the watch runs on the present connection.
    # While it is not running: the last commit number that was received, or None if it never ran.
    since: int | None = None
